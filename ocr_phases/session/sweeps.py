"""Sweeps: one page at every combination of preset, strategies, batch size, length and model.

Records lie in ``DIR/runs/``, each with a status (`ocr_phases.measure.cells`). The same sweep again
measures only what is missing there, or what was measured with another request, other weights or
other versions.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ocr_phases.analyse.quality import load_truth
from ocr_phases.collectors import machine
from ocr_phases.errors import OcrPhasesError, explain_wrong_calls
from ocr_phases.families import PROCESSOR, FamilyFacts, ViewSizes
from ocr_phases.files import TemporaryFolder, only_writer, output_folder
from ocr_phases.images import describe_page, load_page
from ocr_phases.measure.busy import one_busy_warning
from ocr_phases.measure.cells import (
    REQUEST,
    Cell,
    CellFiles,
    CellOutcome,
    ModelChanges,
    OnRun,
    check_device,
    failed_outcome,
    measure_cell,
    read_statuses,
)
from ocr_phases.measure.loaded_model import LoadedModel, describe_model, free_memory
from ocr_phases.measure.record_parts import page_id
from ocr_phases.measure.runs import bar_in_cell
from ocr_phases.models.load import Checkpoint, load_checkpoint
from ocr_phases.record.schema import Truth
from ocr_phases.results.run import PhaseRun
from ocr_phases.results.sweep import SweepResult
from ocr_phases.settings import ModelSettings, is_address
from ocr_phases.versions import seldom_collected

#: The lists of a `Sweep`.
AXES = ("presets", "strategies", "batches", "lengths", "visions", "attentions", "dtypes")

#: Loads a model with these changes of its own attention and dtype.
ModelLoader = Callable[[ModelChanges], LoadedModel]


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
    base_size: int | None = None
    image_size: int | None = None
    crop_mode: bool | None = None
    min_crops: int | None = None
    max_crops: int | None = None
    infer: Mapping[str, Any] | str | None = None
    threads: int | None = None
    repeats: int = 3
    warmup: int = 1
    seed: int = 0
    ignore_eos: bool | None = None
    truth: str | Path | None = None
    retry_failed: bool = False
    progress: Callable[[CellOutcome], None] | None = None
    on_run: OnRun | None = None

    @property
    def infer_text(self) -> str | None:
        """``infer`` as a text, which cells are compared by."""
        if not isinstance(self.infer, Mapping):
            return self.infer
        return ",".join(f"{name}={json.dumps(value)}" for name, value in self.infer.items())

    @cached_property
    def cells(self) -> list[Cell]:
        """Every combination once; `OcrPhasesError` for what no sweep could measure."""
        for name in AXES:
            values = getattr(self, name)
            if not values or isinstance(values, str | int):
                raise OcrPhasesError(f"{name} is {values!r}: give a list of at least one.")
        ignore_eos = self.ignore_eos
        if ignore_eos is None:
            ignore_eos = self.truth is None
        cells = []
        for preset, strategy, batch, length, vision, attention, dtype in itertools.product(
            self.presets,
            self.strategies,
            self.batches,
            self.lengths,
            self.visions,
            self.attentions,
            self.dtypes,
        ):
            # The settings are checked by the class, so their types are not known here.
            cell: dict[str, Any] = {
                "preset": preset,
                "strategy": strategy,
                "batch": batch,
                "max_new_tokens": length,
                "vision": vision,
                "attention": attention,
                "dtype": dtype,
            }
            cells.append(
                Cell(
                    prompt=self.prompt,
                    base_size=self.base_size,
                    image_size=self.image_size,
                    crop_mode=self.crop_mode,
                    min_crops=self.min_crops,
                    max_crops=self.max_crops,
                    infer=self.infer_text,
                    threads=self.threads,
                    repeats=self.repeats,
                    warmup=self.warmup,
                    seed=self.seed,
                    ignore_eos=ignore_eos,
                    token_probabilities=False,  # nothing of a sweep shows them
                    **cell,
                )
            )
        return list(dict.fromkeys(cells))

    @cached_property
    def page_and_truth(self) -> tuple[str, Truth | None]:
        """What the page is known by, and what it says where ``truth`` was given."""
        page = describe_page(*load_page(self.page), embed=False)
        truth = None
        if self.truth is not None:
            truth = load_truth(self.truth, page["file"])
        return page_id(page["file"], page["sha256"]), truth

    def run(self, loaders: Mapping[str, ModelLoader]) -> SweepResult:
        """Measure the page at every cell.

        Parameters
        ----------
        loaders : mapping of str to callable
            What loads each model, by the name of its folder in ``folder``. A model is let go before
            the next is loaded.

        Returns
        -------
        SweepResult
            All records.

        Raises
        ------
        OcrPhasesError
            Where the folder holds the sweep of another page, model or device, cells, not asked for
            now, with another prompt, seed or number of repeats, or a file that is no cell's; where
            it cannot be written, or is being written by another process; where an error ended the
            device's context.
        """
        # What cannot be swept is refused before anything is loaded.
        _ = self.cells
        _ = self.page_and_truth
        with TemporaryFolder() as temporary, one_busy_warning():
            folder = Path(self.folder or temporary)
            if len(loaders) > 1 and (folder / "runs").exists():
                raise OcrPhasesError(
                    f"{folder} holds the sweep of one model: choose another folder (--out)."
                )
            for place, loader in loaders.items():
                runs = output_folder(folder / place / "runs")
                with only_writer(runs.parent):
                    self._run_model(runs, loader)
                free_memory()
            return SweepResult.load(folder)

    def _run_model(self, runs: Path, loader: ModelLoader) -> None:
        """Measure the cells of one model that ``runs`` lacks."""
        outcomes = self._outcomes(runs, loader)
        for outcome in bar_in_cell(outcomes, "cell", len(self.cells), alike=False):
            if self.progress is not None:
                self.progress(outcome)

    def _outcomes(self, runs: Path, loader: ModelLoader) -> Iterator[CellOutcome]:
        """Measure the cells of one model that ``runs`` lacks, and say what became of each."""
        _, truth = self.page_and_truth
        models = ModelInTurn(loader)
        # No name here holds the first model, which must go where a cell needs another one.
        device = models.current.checkpoint.device
        shared = self._shared(models.current.checkpoint)
        cells = _own_cells(self.cells, models.current.checkpoint.family, shared)
        statuses = read_statuses(runs, shared, {cell.name for cell in cells})
        for cell in cells:
            files = CellFiles(runs, cell, shared, statuses.get(cell.name))
            if files.is_finished:
                outcome = CellOutcome(cell, "kept")
                if truth is not None:
                    outcome = outcome._replace(run=PhaseRun.load(files.record))
            elif files.earlier_failure is not None and not self.retry_failed:
                outcome = CellOutcome(cell, "failed", files.earlier_failure)
            else:
                files.move_earlier_record()
                outcome = self._measure(cell, models)
                if outcome.run is None:
                    files.save_failure(outcome.reason)
                    check_device(device, outcome)
            if outcome.run is not None:
                files.save(outcome.run, truth)
            yield outcome

    def _measure(self, cell: Cell, models: ModelInTurn) -> CellOutcome:
        """Measure a cell with the model that it needs."""
        try:
            model = models.with_changes(cell.changes)
        except (OcrPhasesError, RuntimeError) as error:
            return failed_outcome(cell, error)
        return measure_cell(model, self.page, cell, self.on_run)

    def _shared(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """All that a model's cells depend on besides their own settings, as their statuses say."""
        page, _ = self.page_and_truth
        model = describe_model(checkpoint)
        # The code's hash tells more of what runs than a commit, which may change nothing of it.
        versions = {name: value for name, value in machine.versions().items() if name != "git"}
        shared: dict[str, Any] = {name: getattr(self.cells[0], name) for name in REQUEST}
        if self.infer is not None:  # sweeps of earlier versions have no such entry
            shared["infer"] = self.infer_text
        if self.threads is not None:
            shared["threads"] = self.threads
        sizes = vars(ViewSizes.from_settings(self))
        shared |= {name: size for name, size in sizes.items() if size is not None}
        shared |= {
            "attention": model.attention,
            "dtype": model.dtype,
            "revision": model.revision,
            "page": page,
            "model": model.name,
            "device": machine.describe_device(checkpoint.device)["name"],
            "versions": versions,
            "prompt": checkpoint.family.text_of(self.prompt),
        }
        return shared


