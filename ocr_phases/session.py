"""OCRSession: a loaded model and what to call on it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from ocr_phases.collectors import environment
from ocr_phases.collectors.ceilings import measure_ceilings
from ocr_phases.collectors.conditions import Conditions
from ocr_phases.collectors.kernel_profile import check_kernels, kernel_view
from ocr_phases.collectors.live_checks import ForwardHooks, input_verdicts, syncs_counted
from ocr_phases.collectors.parity import parity_check, parity_result
from ocr_phases.collectors.probabilities import sureness_or_none
from ocr_phases.collectors.run import Run
from ocr_phases.errors import Interrupted, OcrPhasesError, Stopped, checked, public, stop_signals
from ocr_phases.families import GROUNDING_TAG
from ocr_phases.files import TemporaryFolder
from ocr_phases.inputs.images import load_page
from ocr_phases.inputs.packing import DeviceInputs, PageInputs, make_views, pack
from ocr_phases.inputs.request import (
    Page,
    Request,
    check_length,
    choose_preset,
    make_rows,
    memory_errors_explained,
)
from ocr_phases.models.caches import cache_bytes_per_token
from ocr_phases.models.load import Checkpoint, load_checkpoint, resolve_device, resolve_dtype
from ocr_phases.models.references import references
from ocr_phases.models.wiring import family_of
from ocr_phases.record import PhaseRun, elsewhere
from ocr_phases.recorder import make_record, rows_until_end
from ocr_phases.settings import NEW_TOKENS, ModelSettings, RunSettings, is_published, resolve_infer
from ocr_phases.setup import PreparedStrategies, Setup
from ocr_phases.steps import phases
from ocr_phases.steps.execution import (
    check_strategy,
    current_device,
    decode_attention,
    decode_execution,
    eos_interval,
)
from ocr_phases.steps.one_shot import one_shot
from ocr_phases.steps.sampling import Sampler
from ocr_phases.steps.timeline import NoTimeline, PeakMemory, Timeline, stage_hooks
from ocr_phases.sweep_cells import make_cells, one_sentence, run_sweep
from ocr_phases.text import bytes_text, millions_text, stage_name
from ocr_phases.versions import seldom_collected

if TYPE_CHECKING:
    from ocr_phases.analyse.scaling import SweepResult


@public
class OCRSession:
    """A loaded model of one of the families, its tokenizer and device.

    ``model`` and ``tokenizer`` are the objects of the libraries they come from and may be used directly.
    """

    def __init__(self, checkpoint: Checkpoint, device: str, dtype: torch.dtype) -> None:
        self.checkpoint = checkpoint
        self.model: Any = checkpoint.model
        self.tokenizer = checkpoint.tokenizer
        self.family = family_of(self.model)
        self.device = device
        self.dtype = dtype
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
    def _load(cls, asked: ModelSettings, **options: Any) -> OCRSession:
        device = resolve_device(asked.device)
        dtype = resolve_dtype(asked.dtype, device)
        options |= {**vars(asked), "device": device, "dtype": dtype}
        with seldom_collected():
            return cls(load_checkpoint(options.pop("model"), **options), device, dtype)

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
            "device": f"{environment.describe_device(self.device)['name']} ({self.device})",
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
        request = self._request(page, asked)
        warmup, repeats = request.warmup, request.repeats
        runs: list[Run] = []
        waits: tuple[int, int] | None = None
        after: dict[str, Any] = {}
        interrupt: KeyboardInterrupt | None = None
        explained = memory_errors_explained(self.device, request, self.family.facts)
        with current_device(self.device), explained:
            try:
                setup = self._set_up(request)
                memory, conditions = PeakMemory(self.device), Conditions(self.device)
                if progress is not None:
                    progress(0, warmup + repeats)
                for number in range(-warmup, repeats):
                    notify = None if on_tokens is None else partial(on_tokens, max(number, -1))
                    with conditions.of(number):
                        run = self._run_once(request, setup, number, memory, notify)
                    if number >= 0:
                        runs.append(run)
                    elif run.waits is not None:
                        waits = run.waits, len(run.lengths) - 1
                    if progress is not None:
                        progress(number + warmup + 1, warmup + repeats)
                self._measure_after(request, setup, runs[0], after)
            except Stopped:
                if not runs:
                    raise
            except KeyboardInterrupt as signalled:
                interrupt = signalled
                if not runs:
                    raise _interrupted(None, interrupt) from None
        try:
            with stop_signals():
                record = self.last_run = make_record(
                    self,
                    request,
                    runs,
                    memory.source,
                    setup.described(),
                    conditions.described(),
                    waits,
                    after,
                )
        except KeyboardInterrupt as signalled:
            interrupt = signalled
        if interrupt is not None:
            raise _interrupted(self.last_run, interrupt) from None
        return record

    @checked(RunSettings)
    def check_request(self, page: Page | Sequence[Page], **settings: Any) -> None:
        """Raise the `OcrPhasesError` that `run_inference` would raise before its first run."""
        request = self._request(page, RunSettings(**settings))
        packed, _ = self._pack(request.pages, request.preset, request.prompts, NoTimeline())
        self._check_length(packed, request)

    def _measure_after(self, request: Request, setup: Setup, run: Run, after: dict[str, Any]) -> None:
        """What runs after everything timed goes into ``after``, by its setting: an interrupt keeps that."""
        if request.verify:
            after["verify"] = None if request.generate else self._compare_with_generate(request, run.ids)
        if request.token_probabilities:
            ids = rows_until_end(self, request, run)
            with self._execution(request.autocast):
                after["token_probabilities"] = sureness_or_none(self, run.packed, ids)
        if request.kernels:
            once = partial(
                self._run_once, setup=setup, number=0, memory=PeakMemory(self.device), on_tokens=None
            )
            after["kernels"] = kernel_view(once, request, self.device)
        if request.ceilings:
            after["ceilings"] = self.hardware_ceilings(autocast=request.autocast)

    @checked(run_sweep)
    def sweep(
        self,
        page: str | Path,
        *,
        presets: Sequence[str] = ("tiny", "base"),
        strategies: Sequence[str] = ("eager",),
        visions: Sequence[str] = ("eager",),
        batches: Sequence[int] = (1,),
        lengths: Sequence[int] = (32,),
        folder: str | Path | None = None,
        **options: Any,
    ) -> SweepResult:
        """Measure ``page`` at every combination as one `SweepResult`.

        ``batches`` are copies of the page side by side, ``lengths`` new tokens of each row. Records in
        ``folder`` are not measured again, and all of them are part of the result; without it nothing is
        written. ``options`` and errors are those of `run_sweep`.
        """
        cells = make_cells(presets, strategies, batches, lengths, visions)
        with contextlib.ExitStack() as stack:
            kept = folder or stack.enter_context(TemporaryFolder())
            run_sweep(self, page, cells, kept, **options)
            return elsewhere("SweepResult").load(kept)

    def _request(self, page: Page | Sequence[Page], asked: RunSettings) -> Request:
        """What was asked for with every default filled in; `OcrPhasesError` for what cannot run here."""
        facts = self.family.facts
        rows, prompts = make_rows(page, asked.prompt, asked.grounding, facts)
        several = any(len(row) > 1 for row in rows)
        infer, autocast = resolve_infer(asked.infer, asked.autocast, facts.name, several_pages=several)
        every, ignore_eos, grounding = asked.eos_check_every, asked.ignore_eos, asked.grounding
        if grounding is None and facts.leads[1]:
            grounding = any(GROUNDING_TAG in text for text in prompts)
        preset = self._choose_preset(asked.preset, rows)
        limit = asked.max_new_tokens
        if limit is None:
            limit = NEW_TOKENS
            if is_published(asked.infer):
                packed, _ = self._pack(rows, preset["preset"], prompts, NoTimeline())
                limit = self._published_limit(packed.prefill_len)
        resolved = {
            **vars(asked),
            "prompt": asked.prompt if isinstance(asked.prompt, str) else prompts[0],
            "infer": infer,
            "autocast": autocast,
            "grounding": grounding,
            "ignore_eos": self.checkpoint.default_ignore_eos if ignore_eos is None else ignore_eos,
            "eos_check_every": eos_interval(asked.strategy) if every is None else every,
            **preset,
            "max_new_tokens": limit,
        }
        request = Request(pages=rows, prompts=prompts, **resolved)
        if request.kernels:
            check_kernels(self.device, generate=request.generate, trace=request.kernel_trace)
        check_strategy(
            request.strategy,
            request.vision,
            family=self.family,
            device=self.device,
            autocast=request.autocast,
        )
        return request

    def _published_limit(self, prompt_len: int) -> int:
        """New tokens after which the published code ends, as far as the model's positions reach."""
        facts = self.family.facts
        limit = facts.published_limit - prompt_len * facts.limit_has_prompt
        return max(1, min(limit, self._text_config.max_position_embeddings - prompt_len))

    def _set_up(self, request: Request) -> Setup:
        """What the request's strategies need, made before anything is measured."""
        if request.strategy == request.vision == "eager":
            return Setup()
        packed, _ = self._pack(request.pages, request.preset, request.prompts, NoTimeline())
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

    def _compare_with_generate(self, request: Request, ids: list[list[int]]) -> dict[str, Any]:
        """The ``parity`` check: the same request through ``model.generate()``, after everything measured."""
        try:
            packed, _ = self._pack(request.pages, request.preset, request.prompts, NoTimeline())
            inputs = packed.to(self.device, self.dtype)
            with self._execution(request.autocast):
                return parity_check(self, request, inputs, ids, one_shot(self, inputs, request))
        # A class without generate(), or out of memory: what was measured stands.
        except (OcrPhasesError, RuntimeError, MemoryError) as error:
            return parity_result("n/a", "the tokens of generate()", one_sentence(error))

    def _run_once(
        self,
        request: Request,
        setup: Setup,
        number: int,
        memory: PeakMemory,
        on_tokens: Callable[[list[list[int]]], None] | None,
    ) -> Run:
        """Prepare, prefill and decode once (or prepare and ``model.generate()``)."""
        timeline = Timeline(self.device)
        with memory.of("prepare"), timeline.in_phase("prepare"):
            packed, pages = self._pack(request.pages, request.preset, request.prompts, timeline)
            with timeline.span("transfer"):
                inputs = packed.to(self.device, self.dtype)
        self._check_length(packed, request)
        lengths: list[int] = []
        entries: list[int] = []
        bytes_per_token = 0
        waits: list[str] = []
        counted = number < 0 and torch.device(self.device).type == "cuda"  # takes time: in no timed run
        seen: dict[str, Any] = {}
        hooks = ForwardHooks(self.family)
        step = setup.step
        with self._execution(request.autocast), setup.vision_execution():
            if request.generate:
                with memory.of("generate"), timeline.in_phase("generate"):
                    ids = one_shot(self, inputs, request, on_tokens)
            else:
                sampler = Sampler(request.infer, request.seed, self.device)
                with memory.of("prefill"), hooks.watching(self.model, "prefill"):
                    state = phases.prefill(
                        self.model,
                        inputs,
                        timeline,
                        sampler=sampler,
                        step=step,
                    )
                bytes_per_token = cache_bytes_per_token(state.cache)
                if request.first_token == "redecode":
                    phases.redecode(state)
                elif on_tokens is not None:
                    on_tokens([list(row) for row in state.ids])
                # Only an eager step calls the model itself.
                watched = hooks.watching(self.model, "decode") if step is None else nullcontext()
                with memory.of("decode"), watched:
                    phases.decode(
                        self.model,
                        state,
                        request.max_new_tokens,
                        timeline,
                        eos_ids=() if request.ignore_eos else (self.eos_id,),
                        pad_id=self.pad_id,
                        eos_check_every=request.eos_check_every,
                        on_tokens=on_tokens,
                        step=step,
                        around=syncs_counted(waits) if counted else nullcontext(),
                    )
                ids, lengths, entries = state.ids, state.lengths, state.entries
                seen = hooks.verdicts(packed, state)
        spans = timeline.rows(number)
        verdicts = input_verdicts(self, packed, autocast=request.autocast) | seen
        max_cache_len = None if step is None else step.max_cache_len
        return Run(
            packed,
            pages,
            ids,
            spans,
            memory.taken(),
            lengths,
            entries,
            self.family.window(self.model),
            bytes_per_token,
            len(waits) if counted else None,
            max_cache_len,
            verdicts,
        )

    # -- parts ------------------------------------------------------------------------------------

    def _choose_preset(self, asked: str | None, rows: list[list[Page]]) -> dict[str, Any]:
        checkpoint, facts = self.checkpoint, self.family.facts
        default = checkpoint.default_preset or facts.default_preset
        return choose_preset(asked, rows, default, facts)

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

    def encode(self, text: str) -> list[int]:
        """Text to ids, without special tokens around it."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    @property
    def _text_config(self) -> Any:
        return self.model.config.get_text_config()

    @property
    def eos_id(self) -> int:
        """The id that ends a generation."""
        return self._text_config.eos_token_id

    @property
    def pad_id(self) -> int:
        """The id that fills rows: the tokenizer's pad token, else the end token."""
        pad = self.tokenizer.pad_token_id
        return self.eos_id if pad is None else pad

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


def _interrupted(run: PhaseRun | None, interrupt: KeyboardInterrupt) -> Interrupted:
    return Interrupted(run, *(interrupt.args or (signal.SIGINT,)))


#: The session's first name, of when it knew one family.
DeepSeekOCRSession = OCRSession
