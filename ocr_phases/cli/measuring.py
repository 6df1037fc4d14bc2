"""A measurement on the command line: page checked first, progress on stderr, ended by signals."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ocr_phases.cli.options import OF_SERVERS
from ocr_phases.cli.refusals import refuse, refuse_of_servers
from ocr_phases.errors import Interrupted
from ocr_phases.files import RECORD, each_page, output_file, output_folder, rescued, save_new
from ocr_phases.measure.progress import RunProgress, left_text
from ocr_phases.settings import Settings
from ocr_phases.versions import seldom_collected

if TYPE_CHECKING:
    from ocr_phases.engines.session import ServerSession
    from ocr_phases.results.run import PhaseRun
    from ocr_phases.session.session import OCRSession


class Bar(tqdm):
    """tqdm's bar on a terminal, which goes at the end; else a line of the same now and then, for a
    log.
    """

    def __init__(self, total: int | None, unit: str, desc: str | None = None) -> None:
        log = not sys.stderr.isatty()
        seconds = 30.0 if log else 0.1
        # With gui, display is all that writes.
        options: dict[str, Any] = {
            "gui": log,
            "mininterval": seconds,
            "miniters": 0,
            "smoothing": 0,
        }
        super().__init__(total=total, unit=unit, desc=desc, leave=False, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Write the state."""
        if not self.gui:
            return super().display(msg, pos)
        print(self, file=sys.stderr, flush=True)
        return True

    def tell(self, through: int, worked: int, note: str) -> None:
        """``through`` of all are through, ``worked`` of them by this command: they make the rate."""
        if not worked:  # what is kept is looked through first
            self.start_t = self.last_print_t
        self.n, self.initial = through, through - worked
        self.set_postfix_str(note, refresh=False)
        self.update(0)

    def show_runs(self, progress: RunProgress) -> None:
        """Where a measurement is; a share of it only once a run has told how long runs are."""
        self.total = progress.tokens_total
        self.bar_format = "{desc} [{elapsed}]"
        if self.total:
            self.bar_format = "{percentage:3.0f}%|{bar}| {desc} [{elapsed}]"
        words = [progress.text, left_text(progress.left_s)]
        self.set_description_str(", ".join(filter(None, words)), refresh=False)


def warn_of_remote_code(model: str) -> None:
    """Warn on stderr that the checkpoint's own code will run."""
    print(f"Warning: this runs the Python files of {model} on this machine.", file=sys.stderr)


def check_pages(arguments: argparse.Namespace, pages: Sequence[str] = ()) -> None:
    """Refuse pages, the command's or these, that cannot be read, or of which ``--truth`` says
    nothing.
    """
    from ocr_phases.analyse.quality import load_truth
    from ocr_phases.images import load_page, unnamed_pages

    for page in pages or [arguments.page]:
        for each in each_page(page):
            load_page(each)
        if arguments.truth:
            load_truth(arguments.truth, page)
        if others := unnamed_pages(page):
            print(others, file=sys.stderr)


def server_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of a command that `OCRSession.connect` takes, those that were given."""
    names = (*OF_SERVERS, "first_token_timeout", "answer_timeout")
    options = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in options.items() if value is not None}


def load_session(
    arguments: argparse.Namespace, pages: Sequence[str] = ()
) -> OCRSession | ServerSession:
    """Load the requested model; a wrong page, setting or truth is refused before anything slow
    starts.
    """
    settings = Settings.among(vars(arguments))
    check_pages(arguments, pages)
    if settings.implementation == "native":
        refuse(arguments, ("trust_remote_code",), "The native implementation runs no remote code")
    if settings.trust_remote_code:
        warn_of_remote_code(settings.model)
    if settings.model.partition(":")[0] in ("tiny", "dummy") or Path(settings.model).is_dir():
        refuse(arguments, ("revision",), f"{settings.model} is not from a hub")
    with seldom_collected():
        from ocr_phases.session.kept import kept_session
        from ocr_phases.session.session import OCRSession

    if arguments.verb == "verify" and arguments.server:
        return OCRSession.connect(
            arguments.server, reference=settings.model, **server_options(arguments)
        )
    if "://" in settings.model:
        return OCRSession.connect(settings.model, **server_options(arguments))
    refuse_of_servers(arguments)
    refuse(arguments, ("first_token_timeout", "answer_timeout"), "Only a --server is waited for")
    return kept_session(**settings.of_model())


def measure(
    arguments: argparse.Namespace,
    session: OCRSession | ServerSession | None = None,
    page: str | None = None,
    **changes: Any,
) -> PhaseRun:
    """Measure ``page``, or the command's, with the command's settings and ``changes``."""
    session = session or load_session(arguments)
    settings = Settings.among(vars(arguments))
    run = partial(session.run_inference, page or arguments.page, **settings.of_run() | changes)
    return watched(arguments, run, settings.expected_tokens, settings.warmup)


def watched(
    arguments: argparse.Namespace, measure: Callable[..., PhaseRun], token_limit: int, warmup: int
) -> PhaseRun:
    """What ``measure`` gives, with a `Bar`; where a signal stops it, the record of the finished
    repeats.

    ``token_limit`` is the maximum number of new tokens of each run, the first ``warmup`` of which
    are not recorded.
    """
    runs = RunProgress(token_limit, warmup)
    with Bar(None, "token") as bar:

        def progress(done: int, total: int) -> None:
            if not done:  # the clock starts when all is set up
                bar.unpause()
            runs.next_run(done, total, time.perf_counter())
            bar.show_runs(runs)
            bar.n = runs.tokens_done
            if done > 0:
                bar.refresh()

        def on_tokens(_: int, rows: list[list[int]]) -> None:
            runs.add_tokens(len(rows[0]))
            bar.show_runs(runs)
            bar.update(len(rows[0]))

        try:
            return measure(progress=progress, on_tokens=on_tokens)
        except Interrupted as interrupted:
            if interrupted.run is None:
                raise
            arguments.stopped = interrupted.number
            return interrupted.run


def judged(arguments: argparse.Namespace, record: PhaseRun) -> PhaseRun:
    """The record with what ``--truth`` says of its page, at ``--price-per-hour``."""
    from ocr_phases.analyse.cost import priced
    from ocr_phases.analyse.quality import load_truth

    page, record = arguments.page or record.page_name(), priced(record, arguments.price_per_hour)
    return record.with_truth(load_truth(arguments.truth, page)) if arguments.truth else record


def check_target(arguments: argparse.Namespace, *others: str | None) -> Path:
    """Where the record is to go, once it is proved that it can be written there.

    ``others`` are arguments besides the page.
    """
    if arguments.save is None:
        return output_folder(".") / RECORD
    return output_file(
        arguments.save, overwrite=arguments.overwrite, arguments=[arguments.page, *others]
    )


def save(arguments: argparse.Namespace, record: PhaseRun) -> Path:
    """Save a record as the command's arguments say, or under the first free default name.

    Returns its file.
    """
    if arguments.save is None:
        return save_new(record.save, RECORD)
    with rescued(record.save):
        return record.save(arguments.save, overwrite=arguments.overwrite)
