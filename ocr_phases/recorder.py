"""A request, its runs and what follows them, and the `PhaseRun` that says what was measured."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from ocr_phases import record
from ocr_phases.collectors import machine
from ocr_phases.collectors.kernels import check_kernels, kernel_view
from ocr_phases.collectors.live_checks import (
    ForwardHooks,
    Verdict,
    host_syncs_check,
    input_verdicts,
    merged,
    syncs_counted,
)
from ocr_phases.collectors.machine import Conditions, PeakMemory
from ocr_phases.collectors.parity import parity_check, parity_result
from ocr_phases.collectors.probabilities import Sureness, sureness_or_none
from ocr_phases.errors import OcrPhasesError, OutOfMemory
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, GROUNDING_TAG, FamilyFacts
from ocr_phases.files import each_page
from ocr_phases.inputs.images import load_page
from ocr_phases.inputs.packing import DeviceInputs, PageInputs, make_views, pack, valid_image_tokens
from ocr_phases.models.caches import cache_bytes_per_token
from ocr_phases.models.load import Checkpoint, token_texts
from ocr_phases.models.wiring import family_of
from ocr_phases.record import PhaseRun
from ocr_phases.settings import (
    NEW_TOKENS,
    Request,
    RunSettings,
    check_text,
    is_published,
    resolve_infer,
)
from ocr_phases.steps import phases
from ocr_phases.steps.captured import KEPT_STEPS, StaticStep, max_cache_len_for
from ocr_phases.steps.compiled import CompiledVision
from ocr_phases.steps.execution import (
    check_strategy,
    current_device,
    decode_attention,
    decode_experts,
    eos_interval,
    last_used,
    preparing,
    told_of_preparing,
)
from ocr_phases.steps.sampling import OnTokens, Sampler, one_shot
from ocr_phases.steps.timeline import NoTimeline, Timeline
from ocr_phases.sweep_models import one_sentence
from ocr_phases.text import count_text

Page = str | Path | bytes | Image.Image
#: Each page of each row as (image, bytes, name).
Pages = list[list[tuple]]

#: Settings of what is measured after the repeats.
_AFTERWARDS = ("verify", "token_probabilities", "kernels", "ceilings")


# -- what is asked for --------------------------------------------------------------------------------


def make_rows(
    page: Page | Sequence[Page],
    prompt: str | Sequence[str],
    grounding: bool | None,
    family: FamilyFacts = FAMILIES[DEEPSEEK_OCR],
) -> tuple[list[list[Page]], list[str]]:
    """One list of pages a row, and one resolved prompt a row, as the ``family`` has prompts.

    A list of pages, or ``file.pdf#2-4``, is a batch of one page a row; with a single prompt that names
    several ``<image>``, or the family's prompt for many pages, it is one row of several pages.
    """
    given = list(page) if isinstance(page, Iterable) and not isinstance(page, str | bytes) else [page]
    if not given:
        raise OcrPhasesError("There is no page in the list: give at least one.")
    pages: list[Page] = []
    for item in given:
        pages += each_page(str(item)) if isinstance(item, str | Path) else [item]
    prompts = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, str) else [prompt]
    for text in prompts:
        check_text("prompt", text)
    count = len(pages) if len(prompts) == 1 else 1
    resolved = [family.text_of(text, grounding=grounding, pages=count) for text in prompts]
    if len(resolved) == 1 and resolved[0].count("<image>") > 1:
        return [pages], resolved
    if len(resolved) == 1:
        resolved = resolved * len(pages)
    return [[item] for item in pages], resolved


def choose_preset(
    checkpoint: Checkpoint, asked: str | None, rows: Sequence[Sequence[Page]]
) -> dict[str, str]:
    """``preset``, and how it was chosen (``preset_choice``: asked or default).

    Raises `OcrPhasesError` for a preset that the family has not, and for crops of several pages in one
    prompt.
    """
    family = checkpoint.family.facts
    default = checkpoint.default_preset or family.default_preset
    named = None if asked is None else family.preset(asked).name
    if any(len(row) > 1 for row in rows) and family.multipage_preset:
        default = family.multipage_preset
        if named and family.preset(named).crops:
            uncut = [preset.name for preset in family.presets.values() if not preset.crops]
            raise OcrPhasesError(
                f"{family.title} reads several pages in one prompt without crops: choose the preset "
                f"{' or '.join(uncut)}."
            )
    return {"preset": named or default, "preset_choice": "asked" if named else "default"}


def pack_pages(
    checkpoint: Checkpoint,
    rows: Sequence[Sequence[Page]],
    preset: str,
    prompts: list[str],
    timeline: Timeline,
) -> tuple[PageInputs, Pages]:
    """Load, cut and tokenise: the packed inputs, and the pages as they were loaded."""
    with timeline.span("load_image"):
        pages = [[load_page(page) for page in row] for row in rows]
        cut = checkpoint.family.facts.preset(preset)
        views = [[make_views(image, cut) for image, _, _ in row] for row in pages]
    with timeline.span("tokenizer"):
        packed = pack(
            views,
            prompts,
            checkpoint.encode,
            image_token_id=checkpoint.image_token_id,
            bos_token_id=checkpoint.model.config.get_text_config().bos_token_id,
            pad_token_id=checkpoint.pad_id,
        )
    return packed, pages


@contextlib.contextmanager
def execution(device: str, autocast: bool = False) -> Iterator[None]:
    """Around all that runs here: the prefill and `generate()` have no cuDNN attention either.

    Decode chooses its kernels once more inside (`decode_execution`): other ones for a static step, and it
    can be called without a session.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(current_device(device))
        stack.enter_context(decode_attention(device))
        if autocast:
            stack.enter_context(torch.autocast(torch.device(device).type, torch.bfloat16))
        yield


