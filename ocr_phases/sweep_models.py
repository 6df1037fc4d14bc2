"""A sweep: one page at every combination of preset, strategies, batch size and length, for one model or more.

Records lie in ``DIR/runs/``, each with a status (`ocr_phases.store`) that says for what it was measured. The
same sweep again measures only what is missing there, or what was measured with another request, other weights
or other versions, whose record moves into ``DIR/runs/earlier/``. A cell that cannot be measured leaves its
reason in its status.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from ocr_phases.collectors import machine
from ocr_phases.errors import OcrPhasesError, checked
from ocr_phases.files import TemporaryFolder, only_writer, output_folder, reserved
from ocr_phases.inputs.images import load_page
from ocr_phases.record import PhaseRun, describe_page, elsewhere
from ocr_phases.schema import Truth
from ocr_phases.settings import MOST_TOKENS, ModelSettings, RunSettings
from ocr_phases.store import (
    CELL_STATUS,
    CellStatus,
    asked_id,
    fail,
    file_hash,
    finished,
    read_status,
    write_status,
)

RUNS = "runs"
_EARLIER = "earlier"
#: What all records of a folder share, and what those share that are not asked for now.
_SUBJECT = ("page", "model", "device", "dtype")
_REQUEST = ("prompt", "repeats", "warmup", "seed", "ignore_eos")
_MOST_ROWS = 1_000
#: The keywords of `make_cells`.
AXES = ("presets", "strategies", "batches", "lengths", "visions")


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

    @property
    def settings(self) -> dict[str, Any]:
        """The keywords of `OCRSession.run_inference`."""
        return {name: value for name, value in asdict(self).items() if name != "batch"}


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell: ``measured``, ``kept`` (it was there already) or ``failed``, with its reason."""

    cell: Cell
    state: str
    reason: str = ""


def make_cells(
    *,
    presets: Sequence[str] = ("tiny", "base"),
    strategies: Sequence[str] = ("eager",),
    batches: Sequence[int] = (1,),
    lengths: Sequence[int] = (32,),
    visions: Sequence[str] = ("eager",),
) -> list[Cell]:
    """Every combination once; `OcrPhasesError` for what no sweep could measure.

    ``batches`` are copies of the page side by side, ``lengths`` new tokens of each row.
    """
    axes: dict[str, Sequence[Any]] = {
        "preset": presets,
        "strategy": strategies,
        "batch size": batches,
        "number of new tokens": lengths,
        "vision": visions,
    }
    for what, values in axes.items():
        if isinstance(values, str | int):
            raise OcrPhasesError(f"Give a list of each {what}, like [{values!r}].")
    cells = [Cell(*values) for values in itertools.product(*axes.values())]
    if not cells:
        raise OcrPhasesError(f"A sweep needs at least one {', '.join(axes)}.")
    for cell in cells:
        for what, count, most in (
            ("batch size", cell.batch, _MOST_ROWS),
            ("number of new tokens", cell.max_new_tokens, MOST_TOKENS),
        ):
            if not isinstance(count, int) or not 1 <= count <= most:
                raise OcrPhasesError(f"{count!r} is no {what}: give a whole number from 1 to {most:,}.")
        RunSettings(**cell.settings)
    return list(dict.fromkeys(cells))


