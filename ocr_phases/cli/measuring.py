"""A measurement on the command line: page checked first, progress shown, stopped by Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli.options import refuse, settings_of
from ocr_phases.errors import Interrupted
from ocr_phases.versions import seldom_collected

if TYPE_CHECKING:
    from ocr_phases.record import PhaseRun
    from ocr_phases.session import OCRSession


def look_at(page: str) -> None:
    """Raise `OcrPhasesError` for an unreadable page.

    ``page`` may name several of a file (`ocr_phases.files.each_page`).
    """
    from ocr_phases.files import each_page
    from ocr_phases.inputs.images import load_page, unnamed_pages

    if others := unnamed_pages(page):
        print(others, file=sys.stderr)
    for each in each_page(page):
        load_page(each)


def warn_of_remote_code(model: str) -> None:
    """Warn on stderr that the checkpoint's own code will run."""
    print(f"Warning: this runs the Python files of {model} on this machine.", file=sys.stderr)


def load_session(arguments: argparse.Namespace, pages: Sequence[str] = ()) -> OCRSession:
    """Load the requested model; a wrong page or setting is refused before anything slow starts."""
    settings = settings_of(arguments)
    for page in pages or [arguments.page]:
        look_at(page)
    if settings.implementation == "native":
        refuse(arguments, ("trust_remote_code",), "The native implementation runs no remote code")
    if settings.trust_remote_code:
        warn_of_remote_code(settings.model)
    if settings.model.partition(":")[0] in ("tiny", "dummy") or Path(settings.model).is_dir():
        refuse(arguments, ("revision",), f"{settings.model} is not from a hub")
    with seldom_collected():
        from ocr_phases.session import kept_session

    return kept_session(**settings.of_model())


def measure(
    arguments: argparse.Namespace, session: OCRSession | None = None, page: str | None = None, **changes: Any
) -> PhaseRun:
    """Measure ``page``, or the command's, with the command's settings and ``changes``."""
    session = session or load_session(arguments)
    settings = settings_of(arguments)
    run = partial(session.run_inference, page or arguments.page, **settings.of_run() | changes)
    return watched(arguments, run, settings.warmup, settings.expected_tokens)


def watched(
    arguments: argparse.Namespace, measure: Callable[..., PhaseRun], warmup: int, tokens_a_run: int
) -> PhaseRun:
    """What ``measure`` gives, shown while it runs; where it is stopped, of the finished repeats."""
    from ocr_phases.cli.progress import watching

    with watching(warmup, tokens_a_run) as watch:
        try:
            run = measure(progress=watch.progress, on_tokens=watch.on_tokens)
        except Interrupted as stop:
            if stop.run is None:
                raise
            run, watch.asked = stop.run, stop.number
    arguments.stopped = watch.asked
    return run


def check_target(arguments: argparse.Namespace, *others: str | None) -> Path:
    """Where the record is to go, once it is proved that it can be written there.

    ``others`` are arguments besides the page.
    """
    from ocr_phases.files import RECORD, output_file, output_folder

    if arguments.save is None:
        return output_folder(".") / RECORD
    return output_file(arguments.save, overwrite=arguments.overwrite, arguments=[arguments.page, *others])


def save(arguments: argparse.Namespace, record: PhaseRun) -> Path:
    """Save a record as the command's arguments say, or under the first free default name; its file."""
    from ocr_phases.files import RECORD, save_new, save_or_rescue

    if arguments.save is None:
        return save_new(record.save, RECORD)
    return save_or_rescue(partial(record.save, overwrite=arguments.overwrite), arguments.save)