class ModelInTurn:
    """The one model that a sweep holds, with the attention and dtype of the current cell."""

    def __init__(self, loader: ModelLoader) -> None:
        self._loader = loader
        self._changes = ModelChanges()
        self._model: LoadedModel | None = None

    @property
    def current(self) -> LoadedModel:
        """The model that the last cell had, or, before the first, that without changes."""
        return self.with_changes(self._changes)

    def with_changes(self, changes: ModelChanges) -> LoadedModel:
        """The model with these changes, loaded once the one before is let go."""
        if self._model is None or changes != self._changes:
            self._model = None
            free_memory()
            self._model = self._loader(changes)
            self._changes = changes
        return self._model


def _own_cells(cells: list[Cell], family: FamilyFacts, shared: Mapping[str, Any]) -> list[Cell]:
    """The cells as a model has them, sorted by what they load.

    A preset of another family is the model's own that stands for it; one that it has not fails when
    it is run. A model whose processor cuts its pages has one cell for all presets. An attention and
    a dtype that the model has anyway are no changes.
    """
    own = []
    for cell in cells:
        changes = cell.changes
        if changes.attention == shared["attention"]:
            changes = changes._replace(attention=None)
        if changes.dtype == shared["dtype"]:
            changes = changes._replace(dtype=None)
        preset = cell.preset
        if family.is_unknown:
            preset = PROCESSOR
        elif preset is not None:
            preset = family.stands_for.get(preset, preset)
        values: dict[str, Any] = changes._asdict()
        own.append(replace(cell, preset=preset, **values))
    return sorted(dict.fromkeys(own), key=_loading_order)


