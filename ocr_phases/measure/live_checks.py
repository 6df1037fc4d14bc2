"""The checks that need the live model: what reached it while it was measured, and what it is.

A check here is a name, a verdict and what was measured; what it expects and why is `analyse`'s.
`ocr_phases.steps.phases` refuses to break its own rules; a forward hook on the model sees what
really arrived there. Looking costs a few microseconds of host time per step.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ocr_phases.collectors.host_syncs import note_host_syncs
from ocr_phases.collectors.memory import PeakMemory
from ocr_phases.families import IMAGE_TAG, windowed_length
from ocr_phases.inputs.packing import PageInputs
from ocr_phases.inputs.processed import PackedPages
from ocr_phases.inputs.views import image_break_count, image_token_count
from ocr_phases.measure.verdicts import (
    check_that,
    note_check,
    passing_check,
    repeat_checks,
    unknown_check,
)
from ocr_phases.models.caches import cache_bytes_per_token
from ocr_phases.models.devices import device_of
from ocr_phases.models.load import Checkpoint
from ocr_phases.record.parts import (
    CachePart,
    CeilingsPart,
    CheckPart,
    KernelsFailed,
    KernelsPart,
    PhaseEnergyPart,
    ProbabilitiesPart,
    columns_of,
)
from ocr_phases.settings import Request
from ocr_phases.steps.phases import DecodeState, logits_fault
from ocr_phases.text import count_text

#: Widths of steps that a sentence names.
_MOST_WIDTHS = 4
#: Why what is checked of an image is not known of a prompt without one.
_NO_IMAGE = "the prompt has no image"
_NORM_KINDS = ("RMSNorm", "LayerNorm", "GroupNorm")


@dataclass(frozen=True)
class HandedMask:
    """The mask that a step got.

    ``kind`` says in words what it was. ``shape`` and ``device`` are the tensor's; None and empty
    where there was none.
    """

    kind: str
    shape: tuple[int, ...] | None = None
    device: str = ""


@dataclass(frozen=True)
class HostWaits:
    """How often the host waited for the device in the decode of a warm-up, and its steps."""

    count: int
    steps: int


@dataclass(frozen=True)
class Repeat:
    """What a run leaves behind.

    There is no decode state in it, whose KV cache later runs would count in their peaks.

    Attributes
    ----------
    ids : list of list of int
        The generated tokens, a list per row.
    spans : list of tuple
        Rows of `ocr_phases.record.SPAN_COLUMNS`.
    memory : PeakMemory
        The peak of each phase.
    checks : list of CheckPart
        What the run itself showed.
    cache : CachePart
        The growth of the KV cache; empty for ``generate()``.
    """

    ids: list[list[int]]
    spans: list[tuple]
    memory: PeakMemory
    checks: list[CheckPart]
    cache: CachePart


@dataclass
class Afterwards:
    """What was measured after the timed runs; None for what was not, or could not be.

    ``done`` names the settings that were seen to: an interrupt leaves out the later ones.
    """

    parity: CheckPart | None = None
    probabilities: list[ProbabilitiesPart] | None = None
    kernels: KernelsPart | KernelsFailed | None = None
    ceilings: CeilingsPart | None = None
    phase_energy: PhaseEnergyPart | None = None
    done: list[str] = field(default_factory=list)

    def missing(self, request: Request) -> list[str]:
        """The settings that a request asks for and that were not seen to."""
        asked = {
            "verify": request.verify,
            "token_probabilities": request.token_probabilities,
            "kernels": request.kernels,
            "ceilings": request.ceilings,
            "phase_energy": request.phase_energy,
        }
        return [name for name, wanted in asked.items() if wanted and name not in self.done]


class Watch:
    """Looks on while one run goes through its phases: `during` is entered around each.

    It sees the peak memory of each phase, what really arrived at the model in the forwards of the
    phases in ``looks``, whoever changed it on the way, and the host's waits in decode where they
    are ``counted``. Counting takes time, so it is in no timed run.
    """

    def __init__(self, checkpoint: Checkpoint, looks: Collection[str], *, counted: bool) -> None:
        self.model = checkpoint.model
        self.interface = checkpoint.interface
        self.looks = looks
        self.memory = PeakMemory(checkpoint.device)
        #: The host's waits in decode; None where they are not counted.
        self.waits: list[str] | None = [] if counted else None
        self.forwards = 0
        self.was_training = False
        self.had_gradients = False
        #: Of the steps: widths of their input ids, image arguments with a value, and masks.
        self.widths: set[int] = set()
        self.images: set[str] = set()
        self.masks: list[HandedMask] = []

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Watch a ``with`` block, which is one phase."""
        look = self._look_at_step if phase == "decode" else self._look
        with self.memory.during(phase), contextlib.ExitStack() as watching:
            if phase in self.looks:
                watching.enter_context(self.model.register_forward_pre_hook(look, with_kwargs=True))
            if phase == "decode" and self.waits is not None:
                watching.enter_context(note_host_syncs(self.waits))
            yield

    def _look(self, module: nn.Module, args: Any, arguments: dict[str, Any]) -> None:
        """What a forward of the whole model is run with."""
        self.forwards += 1
        if module.training:
            self.was_training = True
        if torch.is_grad_enabled():
            self.had_gradients = True

    def _look_at_step(self, module: nn.Module, args: Any, arguments: dict[str, Any]) -> None:
        """What a decode step is run with."""
        self._look(module, args, arguments)
        self.images.update(self.interface.leaked_images(arguments))
        self.widths.add(arguments["input_ids"].shape[1])
        self.masks.append(_handed_mask(arguments.get("attention_mask")))

    def checks(self, packed: PackedPages, state: DecodeState, vectors: int) -> list[CheckPart]:
        """What the forwards of this run show; without steps the steps' checks are missing.

        ``vectors`` are the projector's. `ocr_phases.steps.phases` has refused any cache that is not
        carried on, or grows wrongly: these checks only say by how much it grew.
        """
        seen = f"{count_text(self.forwards, 'forward')} checked"
        checks = [
            check_that(not self.was_training, "eval_mode", seen, "the model was in training"),
            check_that(not self.had_gradients, "gradients_off", seen, "gradients were tracked"),
            passing_check("cache_growth", _growth(state)),
            _attention_mask(state),
            *_image_features(packed, vectors),
            finite_logits(state.logits_fault(), len(state.lengths)),
        ]
        if self.masks:
            checks += self._step_checks(packed, state)
        return checks

    def _step_checks(self, packed: PackedPages, state: DecodeState) -> list[CheckPart]:
        """What the forwards of the decode steps show."""
        seen = f"{count_text(len(self.masks), 'step')} checked"
        widths = ", ".join(str(width) for width in sorted(self.widths)[:_MOST_WIDTHS])
        return [
            check_that(self.widths == {1}, "single_token_steps", seen, f"steps of {widths} tokens"),
            self._image_arguments(packed, seen),
            passing_check("cache_reused", f"the same object in {seen}"),
            _mask_handed_over(self.masks, packed, state),
        ]

    def _image_arguments(self, packed: PackedPages, seen: str) -> CheckPart:
        """Whether no step got an image argument; unknown where the prompt has no image."""
        name = "no_image_arguments_in_decode"
        if not packed.presets and not self.images:
            return unknown_check(name, _NO_IMAGE)
        images = ", ".join(sorted(self.images))
        return check_that(not self.images, name, seen, f"{images} arrived")