def run_sweep(
    session: Any,
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
    """Measure with an `OCRSession` the cells that ``folder`` lacks and say what became of all.

    Each has the end token ignored, unless ``ignore_eos`` is false or ``truth`` says what the page says: then
    the length is a limit, the texts are compared, and each record keeps the truth (a path for
    `ocr_phases.analyse.truths.load_truth`). A record is written as soon as its cell is done,
    ``progress`` is told of every cell, and ``on_run(cell, runs done, runs in all)`` of every run within one.
    A cell that failed before is left alone unless ``retry_failed`` or something it depends on has changed.

    Raises `OcrPhasesError` where the folder holds the sweep of another page, model or device, cells, not
    asked for now, with another prompt, seed or number of repeats, or a file that is no cell's; where it
    cannot be written, or is being written by another process; where an error ended the device's context.
    """
    runs, facts = output_folder(Path(folder) / RUNS), session.family.facts
    # A family's own name of a preset; one that it has not fails when it is run.
    cells = [replace(cell, preset=facts.stands_for.get(cell.preset, cell.preset)) for cell in cells]
    image, data, name = load_page(page)
    said = None if truth is None else elsewhere("analyse.truths.load_truth")(truth, name)
    ignored = truth is None if ignore_eos is None else ignore_eos
    options: dict[str, Any] = {"repeats": repeats, "warmup": warmup, "seed": seed, "ignore_eos": ignored}
    asked = {
        "page": describe_page(image, data, name, embed=False)["sha256"],
        "model": session.checkpoint.name,
        "device": machine.describe_device(session.device)["name"],
        "dtype": str(session.dtype).removeprefix("torch."),
        "revision": session.checkpoint.revision,
        # The code's hash tells more of what runs than a commit, which may change nothing of it.
        "versions": {name: value for name, value in machine.versions().items() if name != "git"},
        "prompt": facts.text_of(prompt),
        **options,
    }
    outcomes = []
    with only_writer(runs.parent):
        _check_folder(runs, asked, {cell.name for cell in cells})
        for cell in dict.fromkeys(cells):
            stored = _Stored(runs, cell, asked)
            outcome = stored.outcome(retry_failed)
            if outcome is None:
                callback = {} if on_run is None else {"progress": partial(on_run, cell)}
                outcome = stored.measure(session, page, said, prompt=prompt, **options, **callback)
            elif outcome.state == "kept":
                stored.add_truth(said)
            outcomes.append(outcome)
            if progress is not None:
                progress(outcome)
    return outcomes


class _Stored:
    """What the folder ``runs`` has of a cell: its record, and the status that says what was asked."""

    def __init__(self, runs: Path, cell: Cell, asked: Mapping[str, Any]) -> None:
        self.cell = cell
        self.record = runs / f"{cell.name}.json"
        self.path = runs / f"{cell.name}{CELL_STATUS}"
        self.status: dict[str, Any] = {"asked": {**asked, **asdict(cell)}, "cell": asdict(cell)}
        self.status["id"] = asked_id(self.status["asked"])

    def outcome(self, retry_failed: bool) -> CellOutcome | None:
        """What became of it, as far as that answers what is asked now."""
        with contextlib.suppress(OcrPhasesError):  # damaged: it is measured again
            status = read_status(self.path, CellStatus)
            if finished(status, self.record, self.status["id"]):
                return CellOutcome(self.cell, "kept")
            if status and (status["id"], status["state"]) == (self.status["id"], "failed"):
                return None if retry_failed else CellOutcome(self.cell, "failed", status["reason"])
        return None

    def measure(self, session: Any, page: str | Path, truth: Truth | None, **options: Any) -> CellOutcome:
        """Measure it and keep the record, or why there is none."""
        if self.record.exists():  # measured with other settings or versions, or damaged
            with reserved(self.record.parent / _EARLIER / self.record.name) as earlier:
                self.record.replace(earlier)
        # A batch would hold the page as often as it has rows, and nothing of a sweep shows probabilities.
        options |= {"embed_page": self.cell.batch == 1, "token_probabilities": False}
        try:
            run = session.run_inference([page] * self.cell.batch, **self.cell.settings, **options)
        except (OcrPhasesError, RuntimeError) as error:
            reason = one_sentence(error)
        else:
            self.keep(run, truth)
            return CellOutcome(self.cell, "measured")
        fail(self.path, reason, self.status)
        try:
            # What failed for want of memory must not keep it from the next cell.
            free_memory(session.device)
            torch.zeros(1, device=session.device).tolist()
        except RuntimeError as lost:  # an error that ended the CUDA context, and would be every other cell's
            raise OcrPhasesError(
                f"{session.device} cannot be used any more in this process ({self.cell.name} failed with "
                f"{reason}): finished cells are kept, the same sweep in a new process measures the rest."
            ) from lost
        return CellOutcome(self.cell, "failed", reason)

    def keep(self, run: PhaseRun, truth: Truth | None) -> None:
        """Write the record, with what the page says, and last its status."""
        run = run if truth is None else run.with_truth(truth)
        run.save(self.record)
        done = {"state": "done", "reason": "", "record": file_hash(self.record), "truth": _truth_id(truth)}
        write_status(self.path, {**self.status, **done})

    def add_truth(self, truth: Truth | None) -> None:
        """Put what the page says into a record that is kept, unless it has it."""
        status = read_status(self.path, CellStatus)
        if truth is not None and status is not None and status["truth"] != _truth_id(truth):
            self.keep(PhaseRun.load(self.record), truth)


def _truth_id(truth: Truth | None) -> str | None:
    return None if truth is None else asked_id(msgspec.to_builtins(truth))


def _check_folder(runs: Path, asked: Mapping[str, Any], again: set[str]) -> None:
    """A folder is one sweep: records of something else in it are not written over, nor put beside others.

    Cells of the names in ``again`` are measured again where only their settings were others.
    """
    for path in sorted(runs.glob("*.json")):
        name = path.name.removesuffix(CELL_STATUS).removesuffix(".json")
        status = None
        with contextlib.suppress(OcrPhasesError):  # damaged
            status = read_status(path.with_name(f"{name}{CELL_STATUS}"), CellStatus)
        if status is None and name not in again:
            raise OcrPhasesError(f"{path} is no finished cell of a sweep: move it to another folder.")
        had = asked if status is None else status["asked"]
        for what in _SUBJECT if name in again else (*_SUBJECT, *_REQUEST):
            if had[what] != asked[what]:
                told = (
                    "another page" if what == "page" else f"{what} {had[what]}; you asked for {asked[what]}"
                )
                raise OcrPhasesError(
                    f"{runs.parent} holds a sweep with {told}: choose another folder (--out)."
                )


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


@checked(make_cells, run_sweep)
def sweep(
    page: str | Path,
    models: Sequence[str] = ("tiny",),
    *,
    folder: str | Path | None = None,
    load: Mapping[str, Any] | None = None,
    loading: Callable[[str], None] | None = None,
    **options: Any,
) -> Any:
    """Measure ``page`` with each of ``models`` at every combination, one model loaded at a time.

    ``load`` are settings of `OCRSession.load` for all of them, ``options`` and errors those of
    `OCRSession.sweep`; ``loading(name)`` is called before a model is loaded. A preset of another family is
    taken as the one that stands for it, or is a failed cell. Records of several models go into
    `model_folders` of ``folder``; without it nothing is written.
    """
    with contextlib.ExitStack() as stack:
        kept = Path(folder or stack.enter_context(TemporaryFolder()))
        places = model_folders(models, kept)
        # A wrong setting of any model is refused before the first is loaded.
        asked = [ModelSettings(model=name, **(load or {})) for name in models]
        for settings, place in zip(asked, places, strict=True):
            if loading is not None:
                loading(settings.model)
            session = elsewhere("session.OCRSession").load(**vars(settings))
            found = session.sweep(page, folder=place, **options)
            device = session.device
            del session
            free_memory(device)
        return found if len(places) == 1 else elsewhere("analyse.scaling.SweepResult").load(kept)


def model_folders(models: Sequence[str], folder: Path) -> list[Path]:
    """A folder a model, by its name in characters that every file system takes; ``folder`` for one model.

    Raises `OcrPhasesError` for no model, for one name in place of a list, for two of one folder, and where
    ``folder`` has the records of one model.
    """
    if isinstance(models, str) or not models:
        raise OcrPhasesError("Give a list of models, like ['dummy', 'dummy:unlimited-ocr'].")
    if len(models) == 1:
        return [folder]
    if (folder / RUNS).exists():
        raise OcrPhasesError(f"{folder} holds the sweep of one model: choose another folder (--out).")
    paths = [Path(model).expanduser() for model in models]
    called = [str(path.absolute().name if path.is_dir() else path) for path in paths]
    names = [re.sub(r"[^\w.=-]+", "-", name).strip("-.") for name in called]
    for name in names:
        if names.count(name) > 1:
            raise OcrPhasesError(f"Two of the models are called {name}: give them different names.")
    return [folder / name for name in names]
