"""What `torch.compile` makes here: the vision encoders, and the forwards of a decode step that it
fuses best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
from ocr_phases.steps.forwards import (
    Forward,
    ForwardsByShape,
    MadeForward,
    methods_of_kinds,
    replaced_forwards,
)
from ocr_phases.steps.graphs import capture_call, tensors_in, waits_for_device
from ocr_phases.steps.preparing import compiling

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

#: Stages and input shapes whose compiled forwards are kept, on CUDA each with its activations.
KEPT_SHAPES = 16

#: The compiler's own options by their names, as ``torch.compile`` takes them.
CompilerOptions = dict[str, str | int | bool | Callable[..., Any]]

#: How the compiler makes the step: with tuned kernels, and without graphs of its own, because the
#: step is captured here. A version of torch need not have all of these.
_STEP_OPTIONS: CompilerOptions = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    # A test of each expert's number would run for every weight.
    "assert_indirect_indexing": False,
    # Kernels that need nothing of each other are one: the router's and the shared experts', for
    # example.
    "combo_kernels": True,
    "combo_kernel_per_subkernel_blocks": True,
    # One token's attention would be summed up by a second kernel, which takes longer than it saves.
    "split_reductions": False,
    # A kernel's blocks may start while the one before is ending (programmatic dependent launch).
    "triton.enable_pdl": True,
    # With it, a start from the compiler's cache tunes most kernels again.
    "use_static_cuda_launcher": False,
}


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


def step_options(device: torch.device) -> CompilerOptions | None:
    """How a step is compiled for a device: None for a CPU, for which the compiler has its own ways.

    Options that this version of torch has not are left out.
    """
    if device.type != "cuda":
        return None
    from ocr_phases.steps.early_weights import EarlyWeights  # as long to import as torch is

    wanted: CompilerOptions = {**_STEP_OPTIONS, "post_grad_custom_post_pass": EarlyWeights()}
    known = torch._inductor.list_options()
    return {name: value for name, value in wanted.items() if name in known}


@contextmanager
def tuned_kernels(device: torch.device) -> Iterator[None]:
    """Make a step's kernels as well as is known here, for the length of a ``with`` block."""
    if device.type != "cuda":
        yield
        return
    from ocr_phases.steps.early_weights import weights_read_early

    with steady_tuning(), weights_read_early():
        yield


def compiled_parts(
    module: nn.Module, options: CompilerOptions | None = None
) -> dict[nn.Module, Forward]:
    """Forwards of a module's parts, compiled: layers of one kind together, every other part alone.

    So 24 equal layers take the time of one, at a first start and at later ones. What the module
    does between its parts is not compiled.
    """
    forwards: dict[nn.Module, Forward] = {}
    for part in module.children():
        if isinstance(part, nn.ModuleList):
            by_class: dict[type[nn.Module], Forward] = {}
            for layer in part:
                kind = type(layer)
                if kind not in by_class:
                    by_class[kind] = compile_apart(kind.forward, options)
                forwards[layer] = partial(by_class[kind], layer)
        elif _has_layers(part):
            forwards |= compiled_parts(part, options)
        else:
            forwards[part] = compile_apart(part.forward, options)
    return forwards


def _has_layers(module: nn.Module) -> bool:
    return any(isinstance(part, nn.ModuleList) for part in module.modules())


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
        self._config = model.config
        self._encoders = vision_encoders(model)
        super().__init__(self._encoders, KEPT_SHAPES)
        self._methods_on_cuda: dict[nn.Module, Forward] = {}
        for encoder in self._encoders.values():
            for module in encoder.modules():
                if isinstance(module, nn.Conv2d) and _cuts_patches(module):
                    self._methods_on_cuda[module] = _patch_product
                elif getattr(module, "use_rel_pos", False):
                    self._methods_on_cuda[module] = sam_attention

    def make(self, name: str, forward: Forward, *args: Any, **options: Any) -> MadeForward:
        """What runs for one shape."""
        pixels = tensors_in(args, options)[0]
        sizes = " × ".join(map(str, pixels.shape))
        parts = compiled_parts(self._encoders[name])
        on_cuda = pixels.device.type == "cuda"
        methods = self._methods_on_cuda if on_cuda else {}

        def run(*args: Any, **options: Any) -> Any:
            # cuDNN's attention, the fastest for SAM's wide keys, plans once: views come in few
            # sizes.
            with (
                sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *DECODE_BACKENDS]),
                replaced_forwards(parts),
                methods_of_kinds(methods),
            ):
                return forward(*args, **options)

        what = f"{stage_title(name)} for {sizes} inputs"
        with compiling(what, pixels.device, f"{what} {self._config}") as preparation:
            run(*args, **options)
        if on_cuda and not waits_for_device(run, *args, **options):
            return MadeForward(capture_call(run, *args, **options), preparation.ms)
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
    rows = _padded_keys(attention.get_rel_pos(height, height, attention.rel_pos_h))
    columns = _padded_keys(attention.get_rel_pos(width, width, attention.rel_pos_w))
    by_row = torch.einsum("bnhwc,hkc->bnhwk", grid, rows).flatten(2, 3)
    by_column = torch.einsum("bnhwc,wkc->bnhwk", grid, columns).flatten(2, 3)
    # A key's row and column, each as a vector with a single one in it.
    row = torch.eye(height, rows.shape[1], dtype=key.dtype, device=key.device)
    column = torch.eye(width, columns.shape[1], dtype=key.dtype, device=key.device)
    place = torch.cat([row.repeat_interleave(width, dim=0), column.repeat(height, 1)], dim=1)

    query = torch.cat([query * attention.scale, by_row, by_column], dim=-1)
    key = torch.cat([key, place.expand(batch, heads, -1, -1)], dim=-1)
    # The kernels need a multiple of 8 channels.
    missing = -query.shape[-1] % 8
    query = nn.functional.pad(query, (0, missing))
    key = nn.functional.pad(key, (0, missing))
    result = nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)
    return attention.proj(result.transpose(1, 2).reshape(hidden_states.shape)), None


