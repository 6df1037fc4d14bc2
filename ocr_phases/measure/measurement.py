"""A request, its runs and what follows them, and the `PhaseRun` that says what was measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ocr_phases.collectors import machine
from ocr_phases.collectors.conditions import Conditions
from ocr_phases.collectors.timeline import NoTimeline, Timeline
from ocr_phases.errors import OcrPhasesError, OutOfMemory
from ocr_phases.files import split_page
from ocr_phases.images import load_page
from ocr_phases.inputs.packing import PageInputs, pack
from ocr_phases.inputs.views import Pages, make_views
from ocr_phases.measure.kernels import check_kernels, kernel_view
from ocr_phases.measure.live_checks import (
    AFTERWARDS,
    Repeat,
    Watch,
    attempted,
    describe_cache,
    logits_summed,
    run_checks,
)
from ocr_phases.measure.parity import parity_check
from ocr_phases.measure.probabilities import token_probabilities
from ocr_phases.measure.request import each_run, filled_in, page_part, row_part
from ocr_phases.models.devices import cpu_threads, device_of
from ocr_phases.models.load import Checkpoint, TokenReader
from ocr_phases.record import make_spans
from ocr_phases.record.parts import (
    CachePart,
    CheckPart,
    DevicePart,
    MemoryPart,
    ModelPart,
    PagePart,
    ProbabilitiesPart,
    RequestPart,
    ResultPart,
    make_kernels,
    make_part,
)
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import Request, RunSettings, is_published
from ocr_phases.steps import phases
from ocr_phases.steps.captured import StaticStep, capacity_for
from ocr_phases.steps.decode_kernels import decode_attention, decode_backends, decode_experts
from ocr_phases.steps.preparing import numbered_announcements
from ocr_phases.steps.sampling import OnTokens, one_shot, sampler_for
from ocr_phases.steps.strategies import EOS_INTERVALS, check_strategy
from ocr_phases.text import count_text

# -- what is asked for --------------------------------------------------------------------------------


def pack_rows(
    checkpoint: Checkpoint, request: Request, timeline: Timeline
) -> tuple[PageInputs, list[tuple]]:
    """Load, cut and tokenise: the inputs, and the pages in them as (image, bytes, name)."""
    with timeline.span("load_image"):
        loaded = [load_page(page) for page in request.pages]
        preset = checkpoint.family.preset(request.preset)
        views = [make_views(image, preset) for image, _, _ in loaded]
    with timeline.span("tokenizer"):
        return pack(views, request.prompts, checkpoint), loaded


def page_id(file: str, sha256: str) -> str:
    """What a page is known by: the hash is its whole file's, so a later page's number too."""
    number = split_page(file)[1]
    return sha256 if number == "#1" else f"{sha256}{number}"


@contextlib.contextmanager
def execution(device: str, autocast: bool = False) -> Iterator[None]:
    """Around all that runs here: the prefill and `generate()` have no cuDNN attention either.

    Decode chooses its kernels once more inside (`decode_execution`): other ones for a static step,
    and it can be called without a session.
    """
    cast = torch.autocast(torch.device(device).type, torch.bfloat16) if autocast else nullcontext()
    with device_of(device).made_current(), decode_attention(device), cast:
        yield


# -- what runs ----------------------------------------------------------------------------------------


class Measurement:
    """A request to an `OCRSession` with every default, its packed inputs, its runs so far and its
    record.

    ``after`` has what was measured beside the ``runs``, by its setting. Raises `OcrPhasesError` for
    what contradicts itself, what cannot run here, and what the model cannot hold.
    """

    def __init__(self, session: Any, page: Pages, asked: RunSettings) -> None:
        self.session, self.runs, self.after = session, list[Repeat](), dict[str, Any]()
        self.threads = torch.get_num_threads()  # that the runs computed with
        self.waits: tuple[int, int] | None = (
            None  # of the host in a warm-up's decode, and its steps
        )
        self.step: StaticStep | None = None
        self.setup: dict[str, Any] = {"strategy_setup": None, "vision_setup": None}
        checkpoint = self.checkpoint = session.checkpoint
        self.device, facts = checkpoint.device, checkpoint.family
        own = {
            "ignore_eos": checkpoint.default_ignore_eos,
            "eos_check_every": EOS_INTERVALS[asked.strategy],
        }
        self.generation = checkpoint.generation
        sampling = self.generation.sampling
        request = filled_in(page, asked, facts, checkpoint.default_preset, sampling=sampling, **own)
        self.request = request
        self.packed, self.pages = pack_rows(checkpoint, request, NoTimeline())
        prompt_len = self.packed.prefill_len
        room = checkpoint.model.config.get_text_config().max_position_embeddings - prompt_len
        if (
            is_published(asked.infer) and asked.max_new_tokens is None
        ):  # the published code ends there
            limit = max(1, min(facts.published_limit - prompt_len * facts.limit_has_prompt, room))
            request = self.request = replace(request, max_new_tokens=limit)
        if request.kernels:
            check_kernels(self.device, generate=request.generate, trace=request.kernel_trace)
        check_strategy(request, checkpoint.interface, self.device)
        if request.max_new_tokens > room:
            asked_for = f"{prompt_len} prompt tokens and {request.max_new_tokens} new ones"
            less = f"ask for at most {room}" if room > 0 else "choose a smaller preset"
            raise OcrPhasesError(
                f"{asked_for} exceed the model's {prompt_len + room} positions: {less}."
            )
        self.eos_ids = () if request.ignore_eos else self.generation.end_tokens
        self.vision = session.vision.installed if request.vision == "compiled" else nullcontext

    def set_up(self) -> None:
        """Make or find what the strategies need; `OcrPhasesError` where that fails.

        What is made is announced, numbered (`ocr_phases.steps.preparing`). Times in the record's part are ms.
        """
        request, steps, vision = self.request, self.session.steps, self.session.vision
        static, compiled = request.strategy != "eager", request.vision == "compiled"
        model = self.checkpoint.model
        interface = self.checkpoint.interface
        inputs = self.packed.to(self.device, self.checkpoint.dtype)
        (rows, length), captured = inputs.input_ids.shape, static and inputs.input_ids.is_cuda
        total = len(self.checkpoint.family.encoders) * len(interface.views(inputs)) * compiled
        total += (request.strategy == "compiled") + captured
        some_are_made = len(steps) + len(vision.made) > 0
        with numbered_announcements(None if some_are_made else total), self.vision():
            if static:
                room = capacity_for(length, request.max_new_tokens, interface.window(model))
                key = rows, room, request.strategy
                self.step = steps.get(key)
                reused = self.step is not None
                if self.step is None:
                    steps.make_room()
                    self.step = StaticStep(model, *key)
                    steps.put(key, self.step)
                self.step.ready_for(length, request.max_new_tokens)
            if compiled or captured:
                phases.prefill(model, inputs, step=self.step)
        if self.step is not None:
            capture = {"prefill_capture_ms": self.step.prefill.took_ms(), "reused": reused}
            self.setup["strategy_setup"] = self.step.setup | capture
        self.setup["vision_setup"] = {"compile_ms": vision.took_ms()} if compiled else None

    def measure(
        self, *, on_tokens: Callable | None = None, progress: Callable | None = None
    ) -> None:
        """All of it: set-up, warm-up and repeats, then what is measured apart from them.

        Raises what the callbacks raise: the runs finished by then are kept.
        """
        request = self.request
        try:
            with cpu_threads(request.threads), execution(self.device):
                self.threads = torch.get_num_threads()
                if request.strategy != "eager" or request.vision == "compiled":
                    self.set_up()
                self.conditions = Conditions(self.device)
                for number, notify in each_run(request, on_tokens, progress):
                    with self.conditions.of(number) if number >= 0 else nullcontext():
                        run = self._run(request, number, notify)
                    self.runs += [run] * (number >= 0)
                self._measure_after()
        except torch.OutOfMemoryError as error:
            rows, tokens = (
                count_text(self.packed.batch_size, "row"),
                f"{request.max_new_tokens} new tokens",
            )
            asked = f"{self.device} is out of memory with {rows} at preset {request.preset} and {tokens}"
            less = "use a smaller preset, fewer pages or tokens; profile --dry-run says what fits"
            raise OutOfMemory(f"{asked}: {less}.") from error

    def _measure_after(self) -> None:
        """What runs after everything timed goes into ``after`` piece by piece: an interrupt keeps
        that.
        """
        checkpoint, request, ids = self.checkpoint, self.request, self.runs[0].ids
        dtype = torch.bfloat16 if request.autocast else checkpoint.dtype
        inputs = partial(self.packed.to, self.device, checkpoint.dtype)
        ways: tuple[Callable[[], Any], ...] = (
            lambda: parity_check(checkpoint, request, self.packed, ids),
            lambda: token_probabilities(checkpoint.model, inputs(), self.rows()),
            lambda: kernel_view(lambda short: self._run(short).spans, request, self.device),
            lambda: self.session.ceilings(dtype),
        )
        for name, take in zip(AFTERWARDS, ways, strict=True):
            if getattr(request, name):  # the last two have their own autocast, or none
                with execution(self.device, request.autocast and name in AFTERWARDS[:2]):
                    self.after[name] = attempted(name, take)

    def _run(self, request: Request, number: int = 0, notify: OnTokens | None = None) -> Repeat:
        """Prepare, prefill and decode once (or prepare and ``model.generate()``); a warm-up is
        below 0.
        """
        checkpoint, step = self.checkpoint, self.step
        # Only an eager step calls the model itself.
        looks = ("prefill", "decode") if step is None else ("prefill",)
        watch = Watch(
            checkpoint, looks, counted=number < 0 and torch.device(self.device).type == "cuda"
        )
        timeline = Timeline(self.device, around=watch.of)
        with timeline.in_phase("prepare"):
            packed, _ = pack_rows(checkpoint, request, timeline)
            with timeline.span("transfer"):
                inputs = packed.to(self.device, checkpoint.dtype)
        with execution(self.device, request.autocast), self.vision():
            if request.generate:
                with logits_summed(checkpoint) as checks, timeline.in_phase("generate"):
                    ids = one_shot(checkpoint, inputs, request, notify, end_tokens=self.eos_ids)
                return Repeat(ids, timeline.rows(number), watch.memory, checks, {})
            options = {name: getattr(request, name) for name in ("first_token", "eos_check_every")}
            options |= {"eos_ids": self.eos_ids, "pad_id": checkpoint.pad_id, "on_tokens": notify}
            options |= {
                "sampler": sampler_for(checkpoint, request, packed.prefill_len),
                "step": step,
            }
            state = phases.generate(
                checkpoint.model, inputs, request.max_new_tokens, timeline, **options
            )
        if watch.waits is not None:
            self.waits = len(watch.waits), len(state.lengths) - 1
        cache = describe_cache(state, {} if step is None else step.setup)
        checks = watch.checks(packed, state, timeline.vectors)
        return Repeat(state.ids, timeline.rows(number), watch.memory, checks, cache)

    # -- its record -------------------------------------------------------------------------------

    def rows(self) -> list[list[int]]:
        """The first repeat's ids, each row up to its end token."""
        return [phases.until_end(ids, self.eos_ids) for ids in self.runs[0].ids]

    def record(self) -> PhaseRun:
        """One record of all measured runs of the request, which may be fewer than it asks for."""
        checkpoint, request, runs, after = self.checkpoint, self.request, self.runs, self.after
        peaks = {phase: [run.memory.peaks[phase] for run in runs] for phase in runs[0].memory.peaks}
        weights = checkpoint.model.get_memory_footprint(return_buffers=False)
        state = {
            "threads": self.threads,
            "conditions": self.conditions.described(),
            "ceilings": after.get("ceilings"),
        }
        model = {
            **describe_model(checkpoint),
            "strategy": request.strategy,
            "vision": request.vision,
            "decode_attention_kernels": attention_kernels(self.device, request.strategy),
            "decode_experts": decode_experts(checkpoint.model, request.strategy).get("text_config"),
            **self.setup,
        }
        asked = {
            **request.described(),
            "prefill_len": self.packed.prefill_len,
            "batch": self.packed.batch_size,
            "repeats": len(runs),
        }
        checks = run_checks(checkpoint, self.packed, request, runs, self.waits, after)
        probabilities = after.get("token_probabilities")
        if probabilities is not None:
            probabilities = [make_part(ProbabilitiesPart, row) for row in probabilities]
        return PhaseRun(
            created=machine.now(),
            versions=machine.versions(),
            device=make_part(DevicePart, machine.describe_device(self.device) | state),
            model=make_part(ModelPart, model),
            pages=self._described_pages(),
            request=make_part(RequestPart, asked),
            results=[_describe_row(checkpoint, request, ids, self.eos_ids) for ids in self.rows()],
            spans=make_spans([span for run in runs for span in run.spans]),
            memory=MemoryPart(
                source=runs[0].memory.source, peak_bytes=peaks, weights_bytes=weights
            ),
            cache=make_part(CachePart, runs[0].cache),
            live_checks=[make_part(CheckPart, check) for check in checks],
            kernels=make_kernels(after.get("kernels")),
            probabilities=probabilities,
        )

    def _described_pages(self) -> list[PagePart]:
        packed, embed = self.packed, self.request.embed_page
        rows = [row for row, count in enumerate(packed.views_per_row) for _ in range(count)]
        return [
            page_part(
                page, view.preset, row, packed.image_tokens[row], packed.text_tokens[row], embed
            )
            for row, page, view in zip(rows, self.pages, packed.views, strict=True)
        ]


