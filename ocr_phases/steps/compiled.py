"""What `torch.compile` makes here: the vision encoders, and the forwards of a decode step that it
fuses best.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from math import gcd
from types import FunctionType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ocr_phases.models.wiring import interface_of
from ocr_phases.stages import stage_title
from ocr_phases.steps.decode_kernels import DECODE_BACKENDS
from ocr_phases.steps.forwards import Forward, ForwardsByShape, MadeForward, replaced_forwards
from ocr_phases.steps.graphs import capture_call, tensors_in
from ocr_phases.steps.preparing import announce, timed_preparation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Stages and input shapes whose compiled forwards are kept, on CUDA each with its activations.
KEPT_SHAPES = 16

#: The compiler's own options by their names, as ``torch.compile`` takes them.
CompilerOptions = dict[str, str | int | bool | Callable[..., Any]]


def compile_apart(
    function: Callable[..., Any], options: CompilerOptions | None = None
) -> Callable[..., Any]:
    """``torch.compile`` of ``function`` for one set of shapes.

    The compiler keeps what it made by code object, and keeps only so much for each. Every function
    that is compiled here gets a code object of its own, so that none crowds another one out.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    own = FunctionType(
        call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__
    )
    return torch.compile(own, fullgraph=True, dynamic=False, options=options)


def steady_tuning() -> AbstractContextManager[Any]:
    """Let the compiler time its trials of a kernel well, for the length of a ``with`` block.

    Before each trial it empties the L2 cache, by writing to memory. By default that takes less time
    than a launch, so that a kernel of 5 us was timed together with its launch, and chosen by
    chance. Here it writes more, so that the host is ahead of the device when a trial begins.
    """
    from torch._inductor.runtime.benchmarking import benchmarker

    # Bytes, as triton.testing.do_bench takes.
    return patch.dict(vars(benchmarker), L2_cache_size=256 * 2**20)


# -- the vision encoders ---------------------------------------------------------------------------


def vision_encoders(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The modules of a model that are vision encoders, by the names of their stages."""
    encoders: dict[str, nn.Module] = {}
    for part in interface_of(model).timed_parts(model):
        if part.role == "vision":
            encoders[part.stage] = part.first
    return encoders


class CompiledVision(ForwardsByShape):
    """Compiled forwards of a model's vision encoders, made at each shape's first call and kept.

    On CUDA each is captured too, and its activations stay in the graph's own memory.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        encoders = vision_encoders(model)
        super().__init__(encoders, KEPT_SHAPES)
        self._forwards_on_cuda: dict[nn.Module, Forward] = {}
        for encoder in encoders.values():
            for module in encoder.modules():
                if isinstance(module, nn.Conv2d) and _cuts_patches(module):
                    self._forwards_on_cuda[module] = partial(_patch_product, module)
                elif getattr(module, "use_rel_pos", False):
                    self._forwards_on_cuda[module] = partial(sam_attention, module)

    def make(self, name: str, forward: Forward, *args: Any, **options: Any) -> MadeForward:
        """What runs for one shape."""
        pixels = tensors_in(args, options)[0]
        sizes = " × ".join(map(str, pixels.shape))
        announce(f"compiling {stage_title(name)} for {sizes} inputs")
        run = compile_apart(forward)
        on_cuda = pixels.device.type == "cuda"
        forwards = self._forwards_on_cuda if on_cuda else {}
        # cuDNN's attention, the fastest for SAM's wide keys, plans once: views come in few sizes.
        kernels = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *DECODE_BACKENDS])
        with kernels, replaced_forwards(forwards):
            with timed_preparation(pixels.device) as preparation:
                run(*args, **options)
            if on_cuda:
                run = capture_call(run, *args, **options)
        return MadeForward(run, preparation.ms)


def _cuts_patches(convolution: nn.Conv2d) -> bool:
    """Whether a convolution cuts an image into patches, so that each pixel goes into one output."""
    return convolution.kernel_size == convolution.stride and convolution.stride != (1, 1)


def _patch_product(convolution: nn.Conv2d, pixels: Tensor) -> Tensor:
    """A convolution of patches, [B, C, H, W] to [B, width, H/p, W/p], as a matrix product.

    For 1,024 x 1,024 pixels on an H100, cuDNN's kernel takes 0.3 ms, and the product a tenth of
    that.
    """
    patch_size = convolution.kernel_size[0]
    flat = nn.functional.pixel_unshuffle(pixels, patch_size).permute(0, 2, 3, 1)
    weight = convolution.weight.flatten(1)
    return nn.functional.linear(flat, weight, convolution.bias).permute(0, 3, 1, 2)