def _handed_mask(mask: Any) -> HandedMask:
    """What a step's ``attention_mask`` was: a tensor, a dict with a ready one per kind, or None.

    A ready mask may be one tensor over the cache's slots, [B, 1, 1, slots].
    """
    if isinstance(mask, dict):
        ready = [one for one in mask.values() if one is not None]
        if not ready:
            return HandedMask("ready masks, because nothing is padded")
        mask = ready[0]
    if mask is None:
        return HandedMask("no mask, because nothing is padded")
    kind = "a mask by slot" if mask.dim() == 4 else "the 2-D mask"
    return HandedMask(kind, tuple(mask.shape), str(mask.device))


def _growth(state: DecodeState) -> str:
    """By how much the cache grew, in words."""
    first = state.lengths[0]
    last = state.lengths[-1]
    if state.window is None:
        return f"{first} to {last} entries in {count_text(len(state.lengths) - 1, 'step')}"
    return f"{first} to {last} tokens seen, {state.entries[-1]} entries held, window {state.window}"


def _attention_mask(state: DecodeState) -> CheckPart:
    """Whether the state's own mask has grown with the tokens, on their device."""
    mask = state.attention_mask
    device = state.token.device
    shape = list(mask.shape)
    wanted = [len(state.ids), state.length]
    return check_that(
        shape == wanted and mask.device == device,
        "attention_mask",
        f"{shape} on {mask.device} at the end",
        f"{shape} on {mask.device} where {wanted} on {device} is right",
    )


