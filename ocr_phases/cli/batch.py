"""``ocr-phases batch``: many pages, their reports and an index."""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli.options import (
    BATCH,
    add_out,
    add_settings,
    add_truth,
    name_list,
    number,
    refuse,
    settings_of,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import PRESET_NAMES, check_preset
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.batch.driver import Counts
    from ocr_phases.batch.manifest import Page, Walk

SUMMARY = "measure many pages on several devices, with an index; resumes after a stop"
USAGE = "[options] PAGES ..."
FOLDER = "ocr_phases_batch"
RENDER = ("after", "during", "none", "only")

#: Options for dask's workers, and for all that measure.
_SCHEDULED = ("wait_workers", "tls_ca", "tls_cert", "tls_key")
_MEASURED = ("presets", "workers", "scheduler", *_SCHEDULED)

_SHOWN_FAILURES = 10
_LINE_SECONDS = 0.5  # between two states of the line on a terminal
_LOG_SECONDS = 30.0  # between two lines in a log


def run(arguments: argparse.Namespace) -> int:
    """Measure many pages: a record and a report each, an index and tables. Exit code 1: a page failed.

    The same command resumes a stopped batch.
    """
    from ocr_phases.analyse.truth_files import check_for_pages
    from ocr_phases.batch.manifest import Walk
    from ocr_phases.batch.store import read_listing
    from ocr_phases.files import only_writer, output_folder

    _check(arguments)
    if arguments.render == "only":
        next(read_listing(arguments.out), None)  # there is a batch
        with only_writer(output_folder(arguments.out)), _indexed(arguments.out):
            unread = _add_truths(arguments.out, arguments.truth)
            not_rendered = _render(arguments.out, arguments)
        arguments.result = {"reports_failed": not_rendered, **_tell_failures(arguments.out)}
        any_failed = _any_failed(arguments.out)
        return 1 if not_rendered or any_failed or unread else 0
    _check_folder(arguments)
    asked = vars(settings_of(arguments))
    settings = {name: asked[name] for name in BATCH}
    walk = Walk()
    total = sum(1 for _ in _found(arguments, settings, walk))
    left_out = dict(walk.left_out)
    if arguments.truth is not None:
        presets = max(1, len(arguments.presets))
        check_for_pages(arguments.truth, math.ceil(total / presets))
    out = output_folder(arguments.out)
    with only_writer(out), _indexed(out):
        if left_out:
            kinds = ", ".join(sorted(suffix or "none" for suffix in left_out))
            print(f"{count_text(sum(left_out.values()), 'file')} left out ({kinds})")
        counts = _measure(out, arguments, settings, walk, total)
        failed = f"{counts.failed:,} failed" if counts.failed else "none failed"
        again = f", {counts.again:,} listed twice" if counts.again else ""
        pages = count_text(counts.pages, "page")
        print(f"{pages}: {counts.done:,} measured, {counts.kept:,} kept, {failed}{again}")
        unread = _add_truths(out, arguments.truth)
        unrendered = 0 if arguments.render == "none" else _render(out, arguments)
    result = {"pages": counts.pages, "measured": counts.done, "kept": counts.kept, "failed": counts.failed}
    result |= {"named_twice": counts.again, "reports_failed": unrendered, "truths_failed": unread}
    arguments.result = {**result, "left_out": left_out, **_tell_failures(out)}
    return 1 if counts.failed or unrendered or unread else 0


def _check_folder(arguments: argparse.Namespace) -> None:
    """Refuse a folder whose files a batch would replace: arguments, or files that are not a batch's."""
    from ocr_phases.batch.store import is_batch
    from ocr_phases.files import check_names

    own = arguments.overwrite or is_batch(arguments.out)
    names = r"index\.html|jobs\.jsonl|pages\.csv|(spans|tokens)\.(parquet|csv)|tables\.sha256"
    check_names(arguments.out, names, overwrite=own, arguments=[*arguments.pages, arguments.truth])


def _add_truths(out: Path, path: Path | None) -> int:
    """Add what the pages say to their records, and tell for how many; how many truths could not be read."""
    from ocr_phases.batch.truths import add_truths

    if path is None:
        return 0
    truths = add_truths(out, path)
    without = f", {truths.lacking:,} without" if truths.lacking else ""
    print(f"Truth for {count_text(truths.found, 'page')}{without}")
    for page, reason in list(truths.problems.items())[:_SHOWN_FAILURES]:
        print(f"{page}: {reason}")
    return len(truths.problems)


def _tell_failures(out: Path) -> dict[str, Any]:
    """Print the first reasons why a page, or its report, failed; these and the index as plain values."""
    from ocr_phases.batch.store import page_status, read_listing

    shown: list[dict[str, str]] = []
    more = 0
    for entry in read_listing(out):
        try:
            status = page_status(out, entry)
        except OcrPhasesError as error:
            reason = str(error)
        else:
            parts = [] if status is None else [status, status["report"]]
            reason = next((part["reason"] for part in parts if part and part["state"] == "failed"), "")
        if reason and len(shown) < _SHOWN_FAILURES:
            shown.append({"page": entry["page"], "reason": reason})
            print(f"{entry['page']}: {reason}")
        elif reason:
            more += 1
    if more:
        print(f"and {more:,} more: see {out / 'index.html'}")
    return {"failures": shown, "more_failures": more, "index": str(out / "index.html")}


def _any_failed(out: Path) -> bool:
    """Whether a page failed or is damaged; one that is damaged is named."""
    from ocr_phases.batch.store import check_record_hash, page_status, read_listing

    failed = False
    for entry in read_listing(out):
        try:
            status = page_status(out, entry)
            if status is not None and status["state"] == "done":
                check_record_hash(out / entry["folder"], status)
            failed |= status is not None and status["state"] == "failed"
        except OcrPhasesError as error:
            print(f"{entry['page']!r}: {error}", file=sys.stderr)
            failed = True
    return failed


def _found(arguments: argparse.Namespace, settings: Mapping[str, Any], walk: Walk) -> Iterator[Page]:
    from ocr_phases.batch.job import PAGES
    from ocr_phases.batch.manifest import find_pages

    for page in find_pages(arguments.pages, list(settings), arguments.out / PAGES, walk):
        if not arguments.presets or "preset" in page.settings:
            yield page
            continue
        for preset in arguments.presets:
            yield replace(page, settings={**page.settings, "preset": preset})


def _measure(
    out: Path, arguments: argparse.Namespace, settings: Mapping[str, Any], walk: Walk, total: int
) -> Counts:
    from ocr_phases.batch.driver import Counts, auto_device, measure_pages
    from ocr_phases.batch.job import make_jobs
    from ocr_phases.batch.outcome import GOES_ON

    with _measuring_pool(arguments, settings["device"]) as pool:
        progress = Progress("Measuring", total)

        last_seen = time.monotonic()

        def show(counts: Counts) -> None:
            nonlocal last_seen
            waiting = "" if pool.workers() else ", waiting for a worker"
            progress.show(counts.pages, counts.failed, counts.done, waiting)
            now = time.monotonic()
            if not waiting:
                last_seen = now
            elif arguments.wait_workers is not None and now - last_seen > arguments.wait_workers:
                raise OcrPhasesError(f"There was no worker for {arguments.wait_workers:g} s. {GOES_ON}")

        @functools.cache
        def device() -> str:
            return auto_device(pool, lambda: show(Counts()))

        try:
            return measure_pages(
                make_jobs(_found(arguments, settings, walk), settings, device),
                out,
                pool,
                mode="notebook" if arguments.render == "during" else "measure",
                retries=arguments.retries,
                timeout=arguments.timeout,
                progress=show,
            )
        finally:
            progress.end()


@contextlib.contextmanager
def _indexed(out: Path) -> Iterator[None]:
    """Write the index at the end, also where the batch stops before all pages are through."""
    from ocr_phases.batch.store import LISTING

    try:
        yield
    except (OcrPhasesError, KeyboardInterrupt):
        try:
            if (out / LISTING).exists():
                write_index(out, stopped=True)
        except OcrPhasesError as error:  # why it stopped is the message; this may have the same cause
            print(f"The index could not be written: {error}", file=sys.stderr)
        raise
    write_index(out)
    print(f"Wrote {out / 'index.html'}")


class Progress:
    """One line on a terminal, or one every half minute in a log: how many, how fast, how long still."""

    def __init__(self, verb: str, total: int) -> None:
        self.verb, self.total = verb, total
        self.terminal = sys.stderr.isatty()
        self.began = time.monotonic()
        self.shown = self.began if not self.terminal else 0.0
        self.line = ""

    def show(self, pages: int, failed: int, worked: int, note: str = "") -> None:
        """``pages`` of all are through, ``worked`` of them well and by this command: these make the rate."""
        now = time.monotonic()
        if not worked:  # pages that are kept are looked through first
            self.began = now
        rate = worked / (now - self.began) if worked else 0.0
        left = (self.total - pages) / rate if rate else None
        self.line = (
            f"{self.verb}: {pages:,} of {self.total:,} pages done, {failed:,} failed"
            + (f", {rate * 60:,.1f} pages/min" if rate else "")
            + (f", {_duration(left)} left" if left else "")
            + note
        )
        if now - self.shown >= (_LINE_SECONDS if self.terminal else _LOG_SECONDS):
            self.shown = now
            text = f"\r\033[K{self.line}" if self.terminal else f"{self.line}\n"
            print(text, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The last state stays to be read."""
        if self.line:
            print(f"\r\033[K{self.line}" if self.terminal else self.line, file=sys.stderr)


def _check(arguments: argparse.Namespace) -> None:
    from ocr_phases.batch.pool import check_workers

    if arguments.presets:
        refuse(arguments, ("preset",), "--presets names them")
    for preset in arguments.presets:
        check_preset(preset)
    if arguments.truth is not None and not arguments.truth.exists():
        raise OcrPhasesError(f"The truth {arguments.truth} is not there: name a file or a folder.")
    if arguments.truth is not None and not arguments.return_text:
        raise OcrPhasesError("A truth is compared with the text: drop --no-return-text, or --truth.")
    check_workers("render-workers", arguments.render_workers)
    if not arguments.pages and arguments.render != "only":
        raise OcrPhasesError("Name the pages: files, folders, globs, or a list (.csv, .jsonl).")
    if arguments.pages and arguments.render == "only":
        raise OcrPhasesError("--render only renders the pages in --out: drop the page arguments.")
    if arguments.render == "only":
        refuse(arguments, (*BATCH, *_MEASURED), "--render only measures nothing")
    if arguments.render == "none":
        refuse(arguments, ("render_workers",), "--render none renders nothing")
    if not arguments.scheduler:
        refuse(arguments, _SCHEDULED, "Without --scheduler the workers are processes of this machine")
    files = [arguments.tls_ca, arguments.tls_cert, arguments.tls_key]
    if any(files) and not all(files):
        raise OcrPhasesError("Give --tls-ca, --tls-cert and --tls-key together.")
    if any(files) and "://" in arguments.scheduler and not arguments.scheduler.startswith("tls://"):
        raise OcrPhasesError(f"{arguments.scheduler} does not use TLS: give tls://HOST:PORT.")
    if arguments.scheduler and arguments.workers:
        raise OcrPhasesError("--workers start on this machine: drop --workers or --scheduler.")


@contextlib.contextmanager
def _measuring_pool(arguments: argparse.Namespace, device: str) -> Iterator[Any]:
    """The workers: processes of this machine, or dask's where a scheduler is named."""
    from ocr_phases.batch.cluster import TLS_FILES, DaskPool
    from ocr_phases.batch.pool import LocalPool, worker_environments

    pool: Any
    if not arguments.scheduler:
        pool = LocalPool(worker_environments(arguments.workers, device))
    else:
        tls = {name: getattr(arguments, option) for option, name in TLS_FILES.items()}
        pool = DaskPool(arguments.scheduler, tls=tls if arguments.tls_ca else None)
        if pool.plain:
            print(
                f"Warning: {arguments.scheduler} has no TLS: anyone who reaches it can run code on its "
                "workers, see Trust in docs/batch.md.",
                file=sys.stderr,
            )
    try:
        yield pool
    finally:
        pool.close()


def _render(out: Path, arguments: argparse.Namespace) -> int:
    """Render the missing reports; returns how many failed."""
    from ocr_phases.batch.driver import render_pages
    from ocr_phases.batch.pool import LocalPool, thread_share
    from ocr_phases.batch.store import read_listing, unrendered

    waiting = sum(unrendered(out / entry["folder"], entry["id"]) is not None for entry in read_listing(out))
    if not waiting:
        return 0
    progress = Progress("Rendering", waiting)
    # Rendering needs no GPU, so hide them all.
    environment = {"CUDA_VISIBLE_DEVICES": "", **thread_share(arguments.render_workers)}
    pool = LocalPool([environment] * arguments.render_workers)
    try:
        failed = render_pages(
            out,
            pool,
            retries=arguments.retries,
            timeout=arguments.timeout,
            progress=lambda done, failed: progress.show(done + failed, failed, done),
        )
    finally:
        pool.close()
        progress.end()
    why = ", see their status.json" if failed else ""
    print(f"{waiting:,} reports: {waiting - failed:,} rendered, {failed:,} failed{why}")
    return failed


def write_index(out: Path, *, stopped: bool = False) -> None:
    """Write ``index.html`` and the tables; ``stopped`` says that not all pages are through."""
    from ocr_phases.batch.index import build_index
    from ocr_phases.files import write_atomic
    from ocr_phases.show.index_page import index_html

    index = build_index(out)
    devices = sorted(set(index.pages["device"].dropna()))
    models = sorted(set(index.pages["model"].dropna()))
    facts = {
        "": " · ".join([*models, *devices]),
        "stopped early" if stopped else "finished": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    text = index_html(
        index.pages,
        index.regions,
        title=f"{out.resolve().name}: {count_text(len(index.pages), 'page')}",
        facts=facts,
        tables=[path.name for path in index.tables],
    )
    write_atomic(out / "index.html", text.encode("utf-8", "replace"))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``batch``."""
    command.add_argument(
        "pages", nargs="*", metavar="PAGES", help="files, folders, globs, or a list (.csv, .jsonl) of pages"
    )
    add_out(command, FOLDER, ", which goes on")
    command.set_defaults(out=Path(FOLDER))
    command.add_argument(
        "--presets",
        type=name_list,
        default=[],
        metavar="LIST",
        help=f"every page at each of these, in place of --preset: of {', '.join(PRESET_NAMES)}",
    )
    add_truth(command)
    command.add_argument(
        "--render",
        choices=RENDER,
        default="after",
        help="make reports after the measurement, without a GPU (default); during it, in the kernel that "
        "holds the model; none; or only the missing reports of a measured batch",
    )
    command.add_argument(
        "--retries", type=number(int, 0), default=1, metavar="N", help="retries per page (default: 1)"
    )
    command.add_argument(
        "--timeout",
        type=number(float, 0.001),
        default=1800.0,
        metavar="S",
        help="seconds per page, at most (default: 1800)",
    )
    command.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="worker processes on this machine (default: one per GPU, or one)",
    )
    command.add_argument(
        "--scheduler", metavar="ADDRESS", help="use this dask scheduler's workers: tls://HOST:PORT, or tcp://"
    )
    for name, what in (("ca", "authority's certificate"), ("cert", "own certificate"), ("key", "own key")):
        command.add_argument(f"--tls-{name}", metavar="FILE", help=f"{what}, for a scheduler with TLS (PEM)")
    command.add_argument(
        "--wait-workers",
        type=number(float, 0.001),
        metavar="S",
        help="stop after this many seconds without a worker (default: wait)",
    )
    command.add_argument(
        "--render-workers", type=int, default=1, metavar="N", help="rendering processes (default: 1)"
    )
    add_settings(command, BATCH, token_probabilities=False)  # another prefill for every page
