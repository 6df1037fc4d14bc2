"""What a batch says of a measured page, kept beside its record: index and tables read no record again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
import numpy as np
import pandas as pd

from ocr_phases.analyse.checks import run_rules
from ocr_phases.analyse.noise import is_noisy
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.repetition import repeated_share
from ocr_phases.analyse.scaling import ended_text, richness
from ocr_phases.analyse.stages import PROBABILITY_COLUMNS, TOKEN_COLUMNS
from ocr_phases.batch.store import RECORD, TRUTH, truth_hash
from ocr_phases.files import split_page, write_atomic
from ocr_phases.record import SPAN_COLUMNS
from ocr_phases.record.store import file_hash
from ocr_phases.results.run import PhaseRun

FIGURES = "figures.json"

#: Columns of the tables of all pages, behind the page's own id and name. The token's id is ``token_id``;
#: probabilities stay in the records.
TABLES = {
    "spans": list(SPAN_COLUMNS),
    "tokens": [
        {"id": "token_id"}.get(name, name) for name in TOKEN_COLUMNS if name not in PROBABILITY_COLUMNS
    ],
}

#: The figures of `PhaseRun.summary` that have another name as columns.
_COLUMNS = {
    "prefill_len": "prompt_tokens",
    "valid_image_tokens": "image_tokens",
    "generated_compression_ratio": "compression",
    "compression_ratio": "vendor_compression",
}
#: The costliest regions of a page that are kept, and what is kept of each.
MOST_REGIONS = 25
_LOOP = ("repetition_loop", "note")
_REGION = ["label", "tokens", "characters", "decode_ms", "ms_per_char", "text"]


class Figures(TypedDict):
    """``figures.json``, of the record with the SHA-256 ``record`` and the ``truth.json`` with ``truth``.

    ``row`` has columns of the batch's ``pages.csv`` among others, ``regions`` the costliest first. ``text``
    is the plain text where other runs of the page are to be compared with it, and ``richness`` by what one of
    them becomes the reference. ``tables`` has the page's rows of `TABLES` as CSV: to write numbers as text
    takes longer than all else that the driver does for a page, so the worker does it.
    """

    schema: Literal[4]
    record: str
    truth: str | None
    row: dict[str, Any]
    regions: list[dict[str, Any]]
    text: str
    richness: list[float]
    tables: dict[str, str]


def page_figures(run: PhaseRun, job: str, page: str, record: str, truth: str | None = None) -> Figures:
    """The figures of the ``page`` of a ``job`` (its id): of a record and a truth with these SHA-256s."""
    frames = {"spans": run.spans, "tokens": run.token_table.rename(columns={"id": "token_id"})}
    tables = {}
    for name, frame in frames.items():
        table = frame.assign(job=job, page=page)[["job", "page", *TABLES[name]]]
        text = table.to_csv(index=False, header=False, lineterminator="\n")
        tables[name] = text.encode("utf-8", "replace").decode()
    return {
        "schema": 4,
        "record": record,
        "truth": truth,
        "row": _row(run),
        "regions": _regions(run),
        "text": ended_text(run) if run.truths is None else "",
        "richness": [float(part) for part in richness(run)],
        "tables": tables,
    }


def page_run(folder: Path) -> PhaseRun:
    """A page's record with what the page says, where that is known; `OcrPhasesError` for damage."""
    run = PhaseRun.load(folder / RECORD)
    return run.with_truth(folder / TRUTH) if (folder / TRUTH).exists() else run


def write_figures(folder: Path, run: PhaseRun, job: str, page: str) -> Figures:
    """Write the figures of the record in ``folder``, which is ``run``; `OcrPhasesError` if that fails."""
    figures = page_figures(run, job, page, file_hash(folder / RECORD), truth_hash(folder))
    # JSON has no numpy numbers, and not pandas' missing value.
    data = msgspec.json.encode(figures, enc_hook=lambda value: None if value is pd.NA else value.item())
    write_atomic(folder / FIGURES, data)
    return msgspec.json.decode(data, type=Figures)


def read_figures(folder: Path, digest: str, job: str, page: str) -> Figures:
    """The figures of the record in ``folder`` with this SHA-256.

    They are made anew where they are missing, damaged, or of another record or truth; raises as `page_run`.
    """
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        figures = msgspec.json.decode((folder / FIGURES).read_bytes(), type=Figures)
        if (figures["record"], figures["truth"]) == (digest, truth_hash(folder)):
            return figures
    return write_figures(folder, page_run(folder), job, page)


def _row(run: PhaseRun) -> dict[str, Any]:
    truth, checks = run.truth_of(), [(check.name, check.verdict) for check in run_rules(run)]
    # Failed and noisy checks, a repetition loop, an incomplete text.
    bad = [name for name, verdict in checks if verdict in ("fail", "noisy") or (name, verdict) == _LOOP]
    cut = run.result.finish_reason == "length" and not run.request.ignore_eos
    warnings = [*(name.replace("_", " ") for name in bad), *["cut at the token limit"] * cut]
    return {
        **{_COLUMNS.get(name, name): value for name, value in run.summary().items() if name != "text"},
        **quality_of(run),
        "model": run.model.name,
        "preset": run.request.preset,
        "device": run.device.name,
        "warnings": ", ".join(warnings),
        "noisy": is_noisy(run),
        "repeated_share": repeated_share(run),
        "cut": cut and _LOOP not in checks,
        "reference": truth.file if truth and truth.reference else None,
        "category": "" if truth is None else truth.category,
        "page_id": "".join(page.sha256[:16] + split_page(page.file)[1] for page in run.pages),
    }


def _regions(run: PhaseRun) -> list[dict[str, Any]]:
    table = run.regions
    known = table[(table["region"] >= 0) & np.isfinite(table["decode_ms"])]
    return known.nlargest(MOST_REGIONS, "decode_ms")[_REGION].to_dict("records")
