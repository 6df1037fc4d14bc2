"""The heart: prefill, one decode step, the decode loop. Plain functions over a loaded model.

The rules of the two phases are checked while they run, at no cost on the device: eval mode, one
token a step, no image argument in decode, one cache object that grows by exactly one entry a step,
until its window is full where it has one. A broken rule is an `OcrPhasesError`, because a time
measured under it would be of something else.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache

from ocr_phases.collectors.hooks import stage_hooks
from ocr_phases.collectors.timeline import NoTimeline, Timeline
from ocr_phases.errors import Hinted, OcrPhasesError, explain_wrong_calls
from ocr_phases.families import windowed_length
from ocr_phases.inputs.processed import ModelInputs
from ocr_phases.models.caches import (
    LayerEntries,
    cache_bytes,
    cache_bytes_per_token,
    cache_length,
    cache_window,
    device_lengths,
    drop_last,
    held_entries,
    layer_entries,
    layer_windows,
    layers_of_kinds,
    rewind,
)
from ocr_phases.models.interface import ModelInterface
from ocr_phases.models.wiring import interface_of
from ocr_phases.steps.decode_kernels import decode_execution
from ocr_phases.steps.sampling import Sampler, TokenSampler
from ocr_phases.text import bytes_text, count_text

#: How many columns a mask grows by, where it is full.
_MASK_COLUMNS = 256
#: What transformers calls the parts of a `DecodeState`, and their names here.
_NAMES_HERE = {"past_key_values": "cache", "attention_mask": "mask", "input_ids": "sequence"}


class Step(Protocol):
    """A decode step that runs in place of the model class, over a KV cache of its own.

    `ocr_phases.steps.captured.StaticStep` is one.
    """

    #: Of all logits [B, vocab] since the last prefill, float32 [B]: finite only if they all were.
    sums: Tensor

    def fresh_cache(self) -> Cache:
        """The step's cache, emptied for a new prefill."""

    def prefill_execution(self) -> AbstractContextManager[None]:
        """Entered around the prefill into that cache."""

    def execution(self) -> AbstractContextManager[None]:
        """Entered around the decode loop: the kernels that the step runs with."""

    def __call__(self, state: DecodeState) -> tuple[Tensor, Tensor | None]:
        """One step: logits [B, vocab], and the next token, int64 [B], where the step chose it."""


