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
from ocr_phases.cli.options import BATCH
from ocr_phases.cli.results import Exit, wrote
from ocr_phases.errors import Keyword, OcrPhasesError
from ocr_phases.measure.progress import write_line
from ocr_phases.settings import Settings, is_address
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.batch.driver import PageCounts, Workers
    from ocr_phases.batch.pages import BatchPage

_SHOWN_FAILURES = 10


def run(arguments: argparse.Namespace) -> int:
    """Measure many pages, and write a record and a report for each, an index and tables.

    The same command resumes a batch that was stopped. Exit code 1 means that a page failed.
    """
    from ocr_phases.batch.index import FAILED, write_index
    from ocr_phases.files import only_writer, output_folder

    _check(arguments)
    out = output_folder(arguments.out)
    with only_writer(out):
        result: dict[str, Any] = {}
        reports_failed = 0
        try:
            if arguments.render != "only":
                result = _measure(out, arguments)
            truths_failed = _add_truths(out, arguments.truth)
            if arguments.render != "none":
                reports_failed = _render(out, arguments)
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
    result["reports_failed"] = reports_failed
    result["truths_failed"] = truths_failed
    result["failures"] = failed.head(_SHOWN_FAILURES).to_dict("records")
    result["more_failures"] = more
    result["index"] = index
    arguments.result = result
    result |= _export(out, arguments)  # it may be refused, and what was measured is told then, too
    if FAILED in set(pages["status"]) or reports_failed or truths_failed:
        return Exit.FAILED
    return Exit.DONE


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that contradict each other, wrong settings, and files that the results would
    replace.
    """
    from ocr_phases.batch.archive import is_batch
    from ocr_phases.batch.exports import PREDICTION_FILES, check_export
    from ocr_phases.batch.local_workers import check_workers
    from ocr_phases.files import check_names

    only_renders = arguments.render == "only"
    holds_batch = is_batch(arguments.out)
    if arguments.truth is not None and not arguments.truth.exists():
        raise OcrPhasesError(
            f"The reference text {arguments.truth} is not there: name a file or a folder."
        )
    check_workers(Keyword("render_workers"), arguments.render_workers)
    if only_renders == bool(arguments.pages):
        raise OcrPhasesError("Name the pages, or give --render only for those that are in --out.")
    settings = Settings.among(vars(arguments))
    for preset in arguments.presets:
        settings.check_preset(preset, "presets")
    if only_renders and not holds_batch:
        raise OcrPhasesError(f"{arguments.out} holds no batch: name the folder of one (--out).")
    if arguments.predictions is not None:
        check_export(arguments.predictions, PREDICTION_FILES, overwrite=arguments.overwrite)
    check_names(
        arguments.out,
        r"index\.html|jobs\.jsonl|left_out\.json|(pages|spans|tokens)\.csv",
        overwrite=arguments.overwrite or holds_batch,
        arguments=[*arguments.pages, arguments.truth],
    )


class _Progress:
    """Shows on a `Bar` how far a batch is; ends it where no worker comes for too long."""

    def __init__(self, bar: Bar, workers: Workers, most_seconds: float) -> None:
        self.bar = bar
        self.workers = workers
        self.most_seconds = most_seconds  # without a worker
        self.last_seen = time.monotonic()
        self.busy_hosts: set[str] = set()  # of which it was said

    def show(self, counts: PageCounts) -> None:
        """Show the counts, and say once of each machine that it is too busy; `OcrPhasesError` after
        ``most_seconds`` without a worker.
        """
        from ocr_phases.batch.outcome import GOES_ON

        note = f"{counts.failed:,} failed"
        if self.workers.count():
            self.last_seen = time.monotonic()
        else:
            note += ", waiting for a worker"
        for host, warning in counts.busy.items():
            if host not in self.busy_hosts:
                self.busy_hosts.add(host)
                write_line(f"On {host}: {warning}")
        self.bar.show_count(counts.pages, counts.done, note)
        if time.monotonic() - self.last_seen > self.most_seconds:
            raise OcrPhasesError(f"There was no worker for {self.most_seconds:g} s. {GOES_ON}")

    def show_start(self) -> None:
        """Show that nothing is measured yet."""
        from ocr_phases.batch.driver import PageCounts

        self.show(PageCounts())


def _measure(out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the pages that are not finished, and print how many were; the same as plain
    values.
    """
    from ocr_phases.batch.archive import is_batch, list_pages
    from ocr_phases.batch.driver import auto_device, measure_pages
    from ocr_phases.batch.jobs import make_jobs

    settings = Settings.among(vars(arguments))
    settings_of_pages = {name: getattr(settings, name) for name in BATCH}
    left_out: Counter[str] = Counter()
    is_resumed = is_batch(out)
    mode = "notebook" if _reports_during(arguments) else "measure"
    with contextlib.closing(_workers(arguments)) as workers, Bar(0, "page", "Measuring") as bar:
        progress = _Progress(bar, workers, arguments.wait_workers)
        device = functools.cache(functools.partial(auto_device, workers, progress.show_start))
        jobs = make_jobs(_pages(out, arguments, left_out), settings_of_pages, device)
        before = list_pages(jobs, out, left_out)
        bar.total = before["found"]
        if left_out:
            files = count_text(left_out.total(), "file")
            bar.print_above(f"{files} left out ({', '.join(sorted(left_out))})")
        if is_resumed:
            bar.print_above(_resumed_sentence(before))
        counts = measure_pages(
            out,
            workers,
            mode=mode,
            progress=progress.show,
            retries=arguments.retries,
            timeout=arguments.timeout,
            price_per_hour=arguments.price_per_hour,
        )
    _print_counts(counts)
    return {
        "pages": counts.pages,
        "measured": counts.done,
        "kept": counts.kept,
        "failed": counts.failed,
        "named_twice": counts.again,
        "left_out": dict(left_out),
        "resumed": before,
    }


