"""``ocr-phases batch``: many pages, their reports and an index."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli.measuring import Bar
from ocr_phases.cli.options import BATCH, PRICE
from ocr_phases.cli.results import Exit, wrote
from ocr_phases.errors import Keyword, OcrPhasesError
from ocr_phases.settings import Settings
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.batch.driver import Counts, Workers
    from ocr_phases.batch.pages import Page

_SHOWN_FAILURES = 10


def run(arguments: argparse.Namespace) -> int:
    """Measure many pages: a record and a report each, an index and tables. Exit code 1: a page
    failed.

    The same command resumes a stopped batch.
    """
    from ocr_phases.batch.index import FAILED, write_index
    from ocr_phases.files import only_writer, output_folder

    _check(arguments)
    out = output_folder(arguments.out)
    with only_writer(out):
        try:
            result = {} if arguments.render == "only" else _measure(out, arguments)
            unread = _add_truths(out, arguments.truth)
            unrendered = 0 if arguments.render == "none" else _render(out, arguments)
        except (OcrPhasesError, KeyboardInterrupt):
            # Why it stopped is the message; the index may fail of the same cause, or where no page
            # was found.
            with contextlib.suppress(OcrPhasesError):
                write_index(out, arguments.price_per_hour, stopped=True)
            raise
        pages = write_index(out, arguments.price_per_hour)
        index = wrote(out / "index.html")
    failed = pages.loc[pages["reason"] != "", ["page", "reason"]]
    _print_reasons(failed.itertuples(index=False, name=None))
    more = max(0, len(failed) - _SHOWN_FAILURES)
    if more:
        print(f"and {more:,} more: see {index}")
    result |= {"reports_failed": unrendered, "truths_failed": unread}
    failures = failed.head(_SHOWN_FAILURES).to_dict("records")
    arguments.result = {**result, "failures": failures, "more_failures": more, "index": index}
    some = FAILED in set(pages["status"]) or unrendered or unread
    return Exit.FAILED if some else Exit.DONE


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that contradict each other, wrong settings, and files that the results would
    replace.
    """
    from ocr_phases.batch.archive import is_batch
    from ocr_phases.batch.local_workers import check_workers
    from ocr_phases.files import check_names

    only, batch = arguments.render == "only", is_batch(arguments.out)
    if arguments.truth is not None and not arguments.truth.exists():
        raise OcrPhasesError(f"The truth {arguments.truth} is not there: name a file or a folder.")
    check_workers(Keyword("render_workers"), arguments.render_workers)
    if only == bool(arguments.pages):
        raise OcrPhasesError("Name the pages, or give --render only for those that are in --out.")
    settings = Settings.among(vars(arguments))
    for preset in arguments.presets:
        settings.check_preset(preset, "presets")
    if only and not batch:
        raise OcrPhasesError(f"{arguments.out} holds no batch: name the folder of one (--out).")
    names = r"index\.html|jobs\.jsonl|left_out\.json|(pages|spans|tokens)\.csv"
    own = arguments.overwrite or batch
    check_names(arguments.out, names, overwrite=own, arguments=[*arguments.pages, arguments.truth])


