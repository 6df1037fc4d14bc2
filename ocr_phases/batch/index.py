"""The result of a batch from its status files and records: pages, slowest regions, tables."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pandas as pd

from ocr_phases.analyse.cost import hours_per_1000_pages
from ocr_phases.analyse.figure_rows import Place, figures_in
from ocr_phases.analyse.quality import page_truth
from ocr_phases.analyse.sweep_table import agreements
from ocr_phases.batch.archive import (
    LEFT_OUT,
    RECORD,
    STATUS,
    TRUTH,
    Entry,
    check_truth,
    finished_pages,
    page_status,
    read_listing,
    report_is_whole,
    truth_hash,
    writing_whole,
)
from ocr_phases.batch.figures import MOST_REGIONS, TABLES, Figures, read_figures
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import make_way, read_regular, write_atomic
from ocr_phases.record.store import check_record, write_status
from ocr_phases.text import count_text

#: One row a page that was named, in that order. ms are medians over repeats, as `PhaseRun.summary`
#: has them; ``page_ms`` is one reading from the page's file to its last token, ``seconds`` the
#: page's own time in its worker, ``folder`` where its files are, ``report`` whether it has one.
#:
#: Compression is generated tokens over image tokens, or as the vendor counts, the text's tokens
#: over them. ``edit_distance`` to ``repetition`` are `ocr_phases.analyse.quality`'s where there is
#: a truth; ``agreement`` is else with the same page's record of the longest prompt, ``reference``
#: the record that is the truth, ``category`` the truth's, and ``page_id`` what the page is known
#: by. ``repeated_share`` is the part of the decode time that made repeated text, ``energy_j`` a
#: repeat's. ``noisy`` is whether its times are not to be trusted, ``cut`` whether its text ends at
#: the token limit, and in no loop.
_COLUMN_TYPES = {
    "page": "object",
    "status": "object",
    "reason": "object",
    "model": "object",
    "preset": "object",
    **{row.page_column or row.name: "float64" for row in figures_in(Place.PAGES)},
    "tokens": "Int64",
    "reference": "object",
    "category": "object",
    "page_id": "object",
    "warnings": "object",
    "noisy": "bool",
    "cut": "bool",
    "attempts": "Int64",
    "seconds": "float64",
    "device": "object",
    "report": "bool",
    "id": "object",
    "folder": "object",
}
PAGE_COLUMNS = tuple(_COLUMN_TYPES)
#: The costliest regions of all pages, the costliest first; columns as in `regions.region_table`.
INDEX_REGION_COLUMNS = (
    "page",
    "label",
    "tokens",
    "characters",
    "decode_ms",
    "ms_per_char",
    "text",
    "folder",
)

#: What became of a page, in the column ``status``.
DONE = "done"
FAILED = "failed"
UNFINISHED = "not finished"

#: Files that are no pages, by their suffix: a count of each.
_LeftOut = dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**53)]]
_LARGEST_LEFT_OUT = 16 * 2**20

_FORMULA = r"\A(?=[=+\-@\t\r\n])"  # as OWASP lists what begins one


class BatchIndex(NamedTuple):
    """``pages`` (columns `PAGE_COLUMNS`) and ``regions`` (`INDEX_REGION_COLUMNS`)."""

    pages: pd.DataFrame
    regions: pd.DataFrame


def build_index(out: Path, price_per_hour: float | None = None) -> BatchIndex:
    """Read every page of ``jobs.jsonl`` once and write ``pages.csv`` and the span and token tables.

    A page named twice has two rows and is in the tables once. A record, a status or a line of the
    listing that is damaged makes its page a failed one. Pages have a price by ``price_per_hour``.
    In ``pages.csv`` a text that a spreadsheet would take for a formula has a single quote in front.
    Raises `OcrPhasesError` where the listing is missing or a table cannot be written.
    """
    rows: list[tuple[Any, ...]] = []
    regions: list[dict[str, Any]] = []
    digests: dict[str, str] = {}  # of the records, by the id of their page
    with contextlib.ExitStack() as stack:
        what = f"The tables in {out}"
        files = {
            name: stack.enter_context(writing_whole(out / f"{name}.csv", what)) for name in TABLES
        }
        for name, file in files.items():
            file.write(",".join(("id", "page", *TABLES[name])) + "\n")
        for entry in read_listing(out):
            row, figures = _page_row(out, entry)
            rows.append(tuple(row.get(name) for name in PAGE_COLUMNS))
            if figures is not None and entry["id"] not in digests:
                digests[entry["id"]] = figures.record
                regions += [{**row, **msgspec.structs.asdict(region)} for region in figures.regions]
                regions = heapq.nlargest(
                    MOST_REGIONS, regions, key=lambda region: region["decode_ms"]
                )
                for name, text in figures.tables.items():
                    files[name].write(text)
    pages = pd.DataFrame(rows, columns=list(PAGE_COLUMNS)).astype(_COLUMN_TYPES)
    pages["price_per_1000_pages"] = hours_per_1000_pages(pages["page_ms"]) * (
        price_per_hour or float("nan")
    )
    for _, runs in pages.drop_duplicates("id").groupby("page_id", sort=False):
        if len(runs) > 1:
            _agree(out, pages, runs, digests)
    # With \n alone a \r in a name would end its row.
    text = pages.replace(_FORMULA, "'", regex=True).to_csv(index=False, lineterminator="\r\n")
    write_atomic(out / "pages.csv", text.encode("utf-8", "replace"))
    return BatchIndex(pages, pd.DataFrame(regions, columns=list(INDEX_REGION_COLUMNS)))


def write_index(
    out: Path, price_per_hour: float | None = None, *, stopped: bool = False
) -> pd.DataFrame:
    """Write ``index.html`` and the tables; the pages' one (`PAGE_COLUMNS`).

    ``stopped`` says that not all pages are through.
    """
    from ocr_phases.show.batch_page import index_html

    index = build_index(out, price_per_hour)
    models = sorted(set(index.pages["model"].dropna()))
    devices = sorted(set(index.pages["device"].dropna()))
    end = "stopped early" if stopped else "finished"
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    facts = {"": " · ".join([*models, *devices]), end: now}
    title = f"{out.resolve().name}: {count_text(len(index.pages), 'page')}"
    left_out = _read_left_out(out)
    text = index_html(index.pages, index.regions, title=title, facts=facts, left_out=left_out)
    write_atomic(out / "index.html", text.encode("utf-8", "replace"))
    return index.pages


def _read_left_out(out: Path) -> dict[str, int]:
    """How many files were no pages, by their suffix; empty where that cannot be read.

    The next command with pages writes again what an older version wrote, and what is damaged.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError, OcrPhasesError):
        data = read_regular(out / LEFT_OUT, _LARGEST_LEFT_OUT)
        return msgspec.json.decode(data, type=_LeftOut)
    return {}


