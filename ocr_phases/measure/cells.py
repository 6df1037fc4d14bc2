"""One cell of a sweep: its settings, its measurement, and what is kept of it.

The record of a cell lies beside a status (`ocr_phases.record.store`) that says for what it was
measured. A record that was measured with other settings or versions moves into ``earlier/``. A cell
that cannot be measured leaves its reason in its status.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import reserved
from ocr_phases.measure.loaded_model import LoadedModel, free_memory
from ocr_phases.measure.measurement import Measurement
from ocr_phases.measure.verdicts import one_sentence
from ocr_phases.record.schema import Truth
from ocr_phases.record.store import (
    CELL_STATUS,
    CellStatus,
    file_hash,
    is_finished,
    read_status,
    short_hash,
    write_failure,
    write_status,
)
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import RunSettings, Settings

#: What all records of a folder share.
_SUBJECT = ("page", "model", "device", "attention", "dtype")
#: What those share, too, whose cells are not asked for now.
REQUEST = ("prompt", "repeats", "warmup", "seed", "ignore_eos")
#: The same of a request, which a sweep has only where it was given.
_WHERE_GIVEN = ("infer", "threads")
#: What a cell has of its own.
OF_CELL = ("preset", "strategy", "batch", "max_new_tokens", "vision", "attention", "dtype")

#: Called as ``on_run(cell, runs done, runs in all)``.
OnRun = Callable[["Cell", int, int], None]


class ModelChanges(NamedTuple):
    """What a cell's model has instead of its own; None is what the model has."""

    attention: str | None = None
    dtype: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cell(Settings):
    """One combination, with all settings of its run; ``batch`` copies of the page side by side.

    Of the settings of a model it has ``attention`` and ``dtype``, None for those that the model is
    loaded with; which model, and where, is said by what loads it.
    """

    batch: Annotated[int, Meta(ge=1, le=1_000)] = 1

    @property
    def name(self) -> str:
        """The name of its files; what is the model's own, and eager vision, are not in it."""
        name = f"{self.preset}-{self.strategy}-b{self.batch}-n{self.max_new_tokens}"
        if self.vision != "eager":
            name += f"-vision-{self.vision}"
        if self.attention is not None:
            name += f"-attention-{self.attention}"
        if self.dtype is not None:
            name += f"-dtype-{self.dtype}"
        return name

    @property
    def changes(self) -> ModelChanges:
        """What its model has instead of its own."""
        return ModelChanges(self.attention, self.dtype)


class CellOutcome(NamedTuple):
    """What became of a cell.

    ``state`` is ``measured``, ``kept`` (it was there already) or ``failed``, with its ``reason``.
    ``run`` is what is to be saved.
    """

    cell: Cell
    state: str
    reason: str = ""
    run: PhaseRun | None = None


class CellFiles:
    """The files of one cell in a sweep's ``runs`` folder: its record and its status.

    ``shared`` is all that the sweep's cells depend on besides their own settings.
    ``earlier_status`` is the status that was there before, None where there was none or it is
    damaged.
    """

    def __init__(
        self,
        runs: Path,
        cell: Cell,
        shared: Mapping[str, Any],
        earlier_status: CellStatus | None,
    ) -> None:
        self.record = runs / f"{cell.name}.json"
        self._path = runs / f"{cell.name}{CELL_STATUS}"
        asked = {**shared, "cell": {name: getattr(cell, name) for name in OF_CELL}}
        self._status: dict[str, Any] = {"asked": asked, "id": short_hash(asked)}
        self._earlier_status = earlier_status

    @property
    def is_finished(self) -> bool:
        """Whether the record is there, as it was measured, for what is asked now."""
        return is_finished(self._earlier_status, self.record, self._status["id"])

    @property
    def earlier_failure(self) -> str | None:
        """Why this very cell could not be measured before; None where it was not tried."""
        earlier = self._earlier_status
        if earlier is None or earlier["id"] != self._status["id"] or earlier["state"] != "failed":
            return None
        return earlier["reason"]

    def move_earlier_record(self) -> None:
        """Move a record of other settings or versions, or a damaged one, out of the way."""
        if self.record.exists():
            with reserved(self.record.parent / "earlier" / self.record.name) as earlier:
                self.record.replace(earlier)

    def save(self, run: PhaseRun, truth: Truth | None) -> None:
        """Write the record, with the page's ``truth`` if there is one, and then its status."""
        if truth is not None:
            run = run.with_truth(truth)
        run.save(self.record)
        done = {"state": "done", "reason": "", "record": file_hash(self.record)}
        write_status(self._path, {**self._status, **done})

    def save_failure(self, reason: str) -> None:
        """Write why the cell could not be measured."""
        write_failure(self._path, reason, self._status)