def _image_features(packed: PackedPages, vectors: int) -> list[CheckPart]:
    """Whether there is a vector for each image token.

    Line breaks and a separator per page have image tokens of their own, which the projector never
    sees.
    """
    if not isinstance(packed, PageInputs):
        return []  # how a processor cuts a page is its own affair
    if not packed.views:
        return [unknown_check("image_features", _NO_IMAGE)]
    breaks = sum(image_break_count(view.preset, view.grid) for view in packed.views)
    places = sum(packed.image_tokens)
    measured = f"{vectors} vectors and {breaks} breaks for {places} image tokens"
    return [check_that(vectors + breaks == places, "image_features", measured)]


def _mask_handed_over(
    masks: Sequence[HandedMask], packed: PackedPages, state: DecodeState
) -> CheckPart:
    """Whether every step got a right mask, what they got, and what was wrong first."""
    wrong = []
    for number, mask in enumerate(masks):
        columns = state.length - len(masks) + 1 + number
        if _is_right(mask, columns, packed, state):
            continue
        got = "none" if mask.shape is None else f"{list(mask.shape)} on {mask.device}"
        wrong.append(f"step {number} got {got} for {columns} columns")
    kinds = " and ".join(sorted({mask.kind for mask in masks}))
    otherwise = ""
    if wrong:
        otherwise = f"{wrong[0]}; {len(wrong)} of {count_text(len(masks), 'step')} wrong"
    return check_that(not wrong, "mask_handed_over", f"{kinds} in {len(masks)} steps", otherwise)


def _is_right(mask: HandedMask, columns: int, packed: PackedPages, state: DecodeState) -> bool:
    """Whether a mask is right for a step that sees so many tokens.

    None is right where nothing is padded.
    """
    if mask.shape is None:
        return not packed.padded
    rows = packed.batch_size
    slots = windowed_length(columns, packed.prefill_len, state.window)
    right_shapes = ((rows, columns), (rows, 1, 1, slots))
    return mask.device == str(state.token.device) and mask.shape in right_shapes


def finite_logits(fault: str | None, tokens: int) -> CheckPart:
    """The check of the logits of so many tokens; ``fault`` says what is wrong, None for nothing."""
    measured = f"the logits of {count_text(tokens, 'token')} checked"
    return check_that(fault is None, "finite_logits", measured, fault or "")


@contextlib.contextmanager
def check_logits(checkpoint: Checkpoint) -> Iterator[list[CheckPart]]:
    """Check the logits of a ``with`` block in which the model's own ``generate()`` runs.

    What the block gets is a list, which has the check once the block has ended.
    """
    checks: list[CheckPart] = []
    sums: list[Tensor] = []
    newest: list[Tensor] = []

    def look(_module: nn.Module, _args: Any, logits: Tensor) -> None:
        newest[:] = [logits[:, -1]]
        sums.append(newest[0].sum(dim=-1, dtype=torch.float32))

    lm_head = checkpoint.interface.modules(checkpoint.model)["lm_head"]
    with lm_head.register_forward_hook(look):
        yield checks
    if sums:
        checks.append(finite_logits(logits_fault(torch.stack(sums), newest[0]), len(sums)))


