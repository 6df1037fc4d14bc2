"""Several processes, one GPU each, that learn one network; torchrun's variables say which one this is.

Every rank draws its own pages; gradients are averaged, and rank 0 alone decides and writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn


class Ranks:
    """This process's place among those of the run; without torchrun it is alone."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))

    @property
    def first(self) -> bool:
        """Whether this is the one that logs and saves."""
        return self.rank == 0

    def join(self, device: str) -> None:
        """Meet the others; after the drawing processes were forked."""
        if device == "cuda":
            torch.cuda.set_device(self.local)
        if self.count > 1:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")

    def leave(self) -> None:
        """Say goodbye."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def average(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give every rank the mean of all gradients; one that is missing counts as zero."""
        if self.count == 1:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
        dist.all_reduce(flat)
        flat /= self.count
        for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter)

    def agree(self, values: Sequence[float]) -> list[float]:
        """Rank 0's values, on the host."""
        if self.count == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.tolist()

    def align(self, modules: Iterable[nn.Module]) -> None:
        """Rank 0's weights for all: rounding differs between GPUs, and differences would grow."""
        if self.count == 1:
            return
        for module in modules:
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, 0)
