"""What `torch.compile` makes here: the vision encoders, and the forms of a decode step that it
fuses best.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from math import gcd
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ocr_phases.models.wiring import interface_of
from ocr_phases.stages import stage_title
from ocr_phases.steps.execution import (
    DECODE_BACKENDS,
    Made,
    MadeForwards,
    captured_call,
    first_call_ms,
    forwards,
    preparing,
    tensors_in,
)

#: Stages and input shapes whose compiled forwards are kept, on CUDA each with its activations.
KEPT_SHAPES = 16


def compiled_apart(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``torch.compile`` of ``function`` for one set of shapes, which no other compilation can crowd
    out.

    The compiler keeps, and limits, what it made by code object; so every call here gets a code
    object of its own. ``options`` are those of ``torch.compile``.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    own = FunctionType(
        call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__
    )
    return torch.compile(own, fullgraph=True, dynamic=False, **options)


def tuned_steadily() -> AbstractContextManager[Any]:
    """Let the compiler time its trials of a kernel well, for the length of a ``with`` block.

    It empties the L2 cache before each trial, which takes less time than a launch: a kernel of 5 us
    was timed with its launch, and chosen by chance. With more to write, the host is ahead of the
    device.
    """
    from torch._inductor.runtime.benchmarking import benchmarker

    # Bytes, as triton.testing.do_bench takes.
    return patch.dict(vars(benchmarker), L2_cache_size=256 * 2**20)


class CompiledVision(MadeForwards):
    """Compiled forwards of a model's vision encoders, made at each shape's first call and kept.

    On CUDA each is captured too, and its activations stay in the graph's own memory.
    """

    def __init__(self, model: nn.Module) -> None:
        encoders = {
            part.stage: part.first
            for part in interface_of(model).timed_parts(model)
            if part.role == "vision"
        }
        super().__init__(encoders, KEPT_SHAPES)
        self._forms: dict[nn.Module, Callable[..., Any]] = {}
        for module in nn.ModuleList(encoders.values()).modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride != (1, 1):
                self._forms[module] = partial(_patches, module)
            elif getattr(module, "use_rel_pos", False):
                self._forms[module] = partial(sam_attention, module)

    def make(self, name: str, forward: Callable[..., Any], *args: Any, **options: Any) -> Made:
        """What runs for one shape."""
        first = tensors_in(args, options)[0]
        preparing.get()(
            f"compiling {stage_title(name)} for {' × '.join(map(str, first.shape))} inputs"
        )
        compiled, cuda = compiled_apart(forward), first.device.type == "cuda"
        # cuDNN's attention, the fastest for SAM's wide keys, plans once: views come in few sizes.
        kernels = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *DECODE_BACKENDS])
        with kernels, forwards(self._forms if cuda else {}):
            _, ms = first_call_ms(first.device, partial(compiled, *args, **options))
            return (captured_call(compiled, *args, **options) if cuda else compiled), ms


def _patches(convolution: nn.Conv2d, pixels: Tensor) -> Tensor:
    """A convolution of patches, [B, C, H, W] to [B, width, H/p, W/p], as a matrix product.

    cuDNN's kernel for it takes 0.3 ms for 1,024 x 1,024 pixels on an H100, a tenth of that is
    needed.
    """
    flat = nn.functional.pixel_unshuffle(pixels, convolution.kernel_size[0]).permute(0, 2, 3, 1)
    weight = convolution.weight.flatten(1)
    return nn.functional.linear(flat, weight, convolution.bias).permute(0, 3, 1, 2)


def sam_attention(attention: Any, hidden_states: Tensor) -> tuple[Tensor, None]:
    """SAM's attention over [B, H, W, C], its position bias as more channels of queries and keys.

    The class writes and reads a bias for each pair of places, 0.4 GB a layer at 1,024 x 1,024
    pixels. It is the sum of one for the key's row and one for its column, so a key's channels say
    where it is.
    """
    batch, height, width, _ = hidden_states.shape
    heads, places = attention.num_attention_heads, height * width
    query, key, value = (
        attention.qkv(hidden_states).view(batch, places, 3, heads, -1).permute(2, 0, 3, 1, 4)
    )
    grid = query.unflatten(2, (height, width))
    rows = attention.get_rel_pos(height, height, attention.rel_pos_h)
    columns = attention.get_rel_pos(width, width, attention.rel_pos_w)
    by_row = torch.einsum("bnhwc,hkc->bnhwk", grid, rows).flatten(2, 3)
    by_column = torch.einsum("bnhwc,wkc->bnhwk", grid, columns).flatten(2, 3)
    row, column = (torch.eye(size, dtype=key.dtype, device=key.device) for size in (height, width))
    place = torch.cat([row.repeat_interleave(width, dim=0), column.repeat(height, 1)], dim=1)
    query = torch.cat([query * attention.scale, by_row, by_column], dim=-1)
    key = torch.cat([key, place.expand(batch, heads, -1, -1)], dim=-1)
    # The kernels need a multiple of 8 channels.
    query, key = (nn.functional.pad(part, (0, -part.shape[-1] % 8)) for part in (query, key))
    given = nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)
    return attention.proj(given.transpose(1, 2).reshape(hidden_states.shape)), None


def single_norms(language_model: nn.Module) -> dict[nn.Module, Callable[..., Any]]:
    """Forms of a language model's norms with two kernels in place of eight, for `forwards`.

    They round where the class does; on a GPU their sums are in another order. Install the same
    objects each time, or what was compiled with them is compiled again.
    """
    norms = (
        module for module in language_model.modules() if type(module).__name__.endswith("RMSNorm")
    )
    return {norm: partial(_normed, norm) for norm in norms}


def fused_forms(language_model: nn.Module) -> dict[nn.Module, Callable[..., Any]]:
    """Forms of norms, gated products, experts and greedy routers for one token's compiled forward.

    The compiler puts what is cheap into each of its readers: a matrix-vector product would then
    take the norm, or the gate, again for every weight (on an H200 11 us for experts whose weights
    are read in 3). So both are stored. ``topk`` is a kernel of its own; a sort is part of the
    softmax's.
    """
    forms = single_norms(language_model)
    for module in language_model.modules():
        if hasattr(module, "act_fn"):
            forms[module] = partial(_experts if hasattr(module, "gate_up_proj") else _gated, module)
        elif getattr(module, "topk_method", "") == "greedy" and hasattr(
            module, "routed_scaling_factor"
        ):
            forms[module] = partial(_routed, module)
    return forms


def _stored(given: Tensor) -> Tensor:
    from torch._inductor import inductor_prims

    compiled = torch.compiler.is_compiling()  # elsewhere it would be a copy
    return inductor_prims.force_stride_order(given, given.stride()) if compiled else given


def _normed(norm: Any, hidden_states: Tensor) -> Tensor:
    shape, eps = norm.weight.shape, norm.variance_epsilon
    return _stored(norm.weight * nn.functional.rms_norm(hidden_states, shape, eps=eps))


def _gated(mlp: Any, hidden_states: Tensor) -> Tensor:
    return mlp.down_proj(
        _stored(mlp.act_fn(mlp.gate_proj(hidden_states)) * mlp.up_proj(hidden_states))
    )


def _experts(experts: Any, hidden_states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The class's ``batched_mm``: [T, width] by the experts ``chosen`` [T, K] with their
    ``weights``.
    """
    gate, up = (experts.gate_up_proj[chosen] @ hidden_states[:, None, :, None]).chunk(2, dim=2)
    given = experts.down_proj[chosen] @ _stored(experts.act_fn(gate) * up)
    return (given[..., 0] * weights[..., None]).sum(dim=1).to(hidden_states.dtype)


def _routed(router: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden_states = hidden_states.view(-1, router.hidden_dim)
    logits = nn.functional.linear(hidden_states.float(), router.weight.float())
    weights, experts = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    weights = weights[:, : router.top_k] * router.routed_scaling_factor
    return logits, weights, experts[:, : router.top_k]


def sum_of_each(scores: Tensor) -> Tensor:
    """The sum of each row of [B, N], float32 [B], in the two levels of `first_largest`, for the
    same reason.

    Both read the same parts, so that the compiler can read them once.
    """
    rows = scores.unflatten(-1, (gcd(256, scores.shape[-1]), -1))
    return rows.sum(dim=-1, dtype=torch.float32).sum(dim=-1)


def first_largest(scores: Tensor) -> Tensor:
    """`argmax` of [B, N] over the last dimension, int64 [B, 1], in two levels.

    The compiler gives one row's argmax to one multiprocessor of a GPU (19 to 34 us for 129,280 on
    an H200).
    """
    rows = scores.unflatten(-1, (gcd(256, scores.shape[-1]), -1))
    part = rows.amax(dim=-1).argmax(dim=-1, keepdim=True)
    return part * rows.shape[-1] + rows.argmax(dim=-1).gather(-1, part)