def _pages(out: Path, arguments: argparse.Namespace, left_out: Counter[str]) -> Iterator[BatchPage]:
    """The pages that the command names, each at every preset of ``--presets``.

    ``left_out`` counts files that are no pages. A ``--truth`` of a single page is refused at the
    second one.
    """
    from ocr_phases.analyse.quality import check_for_pages
    from ocr_phases.batch.archive import PAGES
    from ocr_phases.batch.pages import find_pages

    found = find_pages(arguments.pages, BATCH, out / PAGES, left_out)
    for number, page in enumerate(found, 1):
        if arguments.truth is not None and number == 2:
            check_for_pages(arguments.truth, number)
        yield from page.at(arguments.presets)


def _resumed_sentence(before: dict[str, int]) -> str:
    """What a batch that goes on has from before, and what is left to do."""
    to_do = count_text(before["found"] - before["finished"], "page")
    return (
        f"Resumed: {before['found']:,} found, {before['finished']:,} finished, "
        f"{before['failed']:,} failed before. This measures {to_do}."
    )


def _print_counts(counts: PageCounts) -> None:
    """Say what became of the pages."""
    sentence = (
        f"{count_text(counts.pages, 'page')}: {counts.done:,} measured, {counts.kept:,} kept, "
        f"{counts.failed:,} failed"
    )
    if counts.again:
        sentence += f", {counts.again:,} listed twice"
    print(sentence)


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
        if not is_address(arguments.model) and find_spec("torch") is None:
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
    """Add what the pages say to their records, and print for how many.

    Returns how many truths could not be read.
    """
    from ocr_phases.batch.index import add_truths

    if path is None:
        return 0
    found, lacking, problems = add_truths(out, path)
    sentence = f"Truth for {count_text(found, 'page')}"
    if lacking:
        sentence += f", {lacking:,} without"
    print(sentence)
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

        def show(counts: PageCounts) -> None:
            bar.show_count(counts.pages, counts.done, f"{counts.failed:,} failed")

        failed = render_pages(
            out,
            workers,
            progress=show,
            retries=arguments.retries,
            timeout=arguments.timeout,
            price_per_hour=arguments.price_per_hour,
        ).failed
    sentence = f"{waiting:,} reports: {waiting - failed:,} rendered, {failed:,} failed"
    if failed:
        sentence += ", see their status.json"
    print(sentence)
    return failed


def _export(out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the documents and the predictions that were asked for; the same as plain values."""
    from ocr_phases.batch.exports import write_documents, write_predictions

    result: dict[str, Any] = {}
    overwrite = arguments.overwrite
    if arguments.documents is not None:
        folders = write_documents(out, arguments.documents, overwrite=overwrite)
        result["documents"] = [str(folder) for folder in folders]
        print(f"{count_text(len(folders), 'document')} in {arguments.documents}")
    if arguments.predictions is not None:
        predictions = write_predictions(out, arguments.predictions, overwrite=overwrite)
        result["predictions"] = {
            "written": predictions.written,
            "left_out": predictions.left_out,
        }
        print(f"{count_text(predictions.written, 'prediction')} in {arguments.predictions}")
        for page, reason in itertools.islice(predictions.left_out.items(), _SHOWN_FAILURES):
            print(f"No prediction of {page}: {reason}")
    return result


def _print_reasons(reasons: Iterable[tuple[str, str]]) -> None:
    """Print the first pages that failed, or whose report or truth did, and why."""
    for page, reason in itertools.islice(reasons, _SHOWN_FAILURES):
        print(f"{page}: {reason}")
