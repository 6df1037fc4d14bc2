"""A sweep: one page at every combination of preset, strategies, batch size, length, attention and
dtype.

Records lie in ``DIR/runs/``, each with a status (`ocr_phases.record.store`) that says for what it
was measured. The same sweep again measures only what is missing there, or what was measured with
another request, other weights or other versions, whose record moves into ``DIR/runs/earlier/``. A
cell that cannot be measured leaves its reason in its status.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from msgspec import Meta

from ocr_phases.analyse.quality import load_truth
from ocr_phases.collectors import machine
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import TemporaryFolder, only_writer, output_folder, reserved
from ocr_phases.images import describe_page, load_page
from ocr_phases.measure.live_checks import one_sentence
from ocr_phases.measure.measurement import describe_model, page_id
from ocr_phases.measure.request import bar_in_cell
from ocr_phases.models.devices import release_memory
from ocr_phases.record.schema import Truth
from ocr_phases.record.store import (
    CELL_STATUS,
    CellStatus,
    asked_id,
    fail,
    file_hash,
    finished,
    read_status,
    write_status,
)
from ocr_phases.results.run import PhaseRun
from ocr_phases.results.sweep import SweepResult
from ocr_phases.settings import Settings

#: What all records of a folder share, and what those share that are not asked for now.
_SUBJECT = ("page", "model", "device", "attention", "dtype")
_REQUEST = ("prompt", "repeats", "warmup", "seed", "ignore_eos")
#: The lists of a `Sweep`, and what each is of in a `Cell`.
AXES = ("presets", "strategies", "batches", "lengths", "visions", "attentions", "dtypes")
_OF_CELL = ("preset", "strategy", "batch", "max_new_tokens", "vision", "attention", "dtype")


@dataclass(frozen=True, kw_only=True)
class Cell(Settings):
    """One combination, with all settings of its run; ``batch`` copies of the page side by side.

    Of the settings of a model it has ``attention`` and ``dtype``, None for those that the model is
    loaded with; which model, and where, is said by what loads it.
    """

    batch: Annotated[int, Meta(ge=1, le=1_000)] = 1

    @property
    def name(self) -> str:
        """The name of its files; eager vision and the model's own attention and dtype are not in
        it.
        """
        vision = {} if self.vision == "eager" else {"vision": self.vision}
        more = "".join(f"-{what}-{value}" for what, value in (vision | self.changes).items())
        return f"{self.preset}-{self.strategy}-b{self.batch}-n{self.max_new_tokens}{more}"

    @property
    def changes(self) -> dict[str, Any]:
        """The keywords of `OCRSession.with_model`."""
        return {name: value for name in ("attention", "dtype") if (value := getattr(self, name))}


class CellOutcome(NamedTuple):
    """What became of a cell: ``measured``, ``kept`` (it was there already) or ``failed``, with its
    reason.

    ``run`` is what is to be saved.
    """

    cell: Cell
    state: str
    reason: str = ""
    run: PhaseRun | None = None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep measures, and how: the keywords of `sweep` and of `OCRSession.sweep`.

    Every combination of the lists is a `Cell`: ``batches`` are copies of the page side by side,
    ``lengths`` new tokens of each row, ``attentions`` and ``dtypes`` those of `ModelSettings`, None
    what the model has.

    Each cell has the end token ignored, unless ``ignore_eos`` is false or ``truth`` says what the
    page says: then the length is a limit, the texts are compared, and each record keeps the truth
    (a path for `ocr_phases.analyse.quality.load_truth`). A record is written as soon as its cell is
    done, ``progress`` is told of every cell, and ``on_run(cell, runs done, runs in all)`` of every
    run within one. What ``folder`` has is not measured again, and a cell that failed before is left
    alone unless ``retry_failed`` or something it depends on has changed. Without a folder nothing
    is written.
    """

    page: str | Path
    presets: Sequence[str] = ("tiny", "base")
    strategies: Sequence[str] = ("eager",)
    batches: Sequence[int] = (1,)
    lengths: Sequence[int] = (32,)
    visions: Sequence[str] = ("eager",)
    attentions: Sequence[str | None] = (None,)
    dtypes: Sequence[str | None] = (None,)
    folder: str | Path | None = None
    prompt: str = "markdown"
    repeats: int = 3
    warmup: int = 1
    seed: int = 0
    ignore_eos: bool | None = None
    truth: str | Path | None = None
    retry_failed: bool = False
    progress: Callable[[CellOutcome], None] | None = None
    on_run: Callable[[Cell, int, int], None] | None = None

    @cached_property
    def cells(self) -> list[Cell]:
        """Every combination once; `OcrPhasesError` for what no sweep could measure."""
        lists = {name: getattr(self, name) for name in AXES}
        for name, values in lists.items():
            if not values or isinstance(values, str | int):
                raise OcrPhasesError(f"{name} is {values!r}: give a list of at least one.")
        # Nothing of a sweep shows probabilities.
        shared = {name: getattr(self, name) for name in _REQUEST} | {"token_probabilities": False}
        shared["ignore_eos"] = self.truth is None if self.ignore_eos is None else self.ignore_eos
        ways = (
            dict(zip(_OF_CELL, each, strict=True)) for each in itertools.product(*lists.values())
        )
        return list(dict.fromkeys(Cell(**shared, **way) for way in ways))

    @cached_property
    def subject(self) -> tuple[str, Truth | None]:
        """What the page is known by, and what it says."""
        page = describe_page(*load_page(self.page), embed=False)
        said = self.truth and load_truth(self.truth, page["file"])
        return page_id(page["file"], page["sha256"]), said or None

    def run(self, loads: Mapping[str, Callable]) -> SweepResult:
        """Measure the page at every cell: a `SweepResult`.

        ``loads`` has what loads each model, by the name of its folder in ``folder``: it gives an
        `OCRSession`, which is above this module, for the ``changes`` of a `Cell`. A session is let
        go before the next is loaded.

        Raises `OcrPhasesError` where the folder holds the sweep of another page, model or device,
        cells, not asked for now, with another prompt, seed or number of repeats, or a file that is
        no cell's; where it cannot be written, or is being written by another process; where an
        error ended the device's context.
        """
        _ = self.cells, self.subject  # what cannot be swept is refused before anything is loaded
        with TemporaryFolder() as spare:
            kept = Path(self.folder or spare)
            if len(loads) > 1 and (kept / "runs").exists():
                raise OcrPhasesError(
                    f"{kept} holds the sweep of one model: choose another folder (--out)."
                )
            for place, load in loads.items():
                runs = output_folder(kept / place / "runs")
                with only_writer(runs.parent):
                    outcomes = self._outcomes(runs, load)
                    for outcome in bar_in_cell(outcomes, "cell", len(self.cells), alike=False):
                        if self.progress is not None:
                            self.progress(outcome)
                free_memory()
            return SweepResult.load(kept)

    def _outcomes(self, runs: Path, load: Callable) -> Iterator[CellOutcome]:
        """Measure the cells of one model that ``runs`` lacks, and say what became of each."""
        sessions, truth = {(): load()}, self.subject[1]
        device, shared = sessions[()].device, self._shared(sessions[()])
        cells = _own_cells(self.cells, sessions[()].family.stands_for, shared)
        known = _known(runs, shared, {cell.name for cell in cells})
        for cell in cells:
            record, path = (runs / f"{cell.name}{ending}" for ending in (".json", CELL_STATUS))
            asked = {**shared, "cell": {name: getattr(cell, name) for name in _OF_CELL}}
            status: dict[str, Any] = {"asked": asked, "id": asked_id(asked)}
            had = known.get(cell.name)
            if finished(had, record, status["id"]):
                outcome = CellOutcome(cell, "kept", run=PhaseRun.load(record) if truth else None)
            elif (
                had
                and not self.retry_failed
                and (had["id"], had["state"]) == (status["id"], "failed")
            ):
                outcome = CellOutcome(cell, "failed", had["reason"])
            else:
                outcome = self._measured(cell, record, sessions, load)
                if outcome.run is None:
                    fail(path, outcome.reason, status)
                    _check_device(device, outcome)
            if outcome.run is not None:
                (outcome.run.with_truth(truth) if truth else outcome.run).save(record)
                write_status(
                    path, {**status, "state": "done", "reason": "", "record": file_hash(record)}
                )
            yield outcome

    def _shared(self, session: Any) -> dict[str, Any]:
        """All that a session's cells depend on besides their own settings."""
        model = describe_model(session.checkpoint)
        return {
            **{name: getattr(self.cells[0], name) for name in _REQUEST},
            **{name: model[name] for name in ("attention", "dtype", "revision")},
            "page": self.subject[0],
            "model": model["name"],
            "device": machine.describe_device(session.device)["name"],
            # The code's hash tells more of what runs than a commit, which may change nothing of it.
            "versions": {
                name: value for name, value in machine.versions().items() if name != "git"
            },
            "prompt": session.family.text_of(self.prompt),
        }

    def _measured(
        self, cell: Cell, record: Path, sessions: dict[Any, Any], load: Callable
    ) -> CellOutcome:
        """What becomes of a cell with one of ``sessions`` or a new one in their place."""
        if record.exists():  # measured with other settings or versions, or damaged
            with reserved(record.parent / "earlier" / record.name) as earlier:
                record.replace(earlier)
        # A batch would hold the page as often as it has rows.
        settings = {**cell.of_run(), "embed_page": cell.batch == 1}
        if self.on_run is not None:
            settings["progress"] = partial(self.on_run, cell)
        else:
            settings["progress"] = _no_progress
        try:
            session = only(sessions, tuple(cell.changes.items()), partial(load, **cell.changes))
            run = session.run_inference([self.page] * cell.batch, **settings)
            return CellOutcome(cell, "measured", run=run)
        except (OcrPhasesError, RuntimeError) as error:
            return CellOutcome(cell, "failed", one_sentence(error))


