"""Watches what the model is handed while it is measured: the checks that need the live model.

`phases` refuses to break its own rules; forward hooks on the model see what really
arrived there, whoever changed it on the way. Looking costs a few microseconds of host time a step.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ocr_phases.analyse.check_texts import RULES
from ocr_phases.families import windowed_length
from ocr_phases.inputs.packing import IMAGE_TAG, PageInputs, image_break_count, image_token_count
from ocr_phases.models.caches import cache_length
from ocr_phases.models.wiring import Family
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.models.load import Checkpoint
    from ocr_phases.steps.phases import DecodeState

_SYNC = "called a synchronizing CUDA operation"  # torch's words

Verdict = tuple[str, str]  # verdict and what was measured


@dataclass(frozen=True)
class Call:
    """One forward of the model as it arrived. ``mask`` is a tensor's shape and device, else a word.

    A ready mask that is one tensor over the cache's slots has its shape there, [B, 1, 1, slots].
    """

    phase: str
    tokens: int
    images: tuple[str, ...]
    gradients: bool
    training: bool
    mask: tuple[tuple[int, ...], str] | str
    cache: int | None  # identity of a cache object; None without one, and for tuples, which are new each step


class ForwardHooks:
    """The calls of one run, and how many vectors the projector made in its prefill."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.calls: list[Call] = []
        self.vectors = 0

    @contextlib.contextmanager
    def watching(self, model: nn.Module, phase: str) -> Iterator[None]:
        """Look at every forward of ``model`` within a ``with`` block. Hooks go at its end, errors or not."""

        def look(module: nn.Module, args: Any, arguments: dict[str, Any]) -> None:
            self.calls.append(_call(self.family, phase, module, arguments))

        def count(module: nn.Module, args: Any, output: Any) -> None:
            self.vectors += prod(output.shape[:-1])

        handles = [model.register_forward_pre_hook(look, with_kwargs=True)]
        if phase == "prefill":
            handles.append(self.family.stages(model)["projector"].register_forward_hook(count))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def verdicts(self, packed: PageInputs, state: DecodeState) -> dict[str, Verdict]:
        """What the calls of this run show, by the check's name; without steps the steps' checks are n/a."""
        steps = [call for call in self.calls if call.phase == "decode"]
        seen = f"{count_text(len(self.calls), 'forward')} looked at"
        some = f"{count_text(len(steps), 'step')} looked at"
        found = {
            "eval_mode": _all(not call.training for call in self.calls)(seen, "the model was in training"),
            "gradients_off": _all(not call.gradients for call in self.calls)(seen, "gradients were tracked"),
            "cache_growth": _cache_growth(state),
            "attention_mask": _attention_mask(state),
            "image_features": _image_features(packed, self.vectors),
        }
        if not steps:
            return found
        widths = sorted({call.tokens for call in steps})
        leaked = sorted({name for call in steps for name in call.images})
        caches = {call.cache for call in steps}
        kind = "a tuple that carries on the one before" if caches == {None} else "1 object"
        return {
            **found,
            "single_token_steps": _all(widths == [1])(some, f"steps of {_listed(widths)} tokens"),
            "no_image_arguments_in_decode": _all(not leaked)(some, f"{', '.join(leaked)} arrived"),
            "cache_reused": _all(len(caches) == 1)(f"{kind} in {some}", f"{len(caches)} objects"),
            "mask_handed_over": _mask_handed_over(steps, packed, state),
        }


def input_verdicts(checkpoint: Checkpoint, packed: PageInputs, *, autocast: bool) -> dict[str, Verdict]:
    """What the inputs and the model show before anything runs."""
    return {
        "image_mask": _image_mask(packed, checkpoint.image_token_id),
        "prompt_tokens": _prompt_tokens(packed, checkpoint.tokenizer),
        "norm_layers": _norm_layers(checkpoint.model, checkpoint.dtype, autocast),
    }


