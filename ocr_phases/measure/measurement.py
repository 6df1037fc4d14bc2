"""A measurement: one request to a loaded model, its runs, what follows them, and the record."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import msgspec
import torch

from ocr_phases.collectors import machine
from ocr_phases.collectors.conditions import Conditions, CoreWaits
from ocr_phases.collectors.energy import POWERCAP, counter_and_idle_watts
from ocr_phases.collectors.hooks import generate_ranges, stage_hooks
from ocr_phases.collectors.timeline import NoTimeline, Timeline
from ocr_phases.errors import OcrPhasesError, OutOfMemory, Stopped
from ocr_phases.images import load_page
from ocr_phases.inputs.packing import pack
from ocr_phases.inputs.processed import ModelInputs, PackedPages
from ocr_phases.inputs.rows import Pages
from ocr_phases.inputs.views import make_views
from ocr_phases.measure.busy import warn_if_busy
from ocr_phases.measure.kernels import check_kernels, kernel_view
from ocr_phases.measure.live_checks import (
    Afterwards,
    HostWaits,
    Repeat,
    Watch,
    check_logits,
    describe_cache,
    judge_live_checks,
)
from ocr_phases.measure.loaded_model import LoadedModel, StepShape, describe_model
from ocr_phases.measure.parity import parity_check
from ocr_phases.measure.phase_energy import measure_phase_energy
from ocr_phases.measure.probabilities import token_probabilities
from ocr_phases.measure.record_parts import LoadedPage, page_part, request_part, row_part
from ocr_phases.measure.request import published_tokens, resolve_request
from ocr_phases.measure.rows_alone import check_rows_alone
from ocr_phases.measure.runs import (
    OnProgress,
    OnRunTokens,
    OnTokens,
    numbered_runs,
    recording,
    tokens_of_run,
)
from ocr_phases.measure.verdicts import one_sentence, unknown_check
from ocr_phases.models.devices import cpu_threads, device_of
from ocr_phases.models.load import Checkpoint
from ocr_phases.models.text_model import position_limit
from ocr_phases.models.tokenizers import TokenReader
from ocr_phases.record import make_spans
from ocr_phases.record.parts import (
    CachePart,
    CeilingsPart,
    CheckPart,
    ConditionsPart,
    DevicePart,
    KernelsFailed,
    KernelsPart,
    MemoryPart,
    ModelPart,
    PagePart,
    PhaseEnergyPart,
    ProbabilitiesPart,
    ResultPart,
    SetupPart,
    StagePart,
    make_part,
)
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import Request, RunSettings, is_published
from ocr_phases.stages import stage_of, stage_place
from ocr_phases.steps import phases
from ocr_phases.steps.capacity import capacity_for
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.decode_kernels import decode_attention
from ocr_phases.steps.preparing import measure_idle_gpu, numbered_announcements
from ocr_phases.steps.sampling import one_shot, sampler_for
from ocr_phases.steps.strategies import check_strategy
from ocr_phases.steps.token_step import TOKEN_KERNELS
from ocr_phases.text import count_text

_Value = TypeVar("_Value")


def pack_rows(
    checkpoint: Checkpoint, request: Request, timeline: Timeline
) -> tuple[PackedPages, list[LoadedPage]]:
    """Load, cut and tokenise the pages of a request: its inputs, and the pages in them."""
    if not request.pages:
        with timeline.span("tokenizer"):
            return pack([], request.prompts, checkpoint), []
    if checkpoint.packer is not None:
        with timeline.span("load_image"):
            pages = [load_page(page) for page in request.pages]
        with timeline.span("tokenizer"):
            images = [image for image, _, _ in pages]
            return checkpoint.packer.pack(images, request.prompts), pages
    with timeline.span("load_image"):
        pages = [load_page(page) for page in request.pages]
        views = [make_views(image, request.cutting) for image, _, _ in pages]
    with timeline.span("tokenizer"):
        return pack(views, request.prompts, checkpoint), pages


@contextlib.contextmanager
def execution(device: str, autocast: bool = False) -> Iterator[None]:
    """Around all that runs here: the prefill and `generate()` have no cuDNN attention either.

    Decode chooses its kernels once more inside (`decode_execution`): other ones for a static step,
    and it can be called without a session.
    """
    cast: AbstractContextManager = nullcontext()
    if autocast:
        cast = torch.autocast(torch.device(device).type, torch.bfloat16)
    with device_of(device).made_current(), decode_attention(device), cast:
        yield


class Measurement:
    """A request to a loaded model: its inputs, its runs so far, and in the end its record.

    `run` is the whole story. Raises `OcrPhasesError` for what contradicts itself, what cannot run
    here, and what the model cannot hold.

    Parameters
    ----------
    loaded_model : LoadedModel
        The model, with what its measurements share.
    pages : str, Path, bytes, PIL.Image.Image, a sequence of them, or None
        The pages; None for a prompt without an image.
    settings : RunSettings
        What was asked for.

    Attributes
    ----------
    request : Request
        What will run: the settings with every default filled in.
    packed : PackedPages
        The inputs, still on the CPU.
    repeats : list of Repeat
        The finished repeats.
    after : Afterwards
        What was measured after them.
    result : PhaseRun or None
        The record, once the measurement has ended with at least one finished repeat.
    """

    def __init__(
        self, loaded_model: LoadedModel, pages: Pages | None, settings: RunSettings
    ) -> None:
        checkpoint = loaded_model.checkpoint
        family = checkpoint.family
        self.loaded_model = loaded_model
        self.checkpoint = checkpoint
        self.device = checkpoint.device

        request = resolve_request(
            settings,
            family,
            pages,
            preset=checkpoint.default_preset,
            ignore_eos=checkpoint.default_ignore_eos,
            sampling=checkpoint.generation.sampling,
        )
        self.packed, self.pages = pack_rows(checkpoint, request, NoTimeline())
        prompt_tokens = self.packed.prefill_len
        positions = position_limit(checkpoint.model)
        if settings.max_new_tokens is None and is_published(settings.infer):
            limit = published_tokens(family, prompt_tokens, positions)
            request = replace(request, max_new_tokens=limit)
        if request.kernels:
            check_kernels(self.device, generate=request.generate, trace=request.kernel_trace)
        check_strategy(request, checkpoint.interface, self.device)
        if positions is not None:
            smaller = "choose a smaller preset" if checkpoint.packer is None else "shrink the page"
            _check_positions(prompt_tokens, request.max_new_tokens, positions, smaller)
        self.request = request
        #: The tokens that end a row; none where the end is ignored.
        self.end_tokens = () if request.ignore_eos else checkpoint.generation.end_tokens

        self.repeats: list[Repeat] = []
        self.after = Afterwards()
        self.result: PhaseRun | None = None
        #: The threads that the runs computed with.
        self.threads = torch.get_num_threads()
        self.conditions: Conditions | None = None
        #: The host's waits in a warm-up's decode, where they are counted.
        self.waits: HostWaits | None = None
        #: Whether the warm-up was left out, because the model had run these shapes before.
        self.warmed_before = False
        #: The captured or compiled step, and what preparing the strategies took.
        self.step: StaticStep | None = None
        self.strategy_setup: SetupPart | None = None
        #: What the rows of a batch give beside each other and alone, where that is not known.
        self.rows_alone: CheckPart | None = None
        self.vision_setup: SetupPart | None = None

    # -- the story ---------------------------------------------------------------------------------

    def run(
        self, on_tokens: OnRunTokens | None = None, progress: OnProgress | None = None
    ) -> PhaseRun:
        """Measure all that was asked for, and record it: set-up, warm-ups, repeats, then the rest.

        Parameters
        ----------
        on_tokens : callable, optional
            Called as ``on_tokens(repeat, new ids of each row)``; repeat -1 is a warm-up.
        progress : callable, optional
            Called as ``progress(runs done, runs in all)``.

        Returns
        -------
        PhaseRun
            The record of the finished repeats, also where a callback raised `Stopped` after the
            first of them.

        Raises
        ------
        Interrupted
            For a KeyboardInterrupt, with the record of the finished repeats.
        Stopped
            Where that came before the first repeat was finished.
        OutOfMemory
            Where the device has not enough memory. ``result`` then has the finished repeats.
        """
        request = self.request
        with (
            recording(self),
            self._memory_errors_told(),
            cpu_threads(request.threads),
            execution(self.device),
        ):
            self.threads = torch.get_num_threads()
            self.rows_alone = self._compare_rows_alone()
            self.set_up()
            conditions = Conditions(self.device)
            self.conditions = conditions
            if request.warm_once and self._shapes() in self.loaded_model.warm_shapes:
                self.warmed_before = True
                request = replace(request, warmup=0)
            waits = CoreWaits()
            for number in numbered_runs(request, progress):
                if number == 0 and request.warmup:
                    warn_if_busy(waits, self.device)
                on_new_tokens = tokens_of_run(on_tokens, number)
                if number < 0:  # a warm-up is not recorded
                    self._run_once(request, number, on_new_tokens)
                    continue
                with conditions.during(number):
                    repeat = self._run_once(request, number, on_new_tokens)
                self.repeats.append(repeat)
                self.loaded_model.warm_shapes.add(self._shapes())
            self._measure_afterwards()
        assert self.result is not None
        return self.result

    def _compare_rows_alone(self) -> CheckPart | None:
        """Whether the rows of a batch may be measured together, of a class of no known family."""
        autocast = self.request.autocast
        with execution(self.device, autocast):
            return check_rows_alone(self.checkpoint, self.packed, self.pages, autocast=autocast)

    def set_up(self) -> None:
        """Make or find what the strategies need; `OcrPhasesError` where that fails."""
        request = self.request
        is_static = request.strategy != "eager"
        is_vision_prepared = request.vision != "eager"
        if not is_static and not is_vision_prepared:
            return
        if "compiled" in (request.strategy, request.vision):
            measure_idle_gpu(torch.device(self.device))
        inputs = self.packed.to(self.device, self.checkpoint.dtype)
        is_captured = is_static and inputs.input_ids.is_cuda
        with numbered_announcements(self._count_preparations(inputs)), self._vision_execution():
            if is_static:
                shape = self._step_shape(inputs)
                is_reused = shape in self.loaded_model.steps
                self.step = self.loaded_model.step(shape)
                self.step.ready_for(inputs.input_ids.shape[1], request.max_new_tokens)
            if is_vision_prepared or is_captured:
                phases.prefill(self.checkpoint.model, inputs, step=self.step)
        if self.step is not None:
            self.strategy_setup = SetupPart(
                max_cache_len=self.step.setup.max_cache_len,
                allocated_bytes=self.step.setup.allocated_bytes,
                compile_ms=self.step.setup.compile_ms,
                capture_ms=self.step.setup.capture_ms,
                prefill_capture_ms=self.step.prefill.took_ms(),
                reused=is_reused,
            )
        if is_vision_prepared:
            took_ms = self.loaded_model.vision[request.vision].took_ms()
            if request.vision == "compiled":
                self.vision_setup = SetupPart(compile_ms=took_ms)
            else:
                self.vision_setup = SetupPart(capture_ms=took_ms)

    def _shapes(self) -> tuple[object, ...]:
        """What the kernels and the memory of a run depend on: sizes of its inputs, and its way."""
        request = self.request
        return (
            self.packed.batch_size,
            self.packed.prefill_len,
            self.packed.image_tokens,
            request.cutting,
            request.max_new_tokens,
            request.strategy,
            request.vision,
            request.generate,
            request.autocast,
            request.threads,
        )

    def _step_shape(self, inputs: ModelInputs) -> StepShape:
        """The shape of the static step that this request needs."""
        rows, prompt_tokens = inputs.input_ids.shape
        window = self.checkpoint.interface.window(self.checkpoint.model)
        cache_length = capacity_for(prompt_tokens, self.request.max_new_tokens, window)
        return StepShape(rows, cache_length, self.request.strategy)

    def _run_once(
        self, request: Request, number: int = 0, on_tokens: OnTokens | None = None
    ) -> Repeat:
        """Prepare, prefill and decode once, or prepare and ``generate()``; warm-ups are below 0."""
        checkpoint = self.checkpoint
        # Only an eager step calls the model itself.
        looks = ("prefill", "decode") if self.step is None else ("prefill",)
        is_counted = number < 0 and torch.device(self.device).type == "cuda"
        watch = Watch(checkpoint, looks, counted=is_counted)
        timeline = Timeline(self.device, around=watch.during)
        with timeline.in_phase("prepare"):
            packed, _ = pack_rows(checkpoint, request, timeline)
            with timeline.span("transfer"):
                inputs = packed.to(self.device, checkpoint.dtype)
        if request.generate:
            return self._generate_once(request, inputs, timeline, watch, number, on_tokens)
        with execution(self.device, request.autocast), self._vision_execution():
            state = phases.generate(
                checkpoint.model,
                inputs,
                request.max_new_tokens,
                timeline,
                sampler=sampler_for(checkpoint, request, packed.prefill_len),
                first_token=request.first_token,
                eos_ids=self.end_tokens,
                pad_id=checkpoint.pad_id,
                eos_check_every=request.eos_check_every,
                on_tokens=on_tokens,
                step=self.step,
            )
        if watch.waits is not None:
            self.waits = HostWaits(len(watch.waits), len(state.lengths) - 1)
        cache = describe_cache(state)
        if self.step is not None:
            cache = msgspec.structs.replace(
                cache,
                max_cache_len=self.step.setup.max_cache_len,
                allocated_bytes=self.step.setup.allocated_bytes,
            )
        return Repeat(
            ids=state.ids,
            spans=timeline.rows(number),
            memory=watch.memory,
            checks=watch.checks(packed, state, timeline.vectors),
            cache=cache,
        )

    def _generate_once(
        self,
        request: Request,
        inputs: ModelInputs,
        timeline: Timeline,
        watch: Watch,
        number: int,
        on_tokens: OnTokens | None,
    ) -> Repeat:
        """The same tokens by the model's own ``generate()``, as one phase."""
        checkpoint = self.checkpoint
        interface = checkpoint.interface
        ranges = generate_ranges(checkpoint.model, interface, interface.views(inputs))
        with (
            execution(self.device, request.autocast),
            self._vision_execution(),
            check_logits(checkpoint) as checks,
            timeline.in_phase("generate"),
            ranges,
        ):
            ids = one_shot(checkpoint, inputs, request, on_tokens, end_tokens=self.end_tokens)
        return Repeat(ids, timeline.rows(number), watch.memory, checks, CachePart())

    def _measure_afterwards(self) -> None:
        """What runs after everything timed, piece by piece: an interrupt keeps the earlier ones.

        Whatever goes wrong in one must not cost what was measured before.
        """
        request = self.request
        after = self.after
        if request.verify:
            after.parity = self.compare_with_generate(request, self.repeats[0].ids)
            after.done.append("verify")
        if request.token_probabilities:
            probabilities = attempt(self._measure_probabilities)
            probabilities.warn_of_failure("token probabilities")
            after.probabilities = probabilities.value
            after.done.append("token_probabilities")
        if request.kernels:
            kernels = attempt(self._profile_kernels)
            after.kernels = kernels.value
            if kernels.value is None:
                after.kernels = KernelsFailed(error=kernels.reason)
            after.done.append("kernels")
        if request.phase_energy:
            after.phase_energy = self._measure_phase_energy()
            after.done.append("phase_energy")
        if request.ceilings:
            ceilings = attempt(self._measure_ceilings)
            ceilings.warn_of_failure("ceilings")
            after.ceilings = ceilings.value
            after.done.append("ceilings")

    def compare_with_generate(self, request: Request, ids: list[list[int]]) -> CheckPart:
        """The parity check of these ids, which may be those of another run of the same inputs.

        ``request`` is what that run was asked for. The check is n/a, with the reason, where the
        comparison fails.
        """
        parity = attempt(partial(self._parity_with_generate, request, ids))
        if parity.value is None:
            return unknown_check("parity", parity.reason)
        return parity.value

    def _parity_with_generate(self, request: Request, ids: list[list[int]]) -> CheckPart:
        with execution(self.device, request.autocast):
            return parity_check(self.checkpoint, request, self.packed, ids)

    def _measure_probabilities(self) -> list[ProbabilitiesPart]:
        inputs = self.packed.to(self.device, self.checkpoint.dtype)
        with execution(self.device, self.request.autocast):
            return token_probabilities(self.checkpoint.model, inputs, self.rows())

    def _profile_kernels(self) -> KernelsPart:
        with execution(self.device):  # each run has its own autocast
            if self.step is None:
                return kernel_view(self._run_spans, self.request, self.device)
            head_shape = None
            if self.request.strategy == "compiled" and self.step.token_step is None:
                head = self.checkpoint.model.get_output_embeddings()
                head_shape = tuple(head.weight.shape)
            return kernel_view(
                self._run_spans, self.request, self.device, self._launch_step, head_shape
            )

    def _launch_step(self) -> list[tuple]:
        """The spans of one decode step that is started kernel by kernel."""
        assert self.step is not None
        model = self.checkpoint.model
        interface = self.checkpoint.interface
        inputs = self.packed.to(self.device, self.checkpoint.dtype)
        state = phases.prefill(model, inputs, step=self.step)
        timeline = Timeline(self.device)
        stage_timeline: Timeline | NoTimeline = timeline
        if self.request.strategy == "compiled":
            stage_timeline = NoTimeline(self.device)  # hooks would undo what was compiled
        run = self.step.uncaptured(state.length, timeline)
        with (
            torch.no_grad(),
            self.step.execution(),
            stage_hooks(model, interface, stage_timeline, []),
            timeline.in_phase("decode", "decode_step", 0),
        ):
            run()
        return timeline.rows()

    def _run_spans(self, request: Request) -> list[tuple]:
        """The spans of one more run."""
        return self._run_once(request).spans

    def _measure_phase_energy(self) -> PhaseEnergyPart:
        """The energy of each phase, or why it is missing."""
        try:
            counter, idle_w = counter_and_idle_watts(torch.device(self.device), POWERCAP)
        except OSError as error:
            return PhaseEnergyPart(missing=str(error))
        inputs = self.packed.to(self.device, self.checkpoint.dtype)
        decode_steps = max(len(ids) for ids in self.repeats[0].ids) - 1

        def measure() -> PhaseEnergyPart:
            with execution(self.device, self.request.autocast), self._vision_execution():
                return measure_phase_energy(
                    self.checkpoint.model, inputs, decode_steps, counter=counter, step=self.step
                )

        energy = attempt(measure)
        if energy.value is None:
            return PhaseEnergyPart(missing=energy.reason)
        return msgspec.structs.replace(energy.value, idle_w=idle_w)

    def _measure_ceilings(self) -> CeilingsPart:
        dtype = torch.bfloat16 if self.request.autocast else self.checkpoint.dtype
        with execution(self.device):
            return self.loaded_model.ceilings(dtype)

    # -- around the runs ---------------------------------------------------------------------------

    def _vision_execution(self) -> AbstractContextManager[None]:
        """How the vision encoders run."""
        if self.request.vision == "eager":
            return nullcontext()
        return self.loaded_model.vision[self.request.vision].installed()

    def _count_preparations(self, inputs: ModelInputs) -> int | None:
        """How many things will be compiled or captured; None where some may be there already."""
        if len(self.loaded_model.steps):
            return None
        if any(len(forwards.made) for forwards in self.loaded_model.vision.values()):
            return None
        count = 0
        if self.request.vision != "eager":
            views = self.checkpoint.interface.views(inputs)
            count += len(self.checkpoint.family.encoders) * len(views)
        if self.request.strategy == "compiled":
            count += 1
        if self.request.strategy != "eager" and inputs.input_ids.is_cuda:
            count += 1
        return count

    @contextlib.contextmanager
    def _memory_errors_told(self) -> Iterator[None]:
        """`OutOfMemory` with what would need less, where a ``with`` block is out of memory."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            rows = count_text(self.packed.batch_size, "row")
            tokens = count_text(self.request.max_new_tokens, "new token")
            raise OutOfMemory(
                f"{self.device} is out of memory with {rows} at preset {self.request.cutting.name} "
                f"and {tokens}: use a smaller preset, fewer pages or "
                "tokens; profile --dry-run says what fits."
            ) from error

    # -- the record --------------------------------------------------------------------------------

    def rows(self) -> list[list[int]]:
        """The first repeat's ids, each row up to its end token."""
        return [phases.until_end(ids, self.end_tokens) for ids in self.repeats[0].ids]

    def record(self) -> PhaseRun | None:
        """One record of the finished repeats, which may be fewer than were asked for.

        None where there is none.
        """
        if not self.repeats:
            return None
        checkpoint = self.checkpoint
        request = self.request
        spans = []
        for repeat in self.repeats:
            spans += repeat.spans
        return PhaseRun(
            created=machine.now(),
            versions=machine.versions(),
            device=self._device_part(),
            model=self._model_part(),
            pages=self._page_parts(),
            request=request_part(
                request,
                repeats=len(self.repeats),
                prefill_len=self.packed.prefill_len,
                batch=self.packed.batch_size,
                warmed_before=self.warmed_before,
            ),
            results=[
                _result_part(checkpoint, request, ids, self.end_tokens) for ids in self.rows()
            ],
            spans=make_spans(spans),
            memory=self._memory_part(),
            cache=self.repeats[0].cache,
            live_checks=self._live_checks(),
            kernels=self.after.kernels,
            probabilities=self.after.probabilities,
            phase_energy=self.after.phase_energy,
        )

    def _live_checks(self) -> list[CheckPart]:
        checks = judge_live_checks(
            self.checkpoint, self.packed, self.request, self.repeats, self.waits, self.after
        )
        if self.rows_alone is not None:
            checks.append(self.rows_alone)
        return checks

    def _device_part(self) -> DevicePart:
        conditions = None
        if self.conditions is not None:
            conditions = make_part(ConditionsPart, self.conditions.describe())
        return msgspec.structs.replace(
            make_part(DevicePart, machine.describe_device(self.device)),
            threads=self.threads,
            ceilings=self.after.ceilings,
            conditions=conditions,
        )

    def _model_part(self) -> ModelPart:
        part = describe_model(self.checkpoint, self.request.strategy, self.request.vision)
        if self.step is not None and self.step.token_step is not None:
            part = msgspec.structs.replace(
                part, decode_attention_kernels=[TOKEN_KERNELS], decode_experts=TOKEN_KERNELS
            )
        return msgspec.structs.replace(
            part,
            strategy_setup=self.strategy_setup,
            vision_setup=self.vision_setup,
            stages=self._stage_parts(),
        )

    def _stage_parts(self) -> list[StagePart]:
        """The stages that have a span in the repeats, in the order that a page goes through
        them.
        """
        checkpoint = self.checkpoint
        parts = {part.stage: part for part in checkpoint.interface.timed_parts(checkpoint.model)}
        stages = []
        for name in {span[2] for repeat in self.repeats for span in repeat.spans}:
            role = parts[name].role if name in parts else None
            stages.append(stage_of(name, role))
        described = []
        for stage in sorted(stages, key=stage_place):
            if stage.role == "whole":
                continue
            path = None
            inside = None
            if stage.name in parts:
                path = parts[stage.name].path
                inside = parts[stage.name].inside
            described.append(StagePart(name=stage.name, path=path, role=stage.role, inside=inside))
        return described

    def _memory_part(self) -> MemoryPart:
        first = self.repeats[0].memory
        peaks = {}
        for phase in first.peaks:
            peaks[phase] = [repeat.memory.peaks[phase] for repeat in self.repeats]
        return MemoryPart(
            source=first.source,
            peak_bytes=peaks,
            weights_bytes=self.checkpoint.model.get_memory_footprint(return_buffers=False),
        )

    def _page_parts(self) -> list[PagePart]:
        packed = self.packed
        rows = []
        for row, count in enumerate(packed.views_per_row):
            rows += [row] * count
        parts = []
        for row, page, preset in zip(rows, self.pages, packed.presets, strict=True):
            parts.append(
                page_part(
                    page,
                    preset,
                    row=row,
                    image_tokens=packed.image_tokens[row],
                    text_tokens=packed.text_tokens[row],
                    embed=self.request.embed_page,
                )
            )
        return parts