def _measure(out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the pages that are not finished, and tell how many were; the same as plain values."""
    from ocr_phases.analyse.quality import check_for_pages
    from ocr_phases.batch.archive import PAGES, is_batch, list_pages
    from ocr_phases.batch.driver import Counts, auto_device, measure_pages
    from ocr_phases.batch.jobs import make_jobs
    from ocr_phases.batch.outcome import GOES_ON
    from ocr_phases.batch.pages import find_pages

    asked = vars(Settings.among(vars(arguments)))
    options = {name: vars(arguments)[name] for name in ("retries", "timeout", PRICE)}
    options["mode"] = "notebook" if _reports_during(arguments) else "measure"
    left_out: Counter[str] = Counter()
    with contextlib.closing(_workers(arguments)) as workers, Bar(0, "page", "Measuring") as bar:
        last_seen = time.monotonic()

        def show(counts: Counts) -> None:
            nonlocal last_seen
            waiting = not workers.count()
            note = ", waiting for a worker" if waiting else ""
            bar.tell(counts.pages, counts.done, f"{counts.failed:,} failed{note}")
            if not waiting:
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > arguments.wait_workers:
                raise OcrPhasesError(
                    f"There was no worker for {arguments.wait_workers:g} s. {GOES_ON}"
                )

        def pages() -> Iterator[Page]:
            for number, page in enumerate(
                find_pages(arguments.pages, BATCH, out / PAGES, left_out), 1
            ):
                if arguments.truth is not None and number == 2:
                    check_for_pages(arguments.truth, number)
                yield from page.at(arguments.presets)

        resumed = is_batch(out)
        device = functools.cache(functools.partial(auto_device, workers, lambda: show(Counts())))
        before = list_pages(
            make_jobs(pages(), {name: asked[name] for name in BATCH}, device), out, left_out
        )
        bar.total = before["found"]
        if left_out:
            print(
                f"{count_text(left_out.total(), 'file')} left out ({', '.join(sorted(left_out))})"
            )
        if resumed:
            to_do = count_text(before["found"] - before["finished"], "page")
            told = "Resumed: {found:,} found, {finished:,} finished, {failed:,} failed before."
            print(told.format(**before), f"This measures {to_do}.")
        counts = measure_pages(out, workers, progress=show, **options)
    again = f", {counts.again:,} listed twice" if counts.again else ""
    pages_told = count_text(counts.pages, "page")
    print(
        f"{pages_told}: {counts.done:,} measured, {counts.kept:,} kept, {counts.failed:,} failed{again}"
    )
    result = {
        "pages": counts.pages,
        "measured": counts.done,
        "kept": counts.kept,
        "failed": counts.failed,
    }
    return {**result, "named_twice": counts.again, "left_out": dict(left_out), "resumed": before}


def _reports_during(arguments: argparse.Namespace) -> bool:
    """Whether a page's report is made when the page is measured, by the worker that measures it.

    Reports that show the quality against a reference text come last, because the reference texts
    are added when all pages are measured.
    """
    return arguments.render == "during" or (arguments.render is None and arguments.truth is None)


def _workers(arguments: argparse.Namespace) -> Workers:
    """The workers: processes of this machine, or dask's where a scheduler is named."""
    from ocr_phases.batch.dask_workers import DaskWorkers
    from ocr_phases.batch.local_workers import LocalWorkers, worker_environments

    if not arguments.scheduler:
        if "://" not in arguments.model and find_spec("torch") is None:
            raise OcrPhasesError("This needs torch: pip install torch.")
        return LocalWorkers(worker_environments(arguments.workers, arguments.device))
    workers = DaskWorkers(arguments.scheduler)
    if workers.is_plain:
        print(
            f"Warning: {arguments.scheduler} has no TLS: anyone who reaches it can run code on its "
            "workers, see Trust in docs/batch.md.",
            file=sys.stderr,
        )
    return workers


def _add_truths(out: Path, path: Path | None) -> int:
    """Add what the pages say to their records, and tell for how many; how many truths could not be
    read.
    """
    from ocr_phases.batch.index import add_truths

    if path is None:
        return 0
    found, lacking, problems = add_truths(out, path)
    without = f", {lacking:,} without" if lacking else ""
    print(f"Truth for {count_text(found, 'page')}{without}")
    _print_reasons(problems.items())
    return len(problems)


def _render(out: Path, arguments: argparse.Namespace) -> int:
    """Render the missing reports; returns how many failed."""
    from ocr_phases.batch.archive import waiting_reports
    from ocr_phases.batch.driver import render_pages
    from ocr_phases.batch.local_workers import LocalWorkers, thread_share

    waiting = len(waiting_reports(out, arguments.price_per_hour))
    if not waiting:
        return 0
    # Rendering needs no GPU, so hide them all.
    environment = {"CUDA_VISIBLE_DEVICES": "", **thread_share(arguments.render_workers)}
    workers = LocalWorkers([environment] * arguments.render_workers)
    with contextlib.closing(workers), Bar(waiting, "report", "Rendering") as bar:

        def show(counts: Counts) -> None:
            bar.tell(counts.pages, counts.done, f"{counts.failed:,} failed")

        options = {name: vars(arguments)[name] for name in ("retries", "timeout", PRICE)}
        failed = render_pages(out, workers, progress=show, **options).failed
    why = ", see their status.json" if failed else ""
    print(f"{waiting:,} reports: {waiting - failed:,} rendered, {failed:,} failed{why}")
    return failed


def _print_reasons(reasons: Iterable[tuple[str, str]]) -> None:
    """Print the first pages that failed, or whose report or truth did, and why."""
    for page, reason in itertools.islice(reasons, _SHOWN_FAILURES):
        print(f"{page}: {reason}")
