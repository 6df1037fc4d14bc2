"""What a measurement is asked for and how it ends: of a loaded model and of a server, so without
torch.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from tqdm import tqdm

from ocr_phases.errors import Interrupted, Stopped, check_known, stop_signals
from ocr_phases.families import GROUNDING_TAG, IMAGE_TAG, PROCESSOR, FamilyFacts, Preset
from ocr_phases.images import describe_page
from ocr_phases.inputs.views import Pages, make_rows, valid_image_tokens
from ocr_phases.record import Record
from ocr_phases.record.parts import PagePart, ResultPart, make_part, to_plain
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import (
    NEW_TOKENS,
    REQUEST_SETTINGS,
    Request,
    RunSettings,
    is_published,
    resolve_infer,
)

#: Called with the number of a repeat, -1 for warm-up, and the new ids of each row.
OnRunTokens = Callable[[int, list[list[int]]], object]
#: Called with the number of runs that are done, and of all runs.
OnProgress = Callable[[int, int], object]


def filled_in(
    page: Pages,
    asked: RunSettings,
    family: FamilyFacts,
    preset: str | None = None,
    *,
    sampling: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> Request:
    """What ``asked`` asks of ``page``, with every default of the ``family``, ``preset`` and
    ``defaults``.

    ``sampling`` are a checkpoint's own settings, for what ``infer`` leaves open.
    Raises `OcrPhasesError` for pages, prompts and presets that the family does not have.
    """
    pages, prompts = make_rows(page, asked, family)
    several = any(text.count(IMAGE_TAG) > 1 for text in prompts)
    infer, autocast = resolve_infer(
        asked.infer, asked.autocast, family.name, several_pages=several, defaults=sampling
    )
    uncut = family.multipage_preset if several else None
    preset = family.preset(asked.preset or uncut or preset).name
    if uncut:
        whole = [each.name for each in family.presets.values() if not each.crops]
        check_known("preset", preset, whole, f"{family.title} for several pages in one prompt")
    limit = family.published_limit if is_published(asked.infer) else NEW_TOKENS
    grounding = any(GROUNDING_TAG in text for text in prompts) if family.leads[1] else None
    given = {name: value for name, value in vars(asked).items() if value is not None}
    found = {
        "pages": pages,
        "prompts": prompts,
        "preset": preset,
        "infer": infer,
        "autocast": autocast,
    }
    found["prompt"] = asked.prompt if isinstance(asked.prompt, str) else prompts[0]
    found["preset_choice"] = "asked" if asked.preset else "default"
    return Request(
        **{"max_new_tokens": limit, "grounding": grounding, **defaults, **given, **found}
    )


def bar_in_cell(
    steps: Iterable[Any], unit: str, total: int | None = None, *, alike: bool = True
) -> Iterable[Any]:
    """``steps`` with a bar on one line of a notebook's cell; elsewhere without: a command has its
    own.

    Steps that are not ``alike`` differ in cost, so the bar counts them and estimates no end.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return tqdm(
        steps,
        total=total,
        unit=unit,
        bar_format=None if alike else "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}]",
        file=sys.stdout,
        disable=not hasattr(shell, "kernel"),
    )


def each_run(request: Request, on_tokens: Any, progress: Any) -> Iterator[tuple[int, Any]]:
    """The number of each warm-up, below 0, and repeat, and what is called with its tokens.

    ``progress`` gets the number of finished runs before each and at the end; without it a
    notebook's cell shows a bar.
    """
    numbers = range(-request.warmup, request.repeats)
    tell = progress or (lambda done, total: None)
    for number in numbers if progress else bar_in_cell(numbers, "run"):
        tell(number + request.warmup, len(numbers))
        yield number, on_tokens and partial(on_tokens, max(number, -1))
    tell(len(numbers), len(numbers))


def page_part(page: Any, preset: Preset, row: int, image: int, text: int, embed: bool) -> PagePart:
    """The record's part about a ``page`` of `load_page` in a batch's ``row``, and how a preset cuts
    it.

    ``image`` and ``text`` are the tokens that it and its prompt have.
    """
    size, grid = page[0].size, preset.grid(*page[0].size)
    if preset.name == PROCESSOR:  # how the page was cut is unknown
        uncut = {"row": row, "preset": PROCESSOR, "grid": [1, 1]}
        return make_part(PagePart, describe_page(*page, embed=embed) | uncut)
    cut = {
        "row": row,
        "preset": preset.name,
        "grid": list(grid),
        "image_tokens": image,
        "text_tokens": text,
    }
    valid = {"valid_image_tokens": valid_image_tokens(preset, size, grid)}
    return make_part(PagePart, describe_page(*page, embed=embed) | cut | valid)


def row_part(
    request: Request,
    ids: list[int],
    texts: list[str],
    text: str,
    end: str,
    text_tokens: int | None = None,
) -> ResultPart:
    """The record's part about a row's result; ``end`` is why it ended: "stop" (OpenAI's) or
    "length".
    """
    kept = request.return_text
    return ResultPart(
        ids=ids,
        token_texts=texts if kept else [""] * len(ids),
        text=text if kept else None,
        finish_reason="eos" if end == "stop" else end,
        text_tokens=text_tokens,
    )


def recorded_settings(record: Record) -> dict[str, Any]:
    """The settings of a record's request, as keywords of ``run_inference``."""
    request = to_plain(record.request)
    settings = {name: request[name] for name in REQUEST_SETTINGS if request.get(name) is not None}
    if "infer" in settings:
        infer = settings["infer"]
        settings["infer"] = {name: value for name, value in infer.items() if value is not None}
    return settings


def run_and_record(
    session: Any, measurement: Any, on_tokens: OnRunTokens | None, progress: OnProgress | None
) -> PhaseRun:
    """Run a measurement, and record what it measured however that ends: also as
    ``session.last_run``.

    A measurement has ``runs``, ``measure(on_tokens=..., progress=...)`` and ``record()``. Raises
    `Interrupted` for a KeyboardInterrupt, and `Stopped` where that came before the end of the first
    run.
    """
    session.last_run = None
    try:
        try:
            with contextlib.suppress(Stopped):
                measurement.measure(on_tokens=on_tokens, progress=progress)
        finally:
            with stop_signals():  # they wait for the record
                if measurement.runs:
                    session.last_run = measurement.record()
    except KeyboardInterrupt as signalled:
        raise Interrupted(session.last_run, *(signalled.args or (signal.SIGINT,))) from None
    if session.last_run is None:
        raise Stopped
    return session.last_run
