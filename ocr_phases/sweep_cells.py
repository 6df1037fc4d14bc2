"""A sweep: one page at every combination of preset, strategies, batch size and length, a record a cell.

Records lie in ``DIR/runs/``. The same sweep again measures only what is missing there, or what was measured
with another request, other weights or other versions, whose record moves into ``DIR/runs/earlier/``. A cell
that cannot be measured leaves its reason.
"""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypedDict

import torch

from ocr_phases.analyse.truths import load_truth
from ocr_phases.collectors import environment
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FamilyFacts, check_preset
from ocr_phases.files import only_writer, output_folder, read_regular, reserved, write_atomic
from ocr_phases.inputs.images import load_page
from ocr_phases.models.load import LoadedModel
from ocr_phases.record import PhaseRun, describe_page
from ocr_phases.schema import Truth, conform, parse_json
from ocr_phases.settings import MOST_TOKENS, STRATEGIES, VISIONS
from ocr_phases.text import nearest

RUNS = "runs"
FAILED = ".failed.json"
EARLIER = "earlier"


class MeasuringModel(LoadedModel, Protocol):
    """What a sweep needs of a session."""

    def run_inference(self, page: Any, prompt: str, **settings: Any) -> PhaseRun:
        """`OCRSession.run_inference`."""


@dataclass(frozen=True)
class Cell:
    """One combination; ``batch`` copies of the page side by side, ``max_new_tokens`` for each."""

    preset: str
    strategy: str
    batch: int
    max_new_tokens: int
    vision: str = "eager"

    @property
    def name(self) -> str:
        """The name of its files; eager vision is not in it."""
        name = f"{self.preset}-{self.strategy}-b{self.batch}-n{self.max_new_tokens}"
        return name if self.vision == "eager" else f"{name}-vision-{self.vision}"


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell: ``measured``, ``kept`` (it was there already) or ``failed``, with its reason."""

    cell: Cell
    state: str
    reason: str = ""


def make_cells(
    presets: Sequence[str],
    strategies: Sequence[str],
    batches: Sequence[int],
    lengths: Sequence[int],
    visions: Sequence[str] = ("eager",),
) -> list[Cell]:
    """Every combination once; `OcrPhasesError` for what no sweep could measure."""
    for what, asked in (
        ("preset", presets),
        ("strategy", strategies),
        ("vision", visions),
        ("batch size", batches),
        ("number of new tokens", lengths),
    ):
        if isinstance(asked, str | int):
            raise OcrPhasesError(f"Give a list of each {what}, like [{asked!r}].")
    for preset in presets:
        check_preset(preset)
    for what, names, known in (("strategy", strategies, STRATEGIES), ("vision", visions, VISIONS)):
        for name in names:
            if name not in known:
                hint = nearest(name, known)
                raise OcrPhasesError(f"Unknown {what} {name!r}: use {' or '.join(known)}.{hint}")
    for name, values, most in (
        ("batch size", batches, 1_000),
        ("number of new tokens", lengths, MOST_TOKENS),
    ):
        for value in values:
            if not isinstance(value, int) or not 1 <= value <= most:
                raise OcrPhasesError(f"{value!r} is no {name}: give a whole number from 1 to {most:,}.")
    combined = itertools.product(presets, strategies, batches, lengths, visions)
    cells = list(dict.fromkeys(Cell(*values) for values in combined))
    if not cells:
        raise OcrPhasesError(
            "A sweep needs at least one preset, strategy, batch size, number of tokens and way of vision."
        )
    return cells


def run_sweep(
    session: MeasuringModel,
    page: str | Path,
    cells: Sequence[Cell],
    folder: str | Path,
    *,
    prompt: str = "markdown",
    repeats: int = 3,
    warmup: int = 1,
    seed: int = 0,
    ignore_eos: bool | None = None,
    truth: str | Path | None = None,
    retry_failed: bool = False,
    progress: Callable[[CellOutcome], None] | None = None,
    on_run: Callable[[Cell, int, int], None] | None = None,
) -> list[CellOutcome]:
    """Measure the cells that ``folder`` lacks and say what became of all.

    Each has the end token ignored, unless ``ignore_eos`` is false or ``truth`` says what the page says: then
    the length is a limit, the texts are compared, and each record keeps the truth (a path for
    `ocr_phases.analyse.truths.load_truth`). A record is written as soon as its cell is done,
    ``progress`` is told of every cell, and ``on_run(cell, runs done, runs in all)`` of every run within one.
    A cell that failed before is left alone unless ``retry_failed`` or something it depends on has changed.

    Raises `OcrPhasesError` where the folder holds the sweep of another page, model or device, or cells, not
    asked for now, with another prompt, seed or number of repeats; where it cannot be written, or is being
    written by another process.
    """
    runs = output_folder(Path(folder) / RUNS)
    cells = list(dict.fromkeys(_named_by(session.family.facts, cell) for cell in cells))
    image, data, name = load_page(page)
    said = None if truth is None else load_truth(truth, name)
    ignored = truth is None if ignore_eos is None else ignore_eos
    options: dict[str, Any] = {"repeats": repeats, "warmup": warmup, "seed": seed, "ignore_eos": ignored}
    asked_of_all = {
        "page": describe_page(image, data, name, embed=False)["sha256"],
        "model": session.checkpoint.name,
        "dtype": str(session.dtype).removeprefix("torch."),
        "device": environment.describe_device(session.device)["name"],
        "revision": session.checkpoint.revision,
        "versions": _deciding(environment.versions()),
        "prompt": session.family.facts.text_of(prompt),
        **options,
    }
    outcomes = []
    with only_writer(runs.parent):
        _same_subject(runs, asked_of_all, {cell.name for cell in cells})
        for cell in cells:
            asked = {**asked_of_all, **asdict(cell)}
            outcome = _known(runs, cell, asked, retry_failed)
            if outcome is None:
                callback = {} if on_run is None else {"progress": partial(on_run, cell)}
                outcome = _measure(session, page, cell, asked, runs, prompt, {**options, **callback})
            if said is not None and outcome.state != "failed":
                _keep_truth(runs / f"{cell.name}.json", said)
            outcomes.append(outcome)
            if progress is not None:
                progress(outcome)
    return outcomes


def _named_by(family: FamilyFacts, cell: Cell) -> Cell:
    """The cell with the family's own name of its preset; a preset that it has not fails when it is run."""
    name = family.stands_for.get(cell.preset, cell.preset)
    return replace(cell, preset=name)


