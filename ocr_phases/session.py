"""OCRSession: a loaded model and what to call on it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch
from torch import Tensor

from ocr_phases.analyse.cost import memory_need, vision_calls
from ocr_phases.collectors import machine
from ocr_phases.collectors.machine import measure_ceilings
from ocr_phases.config import AnyConfig, read_model_config
from ocr_phases.errors import OcrPhasesError, checked, public, require
from ocr_phases.families import windowed_length
from ocr_phases.files import each_page
from ocr_phases.images import describe_page, load_page
from ocr_phases.inputs.packing import DeviceInputs, PageInputs
from ocr_phases.inputs.views import Page, Pages, image_token_count
from ocr_phases.models.folders import local_folder, read_json
from ocr_phases.models.load import (
    AT_HAND,
    BUILT_IN,
    BUILT_IN_PRESET,
    Checkpoint,
    adopt,
    load_checkpoint,
    resolve_device,
)
from ocr_phases.models.references import references
from ocr_phases.models.weights import dummy_config, resolve_dtype
from ocr_phases.recorder import Measurement, describe_model, execution, page_id
from ocr_phases.request import filled_in, recorded
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import REQUEST_SETTINGS, ModelSettings, Request, RunSettings, Settings, setting_names
from ocr_phases.show.results import facts_bundle
from ocr_phases.steps import phases
from ocr_phases.steps.captured import StaticStep, capacity_for
from ocr_phases.steps.compiled import CompiledVision
from ocr_phases.steps.execution import decode_execution
from ocr_phases.steps.timeline import NoTimeline, Timeline, stage_hooks
from ocr_phases.sweep_models import Sweep, only
from ocr_phases.text import filled, millions_text, stage_name
from ocr_phases.versions import asset, seldom_collected


@public
class OCRSession:
    """A loaded model of one of the families, its tokenizer and device.

    ``model`` and ``tokenizer`` are the objects of the libraries they come from and may be used directly.
    """

    def __init__(self, checkpoint: Checkpoint, asked: ModelSettings | None = None) -> None:
        self.checkpoint, self._asked = checkpoint, asked  # None of a model object
        self.model: Any = checkpoint.model
        self.tokenizer, self.family = checkpoint.tokenizer, checkpoint.family
        self.device, self.dtype = checkpoint.device, checkpoint.dtype
        #: The ids that end a generation and that fill rows, and text to ids without special tokens around it.
        self.eos_id, self.pad_id, self.encode = checkpoint.eos_id, checkpoint.pad_id, checkpoint.encode
        #: What measurements share: steps by shape, compiled encoders, and `measure_ceilings` once a dtype.
        self.steps: dict[tuple[int, int, str], StaticStep] = {}
        self.vision = CompiledVision(checkpoint.model)
        self.ceilings: Callable[[torch.dtype], dict[str, Any]] = cache(partial(measure_ceilings, self.device))
        #: What the last `run_inference` measured, also where it was interrupted; None without a repeat.
        self.last_run: PhaseRun | None = None

    # -- loading ----------------------------------------------------------------------------------

    @classmethod
    @checked(ModelSettings)
    def load(cls, model: str | Path = "tiny", **settings: Any) -> OCRSession:
        """Load ``tiny``, ``dummy`` (random full-size weights), a checkpoint folder or a hub id.

        ``settings`` are those of `ModelSettings`; ``dtype`` may be a ``torch.dtype``, and is by default
        bfloat16 on CUDA and float32 on the CPU. ``implementation="vendor"`` runs the class in the
        checkpoint's own Python files, with ``trust_remote_code=True`` and, from the hub, a full commit hash
        as ``revision`` (docs/models.md). Raises `OcrPhasesError` for what cannot be had.

        A ``model`` that is a server's address (``http://HOST:PORT/v1#MODEL``) is connected to: `connect`.
        """
        if "://" in str(model):
            return cls.connect(str(model))
        asked = ModelSettings(model=str(model) if isinstance(model, Path) else model, **settings)
        with seldom_collected():
            return cls(load_checkpoint(asked), asked)

    @classmethod
    @checked(ModelSettings)
    def from_local(cls, folder: str | Path, **settings: Any) -> OCRSession:
        """Load a checkpoint folder, and nothing but a folder; ``settings`` as in `load`."""
        return cls.load(str(local_folder(str(folder), local_only=True)), **settings)

    @classmethod
    def from_model(cls, model: Any, tokenizer: Any, *, name: str | None = None) -> OCRSession:
        """Measure a ``model`` that you loaded, patched, merged with a LoRA or quantised, as it is.

        Device, dtype and attention are the model's own, its family is that of its class and config; the
        ``tokenizer`` is the checkpoint's, and ``name`` is for the record. Raises `OcrPhasesError` for a class
        of no family and for modules that its family has and it lacks (`ocr_phases.models.load.adopt`).
        """
        return cls(adopt(model, tokenizer, name=name))

    def with_model(self, *, attention: str | None = None, dtype: str | None = None) -> OCRSession:
        """A session of the same weights with another ``attention`` or ``dtype``; this one where none differs.

        The values are those of `ModelSettings`, None keeps what there is. The weights are loaded once more:
        two models take memory while both sessions live. Raises `OcrPhasesError` as `load` does, and for a
        model object, which its owner changes.
        """
        own = describe_model(self.checkpoint)
        asked = {"attention": attention or own["attention"], "dtype": dtype or own["dtype"]}
        if asked.items() <= own.items():
            return self
        require([("A model object is measured as it is: change it and give it to from_model.", self._asked)])
        return self.load(**{**vars(self._asked), **asked})

    @classmethod
    def connect(cls, url: str, model: str | None = None, **options: Any) -> Any:
        """`ocr_phases.connect`: a session on a running server."""
        from ocr_phases.engines.session import connect

        return connect(url, model, **options)

    # -- the phases, one by one -------------------------------------------------------------------

    @checked(phases.prefill)
    def run_prefill(
        self, inputs: PageInputs | DeviceInputs, timeline: Timeline | None = None, **options: Any
    ) -> phases.DecodeState:
        """`phases.prefill` on this session's model and device."""
        if isinstance(inputs, PageInputs):
            inputs = inputs.to(self.device, self.dtype)
        with execution(self.device):
            return phases.prefill(self.model, inputs, timeline, **options)

    def run_decode_step(self, state: phases.DecodeState, timeline: Timeline | None = None) -> Tensor:
        """`phases.decode_step`: one more token a row, int64 [B]."""
        hooks = stage_hooks(self.model, self.family, timeline or NoTimeline(), [])
        with execution(self.device), decode_execution(self.model), hooks:
            return phases.decode_step(self.model, state, timeline)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.checkpoint.name!r}, device={self.device!r}, dtype={self.dtype})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        text, parameters = self.model.config.get_text_config(), self.family.parameters(self.model)
        facts = {
            "family": f"{self.family.facts.name}, {self.family.implementation} class",
            "device": f"{machine.describe_device(self.device)['name']} ({self.device})",
            "dtype": str(self.dtype).removeprefix("torch."),
            "parameters": {stage_name(name): millions_text(count) for name, count in parameters.items()},
            "weights_bytes": self.model.get_memory_footprint(return_buffers=False),
            "language model": f"{text.num_hidden_layers} layers, hidden size {text.hidden_size:,}",
            "longest sequence": f"{text.max_position_embeddings:,} tokens",
        }
        return facts_bundle(f"Model {self.checkpoint.name}", facts)

    def references(self) -> pd.DataFrame:
        """Where the loaded source does what is measured (`ocr_phases.models.references`)."""
        return references(self.model, self.checkpoint.revision)

    # -- the measurement --------------------------------------------------------------------------

    @checked(Measurement.measure, RunSettings)
    def run_inference(self, page: Pages, prompt: str | Sequence[str] = "markdown", **given: Any) -> PhaseRun:
        """Measure a page: ``warmup`` unrecorded runs, then ``repeats`` recorded ones, as one `PhaseRun`.

        The other keywords are those of `RunSettings`. Each run prepares the page, prefills and decodes up to
        ``max_new_tokens`` (the prefill's token counted) from the same inputs and seed. Preparing a strategy
        is timed separately, and kept for later runs of the same shapes. The end token is looked for every
        ``eos_check_every`` steps and the surplus is cut. ``verify``, ``token_probabilities``
        (`ocr_phases.collectors.probabilities`), ``ceilings`` (`ocr_phases.collectors.machine`) and
        ``kernels`` (`ocr_phases.analyse.kernels`) run after everything that is timed.
        ``on_tokens(repeat, new ids a row)`` is called after the prefill and while decoding (repeat -1 is
        warm-up), ``progress(runs done, runs in all)`` before the first run, when all is set up, and after
        each. Either may raise `Stopped`: the record is then of the repeats finished by then. Without
        ``progress`` a notebook's cell shows a bar.

        Raises `OcrPhasesError` for a request that contradicts itself or that the model cannot hold, `Stopped`
        where that came before the end of the first repeat, and for a KeyboardInterrupt `Interrupted`, a
        KeyboardInterrupt too: `last_run` then has the finished repeats.
        """
        return recorded(self, lambda **own: Measurement(self, page, RunSettings(prompt=prompt, **own)), given)

    @checked(RunSettings)
    def check_request(self, page: Pages, **settings: Any) -> Request:
        """What `run_inference` would measure, with every default; raises what that would before it runs."""
        return Measurement(self, page, RunSettings(**settings)).request

    @checked(RunSettings)
    def prepare(self, page: Pages, **settings: Any) -> PageInputs:
        """A page (or a list of pages, one a row) and a prompt to packed inputs, still on the CPU.

        ``settings`` as in `run_inference`. See `ocr_phases.inputs.views` for the rules and errors.
        """
        return Measurement(self, page, RunSettings(**{"max_new_tokens": 1, **settings})).packed

    @checked(Sweep)
    def sweep(self, page: str | Path, **options: Any) -> Any:
        """Measure ``page`` at every combination as one `ocr_phases.analyse.scaling.SweepResult`.

        ``options`` are those of `Sweep`, errors those of its ``cells`` and ``run``. Records in ``folder`` are
        not measured again, and all of them are part of the result; without it nothing is written.
        """
        return Sweep(page=page, **options).run({"": self.with_model})