def _no_progress(done: int, total: int) -> None:
    """Tells nobody: the bar of a sweep counts cells."""


def _own_cells(
    cells: list[Cell], stands_for: Mapping[Any, str], shared: Mapping[str, Any]
) -> list[Cell]:
    """The cells as a model has them, sorted by what they load: its own presets, and not its own
    dtype.
    """

    def own(cell: Cell) -> Cell:
        same: dict[str, Any] = {
            name: None for name, value in cell.changes.items() if value == shared[name]
        }
        # One that it has not fails when it is run.
        return replace(cell, preset=stands_for.get(cell.preset, cell.preset), **same)

    return sorted(dict.fromkeys(map(own, cells)), key=lambda cell: sorted(cell.changes.items()))


def _known(runs: Path, shared: Mapping[str, Any], again: set[str]) -> dict[str, CellStatus | None]:
    """The statuses in a folder by their cells' names; None of one that is damaged, which is
    measured again.

    A folder is one sweep: records of something else in it are not written over, nor put beside
    others. Cells of the names in ``again`` are measured again where only their settings were
    others.
    """
    known, place = dict[str, CellStatus | None](), runs.parent
    for path in sorted(runs.glob("*.json")):
        name = path.name.removesuffix(CELL_STATUS).removesuffix(".json")
        with contextlib.suppress(OcrPhasesError):
            known[name] = read_status(path.with_name(f"{name}{CELL_STATUS}"), CellStatus)
        status = known.setdefault(name, None)
        if status is None and name not in again:
            raise OcrPhasesError(
                f"{path} is no finished cell of a sweep: move it to another folder."
            )
        had = {**shared, **(status["asked"] if status else {})}
        for what in _SUBJECT if name in again else (*_SUBJECT, *_REQUEST):
            if had[what] != shared[what]:
                told = {"page": "another page"}.get(
                    what, f"{what} {had[what]}; you asked for {shared[what]}"
                )
                raise OcrPhasesError(
                    f"{place} holds a sweep with {told}: choose another folder (--out)."
                )
    return known


def _check_device(device: str, failed: CellOutcome) -> None:
    """Free what a failed run held, which must not keep the next cell from its memory; raise if that
    fails.
    """
    try:
        free_memory()
        torch.zeros(1, device=device).tolist()
    except (
        RuntimeError
    ) as lost:  # an error that ended the CUDA context, and would be every other cell's
        told = f"{device} cannot be used any more here ({failed.cell.name} failed with {failed.reason})"
        raise OcrPhasesError(
            f"{told}: finished cells are kept, a new process measures the rest."
        ) from lost


def free_memory() -> None:
    """Give back what nothing holds any more, on all devices."""
    gc.collect()
    release_memory()


def only(kept: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """``kept[key]``, made where it is missing once all else is let go: a device never holds two
    models.
    """
    if key not in kept:
        kept.clear()
        free_memory()
        kept[key] = make()
    return kept[key]