@dataclass(repr=False)
class DecodeState(Hinted):
    """What decode continues from. B rows; ``length`` is prompt plus decoded tokens that the cache
    has seen.

    ``window`` is how many decoded tokens a step sees beside the prompt, its own among them; None
    for all. ``entries`` says after the prefill and after every step how many the cache then held.
    ``ids`` are the generated ids on the host, one list a row; ``unread`` those still on the device.
    ``sequence`` is the prompt, int64 [B, T], followed by the generated ids where logits processors
    read them.
    """

    interface: ModelInterface
    cache: Cache
    logits: Tensor = field(init=False)  # [B, vocab], of the last position
    # int64 [B, length or more]: 1 where a token may be seen, and behind the newest one.
    mask: Tensor
    token: Tensor = field(init=False)  # int64 [B], the next step's input
    length: int
    lengths: list[int]  # of the cache, after the prefill and after every step
    position_ids: Tensor | None  # int64 [B, 1] for padded rows, of the prompt's last token
    sampler: TokenSampler
    sequence: Tensor
    window: int | None = None
    carried: Any = None  # what the class's next step needs beside the cache
    entries: list[int] = field(default_factory=list)
    # Of a cache whose layers are of several kinds: what each held after the prefill, and the bytes
    # of all after the prefill and after every step.
    layers: list[LayerEntries] | None = None
    layer_bytes: list[int] = field(default_factory=list)
    prefill_logits: Tensor | None = None  # [B, T, vocab] where all were asked for
    # Of the logits of each token [B], in float32, and of all that a step of its own made.
    sums: list[Tensor] = field(default_factory=list)
    step_sums: Tensor | None = None
    ids: list[list[int]] = field(default_factory=list)
    unread: list[Tensor] = field(default_factory=list)

    def copied(self) -> DecodeState:
        """This state once more, because decode changes the one that it is given.

        A cache that grows is copied. A static cache is shared, and set back to this state's length:
        only one of the states that share it can be decoded at a time.
        """
        again = copy.copy(self)
        if cache_length(self.cache) is None:
            rewind(self.cache, self.length)
        else:
            again.cache = copy.deepcopy(self.cache)
        again.lengths = list(self.lengths)
        again.entries = list(self.entries)
        again.layer_bytes = list(self.layer_bytes)
        again.sums = list(self.sums)
        again.ids = [list(ids) for ids in self.ids]
        again.unread = list(self.unread)
        return again

    @classmethod
    def _name_here(cls, name: str) -> str | None:
        return _NAMES_HERE.get(name)

    def choose(self, logits: Tensor, token: Tensor | None = None) -> None:
        """Take the next token from ``logits`` [B, vocab]; ``token`` int64 [B] where the step chose
        it.
        """
        self.logits = logits
        if self.step_sums is None:
            # One small kernel and no wait: a sum is finite only if all of it is.
            self.sums.append(logits.sum(dim=-1, dtype=torch.float32))
        self.token = self.sampler(logits, self.sequence) if token is None else token
        self.unread.append(self.token)
        if self.sampler.processors:
            self.sequence = torch.cat([self.sequence, self.token[:, None]], dim=1)

    def read(self) -> list[list[int]]:
        """Bring the unread tokens to the host in one copy: one list of B ids a step. Waits for the
        device.
        """
        if not self.unread:
            return []
        if len(self.unread) == 1:
            new = [self.unread[0].tolist()]
        else:
            new = torch.stack(self.unread).tolist()
        self.unread.clear()
        for row, tokens in enumerate(zip(*new, strict=True)):
            self.ids[row].extend(tokens)
        return new

    def logits_fault(self) -> str | None:
        """What is wrong with the model's own logits so far, in words; None for nothing. Waits for
        the device.

        They must be finite, and the newest ones must not be all equal. Processors come later: what
        they suppress does not count.
        """
        sums = list(self.sums)
        if self.step_sums is not None:
            sums.append(self.step_sums)
        return logits_fault(torch.stack(sums), self.logits, whole=self.step_sums is not None)

    @property
    def attention_mask(self) -> Tensor:
        """Which cached tokens may be seen, int64 [B, length]."""
        return self.mask[:, : self.length]

    @property
    def generated(self) -> int:
        """Tokens that each row has so far, read or not."""
        return len(self.ids[0]) + len(self.unread)

    def __repr__(self) -> str:
        return (
            f"DecodeState(rows={len(self.ids)}, length={self.length}, generated={self.generated})"
        )

    def _facts(self) -> dict[str, Any]:
        entry = cache_bytes_per_token(self.cache)
        facts = {
            "rows": len(self.ids),
            "KV cache": f"{self.entries[-1]:,} entries, {bytes_text(self.entries[-1] * entry)}",
            "one entry": f"{bytes_text(entry)}, keys and values of all layers and rows",
            "prompt": count_text(self.lengths[0], "token"),
            "generated": (
                f"{count_text(self.generated, 'token')} a row, {len(self.unread)} not read yet"
            ),
        }
        for row, ids in enumerate(self.ids, start=1):
            facts[f"ids of row {row}"] = shorten(", ".join(map(str, ids)), 160, placeholder=" …")
        return facts

    def __str__(self) -> str:
        from ocr_phases.show.section import facts_text

        return facts_text("Decode state", self._facts())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.section import facts_bundle

        return facts_bundle("Decode state", self._facts())