# -- sweeps over several models --------------------------------------------------------------------------


@checked(Sweep)
def sweep(
    page: str | Path,
    models: Sequence[str] = ("tiny",),
    *,
    load: Mapping[str, Any] | None = None,
    loading: Callable[[str], None] = lambda name: None,
    **options: Any,
) -> Any:
    """Measure ``page`` with each of ``models`` at every combination, one model loaded at a time.

    ``load`` are settings of `OCRSession.load` for all of them, ``options`` those of `Sweep`, errors those of
    `OCRSession.sweep`; ``loading(name)`` is called before a model is loaded. A preset of another family is
    taken as the one that stands for it, or is a failed cell. Records of several models go into a folder each
    in ``folder``, called like the model. Raises `OcrPhasesError` for one name
    in place of a list and for two models of one folder.
    """
    if isinstance(models, str) or not models:
        raise OcrPhasesError("Give a list of models, like ['dummy', 'dummy:unlimited-ocr'].")

    def loaded(settings: ModelSettings, **changed: Any) -> Any:
        loading(settings.model)
        return OCRSession.load(**{**vars(settings), **changed})

    loads: dict[str, Callable] = {}
    for model in models:
        path = Path(model).expanduser()
        called = path.absolute().name if path.is_dir() else model
        # In characters that every file system takes.
        name = re.sub(r"[^\w.=-]+", "-", called).strip("-.") if len(models) > 1 else ""
        require([(f"Two of the models are called {name}: give them different names.", name not in loads)])
        # A wrong setting of any model is refused before the first is loaded.
        loads[name] = partial(loaded, ModelSettings(**{**(load or {}), "model": model}))
    return Sweep(page=page, **options).run(loads)


