"""What a measurement is asked for and how it ends: of a loaded model and of a server, so without torch."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

from ocr_phases.errors import Interrupted, Stopped, check_known, stop_signals
from ocr_phases.families import GROUNDING_TAG, IMAGE_TAG, FamilyFacts
from ocr_phases.inputs.views import Pages, make_rows
from ocr_phases.record import PhaseRun
from ocr_phases.settings import NEW_TOKENS, Request, RunSettings, is_published, resolve_infer


def filled_in(
    page: Pages, asked: RunSettings, family: FamilyFacts, preset: str | None = None, **defaults: Any
) -> Request:
    """What ``asked`` asks of ``page``, with every default of the ``family``, ``preset`` and ``defaults``.

    Raises `OcrPhasesError` for pages, prompts and presets that the family does not have.
    """
    pages, prompts = make_rows(page, asked, family)
    several = any(text.count(IMAGE_TAG) > 1 for text in prompts)
    infer, autocast = resolve_infer(asked.infer, asked.autocast, family.name, several_pages=several)
    uncut = family.multipage_preset if several else None
    preset = family.preset(asked.preset or uncut or preset or family.default_preset).name
    if uncut:
        whole = [each.name for each in family.presets.values() if not each.crops]
        check_known("preset", preset, whole, f"{family.title} for several pages in one prompt")
    limit = family.published_limit if is_published(asked.infer) else NEW_TOKENS
    grounding = any(GROUNDING_TAG in text for text in prompts) if family.leads[1] else None
    given = {name: value for name, value in vars(asked).items() if value is not None}
    found = {"pages": pages, "prompts": prompts, "preset": preset, "infer": infer, "autocast": autocast}
    found["prompt"] = asked.prompt if isinstance(asked.prompt, str) else prompts[0]
    found["preset_choice"] = "asked" if asked.preset else "default"
    return Request(**{"max_new_tokens": limit, "grounding": grounding, **defaults, **given, **found})


def recorded(session: Any, measurement: Any, **callbacks: Any) -> PhaseRun:
    """Measure, and record what was measured however that ends: also as ``session.last_run``.

    A ``measurement`` has ``runs``, ``measure(**callbacks)`` and ``record()``. Raises `Interrupted` for a
    KeyboardInterrupt, and `Stopped` where that came before the end of the first run.
    """
    session.last_run = None
    try:
        try:
            with contextlib.suppress(Stopped):
                measurement.measure(**callbacks)
        finally:
            with stop_signals():  # they wait for the record
                session.last_run = measurement.record() if measurement.runs else None
    except KeyboardInterrupt as signalled:
        raise Interrupted(session.last_run, *(signalled.args or (signal.SIGINT,))) from None
    if session.last_run is None:
        raise Stopped
    return session.last_run
