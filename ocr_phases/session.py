"""OCRSession: a loaded model and what to call on it."""

from __future__ import annotations

import copy
import gc
import hashlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from ocr_phases.collectors import machine
from ocr_phases.errors import Interrupted, OcrPhasesError, Stopped, checked, public, stop_signals
from ocr_phases.files import each_page, split_page
from ocr_phases.inputs.images import load_page
from ocr_phases.inputs.packing import DeviceInputs, PageInputs
from ocr_phases.models.folders import local_folder
from ocr_phases.models.load import AT_HAND, BUILT_IN, Checkpoint, adopt, load_checkpoint
from ocr_phases.models.references import references
from ocr_phases.models.weights import choose_attention, resolve_dtype
from ocr_phases.record import PhaseRun, describe_page, elsewhere
from ocr_phases.recorder import Measurement, Page, Pages, Prepared, execution
from ocr_phases.settings import REQUEST_SETTINGS, ModelSettings, Request, RunSettings
from ocr_phases.steps import phases
from ocr_phases.steps.execution import decode_execution
from ocr_phases.steps.timeline import NoTimeline, Timeline, stage_hooks
from ocr_phases.sweep_models import make_cells, run_sweep
from ocr_phases.text import bytes_text, millions_text, stage_name
from ocr_phases.versions import seldom_collected


