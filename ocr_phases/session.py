"""OCRSession: a loaded model and what to call on it."""

from __future__ import annotations

import contextlib
import copy
import gc
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ocr_phases.collectors import machine
from ocr_phases.collectors.kernels import check_kernels, kernel_view
from ocr_phases.collectors.live_checks import ForwardHooks, input_verdicts, syncs_counted
from ocr_phases.collectors.machine import Conditions, PeakMemory, measure_ceilings
from ocr_phases.collectors.parity import parity_check, parity_result
from ocr_phases.collectors.probabilities import sureness_or_none
from ocr_phases.errors import Interrupted, OcrPhasesError, Stopped, checked, public, stop_signals
from ocr_phases.families import GROUNDING_TAG
from ocr_phases.files import TemporaryFolder
from ocr_phases.inputs.images import load_page
from ocr_phases.inputs.packing import DeviceInputs, PageInputs, make_views, pack
from ocr_phases.models.load import Checkpoint, adopt, load_checkpoint
from ocr_phases.models.references import references
from ocr_phases.models.weights import choose_attention, resolve_dtype
from ocr_phases.record import PhaseRun, elsewhere
from ocr_phases.recorder import Run, cache_of, make_record, rows_until_end
from ocr_phases.request import (
    Page,
    check_length,
    choose_preset,
    make_rows,
    memory_errors_explained,
)
from ocr_phases.settings import NEW_TOKENS, ModelSettings, Request, RunSettings, is_published, resolve_infer
from ocr_phases.setup import PreparedStrategies, Setup
from ocr_phases.steps import phases
from ocr_phases.steps.execution import (
    check_strategy,
    current_device,
    decode_attention,
    decode_execution,
    eos_interval,
)
from ocr_phases.steps.sampling import Sampler, one_shot
from ocr_phases.steps.timeline import NoTimeline, Timeline, stage_hooks
from ocr_phases.sweep_models import AXES, make_cells, one_sentence, run_sweep
from ocr_phases.text import bytes_text, millions_text, stage_name
from ocr_phases.versions import seldom_collected


