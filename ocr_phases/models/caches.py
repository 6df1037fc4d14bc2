"""KV caches: one that grows, of transformers before and after caches had layers, and a static one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache


def _layers(cache: Any) -> Iterator[list[Tensor]]:
    """Keys and values of each layer, [B, heads, length, width]; of one with a window first the
    prompt's.
    """
    if not hasattr(cache, "layers"):
        yield from map(list, zip(cache.key_cache, cache.value_cache, strict=True))
    for layer in getattr(cache, "layers", ()):
        parts = (
            getattr(layer, name, None)
            for name in ("prefill_keys", "prefill_values", "keys", "values")
        )
        # What nothing was put into yet has one dimension.
        yield [part for part in parts if part is not None and part.dim() == 4]


def cache_length(cache: Any) -> int | None:
    """Tokens that a KV cache has seen where the host knows it for free; None where the device
    counts them.
    """
    length = cache.get_seq_length()
    return length if isinstance(length, int) else None


def held_entries(cache: Any) -> int | None:
    """Entries in the tensors of a cache that grows; None for a static one, whose tensors are there
    at once.

    A cache with a window has seen more tokens (`cache_length`) than it holds, once the window is
    full.
    """
    keys = next(_layers(cache), [])[::2]
    return None if cache_length(cache) is None else sum(part.shape[2] for part in keys)


def cache_window(cache: Any) -> int | None:
    """How many generated tokens a step sees in this cache, its own among them; None for all of
    them.
    """
    first = next(iter(getattr(cache, "layers", ())), None)
    return getattr(first, "sliding_window" if isinstance(cache, DynamicCache) else "window", None)


def cache_bytes_per_token(cache: Any) -> int:
    """Bytes one cached token takes over all layers: keys and values of every head, for the whole
    batch.
    """
    tensors = [tensor for layer in _layers(cache) for tensor in layer[:2]]
    return sum(tensor[..., :1, :].numel() * tensor.element_size() for tensor in tensors)


def device_lengths(cache: Any) -> list[int]:
    """Tokens by the count of each layer of a cache that counts on the device; empty for any other.

    Waits for the device.
    """
    if cache_length(cache) is not None:
        return []
    return torch.stack([layer.cumulative_length for layer in cache.layers]).tolist()


def drop_last(cache: Any) -> None:
    """Drop a cache's newest entry."""
    if cache_length(cache) is not None:
        cache.crop(-1)
        return
    for layer in cache.layers:  # the entry stays where it is, and the next step writes over it
        layer.cumulative_length.sub_(1)


# -- the static one -----------------------------------------------------------------------------------


def static_cache(
    config: Any, max_cache_len: int, window: int | None, reach: SimpleNamespace
) -> Any:
    """An empty static cache whose decode steps write and read as ``reach`` says.

    They write at its ``slot``, int64 [1], which the caller moves on, on the device, and back to the
    prompt's end where a ``window`` is full. They read as many entries as its ``extent`` has rows:
    the size of a tensor may vary where a compiler makes one step for all. transformers' own static
    layer for a window shifts all of its entries a step, and chooses its way by a count on the host;
    its others read all that there is room for.
    """
    layers = [_slot_layer()(max_cache_len, window, reach) for _ in range(config.num_hidden_layers)]
    return Cache(layers=layers)


@lru_cache(maxsize=1)
def _slot_layer() -> type:
    from transformers.cache_utils import StaticLayer

    class SlotLayer(StaticLayer):
        """Entries of the prompt where they were written, those of decode where the caller's slot
        is.
        """

        def __init__(self, max_cache_len: int, window: int | None, reach: SimpleNamespace) -> None:
            super().__init__(max_cache_len)
            self.window, self.reach = window, reach

        def update(
            self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            if (length := key_states.shape[-2]) > 1:  # a new prompt, which sees itself alone
                self.cumulative_length.fill_(length)
                self.keys[:, :, :length], self.values[:, :, :length] = key_states, value_states
                return key_states, value_states
            self.cumulative_length.add_(1)
            self.keys.index_copy_(2, self.reach.slot, key_states)
            self.values.index_copy_(2, self.reach.slot, value_states)
            read = self.reach.extent.shape[0]
            return self.keys[:, :, :read], self.values[:, :, :read]

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return query_length, 0  # the prompt's: a step's mask is made by the caller

    return SlotLayer
