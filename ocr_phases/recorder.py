"""A request, its runs and what follows them, and the `PhaseRun` that says what was measured."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from ocr_phases import record
from ocr_phases.collectors import machine
from ocr_phases.collectors.kernels import check_kernels, kernel_view
from ocr_phases.collectors.live_checks import (
    ForwardHooks,
    LiveCheck,
    check,
    host_syncs_check,
    input_checks,
    merged,
)
from ocr_phases.collectors.machine import Conditions, PeakMemory, measure_ceilings
from ocr_phases.collectors.parity import parity_check
from ocr_phases.collectors.probabilities import sureness_or_none
from ocr_phases.errors import OcrPhasesError, OutOfMemory
from ocr_phases.families import GROUNDING_TAG, IMAGE_TAG
from ocr_phases.files import split_page
from ocr_phases.inputs.images import describe_page, load_page
from ocr_phases.inputs.packing import PageInputs, pack
from ocr_phases.inputs.views import Pages, make_rows, make_views, valid_image_tokens
from ocr_phases.models.caches import cache_bytes_per_token
from ocr_phases.models.load import Checkpoint, TokenReader
from ocr_phases.record import PhaseRun
from ocr_phases.settings import NEW_TOKENS, Request, RunSettings, is_published, resolve_infer
from ocr_phases.steps import phases
from ocr_phases.steps.captured import KEPT_STEPS, StaticStep, max_cache_len_for
from ocr_phases.steps.compiled import compiled_vision
from ocr_phases.steps.execution import (
    check_strategy,
    current_device,
    decode_attention,
    decode_experts,
    eos_interval,
    last_used,
    preparing,
    syncs_counted,
    told_of_preparing,
)
from ocr_phases.steps.sampling import OnTokens, Sampler, one_shot
from ocr_phases.steps.timeline import NoTimeline, Timeline
from ocr_phases.text import count_text

Packed = tuple[PageInputs, list[tuple]]
"""Packed inputs, and the pages in them as (image, bytes, name)."""

#: Settings of what is measured after the repeats.
_AFTERWARDS = ("verify", "token_probabilities", "kernels", "ceilings")


# -- what is asked for --------------------------------------------------------------------------------


def _choose_preset(checkpoint: Checkpoint, asked: str | None, *, several: bool) -> str:
    """The preset ``asked`` for, or the default, as the family calls it.

    Raises `OcrPhasesError` for one that the family has not, and for crops of several pages in one prompt.
    """
    family = checkpoint.family.facts
    uncut = family.multipage_preset if several else None
    preset = family.preset(asked or uncut or checkpoint.default_preset or family.default_preset)
    if uncut and preset.crops:
        names = [preset.name for preset in family.presets.values() if not preset.crops]
        raise OcrPhasesError(
            f"{family.title} reads several pages in one prompt without crops: choose the preset "
            f"{' or '.join(names)}."
        )
    return preset.name


def pack_pages(checkpoint: Checkpoint, request: Request, timeline: Timeline) -> Packed:
    """Load, cut and tokenise."""
    with timeline.span("load_image"):
        pages = [load_page(page) for page in request.pages]
        preset = checkpoint.family.facts.preset(request.preset)
        views = [make_views(image, preset) for image, _, _ in pages]
    with timeline.span("tokenizer"):
        return pack(views, request.prompts, checkpoint), pages


def one_sentence(error: Exception) -> str:
    """Why something could not be measured, as one line; an error that is not the package's says its kind."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return text if isinstance(error, OcrPhasesError) else f"{type(error).__name__}: {text[:300]}"


def page_id(described: Mapping[str, Any]) -> str:
    """What a described page is known by: the hash is its whole file's, so a later page's number too."""
    number = split_page(described["file"])[1]
    return described["sha256"] if number == "#1" else f"{described['sha256']}{number}"