# -- what strategies make ready ------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What the runs of one request use: a decode step of their shapes and compiled vision, or neither."""

    step: StaticStep | None = None
    step_reused: bool = False
    prefill_ms: float | None = None  # of capturing the language model's prefill of this length
    vision: CompiledVision | None = None
    vision_ms: float | None = None  # first calls of the compiled encoders with these shapes

    def vision_execution(self) -> AbstractContextManager[None]:
        """Around a prefill: the encoders as the request wants them."""
        return contextlib.nullcontext() if self.vision is None else self.vision.installed()

    def described(self) -> dict[str, Any]:
        """For the record's ``model``: times in ms, None where there was nothing to set up."""
        step = None
        if self.step is not None:
            made = {"prefill_capture_ms": self.prefill_ms, "reused": self.step_reused}
            step = {**self.step.setup, **made}
        vision = None if self.vision is None else {"compile_ms": self.vision_ms}
        return {"strategy_setup": step, "vision_setup": vision}


class PreparedStrategies:
    """Keeps what strategies made for one model, so that later runs of the same shapes use it again."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._steps: dict[tuple[int, int, str], StaticStep] = {}
        self._vision: CompiledVision | None = None

    def step(
        self, strategy: str, batch: int, prompt_len: int, max_new_tokens: int
    ) -> tuple[StaticStep, bool]:
        """A decode step with room for these tokens, and whether it was made before."""
        window = family_of(self.model).window(self.model)
        key = batch, max_cache_len_for(prompt_len, max_new_tokens, window), strategy
        reused = key in self._steps
        return last_used(self._steps, key, partial(StaticStep, self.model, *key), KEPT_STEPS), reused

    def set_up(self, request: Request, inputs: DeviceInputs) -> Setup:
        """Everything that the runs of ``request`` need, made or found; `OcrPhasesError` where it fails.

        `told_of_preparing` is told what is made, numbered.
        """
        with told_of_preparing(self._numbered(request, inputs)):
            return self._set_up(request, inputs)

    def _numbered(self, request: Request, inputs: DeviceInputs) -> Callable[[str], None]:
        tell, numbers = preparing.get(), itertools.count(1)
        known = not self._steps and self._vision is None  # else some of it may be made already
        encoders = len(family_of(self.model).facts.encoders) if request.vision == "compiled" else 0
        views = 1 if inputs.pixel_values_local is None else 2
        captured = request.strategy != "eager" and inputs.input_ids.is_cuda
        total = encoders * views + (request.strategy == "compiled") + captured
        return lambda what: tell(f"{what} ({next(numbers)}{f' of {total}' if known else ''})")

    def _set_up(self, request: Request, inputs: DeviceInputs) -> Setup:
        vision, vision_ms, step, reused = None, None, None, False
        batch, prompt_len = inputs.input_ids.shape
        if request.strategy != "eager":
            step, reused = self.step(request.strategy, batch, prompt_len, request.max_new_tokens)
        if request.vision == "compiled":
            vision = self._vision = self._vision or CompiledVision(self.model)
        captures = inputs.input_ids.is_cuda and inputs.position_ids is None  # padded rows run as they are
        captured = step.prefill if step is not None and captures else None
        if vision is not None or (captured is not None and prompt_len not in captured.made):
            with contextlib.nullcontext() if vision is None else vision.installed():
                phases.prefill(self.model, inputs, step=step)
        if vision is not None:
            vision_ms = sum(vision.compile_ms[shape] for shape in vision.used)
        prefill_ms = None if captured is None else captured.made.get(prompt_len, (None, None))[1]
        return Setup(step, reused, prefill_ms, vision, vision_ms)


# -- what runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one run of a request leaves behind, before it is a record.

    The decode state is not kept: it holds a KV cache, which later repeats would count in their peak memory.
    """

    ids: list[list[int]]  # of each row
    spans: list[tuple]
    peaks: dict[str, int | None]  # bytes, by phase
    verdicts: dict[str, Verdict]  # of the checks that need the live model
    cache: dict[str, Any]  # as the record has it


