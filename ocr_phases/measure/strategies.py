"""How a decode step is executed."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

#: cuDNN's attention builds a plan for every new KV length, which decode meets at every step.
DECODE_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


def decode_attention(device: torch.device | str) -> AbstractContextManager:
    """SDPA without cuDNN on CUDA; as it is on the CPU."""
    if torch.device(device).type != "cuda":
        return contextlib.nullcontext()
    return sdpa_kernel(list(DECODE_BACKENDS))


def current_device(device: torch.device | str) -> AbstractContextManager:
    """Make a CUDA device the current one, for its events, memory counters and synchronize."""
    if torch.device(device).type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.device(torch.device(device))
