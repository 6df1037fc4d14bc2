"""How a decode step is executed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

#: cuDNN's attention builds a plan for every new KV length, which decode meets at every step.
DECODE_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


def decode_attention(device: torch.device | str) -> AbstractContextManager:
    """SDPA without cuDNN on CUDA; as it is on the CPU."""
    if torch.device(device).type != "cuda":
        return contextlib.nullcontext()
    return sdpa_kernel(list(DECODE_BACKENDS))


def decode_experts(model: Any) -> dict[str, str | None]:
    """Which experts kernel each part of the model's config uses in decode; empty where there is no choice.

    On a GPU one token a step is far faster with ``batched_mm`` (it gathers the chosen experts' weights) than
    with ``grouped_mm``, the prefill's default; ``generate()`` makes the same change.
    """
    if not hasattr(model, "get_experts_implementation"):
        return {}
    chosen = model.get_experts_implementation()
    if next(model.parameters()).device.type == "cpu":
        return chosen
    return {part: "batched_mm" if name == "grouped_mm" else name for part, name in chosen.items()}


@contextlib.contextmanager
def decode_execution(model: Any) -> Iterator[None]:
    """The kernels a decode step runs with, for the length of a ``with`` block: attention and experts."""
    experts = decode_experts(model)
    before = model.get_experts_implementation() if experts else {}
    with decode_attention(next(model.parameters()).device):
        if experts == before:
            yield
            return
        model.set_experts_implementation(experts)
        try:
            yield
        finally:
            model.set_experts_implementation(before)


def current_device(device: torch.device | str) -> AbstractContextManager:
    """Make a CUDA device the current one, for its events, memory counters and synchronize."""
    if torch.device(device).type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.device(torch.device(device))