def sam_attention(attention: Any, hidden_states: Tensor) -> tuple[Tensor, None]:
    """SAM's attention over [B, H, W, C], its position bias as more channels of queries and keys.

    The class writes and reads a bias for each pair of places, 0.4 GB a layer at 1,024 x 1,024
    pixels. It is the sum of one for the key's row and one for its column, so a key's channels say
    where it is.
    """
    batch, height, width, _ = hidden_states.shape
    heads = attention.num_attention_heads
    places = height * width
    projected = attention.qkv(hidden_states).view(batch, places, 3, heads, -1)
    query, key, value = projected.permute(2, 0, 3, 1, 4)  # [B, heads, places, C/heads] each

    # A query's bias for each row and for each column of keys.
    grid = query.unflatten(2, (height, width))
    rows = attention.get_rel_pos(height, height, attention.rel_pos_h)
    columns = attention.get_rel_pos(width, width, attention.rel_pos_w)
    by_row = torch.einsum("bnhwc,hkc->bnhwk", grid, rows).flatten(2, 3)
    by_column = torch.einsum("bnhwc,wkc->bnhwk", grid, columns).flatten(2, 3)
    # A key's row and column, each as a vector with a single one in it.
    row = torch.eye(height, dtype=key.dtype, device=key.device)
    column = torch.eye(width, dtype=key.dtype, device=key.device)
    place = torch.cat([row.repeat_interleave(width, dim=0), column.repeat(height, 1)], dim=1)

    query = torch.cat([query * attention.scale, by_row, by_column], dim=-1)
    key = torch.cat([key, place.expand(batch, heads, -1, -1)], dim=-1)
    # The kernels need a multiple of 8 channels.
    missing = -query.shape[-1] % 8
    query = nn.functional.pad(query, (0, missing))
    key = nn.functional.pad(key, (0, missing))
    result = nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)
    return attention.proj(result.transpose(1, 2).reshape(hidden_states.shape)), None


# -- the language model ----------------------------------------------------------------------------


def norm_forwards(language_model: nn.Module) -> dict[nn.Module, Forward]:
    """Forwards of a language model's norms with two kernels in place of eight.

    They round where the class does; on a GPU their sums are in another order. Install the same
    objects each time (`replaced_forwards`), or what was compiled with them is compiled again.
    """
    forwards: dict[nn.Module, Forward] = {}
    for module in language_model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            forwards[module] = partial(_norm, module)
    return forwards


def fused_forwards(language_model: nn.Module) -> dict[nn.Module, Forward]:
    """Forwards of norms, gated products, experts and greedy routers, to be compiled for one token.

    The compiler puts what is cheap into each of its readers: a matrix-vector product would then
    take the norm, or the gate, again for every weight (on an H200 11 us for experts whose weights
    are read in 3). So both are stored. ``topk`` is a kernel of its own; a sort is part of the
    softmax's.
    """
    forwards = norm_forwards(language_model)
    for module in language_model.modules():
        if hasattr(module, "gate_up_proj") and hasattr(module, "act_fn"):
            forwards[module] = partial(_experts, module)
        elif hasattr(module, "act_fn"):
            forwards[module] = partial(_gated_product, module)
        elif _routes_greedily(module):
            forwards[module] = partial(_router, module)
    return forwards


def _routes_greedily(module: nn.Module) -> bool:
    method = getattr(module, "topk_method", "")
    return method == "greedy" and hasattr(module, "routed_scaling_factor")


def _store(values: Tensor) -> Tensor:
    """Make the compiler write ``values`` once, so that their readers do not compute them again."""
    from torch._inductor import inductor_prims

    if not torch.compiler.is_compiling():  # it is computed once anyway
        return values
    return inductor_prims.force_stride_order(values, values.stride())


def _norm(norm: Any, hidden_states: Tensor) -> Tensor:
    """The class's RMS norm of [B, T, width]."""
    eps = norm.variance_epsilon
    normed = nn.functional.rms_norm(hidden_states, norm.weight.shape, eps=eps)
    return _store(norm.weight * normed)


def _gated_product(mlp: Any, hidden_states: Tensor) -> Tensor:
    """The class's dense MLP of [B, T, width]."""
    gated = mlp.act_fn(mlp.gate_proj(hidden_states)) * mlp.up_proj(hidden_states)
    return mlp.down_proj(_store(gated))


def _experts(experts: Any, hidden_states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The class's ``batched_mm``: [T, width] by the experts ``chosen`` [T, K] with their
    ``weights``.
    """
    gate_and_up = experts.gate_up_proj[chosen] @ hidden_states[:, None, :, None]
    gate, up = gate_and_up.chunk(2, dim=2)
    outputs = experts.down_proj[chosen] @ _store(experts.act_fn(gate) * up)
    return (outputs[..., 0] * weights[..., None]).sum(dim=1).to(hidden_states.dtype)


def _router(router: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The class's logits, and the weights and numbers of the chosen experts, [T, top_k] each."""
    hidden_states = hidden_states.view(-1, router.hidden_dim)
    logits = nn.functional.linear(hidden_states.float(), router.weight.float())
    weights, experts = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    weights = weights[:, : router.top_k] * router.routed_scaling_factor
    return logits, weights, experts[:, : router.top_k]


# -- the head --------------------------------------------------------------------------------------


def row_sums(scores: Tensor) -> Tensor:
    """The sum of each row of [B, N], float32 [B].

    It is taken in the two levels of `first_largest`, for the same reason; and as both read the same
    parts, the compiler can read them once.
    """
    return _parts(scores).sum(dim=-1, dtype=torch.float32).sum(dim=-1)


def first_largest(scores: Tensor) -> Tensor:
    """`argmax` of [B, N] over the last dimension, int64 [B, 1], in two levels.

    The compiler gives one row's argmax to one multiprocessor of a GPU (19 to 34 us for 129,280 on
    an H200).
    """
    parts = _parts(scores)
    part = parts.amax(dim=-1).argmax(dim=-1, keepdim=True)
    return part * parts.shape[-1] + parts.argmax(dim=-1).gather(-1, part)


def _parts(scores: Tensor) -> Tensor:
    """[B, N] as [B, parts, N / parts], in as many equal parts as N allows, at most 256."""
    return scores.unflatten(-1, (gcd(256, scores.shape[-1]), -1))
