"""The result of a batch from its status files and records: pages, slowest regions, tables."""

from __future__ import annotations

import contextlib
import heapq
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from ocr_phases.analyse.quality import page_truth
from ocr_phases.analyse.scaling import agreements
from ocr_phases.batch.figures import QUALITY_COLUMNS, TABLES, Figures, read_figures
from ocr_phases.batch.store import (
    RECORD,
    TRUTH,
    Entry,
    finished,
    page_status,
    read_listing,
    writing_whole,
)
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
    that is damaged makes its page a failed one.
    In ``pages.csv`` a text that a spreadsheet would take for a formula has a single quote in front. Raises
    `OcrPhasesError` where the listing is missing or a table cannot be written.
    """
    rows, regions, digests = list[tuple[Any, ...]](), list[dict[str, Any]](), dict[str, str]()
    paths = {name: out / f"{name}.csv" for name in TABLES}
    with contextlib.ExitStack() as stack:
        write = {}
        for name, path in paths.items():
            write[name] = stack.enter_context(writing_whole(path, f"The tables in {out}"))
            write[name](",".join(("id", "page", *TABLES[name])) + "\n")
        for entry in read_listing(out):
            row, figures = _page_row(out, entry)
            rows.append(tuple(row.get(name) for name in PAGE_COLUMNS))
            if figures is None or entry["id"] in digests:
                continue
            digests[entry["id"]] = figures["record"]
            of_page = {"page": entry["page"], "folder": entry["folder"]}
            regions += [{**of_page, **region} for region in figures["regions"]]
            regions = heapq.nlargest(_SLOWEST, regions, key=lambda region: region["decode_ms"])
            for name, text in figures["tables"].items():
                write[name](text)
    kinds = {**dict.fromkeys(_COUNTS, "Int64"), **dict.fromkeys(_TEXTS, "object"), "report": "bool"}
    numbers = {name: "float64" for name in PAGE_COLUMNS if name not in kinds}
    pages = pd.DataFrame(rows, columns=list(PAGE_COLUMNS)).astype({**numbers, **kinds})
    for _, runs in pages.drop_duplicates("id").groupby("page_id", sort=False):
        if len(runs) > 1:
            _agree(out, pages, runs, digests)
    table = pages.assign(**{name: pages[name].map(_no_formula) for name in _TEXTS})
    text = table.to_csv(index=False, lineterminator="\r\n")  # with \n alone a \r in a name would end its row
    write_atomic(out / "pages.csv", text.encode("utf-8", "replace"))
    slowest = pd.DataFrame(regions, columns=list(REGION_COLUMNS))
    return BatchIndex(pages, slowest, (out / "pages.csv", *paths.values()))


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
        figures = read_figures(folder, check_record(folder / RECORD, status), entry["id"], entry["page"])
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
        run["id"]: read_figures(out / run["folder"], digests[run["id"]], run["id"], run["page"])
        for run in runs.to_dict("records")
    }
    texts = {job: figures["text"] for job, figures in found.items() if figures["text"]}
    if len(texts) > 1:
        reference = max(texts, key=lambda job: found[job]["richness"])
        for job, agreement in agreements(texts, reference).items():
            pages.loc[pages["id"] == job, "agreement"] = agreement


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