class Measurement:
    """A request with every default filled in, its packed inputs, its runs so far and its record.

    ``after`` has what was measured beside the runs, by its setting: the ``parity`` check under ``verify``,
    and under ``waits`` those of the host in decode and its steps. Raises `OcrPhasesError` for what
    contradicts itself, what cannot run here, and what the model cannot hold.
    """

    def __init__(self, checkpoint: Checkpoint, page: Page | Sequence[Page], asked: RunSettings) -> None:
        family, config = checkpoint.family, checkpoint.model.config.get_text_config()
        facts = family.facts
        rows, prompts = make_rows(page, asked.prompt, asked.grounding, facts)
        several = any(len(row) > 1 for row in rows)
        infer, autocast = resolve_infer(asked.infer, asked.autocast, facts.name, several_pages=several)
        preset = choose_preset(checkpoint, asked.preset, rows)
        if asked.kernels:
            check_kernels(checkpoint.device, generate=asked.generate, trace=asked.kernel_trace)
        check_strategy(
            asked.strategy, asked.vision, family=family, device=checkpoint.device, autocast=autocast
        )
        self.checkpoint, self.device = checkpoint, checkpoint.device
        self.packed, self.pages = pack_pages(checkpoint, rows, preset["preset"], prompts, NoTimeline())
        prompt_len = self.packed.prefill_len
        room = config.max_position_embeddings - prompt_len
        limit = NEW_TOKENS
        if is_published(asked.infer):  # the published code ends there
            limit = max(1, min(facts.published_limit - prompt_len * facts.limit_has_prompt, room))
        grounding, ignore_eos, every = asked.grounding, asked.ignore_eos, asked.eos_check_every
        if grounding is None and facts.leads[1]:
            grounding = any(GROUNDING_TAG in text for text in prompts)
        resolved = {
            **vars(asked),
            **preset,
            "prompt": asked.prompt if isinstance(asked.prompt, str) else prompts[0],
            "infer": infer,
            "autocast": autocast,
            "grounding": grounding,
            "ignore_eos": checkpoint.default_ignore_eos if ignore_eos is None else ignore_eos,
            "eos_check_every": eos_interval(asked.strategy) if every is None else every,
            "max_new_tokens": asked.max_new_tokens or limit,
        }
        self.request = Request(pages=rows, prompts=prompts, **resolved)
        if self.request.max_new_tokens > room:
            raise OcrPhasesError(
                f"{prompt_len} prompt tokens and {self.request.max_new_tokens} new ones exceed the model's "
                f"{prompt_len + room} positions: "
                f"{f'ask for at most {room}' if room > 0 else 'choose a smaller preset'}."
            )
        self.setup = Setup()
        self.runs: list[Run] = []
        self.after: dict[str, Any] = {}

    def measure(
        self,
        set_up: Callable[[Request, PageInputs], Setup],
        ceilings: Callable[[], dict[str, Any] | None],
        on_tokens: Callable[[int, list[list[int]]], None] | None,
        progress: Callable[[int, int], None],
    ) -> None:
        """All of it: set-up, warm-up and repeats, then what is measured apart from them.

        Raises what the callbacks raise: the runs finished by then are kept.
        """
        request = self.request
        with current_device(self.device), self._memory_errors_explained():
            self.setup = set_up(request, self.packed)
            self.memory, self.conditions = PeakMemory(self.device), Conditions(self.device)
            total = request.warmup + request.repeats
            for number in range(-request.warmup, request.repeats):
                progress(number + request.warmup, total)
                notify = None if on_tokens is None else partial(on_tokens, max(number, -1))
                with self.conditions.of(number):
                    run = self.run_once(request, number, self.memory, notify)
                if number >= 0:
                    self.runs.append(run)
            progress(total, total)
            self._measure_after(ceilings)

    def _measure_after(self, ceilings: Callable[[], dict[str, Any] | None]) -> None:
        """What runs after everything timed goes into ``after`` piece by piece: an interrupt keeps that."""
        request, after = self.request, self.after
        if request.verify:
            after["verify"] = self._compare_with_generate()
        if request.token_probabilities:
            with execution(self.device, request.autocast):
                after["token_probabilities"] = sureness_or_none(self.checkpoint, self.packed, self.rows())
        if request.kernels:
            once = partial(self.run_once, number=0, memory=PeakMemory(self.device))
            after["kernels"] = kernel_view(lambda short: once(short).spans, request, self.device)
        if request.ceilings:
            after["ceilings"] = ceilings()

    def _compare_with_generate(self) -> dict[str, Any]:
        """The ``parity`` check: the same request through ``model.generate()``, after everything measured."""
        checkpoint, request = self.checkpoint, self.request
        try:
            inputs = self.packed.to(self.device, checkpoint.dtype)
            with execution(self.device, request.autocast):
                theirs = one_shot(checkpoint, inputs, request)
                return parity_check(checkpoint, request, inputs, self.runs[0].ids, theirs)
        # A class without generate(), or out of memory: what was measured stands.
        except (OcrPhasesError, RuntimeError, MemoryError) as error:
            return parity_result("n/a", one_sentence(error))

    def run_once(
        self, request: Request, number: int, memory: PeakMemory, on_tokens: OnTokens | None = None
    ) -> Run:
        """Prepare, prefill and decode once (or prepare and ``model.generate()``); a warm-up is below 0."""
        checkpoint, family = self.checkpoint, self.checkpoint.family
        timeline, hooks, state = Timeline(self.device), ForwardHooks(family), None
        with memory.of("prepare"), timeline.in_phase("prepare"):
            packed, _ = pack_pages(checkpoint, request.pages, request.preset, request.prompts, timeline)
            with timeline.span("transfer"):
                inputs = packed.to(self.device, checkpoint.dtype)
        # Counting takes time, so it is in no timed run.
        waits: list[str] | None = [] if number < 0 and torch.device(self.device).type == "cuda" else None
        with execution(self.device, request.autocast), self.setup.vision_execution():
            if request.generate:
                with memory.of("generate"), timeline.in_phase("generate"):
                    ids = one_shot(checkpoint, inputs, request, on_tokens)
            else:
                state = self._two_phases(request, inputs, timeline, memory, hooks, waits, on_tokens)
                ids = state.ids
                if waits is not None:
                    self.after["waits"] = len(waits), len(state.lengths) - 1
        seen = {} if state is None else hooks.verdicts(packed, state, timeline.vectors)
        return Run(
            ids=ids,
            spans=timeline.rows(number),
            peaks=memory.taken(),
            verdicts=input_verdicts(checkpoint, packed, autocast=request.autocast) | seen,
            cache=_describe_cache(state, family.window(checkpoint.model), self.setup.step),
        )

    def _two_phases(
        self,
        request: Request,
        inputs: DeviceInputs,
        timeline: Timeline,
        memory: PeakMemory,
        hooks: ForwardHooks,
        waits: list[str] | None,
        on_tokens: OnTokens | None,
    ) -> phases.DecodeState:
        """Prefill and decode, watched by ``hooks``; the host's waits in decode go into ``waits``."""
        model, step = self.checkpoint.model, self.setup.step
        sampler = Sampler(request.infer, request.seed, self.device)
        with memory.of("prefill"), hooks.watching(model, "prefill"):
            state = phases.prefill(model, inputs, timeline, sampler=sampler, step=step)
        if request.first_token == "redecode":
            phases.redecode(state)
        elif on_tokens is not None:
            on_tokens([list(row) for row in state.ids])
        # Only an eager step calls the model itself.
        watched = hooks.watching(model, "decode") if step is None else nullcontext()
        with memory.of("decode"), watched:
            return phases.decode(
                model,
                state,
                request.max_new_tokens,
                timeline,
                eos_ids=() if request.ignore_eos else (self.checkpoint.eos_id,),
                pad_id=self.checkpoint.pad_id,
                eos_check_every=request.eos_check_every,
                on_tokens=on_tokens,
                step=step,
                around=nullcontext() if waits is None else syncs_counted(waits),
            )

    @contextlib.contextmanager
    def _memory_errors_explained(self) -> Iterator[None]:
        """A device out of memory as one sentence: what was asked for, and what asks for less."""
        request, family = self.request, self.checkpoint.family.facts
        try:
            yield
        except torch.OutOfMemoryError as error:
            asked = family.preset(request.preset)
            # Crops come on top of the global view, so a preset with them is the largest.
            smaller = [
                preset.name
                for preset in family.presets.values()
                if (preset.crops, preset.base_size) < (asked.crops, asked.base_size)
            ]
            advice = [f"preset {' or '.join(reversed(smaller))}"] if smaller else []
            if len(request.pages) > 1:
                advice.append(f"fewer than {len(request.pages)} pages at once")
            advice.append(f"fewer than {request.max_new_tokens} new tokens")
            raise OutOfMemory(
                f"{self.device} is out of memory with {count_text(len(request.pages), 'row')} at preset "
                f"{request.preset} and {request.max_new_tokens} new tokens: "
                f"ask for less ({'; '.join(advice)})."
            ) from error

    # -- its record -------------------------------------------------------------------------------

    def rows(self) -> list[list[int]]:
        """The first repeat's ids, each row up to its end token."""
        eos = () if self.request.ignore_eos else (self.checkpoint.eos_id,)
        return [phases.until_end(ids, eos) for ids in self.runs[0].ids]

    def record(self) -> PhaseRun:
        """One record of all measured runs of the request, which may be fewer than it asks for."""
        checkpoint, request, runs, after = self.checkpoint, self.request, self.runs, self.after
        first, kernels = runs[0], after.get("kernels")
        sureness: Sequence[Sureness] | None = after.get("token_probabilities")
        checks = [*_checks(runs), after.get("verify"), _interrupted(runs, request, after)]
        if not request.generate:
            waits = after.get("waits")
            checks.insert(-2, host_syncs_check(waits, kernels, request.eos_check_every, self.device))
        phases_with_peak = [phase for phase, peak in first.peaks.items() if peak is not None]
        return PhaseRun(
            created=machine.now(),
            versions=machine.versions(),
            device={
                **machine.describe_device(self.device),
                "conditions": self.conditions.described(),
                "ceilings": after.get("ceilings"),
            },
            model={**_describe_model(checkpoint, request), **self.setup.described()},
            pages=_describe_pages(request, self.packed, self.pages),
            request={
                **request.described(),
                "repeats": len(runs),
                "prefill_len": self.packed.prefill_len,
                "batch": self.packed.batch_size,
            },
            results=[_describe_row(checkpoint, request, ids) for ids in self.rows()],
            spans=record.make_spans([span for run in runs for span in run.spans]),
            memory={
                "source": self.memory.source,
                "peak_bytes": {phase: [run.peaks[phase] for run in runs] for phase in phases_with_peak},
                "weights_bytes": sum(p.numel() * p.element_size() for p in checkpoint.model.parameters()),
            },
            cache=first.cache,
            live_checks=[check for check in checks if check is not None],
            kernels=kernels,
            probabilities=None if sureness is None else [row._asdict() for row in sureness],
        )