@contextlib.contextmanager
def syncs_counted(found: list[str]) -> Iterator[None]:
    """The host's waits for a CUDA device in a ``with`` block go into ``found``; other warnings are shown.

    As far as torch's sync debug mode tells: it does not see a ``synchronize()``. Its warnings take time.
    """

    def show(message: Warning | str, *rest: Any, **named: Any) -> None:
        found.append(str(message)) if _SYNC in str(message) else shown(message, *rest, **named)

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")  # that it misses some
        warnings.filterwarnings("always", message=_SYNC)
        shown, warnings.showwarning = warnings.showwarning, show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def host_syncs_check(
    waits: tuple[int, int] | None, view: Mapping[str, Any] | None, every: int, device: str
) -> dict[str, str]:
    """The ``host_syncs`` check: waits of the host in decode against the reads of the end token.

    ``waits`` are those of the warm-up run and its steps; the profiler, whose kernel ``view`` there may be,
    sees also what torch's debug mode misses.
    """
    seen = [] if waits is None else [("", *waits)]
    if view is not None and "error" not in view:
        counts = view["decode_steps"]["host_syncs"]
        seen.append(("the profiler saw ", sum(counts), len(counts)))
    good = all(syncs <= -(-steps // every) for _, syncs, steps in seen)
    verdict = "pass" if good else "note"
    measured = "; ".join(f"{who}{syncs} in {count_text(steps, 'step')}" for who, syncs, steps in seen)
    if torch.device(device).type != "cuda":
        verdict, measured = "n/a", "a CPU has no device to wait for"
    elif not seen:
        verdict, measured = "n/a", "counted in a warm-up run, and there was none"
    return {
        "name": "host_syncs",
        "verdict": verdict,
        "expected": f"one wait every {count_text(every, 'step')}, for the end token",
        "measured": measured,
    }


def merged(runs: list[dict[str, Verdict]]) -> list[dict[str, str]]:
    """The checks of all runs as the record keeps them: a check's first verdict that is no pass, else any."""
    checks = []
    for name, text in RULES.items():
        found = [run[name] for run in runs if name in run]
        if not found:
            continue
        verdict, measured = next((one for one in found if one[0] != "pass"), found[0])
        checks.append({"name": name, "verdict": verdict, "expected": text.expected, "measured": measured})
    return checks


def _call(family: Family, phase: str, model: nn.Module, arguments: dict[str, Any]) -> Call:
    mask = arguments.get("attention_mask")
    cache = arguments.get("past_key_values")
    described: tuple[tuple[int, ...], str] | str
    if isinstance(mask, dict):
        mask = next((one for one in mask.values() if one is not None), mask)
    if isinstance(mask, Tensor):
        described = (tuple(mask.shape), str(mask.device))
    else:
        described = "none" if mask is None else "ready"
    return Call(
        phase=phase,
        tokens=arguments["input_ids"].shape[1],
        images=tuple(name for name in family.image_arguments if arguments.get(name) is not None),
        gradients=torch.is_grad_enabled(),
        training=model.training,
        mask=described,
        cache=None if cache is None or isinstance(cache, tuple) else id(cache),
    )


def _all(conditions: Any) -> Callable[[str, str], Verdict]:
    """Makes verdicts: ``pass`` and the first text where all conditions hold, else ``fail`` and the second."""
    good = conditions if isinstance(conditions, bool) else all(conditions)
    return lambda held, broken: ("pass", held) if good else ("fail", broken)


def _cache_growth(state: DecodeState) -> Verdict:
    lengths = state.lengths
    counted = cache_length(state.cache)
    # redecode drops one entry and writes it again.
    grown = [after - before for before, after in zip(lengths, lengths[1:], strict=False)]
    good = set(grown[1:]) <= {1} and set(grown[:1]) <= {0, 1} and counted in (None, lengths[-1])
    text = f"{lengths[0]} to {lengths[-1]} entries in {count_text(len(grown), 'step')}"
    if state.window is not None:
        # An entry that is written over, or dropped, makes room for the newest.
        entries = state.entries
        held = [after - before for before, after in zip(entries, entries[1:], strict=False)]
        most = lengths[0] + state.window
        good = good and set(held) <= {0, 1} and held == sorted(held[:1]) + sorted(held[1:], reverse=True)
        good = good and max(entries) <= most and (lengths[-1] < most or entries[-1] in (most - 1, most))
        text = f"{lengths[0]} to {lengths[-1]} tokens seen, {entries[-1]} entries held, window {state.window}"
    return _all(good)(text, f"{text}, the cache says {counted}")


def _attention_mask(state: DecodeState) -> Verdict:
    mask, wanted = state.attention_mask, (len(state.ids), state.length)
    good = tuple(mask.shape) == wanted and mask.device == state.token.device
    return _all(good)(
        f"{list(mask.shape)} on {mask.device} at the end",
        f"{list(mask.shape)} on {mask.device} where {list(wanted)} on {state.token.device} is right",
    )


def _mask_handed_over(steps: list[Call], packed: PageInputs, state: DecodeState) -> Verdict:
    device = str(state.token.device)
    first = state.length - len(steps) + 1
    wrong = []
    prompt_len, rows = packed.prefill_len, packed.batch_size
    for number, call in enumerate(steps):
        if isinstance(call.mask, tuple):
            shape, where = call.mask
            slots = windowed_length(first + number, prompt_len, state.window)
            if shape not in ((rows, first + number), (rows, 1, 1, slots)) or where != device:
                wrong.append(f"step {number} got {list(shape)} on {where} for {first + number} columns")
        elif packed.padded:
            wrong.append(f"step {number} got none, with padded rows")
    if wrong:
        return "fail", f"{wrong[0]}; {len(wrong)} of {count_text(len(steps), 'step')} wrong"
    kinds = {
        call.mask
        if isinstance(call.mask, str)
        else "a mask by slot"
        if call.mask[0][1:2] == (1,)
        else "the 2-D mask"
        for call in steps
    }
    named = {"ready": "the ready masks of an unpadded row", "none": "no mask, as nothing is padded"}
    return "pass", f"{' and '.join(sorted(named.get(kind, kind) for kind in kinds))} in {len(steps)} steps"


def _image_mask(packed: PageInputs, image_token_id: int) -> Verdict:
    same = torch.equal(packed.images_seq_mask, packed.input_ids == image_token_id)
    needed = sum(image_token_count(view.preset, view.grid) for view in packed.views)
    marked = sum(packed.image_tokens)
    text = f"{marked} marked for {count_text(len(packed.views), 'page')} that need {needed}"
    return _all(same and marked == needed)(text, text if same else f"{text}; other places than the tokens'")


def _image_features(packed: PageInputs, vectors: int) -> Verdict:
    """Line breaks and one separator a page have image tokens of their own, which the projector never sees."""
    places = sum(packed.image_tokens)
    breaks = sum(image_break_count(view.preset, view.grid) for view in packed.views)
    text = f"{vectors} vectors and {breaks} breaks for {places} image tokens"
    return _all(vectors + breaks == places)(text, text)


def _prompt_tokens(packed: PageInputs, tokenizer: Any) -> Verdict:
    for row, prompt in enumerate(packed.prompts):
        text = packed.attention_mask[row].bool() & ~packed.images_seq_mask[row]
        ids = packed.input_ids[row][text].tolist()[1:]
        back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if back != prompt.replace(IMAGE_TAG, ""):
            return "fail", f"row {row} decodes to {back!r}"
    return "pass", f"{count_text(len(packed.prompts), 'prompt')} decoded back"


def _norm_layers(model: nn.Module, dtype: torch.dtype, autocast: bool) -> Verdict:
    kinds: Counter[tuple[str, str]] = Counter()
    for module in model.modules():
        name = type(module).__name__
        weight = getattr(module, "weight", None)
        if "Norm" in name and isinstance(weight, Tensor):
            kind = next((kind for kind in ("RMSNorm", "LayerNorm", "GroupNorm") if kind in name), name)
            kinds[kind, str(weight.dtype).removeprefix("torch.")] += 1
    text = ", ".join(f"{count} {kind} in {kept}" for (kind, kept), count in sorted(kinds.items()))
    if autocast:
        return "note", f"{text}; under autocast LayerNorm runs in float32 and matrix products in bfloat16"
    others = {kept for _, kept in kinds} - {str(dtype).removeprefix("torch.")}
    return ("note" if others else "pass"), f"{text}; no autocast"


def _listed(values: list[int]) -> str:
    return ", ".join(map(str, values[:4]))