def measure_cell(
    model: LoadedModel, page: str | Path, cell: Cell, on_run: OnRun | None = None
) -> CellOutcome:
    """Measure a cell with a model that has its attention and dtype: ``measured`` or ``failed``."""
    names = [setting.name for setting in fields(RunSettings)]
    values = {name: getattr(cell, name) for name in names}
    # A batch would hold the page as often as it has rows.
    values["embed_page"] = cell.batch == 1
    progress = _no_progress if on_run is None else partial(on_run, cell)
    try:
        measurement = Measurement(model, [page] * cell.batch, RunSettings(**values))
        return CellOutcome(cell, "measured", run=measurement.run(progress=progress))
    except (OcrPhasesError, RuntimeError) as error:
        return failed_outcome(cell, error)


def failed_outcome(cell: Cell, error: Exception) -> CellOutcome:
    """The outcome of a cell that could not be loaded or measured."""
    return CellOutcome(cell, "failed", one_sentence(error))


def _no_progress(done: int, total: int) -> None:
    """Tells nobody: the bar of a sweep counts cells."""


def read_statuses(
    runs: Path, shared: Mapping[str, Any], again: set[str]
) -> dict[str, CellStatus | None]:
    """The statuses in a folder by their cells' names; None for a damaged one.

    A folder is one sweep: records of something else in it are not written over, nor put beside
    others. Cells of the names in ``again`` are measured again where only their settings were
    others. Raises `OcrPhasesError` for the sweep of something else, and for a file that is no
    cell's.
    """
    statuses: dict[str, CellStatus | None] = {}
    for path in sorted(runs.glob("*.json")):
        name = path.name.removesuffix(CELL_STATUS).removesuffix(".json")
        if name in statuses:
            continue
        status = None
        with contextlib.suppress(OcrPhasesError):
            status = read_status(path.with_name(f"{name}{CELL_STATUS}"), CellStatus)
        statuses[name] = status
        if status is None and name not in again:
            raise OcrPhasesError(
                f"{path} is no finished cell of a sweep: move it to another folder."
            )
        if status is not None:
            must_agree = _SUBJECT if name in again else (*_SUBJECT, *REQUEST, *_WHERE_GIVEN)
            _check_same_sweep(runs.parent, status["asked"], shared, must_agree)
    return statuses


def _check_same_sweep(
    folder: Path, recorded: Mapping[str, Any], shared: Mapping[str, Any], names: tuple[str, ...]
) -> None:
    """Raise `OcrPhasesError` where a folder has a cell of another page, model or request."""
    for name in names:
        wanted = shared.get(name)
        # Another entry is missing only in the file of an older version, which did not keep it.
        if name not in recorded and name not in _WHERE_GIVEN:
            continue
        before = recorded.get(name)
        if before == wanted:
            continue
        difference = f"{name} {before}; you asked for {wanted}"
        if name == "page":  # it is known by its hash, which would tell nobody anything
            difference = "another page"
        raise OcrPhasesError(
            f"{folder} holds a sweep with {difference}: choose another folder (--out)."
        )


def check_device(device: str, failed: CellOutcome) -> None:
    """Free what a failed run held, which the next cell needs; raise where the device is lost.

    An error that ended the CUDA context would be every other cell's, too.
    """
    try:
        free_memory()
        torch.zeros(1, device=device).tolist()
    except RuntimeError as lost:
        raise OcrPhasesError(
            f"{device} cannot be used any more here ({failed.cell.name} failed with "
            f"{failed.reason}): finished cells are kept, a new process measures the rest."
        ) from lost