def _describe_row(
    checkpoint: Checkpoint, request: Request, ids: list[int], end_tokens: Collection[int]
) -> ResultPart:
    ended = ids[-1] in end_tokens
    # The end token apart: a character still incomplete before it belongs to the text.
    read, written = TokenReader(checkpoint.tokenizer).read, len(ids) - ended
    texts = [
        read(token, last=place in (written, len(ids))) for place, token in enumerate(ids, start=1)
    ]
    # As the vendor counts them: the output, end token included, tokenised again.
    text_tokens = len(checkpoint.encode("".join(texts)))
    reason = "stop" if ended else "length"
    return row_part(request, ids, texts, "".join(texts[:written]), reason, text_tokens)


def attention_kernels(device: str, strategy: str = "eager") -> list[str]:
    """The SDPA kernels that a run, or a decode step of ``strategy``, may use, by name."""
    backends = decode_backends(device, strategy)
    return [backend.name.lower() for backend in backends] or ["default"]


def describe_model(checkpoint: Checkpoint) -> dict[str, Any]:
    """The record's part about a model, whatever it is asked to do."""
    model = checkpoint.model
    interface = checkpoint.interface
    own = ("name", "source", "revision", "cuda_calls", "config")
    return {
        **{name: getattr(checkpoint, name) for name in own},
        "family": checkpoint.family.name,
        "implementation": interface.implementation,
        "class": type(model).__name__,
        "dtype": str(checkpoint.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "attention_kernels": attention_kernels(checkpoint.device),
        "generation": checkpoint.generation.described(),
        "experts": getattr(model.config.get_text_config(), "_experts_implementation", None),
        "parameters": interface.parameters(model),
    }
