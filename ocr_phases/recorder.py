"""A request, its runs and what follows them, and the `PhaseRun` that says what was measured."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ocr_phases import record
from ocr_phases.collectors import machine
from ocr_phases.collectors.kernels import check_kernels, kernel_view
from ocr_phases.collectors.live_checks import (
    ForwardHooks,
    check,
    host_syncs_check,
    input_checks,
    merged,
)
from ocr_phases.collectors.machine import Conditions, PeakMemory, measure_ceilings
from ocr_phases.collectors.parity import parity_check
from ocr_phases.collectors.probabilities import sureness_or_none
from ocr_phases.errors import OcrPhasesError, OutOfMemory
from ocr_phases.families import GROUNDING_TAG, IMAGE_TAG, FamilyFacts
from ocr_phases.files import each_page
from ocr_phases.inputs.images import load_page
from ocr_phases.inputs.packing import DeviceInputs, PageInputs, make_views, pack, valid_image_tokens
from ocr_phases.models.caches import cache_bytes_per_token
from ocr_phases.models.load import Checkpoint, token_texts
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
from ocr_phases.sweep_models import one_sentence
from ocr_phases.text import count_text

Page = str | Path | bytes | Image.Image
Pages = Page | Sequence[Page]
#: What a request's strategies made ready: its decode step, what a prefill runs in, and the record's part.
SetUp = tuple[StaticStep | None, Callable[[], AbstractContextManager[None]], dict[str, Any]]

#: Settings of what is measured after the repeats.
_AFTERWARDS = ("verify", "token_probabilities", "kernels", "ceilings")


# -- what is asked for --------------------------------------------------------------------------------


def _make_rows(page: Pages, asked: RunSettings, family: FamilyFacts) -> tuple[list[list[Page]], list[str]]:
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
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    count = len(pages) if len(prompts) == 1 else 1
    texts = [family.text_of(text, grounding=asked.grounding, pages=count) for text in prompts]
    if len(texts) == 1 and texts[0].count(IMAGE_TAG) > 1:
        return [pages], texts
    return [[item] for item in pages], texts * len(pages) if len(texts) == 1 else texts


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


def pack_pages(
    checkpoint: Checkpoint, request: Request, timeline: Timeline
) -> tuple[PageInputs, list[list[tuple]]]:
    """Load, cut and tokenise: the packed inputs, and each row's pages as (image, bytes, name)."""
    with timeline.span("load_image"):
        pages = [[load_page(page) for page in row] for row in request.pages]
        preset = checkpoint.family.facts.preset(request.preset)
        views = [[make_views(image, preset) for image, _, _ in row] for row in pages]
    with timeline.span("tokenizer"):
        packed = pack(
            views,
            request.prompts,
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
    cast = torch.autocast(torch.device(device).type, torch.bfloat16) if autocast else nullcontext()
    with current_device(device), decode_attention(device), cast:
        yield


# -- what is kept -------------------------------------------------------------------------------------


class Prepared:
    """What measurements of one model share: what strategies made ready, by shape, and the ceilings.

    ``ceilings`` is `measure_ceilings` on the model's device, of each dtype once.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.steps: dict[tuple[int, int, str], StaticStep] = {}
        self.vision = compiled_vision(checkpoint.model)
        self.ceilings = functools.cache(partial(measure_ceilings, checkpoint.device))

    def set_up(self, request: Request, packed: PageInputs) -> SetUp:
        """Everything that the runs of ``request`` need, made or found; `OcrPhasesError` where it fails.

        `told_of_preparing` is told what is made, numbered. Times in the record's part are ms.
        """
        model, family, compiled = self.checkpoint.model, self.checkpoint.family, request.vision == "compiled"
        step, vision = None, self.vision.installed if compiled else nullcontext
        made: dict[str, Any] = {"strategy_setup": None, "vision_setup": None}
        if request.strategy == "eager" and not compiled:
            return step, vision, made
        inputs = packed.to(self.checkpoint.device, self.checkpoint.dtype)
        rows, length = inputs.input_ids.shape
        with told_of_preparing(self._numbered(request, inputs)):
            if request.strategy != "eager":
                room = max_cache_len_for(length, request.max_new_tokens, family.window(model))
                key = rows, room, request.strategy
                reused = key in self.steps
                step = last_used(self.steps, key, partial(StaticStep, model, *key), KEPT_STEPS)
            if compiled or inputs.input_ids.is_cuda:
                with vision():
                    phases.prefill(model, inputs, step=step)
        if step is not None:
            prefill_ms = step.prefill.took_ms()
            made["strategy_setup"] = {**step.setup, "prefill_capture_ms": prefill_ms, "reused": reused}
        if compiled:
            made["vision_setup"] = {"compile_ms": self.vision.took_ms()}
        return step, vision, made

    def _numbered(self, request: Request, inputs: DeviceInputs) -> Callable[[str], None]:
        tell, numbers = preparing.get(), itertools.count(1)
        encoders = len(self.checkpoint.family.facts.encoders) if request.vision == "compiled" else 0
        views = 1 if inputs.pixel_values_local is None else 2
        captured = request.strategy != "eager" and inputs.input_ids.is_cuda
        total = encoders * views + (request.strategy == "compiled") + captured
        of = "" if self.steps or self.vision.made else f" of {total}"  # some may be made already
        return lambda what: tell(f"{what} ({next(numbers)}{of})")


# -- what runs ----------------------------------------------------------------------------------------


@dataclass
class Measurement:
    """A request with every default filled in, its packed inputs, its runs so far and its record.

    ``runs`` has what each repeat leaves behind: not its decode state, whose KV cache later repeats would
    count in their peak memory. ``after`` has what was measured beside them, by its setting. Raises
    `OcrPhasesError` for what contradicts itself, what cannot run here, and what the model cannot hold.
    """

    prepared: Prepared
    page: InitVar[Pages]
    asked: InitVar[RunSettings]
    on_tokens: Callable[[int, list[list[int]]], None] | None = None
    progress: Callable[[int, int], None] = lambda done, total: None
    runs: list[dict[str, Any]] = field(default_factory=list)
    after: dict[str, Any] = field(default_factory=dict)
    waits: tuple[int, int] | None = None  # of the host in a warm-up's decode, and its steps

    def __post_init__(self, page: Pages, asked: RunSettings) -> None:
        checkpoint = self.checkpoint = self.prepared.checkpoint
        self.device, facts = checkpoint.device, checkpoint.family.facts
        rows, prompts = _make_rows(page, asked, facts)
        several = any(len(row) > 1 for row in rows)
        infer, autocast = resolve_infer(asked.infer, asked.autocast, facts.name, several_pages=several)
        defaults = {
            "max_new_tokens": NEW_TOKENS,
            "grounding": any(GROUNDING_TAG in text for text in prompts) if facts.leads[1] else None,
            "ignore_eos": checkpoint.default_ignore_eos,
            "eos_check_every": eos_interval(asked.strategy),
        }
        given = {name: value for name, value in vars(asked).items() if value is not None}
        resolved = {
            "pages": rows,
            "prompts": prompts,
            "prompt": asked.prompt if isinstance(asked.prompt, str) else prompts[0],
            "preset": _choose_preset(checkpoint, asked.preset, several=several),
            "preset_choice": "asked" if asked.preset else "default",
            "infer": infer,
            "autocast": autocast,
        }
        request = Request(**defaults | given | resolved)
        if request.kernels:
            check_kernels(self.device, generate=request.generate, trace=request.kernel_trace)
        check_strategy(
            request.strategy, request.vision, family=checkpoint.family, device=self.device, autocast=autocast
        )
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

    def measure(self) -> None:
        """All of it: set-up, warm-up and repeats, then what is measured apart from them.

        Raises what the callbacks raise: the runs finished by then are kept.
        """
        request, total = self.request, self.request.warmup + self.request.repeats
        try:
            with execution(self.device):
                self.step, self.vision, self.made = self.prepared.set_up(request, self.packed)
                self.memory, self.conditions = PeakMemory(self.device), Conditions(self.device)
                for number in range(-request.warmup, request.repeats):
                    self.progress(number + request.warmup, total)
                    notify = None if self.on_tokens is None else partial(self.on_tokens, max(number, -1))
                    with self.conditions.of(number):
                        run = self._run(request, number, notify)
                    if number >= 0:
                        self.runs.append(run)
                self.progress(total, total)
                self._measure_after()
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(self._too_much()) from error

    def _measure_after(self) -> None:
        """What runs after everything timed goes into ``after`` piece by piece: an interrupt keeps that."""
        request, after = self.request, self.after
        with execution(self.device, request.autocast):
            if request.verify:
                after["verify"] = self._parity()
            if request.token_probabilities:
                after["token_probabilities"] = sureness_or_none(self.checkpoint, self.packed, self.rows())
        if request.kernels:
            after["kernels"] = kernel_view(lambda short: self._run(short)["spans"], request, self.device)
        if request.ceilings:
            dtype = torch.bfloat16 if request.autocast else self.checkpoint.dtype
            after["ceilings"] = self.prepared.ceilings(dtype)

    def _parity(self) -> dict[str, Any]:
        """The ``parity`` check: the same request through ``model.generate()``."""
        try:
            inputs = self.packed.to(self.device, self.checkpoint.dtype)
            theirs = one_shot(self.checkpoint, inputs, self.request)
            return parity_check(self.checkpoint, self.request, inputs, self.runs[0]["ids"], theirs)
        # A class without generate(), or out of memory: what was measured stands.
        except (OcrPhasesError, RuntimeError, MemoryError) as error:
            return check("parity", "n/a", one_sentence(error))

    def _run(self, request: Request, number: int = 0, notify: OnTokens | None = None) -> dict[str, Any]:
        """Prepare, prefill and decode once (or prepare and ``model.generate()``); a warm-up is below 0."""
        checkpoint, memory, timeline = self.checkpoint, self.memory, Timeline(self.device)
        with memory.of("prepare"), timeline.in_phase("prepare"):
            packed, _ = pack_pages(checkpoint, request, timeline)
            with timeline.span("transfer"):
                inputs = packed.to(self.device, checkpoint.dtype)
        cache, seen = {}, []
        with execution(self.device, request.autocast), self.vision():
            if request.generate:
                with memory.of("generate"), timeline.in_phase("generate"):
                    ids = one_shot(checkpoint, inputs, request, notify)
            else:
                state, hooks = self._two_phases(request, inputs, timeline, number, notify)
                ids, cache = state.ids, _describe_cache(state, self.step)
                seen = hooks.checks(packed, state, timeline.vectors)
        return {
            "ids": ids,
            "spans": timeline.rows(number),
            "peaks": memory.taken(),
            "checks": input_checks(checkpoint, packed, autocast=request.autocast) + seen,
            "cache": cache,
        }

    def _two_phases(
        self, request: Request, inputs: DeviceInputs, timeline: Timeline, number: int, notify: OnTokens | None
    ) -> tuple[phases.DecodeState, ForwardHooks]:
        """Prefill and decode, and what was seen of the model's calls."""
        model, step, hooks = self.checkpoint.model, self.step, ForwardHooks(self.checkpoint.family)
        sampler = Sampler(request.infer, request.seed, self.device)
        with self.memory.of("prefill"), hooks.watching(model, "prefill"):
            state = phases.prefill(model, inputs, timeline, sampler=sampler, step=step)
        if request.first_token == "redecode":
            phases.redecode(state)
        elif notify is not None:
            notify([list(row) for row in state.ids])
        # Only an eager step calls the model itself.
        watched = hooks.watching(model, "decode") if step is None else nullcontext()
        waits: list[str] = []
        # Counting takes time, so it is in no timed run.
        counted = number < 0 and torch.device(self.device).type == "cuda"
        with self.memory.of("decode"), watched:
            phases.decode(
                model,
                state,
                request.max_new_tokens,
                timeline,
                eos_ids=self.eos_ids,
                pad_id=self.checkpoint.pad_id,
                eos_check_every=request.eos_check_every,
                on_tokens=notify,
                step=step,
                around=syncs_counted(waits) if counted else nullcontext(),
            )
        if counted:
            self.waits = len(waits), len(state.lengths) - 1
        return state, hooks

    def _too_much(self) -> str:
        """What was too much for the device, and what asks for less."""
        request, presets = self.request, self.checkpoint.family.facts.presets
        # Crops come on top of the global view, so a preset with them is the largest.
        sizes = {name: (preset.crops, preset.base_size) for name, preset in presets.items()}
        smaller = [name for name in reversed(sizes) if sizes[name] < sizes[request.preset]]
        rows, tokens = len(request.pages), f"{request.max_new_tokens} new tokens"
        advice = [f"preset {' or '.join(smaller)}"] if smaller else []
        advice += [f"fewer than {rows} pages at once"] if rows > 1 else []
        return (
            f"{self.device} is out of memory with {count_text(rows, 'row')} at preset {request.preset} and "
            f"{tokens}: ask for less ({'; '.join([*advice, f'fewer than {tokens}'])})."
        )

    # -- its record -------------------------------------------------------------------------------

    def rows(self) -> list[list[int]]:
        """The first repeat's ids, each row up to its end token."""
        return [phases.until_end(ids, self.eos_ids) for ids in self.runs[0]["ids"]]

    def record(self) -> PhaseRun:
        """One record of all measured runs of the request, which may be fewer than it asks for."""
        checkpoint, request, runs, after = self.checkpoint, self.request, self.runs, self.after
        sureness = after.get("token_probabilities")
        phases_with_peak = [phase for phase, peak in runs[0]["peaks"].items() if peak is not None]
        return PhaseRun(
            created=machine.now(),
            versions=machine.versions(),
            device={
                **machine.describe_device(self.device),
                "conditions": self.conditions.described(),
                "ceilings": after.get("ceilings"),
            },
            model={**_describe_model(checkpoint, request), **self.made},
            pages=self._described_pages(),
            request={
                **request.described(),
                "repeats": len(runs),
                "prefill_len": self.packed.prefill_len,
                "batch": self.packed.batch_size,
            },
            results=[_describe_row(checkpoint, request, ids) for ids in self.rows()],
            spans=record.make_spans([span for run in runs for span in run["spans"]]),
            memory={
                "source": self.memory.source,
                "peak_bytes": {phase: [run["peaks"][phase] for run in runs] for phase in phases_with_peak},
                "weights_bytes": sum(p.numel() * p.element_size() for p in checkpoint.model.parameters()),
            },
            cache=runs[0]["cache"],
            live_checks=self._checks(),
            kernels=after.get("kernels"),
            probabilities=None if sureness is None else [row._asdict() for row in sureness],
        )

    def _described_pages(self) -> list[dict[str, Any]]:
        request, packed = self.request, self.packed
        pages = [(row, *page) for row, loaded in enumerate(self.pages) for page in loaded]
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

    def _checks(self) -> list[dict[str, Any]]:
        """What the repeats agree on, what was seen of the live model, and what is missing after a stop."""
        request, runs, after = self.request, self.runs, self.after
        same = all(run["ids"] == runs[0]["ids"] for run in runs)
        agree = f"{len(runs)} repeats, {'equal' if same else 'different'} tokens"
        seen = merged(one for run in runs for one in run["checks"])
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
        "max_cache_len": static.get("max_cache_len"),
        "allocated_bytes": static.get("allocated_bytes"),
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


def _describe_model(checkpoint: Checkpoint, request: Request) -> dict[str, Any]:
    model, device, family = checkpoint.model, checkpoint.device, checkpoint.family
    own = ("name", "source", "revision", "cuda_calls", "config")
    return {
        **{name: getattr(checkpoint, name) for name in own},
        "family": family.facts.name,
        "implementation": family.implementation,
        "class": type(model).__name__,
        "dtype": str(checkpoint.dtype).removeprefix("torch."),
        "attention": model.config._attn_implementation,
        "attention_kernels": machine.attention_kernels(device),
        "experts": getattr(model.config.get_text_config(), "_experts_implementation", None),
        "decode_attention_kernels": machine.attention_kernels(device, request.strategy),
        "decode_experts": decode_experts(model, request.strategy).get("text_config"),
        "strategy": request.strategy,
        "vision": request.vision,
        "parameters": family.parameters(model),
    }
