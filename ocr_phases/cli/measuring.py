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
from ocr_phases.cli.refusals import WAITS, refuse_of_servers, refuse_options
from ocr_phases.errors import Interrupted, OcrPhasesError
from ocr_phases.files import RECORD, each_page, output_file, output_folder, rescued, save_new
from ocr_phases.measure.progress import RunProgress, left_text, write_line
from ocr_phases.settings import Settings, is_address
from ocr_phases.text import plain
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
        is_log = not sys.stderr.isatty()
        super().__init__(
            total=total,
            unit=unit,
            desc=desc,
            leave=False,
            gui=is_log,  # then `display` is all that writes
            mininterval=30.0 if is_log else 0.1,
            miniters=0,
            smoothing=0,
        )

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Write the state."""
        if not self.gui:
            return super().display(msg, pos)
        print(self, file=sys.stderr, flush=True)
        return True

    def print_above(self, line: str) -> None:
        """Print a line on stdout; on a terminal the bar goes on below it."""
        if self.gui:
            print(line)
        else:
            self.write(line, file=sys.stdout)

    def show_count(self, finished: int, by_this_command: int, note: str) -> None:
        """How many of all are finished; those that this command worked on make the rate."""
        if not by_this_command:  # what an earlier command finished is looked through first
            self.start_t = self.last_print_t
        self.n = finished
        self.initial = finished - by_this_command
        self.set_postfix_str(note, refresh=False)
        self.update(0)

    def show_runs(self, progress: RunProgress) -> None:
        """Where a measurement is; a share of it only once a run has told how long runs are."""
        self.total = progress.tokens_total
        self.bar_format = "{desc} [{elapsed}]"
        if self.total:
            self.bar_format = "{percentage:3.0f}%|{bar}| {desc} [{elapsed}]"
        description = progress.text
        left = left_text(progress.left_s)
        if left:
            description = f"{description}, {left}"
        self.set_description_str(description, refresh=False)


class ShownText:
    """Writes the text of a measurement's first run to stderr while it is made, a line at a time.

    Whole lines stand above the bar, which stays the last line. ``read`` gives the text that an id
    adds (`ocr_phases.models.tokenizers.TokenReader`).
    """

    def __init__(self, read: Callable[[int], str]) -> None:
        self._read = read
        self._run: int | None = None
        self._line = ""

    def add(self, run: int, ids: Sequence[int]) -> None:
        """Take the new ids of a run, of which those of the first run count."""
        if self._run is None:
            self._run = run
        if run != self._run:
            self.end()
            return
        self._line += "".join(map(self._read, ids))
        lines = self._line.split("\n")
        self._line = lines.pop()
        for line in lines:
            self._write(line)

    def end(self) -> None:
        """Write what has no end of line yet."""
        if self._line:
            self._write(self._line)
            self._line = ""

    def _write(self, line: str) -> None:
        write_line(plain(line))


def warn_of_remote_code(model: str) -> None:
    """Warn on stderr that the checkpoint's own code will run."""
    print(f"Warning: this runs the Python files of {model} on this machine.", file=sys.stderr)


def check_pages(arguments: argparse.Namespace, pages: Sequence[str] = ()) -> None:
    """Raise `OcrPhasesError` for a page that cannot be read, or that has no text in ``--truth``.

    Without ``pages`` the command's own page is looked at, and nothing beside ``--no-image``.
    """
    if "--no-image" in arguments.given:
        return
    from ocr_phases.analyse.quality import load_truth
    from ocr_phases.images import load_page, unnamed_pages

    for page in pages or [arguments.page]:
        for each in each_page(page):
            load_page(each)
        if arguments.truth is not None:
            load_truth(arguments.truth, page)
        not_named = unnamed_pages(page)
        if not_named:
            print(not_named, file=sys.stderr)


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
        refuse_options(
            arguments, ("trust_remote_code",), "The native implementation runs no remote code"
        )
    if settings.trust_remote_code:
        warn_of_remote_code(settings.model)
    if settings.model.partition(":")[0] in ("tiny", "dummy") or Path(settings.model).is_dir():
        refuse_options(arguments, ("revision",), f"{settings.model} is not from a hub")
    with seldom_collected():
        from ocr_phases.session.kept import kept_session
        from ocr_phases.session.session import OCRSession

    if arguments.verb == "verify" and arguments.server:
        return OCRSession.connect(
            arguments.server, reference=settings.model, **server_options(arguments)
        )
    if is_address(settings.model):
        return OCRSession.connect(settings.model, **server_options(arguments))
    refuse_of_servers(arguments)
    refuse_options(arguments, WAITS, "Only a --server is waited for")
    return kept_session(**settings.of_model())


def measure(
    arguments: argparse.Namespace,
    session: OCRSession | ServerSession | None = None,
    page: str | None = None,
    **changes: Any,
) -> PhaseRun:
    """Measure ``page``, or the command's, with the command's settings and ``changes``.

    Beside ``--no-image`` that is the prompt alone.
    """
    if session is None:
        session = load_session(arguments)
    settings = Settings.among(vars(arguments))
    keywords = settings.of_run() | changes
    if page is None and "--no-image" not in arguments.given:
        page = arguments.page
    run_inference = partial(session.run_inference, page, **keywords)
    shown = _shown_text(session) if "--show-text" in arguments.given else None
    return measure_with_bar(
        arguments, run_inference, settings.expected_tokens, settings.warmup, shown
    )


def _shown_text(session: OCRSession | ServerSession) -> ShownText:
    """What shows the text while this session's model makes it."""
    from ocr_phases.models.tokenizers import TokenReader
    from ocr_phases.session.session import OCRSession

    if not isinstance(session, OCRSession):
        raise OcrPhasesError("A server's text comes whole at the end of a run: drop --show-text.")
    return ShownText(TokenReader(session.tokenizer).read)


def measure_with_bar(
    arguments: argparse.Namespace,
    measurement: Callable[..., PhaseRun],
    token_limit: int,
    warmup: int,
    shown: ShownText | None = None,
) -> PhaseRun:
    """The record of a measurement, beside a `Bar`; of the finished repeats where a signal stops it.

    ``token_limit`` is the maximum number of new tokens of each run, the first ``warmup`` of which
    are not recorded. ``shown`` writes the text of the first run above the bar.
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

        def on_tokens(run: int, rows: list[list[int]]) -> None:
            if shown is not None:
                shown.add(run, rows[0])
            runs.add_tokens(len(rows[0]))
            bar.show_runs(runs)
            bar.update(len(rows[0]))

        try:
            return measurement(progress=progress, on_tokens=on_tokens)
        except Interrupted as interrupted:
            if interrupted.run is None:
                raise
            arguments.stopped = interrupted.number
            return interrupted.run
        finally:
            if shown is not None:
                shown.end()


def with_truth_and_price(arguments: argparse.Namespace, record: PhaseRun) -> PhaseRun:
    """The record with what ``--truth`` says of its page, at ``--price-per-hour``."""
    from ocr_phases.analyse.cost import priced
    from ocr_phases.analyse.quality import load_truth

    record = priced(record, arguments.price_per_hour)
    if arguments.truth is None:
        return record
    page = arguments.page or record.page_name()
    return record.with_truth(load_truth(arguments.truth, page))


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
