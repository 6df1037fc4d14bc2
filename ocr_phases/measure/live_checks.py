"""Watches what the model is handed while it is measured: the checks that need the live model.

A check here is a name, a verdict and what was measured; what it expects and why is `analyse`'s.
`phases` refuses to break its own rules; a forward hook on the model sees what really arrived there.
Looking costs a few microseconds of host time a step.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ocr_phases.collectors.host_syncs import host_syncs_noted
from ocr_phases.collectors.memory import PeakMemory
from ocr_phases.errors import OcrPhasesError, Stopped
from ocr_phases.families import IMAGE_TAG, windowed_length
from ocr_phases.inputs.packing import PageInputs
from ocr_phases.inputs.views import image_break_count, image_token_count
from ocr_phases.measure.verdicts import LiveCheck, check, repeat_checks
from ocr_phases.models.caches import cache_bytes_per_token
from ocr_phases.models.devices import device_of
from ocr_phases.settings import Request
from ocr_phases.steps.phases import logits_fault
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.models.load import Checkpoint
    from ocr_phases.steps.phases import DecodeState

Mask = tuple[str, "tuple[int, ...] | None", str]  # in words, and a tensor's shape and device
#: Settings of what is measured after the repeats.
AFTERWARDS = ("verify", "token_probabilities", "kernels", "ceilings")


def one_sentence(error: Exception) -> str:
    """Why something could not be measured, as one line; an error that is not the package's says its
    kind.
    """
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return text if isinstance(error, OcrPhasesError) else f"{type(error).__name__}: {text[:300]}"


def attempted(name: str, take: Callable[[], Any]) -> Any:
    """What ``take`` gives for one of `AFTERWARDS`, or what the record keeps in its place.

    Whatever goes wrong there must not cost what was measured before.
    """
    try:
        return take()
    except Stopped:
        raise
    except Exception as error:  # noqa: BLE001 (out of memory, or whatever a checkpoint's own class raises)
        reason = one_sentence(error)
    kept = {"verify": check("parity", "n/a", reason), "kernels": {"error": reason}}
    if name not in kept:
        warnings.warn(f"The record has no {name.replace('_', ' ')} ({reason}).", stacklevel=3)
    return kept.get(name)


class Watch:
    """Looks on while one run goes through its phases, which `of` is entered around.

    At the peak memory of each, at what really arrived at the model in the forwards of those in
    ``looks``, whoever changed it on the way, and at the host's waits in decode where they are
    ``counted``.
    """

    def __init__(self, checkpoint: Checkpoint, looks: Collection[str], *, counted: bool) -> None:
        self.model, self.looks = checkpoint.model, looks
        self.interface = checkpoint.interface
        self.memory = PeakMemory(checkpoint.device)
        # Counting takes time, so it is in no timed run.
        self.waits: list[str] | None = [] if counted else None
        self.modes: list[tuple[bool, bool]] = []  # of each forward: in training, with gradients
        self.widths: set[int] = set()  # of the steps' input ids
        self.images: set[str] = set()  # image arguments of steps
        self.masks: list[Mask] = []  # of the steps

    @contextlib.contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """Watch a ``with`` block, which is one phase."""

        def look(module: nn.Module, args: Any, arguments: dict[str, Any]) -> None:
            self.modes.append((module.training, torch.is_grad_enabled()))
            if phase == "decode":
                self.images.update(self.interface.leaked_images(arguments))
                self.widths.add(arguments["input_ids"].shape[1])
                self.masks.append(_mask_of(arguments.get("attention_mask")))

        with self.memory.of(phase), contextlib.ExitStack() as watching:
            if phase in self.looks:
                watching.enter_context(self.model.register_forward_pre_hook(look, with_kwargs=True))
            if phase == "decode" and self.waits is not None:
                watching.enter_context(host_syncs_noted(self.waits))
            yield

    def checks(self, packed: PageInputs, state: DecodeState, vectors: int) -> list[LiveCheck]:
        """What the forwards of this run show; without steps the steps' checks are missing.

        ``vectors`` are the projector's. `phases` has refused any cache that is not carried on, or
        grows wrongly: these checks only say by how much it grew.
        """
        seen = f"{count_text(len(self.modes), 'forward')} looked at"
        training, gradients = map(any, zip(*self.modes, strict=True))
        mask, device = state.attention_mask, state.token.device
        shape, wanted = list(mask.shape), [len(state.ids), state.length]
        masked, found = shape == wanted and mask.device == device, f"{shape} on {mask.device}"
        wrong = f"{found} where {wanted} on {device} is right"
        # Line breaks and a separator a page have image tokens of their own, which the projector
        # never sees.
        breaks = sum(image_break_count(view.preset, view.grid) for view in packed.views)
        places = sum(packed.image_tokens)
        features = f"{vectors} vectors and {breaks} breaks for {places} image tokens"
        checks = [
            check("eval_mode", not training, seen, "the model was in training"),
            check("gradients_off", not gradients, seen, "gradients were tracked"),
            check("cache_growth", True, _growth(state)),
            check("attention_mask", masked, f"{found} at the end", wrong),
            check("image_features", vectors + breaks == places, features),
            finite_logits(state.logits_fault(), len(state.lengths)),
        ]
        if self.masks:
            some = f"{count_text(len(self.masks), 'step')} looked at"
            wide = f"steps of {', '.join(map(str, sorted(self.widths)[:4]))} tokens"
            arrived = f"{', '.join(sorted(self.images))} arrived"
            checks += [
                check("single_token_steps", self.widths == {1}, some, wide),
                check("no_image_arguments_in_decode", not self.images, some, arrived),
                check("cache_reused", True, f"1 object in {some}"),
                _mask_handed_over(self.masks, packed, state),
            ]
        return checks


def finite_logits(fault: str | None, tokens: int) -> LiveCheck:
    """The check of the logits of so many tokens, of which ``fault`` says what is wrong, if
    anything.
    """
    return check(
        "finite_logits",
        fault is None,
        f"those of {count_text(tokens, 'token')} looked at",
        fault or "",
    )


@contextlib.contextmanager
def logits_summed(checkpoint: Checkpoint) -> Iterator[list[LiveCheck]]:
    """Look at the logits of a ``with`` block without steps of ours; the list gets the check at its
    end.
    """
    checks: list[LiveCheck] = []
    sums: list[Tensor] = []
    newest: list[Tensor] = []

    def look(_module: nn.Module, _args: Any, logits: Tensor) -> None:
        newest[:] = [logits[:, -1]]
        sums.append(newest[0].sum(dim=-1, dtype=torch.float32))

    with checkpoint.interface.modules(checkpoint.model)["lm_head"].register_forward_hook(look):
        yield checks
    if sums:
        checks.append(finite_logits(logits_fault(torch.stack(sums), newest[0]), len(sums)))


def describe_cache(state: DecodeState, static: Mapping[str, Any]) -> dict[str, Any]:
    """The record's part about the KV cache, after the prefill and each step; ``static`` is a step's
    setup.
    """
    each = cache_bytes_per_token(state.cache)
    kept = {
        "lengths": state.lengths,
        "bytes_per_token": each,
        "bytes": [each * n for n in state.entries],
    }
    # A static cache's size, which is there from the start.
    kept |= {name: static.get(name) for name in ("max_cache_len", "allocated_bytes")}
    # Of the tokens seen a window keeps the prompt's and the last generated ones.
    return (
        kept if state.window is None else {**kept, "window": state.window, "entries": state.entries}
    )


class Repeat(NamedTuple):
    """What a run leaves behind: no decode state, whose KV cache later runs would count in their
    peaks.
    """

    ids: list[list[int]]
    spans: list[tuple]
    memory: PeakMemory
    checks: list[LiveCheck]
    cache: dict[str, Any]


def run_checks(
    checkpoint: Checkpoint,
    packed: PageInputs,
    request: Request,
    runs: Sequence[Repeat],
    waits: tuple[int, int] | None,
    after: Mapping[str, Any],
) -> list[LiveCheck]:
    """The checks of a record: of inputs and model, what its ``runs`` agree on, and what a stop left
    out.

    ``waits`` are those of the host in the warm-up's decode, and its steps; ``after`` has what was
    measured beside the runs, by its setting. Of a check that several runs have it is the first that
    is no pass, else the last.
    """
    missing = ", ".join(name for name in AFTERWARDS if getattr(request, name) and name not in after)
    without = f", without {missing}" if missing else ""
    checks = [
        *repeat_checks([run.ids for run in runs], request.repeats, without),
        _image_mask(packed, checkpoint.image_token_id),
        _prompt_tokens(packed, checkpoint.tokenizer),
        norm_layers(checkpoint.model, checkpoint.dtype, request.autocast),
        *card_dtype(checkpoint.device, checkpoint.dtype, request.autocast),
    ]
    seen: dict[str, LiveCheck] = {}
    for one in itertools.chain.from_iterable(run.checks for run in runs):
        if seen.setdefault(one["name"], one)["verdict"] == "pass":
            seen[one["name"]] = one
    checks += seen.values()
    if not request.generate:
        checks.append(
            host_syncs(waits, after.get("kernels"), request.eos_check_every, checkpoint.device)
        )
    return checks + ([after["verify"]] if "verify" in after else [])


def host_syncs(
    waits: tuple[int, int] | None, view: Mapping[str, Any] | None, every: int, device: str
) -> LiveCheck:
    """Waits of the host in decode against the reads of the end token.

    The profiler, whose kernel ``view`` there may be, sees also what torch's debug mode misses.
    """
    if torch.device(device).type != "cuda":
        return check("host_syncs", "n/a", "a CPU has no device to wait for")
    seen = [] if waits is None else [("", *waits)]
    if view is not None and "error" not in view:
        counts = view["decode_steps"]["host_syncs"]
        seen.append(("the profiler saw ", sum(counts), len(counts)))
    if not seen:
        return check("host_syncs", "n/a", "counted in a warm-up run, and there was none")
    good = all(syncs <= -(-steps // every) for _, syncs, steps in seen)
    measured = "; ".join(
        f"{who}{syncs} in {count_text(steps, 'step')}" for who, syncs, steps in seen
    )
    return check("host_syncs", "pass" if good else "note", measured)


def _growth(state: DecodeState) -> str:
    first, last = state.lengths[0], state.lengths[-1]
    if state.window is None:
        return f"{first} to {last} entries in {count_text(len(state.lengths) - 1, 'step')}"
    return f"{first} to {last} tokens seen, {state.entries[-1]} entries held, window {state.window}"


def _mask_of(mask: Any) -> Mask:
    """A ready mask may be one tensor over the cache's slots, [B, 1, 1, slots]."""
    ready = isinstance(mask, dict)
    if ready:
        mask = next((one for one in mask.values() if one is not None), None)
    if mask is None:
        return (
            "the ready masks of an unpadded row" if ready else "no mask, as nothing is padded",
            None,
            "",
        )
    kind = "a mask by slot" if mask.dim() == 4 else "the 2-D mask"
    return kind, tuple(mask.shape), str(mask.device)


