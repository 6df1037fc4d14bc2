"""The result of a batch from its status files and records: pages, slowest regions, tables."""

from __future__ import annotations

import heapq
import math
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.scaling import agreements
from ocr_phases.batch.figures import QUALITY_COLUMNS, Figures, read_figures
from ocr_phases.batch.store import RECORD, Entry, page_status, read_listing
from ocr_phases.batch.tables import Measured
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import write_atomic
from ocr_phases.store import check_record
from ocr_phases.text import count_text

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
#: The costliest regions of all pages, the costliest first; columns as in `regions.region_table`.
REGION_COLUMNS = ("page", "label", "tokens", "characters", "decode_ms", "ms_per_char", "text", "folder")

DONE, FAILED, UNFINISHED = "done", "failed", "not finished"

_SLOWEST = 25
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # as OWASP lists what begins one
_TEXTS = (
    "page",
    "status",
    "reason",
    "model",
    "preset",
    "warnings",
    "reference",
    "category",
    "page_id",
    "device",
    "id",
    "folder",
)
_LISTS = (*_TEXTS, "report")
_COUNTS = ("tokens", "attempts")


@dataclass(frozen=True, eq=False)
class BatchIndex:
    """``pages`` (columns `PAGE_COLUMNS`), ``regions`` (`REGION_COLUMNS`) and the table files written."""

    pages: pd.DataFrame
    regions: pd.DataFrame
    tables: tuple[Path, ...]


def build_index(out: Path) -> BatchIndex:
    """Read every page of ``jobs.jsonl`` once and write ``pages.csv`` and the span and token tables.

    A page named twice has two rows and is in the tables once. A record, a status or a line of the listing
    that is damaged makes its page a failed one. Tables that hold these records already are left as they are.
    In ``pages.csv`` a text that a spreadsheet would take for a formula has a single quote in front. Raises
    `OcrPhasesError` where the listing is missing or a table cannot be written.
    """
    rows, slowest = _Rows(), list[tuple[float, int, dict[str, Any]]]()
    seen: dict[str, int] = {}
    same_page = _SamePage(rows)
    measured = Measured(out)
    for number, entry in enumerate(read_listing(out)):
        if entry["id"] and entry["id"] in seen:
            rows.repeat(seen[entry["id"]], entry["page"])
            continue
        seen[entry["id"]] = number
        row, figures = _page_row(out, entry)
        rows.add(row)
        if figures is None:
            continue
        measured.add(entry, figures["record"])
        same_page.add(number, figures)
        for place, region in enumerate(figures["regions"]):
            region = {"page": entry["page"], "folder": entry["folder"], **region}
            item = (region["decode_ms"], -number * 10_000 - place, region)
            (heapq.heappush if len(slowest) < _SLOWEST else heapq.heappushpop)(slowest, item)
    same_page.end()
    pages = rows.table()
    regions = pd.DataFrame([item[2] for item in sorted(slowest, reverse=True)], columns=list(REGION_COLUMNS))
    table = pages.assign(**{name: pages[name].map(_no_formula) for name in _TEXTS})
    text = table.to_csv(index=False, lineterminator="\r\n")  # with \n alone a \r in a name would end its row
    write_atomic(out / "pages.csv", text.encode("utf-8", "replace"))
    return BatchIndex(pages, regions, (out / "pages.csv", *measured.write_tables()))


def write_index(out: Path, *, stopped: bool = False) -> pd.DataFrame:
    """Write ``index.html`` and the tables; the pages' one (`PAGE_COLUMNS`).

    ``stopped`` says that not all pages are through.
    """
    from ocr_phases.show.index_page import index_html

    index = build_index(out)
    devices, models = (sorted(set(index.pages[name].dropna())) for name in ("device", "model"))
    facts = {
        "": " · ".join([*models, *devices]),
        "stopped early" if stopped else "finished": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    title = f"{out.resolve().name}: {count_text(len(index.pages), 'page')}"
    tables = [path.name for path in index.tables]
    text = index_html(index.pages, index.regions, title=title, facts=facts, tables=tables)
    write_atomic(out / "index.html", text.encode("utf-8", "replace"))
    return index.pages


class _Rows:
    """`PAGE_COLUMNS` of many pages, column by column: a number takes eight bytes."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {name: [] if name in _LISTS else array("d") for name in PAGE_COLUMNS}

    def add(self, row: Mapping[str, Any]) -> None:
        """The next page; what it lacks is missing."""
        for name, column in self.columns.items():
            value = row.get(name)
            column.append(math.nan if value is None and name not in _LISTS else value)

    def repeat(self, place: int, page: str) -> None:
        """The same as the page at ``place``, by another name."""
        for name, column in self.columns.items():
            column.append(page if name == "page" else column[place])

    def table(self) -> pd.DataFrame:
        """All of it."""
        numbers = {name: np.asarray(self.columns[name]) for name in PAGE_COLUMNS if name not in _LISTS}
        pages = pd.DataFrame({**self.columns, **numbers})
        kinds = {**dict.fromkeys(_COUNTS, "Int64"), **dict.fromkeys(_TEXTS, "object")}
        return pages.astype({**kinds, "report": "bool"})


def _no_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _page_row(out: Path, entry: Entry) -> tuple[dict[str, Any], Figures | None]:
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
            "seconds": status["attempts"][-1].seconds,
        }
        if status["failure"]:
            return {**base, "status": FAILED, "reason": f"{status['failure']}: {status['reason']}"}, None
        figures = read_figures(folder, check_record(folder / RECORD, status))
    except OcrPhasesError as error:
        return {**base, "status": FAILED, "reason": str(error)}, None
    row, report = {**base, **figures["row"]}, status["report"]
    if report and report["state"] == "failed":
        row["warnings"] = ", ".join(filter(None, [row["warnings"], "report not rendered"]))
    row |= {
        "status": DONE,
        "reason": report["reason"] if report else "",
        "report": report is not None and report["state"] == "done",
    }
    return row, figures


class _SamePage:
    """The runs of one page at several settings, which come one after another: fills in their agreement."""

    def __init__(self, rows: _Rows) -> None:
        self.rows = rows
        self.page = ""
        self.runs: dict[int, Figures] = {}

    def add(self, place: int, figures: Figures) -> None:
        """The next run; one of another page ends those before."""
        page = figures["row"]["page_id"]
        if page != self.page:
            self.end()
        self.page = page
        if figures["text"]:
            self.runs[place] = figures

    def end(self) -> None:
        """No more of this page."""
        if len(self.runs) > 1:
            reference = max(self.runs, key=lambda place: self.runs[place]["richness"])
            texts = {place: figures["text"] for place, figures in self.runs.items()}
            for place, agreement in agreements(texts, reference).items():
                self.rows.columns["agreement"][place] = agreement
        self.runs = {}
