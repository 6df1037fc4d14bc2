"""A sweep: one page at every combination of preset, strategies, batch size, length, attention and dtype.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ocr_phases.settings import ModelSettings, Settings
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

#: What all records of a folder share, and what those share that are not asked for now.
_SUBJECT = ("page", "model", "device", "attention", "dtype")
_REQUEST = ("prompt", "repeats", "warmup", "seed", "ignore_eos")
#: The keywords of `make_cells`, in the order of a `Cell`'s fields.
AXES = ("presets", "strategies", "batches", "lengths", "visions", "attentions", "dtypes")


@dataclass(frozen=True)
class Cell:
    """One combination; ``batch`` copies of the page side by side, ``max_new_tokens`` for each.

    ``attention`` and ``dtype`` are None for those that the model is loaded with.
    """

    preset: str
    strategy: str
    batch: int
    max_new_tokens: int
    vision: str = "eager"
    attention: str | None = None
    dtype: str | None = None

    @property
    def name(self) -> str:
        """The name of its files; eager vision and the model's own attention and dtype are not in it."""
        vision = None if self.vision == "eager" else self.vision
        others = {"vision": vision, "attention": self.attention, "dtype": self.dtype}
        more = "".join(f"-{what}-{value}" for what, value in others.items() if value)
        return f"{self.preset}-{self.strategy}-b{self.batch}-n{self.max_new_tokens}{more}"

    @property
    def of_run(self) -> dict[str, Any]:
        """The keywords of `OCRSession.run_inference`."""
        return {name: getattr(self, name) for name in ("preset", "strategy", "max_new_tokens", "vision")}

    @property
    def of_model(self) -> dict[str, Any]:
        """The keywords of `OCRSession.with_model`."""
        return {name: value for name in ("attention", "dtype") if (value := getattr(self, name))}


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
    attentions: Sequence[str | None] = (None,),
    dtypes: Sequence[str | None] = (None,),
) -> list[Cell]:
    """Every combination once; `OcrPhasesError` for what no sweep could measure.

    ``batches`` are copies of the page side by side, ``lengths`` new tokens of each row. ``attentions`` and
    ``dtypes`` are those of `ModelSettings`; None is what the model has.
    """
    lists: Sequence[Any] = (presets, strategies, batches, lengths, visions, attentions, dtypes)
    for name, values in zip(AXES, lists, strict=True):
        if isinstance(values, str | int) or not values:
            raise OcrPhasesError(f"{name} is {values!r}: give a list of at least one.")
    cells = [Cell(*values) for values in itertools.product(*lists)]
    for cell in cells:
        if type(cell.batch) is not int or cell.batch not in range(1, 1_001):
            raise OcrPhasesError(f"{cell.batch!r} is no batch size: give a whole number from 1 to 1,000.")
    named = (replace(cell, dtype=Settings(**cell.of_run, **cell.of_model).dtype) for cell in cells)
    return list(dict.fromkeys(named))


def run_sweep(
    loads: Mapping[str, Callable[..., Any]],
    page: str | Path,
    *,
    folder: str | Path | None = None,
    prompt: str = "markdown",
    repeats: int = 3,
    warmup: int = 1,
    seed: int = 0,
    ignore_eos: bool | None = None,
    truth: str | Path | None = None,
    retry_failed: bool = False,
    progress: Callable[[CellOutcome], None] | None = None,
    on_run: Callable[[Cell, int, int], None] | None = None,
    **axes: Any,
) -> Any:
    """Measure ``page`` at every combination of ``axes``, which are those of `make_cells`: a `SweepResult`.

    ``loads`` has what loads each model, by the name of its folder in ``folder``: called with a `Cell`'s
    ``of_model`` it gives an `OCRSession`, as `OCRSession.with_model` does. A session is let go before the
    next is loaded. Without a folder nothing is written.

    Each cell has the end token ignored, unless ``ignore_eos`` is false or ``truth`` says what the page says:
    then the length is a limit, the texts are compared, and each record keeps the truth (a path for
    `ocr_phases.analyse.quality.load_truth`). A record is written as soon as its cell is done, ``progress`` is
    told of every cell, and ``on_run(cell, runs done, runs in all)`` of every run within one. What the folder
    has is not measured again, and a cell that failed before is left alone unless ``retry_failed`` or
    something it depends on has changed.

    Raises `OcrPhasesError` where the folder holds the sweep of another page, model or device, cells, not
    asked for now, with another prompt, seed or number of repeats, or a file that is no cell's; where it
    cannot be written, or is being written by another process; where an error ended the device's context.
    """
    cells, (image, data, name) = make_cells(**axes), load_page(page)
    said = None if truth is None else elsewhere("analyse.quality.load_truth")(truth, name)
    request: dict[str, Any] = {"prompt": prompt, "repeats": repeats, "warmup": warmup, "seed": seed}
    request["ignore_eos"] = truth is None if ignore_eos is None else ignore_eos
    asked = {**request, "page": describe_page(image, data, name, embed=False)["sha256"]}
    with contextlib.ExitStack() as stack:
        kept = Path(folder or stack.enter_context(TemporaryFolder()))
        if len(loads) > 1 and (kept / "runs").exists():
            raise OcrPhasesError(f"{kept} holds the sweep of one model: choose another folder (--out).")
        for place, load in loads.items():
            runs = output_folder(kept / place / "runs")
            with only_writer(runs.parent):
                for outcome in _outcomes(runs, load, cells, page, asked, said, retry_failed, on_run):
                    if progress is not None:
                        progress(outcome)
            free_memory()
        return elsewhere("analyse.scaling.SweepResult").load(kept)


