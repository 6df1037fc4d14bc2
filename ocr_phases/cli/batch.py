"""``ocr-phases batch``: many pages, their reports and an index."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli.measuring import Bar
from ocr_phases.cli.options import BATCH, option_texts
from ocr_phases.cli.results import Exit, wrote
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.families import PRESET_NAMES
from ocr_phases.settings import Settings
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.batch.child import DaskPool, LocalPool
    from ocr_phases.batch.driver import Counts
    from ocr_phases.batch.jobs import Page, Walk

_SHOWN_FAILURES = 10


def run(arguments: argparse.Namespace) -> int:
    """Measure many pages: a record and a report each, an index and tables. Exit code 1: a page failed.

    The same command resumes a stopped batch.
    """
    from ocr_phases.analyse.quality import check_for_pages
    from ocr_phases.batch.index import FAILED, write_index
    from ocr_phases.batch.jobs import Walk
    from ocr_phases.files import only_writer, output_folder

    _check(arguments)
    walk, total = Walk(), 0
    if arguments.render != "only":
        total = sum(1 for _ in _found(arguments, walk))
        if arguments.truth is not None:
            check_for_pages(arguments.truth, math.ceil(total / max(1, len(arguments.presets))))
    out = output_folder(arguments.out)
    with only_writer(out):
        try:
            result = _measure(out, arguments, walk, total) if total else {}
            unread = _add_truths(out, arguments.truth)
            unrendered = 0 if arguments.render == "none" else _render(out, arguments)
        except (OcrPhasesError, KeyboardInterrupt):
            # Why it stopped is the message; the index may fail of the same cause, or where no page was found.
            with contextlib.suppress(OcrPhasesError):
                write_index(out, stopped=True)
            raise
        pages = write_index(out)
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
    """Refuse options that contradict each other, wrong settings, and files that the results would replace."""
    from ocr_phases.batch.child import check_workers
    from ocr_phases.batch.store import is_batch
    from ocr_phases.files import check_names

    only, batch = arguments.render == "only", is_batch(arguments.out)
    for preset in arguments.presets:
        check_known("preset", preset, PRESET_NAMES)
    if arguments.truth is not None and not arguments.truth.exists():
        raise OcrPhasesError(f"The truth {arguments.truth} is not there: name a file or a folder.")
    check_workers("render-workers", arguments.render_workers)
    if only == bool(arguments.pages):
        raise OcrPhasesError("Name the pages, or give --render only for those that are in --out.")
    Settings.among(vars(arguments))
    if only and not batch:
        raise OcrPhasesError(f"{arguments.out} holds no batch: name the folder of one (--out).")
    names = r"index\.html|jobs\.jsonl|(pages|spans|tokens)\.csv"
    own = arguments.overwrite or batch
    check_names(arguments.out, names, overwrite=own, arguments=[*arguments.pages, arguments.truth])


def _found(arguments: argparse.Namespace, walk: Walk) -> Iterator[Page]:
    from ocr_phases.batch.jobs import PAGES, find_pages

    for page in find_pages(arguments.pages, BATCH, arguments.out / PAGES, walk):
        if "preset" in page.settings or not arguments.presets:
            yield page
            continue
        for preset in arguments.presets:
            yield replace(page, settings={**page.settings, "preset": preset})


def _measure(out: Path, arguments: argparse.Namespace, walk: Walk, total: int) -> dict[str, Any]:
    """Measure the pages that are not finished, and tell how many were; the same as plain values."""
    from ocr_phases.batch.child import GOES_ON
    from ocr_phases.batch.driver import Counts, auto_device, list_pages, measure_pages
    from ocr_phases.batch.jobs import make_jobs
    from ocr_phases.batch.store import is_batch

    left_out = dict(walk.left_out)
    if left_out:
        kinds = ", ".join(sorted(suffix or "none" for suffix in left_out))
        print(f"{count_text(sum(left_out.values()), 'file')} left out ({kinds})")
    asked = vars(Settings.among(vars(arguments)))
    settings = {name: asked[name] for name in BATCH}
    mode = "notebook" if arguments.render == "during" else "measure"
    options = {"mode": mode, "retries": arguments.retries, "timeout": arguments.timeout}
    with contextlib.closing(_workers(arguments)) as pool, Bar(total, "page", "Measuring") as bar:
        last_seen = time.monotonic()

        def show(counts: Counts) -> None:
            nonlocal last_seen
            waiting = not pool.workers()
            note = ", waiting for a worker" if waiting else ""
            bar.tell(counts.pages, counts.done, f"{counts.failed:,} failed{note}")
            if not waiting:
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > arguments.wait_workers:
                raise OcrPhasesError(f"There was no worker for {arguments.wait_workers:g} s. {GOES_ON}")

        device = functools.cache(functools.partial(auto_device, pool, lambda: show(Counts())))
        resumed = is_batch(out)
        before = list_pages(make_jobs(_found(arguments, walk), settings, device), out)
        if resumed:
            to_do = count_text(total - before.kept, "page")
            print(
                f"Resumed: {total:,} found, {before.kept:,} finished, {before.failed:,} failed before. "
                f"This measures {to_do}."
            )
        counts = measure_pages(out, pool, progress=show, **options)
    failed = f"{counts.failed:,} failed" if counts.failed else "none failed"
    again = f", {counts.again:,} listed twice" if counts.again else ""
    pages = count_text(counts.pages, "page")
    print(f"{pages}: {counts.done:,} measured, {counts.kept:,} kept, {failed}{again}")
    result = {"pages": counts.pages, "measured": counts.done, "kept": counts.kept, "failed": counts.failed}
    standing = {"found": total, "finished": before.kept, "failed": before.failed}
    return {**result, "named_twice": counts.again, "left_out": left_out, "resumed": standing}


def _workers(arguments: argparse.Namespace) -> LocalPool | DaskPool:
    """The workers: processes of this machine, or dask's where a scheduler is named."""
    from ocr_phases.batch.child import DaskPool, LocalPool, worker_environments

    if not arguments.scheduler:
        return LocalPool(worker_environments(arguments.workers, arguments.device))
    pool = DaskPool(arguments.scheduler)
    if pool.plain:
        warning = option_texts()["texts"]["plain"]
        print(f"Warning: {arguments.scheduler} {warning}", file=sys.stderr)
    return pool