@contextlib.contextmanager
def execution(device: str, autocast: bool = False) -> Iterator[None]:
    """Around all that runs here: the prefill and `generate()` have no cuDNN attention either.

    Decode chooses its kernels once more inside (`decode_execution`): other ones for a static step, and it
    can be called without a session.
    """
    cast = torch.autocast(torch.device(device).type, torch.bfloat16) if autocast else nullcontext()
    with current_device(device), decode_attention(device), cast:
        yield


# -- what runs ----------------------------------------------------------------------------------------


class Prepared:
    """What measurements of one model share: what strategies made ready, by shape, and the ceilings.

    ``ceilings`` is `measure_ceilings` on the model's device, of each dtype once.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.steps: dict[tuple[int, int, str], StaticStep] = {}
        self.vision = compiled_vision(checkpoint.model)
        self.ceilings = functools.cache(partial(measure_ceilings, checkpoint.device))


class Repeat(NamedTuple):
    """What a run leaves behind: no decode state, whose KV cache later runs would count in their peaks."""

    ids: list[list[int]]
    spans: list[tuple]
    peaks: dict[str, int]
    checks: list[LiveCheck]
    cache: dict[str, Any]


def bar_in_cell(steps: Iterable[Any], unit: str, total: int | None = None) -> Iterable[Any]:
    """``steps`` with a bar on one line of a notebook's cell; elsewhere without: a command has its own."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return tqdm(steps, total=total, unit=unit, file=sys.stdout, disable=not hasattr(shell, "kernel"))