def _outcomes(
    runs: Path, load: Any, cells: Any, page: Any, given: Any, said: Any, retry_failed: bool, on_run: Any
) -> Iterator[CellOutcome]:
    """Measure the cells of one model that ``runs`` lacks, and say what became of each; as `run_sweep`."""
    session, truth_id = load(), asked_id(msgspec.to_builtins(said))
    sessions: dict[Any, Any] = {(): session}
    facts, device = session.family.facts, session.device
    request, asked = {name: given[name] for name in _REQUEST}, _subject(session, given)
    del session  # it is let go with `sessions`
    for number, cell in enumerate(cells := list(cells)):
        same = dict.fromkeys(name for name, value in cell.of_model.items() if value == asked[name])
        # A family's own name of a preset; one that it has not fails when it is run.
        cells[number] = replace(cell, preset=facts.stands_for.get(cell.preset, cell.preset), **same)
    known = _known(runs, asked, {cell.name for cell in cells})
    for cell in sorted(dict.fromkeys(cells), key=lambda cell: sorted(cell.of_model.items())):
        record, path = (runs / f"{cell.name}{ending}" for ending in (".json", CELL_STATUS))
        status: dict[str, Any] = {"cell": asdict(cell), "asked": {**asked, "cell": asdict(cell)}}
        status["id"], had, run = asked_id(status["asked"]), known.get(cell.name, {}), None
        outcome = CellOutcome(cell, "kept")
        if had and finished(had, record, status["id"]):
            if said is not None and had["truth"] != truth_id:
                run = PhaseRun.load(record)
        elif had and not retry_failed and (had["id"], had["state"]) == (status["id"], "failed"):
            outcome = CellOutcome(cell, "failed", had["reason"])
        else:
            if record.exists():  # measured with other settings or versions, or damaged
                with reserved(runs / "earlier" / record.name) as earlier:
                    record.replace(earlier)
            outcome, key = CellOutcome(cell, "measured"), tuple(cell.of_model.items())
            try:
                if key not in sessions:
                    sessions.clear()
                    free_memory()
                    sessions[key] = load(**cell.of_model)
                # A batch would hold the page as often as it has rows; nothing of a sweep shows probabilities.
                options = {**cell.of_run, "embed_page": cell.batch == 1, "token_probabilities": False}
                told = on_run and partial(on_run, cell)
                run = sessions[key].run_inference([page] * cell.batch, progress=told, **options, **request)
            except (OcrPhasesError, RuntimeError) as error:
                outcome = CellOutcome(cell, "failed", one_sentence(error))
                fail(path, outcome.reason, status)
            if run is None:
                _check_device(device, outcome)
        if run is not None:
            run = run if said is None else run.with_truth(said)
            run.save(record)
            done = {"state": "done", "reason": "", "record": file_hash(record), "truth": truth_id}
            write_status(path, {**status, **done})
        yield outcome