def _add_truths(out: Path, path: Path | None) -> int:
    """Add what the pages say to their records, and tell for how many; how many truths could not be read."""
    from ocr_phases.batch.index import add_truths

    if path is None:
        return 0
    truths = add_truths(out, path)
    without = f", {truths.lacking:,} without" if truths.lacking else ""
    print(f"Truth for {count_text(truths.found, 'page')}{without}")
    _print_reasons(truths.problems.items())
    return len(truths.problems)


def _render(out: Path, arguments: argparse.Namespace) -> int:
    """Render the missing reports; returns how many failed."""
    from ocr_phases.batch.child import LocalPool, thread_share
    from ocr_phases.batch.driver import render_pages
    from ocr_phases.batch.store import waiting_reports

    waiting = sum(1 for _ in waiting_reports(out))
    if not waiting:
        return 0
    # Rendering needs no GPU, so hide them all.
    environment = {"CUDA_VISIBLE_DEVICES": "", **thread_share(arguments.render_workers)}
    pool = LocalPool([environment] * arguments.render_workers)
    with contextlib.closing(pool), Bar(waiting, "report", "Rendering") as bar:

        def show(done: int, failed: int) -> None:
            bar.tell(done + failed, done, f"{failed:,} failed")

        options = {"retries": arguments.retries, "timeout": arguments.timeout}
        failed = render_pages(out, pool, progress=show, **options)
    why = ", see their status.json" if failed else ""
    print(f"{waiting:,} reports: {waiting - failed:,} rendered, {failed:,} failed{why}")
    return failed


def _print_reasons(reasons: Iterable[tuple[str, str]]) -> None:
    """Print the first pages that failed, or whose report or truth did, and why."""
    for page, reason in itertools.islice(reasons, _SHOWN_FAILURES):
        print(f"{page}: {reason}")
