"""KV caches of every kind that a model class uses, of transformers before and after they had layers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


def cache_layers(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, [B, heads, length, width] each."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return list(zip(cache.key_cache, cache.value_cache, strict=True))


def cache_length(cache: Any) -> int | None:
    """Tokens that a KV cache has seen where the host knows it for free; None where the device counts them."""
    length = cache.get_seq_length()
    return length if isinstance(length, int) else None


def held_entries(cache: Any) -> int | None:
    """Entries in the tensors of a cache that grows; None for a static one, whose tensors are there at once.

    A cache with a window has seen more tokens (`cache_length`) than it holds, once the window is full.
    """
    if not getattr(cache, "layers", None) or _device_counts(cache):
        return None
    return sum(keys.shape[2] for keys, _ in _parts(cache.layers[0]))


def cache_window(cache: Any) -> int | None:
    """How many generated tokens a step sees in this cache, its own among them; None for all of them."""
    static = bool(_device_counts(cache))
    windows = {
        getattr(layer, "window", None)
        if static or not hasattr(layer, "prefill_keys")
        else layer.sliding_window
        for layer in getattr(cache, "layers", ())
    }
    return windows.pop() if len(windows) == 1 else None


def static_cache(config: Any, max_cache_len: int, window: int | None, slot: Tensor) -> Any:
    """An empty static cache whose decode steps write at ``slot``, int64 [1], and read up to ``read``.

    The caller moves ``slot`` on, on the device, and back to the prompt's end where a ``window`` is full.
    transformers' own static layer for a window shifts all of its entries a step, and chooses its way by a
    count on the host; its others read all that there is room for.
    """
    from transformers import StaticCache

    cache = StaticCache(config=config, max_cache_len=max_cache_len)
    cache.layers = [_slot_layer()(max_cache_len, window, slot) for _ in cache.layers]
    return cache


def read_up_to(cache: Any, read: int) -> None:
    """How many entries of a `static_cache` its decode steps read from here on."""
    for layer in cache.layers:
        layer.read = read


def forget(cache: Any) -> None:
    """Let the next entry of a `static_cache` be its first; what it holds is written over."""
    for layer in cache.layers:
        layer.cumulative_length.zero_()


@lru_cache(maxsize=1)
def _slot_layer() -> type:
    from transformers.cache_utils import StaticLayer

    class SlotLayer(StaticLayer):
        """Entries of the prompt where they were written, those of decode where the caller's slot is."""

        def __init__(self, max_cache_len: int, window: int | None, slot: Tensor) -> None:
            super().__init__(max_cache_len)
            self.window, self.slot, self.read = window, slot, max_cache_len

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            if key_states.shape[-2] > 1:
                return super().update(key_states, value_states, *args, **kwargs)
            self.cumulative_length.add_(1)
            self.keys.index_copy_(2, self.slot, key_states)
            self.values.index_copy_(2, self.slot, value_states)
            return self.keys[:, :, : self.read], self.values[:, :, : self.read]

    return SlotLayer


def _parts(layer: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of a layer; of one with a window first those of the prompt, where there are any."""
    pairs = [(layer.keys, layer.values)]
    if hasattr(layer, "prefill_keys"):
        pairs.insert(0, (layer.prefill_keys, layer.prefill_values))
    return [(keys, values) for keys, values in pairs if keys.dim() == 4]  # the empty ones have one dimension


def device_lengths(cache: Any) -> list[int]:
    """Tokens by the count of each layer of a cache that counts on the device; empty for any other.

    Waits for the device.
    """
    counts = _device_counts(cache)
    return torch.stack(counts).tolist() if counts else []


def _device_counts(cache: Any) -> list[Tensor]:
    counts = [getattr(layer, "cumulative_length", None) for layer in getattr(cache, "layers", ())]
    return [count for count in counts if isinstance(count, Tensor)]


def cache_bytes_per_token(cache: Any) -> int:
    """Bytes one cached token takes over all layers: keys and values of every head, for the whole batch."""
    layers = [_parts(layer)[0] for layer in cache.layers] if hasattr(cache, "layers") else cache_layers(cache)
    return sum(tensor[..., :1, :].numel() * tensor.element_size() for layer in layers for tensor in layer)


def drop_last(cache: Any) -> None:
    """Drop a cache's newest entry."""
    counts = _device_counts(cache)
    if not counts:
        cache.crop(-1)
    for count in counts:  # the entry stays where it is, and the next step writes over it
        count.sub_(1)