def _subject(session: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """All that a session's cells depend on besides their own settings."""
    return {
        **asked,
        "model": session.checkpoint.name,
        "device": machine.describe_device(session.device)["name"],
        "attention": session.model.config._attn_implementation,
        "dtype": str(session.dtype).removeprefix("torch."),
        "revision": session.checkpoint.revision,
        # The code's hash tells more of what runs than a commit, which may change nothing of it.
        "versions": {name: value for name, value in machine.versions().items() if name != "git"},
        "prompt": session.family.facts.text_of(asked["prompt"]),
    }


def _known(runs: Path, asked: Mapping[str, Any], again: set[str]) -> dict[str, Any]:
    """The statuses in a folder by their cells' names; None of one that is damaged, which is measured again.

    A folder is one sweep: records of something else in it are not written over, nor put beside others. Cells
    of the names in ``again`` are measured again where only their settings were others.
    """
    known: dict[str, Any] = {}
    for path in sorted(runs.glob("*.json")):
        name = path.name.removesuffix(CELL_STATUS).removesuffix(".json")
        known[name] = None
        with contextlib.suppress(OcrPhasesError):
            known[name] = read_status(path.with_name(f"{name}{CELL_STATUS}"), CellStatus)
        if known[name] is None and name not in again:
            raise OcrPhasesError(f"{path} is no finished cell of a sweep: move it to another folder.")
        had = {**asked, **(known[name] or {"asked": {}})["asked"]}
        for what in _SUBJECT if name in again else (*_SUBJECT, *_REQUEST):
            if had[what] != asked[what]:
                told = f"{what} {had[what]}; you asked for {asked[what]}"
                told = "another page" if what == "page" else told
                raise OcrPhasesError(
                    f"{runs.parent} holds a sweep with {told}: choose another folder (--out)."
                )
    return known


def _check_device(device: str, failed: CellOutcome) -> None:
    """Free what a failed run held, which must not keep the next cell from its memory; raise if that fails."""
    try:
        free_memory()
        torch.zeros(1, device=device).tolist()
    except RuntimeError as lost:  # an error that ended the CUDA context, and would be every other cell's
        raise OcrPhasesError(
            f"{device} cannot be used any more in this process ({failed.cell.name} failed with "
            f"{failed.reason}): finished cells are kept, the same sweep in a new process measures the rest."
        ) from lost


def one_sentence(error: Exception) -> str:
    """Why something could not be measured, as one line; an error that is not the package's says its kind."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return text if isinstance(error, OcrPhasesError) else f"{type(error).__name__}: {text[:300]}"


def free_memory() -> None:
    """Give back what nothing holds any more, on all devices."""
    gc.collect()
    torch.cuda.empty_cache()


@checked(make_cells, run_sweep)
def sweep(
    page: str | Path,
    models: Sequence[str] = ("tiny",),
    *,
    load: Mapping[str, Any] | None = None,
    loading: Callable[[str], None] | None = None,
    **options: Any,
) -> Any:
    """Measure ``page`` with each of ``models`` at every combination, one model loaded at a time.

    ``load`` are settings of `OCRSession.load` for all of them, ``options`` and errors those of
    `OCRSession.sweep`; ``loading(name)`` is called before a model is loaded. A preset of another family is
    taken as the one that stands for it, or is a failed cell. Records of several models go into a folder each
    in ``folder``, called like the model. Raises `OcrPhasesError` for one name
    in place of a list and for two models of one folder.
    """
    if isinstance(models, str) or not models:
        raise OcrPhasesError("Give a list of models, like ['dummy', 'dummy:unlimited-ocr'].")

    def loaded(settings: ModelSettings, **changed: Any) -> Any:
        if loading is not None:
            loading(settings.model)
        return elsewhere("session.OCRSession").load(**{**vars(settings), **changed})

    loads: dict[str, Callable[..., Any]] = {}
    for model in models:
        path = Path(model).expanduser()
        called = path.absolute().name if path.is_dir() else model
        # In characters that every file system takes.
        name = re.sub(r"[^\w.=-]+", "-", called).strip("-.") if len(models) > 1 else ""
        if name in loads:
            raise OcrPhasesError(f"Two of the models are called {name}: give them different names.")
        # A wrong setting of any model is refused before the first is loaded.
        loads[name] = partial(loaded, ModelSettings(model=model, **(load or {})))
    return run_sweep(loads, page, **options)