def _describe_cache(
    state: phases.DecodeState | None, window: int | None, step: StaticStep | None
) -> dict[str, Any]:
    """The record's part about the KV cache, after the prefill and each step; ``generate()`` has no state."""
    lengths, entries, each = [], [], 0
    if state is not None:
        lengths, entries, each = state.lengths, state.entries, cache_bytes_per_token(state.cache)
    room = None if step is None else step.max_cache_len
    return {
        "lengths": lengths,
        # Of the tokens seen a window keeps the prompt's and the last generated ones.
        **({} if window is None else {"window": window, "entries": entries}),
        "bytes_per_token": each,
        "bytes": [held * each for held in entries],
        # A static cache's size, which is there from the start.
        "max_cache_len": room,
        "allocated_bytes": None if room is None else room * each,
    }


def _describe_row(checkpoint: Checkpoint, request: Request, ids: list[int]) -> dict[str, Any]:
    ended = not request.ignore_eos and ids[-1] == checkpoint.eos_id
    written = ids[:-1] if ended else ids
    # The end token apart: a character still incomplete before it belongs to the text.
    parts = written, ids[len(written) :]
    texts = [text for part in parts for text in token_texts(checkpoint.tokenizer, part)]
    return {
        "ids": ids,
        "token_texts": texts if request.return_text else [""] * len(ids),
        "text": "".join(texts[: len(written)]) if request.return_text else None,
        # As the vendor counts them: the output, end token included, tokenised again.
        "text_tokens": len(checkpoint.encode("".join(texts))),
        "finish_reason": "eos" if ended else "length",
    }