def _loading_order(cell: Cell) -> list[tuple[str, str]]:
    """Cells of one attention and dtype stand together, those of the model's own first."""
    changes = cell.changes._asdict()
    return [(name, value) for name, value in changes.items() if value is not None]


@explain_wrong_calls
def sweep(
    page: str | Path,
    models: Sequence[str] = ("tiny",),
    *,
    load: Mapping[str, Any] | None = None,
    presets: Sequence[str] = ("tiny", "base"),
    strategies: Sequence[str] = ("eager",),
    batches: Sequence[int] = (1,),
    lengths: Sequence[int] = (32,),
    visions: Sequence[str] = ("eager",),
    attentions: Sequence[str | None] = (None,),
    dtypes: Sequence[str | None] = (None,),
    folder: str | Path | None = None,
    prompt: str = "markdown",
    base_size: int | None = None,
    image_size: int | None = None,
    crop_mode: bool | None = None,
    min_crops: int | None = None,
    max_crops: int | None = None,
    infer: Mapping[str, Any] | str | None = None,
    threads: int | None = None,
    repeats: int = 3,
    warmup: int = 1,
    seed: int = 0,
    ignore_eos: bool | None = None,
    truth: str | Path | None = None,
    retry_failed: bool = False,
    progress: Callable[[CellOutcome], None] | None = None,
    on_run: Callable[[Cell, int, int], None] | None = None,
    loading: Callable[[str], None] | None = None,
) -> SweepResult:
    """Measure a page with each of several models at every combination, one model loaded at a time.

    A preset of another family is taken as the one that stands for it, or is a failed cell. Records
    of several models go into a folder each in ``folder``, called like the model.

    Parameters
    ----------
    page : str or Path
        The page's file.
    models : sequence of str, default ("tiny",)
        The models, as `OCRSession.load` takes them.
    load : mapping, optional
        Keywords of `OCRSession.load` for all of them.
    presets : sequence of str
        Presets to read the page at. The default is ``("tiny", "base")``.
    strategies : sequence of str
        How the language model runs: eager, cuda_graph, compiled. The default is ``("eager",)``.
    batches : sequence of int
        Copies of the page side by side. The default is ``(1,)``.
    lengths : sequence of int
        New tokens of each row. The default is ``(32,)``.
    visions : sequence of str
        How the vision encoders run: eager, cuda_graph, compiled. The default is ``("eager",)``.
    attentions : sequence of str or None
        Attention kernels, as `load` takes them; None is what the model has. The default is
        ``(None,)``.
    dtypes : sequence of str or None
        Dtypes, as `load` takes them; None is what the model has. The default is ``(None,)``.
    folder : str or Path, optional
        Where records are kept. What is there is not measured again; without a folder nothing is
        written.
    prompt : str, default "markdown"
        The prompt of every cell.
    base_size, image_size, crop_mode, min_crops, max_crops : optional
        Sizes of every cell instead of its preset's own, as `run_inference` takes them. A cell
        whose preset they contradict is among the failures.
    infer : mapping or str, optional
        How the next token is chosen in every cell, as `OCRSession.run_inference` takes it. The
        default is greedy.
    threads : int, optional
        Number of CPU threads that torch uses in every cell; the default is torch's own choice.
    repeats : int, default 3
        Number of measured runs of each cell.
    warmup : int, default 1
        Number of runs before them that are not recorded.
    seed : int, default 0
        Seed for sampling.
    ignore_eos : bool, optional
        Continue after the end token; the default is yes, except with ``truth``.
    truth : str or Path, optional
        The page's reference text, or a folder that has it by the page's name.
    retry_failed : bool, default False
        Measure again what failed before.
    progress : callable, optional
        Called with each cell's outcome.
    on_run : callable, optional
        Called as ``on_run(cell, runs done, runs in all)`` before, between and after the runs of a
        cell.
    loading : callable, optional
        Called with a model's name before it is loaded.

    Returns
    -------
    SweepResult
        All records, which show themselves in a notebook.

    Raises
    ------
    OcrPhasesError
        As `OCRSession.sweep` does; for one name in place of a list, for a server's address in it,
        and for two models of one folder.

    Examples
    --------
    >>> sweep("page.png", ["dummy", "dummy:unlimited-ocr"], presets=["base"])  # doctest: +SKIP
    """
    if isinstance(models, str) or not models:
        raise OcrPhasesError("Give a list of models, like ['dummy', 'dummy:unlimited-ocr'].")

    if any(is_address(model) for model in models):
        # The sentence does not repeat the address: it may have a key.
        raise OcrPhasesError(
            "A sweep loads its models, and one of them is the address of a server: measure its "
            "load with sweep --server, or with connect(ADDRESS).load_test(pages)."
        )

    loaders: dict[str, ModelLoader] = {}
    for model in models:
        name = _folder_name(model) if len(models) > 1 else ""
        if name in loaders:
            raise OcrPhasesError(f"Two of the models are called {name}: give them different names.")
        # A wrong setting of any model is refused before the first is loaded.
        settings = ModelSettings(**{**(load or {}), "model": model})
        loaders[name] = NamedModel(settings, loading).load
    plan = Sweep(
        page=page,
        presets=presets,
        strategies=strategies,
        batches=batches,
        lengths=lengths,
        visions=visions,
        attentions=attentions,
        dtypes=dtypes,
        folder=folder,
        prompt=prompt,
        base_size=base_size,
        image_size=image_size,
        crop_mode=crop_mode,
        min_crops=min_crops,
        max_crops=max_crops,
        infer=infer,
        threads=threads,
        repeats=repeats,
        warmup=warmup,
        seed=seed,
        ignore_eos=ignore_eos,
        truth=truth,
        retry_failed=retry_failed,
        progress=progress,
        on_run=on_run,
    )
    return plan.run(loaders)


@dataclass(frozen=True)
class NamedModel:
    """A model of a sweep over several: its settings, and who is told before it is loaded."""

    settings: ModelSettings
    on_loading: Callable[[str], None] | None

    def load(self, changes: ModelChanges) -> LoadedModel:
        """Load it, with these changes."""
        if self.on_loading is not None:
            self.on_loading(self.settings.model)
        settings = self.settings
        if changes.attention is not None:
            settings = replace(settings, attention=changes.attention)  # type: ignore[arg-type]
        if changes.dtype is not None:
            settings = replace(settings, dtype=changes.dtype)  # type: ignore[arg-type]
        with seldom_collected():
            return LoadedModel(load_checkpoint(settings))


def _folder_name(model: str) -> str:
    """A model's name in characters that every file system takes; of a folder its last part."""
    path = Path(model).expanduser()
    name = path.absolute().name if path.is_dir() else model
    return re.sub(r"[^\w.=-]+", "-", name).removesuffix(".json").strip("-.")
