"""The measurement in a record, once more: its pages, its model and its settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import each_page
from ocr_phases.images import describe_page, load_page
from ocr_phases.inputs.rows import Page
from ocr_phases.measure.record_parts import page_id
from ocr_phases.measure.request import recorded_settings
from ocr_phases.models.load import AT_HAND, BUILT_IN
from ocr_phases.record.parts import PagePart
from ocr_phases.results.run import PhaseRun
from ocr_phases.session.session import OCRSession
from ocr_phases.settings import ModelSettings

#: Characters of a revision that a sentence shows.
_SHOWN_REVISION = 20


def repeat_run(
    record: PhaseRun,
    *,
    page: str | Path | None = None,
    model: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    token_probabilities: bool = True,
    ceilings: bool = True,
    phase_energy: bool = False,
    kernels: bool = False,
    kernel_steps: int = 32,
    kernel_trace: str | Path | None = None,
    on_tokens: Callable[[int, list[list[int]]], object] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> PhaseRun:
    """Measure again what ``record`` measured, with every setting of its request.

    Parameters
    ----------
    record : PhaseRun
        The record to repeat.
    page : str or Path, optional
        The page's file, where the record does not hold the page itself.
    model, device, trust_remote_code
        As for `load_recorded`.
    token_probabilities, ceilings, phase_energy, kernels, kernel_steps, kernel_trace, on_tokens,
    progress
        As for `OCRSession.run_inference`: a record's request does not have these.

    Returns
    -------
    PhaseRun
        The new measurement, whose pages are named as in ``record``.

    Raises
    ------
    OcrPhasesError
        Where the page or the model cannot be had, or is not the one of the record.

    Examples
    --------
    >>> again = repeat_run(PhaseRun.load("run.json"))  # doctest: +SKIP
    """
    pages = None
    if record.has_page:
        pages = recorded_pages(record, page)
    elif page is not None:
        raise OcrPhasesError(f"The record is of a prompt without an image: drop {page}.")
    settings = recorded_settings(record)
    if len(set(record.request.prompts)) > 1:
        settings["prompt"] = record.request.prompts
    session = load_recorded(record, model=model, device=device, trust_remote_code=trust_remote_code)
    run = session.run_inference(
        pages,
        **settings,
        token_probabilities=token_probabilities,
        ceilings=ceilings,
        phase_energy=phase_energy,
        kernels=kernels,
        kernel_steps=kernel_steps,
        kernel_trace=kernel_trace,
        on_tokens=on_tokens,
        progress=progress,
    )
    named = []
    for new, old in zip(run.pages, record.pages, strict=True):
        named.append(msgspec.structs.replace(new, file=old.file))
    return dataclasses.replace(run, pages=named)


def recorded_pages(record: PhaseRun, file: str | Path | None = None) -> list[Page]:
    """The record's pages as they were measured, or as ``file`` has them, proved by their hash.

    Raises `OcrPhasesError` where the file has another number of pages or other ones, and where no
    file is named and the record holds a page not at all, or only as a smaller copy.
    """
    if file is not None:
        return _pages_in_file(str(file), record.pages)
    pages: list[Page] = []
    for number, known in enumerate(record.pages):
        page = record.page_data(number)
        if page is None:
            raise OcrPhasesError(
                f"The page {known.file} is not in the record: name its file beside --from to "
                "repeat it."
            )
        if not _is_page(page, known):
            raise OcrPhasesError(
                f"The page {known.file} is only as a smaller copy in the record: name its file "
                "beside --from to repeat it."
            )
        pages.append(page)
    return pages


def _pages_in_file(file: str, recorded: Sequence[PagePart]) -> list[Page]:
    """The pages of a file; `OcrPhasesError` where they are not the recorded ones."""
    pages = each_page(file)
    if len(pages) != len(recorded):
        raise OcrPhasesError(
            f"{file} does not stand for the {len(recorded):,} pages of the record."
        )
    for page, known in zip(pages, recorded, strict=True):
        if not _is_page(page, known):
            raise OcrPhasesError(f"{page} is not the page of the record, {known.file}.")
    return list(pages)


def _is_page(page: Page, known: PagePart) -> bool:
    """Whether a page at hand is the recorded one."""
    described = describe_page(*load_page(page), embed=False)
    return page_id(described["file"], described["sha256"]) == page_id(known.file, known.sha256)


def load_recorded(
    record: PhaseRun,
    *,
    model: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> OCRSession:
    """Load the model that a record was measured with.

    Parameters
    ----------
    record : PhaseRun
        The record.
    model : str, optional
        The checkpoint, where it has moved; it must be the very one. Only what you name is fetched
        from the hub, so a record of a hub's model needs it.
    device : str, default "auto"
        Where to run, as for `OCRSession.load`.
    trust_remote_code : bool, default False
        Allow the checkpoint's Python files to run: a record of the vendor's class needs it.

    Returns
    -------
    OCRSession
        A session of the same weights, dtype, attention and implementation.

    Raises
    ------
    OcrPhasesError
        Where the record does not say which model it was, where that is not on this machine, and
        where its revision differs.
    """
    known = record.model
    source = _required(known.source, "source")
    revision = _required(known.revision, "revision")
    implementation = _required(known.implementation, "implementation")
    if source == AT_HAND:
        raise OcrPhasesError(
            f"The record is of a model object: give {known.name} to OCRSession.from_model again."
        )
    # A folder is known by its content, a hub id by its commit, and what is built in by its name.
    is_folder = revision.startswith("sha256:") and source != BUILT_IN
    place = source if is_folder else known.name
    if model is None and not _is_here(place, is_folder=is_folder):
        raise OcrPhasesError(
            f"The record's model {place} is not on this machine: name it with --model."
        )
    is_commit = not revision.startswith(("sha256:", "seed:"))
    settings = ModelSettings(
        model=model or place,
        device=device,
        trust_remote_code=trust_remote_code,
        dtype=known.dtype,  # type: ignore[arg-type]  # what a file says is checked here
        attention=known.attention,  # type: ignore[arg-type]
        implementation=implementation,  # type: ignore[arg-type]
        cuda_calls=known.cuda_calls or "refuse",  # type: ignore[arg-type]
        revision=revision if is_commit else None,
    )
    session = OCRSession.load(**vars(settings))
    if session.checkpoint.revision != revision:
        raise OcrPhasesError(
            f"The weights of {known.name} were {_short(revision)}, and here they are "
            f"{_short(session.checkpoint.revision)}: name the same weights (--model)."
        )
    return session


def _required(value: str | None, name: str) -> str:
    """An entry of a record's model; `OcrPhasesError` where the record lacks it."""
    if not value:
        raise OcrPhasesError(f"The record does not say which model to repeat it with (no {name}).")
    return value


def _is_here(place: str, *, is_folder: bool) -> bool:
    """Whether a model can be loaded from this machine alone."""
    if is_folder:
        return os.path.isdir(place)  # noqa: PTH112 (a name too long for a path is no error to it)
    return place.split(":")[0] in ("tiny", "dummy")


def _short(revision: str) -> str:
    """A revision in a sentence, cut where it is long."""
    if len(revision) <= _SHOWN_REVISION:
        return revision
    return f"{revision[:_SHOWN_REVISION]}…"
