"""Repeats the measurement in a record on this machine: same page, same model, same request."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import each_page, split_page
from ocr_phases.inputs.images import load_page
from ocr_phases.record import PhaseRun, describe_page
from ocr_phases.request import Page
from ocr_phases.session import OCRSession
from ocr_phases.settings import REQUEST_SETTINGS, RunSettings


def repeat_run(
    record: PhaseRun,
    *,
    page: str | Path | None = None,
    model: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    **options: Any,
) -> PhaseRun:
    """Measure again what ``record`` measured, with every setting of its request.

    ``page`` names the page's file where the record does not hold it, ``model`` the checkpoint where it has
    moved; both must be the very ones. A record of the vendor's class needs ``trust_remote_code``. ``options``
    are `run_inference`'s callbacks and the settings that a request does not have. Raises `OcrPhasesError`
    where page or model cannot be had or differ.
    """
    pages = recorded_pages(record, page)
    asked = record.request
    settings = {name: asked[name] for name in REQUEST_SETTINGS if name in asked and name != "prompt"}
    RunSettings(**settings)  # a wrong one is refused before the model is loaded
    session = load_recorded(record, model=model, device=device, trust_remote_code=trust_remote_code)
    prompts = record.request["prompts"]
    run = session.run_inference(
        pages if len(pages) > 1 else pages[0],
        prompts if len(set(prompts)) > 1 else record.request["prompt"],
        **settings,
        **options,
    )
    names = [{**new, "file": old["file"]} for new, old in zip(run.pages, record.pages, strict=True)]
    return replace(run, pages=names)


def recorded_pages(record: PhaseRun, file: str | Path | None = None) -> list[Page]:
    """The record's pages as they were measured, or as ``file`` has them, proved by their hash."""
    if file is not None:
        files = each_page(str(file))
        if len(files) != len(record.pages):
            raise OcrPhasesError(f"{file} does not stand for the {len(record.pages):,} pages of the record.")
        for one, recorded in zip(files, record.pages, strict=True):
            found = describe_page(*load_page(one), embed=False)
            numbers = {split_page(page["file"])[1] for page in (found, recorded)} - {""}
            if found["sha256"] != recorded["sha256"] or len(numbers) > 1:
                raise OcrPhasesError(f"{one} is not the page of the record, {recorded['file']}.")
        return list(files)
    pages: list[Page] = []
    for number, page in enumerate(record.pages):
        kept = record.page_data(number)
        if kept is None or hashlib.sha256(kept).hexdigest() != page["sha256"]:
            what = "not" if kept is None else "only as a smaller copy"
            raise OcrPhasesError(
                f"The page {page['file']} is {what} in the record: name its file beside --from to repeat it."
            )
        pages.append(kept)
    return pages


def load_recorded(
    record: PhaseRun, *, model: str | None = None, device: str = "auto", trust_remote_code: bool = False
) -> OCRSession:
    """Load the record's model, or ``model`` in its place; `OcrPhasesError` where its revision differs.

    Only what you name is fetched from the hub, so a record of a hub's model needs ``model``.
    """
    known = record.model
    missing = [name for name in ("source", "revision", "implementation") if name not in known]
    if missing:
        raise OcrPhasesError(f"The record does not say which model to repeat it with (no {missing[0]}).")
    revision = known["revision"]
    # A folder is known by its content, a hub id by its commit, and what is built in by its name.
    local = revision.startswith("sha256:") and known["source"] != "built-in"
    pinned = None if revision.startswith(("sha256:", "seed:")) else revision
    options: dict[str, Any] = {"device": device, "dtype": known["dtype"], "revision": pinned}
    options["attention"] = known.get("attention")
    if known["implementation"] != "native":
        options |= {"implementation": known["implementation"], "trust_remote_code": trust_remote_code}
        options["cuda_calls"] = known.get("cuda_calls") or "refuse"
    source = known["source"] if local else known["name"]
    here = os.path.isdir(source) if local else source.split(":")[0] in ("tiny", "dummy")  # noqa: PTH112
    if model is None and not here:
        raise OcrPhasesError(f"The record's model {source} is not on this machine: name it with --model.")
    session = OCRSession.load(model or source, **options)
    if session.checkpoint.revision != revision:
        raise OcrPhasesError(
            f"The record was made with {known['name']} at {_short(revision)}, here it is at "
            f"{_short(session.checkpoint.revision)}: repeat it with the same weights (--model)."
        )
    return session


def _short(revision: str) -> str:
    return revision if len(revision) <= 24 else f"{revision[:20]}…"