def _page_row(out: Path, entry: Entry) -> tuple[dict[str, Any], Figures | None]:
    """What a page's status and figures say, by `PAGE_COLUMNS`, and the figures."""
    folder = out / entry["folder"]
    row: dict[str, Any] = {**entry, "status": FAILED, "reason": "", "report": False}
    try:
        status = page_status(out, entry)
        if status is None:
            return {**row, "status": UNFINISHED}, None
        for name in ("model", "preset"):
            value = status["settings"].get(name)
            row[name] = value if isinstance(value, str) else None
        row |= {"attempts": len(status["attempts"]), "seconds": status["attempts"][-1].seconds}
        if status["failure"]:
            raise OcrPhasesError(f"{status['failure']}: {status['reason']}")
        check_truth(folder, status)
        figures = read_figures(
            folder, check_record(folder / RECORD, status), entry["id"], entry["page"]
        )
    except OcrPhasesError as error:
        return {**row, "reason": str(error)}, None
    row |= {**msgspec.structs.asdict(figures.row), **figures.row.figures, "status": DONE}
    report = status["report"]
    if report is not None:
        row["reason"] = report["reason"]
        row["report"] = report_is_whole(folder, report)
        if not row["report"]:
            warnings = [row["warnings"], "report not rendered"]
            row["warnings"] = ", ".join(filter(None, warnings))
    return row, figures


def _agree(out: Path, pages: pd.DataFrame, runs: pd.DataFrame, digests: Mapping[str, str]) -> None:
    """Fill in the agreement of ``runs`` of one page at several settings, where nothing tells its
    truth.
    """
    texts: dict[str, str] = {}
    richness: dict[str, list[float]] = {}
    for job, folder, page in runs[["id", "folder", "page"]].itertuples(index=False):
        figures = read_figures(out / folder, digests[job], job, page)
        if figures.text:
            texts[job] = figures.text
            richness[job] = figures.richness
    if len(texts) > 1:
        reference = max(richness, key=richness.__getitem__)
        agreed = agreements(texts, reference)
        pages["agreement"] = pages["id"].map(agreed).fillna(pages["agreement"])


def add_truths(out: Path, path: Path) -> tuple[int, int, dict[str, str]]:
    """Put the truth at ``path`` beside the record of every finished page, unless it is there.

    ``path`` is as for `page_truth`; a page that got another truth than its report shows is rendered
    again. Returns how many pages have a truth, how many lack one, and why one could not be read, by
    page: that page is left without. Raises `OcrPhasesError` where a truth cannot be written.
    """
    found = 0
    lacking = 0
    problems: dict[str, str] = {}
    for entry, folder, status in finished_pages(out):
        try:
            truth = page_truth(path, entry["page"])
        except OcrPhasesError as error:
            problems[entry["page"]] = str(error)
            continue
        if truth is None or not status["settings"].get("return_text", True):
            lacking += 1
            continue
        found += 1
        text = json.dumps(msgspec.to_builtins(truth), ensure_ascii=False, indent=1)
        content = text.encode("utf-8", "replace")
        digest = hashlib.sha256(content).hexdigest()
        if truth_hash(folder) != digest:
            make_way(folder / TRUTH)
            write_atomic(folder / TRUTH, content)
        # The status comes last, so that what a kill leaves between the two is mended here.
        if status.get("truth") != digest:
            raw = msgspec.json.decode(read_regular(folder / STATUS), type=dict[str, Any])
            write_status(folder / STATUS, {**raw, "truth": digest})
    return found, lacking, problems