@public
class OCRSession:
    """A loaded model of one of the families, its tokenizer and device.

    ``model`` and ``tokenizer`` are the objects of the libraries they come from and may be used directly.
    """

    def __init__(self, checkpoint: Checkpoint, load: Callable[..., OCRSession] | None = None) -> None:
        self.checkpoint = checkpoint
        self._load_again = load  # None of a model object
        self.model: Any = checkpoint.model
        self.tokenizer = checkpoint.tokenizer
        self.family = checkpoint.family
        self.device = checkpoint.device
        self.dtype = checkpoint.dtype
        #: The ids that end a generation and that fill rows, and text to ids without special tokens around it.
        self.eos_id, self.pad_id, self.encode = checkpoint.eos_id, checkpoint.pad_id, checkpoint.encode
        self._ceilings: dict[torch.dtype, dict[str, Any] | None] = {}
        self.prepared = PreparedStrategies(self.model)
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
        name = str(model) if isinstance(model, Path) else model
        return cls._load(ModelSettings(model=name, **settings))

    @classmethod
    @checked(ModelSettings)
    def from_local(cls, folder: str | Path, **settings: Any) -> OCRSession:
        """Load a checkpoint folder, and nothing but a folder; ``settings`` as in `load`."""
        return cls._load(ModelSettings(model=str(folder), **settings), local_only=True)

    @classmethod
    def _load(cls, asked: ModelSettings, *, local_only: bool = False) -> OCRSession:
        def again(**changed: Any) -> OCRSession:
            return cls._load(replace(asked, **changed), local_only=local_only)

        with seldom_collected():
            return cls(load_checkpoint(asked, local_only=local_only), again)

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
        model, own = self.model, self.model.config._attn_implementation
        now = {"attention": own, "dtype": str(self.dtype).removeprefix("torch.")}
        asked = {"attention": attention, "dtype": dtype}
        changed: dict[str, Any] = {name: asked[name] for name in now if asked[name] not in (None, now[name])}
        if not changed:
            return self
        if self._load_again is not None:
            return self._load_again(**changed)
        if self.family.implementation == "vendor" and "attention" in changed:
            raise OcrPhasesError(
                "The vendor's class has its attention from loading: load it with another one."
            )
        settings = ModelSettings(**{"device": self.device, "dtype": now["dtype"], **changed})
        copied = copy.deepcopy(model)
        if "attention" in changed:
            copied.set_attn_implementation(choose_attention(type(model), settings))
        for parameter in copied.parameters():  # buffers keep theirs, as where a checkpoint is loaded
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(resolve_dtype(settings.dtype, self.device))
        return self.from_model(copied, self.tokenizer, name=self.checkpoint.name)

    # -- the phases, one by one -------------------------------------------------------------------

    def prepare(
        self,
        page: Page | Sequence[Page],
        *,
        preset: str | None = None,
        prompt: str | Sequence[str] = "markdown",
        grounding: bool | None = None,
    ) -> PageInputs:
        """A page (or a list of pages, one a row) and a prompt to packed inputs, still on the CPU.

        ``preset`` as in `run_inference`. See `ocr_phases.inputs.packing` for the rules and errors.
        """
        rows, prompts = make_rows(page, prompt, grounding, self.family.facts)
        chosen = self._choose_preset(preset, rows)["preset"]
        return self._pack(rows, chosen, prompts, NoTimeline())[0]

    @checked(phases.prefill)
    def run_prefill(
        self, inputs: PageInputs | DeviceInputs, timeline: Timeline | None = None, **options: Any
    ) -> phases.DecodeState:
        """`phases.prefill` on this session's model and device."""
        if isinstance(inputs, PageInputs):
            inputs = inputs.to(self.device, self.dtype)
        with self._execution():
            return phases.prefill(self.model, inputs, timeline, **options)

    def run_decode_step(self, state: phases.DecodeState, timeline: Timeline | None = None) -> Tensor:
        """`phases.decode_step`: one more token a row, int64 [B]."""
        hooks = stage_hooks(self.model, self.family, timeline or NoTimeline(), [])
        with self._execution(), decode_execution(self.model), hooks:
            return phases.decode_step(self.model, state, timeline)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.checkpoint.name!r}, device={self.device!r}, dtype={self.dtype})"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        text, parameters = self._text_config, self.family.parameters(self.model)
        weights = sum(tensor.numel() * tensor.element_size() for tensor in self.model.parameters())
        total = parameters.pop("total")
        parts = ", ".join(f"{stage_name(name)} {millions_text(count)}" for name, count in parameters.items())
        facts = {
            "family": f"{self.family.name}, {self.family.implementation} class",
            "device": f"{machine.describe_device(self.device)['name']} ({self.device})",
            "dtype": str(self.dtype).removeprefix("torch."),
            "parameters": f"{millions_text(total)}, {bytes_text(weights)}: {parts}",
            "language model": f"{text.num_hidden_layers} layers, hidden size {text.hidden_size:,}",
            "vocabulary": f"{text.vocab_size:,} tokens",
            "longest sequence": f"{text.max_position_embeddings:,} tokens",
        }
        return elsewhere("facts_bundle")(f"Model {self.checkpoint.name}", facts)

    def references(self) -> pd.DataFrame:
        """Where the loaded source does what is measured (`ocr_phases.models.references`)."""
        return references(self.model, self.checkpoint.revision)

    # -- the measurement --------------------------------------------------------------------------

    @checked(RunSettings)
    def run_inference(
        self,
        page: Page | Sequence[Page],
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
        (`ocr_phases.collectors.probabilities`), ``ceilings`` (`hardware_ceilings`) and ``kernels``
        (`ocr_phases.analyse.kernels`) run after everything that is timed.
        ``on_tokens(repeat, new ids a row)`` is called after the prefill and while decoding (repeat -1 is
        warm-up), ``progress(runs done, runs in all)`` before the first run, when all is set up, and after
        each. Either may raise `Stopped`: the record is then of the repeats finished by then.

        Raises `OcrPhasesError` for a request that contradicts itself or that the model cannot hold, `Stopped`
        where that came before the end of the first repeat, and for a KeyboardInterrupt `Interrupted`, a
        KeyboardInterrupt too: `last_run` then has the finished repeats.
        """
        self.last_run = None
        asked = RunSettings(prompt=prompt, **settings)
        request, packed = self._request(page, asked)
        warmup, total = request.warmup, request.warmup + request.repeats
        runs: list[Run] = []
        after: dict[str, Any] = {}
        interrupt: KeyboardInterrupt | None = None
        explained = memory_errors_explained(self.device, request, self.family.facts)
        with current_device(self.device), explained:
            try:
                setup = self._set_up(request, packed)
                memory, conditions = PeakMemory(self.device), Conditions(self.device)
                for number in range(-warmup, request.repeats):
                    if progress is not None:
                        progress(number + warmup, total)
                    notify = None if on_tokens is None else partial(on_tokens, max(number, -1))
                    with conditions.of(number):
                        run = self._run_once(request, setup, number, memory, notify)
                    if run.waits is not None:
                        after["waits"] = run.waits
                    if number >= 0:
                        runs.append(run)
                if progress is not None:
                    progress(total, total)
                self._measure_after(request, setup, runs[0], after)
            except Stopped:
                if not runs:
                    raise
            except KeyboardInterrupt as signalled:
                interrupt = signalled
        try:
            with stop_signals():
                if runs:
                    source, prepared, around = memory.source, setup.described(), conditions.described()
                    self.last_run = make_record(
                        self.checkpoint, request, runs, source, prepared, around, after
                    )
        except KeyboardInterrupt as signalled:
            interrupt = signalled
        if interrupt is not None:
            raise Interrupted(self.last_run, *(interrupt.args or (signal.SIGINT,))) from None
        assert self.last_run is not None
        return self.last_run

    @checked(RunSettings)
    def check_request(self, page: Page | Sequence[Page], **settings: Any) -> None:
        """Raise the `OcrPhasesError` that `run_inference` would raise before its first run."""
        request, packed = self._request(page, RunSettings(**settings))
        self._check_length(packed or self._pack_request(request), request)

    def _measure_after(self, request: Request, setup: Setup, run: Run, after: dict[str, Any]) -> None:
        """What runs after everything timed goes into ``after``, by its setting: an interrupt keeps that."""
        assert run.packed is not None
        inputs = partial(run.packed.to, self.device, self.dtype)
        if request.verify:
            after["verify"] = self._compare_with_generate(request, inputs, run.ids)
        if request.token_probabilities:
            ids = rows_until_end(self.checkpoint, request, run)
            with self._execution(request.autocast):
                after["token_probabilities"] = sureness_or_none(self.checkpoint, run.packed, ids)
        if request.kernels:
            once = partial(self._run_once, setup=setup, number=0, memory=PeakMemory(self.device))
            after["kernels"] = kernel_view(lambda short: once(short).spans, request, self.device)
        if request.ceilings:
            after["ceilings"] = self.hardware_ceilings(autocast=request.autocast)

    @checked(make_cells, run_sweep)
    def sweep(self, page: str | Path, *, folder: str | Path | None = None, **options: Any) -> Any:
        """Measure ``page`` at every combination as one `ocr_phases.analyse.scaling.SweepResult`.

        ``options`` and errors are those of `make_cells` and of `run_sweep`. Records in ``folder`` are not
        measured again, and all of them are part of the result; without it nothing is written.
        """
        cells = make_cells(**{name: options.pop(name) for name in AXES if name in options})
        with contextlib.ExitStack() as stack:
            kept = folder or stack.enter_context(TemporaryFolder())
            run_sweep(self, page, cells, kept, **options)
            return elsewhere("SweepResult").load(kept)

    def _request(self, page: Page | Sequence[Page], asked: RunSettings) -> tuple[Request, PageInputs | None]:
        """What was asked for with every default filled in, and its inputs where that took packing them.

        Raises `OcrPhasesError` for what cannot run here.
        """
        facts = self.family.facts
        rows, prompts = make_rows(page, asked.prompt, asked.grounding, facts)
        several = any(len(row) > 1 for row in rows)
        infer, autocast = resolve_infer(asked.infer, asked.autocast, facts.name, several_pages=several)
        every, ignore_eos, grounding = asked.eos_check_every, asked.ignore_eos, asked.grounding
        if grounding is None and facts.leads[1]:
            grounding = any(GROUNDING_TAG in text for text in prompts)
        resolved = {
            **vars(asked),
            **self._choose_preset(asked.preset, rows),
            "prompt": asked.prompt if isinstance(asked.prompt, str) else prompts[0],
            "infer": infer,
            "autocast": autocast,
            "grounding": grounding,
            "ignore_eos": self.checkpoint.default_ignore_eos if ignore_eos is None else ignore_eos,
            "eos_check_every": eos_interval(asked.strategy) if every is None else every,
            "max_new_tokens": asked.max_new_tokens or NEW_TOKENS,
        }
        request, packed = Request(pages=rows, prompts=prompts, **resolved), None
        if asked.max_new_tokens is None and is_published(asked.infer):
            packed = self._pack_request(request)
            request = replace(request, max_new_tokens=self._published_limit(packed.prefill_len))
        if request.kernels:
            check_kernels(self.device, generate=request.generate, trace=request.kernel_trace)
        check_strategy(
            request.strategy, request.vision, family=self.family, device=self.device, autocast=autocast
        )
        return request, packed

    def _published_limit(self, prompt_len: int) -> int:
        """New tokens after which the published code ends, as far as the model's positions reach."""
        facts = self.family.facts
        limit = facts.published_limit - prompt_len * facts.limit_has_prompt
        return max(1, min(limit, self._text_config.max_position_embeddings - prompt_len))

    def _set_up(self, request: Request, packed: PageInputs | None) -> Setup:
        """What the request's strategies need, made before anything is measured."""
        if request.strategy == request.vision == "eager":
            return Setup()
        packed = packed or self._pack_request(request)
        self._check_length(packed, request)
        with self._execution():
            return self.prepared.set_up(request, packed.to(self.device, self.dtype))

    def hardware_ceilings(self, *, autocast: bool = False) -> dict[str, Any] | None:
        """What this session's device can do in its dtype (`measure_ceilings`), measured once and kept.

        ``autocast`` asks for bfloat16. Takes up to a second, so not between two things that are timed.
        """
        dtype = torch.bfloat16 if autocast else self.dtype
        if dtype not in self._ceilings:
            with current_device(self.device):
                self._ceilings[dtype] = measure_ceilings(self.device, dtype)
        return self._ceilings[dtype]

    def _compare_with_generate(
        self, request: Request, inputs: Callable[[], DeviceInputs], ids: list[list[int]]
    ) -> dict[str, Any]:
        """The ``parity`` check: the same request through ``model.generate()``, after everything measured."""
        try:
            on_device = inputs()
            with self._execution(request.autocast):
                theirs = one_shot(self.checkpoint, on_device, request)
                return parity_check(self.checkpoint, request, on_device, ids, theirs)
        # A class without generate(), or out of memory: what was measured stands.
        except (OcrPhasesError, RuntimeError, MemoryError) as error:
            return parity_result("n/a", one_sentence(error))

    def _run_once(
        self,
        request: Request,
        setup: Setup,
        number: int,
        memory: PeakMemory,
        on_tokens: Callable[[list[list[int]]], None] | None = None,
    ) -> Run:
        """Prepare, prefill and decode once (or prepare and ``model.generate()``)."""
        timeline, state = Timeline(self.device), None
        with memory.of("prepare"), timeline.in_phase("prepare"):
            packed, pages = self._pack(request.pages, request.preset, request.prompts, timeline)
            with timeline.span("transfer"):
                inputs = packed.to(self.device, self.dtype)
        self._check_length(packed, request)
        # Counting takes time, so it is in no timed run.
        waits: list[str] | None = [] if number < 0 and torch.device(self.device).type == "cuda" else None
        hooks = ForwardHooks(self.family)
        with self._execution(request.autocast), setup.vision_execution():
            if request.generate:
                with memory.of("generate"), timeline.in_phase("generate"):
                    ids = one_shot(self.checkpoint, inputs, request, on_tokens)
            else:
                state = self._two_phases(request, setup, inputs, timeline, memory, hooks, waits, on_tokens)
                ids = state.ids
        seen = {} if state is None else hooks.verdicts(packed, state, timeline.vectors)
        return Run(
            ids=ids,
            spans=timeline.rows(number),
            peaks=memory.taken(),
            verdicts=input_verdicts(self.checkpoint, packed, autocast=request.autocast) | seen,
            cache=cache_of(state, self.family.window(self.model), setup.step),
            waits=None if waits is None or state is None else (len(waits), len(state.lengths) - 1),
            # All runs have the same.
            packed=packed if number == 0 else None,
            pages=pages if number == 0 else None,
        )

    def _two_phases(
        self,
        request: Request,
        setup: Setup,
        inputs: DeviceInputs,
        timeline: Timeline,
        memory: PeakMemory,
        hooks: ForwardHooks,
        waits: list[str] | None,
        on_tokens: Callable[[list[list[int]]], None] | None,
    ) -> phases.DecodeState:
        """Prefill and decode, watched by ``hooks``; the host's waits in decode go into ``waits``."""
        step = setup.step
        sampler = Sampler(request.infer, request.seed, self.device)
        with memory.of("prefill"), hooks.watching(self.model, "prefill"):
            state = phases.prefill(self.model, inputs, timeline, sampler=sampler, step=step)
        if request.first_token == "redecode":
            phases.redecode(state)
        elif on_tokens is not None:
            on_tokens([list(row) for row in state.ids])
        # Only an eager step calls the model itself.
        watched = hooks.watching(self.model, "decode") if step is None else nullcontext()
        with memory.of("decode"), watched:
            return phases.decode(
                self.model,
                state,
                request.max_new_tokens,
                timeline,
                eos_ids=() if request.ignore_eos else (self.eos_id,),
                pad_id=self.pad_id,
                eos_check_every=request.eos_check_every,
                on_tokens=on_tokens,
                step=step,
                around=nullcontext() if waits is None else syncs_counted(waits),
            )

    # -- parts ------------------------------------------------------------------------------------

    def _choose_preset(self, asked: str | None, rows: list[list[Page]]) -> dict[str, Any]:
        checkpoint, facts = self.checkpoint, self.family.facts
        default = checkpoint.default_preset or facts.default_preset
        return choose_preset(asked, rows, default, facts)

    def _pack_request(self, request: Request) -> PageInputs:
        return self._pack(request.pages, request.preset, request.prompts, NoTimeline())[0]

    def _pack(
        self, rows: list[list[Page]], preset_name: str, prompts: list[str], timeline: Timeline
    ) -> tuple[PageInputs, list[list[tuple]]]:
        """Load, cut and tokenise; also gives each page as (image, bytes, name)."""
        preset = self.family.facts.preset(preset_name)
        with timeline.span("load_image"):
            pages = [[load_page(page) for page in row] for row in rows]
            views = [[make_views(image, preset) for image, _, _ in row] for row in pages]
        with timeline.span("tokenizer"):
            packed = pack(
                views,
                prompts,
                self.encode,
                image_token_id=self.checkpoint.image_token_id,
                bos_token_id=self._text_config.bos_token_id,
                pad_token_id=self.pad_id,
            )
        return packed, pages

    @property
    def _text_config(self) -> Any:
        return self.model.config.get_text_config()

    @contextlib.contextmanager
    def _execution(self, autocast: bool = False) -> Iterator[None]:
        """Around all that runs here: the prefill and `generate()` have no cuDNN attention either.

        Decode chooses its kernels once more inside (`decode_execution`): other ones for a static step, and it
        can be called without a session.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(current_device(self.device))
            stack.enter_context(decode_attention(self.device))
            if autocast:
                stack.enter_context(torch.autocast(torch.device(self.device).type, torch.bfloat16))
            yield

    def _check_length(self, packed: PageInputs, request: Request) -> None:
        check_length(packed.prefill_len, request, self._text_config.max_position_embeddings)


_kept: dict[ModelSettings, OCRSession] = {}


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


#: The session's first name, of when it knew one family.
DeepSeekOCRSession = OCRSession