def _measure(
    session: MeasuringModel,
    page: str | Path,
    cell: Cell,
    asked: dict[str, Any],
    runs: Path,
    prompt: str,
    options: dict[str, Any],
) -> CellOutcome:
    failed = runs / f"{cell.name}{FAILED}"
    try:
        run = session.run_inference(
            [page] * cell.batch,
            prompt,
            preset=cell.preset,
            max_new_tokens=cell.max_new_tokens,
            strategy=cell.strategy,
            vision=cell.vision,
            embed_page=cell.batch == 1,  # a batch would hold it as often as it has rows
            token_probabilities=False,  # which nothing of a sweep shows
            **options,
        )
    except (OcrPhasesError, RuntimeError) as error:
        reason = one_sentence(error)
    else:
        target = runs / f"{cell.name}.json"
        if target.exists():  # measured with other settings or versions
            with reserved(runs / EARLIER / target.name) as earlier:
                target.replace(earlier)
        run.save(target)
        failed.unlink(missing_ok=True)
        return CellOutcome(cell, "measured")
    kept = {"cell": asdict(cell), "created": environment.now(), "reason": reason, "asked": asked}
    write_atomic(failed, json.dumps(kept, ensure_ascii=False, indent=1).encode() + b"\n")
    try:
        # What failed for want of memory must not keep it from the next cell.
        free_memory(session.device)
        torch.zeros(1, device=session.device).tolist()
    except RuntimeError as lost:  # an error that ended the CUDA context, and would be every other cell's
        raise OcrPhasesError(
            f"{session.device} cannot be used any more in this process ({cell.name} failed with {reason}): "
            "finished cells are kept, the same sweep in a new process measures the rest."
        ) from lost
    return CellOutcome(cell, "failed", reason)