@torch.no_grad()
@explain_wrong_calls
def prefill(
    model: nn.Module,
    inputs: ModelInputs,
    timeline: Timeline | None = None,
    *,
    sampler: TokenSampler | None = None,
    cache: Cache | None = None,
    step: Step | None = None,
    all_logits: bool = False,
) -> DecodeState:
    """One forward over the whole prompt: vision, KV cache and the first token.

    ``inputs`` hold B prompts of T tokens on the model's device (see `PageInputs.to`). Logits are
    computed for the last position only; ``all_logits`` keeps them all [B, T, vocab] in
    ``prefill_logits``. A ``cache`` may be handed in (a static one, say), or the ``step`` that
    decode will use, which has its own; else it is the family's. One without the model's window is
    refused. The first token is the argmax (or a sample) of the last logits. Raises `OcrPhasesError`
    for a model in training mode or spread over several devices.
    """
    interface = interface_of(model)
    timeline = timeline or NoTimeline()
    _check_model(model)
    ids = inputs.input_ids
    sampler = sampler or Sampler(device=ids.device)
    window = interface.window(model)
    if step is not None:
        cache = step.fresh_cache()
        _check_window(cache, window)
    elif cache is None:
        cache = interface.new_cache(model)
    else:
        _check_given_cache(cache, interface.new_cache(model), window)
    hooks = stage_hooks(model, interface, timeline, interface.views(inputs))
    language_model = contextlib.nullcontext() if step is None else step.prefill_execution()
    with hooks, timeline.in_phase("prefill"), language_model:
        arguments = interface.prefill_arguments(inputs, model)
        out = interface.forward(
            model,
            arguments,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=int(not all_logits),
        )
        carried = interface.carried_from_prefill(model, inputs, out)
        with timeline.span("sampling"):
            state = DecodeState(
                interface=interface,
                cache=out.past_key_values,
                mask=inputs.attention_mask,
                length=ids.shape[1],
                lengths=[ids.shape[1]],
                position_ids=None if inputs.position_ids is None else inputs.position_ids[:, -1:],
                sampler=sampler,
                sequence=ids,
                window=window,
                carried=carried,
                prefill_logits=out.logits if all_logits else None,
                ids=[[] for _ in ids],
            )
            state.choose(out.logits[:, -1])
            state.read()
    if window is None:
        state.layers = layers_of_kinds(state.cache)
    _check_cache(state)
    return state


def redecode(state: DecodeState) -> None:
    """Drop the first token and the last cache entry, so that decode makes token 1 in its step 0.

    The tokens stay the same; step 0's time is then a decode time (``first_token="redecode"``).

    Raises `OcrPhasesError` for a KV cache with layers that have given up what an entry would need:
    layers with a window, or with a state of a fixed size.
    """
    if state.layers is not None:
        raise OcrPhasesError(
            "The layers of this model's KV cache are of several kinds, and those with a window or "
            "a state of a fixed size cannot drop an entry: choose the first token 'prefill'."
        )
    drop_last(state.cache)
    state.length -= 1
    state.sampler.restart()
    state.sequence = state.sequence[:, : state.lengths[0]]
    state.token = state.sequence[:, -1]
    state.ids = [[] for _ in state.ids]


@torch.no_grad()
@explain_wrong_calls
def decode_step(
    model: nn.Module,
    state: DecodeState,
    timeline: Timeline | None = None,
    *,
    read: bool = True,
    step: Step | None = None,
) -> Tensor:
    """One forward of one token a row from the cache; returns the next token, int64 [B].

    The attention mask grows by one column of ones before the step. ``read`` brings the token to the
    host within the step, as a loop that looks for the end token must. ``step`` runs the forward in
    place of the model class: a `ocr_phases.steps.captured.StaticStep`. Raises `OcrPhasesError`
    where a rule of decode is broken.
    """
    return _decode_step(model, state, timeline or NoTimeline(), read=read, step=step)


def _decode_step(
    model: nn.Module, state: DecodeState, timeline: Timeline, *, read: bool, step: Step | None
) -> Tensor:
    """`decode_step` for a caller that has switched gradients off: the loop does it once for all."""
    _check_model(model)
    with timeline.in_phase("decode", "decode_step", len(state.lengths) - 1):
        # By many columns at once: one in every step would be two launches in each.
        if state.mask.shape[1] <= state.length:
            state.mask = nn.functional.pad(state.mask, (0, _MASK_COLUMNS), value=1)
        if step is None:
            logits = _model_step(model, state)
            token = None
        else:
            logits, token = step(state)
            state.step_sums = step.sums
        state.length += 1
        state.lengths.append(state.length)
        with timeline.span("sampling"):
            state.choose(logits, token)
            if read:
                state.read()
    _check_cache(state)
    return state.token