def describe_cache(
    state: DecodeState, *, max_cache_len: int | None = None, allocated_bytes: int | None = None
) -> CachePart:
    """The record's part about the KV cache, after the prefill and after each step.

    ``max_cache_len`` and ``allocated_bytes`` are a static cache's, which is there from the start.
    Of the tokens seen, a window keeps the prompt's and the last generated ones. Where the layers
    are of several kinds, there are no bytes of a token, because not each token adds to each layer.
    """
    if state.layers is not None:
        return CachePart(lengths=state.lengths, bytes=state.layer_bytes)
    entry_bytes = cache_bytes_per_token(state.cache)
    return CachePart(
        lengths=state.lengths,
        bytes_per_token=entry_bytes,
        bytes=[entry_bytes * entries for entries in state.entries],
        max_cache_len=max_cache_len,
        allocated_bytes=allocated_bytes,
        window=state.window,
        entries=None if state.window is None else state.entries,
    )


# -- the checks of a record -------------------------------------------------------------------


def judge_live_checks(
    checkpoint: Checkpoint,
    packed: PackedPages,
    request: Request,
    repeats: Sequence[Repeat],
    waits: HostWaits | None,
    after: Afterwards,
) -> list[CheckPart]:
    """The live checks of a record.

    Parameters
    ----------
    checkpoint : Checkpoint
        The model.
    packed : PackedPages
        Its inputs.
    request : Request
        What ran.
    repeats : sequence of Repeat
        The finished repeats. Of a check that several have, the record has the first that is no
        pass, else the last.
    waits : HostWaits, optional
        The host's waits in a warm-up's decode, where they were counted.
    after : Afterwards
        What was measured after the repeats.
    """
    missing = ", ".join(after.missing(request))
    without = f", without {missing}" if missing else ""
    checks = [
        *repeat_checks([repeat.ids for repeat in repeats], request.repeats, without),
        *_of_packing(packed, checkpoint),
        norm_layers(checkpoint.model, checkpoint.dtype, request.autocast),
        *card_dtype(checkpoint.device, checkpoint.dtype, request.autocast),
        *_of_all_repeats(repeats),
    ]
    if not request.generate:
        every = request.eos_check_every
        checks.append(host_syncs_check(waits, after.kernels, every, checkpoint.device))
    if after.parity is not None:
        checks.append(after.parity)
    return checks


def _of_all_repeats(repeats: Sequence[Repeat]) -> list[CheckPart]:
    """Each check of the repeats once: the first that is no pass, else the last."""
    found: dict[str, CheckPart] = {}
    for repeat in repeats:
        for check in repeat.checks:
            if check.name not in found or found[check.name].verdict == "pass":
                found[check.name] = check
    return list(found.values())


def host_syncs_check(
    waits: HostWaits | None,
    kernels: KernelsPart | KernelsFailed | None,
    every: int,
    device: str,
) -> CheckPart:
    """Waits of the host in decode, against the reads of the end token ``every`` so many steps.

    The profiler, whose kernel view there may be, sees also what torch's debug mode misses.
    """
    if torch.device(device).type != "cuda":
        return unknown_check("host_syncs", "on a CPU there is no device to wait for")
    sentences = []
    within_reads = True
    if waits is not None:
        sentences.append(f"{waits.count} in {count_text(waits.steps, 'step')}")
        within_reads = waits.count <= _reads(waits.steps, every)
    if isinstance(kernels, KernelsPart):
        counts = columns_of(kernels.decode_steps)["host_syncs"]
        steps = count_text(len(counts), "step")
        sentences.append(f"the profiler saw {sum(counts)} in {steps}")
        within_reads = within_reads and sum(counts) <= _reads(len(counts), every)
    if not sentences:
        return unknown_check("host_syncs", "it is counted in a warm-up run, and there was none")
    measured = "; ".join(sentences)
    if within_reads:
        return passing_check("host_syncs", measured)
    return note_check("host_syncs", measured)


