"""KV caches: one that grows, of transformers with and without layers in it, and a static one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from ocr_phases.errors import OcrPhasesError


def _layer_tensors(cache: Cache) -> Iterator[list[Tensor]]:
    """Keys and values of each layer, [B, heads, length, width] each.

    Those of a layer with a window come in two parts, of which the prompt's are the first.
    """
    if not hasattr(cache, "layers"):  # of transformers before caches had layers
        for keys, values in zip(cache.key_cache, cache.value_cache, strict=True):
            yield [keys, values]
        return
    for layer in cache.layers:
        tensors = []
        for name in ("prefill_keys", "prefill_values", "keys", "values"):
            tensor = getattr(layer, name, None)
            # What nothing was put into yet has one dimension.
            if tensor is not None and tensor.dim() == 4:
                tensors.append(tensor)
        yield tensors


def cache_length(cache: Cache) -> int | None:
    """Tokens that a KV cache has seen where the host knows it for free.

    None where the device counts them. Raises `OcrPhasesError` for a cache that counts no tokens.
    """
    try:
        length = cache.get_seq_length()
    except ValueError as error:  # of a class none of whose layers attends
        raise OcrPhasesError(
            "No layer of this model's KV cache counts its tokens, because each has a state of a "
            "fixed size: that each step adds one token cannot be checked, so it is not measured."
        ) from error
    return length if isinstance(length, int) else None


def held_entries(cache: Cache) -> int | None:
    """Entries in the tensors of a cache that grows.

    None for a static one, whose tensors are there at once. A cache with a window has seen more
    tokens (`cache_length`) than it holds, once the window is full.
    """
    if cache_length(cache) is None:
        return None
    first_layer = next(_layer_tensors(cache), [])
    return sum(keys.shape[2] for keys in first_layer[::2])


@dataclass(frozen=True)
class LayerEntries:
    """What one layer of a growing cache holds: its entries, and its window; None for no window."""

    held: int
    window: int | None

    def is_right(self, seen: int, after_prefill: int) -> bool:
        """Whether the layer holds what its kind must, once ``seen`` tokens went through it.

        A layer with a window keeps one entry less than a step sees. One without keeps them all, or
        does not grow at all: it attends to the page, or has a state of a fixed size.
        """
        if self.window is not None:
            return self.held == min(seen, self.window - 1)
        return self.held in (seen, after_prefill)


def layer_entries(cache: Cache) -> list[LayerEntries]:
    """What each layer of a growing cache with layers holds."""
    found = []
    for layer, tensors in zip(cache.layers, _layer_tensors(cache), strict=True):
        held = sum(keys.shape[2] for keys in tensors[::2])
        found.append(LayerEntries(held, getattr(layer, "sliding_window", None)))
    return found


def layers_of_kinds(cache: Cache) -> list[LayerEntries] | None:
    """The layers of a growing cache whose layers are not all alike; None for any other cache.

    Some have a window, some a state of a fixed size, some attend to the page alone.
    """
    seen = cache_length(cache)
    if seen is None or not hasattr(cache, "layers"):
        return None
    found = layer_entries(cache)
    if all(layer.window is None and layer.held == seen for layer in found):
        return None
    return found


def layer_windows(cache: Cache) -> tuple[int | None, ...]:
    """The window of each layer of a cache; none of them where no layer has one."""
    windows = tuple(getattr(layer, "sliding_window", None) for layer in cache.layers)
    return windows if any(windows) else ()


def cache_bytes(cache: Cache) -> int:
    """Bytes of all tensors that a growing cache holds, states of a fixed size among them."""
    total = 0
    for layer in cache.layers:
        for kept in vars(layer).values():
            states = kept.values() if isinstance(kept, dict) else [kept]
            for state in states:
                # Counters have no dimension, and what nothing was put into yet has one.
                if isinstance(state, Tensor) and state.dim() > 1:
                    total += state.numel() * state.element_size()
    return total


def cache_window(cache: Cache) -> int | None:
    """How many generated tokens a step sees in this cache, its own among them; None for all."""
    layers = getattr(cache, "layers", None)
    if not layers:
        return None
    # transformers' name, or that of the static layers below.
    name = "sliding_window" if isinstance(cache, DynamicCache) else "window"
    return getattr(layers[0], name, None)


def cache_bytes_per_token(cache: Cache) -> int:
    """Bytes one cached token takes over all layers: keys and values of every head, for the whole
    batch.
    """
    total = 0
    for layer in _layer_tensors(cache):
        for tensor in layer[:2]:
            total += tensor[..., :1, :].numel() * tensor.element_size()
    return total


def device_lengths(cache: Cache) -> list[int]:
    """Tokens by each count of a cache that counts on the device; empty for any other.

    Waits for the device.
    """
    if cache_length(cache) is not None:
        return []
    return torch.stack(_counts(cache)).tolist()


def _counts(cache: Cache) -> list[Tensor]:
    """The counts of a cache's layers, int64 without a dimension.

    One that layers share is there once.
    """
    counts: dict[int, Tensor] = {}
    for layer in cache.layers:
        counts[id(layer.cumulative_length)] = layer.cumulative_length
    return list(counts.values())


def drop_last(cache: Cache) -> None:
    """Drop a cache's newest entry."""
    if cache_length(cache) is not None:
        cache.crop(-1)
        return
    for count in _counts(cache):  # the entry stays where it is, and the next step writes over it
        count.sub_(1)