@public
class OCRSession:
    """A loaded model of one of the families, its tokenizer and device.

    ``model`` and ``tokenizer`` are the objects of the libraries they come from and may be used directly.
    """

    def __init__(self, checkpoint: Checkpoint, asked: ModelSettings | None = None) -> None:
        self.checkpoint = checkpoint
        self._asked = asked  # None of a model object
        self.model: Any = checkpoint.model
        self.tokenizer = checkpoint.tokenizer
        self.family = checkpoint.family
        self.device = checkpoint.device
        self.dtype = checkpoint.dtype
        #: The ids that end a generation and that fill rows, and text to ids without special tokens around it.
        self.eos_id, self.pad_id, self.encode = checkpoint.eos_id, checkpoint.pad_id, checkpoint.encode
        self.prepared = Prepared(checkpoint)
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
        as ``revision`` (docs/vendor.md). Raises `OcrPhasesError` for what cannot be had.
        """
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

        The values are those of `ModelSettings`, None keeps what there is. The weights are loaded once more,
        those of a model object are copied: two models take memory while both sessions live. Raises
        `OcrPhasesError` as `load` does.
        """
        own, own_dtype = self.model.config._attn_implementation, str(self.dtype).removeprefix("torch.")
        asked: dict[str, Any] = {"attention": attention or own, "dtype": dtype or own_dtype}
        if asked == {"attention": own, "dtype": own_dtype}:
            return self
        if self._asked is not None:
            return self.load(**{**vars(self._asked), **asked})
        if self.family.implementation == "vendor" and asked["attention"] != own:
            raise OcrPhasesError(
                "The vendor's class has its attention from loading: load it with another one."
            )
        settings = ModelSettings(device=self.device, **asked | {"attention": attention})
        model = copy.deepcopy(self.model)
        if asked["attention"] != own:
            model.set_attn_implementation(choose_attention(type(model), settings))
        for parameter in model.parameters():  # buffers keep theirs, as where a checkpoint is loaded
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(resolve_dtype(settings.dtype, self.device))
        return self.from_model(model, self.tokenizer, name=self.checkpoint.name)

    # -- the phases, one by one -------------------------------------------------------------------

    def prepare(
        self,
        page: Pages,
        *,
        preset: str | None = None,
        prompt: str | Sequence[str] = "markdown",
        grounding: bool | None = None,
    ) -> PageInputs:
        """A page (or a list of pages, one a row) and a prompt to packed inputs, still on the CPU.

        ``preset`` as in `run_inference`. See `ocr_phases.inputs.packing` for the rules and errors.
        """
        asked = RunSettings(preset=preset, prompt=prompt, grounding=grounding, max_new_tokens=1)
        return Measurement(self.prepared, page, asked).packed

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
        weights = sum(tensor.numel() * tensor.element_size() for tensor in self.model.parameters())
        total = parameters.pop("total")
        parts = ", ".join(f"{stage_name(name)} {millions_text(count)}" for name, count in parameters.items())
        facts = {
            "family": f"{self.family.facts.name}, {self.family.implementation} class",
            "device": f"{machine.describe_device(self.device)['name']} ({self.device})",
            "dtype": str(self.dtype).removeprefix("torch."),
            "parameters": f"{millions_text(total)}, {bytes_text(weights)}: {parts}",
            "language model": f"{text.num_hidden_layers} layers, hidden size {text.hidden_size:,}",
            "vocabulary": f"{text.vocab_size:,} tokens",
            "longest sequence": f"{text.max_position_embeddings:,} tokens",
        }
        return elsewhere("show.results.facts_bundle")(f"Model {self.checkpoint.name}", facts)

    def references(self) -> pd.DataFrame:
        """Where the loaded source does what is measured (`ocr_phases.models.references`)."""
        return references(self.model, self.checkpoint.revision)

    # -- the measurement --------------------------------------------------------------------------

    @checked(RunSettings)
    def run_inference(
        self,
        page: Pages,
        prompt: str | Sequence[str] = "markdown",
        *,
        on_tokens: Callable[[int, list[list[int]]], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
        **settings: Any,
    ) -> PhaseRun:
        """Measure a page: ``warmup`` unrecorded runs, then ``repeats`` recorded ones, as one `PhaseRun`.

        ``settings`` are those of `RunSettings`. Each run prepares the page, prefills and decodes up to
        ``max_new_tokens`` (the prefill's token counted) from the same inputs and seed. Preparing a strategy
        is timed separately, and kept for later runs of the same shapes. The end token is looked for every
        ``eos_check_every`` steps and the surplus is cut. ``verify``, ``token_probabilities``
        (`ocr_phases.collectors.probabilities`), ``ceilings`` (`ocr_phases.collectors.machine`) and
        ``kernels`` (`ocr_phases.analyse.kernels`) run after everything that is timed.
        ``on_tokens(repeat, new ids a row)`` is called after the prefill and while decoding (repeat -1 is
        warm-up), ``progress(runs done, runs in all)`` before the first run, when all is set up, and after
        each. Either may raise `Stopped`: the record is then of the repeats finished by then.

        Raises `OcrPhasesError` for a request that contradicts itself or that the model cannot hold, `Stopped`
        where that came before the end of the first repeat, and for a KeyboardInterrupt `Interrupted`, a
        KeyboardInterrupt too: `last_run` then has the finished repeats.
        """
        self.last_run = None
        asked = RunSettings(prompt=prompt, **settings)
        measurement = Measurement(self.prepared, page, asked, on_tokens, progress or (lambda *_: None))
        try:
            try:
                measurement.measure()
            finally:
                with stop_signals():  # they wait for the record
                    self.last_run = measurement.record() if measurement.runs else None
        except Stopped:
            if self.last_run is None:
                raise
        except KeyboardInterrupt as signalled:
            raise Interrupted(self.last_run, *(signalled.args or (signal.SIGINT,))) from None
        assert self.last_run is not None
        return self.last_run

    @checked(RunSettings)
    def check_request(self, page: Pages, **settings: Any) -> Request:
        """What `run_inference` would measure, with every default; raises what that would before it runs."""
        return Measurement(self.prepared, page, RunSettings(**settings)).request

    @checked(make_cells, run_sweep)
    def sweep(self, page: str | Path, **options: Any) -> Any:
        """Measure ``page`` at every combination as one `ocr_phases.analyse.scaling.SweepResult`.

        ``options`` and errors are those of `make_cells` and of `run_sweep`. Records in ``folder`` are not
        measured again, and all of them are part of the result; without it nothing is written.
        """
        return run_sweep({"": self.with_model}, page, **options)


_kept: dict[ModelSettings, OCRSession] = {}
#: What a record's model has of `ModelSettings`, beside its name and revision.
_MODEL_SETTINGS = ("dtype", "attention", "implementation", "cuda_calls")


def kept_session(**settings: Any) -> OCRSession:
    """The session last loaded with these very ``settings`` (`ModelSettings`), else a new one.

    One is kept, so that a device never holds two models. Raises as `OCRSession.load` does.
    """
    key = ModelSettings(**settings)
    if key not in _kept:
        _kept.clear()
        gc.collect()  # a model has cycles, and the next one may need its memory
        _kept[key] = OCRSession.load(**vars(key))
    return _kept[key]


# -- the measurement in a record, once more ------------------------------------------------------------


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
    pages, asked = recorded_pages(record, page), record.request
    settings = {name: asked[name] for name in REQUEST_SETTINGS if name in asked}
    if len(set(asked["prompts"])) > 1:
        settings["prompt"] = asked["prompts"]
    session = load_recorded(record, model=model, device=device, trust_remote_code=trust_remote_code)
    run = session.run_inference(pages, **settings, **options)
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
    for name in ("source", "revision", "implementation"):
        if not known.get(name):
            raise OcrPhasesError(f"The record does not say which model to repeat it with (no {name}).")
    source, revision = known["source"], known["revision"]
    if source == AT_HAND:
        raise OcrPhasesError(
            f"The record is of a model object, {known['name']}, which no name loads: give it to "
            "OCRSession.from_model and measure the page again."
        )
    # A folder is known by its content, a hub id by its commit, and what is built in by its name.
    local = revision.startswith("sha256:") and source != BUILT_IN
    source = source if local else known["name"]
    here = os.path.isdir(source) if local else source.split(":")[0] in ("tiny", "dummy")  # noqa: PTH112
    if model is None and not here:
        raise OcrPhasesError(f"The record's model {source} is not on this machine: name it with --model.")
    settings = {name: known[name] for name in _MODEL_SETTINGS if known.get(name) is not None}
    if not revision.startswith(("sha256:", "seed:")):
        settings["revision"] = revision
    session = OCRSession.load(model or source, device=device, trust_remote_code=trust_remote_code, **settings)
    if session.checkpoint.revision != revision:
        then, now = (
            each if len(each) <= 24 else f"{each[:20]}…" for each in (revision, session.checkpoint.revision)
        )
        raise OcrPhasesError(
            f"The record was made with {known['name']} at {then}, here it is at {now}: "
            "repeat it with the same weights (--model)."
        )
    return session


#: The session's first name, of when it knew one family.
DeepSeekOCRSession = OCRSession
