"""Watches what the model is handed while it is measured: the checks that need the live model.

A check here is a name, a verdict and what was measured; what it expects and why is `analyse`'s.
`phases` refuses to break its own rules; a forward hook on the model sees what really arrived there. Looking
costs a few microseconds of host time a step.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ocr_phases.families import windowed_length
from ocr_phases.inputs.packing import IMAGE_TAG, PageInputs, image_break_count, image_token_count
from ocr_phases.models.wiring import Family
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.models.load import Checkpoint
    from ocr_phases.steps.phases import DecodeState

_SYNC = "called a synchronizing CUDA operation"  # torch's words

Verdict = tuple[str, str]  # verdict and what was measured


@dataclass(frozen=True)
class Call:
    """One forward of the model as it arrived; ``mask`` is what `_mask_of` says of its attention mask."""

    phase: str
    tokens: int
    images: tuple[str, ...]
    gradients: bool
    training: bool
    mask: tuple[str, tuple[int, ...] | None, str]


class ForwardHooks:
    """The calls of one run: what really arrived at the model, whoever changed it on the way."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.calls: list[Call] = []

    @contextlib.contextmanager
    def watching(self, model: nn.Module, phase: str) -> Iterator[None]:
        """Look at every forward of ``model`` within a ``with`` block."""

        def look(module: nn.Module, args: Any, arguments: dict[str, Any]) -> None:
            names = self.family.wiring.image_arguments
            call = Call(
                phase=phase,
                tokens=arguments["input_ids"].shape[1],
                images=tuple(name for name in names if arguments.get(name) is not None),
                gradients=torch.is_grad_enabled(),
                training=module.training,
                mask=_mask_of(arguments.get("attention_mask")),
            )
            self.calls.append(call)

        with model.register_forward_pre_hook(look, with_kwargs=True):
            yield

    def verdicts(self, packed: PageInputs, state: DecodeState, vectors: int) -> dict[str, Verdict]:
        """What the calls of this run show, by the check's name; without steps the steps' checks are missing.

        ``vectors`` are the projector's. `phases` has refused any cache that is not carried on, or grows
        wrongly: these checks only say by how much it grew.
        """
        steps = [call for call in self.calls if call.phase == "decode"]
        seen = f"{count_text(len(self.calls), 'forward')} looked at"
        # Line breaks and a separator a page have image tokens of their own, which the projector never sees.
        breaks = sum(image_break_count(view.preset, view.grid) for view in packed.views)
        places = sum(packed.image_tokens)
        features = f"{vectors} vectors and {breaks} breaks for {places} image tokens"
        mask, device = state.attention_mask, state.token.device
        shape, wanted = list(mask.shape), [len(state.ids), state.length]
        right = shape == wanted and mask.device == device
        at_end = f"{shape} on {mask.device} at the end"
        wrong = f"{shape} on {mask.device} where {wanted} on {device} is right"
        training = any(call.training for call in self.calls)
        tracked = any(call.gradients for call in self.calls)
        checks = [
            ("eval_mode", not training, seen, "the model was in training"),
            ("gradients_off", not tracked, seen, "gradients were tracked"),
            ("cache_growth", True, _growth(state), ""),
            ("attention_mask", right, at_end, wrong),
            ("image_features", vectors + breaks == places, features, features),
        ]
        if steps:
            some = f"{count_text(len(steps), 'step')} looked at"
            widths = sorted({call.tokens for call in steps})
            leaked = sorted({name for call in steps for name in call.images})
            wide = f"steps of {', '.join(map(str, widths[:4]))} tokens"
            checks += [
                ("single_token_steps", widths == [1], some, wide),
                ("no_image_arguments_in_decode", not leaked, some, f"{', '.join(leaked)} arrived"),
                ("cache_reused", True, f"1 object in {some}", ""),
                ("mask_handed_over", *_mask_handed_over(steps, packed, state)),
            ]
        return {name: _verdict(good, held, broken) for name, good, held, broken in checks}


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
    measured = "; ".join(f"{who}{syncs} in {count_text(steps, 'step')}" for who, syncs, steps in seen)
    missing = "" if seen else "counted in a warm-up run, and there was none"
    if torch.device(device).type != "cuda":
        missing = "a CPU has no device to wait for"
    verdict = "n/a" if missing else "pass" if good else "note"
    return {"name": "host_syncs", "verdict": verdict, "measured": missing or measured}


def merged(runs: list[dict[str, Verdict]]) -> list[dict[str, str]]:
    """The checks of all runs as the record keeps them: a check's first verdict that is no pass, else any."""
    checks = []
    for name in dict.fromkeys(name for run in runs for name in run):
        found = [run[name] for run in runs if name in run]
        verdict, measured = next((one for one in found if one[0] != "pass"), found[0])
        checks.append({"name": name, "verdict": verdict, "measured": measured})
    return checks


def _verdict(good: bool, held: str, broken: str) -> Verdict:
    """``pass`` and the first text, or ``fail`` and the second."""
    return ("pass", held) if good else ("fail", broken)


def _growth(state: DecodeState) -> str:
    lengths, entries = state.lengths, state.entries
    if state.window is None:
        steps = count_text(len(lengths) - 1, "step")
        return f"{lengths[0]} to {lengths[-1]} entries in {steps}"
    seen = f"{lengths[0]} to {lengths[-1]} tokens seen"
    return f"{seen}, {entries[-1]} entries held, window {state.window}"


def _mask_of(mask: Any) -> tuple[str, tuple[int, ...] | None, str]:
    """What an attention mask is, in words, and a tensor's shape and device.

    A ready mask may be one tensor over the cache's slots, [B, 1, 1, slots].
    """
    ready = isinstance(mask, dict)
    if ready:
        mask = next((one for one in mask.values() if one is not None), None)
    if mask is None:
        return "the ready masks of an unpadded row" if ready else "no mask, as nothing is padded", None, ""
    kind = "a mask by slot" if mask.dim() == 4 else "the 2-D mask"
    return kind, tuple(mask.shape), str(mask.device)


def _mask_handed_over(steps: list[Call], packed: PageInputs, state: DecodeState) -> tuple[bool, str, str]:
    """Whether every step got a right mask, what they got, and what was wrong."""
    rows, wrong = packed.batch_size, []
    first = state.length - len(steps) + 1
    for number, call in enumerate(steps):
        _, shape, device = call.mask
        columns = first + number
        slots = windowed_length(columns, packed.prefill_len, state.window)
        right = device == str(state.token.device) and shape in ((rows, columns), (rows, 1, 1, slots))
        if shape is not None and not right:
            wrong.append(f"step {number} got {list(shape)} on {device} for {columns} columns")
        elif shape is None and packed.padded:
            wrong.append(f"step {number} got none, with padded rows")
    kinds = " and ".join(sorted({call.mask[0] for call in steps}))
    broken = f"{wrong[0]}; {len(wrong)} of {count_text(len(steps), 'step')} wrong" if wrong else ""
    return not wrong, f"{kinds} in {len(steps)} steps", broken


def _image_mask(packed: PageInputs, image_token_id: int) -> Verdict:
    same = torch.equal(packed.images_seq_mask, packed.input_ids == image_token_id)
    needed = sum(image_token_count(view.preset, view.grid) for view in packed.views)
    marked = sum(packed.image_tokens)
    text = f"{marked} marked for {count_text(len(packed.views), 'page')} that need {needed}"
    broken = text if same else f"{text}; other places than the tokens'"
    return _verdict(same and marked == needed, text, broken)


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