def _reads(steps: int, every: int) -> int:
    """How often the end token is read in so many steps."""
    return -(-steps // every)


def _of_packing(packed: PackedPages, checkpoint: Checkpoint) -> list[CheckPart]:
    """The checks of how pages and prompts were packed; none where the model's processor did it."""
    if not isinstance(packed, PageInputs) or checkpoint.image_token_id is None:
        return []
    return [
        _image_mask(packed, checkpoint.image_token_id),
        _prompt_tokens(packed, checkpoint.tokenizer),
    ]


def _image_mask(packed: PageInputs, image_token_id: int) -> CheckPart:
    """Whether the places of the image are those of its tokens, and as many as the views need."""
    if not packed.views:
        return unknown_check("image_mask", _NO_IMAGE)
    same_places = torch.equal(packed.images_seq_mask, packed.input_ids == image_token_id)
    needed = sum(image_token_count(view.preset, view.grid) for view in packed.views)
    marked = sum(packed.image_tokens)
    measured = f"{marked} marked, {needed} needed for {count_text(len(packed.views), 'page')}"
    otherwise = measured if same_places else f"{measured}; other places than the tokens'"
    return check_that(same_places and marked == needed, "image_mask", measured, otherwise)


def _prompt_tokens(packed: PageInputs, tokenizer: Any) -> CheckPart:
    """Whether the text tokens of each row decode to its prompt."""
    for row, prompt in enumerate(packed.prompts):
        is_text = packed.attention_mask[row].bool() & ~packed.images_seq_mask[row]
        ids = packed.input_ids[row][is_text].tolist()[1:]
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if text != prompt.replace(IMAGE_TAG, ""):
            return check_that(False, "prompt_tokens", f"row {row + 1} decodes to {text!r}")
    return passing_check(
        "prompt_tokens", f"{count_text(len(packed.prompts), 'prompt')} decoded correctly"
    )


def card_dtype(device: str, dtype: torch.dtype, autocast: bool) -> list[CheckPart]:
    """What the weights' dtype means on a card that does not compute with bfloat16; else nothing."""
    if torch.device(device).type != "cuda" or device_of(device).computes_bfloat16():
        return []
    card = f"{device_of(device).chip().name} does not compute with bfloat16 itself"
    if autocast:
        measured = f"{card}, and autocast to bfloat16: that is emulated, or fails"
    elif dtype == torch.bfloat16:
        measured = f"{card}, and the weights are bfloat16: that is emulated, or fails"
    else:
        weights = str(dtype).removeprefix("torch.")
        measured = f"{card}, so float16 is the default there; the weights are {weights}"
    return [note_check("card_dtype", measured)]


#: The number of a layer in the dotted name of a module.
_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def norm_layers(model: nn.Module, dtype: torch.dtype, autocast: bool) -> CheckPart:
    """Which normalisation layers there are, and in which dtypes; under autocast also their names.

    All in the model's own dtype is a pass. In the names a ``*`` stands for the number of a layer.
    """
    counts: Counter[tuple[str, str]] = Counter()
    names: Counter[str] = Counter()
    for path, module in model.named_modules():
        name = type(module).__name__
        weight = getattr(module, "weight", None)
        if "Norm" in name and isinstance(weight, Tensor):
            counts[_norm_kind(name), str(weight.dtype).removeprefix("torch.")] += 1
            names[_LAYER_NUMBER.sub("*", path)] += 1
    layers = ", ".join(
        f"{count} {kind} in {weights}" for (kind, weights), count in sorted(counts.items())
    )
    if autocast:
        cast = "under autocast LayerNorm runs in float32 and matrix products in bfloat16"
        listed = ", ".join(f"{name} ({count})" for name, count in names.items())
        return note_check("norm_layers", f"{layers}; {cast}: {listed}")
    measured = f"{layers}; no autocast"
    own_dtype = str(dtype).removeprefix("torch.")
    if any(weights != own_dtype for _, weights in counts):
        return note_check("norm_layers", measured)
    return passing_check("norm_layers", measured)


def _norm_kind(class_name: str) -> str:
    """The kind of normalisation that a class is named after; its own name where that is none."""
    for kind in _NORM_KINDS:
        if kind in class_name:
            return kind
    return class_name