def _describe_pages(
    request: Request, packed: PageInputs, rows: Sequence[Sequence[tuple]]
) -> list[dict[str, Any]]:
    pages = [(row, *page) for row, given in enumerate(rows) for page in given]
    return [
        {
            **record.describe_page(image, data, name, embed=request.embed_page),
            "row": row,
            "preset": request.preset,
            "grid": list(view.grid),
            "image_tokens": packed.image_tokens[row],
            "text_tokens": packed.text_tokens[row],
            "valid_image_tokens": valid_image_tokens(view.preset, view.size, view.grid),
        }
        for (row, image, data, name), view in zip(pages, packed.views, strict=True)
    ]


def _describe_model(checkpoint: Checkpoint, request: Request) -> dict[str, Any]:
    model = checkpoint.model
    return {
        "name": checkpoint.name,
        "source": checkpoint.source,
        "revision": checkpoint.revision,
        "family": checkpoint.family.name,
        "implementation": checkpoint.family.implementation,
        "class": type(model).__name__,
        "dtype": str(checkpoint.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "attention_kernels": machine.attention_kernels(checkpoint.device),
        "experts": getattr(model.config.get_text_config(), "_experts_implementation", None),
        "decode_attention_kernels": machine.attention_kernels(checkpoint.device, request.strategy),
        "decode_experts": decode_experts(model, request.strategy).get("text_config"),
        "strategy": request.strategy,
        "vision": request.vision,
        "cuda_calls": checkpoint.cuda_calls,
        "parameters": checkpoint.family.parameters(model),
        "config": checkpoint.config,
    }


def _checks(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the repeats agree on, and what was seen of the live model."""
    same = all(run.ids == runs[0].ids for run in runs)
    return [
        {
            "name": "repeats_agree",
            "verdict": "pass" if same else "fail",
            "measured": f"{len(runs)} repeats, {'equal' if same else 'different'} tokens",
        },
        *merged([run.verdicts for run in runs]),
    ]


def _interrupted(runs: Sequence[Run], request: Request, after: Mapping[str, Any]) -> dict[str, Any] | None:
    """A note on what is missing where the measurement was stopped."""
    missing = [name for name in _AFTERWARDS if getattr(request, name) and name not in after]
    if len(runs) == request.repeats and not missing:
        return None
    measured = f"{len(runs)} of {count_text(request.repeats, 'repeat')}"
    return {
        "name": "interrupted",
        "verdict": "note",
        "measured": f"{measured}, without {', '.join(missing)}" if missing else measured,
    }