class Measurement:
    """A request with every default filled in, its packed inputs, its runs so far and its record.

    ``after`` has what was measured beside the ``runs``, by its setting. Raises `OcrPhasesError` for what
    contradicts itself, what cannot run here, and what the model cannot hold.
    """

    def __init__(self, prepared: Prepared, page: Pages, asked: RunSettings) -> None:
        self.prepared, self.runs = prepared, list[Repeat]()
        self.after: dict[str, Any] = {}
        self.waits: tuple[int, int] | None = None  # of the host in a warm-up's decode, and its steps
        self.step: StaticStep | None = None
        self.vision: Callable[[], AbstractContextManager[None]] = nullcontext
        self.made: dict[str, Any] = {"strategy_setup": None, "vision_setup": None}
        checkpoint = self.checkpoint = prepared.checkpoint
        self.device, facts = checkpoint.device, checkpoint.family.facts
        pages, prompts = make_rows(page, asked, facts)
        several = any(text.count(IMAGE_TAG) > 1 for text in prompts)
        infer, autocast = resolve_infer(asked.infer, asked.autocast, facts.name, several_pages=several)
        settings = {
            "max_new_tokens": NEW_TOKENS,
            "grounding": any(GROUNDING_TAG in text for text in prompts) if facts.leads[1] else None,
            "ignore_eos": checkpoint.default_ignore_eos,
            "eos_check_every": eos_interval(asked.strategy),
            **{name: value for name, value in vars(asked).items() if value is not None},
            "pages": pages,
            "prompts": prompts,
            "prompt": asked.prompt if isinstance(asked.prompt, str) else prompts[0],
            "preset": _choose_preset(checkpoint, asked.preset, several=several),
            "preset_choice": "asked" if asked.preset else "default",
            "infer": infer,
            "autocast": autocast,
        }
        request = Request(**settings)
        if request.kernels:
            check_kernels(self.device, generate=request.generate, trace=request.kernel_trace)
        check_strategy(request, checkpoint.family, self.device)
        self.packed, self.pages = pack_pages(checkpoint, request, NoTimeline())
        prompt_len = self.packed.prefill_len
        room = checkpoint.model.config.get_text_config().max_position_embeddings - prompt_len
        if asked.max_new_tokens is None and is_published(asked.infer):  # the published code ends there
            limit = max(1, min(facts.published_limit - prompt_len * facts.limit_has_prompt, room))
            request = replace(request, max_new_tokens=limit)
        if request.max_new_tokens > room:
            raise OcrPhasesError(
                f"{prompt_len} prompt tokens and {request.max_new_tokens} new ones exceed the model's "
                f"{prompt_len + room} positions: "
                f"{f'ask for at most {room}' if room > 0 else 'choose a smaller preset'}."
            )
        self.request, self.eos_ids = request, () if request.ignore_eos else (checkpoint.eos_id,)

    def set_up(self) -> None:
        """Make or find what the strategies need; `OcrPhasesError` where that fails.

        `told_of_preparing` is told what is made, numbered. Times in the record's part are ms.
        """
        request, steps, vision = self.request, self.prepared.steps, self.prepared.vision
        static, compiled = request.strategy != "eager", request.vision == "compiled"
        if not static and not compiled:
            return
        family, model = self.checkpoint.family, self.checkpoint.model
        inputs = self.packed.to(self.device, self.checkpoint.dtype)
        total = len(family.facts.encoders) * len(family.views(inputs)) * compiled
        total += (request.strategy == "compiled") + (static and inputs.input_ids.is_cuda)
        of = "" if steps or vision.made else f" of {total}"  # some may be made already
        tell, numbers = preparing.get(), itertools.count(1)
        with told_of_preparing(lambda what: tell(f"{what} ({next(numbers)}{of})")):
            if static:
                rows, length = inputs.input_ids.shape
                room = max_cache_len_for(length, request.max_new_tokens, family.window(model))
                key = rows, room, request.strategy
                reused = key in steps
                self.step = last_used(steps, key, partial(StaticStep, model, *key), KEPT_STEPS)
            if compiled:
                self.vision = vision.installed
            if compiled or inputs.input_ids.is_cuda:  # a static step on a CPU captures no prefill
                with self.vision():
                    phases.prefill(model, inputs, step=self.step)
        if self.step is not None:
            ms = self.step.prefill.took_ms()
            self.made["strategy_setup"] = {**self.step.setup, "prefill_capture_ms": ms, "reused": reused}
        if compiled:
            self.made["vision_setup"] = {"compile_ms": vision.took_ms()}

    def measure(
        self,
        on_tokens: Callable[[int, list[list[int]]], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """All of it: set-up, warm-up and repeats, then what is measured apart from them.

        Raises what the callbacks raise: the runs finished by then are kept.
        """
        request, total = self.request, self.request.warmup + self.request.repeats
        numbers: Iterable[int] = range(-request.warmup, request.repeats)
        if progress is None:
            numbers, progress = bar_in_cell(numbers, "run"), lambda done, total: None
        try:
            with execution(self.device):
                self.set_up()
                self.memory, self.conditions = PeakMemory(self.device), Conditions(self.device)
                for number in numbers:
                    progress(number + request.warmup, total)
                    notify = None if on_tokens is None else partial(on_tokens, max(number, -1))
                    with self.conditions.of(number):
                        run = self._run(request, number, notify)
                    if number >= 0:
                        self.runs.append(run)
                progress(total, total)
                self._measure_after()
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(self._too_much()) from error

    def _measure_after(self) -> None:
        """What runs after everything timed goes into ``after`` piece by piece: an interrupt keeps that."""
        checkpoint, request, after = self.checkpoint, self.request, self.after
        with execution(self.device, request.autocast):
            if request.verify:
                try:
                    inputs = self.packed.to(self.device, checkpoint.dtype)
                    theirs = one_shot(checkpoint, inputs, request)
                    after["verify"] = parity_check(checkpoint, request, inputs, self.runs[0].ids, theirs)
                # A class without generate(), or out of memory: what was measured stands.
                except (OcrPhasesError, RuntimeError, MemoryError) as error:
                    after["verify"] = check("parity", "n/a", one_sentence(error))
            if request.token_probabilities:
                after["token_probabilities"] = sureness_or_none(checkpoint, self.packed, self.rows())
        if request.kernels:
            after["kernels"] = kernel_view(lambda short: self._run(short).spans, request, self.device)
        if request.ceilings:
            dtype = torch.bfloat16 if request.autocast else checkpoint.dtype
            after["ceilings"] = self.prepared.ceilings(dtype)

    def _run(self, request: Request, number: int = 0, notify: OnTokens | None = None) -> Repeat:
        """Prepare, prefill and decode once (or prepare and ``model.generate()``); a warm-up is below 0."""
        checkpoint, step, hooks = self.checkpoint, self.step, ForwardHooks(self.checkpoint.family)
        # Counting takes time, so it is in no timed run.
        waits: list[str] | None = [] if number < 0 and torch.device(self.device).type == "cuda" else None

        def watched(phase: str) -> AbstractContextManager[Any]:
            watching = contextlib.ExitStack()
            watching.enter_context(self.memory.of(phase))
            # Only an eager step calls the model itself.
            if phase == "prefill" or (phase == "decode" and step is None):
                watching.enter_context(hooks.watching(checkpoint.model, phase))
            if phase == "decode" and waits is not None:
                watching.enter_context(syncs_counted(waits))
            return watching

        timeline = Timeline(self.device, around=watched)
        with timeline.in_phase("prepare"):
            packed, _ = pack_pages(checkpoint, request, timeline)
            with timeline.span("transfer"):
                inputs = packed.to(self.device, checkpoint.dtype)
        cache, checks = {}, input_checks(checkpoint, packed, autocast=request.autocast)
        with execution(self.device, request.autocast), self.vision():
            if request.generate:
                with timeline.in_phase("generate"):
                    ids = one_shot(checkpoint, inputs, request, notify)
            else:
                state = phases.generate(
                    checkpoint.model,
                    inputs,
                    request.max_new_tokens,
                    timeline,
                    sampler=Sampler(request.infer, request.seed, self.device),
                    first_token=request.first_token,
                    step=step,
                    eos_ids=self.eos_ids,
                    pad_id=checkpoint.pad_id,
                    eos_check_every=request.eos_check_every,
                    on_tokens=notify,
                )
                ids, cache = state.ids, _describe_cache(state, step)
                checks += hooks.checks(packed, state, timeline.vectors)
                if waits is not None:
                    self.waits = len(waits), len(state.lengths) - 1
        peaks = {phase: peak for phase, peak in self.memory.taken().items() if peak is not None}
        return Repeat(ids, timeline.rows(number), peaks, checks, cache)

    def _too_much(self) -> str:
        """What was too much for the device, and what asks for less."""
        request, presets = self.request, self.checkpoint.family.facts.presets
        # A family's presets go from the smallest to the largest.
        smaller = list(itertools.takewhile(request.preset.__ne__, presets))[::-1]
        rows, tokens = self.packed.batch_size, f"{request.max_new_tokens} new tokens"
        advice = [f"preset {' or '.join(smaller)}"] if smaller else []
        advice += [f"fewer than {rows} pages at once"] if rows > 1 else []
        return (
            f"{self.device} is out of memory with {count_text(rows, 'row')} at preset {request.preset} and "
            f"{tokens}: ask for less ({'; '.join([*advice, f'fewer than {tokens}'])})."
        )

    # -- its record -------------------------------------------------------------------------------

    def rows(self) -> list[list[int]]:
        """The first repeat's ids, each row up to its end token."""
        return [phases.until_end(ids, self.eos_ids) for ids in self.runs[0].ids]

    def record(self) -> PhaseRun:
        """One record of all measured runs of the request, which may be fewer than it asks for."""
        checkpoint, request, runs, after = self.checkpoint, self.request, self.runs, self.after
        sureness = after.get("token_probabilities")
        return PhaseRun(
            created=machine.now(),
            versions=machine.versions(),
            device={
                **machine.describe_device(self.device),
                "conditions": self.conditions.described(),
                "ceilings": after.get("ceilings"),
            },
            model={
                **describe_model(checkpoint),
                "strategy": request.strategy,
                "vision": request.vision,
                "decode_attention_kernels": machine.attention_kernels(self.device, request.strategy),
                "decode_experts": decode_experts(checkpoint.model, request.strategy).get("text_config"),
                **self.made,
            },
            pages=self._described_pages(),
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
                "peak_bytes": {phase: [run.peaks[phase] for run in runs] for phase in runs[0].peaks},
                "weights_bytes": sum(p.numel() * p.element_size() for p in checkpoint.model.parameters()),
            },
            cache=runs[0].cache,
            live_checks=self._checks(),
            kernels=after.get("kernels"),
            probabilities=None if sureness is None else [row._asdict() for row in sureness],
        )

    def _described_pages(self) -> list[dict[str, Any]]:
        request, packed = self.request, self.packed
        rows = [row for row, count in enumerate(packed.views_per_row) for _ in range(count)]
        return [
            {
                **describe_page(*page, embed=request.embed_page),
                "row": row,
                "preset": request.preset,
                "grid": list(view.grid),
                "image_tokens": packed.image_tokens[row],
                "text_tokens": packed.text_tokens[row],
                "valid_image_tokens": valid_image_tokens(view.preset, view.size, view.grid),
            }
            for row, page, view in zip(rows, self.pages, packed.views, strict=True)
        ]

    def _checks(self) -> list[dict[str, Any]]:
        """What the repeats agree on, what was seen of the live model, and what is missing after a stop."""
        request, runs, after = self.request, self.runs, self.after
        same = all(run.ids == runs[0].ids for run in runs)
        agree = f"{len(runs)} repeats, {'equal' if same else 'different'} tokens"
        seen = merged(one for run in runs for one in run.checks)
        checks = [check("repeats_agree", same, agree), *seen]
        if not request.generate:
            every, view = request.eos_check_every, after.get("kernels")
            checks.append(host_syncs_check(self.waits, view, every, self.device))
        if "verify" in after:
            checks.append(after["verify"])
        missing = [name for name in _AFTERWARDS if getattr(request, name) and name not in after]
        if len(runs) < request.repeats or missing:
            finished = f"{len(runs)} of {count_text(request.repeats, 'repeat')}"
            measured = f"{finished}, without {', '.join(missing)}" if missing else finished
            checks.append(check("interrupted", "note", measured))
        return checks


def _describe_cache(state: phases.DecodeState, step: StaticStep | None) -> dict[str, Any]:
    """The record's part about the KV cache, after the prefill and each step."""
    each, static = cache_bytes_per_token(state.cache), {} if step is None else step.setup
    return {
        "lengths": state.lengths,
        # Of the tokens seen a window keeps the prompt's and the last generated ones.
        **({} if state.window is None else {"window": state.window, "entries": state.entries}),
        "bytes_per_token": each,
        "bytes": [held * each for held in state.entries],
        # A static cache's size, which is there from the start.
        **{name: static.get(name) for name in ("max_cache_len", "allocated_bytes")},
    }


def _describe_row(checkpoint: Checkpoint, request: Request, ids: list[int]) -> dict[str, Any]:
    ended = not request.ignore_eos and ids[-1] == checkpoint.eos_id
    written = ids[:-1] if ended else ids
    # The end token apart: a character still incomplete before it belongs to the text.
    read, ends = TokenReader(checkpoint.tokenizer).read, (len(written), len(ids))
    texts = [read(token, last=place in ends) for place, token in enumerate(ids, start=1)]
    return {
        "ids": ids,
        "token_texts": texts if request.return_text else [""] * len(ids),
        "text": "".join(texts[: len(written)]) if request.return_text else None,
        # As the vendor counts them: the output, end token included, tokenised again.
        "text_tokens": len(checkpoint.encode("".join(texts))),
        "finish_reason": "eos" if ended else "length",
    }


def describe_model(checkpoint: Checkpoint) -> dict[str, Any]:
    """The record's part about a model, whatever it is asked to do."""
    model, family = checkpoint.model, checkpoint.family
    own = ("name", "source", "revision", "cuda_calls", "config")
    return {
        **{name: getattr(checkpoint, name) for name in own},
        "family": family.facts.name,
        "implementation": family.implementation,
        "class": type(model).__name__,
        "dtype": str(checkpoint.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "attention_kernels": machine.attention_kernels(checkpoint.device),
        "experts": getattr(model.config.get_text_config(), "_experts_implementation", None),
        "parameters": family.parameters(model),
    }
