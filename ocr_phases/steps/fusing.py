"""Three small parts of the language model as a compiler fuses them best, for a compiled decode step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch._inductor import inductor_prims

from ocr_phases.steps.execution import forwards


class FusedForms:
    """Other forms of a language model's activations, norms and greedy routers.

    The compiler puts what is cheap into each of its readers: a matrix-vector product would then take the
    SiLU, or the norm, again for every weight (on an H200 11 us for experts whose weights are read in 3). So
    activations and norms are stored. ``topk`` is a kernel of its own; a sort is part of the softmax's.
    """

    def __init__(self, language_model: nn.Module) -> None:
        self._forms: dict[nn.Module, Callable[..., Any]] = {}
        for name, module in language_model.named_modules():
            if name.endswith("act_fn") or type(module).__name__.endswith("RMSNorm"):
                self._forms[module] = partial(_stored, module.forward)
            elif getattr(module, "topk_method", None) == "greedy" and hasattr(
                module, "routed_scaling_factor"
            ):
                self._forms[module] = partial(_routed, module)

    def installed(self) -> AbstractContextManager[None]:
        """Run the language model in these forms within a ``with`` block.

        They are the same objects each time, or what was compiled with them would be compiled again.
        """
        return forwards(self._forms)


def first_largest(scores: Tensor) -> Tensor:
    """`argmax` of [B, N] over the last dimension, int64 [B, 1], in two levels.

    The compiler gives one row's argmax to one multiprocessor of a GPU (19 to 34 us for 129,280 on an H200).
    """
    parts = next(parts for parts in (256, 64, 16, 4, 1) if scores.shape[-1] % parts == 0)
    width = scores.shape[-1] // parts
    rows = scores.unflatten(-1, (parts, width))
    part = rows.amax(dim=-1).argmax(dim=-1, keepdim=True)
    return part * width + rows.argmax(dim=-1).gather(-1, part)


def _stored(forward: Callable[..., Tensor], *args: Any) -> Tensor:
    given = forward(*args)
    return inductor_prims.force_stride_order(given, given.stride())


def _routed(router: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden_states = hidden_states.view(-1, router.hidden_dim)
    logits = nn.functional.linear(hidden_states.float(), router.weight.float())
    weights, experts = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    chosen = slice(router.top_k)
    return logits, weights[:, chosen] * router.routed_scaling_factor, experts[:, chosen]