_kept: dict[ModelSettings, OCRSession] = {}
#: What a record's model has of `ModelSettings`, beside its name and revision.
_MODEL_SETTINGS = ("dtype", "attention", "implementation", "cuda_calls")


def kept_session(**settings: Any) -> OCRSession:
    """The session last loaded with these very ``settings`` (`ModelSettings`), else a new one.

    One is kept, so that a device never holds two models. Raises as `OCRSession.load` does.
    """
    key = ModelSettings(**settings)
    return only(_kept, key, partial(OCRSession.load, **vars(key)))


_NEED = (
    "{name} at {preset} needs {peak_bytes:bytes} in the {phase} (weights {weight_bytes:bytes}, KV cache "
    "{kv_bytes:bytes}, activations {activation_bytes:bytes}), {device} has {free:bytes} free: it {fits}."
)


def fit(page: Pages, settings: Settings) -> tuple[pd.DataFrame, str]:
    """What a measurement needs of its device's memory, by its model's ``config.json`` alone; and in words.

    The table is `ocr_phases.analyse.cost.memory_need`'s. A prompt's characters are counted as tokens. Raises
    `OcrPhasesError` where page, prompt, preset, device or config cannot be had.
    """
    name, device = settings.model, resolve_device(settings.device)
    file = (asset("data", "tiny") if name == "tiny" else Path(name).expanduser()) / "config.json"
    config = dummy_config(name) if name.split(":")[0] == "dummy" else read_json(file, AnyConfig)
    facts, _, window = read_model_config(config)
    suits, asked = BUILT_IN_PRESET if name == "tiny" else None, RunSettings(**settings.of_run())
    request = filled_in(page, asked, facts, suits, eos_check_every=1)
    preset, prompts, tokens = facts.preset(request.preset), request.prompts, request.max_new_tokens
    grids = [preset.grid(*load_page(each)[0].size) for each in request.pages]
    length = sum(image_token_count(preset, grid) for grid in grids) // len(prompts) + len(prompts[0])
    grown = windowed_length(length + tokens, length, window)
    held = grown if settings.strategy == "eager" else capacity_for(length, tokens, window)
    shape = {"batch": len(prompts), "dtype_bytes": resolve_dtype(settings.dtype, device).itemsize}
    views = vision_calls(preset.name, grids, facts.name)
    need = memory_need(config, views, vars(settings), cache_len=held, **shape)
    largest = int(need["peak_bytes"].argmax())
    most, free = need.iloc[largest], psutil.virtual_memory().available
    if device != "cpu":  # what an earlier model reserved goes
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    fits = "fits" if most["peak_bytes"] <= free else "does not fit"
    return need, filled(_NEED, most, name=name, preset=preset.name, device=device, free=free, fits=fits)