def _mask_handed_over(masks: list[Mask], packed: PageInputs, state: DecodeState) -> LiveCheck:
    """Whether every step got a right mask, what they got, and what was wrong."""
    rows, wrong = packed.batch_size, []
    for number, (_, shape, device) in enumerate(masks):
        columns = state.length - len(masks) + 1 + number
        slots = windowed_length(columns, packed.prefill_len, state.window)
        right = device == str(state.token.device) and shape in (
            (rows, columns),
            (rows, 1, 1, slots),
        )
        if packed.padded if shape is None else not right:
            got = "none" if shape is None else f"{list(shape)} on {device}"
            wrong.append(f"step {number} got {got} for {columns} columns")
    kinds = " and ".join(sorted({kind for kind, *_ in masks}))
    broken = f"{wrong[0]}; {len(wrong)} of {count_text(len(masks), 'step')} wrong" if wrong else ""
    return check("mask_handed_over", not wrong, f"{kinds} in {len(masks)} steps", broken)


def _image_mask(packed: PageInputs, image_token_id: int) -> LiveCheck:
    same = torch.equal(packed.images_seq_mask, packed.input_ids == image_token_id)
    needed = sum(image_token_count(view.preset, view.grid) for view in packed.views)
    marked = sum(packed.image_tokens)
    text = f"{marked} marked for {count_text(len(packed.views), 'page')} that need {needed}"
    broken = text if same else f"{text}; other places than the tokens'"
    return check("image_mask", same and marked == needed, text, broken)


