"""What a batch says of a measured page, kept beside its record: index and tables read no record
again.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd

from ocr_phases.analyse.checks import run_rules
from ocr_phases.analyse.figure_rows import Place, figures_in
from ocr_phases.analyse.noise import is_noisy
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.repetition import repeated_share
from ocr_phases.analyse.stages import PROBABILITY_COLUMNS, TOKEN_COLUMNS
from ocr_phases.analyse.sweep_table import ended_text, richness
from ocr_phases.batch.archive import RECORD, TRUTH, truth_hash
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import make_way, read_regular, split_page, write_atomic
from ocr_phases.record import SPAN_COLUMNS
from ocr_phases.record.store import file_hash
from ocr_phases.results.run import PhaseRun

FIGURES_FILE = "figures.json"
_LARGEST_FIGURES = 2**28  # in bytes: the longest answers have some 20 MB of tables

#: Columns of the tables of all pages, behind the page's own id and name. The token's id is
#: ``token_id``; probabilities stay in the records.
TABLES = {
    "spans": list(SPAN_COLUMNS),
    "tokens": [
        {"id": "token_id"}.get(name, name)
        for name in TOKEN_COLUMNS
        if name not in PROBABILITY_COLUMNS
    ],
}

#: The costliest regions of a page that are kept, and what is kept of each.
MOST_REGIONS = 25
_LOOP = ("repetition_loop", "note")
_REGION = ["label", "tokens", "characters", "decode_ms", "ms_per_char", "text"]


class PageRow(msgspec.Struct):
    """What the batch's ``pages.csv`` has of a page's record, by its columns; see `batch.index`."""

    model: str
    preset: str
    device: str
    #: The figures of `Place.PAGES` by the names of their columns.
    figures: dict[str, int | float | None]
    reference: str | None = None
    category: str = ""
    page_id: str = ""
    warnings: str = ""
    noisy: bool = False
    cut: bool = False


class CostlyRegion(msgspec.Struct):
    """One of the costliest regions of a page; columns as in `analyse.regions`."""

    label: str | None
    tokens: int
    characters: int
    decode_ms: float
    ms_per_char: float | None
    text: str | None


class Figures(msgspec.Struct):
    """``figures.json``, of the record with the SHA-256 ``record`` and the ``truth.json`` with
    ``truth``.

    ``row`` has columns of the batch's ``pages.csv`` among others, ``regions`` the costliest first.
    ``text`` is the plain text where other runs of the page are to be compared with it, and
    ``richness`` by what one of them becomes the reference. ``tables`` has the page's rows of
    `TABLES` as CSV: to write numbers as text takes longer than all else that the driver does for a
    page, so the worker does it. ``sha256`` is that of everything else.
    """

    schema: Literal[6]
    record: str
    truth: str | None
    row: PageRow
    regions: list[CostlyRegion]
    text: str
    richness: list[float]
    tables: dict[str, str]
    sha256: str = ""

    def content_hash(self) -> str:
        """SHA-256 of everything else in the file."""
        return hashlib.sha256(
            msgspec.json.encode(msgspec.structs.replace(self, sha256=""))
        ).hexdigest()


def page_figures(
    run: PhaseRun, job: str, page: str, record: str, truth: str | None = None
) -> Figures:
    """The figures of the ``page`` of a ``job`` (its id): of a record and a truth with these
    SHA-256s.
    """
    frames = {"spans": run.spans, "tokens": run.token_table.rename(columns={"id": "token_id"})}
    tables = {}
    for name, frame in frames.items():
        table = frame.assign(job=job, page=page)[["job", "page", *TABLES[name]]]
        text = table.to_csv(index=False, header=False, lineterminator="\n")
        tables[name] = text.encode("utf-8", "replace").decode()
    content = {
        "schema": 6,
        "record": record,
        "truth": truth,
        "row": _row(run),
        "regions": _regions(run),
        "text": ended_text(run) if run.truths is None else "",
        "richness": [float(part) for part in richness(run)],
        "tables": tables,
    }
    data = msgspec.json.encode(content, enc_hook=_plain_value)
    figures = msgspec.json.decode(data, type=Figures)
    figures.sha256 = figures.content_hash()
    return figures


def _plain_value(value: Any) -> Any:
    """A number of numpy's as Python's, for JSON; None for what pandas calls missing."""
    return None if value is pd.NA else value.item()


def page_run(folder: Path) -> PhaseRun:
    """A page's record with what the page says, where that is known; `OcrPhasesError` for damage."""
    run = PhaseRun.load(folder / RECORD)
    if truth_hash(folder) is None:
        return run
    return run.with_truth(folder / TRUTH)


def write_figures(folder: Path, run: PhaseRun, job: str, page: str) -> Figures:
    """Write the figures of the record in ``folder``, which is ``run``; `OcrPhasesError` if that
    fails.
    """
    figures = page_figures(run, job, page, file_hash(folder / RECORD), truth_hash(folder))
    make_way(folder / FIGURES_FILE)
    write_atomic(folder / FIGURES_FILE, msgspec.json.encode(figures))
    return figures


def read_figures(folder: Path, digest: str, job: str, page: str) -> Figures:
    """The figures of the record in ``folder`` with this SHA-256.

    They are made anew where they are missing, damaged, or of another record or truth; raises as
    `page_run`.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError, OcrPhasesError):
        figures = msgspec.json.decode(
            read_regular(folder / FIGURES_FILE, _LARGEST_FIGURES), type=Figures
        )
        same_sources = (figures.record, figures.truth) == (digest, truth_hash(folder))
        if same_sources and figures.sha256 == figures.content_hash():
            return figures
    return write_figures(folder, page_run(folder), job, page)


def _row(run: PhaseRun) -> dict[str, Any]:
    """What the batch's table of pages has of a record: the fields of `PageRow`."""
    truth = run.truth_of()
    checks = run_rules(run)
    verdicts = [(check.name, check.verdict) for check in checks]
    # Failed and noisy checks, a repetition loop, an incomplete text.
    warnings = [
        check.label
        for check in checks
        if check.verdict in ("fail", "noisy") or (check.name, check.verdict) == _LOOP
    ]
    is_cut = run.result.finish_reason == "length" and not run.request.ignore_eos
    if is_cut:
        warnings.append("cut at the token limit")
    return {
        "model": run.model.name,
        "preset": run.page.preset,
        "device": run.device.name,
        "figures": _page_columns(run),
        "warnings": ", ".join(warnings),
        "noisy": is_noisy(run),
        "cut": is_cut and _LOOP not in verdicts,
        "reference": truth.file if truth and truth.reference else None,
        "category": "" if truth is None else truth.category,
        "page_id": "".join(page.sha256[:16] + split_page(page.file)[1] for page in run.pages),
    }


def _page_columns(run: PhaseRun) -> dict[str, Any]:
    """The figures of ``pages.csv`` by their columns; None for one that is not known."""
    figures = {**run.summary(), **quality_of(run), "repeated_share": repeated_share(run)}
    return {row.page_column or row.name: figures.get(row.name) for row in figures_in(Place.PAGES)}


def _regions(run: PhaseRun) -> list[dict[str, Any]]:
    """The costliest regions of a record that has times for them: the fields of `CostlyRegion`."""
    table = run.regions
    known = table[(table["region"] >= 0) & np.isfinite(table["decode_ms"])]
    return known.nlargest(MOST_REGIONS, "decode_ms")[_REGION].to_dict("records")
