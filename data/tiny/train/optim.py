"""Muon for the hidden matrices, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_NOT_HIDDEN = ("embed", "lm_head", "rel_pos", "gate.weight")
_MOMENTUM, _STEPS = 0.95, 5


def _orthogonal(gradient: Tensor, momentum: Tensor) -> Tensor:
    """Update the momentum and give its nearest semi-orthogonal matrices; all [count, rows, columns]."""
    momentum.lerp_(gradient, 1 - _MOMENTUM)
    x = gradient.lerp(momentum, _MOMENTUM).bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose singular values are all made one, matrices of a shape in one go."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float, compiled: bool) -> None:
        super().__init__(list(parameters), {"lr": lr, "weight_decay": weight_decay})
        self._orthogonal = torch.compile(_orthogonal, dynamic=False) if compiled else _orthogonal

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update from the gradients; ``closure`` is not used."""
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                shape = parameter.shape[-2:] if parameter.dim() == 3 else parameter.flatten(1).shape
                shapes.setdefault(tuple(shape), []).append(parameter)
            for shape, same in shapes.items():
                self._update(shape, same, group["lr"], group["weight_decay"])

    def _update(self, shape: tuple[int, ...], same: list[Tensor], lr: float, weight_decay: float) -> None:
        gradient = torch.cat([p.grad.reshape(-1, *shape) for p in same])
        state = self.state[same[0]]  # one momentum for all matrices of a shape, kept with the first
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        update = self._orthogonal(gradient, state["momentum"]) * (0.2 * max(shape) ** 0.5)
        torch._foreach_mul_(same, 1 - lr * weight_decay)
        parts = update.to(gradient.dtype).split([p.numel() // (shape[0] * shape[1]) for p in same])
        torch._foreach_add_(same, [u.reshape(p.shape) for u, p in zip(parts, same, strict=True)], alpha=-lr)


def make_optimisers(
    modules: dict[str, nn.Module], settings: dict[str, float], device: str, compiled: bool
) -> tuple[Muon, torch.optim.AdamW]:
    """Both optimisers over ``modules``; only matrices of the one called ``model`` are hidden ones."""
    hidden, tables, vectors = [], [], []
    for owner, module in modules.items():
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.dim() < 2:
                vectors.append(parameter)
            elif owner == "model" and not any(part in name for part in _NOT_HIDDEN):
                hidden.append(parameter)
            else:
                tables.append(parameter)
    decay = settings["weight_decay"]
    muon = Muon(hidden, settings["muon_lr"], decay, compiled)
    groups = [{"params": tables, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=settings["adam_lr"], betas=(0.9, 0.98), fused=device == "cuda")
    return muon, adam