def _prompt_tokens(packed: PageInputs, tokenizer: Any) -> LiveCheck:
    for row, prompt in enumerate(packed.prompts):
        text = packed.attention_mask[row].bool() & ~packed.images_seq_mask[row]
        ids = packed.input_ids[row][text].tolist()[1:]
        back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if back != prompt.replace(IMAGE_TAG, ""):
            return check("prompt_tokens", False, f"row {row + 1} decodes to {back!r}")
    return check("prompt_tokens", True, f"{count_text(len(packed.prompts), 'prompt')} decoded back")


def card_dtype(device: str, dtype: torch.dtype, autocast: bool) -> list[LiveCheck]:
    """What the weights' dtype means on a card that does not compute with bfloat16; nothing on
    others.
    """
    if torch.device(device).type != "cuda" or device_of(device).computes_bfloat16():
        return []
    held = str(dtype).removeprefix("torch.")
    card = f"{device_of(device).chip().name} does not compute with bfloat16 itself"
    if autocast or dtype == torch.bfloat16:
        where = "autocast to bfloat16" if autocast else "the weights are bfloat16"
        return [check("card_dtype", "note", f"{card}, and {where}: that is emulated, or fails")]
    return [
        check(
            "card_dtype", "note", f"{card}, so float16 is the default there; the weights are {held}"
        )
    ]


def norm_layers(model: nn.Module, dtype: torch.dtype, autocast: bool) -> LiveCheck:
    """Which normalisation layers there are, and in which dtypes: all in the model's own is a pass."""
    kinds: Counter[tuple[str, str]] = Counter()
    for module in model.modules():
        name, weight = type(module).__name__, getattr(module, "weight", None)
        if "Norm" in name and isinstance(weight, Tensor):
            kind = next(
                (kind for kind in ("RMSNorm", "LayerNorm", "GroupNorm") if kind in name), name
            )
            kinds[kind, str(weight.dtype).removeprefix("torch.")] += 1
    text = ", ".join(f"{count} {kind} in {held}" for (kind, held), count in sorted(kinds.items()))
    mixed = {held for _, held in kinds} - {str(dtype).removeprefix("torch.")}
    cast = "under autocast LayerNorm runs in float32 and matrix products in bfloat16"
    verdict = "note" if autocast or mixed else "pass"
    return check("norm_layers", verdict, f"{text}; {cast if autocast else 'no autocast'}")