def _keep_truth(path: Path, said: Truth) -> None:
    """Add what the page says to a record, unless it has it."""
    run = PhaseRun.load(path)
    if run.truth_of() != said:
        write_atomic(path, run.with_truth(said).to_json())


def one_sentence(error: Exception) -> str:
    """Why something could not be measured, as one line; an error that is not the package's says its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "no message"
    return text if isinstance(error, OcrPhasesError) else f"{type(error).__name__}: {text[:300]}"


def free_memory(device: str) -> None:
    """Give back what a failed run still holds."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def _known(runs: Path, cell: Cell, asked: dict[str, Any], retry_failed: bool) -> CellOutcome | None:
    """What the folder has for a cell, as far as it answers what is asked now."""
    path, failed = runs / f"{cell.name}.json", runs / f"{cell.name}{FAILED}"
    if path.exists():
        run = _loaded(path)
        if run is not None and _answered(run) == asked:
            return CellOutcome(cell, "kept")
    if failed.exists() and not retry_failed:
        try:
            before = parse_json(read_regular(failed))
            conform(before, _Failure)
        except (OSError, OcrPhasesError):  # damaged: the cell is tried again
            return None
        if {"vision": "eager", "ignore_eos": True, **before["asked"]} == asked:  # files of older sweeps
            return CellOutcome(cell, "failed", before["reason"])
    return None


class _Failure(TypedDict):
    """What is needed of a cell's failure file."""

    reason: str
    asked: dict[str, Any]


def _answered(run: PhaseRun) -> dict[str, Any]:
    """What a record was asked for, in the terms of a sweep."""
    request = run.request
    return {
        "page": run.page["sha256"],
        "model": run.model["name"],
        "dtype": run.model["dtype"],
        "device": run.device["name"],
        "revision": run.model.get("revision"),
        "versions": _deciding(run.versions),
        "prompt": request["prompts"][0],
        **{name: request.get(name) for name in ("repeats", "warmup", "seed", "ignore_eos")},
        **{name: request.get(name) for name in ("preset", "strategy", "batch", "max_new_tokens")},
        "vision": request["vision"],
    }


def _deciding(versions: dict[str, Any]) -> dict[str, Any]:
    """Without the commit: the code's hash tells more of what runs, and a commit may change nothing of it."""
    return {name: value for name, value in versions.items() if name != "git"}


def _same_subject(runs: Path, asked: dict[str, Any], again: set[str]) -> None:
    """A folder is one sweep: records of something else in it are not written over, nor put beside others.

    Cells of the names in ``again`` are measured again where only their settings were others.
    """
    for path in sorted(runs.glob("*.json")):
        run = None if path.name.endswith(FAILED) else _loaded(path)
        if run is None:
            continue
        answered = _answered(run)
        settings = () if path.stem in again else ("prompt", "repeats", "warmup", "seed", "ignore_eos")
        for name in ("page", "model", "device", "dtype", *settings):
            if answered[name] != asked[name]:
                had, wanted = f"{name} {answered[name]}", f"; you asked for {asked[name]}"
                if name == "page":  # which is known by its hash
                    had, wanted = "another page", ""
                raise OcrPhasesError(
                    f"{runs.parent} holds a sweep with {had}{wanted}: choose another folder (--out)."
                )


def _loaded(path: Path) -> PhaseRun | None:
    """A record of the folder, or None for a file that is none: its cell is then measured again."""
    try:
        return PhaseRun.load(path)
    except OcrPhasesError:
        return None