def _model_step(model: nn.Module, state: DecodeState) -> Tensor:
    """The model class's own forward: the last position's logits, [B, vocab]."""
    length = state.length + 1
    prompt_len = state.lengths[0]
    positions = None
    if state.position_ids is not None:
        positions = state.position_ids + (length - prompt_len)
    mask = state.mask[:, :length]
    arguments = state.interface.step_arguments(
        model, state.token, state.cache, mask, positions, prompt_len, state.carried
    )
    width = arguments["input_ids"].shape[1]
    if width != 1:
        raise OcrPhasesError(
            f"A decode step takes one token per row, got {width}: pass input ids [B, 1]."
        )
    leaked = state.interface.leaked_images(arguments)
    if leaked:
        raise _images_in_decode(", ".join(leaked))
    try:
        out = state.interface.forward(model, arguments, use_cache=True, logits_to_keep=1)
    except ValueError as error:
        if "image" not in str(error).lower():
            raise
        # No image was handed over, so a hook or a wrapper added one on the way to the model.
        raise _images_in_decode(str(error).strip().splitlines()[0]) from error
    state.carried = state.interface.carried_from_step(model, state.carried, out)
    return out.logits[:, -1]


def _images_in_decode(images: str) -> OcrPhasesError:
    return OcrPhasesError(f"Image arguments reached decode ({images}): pass them to prefill only.")


@torch.no_grad()
@explain_wrong_calls
def decode(
    model: nn.Module,
    state: DecodeState,
    max_new_tokens: int,
    timeline: Timeline | None = None,
    *,
    eos_ids: Collection[int] = (),
    pad_id: int = 0,
    eos_check_every: int = 1,
    on_tokens: Callable[[list[list[int]]], None] | None = None,
    step: Step | None = None,
) -> DecodeState:
    """Decode until every row has ended or has ``max_new_tokens`` tokens, the prefill's token
    included.

    Tokens are read, and the end looked for, every ``eos_check_every`` steps; what ran beyond the
    end is cut from ``state.ids``, and rows that end early are filled with ``pad_id``. ``on_tokens``
    gets the new ids of each read, one list a row. No ``eos_ids`` means: run to ``max_new_tokens``.
    ``step`` runs the forwards in place of the model class, over the cache of the `prefill` that had
    it.
    """
    timeline = timeline or NoTimeline()
    state.read()
    ends = frozenset(eos_ids)
    running = [ends.isdisjoint(ids) for ids in state.ids]
    kernels = decode_execution(model) if step is None else step.execution()
    # A step of its own may be compiled, which hooks on the model would undo.
    hooks = stage_hooks(model, state.interface, timeline if step is None else NoTimeline(), [])
    with kernels, hooks, timeline.in_phase("decode"):
        steps = min(eos_check_every, max_new_tokens - state.generated)
        while any(running) and steps > 0:
            for number in range(1, steps + 1):
                _decode_step(model, state, timeline, read=number == steps, step=step)
            fresh = [ids[-steps:] for ids in state.ids]
            running = [
                runs and ends.isdisjoint(ids) for runs, ids in zip(running, fresh, strict=True)
            ]
            if on_tokens is not None:
                on_tokens(fresh)
            steps = min(eos_check_every, max_new_tokens - state.generated)
    # A static cache counts on the device, so its count is read once, after the last step.
    _check_counts(device_lengths(state.cache), state.length)
    rows = [until_end(ids, ends) for ids in state.ids]
    longest = max(map(len, rows))
    state.ids = [row + [pad_id] * (longest - len(row)) for row in rows]
    return state


@explain_wrong_calls
def generate(
    model: nn.Module,
    inputs: ModelInputs,
    max_new_tokens: int,
    timeline: Timeline | None = None,
    *,
    sampler: TokenSampler | None = None,
    first_token: str = "prefill",
    eos_ids: Collection[int] = (),
    pad_id: int = 0,
    eos_check_every: int = 1,
    on_tokens: Callable[[list[list[int]]], None] | None = None,
    step: Step | None = None,
) -> DecodeState:
    """Both phases: `prefill`, then `decode`, with their arguments; ``first_token`` as in
    `redecode`.

    ``on_tokens`` gets the prefill's token too, where it stays.
    """
    state = prefill(model, inputs, timeline, sampler=sampler, step=step)
    if first_token == "redecode":
        redecode(state)
    elif on_tokens is not None:
        on_tokens([list(ids) for ids in state.ids])
    return decode(
        model,
        state,
        max_new_tokens,
        timeline,
        eos_ids=eos_ids,
        pad_id=pad_id,
        eos_check_every=eos_check_every,
        on_tokens=on_tokens,
        step=step,
    )