def _padded_keys(positions: Tensor) -> Tensor:
    """Relative positions, [queries, keys, channels], with zeros for keys up to a multiple of 8.

    The product of a window's 14 took a slow kernel, twice in each layer (20 us on an H200).
    """
    return nn.functional.pad(positions, (0, 0, 0, -positions.shape[1] % 8))


# -- the language model ----------------------------------------------------------------------------


def compiled_language_model(
    language_model: nn.Module, options: CompilerOptions | None = None
) -> dict[nn.Module, Forward]:
    """Forwards of a language model's parts over a static cache, compiled as `compiled_parts` does.

    How many tokens they get, and how many entries of the cache are read, may vary.
    """
    compiled = compiled_parts(language_model, options)
    forwards: dict[nn.Module, Forward] = {}
    for part, forward in compiled.items():
        forwards[part] = partial(_call_part, forward)
    for layers in language_model.children():
        if isinstance(layers, nn.ModuleList):
            for number, layer in enumerate(layers):
                forwards[layer] = partial(_call_layer, compiled[layer], number)
    return forwards


def _call_layer(
    compiled: Forward,
    number: int,
    *args: Any,
    past_key_values: Cache,
    attention_mask: Any,
    **options: Any,
) -> Any:
    """Call a compiled layer, the one of this number, with its own entries of the cache.

    It gets them in place of the whole cache, where it would find them by its number: with that,
    every layer would be a kind of its own.
    """
    for mask in tensors_in(attention_mask):
        torch._dynamo.mark_dynamic(mask, mask.dim() - 1)
    own = {"past_key_values": past_key_values.layers[number], "attention_mask": attention_mask}
    return _call_part(compiled, *args, **own, **options)


def _call_part(compiled: Forward, *args: Any, **options: Any) -> Any:
    """Call a compiled part, to which the number of tokens is a size that varies.

    It is the second size of ids and positions, [B, T], and of states, [B, T, width]. A step has one
    token, and one is a size of its own to the compiler.
    """
    for tensor in tensors_in(args, options):
        has_tokens = tensor.dim() in (2, 3)
        if has_tokens and tensor.shape[1] > 1:
            torch._dynamo.mark_dynamic(tensor, 1)
    return compiled(*args, **options)


def norm_methods(language_model: nn.Module) -> dict[nn.Module, Forward]:
    """Methods for a language model's norms with two kernels in place of eight.

    They round where the class does; on a GPU their sums are in another order. `methods_of_kinds`
    installs them.
    """
    methods: dict[nn.Module, Forward] = {}
    for module in language_model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            methods[module] = _norm
    return methods


def prefill_methods(language_model: nn.Module) -> dict[nn.Module, Forward]:
    """Methods for the norms of a prefill, as `norm_methods` gives, and for its experts.

    Experts of a whole prompt sort its tokens by expert. With these methods they do so faster.
    """
    methods = norm_methods(language_model)
    for module in language_model.modules():
        if _are_experts(module):
            methods[module] = _experts_by_short_numbers
    return methods


def fused_methods(language_model: nn.Module) -> dict[nn.Module, Forward]:
    """Methods for norms, gated products, experts and greedy routers, to be compiled for one token.

    The compiler puts what is cheap into each of its readers: a matrix-vector product would then
    take the norm, or the gate, again for every weight (on an H200 11 us for experts whose weights
    are read in 3). So both are stored. ``topk`` is a kernel of its own; a sort is part of the
    softmax's.
    """
    methods = norm_methods(language_model)
    for module in language_model.modules():
        if _are_experts(module):
            methods[module] = _experts
        elif hasattr(module, "act_fn"):
            methods[module] = _gated_product
        elif _routes_greedily(module):
            methods[module] = _router
    return methods


def _are_experts(module: nn.Module) -> bool:
    return hasattr(module, "gate_up_proj") and hasattr(module, "act_fn")


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


def _experts_by_short_numbers(
    experts: Any, hidden_states: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """The class's experts, with 16 bits for the number of each in place of 64.

    A GPU sorts 8 bits at a time, in a kernel each: eight of them in each layer took 0.5 ms of a
    prefill of 25 ms on an H200.
    """
    is_grouped = experts.config._experts_implementation == "grouped_mm"
    if is_grouped and not experts.has_bias:  # otherwise the numbers are indices too
        chosen = chosen.to(torch.int16)
    return super(type(experts), experts).forward(hidden_states, chosen, weights)


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
