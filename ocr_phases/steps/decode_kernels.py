"""The kernels that a decode step runs with: of attention, and of a mixture of experts.

The choice is made here and not by what measures, because a step that a user calls by hand must have
the same kernels as a measured one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

#: cuDNN's attention builds a plan for every new KV length, which decode meets at every step.
DECODE_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
#: One query over a masked cache: a ready kernel keeps ten heads on ten processors (61 to 89 us a
#: layer on an H200); the plain formula spreads over all of them, and a compiler can fuse it.
STATIC_BACKENDS = (SDPBackend.MATH,)


def decode_backends(device: torch.device | str, strategy: str = "eager") -> tuple[SDPBackend, ...]:
    """The SDPA backends that a decode step may use; none where the choice is left to torch."""
    if torch.device(device).type != "cuda":
        return ()
    if strategy == "eager":
        return DECODE_BACKENDS
    return STATIC_BACKENDS


def decode_attention(device: torch.device | str, strategy: str = "eager") -> AbstractContextManager:
    """SDPA without cuDNN on CUDA, for a ``with`` block; as it is on other devices."""
    backends = decode_backends(device, strategy)
    if not backends:
        return contextlib.nullcontext()
    return sdpa_kernel(list(backends))


def decode_experts(model: Any, strategy: str = "eager") -> dict[str, str | None]:
    """Which experts kernel each part of the model's config uses in decode.

    Empty where there is no choice. On a GPU one token a step is far faster with ``batched_mm`` (it
    gathers the chosen experts' weights) than with ``grouped_mm``, the prefill's default;
    ``generate()`` makes the same change. It is also what a compiler can fuse.
    """
    if not hasattr(model, "get_experts_implementation"):
        return {}
    chosen = model.get_experts_implementation()
    if strategy != "compiled" and next(model.parameters()).device.type == "cpu":
        return chosen
    kernels = {}
    for part, kernel in chosen.items():
        kernels[part] = "batched_mm" if kernel == "grouped_mm" else kernel
    return kernels


@contextlib.contextmanager
def decode_execution(model: Any, strategy: str = "eager") -> Iterator[None]:
    """Run decode steps with their kernels in a ``with`` block; the model's own come back after."""
    experts = decode_experts(model, strategy)
    device = next(model.parameters()).device
    with decode_attention(device, strategy), contextlib.ExitStack() as undo:
        if experts:
            before = model.get_experts_implementation()
            if experts != before:
                model.set_experts_implementation(experts)
                undo.callback(model.set_experts_implementation, before)
        yield