def rewind(cache: Cache, length: int) -> None:
    """Let a cache that counts on the device go on after its first ``length`` entries.

    Those behind them stay where they are, and the next steps write over them.
    """
    for count in _counts(cache):
        count.fill_(length)


# -- the static one --------------------------------------------------------------------------------


@dataclass
class Reach:
    """Where the decode steps of a static cache write, how far they read, and how many there were.

    ``slot``, int64 [1], is the entry that the next step writes. Its owner moves it on, on the
    device, and back to the prompt's end where a window is full. ``count``, int64 without a
    dimension, is the tokens so far: a prompt sets it, and the owner adds one for each step. It is
    one for all layers, because a compiled layer would have a kernel only to count (12 of them took
    2 % of a token on an H200). ``extent``, [entries, 0], has as many rows as entries are read: the
    size of a tensor may vary where a compiler makes one step for all sizes, a number could not.
    """

    slot: Tensor
    count: Tensor
    extent: Tensor


class SlotCache(Cache):
    """The layers of a static cache, in which every prompt begins at the first entry."""

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Where a prompt's queries begin among the keys that they see: at the first one.

        transformers asks for it where it makes the mask of a prompt, and would get the tokens so
        far, which the device counts. While a graph is captured it cannot read them. It would then
        give the layers a mask, which they do without otherwise, and they would be compiled again.
        """
        return 0


def static_cache(layers: int, max_cache_len: int, window: int | None, reach: Reach) -> Cache:
    """An empty static cache of so many layers, whose decode steps write and read as ``reach`` says.

    transformers' own static layer for a window shifts all of its entries in every step, and chooses
    its way by a count on the host; its others read all that there is room for.
    """
    layer_class = _slot_layer_class()
    return SlotCache(layers=[layer_class(max_cache_len, window, reach) for _ in range(layers)])


@lru_cache(maxsize=1)
def _slot_layer_class() -> type:
    """The class of a static cache's layers.

    It is made at its first use, because older versions of transformers have no layer to inherit
    from.
    """
    from transformers.cache_utils import StaticLayer

    class SlotLayer(StaticLayer):
        """Entries of the prompt where they were written, those of decode where the caller's slot
        is.
        """

        def __init__(self, max_cache_len: int, window: int | None, reach: Reach) -> None:
            super().__init__(max_cache_len)
            self.window = window
            self.reach = reach
            self.cumulative_length = reach.count

        def update(
            self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            length = key_states.shape[-2]
            if length > 1:  # a new prompt, which sees itself alone
                self.cumulative_length.fill_(length)
                self.keys[:, :, :length] = key_states
                self.values[:, :, :length] = value_states
                return key_states, value_states
            self.keys.index_copy_(2, self.reach.slot, key_states)
            self.values.index_copy_(2, self.reach.slot, value_states)
            read = self.reach.extent.shape[0]
            return self.keys[:, :, :read], self.values[:, :, :read]

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return query_length, 0  # the prompt's: a step's mask is made by the caller

    return SlotLayer
