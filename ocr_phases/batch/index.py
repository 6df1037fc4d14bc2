"""The result of a batch from its status files and records: pages, slowest regions, tables."""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from ocr_phases.analyse.scaling import agreements
from ocr_phases.analyse.truths import page_truth
from ocr_phases.batch.figures import QUALITY_COLUMNS, Figures, read_figures
from ocr_phases.batch.store import RECORD, TRUTH, Entry, finished, page_status, read_listing
from ocr_phases.batch.tables import write_tables
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
_FRAME = 1_000  # rows that are kept as they come: a dict takes 2 kB
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
    frames, rows, slowest = list[pd.DataFrame](), list[dict[str, Any]](), list[tuple[Any, ...]]()
    places, names, seen = list[int](), list[str](), dict[str, int]()
    digests = dict[str, str]()  # of the records, by page
    for number, entry in enumerate(read_listing(out)):
        names.append(entry["page"])
        places.append(seen.get(entry["id"], len(frames) * _FRAME + len(rows)))
        if entry["id"] in seen:
            continue
        if entry["id"]:
            seen[entry["id"]] = places[-1]
        row, figures = _page_row(out, entry)
        rows.append(row)
        if len(rows) == _FRAME:
            frames.append(_frame(rows))
            rows = []
        if figures is None:
            continue
        digests[entry["id"]] = figures["record"]
        for place, region in enumerate(figures["regions"]):
            region = {"page": entry["page"], "folder": entry["folder"], **region}
            item = (region["decode_ms"], -number * 10_000 - place, region)
            (heapq.heappush if len(slowest) < _SLOWEST else heapq.heappushpop)(slowest, item)
    pages = pd.concat([*frames, _frame(rows)], ignore_index=True)
    for _, runs in pages[pages["page_id"].notna()].groupby("page_id", sort=False):
        if len(runs) > 1:
            _agree(out, pages, runs, digests)
    pages = pages.iloc[places].assign(page=names).reset_index(drop=True)
    regions = pd.DataFrame([item[2] for item in sorted(slowest, reverse=True)], columns=list(REGION_COLUMNS))
    table = pages.assign(**{name: pages[name].map(_no_formula) for name in _TEXTS})
    text = table.to_csv(index=False, lineterminator="\r\n")  # with \n alone a \r in a name would end its row
    write_atomic(out / "pages.csv", text.encode("utf-8", "replace"))
    return BatchIndex(pages, regions, (out / "pages.csv", *write_tables(out, digests)))


def write_index(out: Path, *, stopped: bool = False) -> pd.DataFrame:
    """Write ``index.html`` and the tables; the pages' one (`PAGE_COLUMNS`).

    ``stopped`` says that not all pages are through.
    """
    from ocr_phases.show.index import index_html

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


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of some pages; a number takes eight bytes."""
    kinds = {**dict.fromkeys(_COUNTS, "Int64"), **dict.fromkeys(_TEXTS, "object"), "report": "bool"}
    numbers = {name: "float64" for name in PAGE_COLUMNS if name not in kinds}
    cells = [[row.get(name) for name in PAGE_COLUMNS] for row in rows]
    return pd.DataFrame(cells, columns=list(PAGE_COLUMNS)).astype({**numbers, **kinds})


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


def _agree(out: Path, pages: pd.DataFrame, runs: pd.DataFrame, digests: Mapping[str, str]) -> None:
    """Fill in the agreement of ``runs`` of one page at several settings, where nothing tells its truth."""
    found = {
        place: read_figures(out / run["folder"], digests[run["id"]])
        for place, run in runs.to_dict("index").items()
    }
    texts = {place: figures["text"] for place, figures in found.items() if figures["text"]}
    if len(texts) > 1:
        reference = max(texts, key=lambda place: found[place]["richness"])
        for place, agreement in agreements(texts, reference).items():
            pages.loc[place, "agreement"] = agreement


@dataclass
class Truths:
    """How many pages have a truth, how many lack one, and why one could not be read, by page."""

    found: int = 0
    lacking: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def add_truths(out: Path, path: Path) -> Truths:
    """Put the truth at ``path`` beside the record of every finished page, unless it is there.

    ``path`` is as for `page_truth`; a page that got another truth than its report shows is rendered again. A
    truth that cannot be read leaves its page without, and is named. Raises `OcrPhasesError` where a truth
    cannot be written.
    """
    truths = Truths()
    for entry in read_listing(out):
        folder = out / entry["folder"]
        status = finished(folder, entry["id"])
        if status is None:
            continue
        try:
            truth = page_truth(path, entry["page"])
        except OcrPhasesError as error:
            truths.problems[entry["page"]] = str(error)
            continue
        if truth is None or not status["settings"].get("return_text", True):
            truths.lacking += 1
            continue
        truths.found += 1
        kept = json.dumps(msgspec.to_builtins(truth), ensure_ascii=False, indent=1).encode("utf-8", "replace")
        file = folder / TRUTH
        if not file.exists() or file.read_bytes() != kept:
            write_atomic(file, kept)
    return truths
