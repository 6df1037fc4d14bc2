"""KV caches of every kind a model class uses: Cache objects old and new, and tuples of (keys, values)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def cache_layers(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, [B, heads, length, width] each."""
    if isinstance(cache, tuple):
        return [(layer[0], layer[1]) for layer in cache]
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return list(zip(cache.key_cache, cache.value_cache, strict=True))


def cache_length(cache: Any) -> int | None:
    """Entries in a KV cache where the host knows it for free; None for a cache that counts on the device.

    A tuple whose layers differ in length gives the first length that differs from the first layer's.
    """
    if isinstance(cache, tuple):
        lengths = [tensor.shape[2] for layer in cache_layers(cache) for tensor in layer]
        return next((length for length in lengths if length != lengths[0]), lengths[0])
    length = cache.get_seq_length()
    return length if isinstance(length, int) else None


def device_lengths(cache: Any) -> list[int]:
    """Entries by the count of each layer of a cache that counts on the device; empty for any other.

    Waits for the device.
    """
    counts = _device_counts(cache)
    return torch.stack(counts).tolist() if counts else []


def _device_counts(cache: Any) -> list[Tensor]:
    counts = [getattr(layer, "cumulative_length", None) for layer in getattr(cache, "layers", ())]
    return [count for count in counts if isinstance(count, Tensor)]


def cache_bytes_per_token(cache: Any) -> int:
    """Bytes one cached token takes over all layers: keys and values of every head, for the whole batch."""
    return sum(
        tensor[..., :1, :].numel() * tensor.element_size()
        for layer in cache_layers(cache)
        for tensor in layer
    )


def drop_last(cache: Any) -> Any:
    """The cache without its newest entry: the same object, or a new tuple."""
    if isinstance(cache, tuple):
        return tuple((keys[:, :, :-1], values[:, :, :-1]) for keys, values in cache_layers(cache))
    counts = _device_counts(cache)
    if counts:  # the entry stays where it is, and the next step writes over it
        for count in counts:
            count.sub_(1)
        return cache
    cache.crop(-1)
    return cache


def continues(old: Any, new: Any, *, compare: bool) -> bool:
    """Whether ``new`` is the cache ``old`` after one more step.

    A Cache object must be the same object. A tuple is a new one each step: it must have as many layers, and
    with ``compare`` hold the old entries unchanged, which waits for the device.
    """
    if not isinstance(old, tuple):
        return new is old
    if not isinstance(new, tuple) or len(new) != len(old):
        return False
    pairs = zip(cache_layers(old), cache_layers(new), strict=True)
    return not compare or all(
        torch.equal(before, after[:, :, : before.shape[2]])
        for layer, layer_now in pairs
        for before, after in zip(layer, layer_now, strict=True)
    )