def _check_positions(prompt_tokens: int, new_tokens: int, positions: int, smaller: str) -> None:
    """Raise `OcrPhasesError` where prompt and new tokens do not fit the model's positions.

    ``smaller`` says what makes the prompt itself shorter.
    """
    free_positions = positions - prompt_tokens
    if new_tokens <= free_positions:
        return
    remedy = f"ask for at most {free_positions}" if free_positions > 0 else smaller
    raise OcrPhasesError(
        f"{prompt_tokens} prompt tokens and {new_tokens} new ones exceed the model's "
        f"{positions} positions: {remedy}."
    )


def _result_part(
    checkpoint: Checkpoint, request: Request, ids: list[int], end_tokens: Collection[int]
) -> ResultPart:
    """The record's part about what a row wrote."""
    has_ended = ids[-1] in end_tokens
    # The end token apart: a character still incomplete before it belongs to the text.
    written = len(ids) - 1 if has_ended else len(ids)
    read = TokenReader(checkpoint.tokenizer).read
    texts = []
    for place, token in enumerate(ids, start=1):
        texts.append(read(token, last=place in (written, len(ids))))
    return row_part(
        request,
        ids=ids,
        texts=texts,
        text="".join(texts[:written]),
        finish_reason="stop" if has_ended else "length",
        # As the vendor counts them: the output, end token included, tokenised again.
        text_tokens=len(checkpoint.encode("".join(texts))),
    )


@dataclass(frozen=True)
class Attempt(Generic[_Value]):
    """What came of measuring something after the runs: its value, or why there is none."""

    value: _Value | None
    reason: str = ""

    def warn_of_failure(self, name: str) -> None:
        """Warn that the record lacks this, where it failed."""
        if self.reason:
            warnings.warn(f"The record has no {name} ({self.reason}).", stacklevel=4)


def attempt(measure: Callable[[], _Value]) -> Attempt[_Value]:
    """What ``measure`` gives, or why it fails; only `Stopped` and interrupts go through.

    It may be out of memory, or a checkpoint's own class may raise whatever it likes.
    """
    try:
        return Attempt(measure())
    except Stopped:
        raise
    except Exception as error:  # noqa: BLE001
        return Attempt(None, one_sentence(error))