def prompt_loss(model: nn.Module, inputs: ModelInputs, labels: Tensor | None = None) -> Tensor:
    """The training loss: mean next-token cross entropy, a scalar that can be differentiated.

    ``labels`` int64 [B, T] default to the prompt's own ids; image and padding positions never count
    (-100). Works in training mode too, and computes logits for every position.
    """
    labels = inputs.input_ids if labels is None else labels
    ignored = inputs.images_seq_mask | (inputs.attention_mask == 0)
    interface = interface_of(model)
    arguments = interface.prefill_arguments(inputs, model)
    return interface.forward(
        model, arguments, use_cache=False, labels=labels.masked_fill(ignored, -100)
    ).loss


def logits_fault(sums: Tensor, newest: Tensor, *, whole: bool = False) -> str | None:
    """What is wrong with logits, given the ``sums`` [N, B] of each token's and the ``newest`` [B,
    vocab].

    None for nothing. The last sums are those of all decode steps where they are the ``whole``.
    """
    wrong = (~sums.isfinite()).any(dim=-1).tolist()
    if any(wrong):
        first = wrong.index(True)
        if whole and first == len(wrong) - 1:
            return "NaN or infinite in a decode step"
        if whole:
            return f"NaN or infinite at token {first + 1}"
        tokens = count_text(len(wrong), "token")
        return f"NaN or infinite at {sum(wrong)} of {tokens}, first at {first + 1}"
    if bool((newest.amax(dim=-1) == newest.amin(dim=-1)).any()):
        return "all equal, so that nothing of the page or prompt is in them"
    return None


def until_end(ids: list[int], eos_ids: Collection[int]) -> list[int]:
    """``ids`` up to and with the first end token."""
    for place, token in enumerate(ids):
        if token in eos_ids:
            return ids[: place + 1]
    return ids[:]


def _check_model(model: nn.Module) -> None:
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        raise OcrPhasesError(
            "The model is spread over several devices (device_map), so one device's clock would "
            "mistime it: load it onto one device."
        )
    if model.training:
        raise OcrPhasesError("The model is in training mode: call model.eval() before measuring.")


def _check_given_cache(cache: Cache, own: Cache | None, window: int | None) -> None:
    """Raise `OcrPhasesError` for a caller's cache with other windows than those of the model.

    ``own`` is the one that the model's class would get otherwise; None where it makes its own.
    """
    if own is None:
        _check_window(cache, window)
    elif layer_windows(cache) != layer_windows(own):
        raise OcrPhasesError(
            "The layers of this cache have other windows than those of the model: leave cache out, "
            "or make it with DynamicCache(config=...)."
        )


def _check_window(cache: Cache, window: int | None) -> None:
    """Raise `OcrPhasesError` for a cache that would silently give full attention to a model with a
    window.
    """
    if cache_window(cache) != window:
        raise OcrPhasesError(
            f"This model's steps see {window or 'all'} generated tokens and the cache is for "
            f"{cache_window(cache) or 'all'}: leave cache out, or make it with "
            "DynamicCache(config=...)."
        )


def _check_cache(state: DecodeState) -> None:
    """Tokens seen and entries held must be right; notes the entries. Waits for nothing."""
    if state.layers is not None:
        _check_layers(state, state.layers)
        return
    held = held_entries(state.cache)
    kept = state.window
    if kept is not None and held is not None:
        # A step adds its own entry to those kept for it, so a cache that grows keeps one less than
        # the step sees.
        kept -= 1
    state.entries.append(windowed_length(state.length, state.lengths[0], kept))
    _check_counts([cache_length(state.cache)], state.length)
    _check_counts([held], state.entries[-1])


def _check_layers(state: DecodeState, after_prefill: list[LayerEntries]) -> None:
    """`_check_cache` where each kind of layer keeps its entries by a rule of its own."""
    now = layer_entries(state.cache)
    for number, (layer, first) in enumerate(zip(now, after_prefill, strict=True)):
        if not layer.is_right(state.length, first.held):
            raise OcrPhasesError(
                f"Layer {number} of the KV cache has {layer.held} entries after {state.length} "
                "tokens: each step must add one, until the layer's window, if it has one, is full."
            )
    state.entries.append(max(layer.held for layer in now))
    state.layer_bytes.append(cache_bytes(state.cache))
    _check_counts([cache_length(state.cache)], state.length)


def _check_counts(counts: Sequence[int | None], right: int) -> None:
    for count in counts:
        if count is not None and count != right:
            raise OcrPhasesError(
                f"The KV cache has {count} entries where {right} are right: each step must add "
                "one, until its window, if it has one, is full."
            )
