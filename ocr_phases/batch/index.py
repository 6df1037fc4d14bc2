"""The result of a batch from its status files and records: pages, slowest regions, tables."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from ocr_phases.analyse.checks import run_rules
from ocr_phases.analyse.cost_quality import losses
from ocr_phases.analyse.grounding import parse_grounding, region_table
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.summary import end_to_end_ms, vision_share
from ocr_phases.batch.store import (
    RECORD,
    Entry,
    check_record_hash,
    page_status,
    read_listing,
)
from ocr_phases.batch.tables import page_spans, page_tokens, table_writers
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import write_atomic
from ocr_phases.record import PhaseRun

#: Of a page's text: its prompt and image tokens, compression (generated tokens over image tokens, and as the
#: vendor counts them, by the text tokenised anew), measures of `ocr_phases.analyse.quality` where there is a
#: truth, else the agreement with the same page's record of the longest prompt, and the truth's category.
QUALITY_COLUMNS = (
    "prompt_tokens",
    "image_tokens",
    "peak_bytes",
    "compression",
    "vendor_compression",
    "edit_distance",
    "cer",
    "table_similarity",
    "box_recall",
    "repetition",
    "agreement",
    "category",
)
#: One row a page that was named, in that order. ms are medians over repeats, as `PhaseRun.summary` has them;
#: ``page_ms`` is one reading from the page's file to its last token, ``seconds`` the page's own time in its
#: worker, ``folder`` where its files are, ``report`` whether it has one.
PAGE_COLUMNS = (
    "page",
    "status",
    "reason",
    "model",
    "preset",
    "ttft_ms",
    "prefill_ms",
    "inter_token_ms",
    "decode_ms",
    "page_ms",
    "tokens",
    "vision_share",
    *QUALITY_COLUMNS,
    "warnings",
    "attempts",
    "seconds",
    "device",
    "report",
    "id",
    "folder",
)
#: The costliest regions of all pages, the costliest first; columns as in `grounding.region_table`.
REGION_COLUMNS = ("page", "label", "tokens", "characters", "decode_ms", "ms_per_char", "text", "folder")

DONE, FAILED, UNFINISHED = "done", "failed", "not finished"

_SLOWEST = 25
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # as OWASP lists what begins one
_METRICS = ("ttft_ms", "prefill_ms", "inter_token_ms", "decode_ms", "tokens")
_NOTES_SHOWN = ("repetition_loop",)
_QUALITY_FLOATS = tuple(name for name in QUALITY_COLUMNS if name != "category")
_FLOATS = ("ttft_ms", "prefill_ms", "inter_token_ms", "decode_ms", "page_ms", "vision_share", "seconds")


@dataclass(frozen=True, eq=False)
class BatchIndex:
    """``pages`` (columns `PAGE_COLUMNS`), ``regions`` (`REGION_COLUMNS`) and the table files written."""

    pages: pd.DataFrame
    regions: pd.DataFrame
    tables: tuple[Path, ...]


def build_index(out: Path) -> BatchIndex:
    """Read every page of ``jobs.jsonl`` once and write ``pages.csv`` and the span and token tables.

    A page named twice has two rows and is in the tables once. A record, a status or a line of the listing
    that is damaged makes its page a failed one. In ``pages.csv`` a text that a spreadsheet would take for a
    formula has a single quote in front. Raises `OcrPhasesError` where the listing is missing or a table
    cannot be written.
    """
    rows: list[dict[str, Any]] = []
    slowest: list[tuple[float, int, dict[str, Any]]] = []
    spans, tokens = table_writers(out)
    seen: dict[str, int] = {}
    same_page = _SamePage()
    for number, entry in enumerate(read_listing(out)):
        if entry["id"] and entry["id"] in seen:
            rows.append({**rows[seen[entry["id"]]], "page": entry["page"]})
            continue
        seen[entry["id"]] = number
        row, run = _page_row(out, entry)
        rows.append(row)
        if run is None:
            continue
        same_page.add(row, run)
        spans.add(page_spans(run, entry["id"], entry["page"]))
        tokens.add(page_tokens(run, entry["id"], entry["page"]))
        for place, region in enumerate(_regions(run, entry)):
            item = (region["decode_ms"], -number * 10_000 - place, region)
            (heapq.heappush if len(slowest) < _SLOWEST else heapq.heappushpop)(slowest, item)
    same_page.end()
    pages = pd.DataFrame(rows, columns=list(PAGE_COLUMNS))
    pages = pages.astype(
        {**dict.fromkeys((*_FLOATS, *_QUALITY_FLOATS), "float64"), "tokens": "Int64", "attempts": "Int64"}
    )
    regions = pd.DataFrame([item[2] for item in sorted(slowest, reverse=True)], columns=list(REGION_COLUMNS))
    texts = [name for name in PAGE_COLUMNS if not is_numeric_dtype(pages[name])]
    table = pages.assign(**{name: pages[name].map(_no_formula) for name in texts})
    text = table.to_csv(index=False, lineterminator="\r\n")  # with \n alone a \r in a name would end its row
    write_atomic(out / "pages.csv", text.encode("utf-8", "replace"))
    return BatchIndex(pages, regions, (out / "pages.csv", spans.close(), tokens.close()))


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _page_row(out: Path, entry: Entry) -> tuple[dict[str, Any], PhaseRun | None]:
    folder = out / entry["folder"]
    base = {"page": entry["page"], "id": entry["id"], "folder": entry["folder"], "report": False}
    try:
        status = page_status(out, entry)
        if status is None:
            return {**base, "status": UNFINISHED, "reason": ""}, None
        base |= {
            "model": status["settings"].get("model"),
            "preset": status["settings"].get("preset"),
            "attempts": len(status["attempts"]),
            "seconds": status["attempts"][-1]["seconds"],
        }
        if status["failure"]:
            return {**base, "status": FAILED, "reason": f"{status['failure']}: {status['reason']}"}, None
        check_record_hash(folder, status)
        run = PhaseRun.load(folder / RECORD)
    except OcrPhasesError as error:
        return {**base, "status": FAILED, "reason": str(error)}, None
    metrics = run.summary()
    report = status["report"]
    warnings = _warnings(run)
    if report and report["state"] == "failed":
        warnings.append("report not rendered")
    row = {
        **base,
        **{name: metrics[name] for name in _METRICS},
        "status": DONE,
        "reason": report["reason"] if report else "",
        "model": run.model["name"],
        "preset": run.request["preset"],
        "page_ms": float(np.median(end_to_end_ms(run))),
        "vision_share": vision_share(run),
        **_quality(run),
        "warnings": ", ".join(warnings),
        "device": run.device["name"],
        "report": report is not None and report["state"] == "done",
    }
    return row, run


def _quality(run: PhaseRun) -> dict[str, Any]:
    metrics = run.summary()
    peaks = [max(values) for values in run.memory.get("peak_bytes", {}).values() if values]
    truth = run.truth_of()
    found = quality_of(run)
    return {
        "prompt_tokens": metrics["prefill_len"],
        "image_tokens": metrics["valid_image_tokens"],
        "peak_bytes": max(peaks, default=None),
        "compression": metrics["generated_compression_ratio"],
        "vendor_compression": metrics["compression_ratio"],
        **{name: found[name] for name in _QUALITY_FLOATS if name in found},
        "category": "" if truth is None else truth.category,
    }


class _SamePage:
    """The runs of one page at several settings, which come one after another: fills in their agreement."""

    def __init__(self) -> None:
        self.runs: list[tuple[dict[str, Any], PhaseRun]] = []

    def add(self, row: dict[str, Any], run: PhaseRun) -> None:
        """The next run; one of another page ends those before."""
        if self.runs and self.runs[0][0]["page"] != row["page"]:
            self.end()
        self.runs.append((row, run))

    def end(self) -> None:
        """No more of this page."""
        if len(self.runs) > 1:
            lost = losses({row["id"]: run for row, run in self.runs})
            for row, _ in self.runs:
                row["agreement"] = lost.loc[row["id"], "agreement"]
        self.runs = []


def _warnings(run: PhaseRun) -> list[str]:
    """Warnings about a page: failed checks, a repetition loop, an incomplete text."""
    found = [
        check.name.replace("_", " ")
        for check in run_rules(run)
        if check.verdict == "fail" or (check.verdict == "note" and check.name in _NOTES_SHOWN)
    ]
    if run.result.get("finish_reason") == "length" and not run.request.get("ignore_eos"):
        found.append("cut at the token limit")
    return found


def _regions(run: PhaseRun, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    grounding = parse_grounding("".join(run.result["token_texts"]), run.model.get("family"))
    if not grounding.regions:
        return []
    table = region_table(grounding, run.token_table)
    table = table[table["region"] >= 0]
    names = ("label", "tokens", "characters", "decode_ms", "ms_per_char", "text")
    return [
        {"page": entry["page"], "folder": entry["folder"], **{name: region[name] for name in names}}
        for region in table.nlargest(_SLOWEST, "decode_ms").to_dict("records")
        if math.isfinite(region["decode_ms"])
    ]