# -- the measurement in a record, once more ------------------------------------------------------------


def repeat_run(record: PhaseRun, *, page: str | Path | None = None, **options: Any) -> PhaseRun:
    """Measure again what ``record`` measured, with every setting of its request.

    ``page`` names the page's file where the record does not hold it. Of the ``options``, ``model``,
    ``device`` and ``trust_remote_code`` are `load_recorded`'s; the others are `run_inference`'s callbacks and
    the settings that a request does not have. Raises `OcrPhasesError` where page or model cannot be had or
    differ.
    """
    pages, asked = recorded_pages(record, page), record.request
    settings = {name: asked[name] for name in REQUEST_SETTINGS if name in asked}
    if len(set(asked["prompts"])) > 1:
        settings["prompt"] = asked["prompts"]
    of_model = {name: options.pop(name) for name in setting_names(ModelSettings) if name in options}
    run = load_recorded(record, **of_model).run_inference(pages, **settings, **options)
    names = [{**new, "file": old["file"]} for new, old in zip(run.pages, record.pages, strict=True)]
    return replace(run, pages=names)


def recorded_pages(record: PhaseRun, file: str | Path | None = None) -> list[Page]:
    """The record's pages as they were measured, or as ``file`` has them, proved by their hash."""
    kept = [record.page_data(number) for number in range(len(record.pages))]
    pages: Sequence[Any] = kept if file is None else each_page(str(file))
    require([(f"{file} does not stand for the {len(kept):,} pages of the record.", len(pages) == len(kept))])
    for page, known in zip(pages, record.pages, strict=True):
        if page is None or page_id(describe_page(*load_page(page), embed=False)) != page_id(known):
            name, what = known["file"], "not" if page is None else "only as a smaller copy"
            lacking = f"The page {name} is {what} in the record: name its file beside --from to repeat it."
            raise OcrPhasesError(f"{page} is not the page of the record, {name}." if file else lacking)
    return list(pages)


def load_recorded(record: PhaseRun, *, model: str | None = None, **settings: Any) -> OCRSession:
    """Load the record's model, or ``model`` in its place, with ``device`` and ``trust_remote_code``.

    ``model`` names the checkpoint where it has moved; it must be the very one. Only what you name is fetched
    from the hub, so a record of a hub's model needs it. A record of the vendor's class needs
    ``trust_remote_code``. Raises `OcrPhasesError` where the revision differs.
    """
    known = record.model
    unknown = "The record does not say which model to repeat it with (no {})."
    require((unknown.format(part), known.get(part)) for part in ("source", "revision", "implementation"))
    name, source, revision = (known[part] for part in ("name", "source", "revision"))
    # A folder is known by its content, a hub id by its commit, and what is built in by its name.
    folder = revision.startswith("sha256:") and source != BUILT_IN
    place = source if folder else name
    here = os.path.isdir(source) if folder else name.split(":")[0] in ("tiny", "dummy")  # noqa: PTH112
    at_hand = f"The record is of a model object: give {name} to OCRSession.from_model again."
    away = f"The record's model {place} is not on this machine: name it with --model."
    require([(at_hand, source != AT_HAND), (away, model is not None or here)])
    settings |= {part: known[part] for part in _MODEL_SETTINGS if known.get(part) is not None}
    settings["revision"] = None if revision.startswith(("sha256:", "seed:")) else revision
    session = OCRSession.load(model or place, **settings)
    if (now := session.checkpoint.revision) != revision:
        then, now = (f"{each:.20}{'…' * (len(each) > 20)}" for each in (revision, now))
        raise OcrPhasesError(f"{name} was at {then}, here it is at {now}: name the same weights (--model).")
    return session


#: The session's first name, of when it knew one family.
DeepSeekOCRSession = OCRSession
