"""A measurement on the command line: page checked first, progress shown, stopped by Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli.options import settings_of
from ocr_phases.errors import Interrupted, OcrPhasesError
from ocr_phases.garbage import seldom_collected
from ocr_phases.settings import ModelSettings

if TYPE_CHECKING:
    from ocr_phases.measure.session import OCRSession
    from ocr_phases.record import PhaseRun


def look_at(page: str, arguments: argparse.Namespace) -> None:
    """Raise `OcrPhasesError` for an unreadable page.

    ``page`` may name several of a file (`ocr_phases.files.each_page`).
    """
    from ocr_phases.files import each_page
    from ocr_phases.measure.inputs.images import load_page, unnamed_pages

    if others := unnamed_pages(page):
        print(others, file=sys.stderr)
    for each in each_page(page):
        load_page(each)


def warn_of_remote_code(settings: ModelSettings) -> None:
    """Warn on stderr that the checkpoint's own code will run."""
    if settings.trust_remote_code:
        print(f"Warning: this runs the Python files of {settings.model} on this machine.", file=sys.stderr)


def load_session(arguments: argparse.Namespace) -> OCRSession:
    """Load the requested model; a wrong page or setting is refused before anything slow starts."""
    settings = settings_of(arguments)
    look_at(arguments.page, arguments)
    warn_of_remote_code(settings)
    with seldom_collected():
        from ocr_phases.measure.session import OCRSession

    return OCRSession.load(**settings.of_model())


def measure(arguments: argparse.Namespace, session: OCRSession | None = None, **changes: Any) -> PhaseRun:
    """Measure the page with the command's settings and ``changes``."""
    session = session or load_session(arguments)
    settings = settings_of(arguments)
    run = partial(session.run_inference, arguments.page, **settings.of_run() | changes)
    return watched(arguments, run, settings.warmup, settings.expected_tokens)


def watched(
    arguments: argparse.Namespace, measure: Callable[..., PhaseRun], warmup: int, tokens_a_run: int
) -> PhaseRun:
    """What ``measure`` gives, shown while it runs; where it is stopped, of the finished repeats."""
    from ocr_phases.report.progress import watching

    with watching(warmup, tokens_a_run) as watch:
        try:
            run = measure(progress=watch.progress, on_tokens=watch.on_tokens)
        except Interrupted as stop:
            if stop.run is None:
                raise
            run, watch.asked = stop.run, stop.number
    arguments.stopped = watch.asked
    return run


def check_overwriting(arguments: argparse.Namespace, target: Path, then: PhaseRun | None = None) -> None:
    """Refuse to overwrite a file that is not an earlier record of the same measurement."""
    from ocr_phases.cli.overwriting import what_is_lost

    if not arguments.overwrite and (lost := what_is_lost(arguments, target, then)):
        raise OcrPhasesError(f"{target} {lost}: name another file (--save), or give --overwrite.")
