"""The decode step of one row by kernels of its own, in place of what a compiler makes of the class.

`token_kernels` has the kernels, this module the buffers between them and the order in which they
start:

=============  ===============================================  ====================================
kernel         reads, beside weights and the slot               writes
=============  ===============================================  ====================================
open_step      token, position                                  hidden, cosines, sines, mask
project        hidden, cosines, sines                           query, newest entry of the cache
attend         query, cache, mask                               means, log_totals
add_attention  hidden, means, log_totals                        attended
gate           attended                                         gated_values, router_logits
gate_experts   attended, router_logits                          expert_values, chosen,
                                                                chosen_weights
add_experts    attended, gated_values, expert_values, chosen,   hidden
               chosen_weights
score_words    hidden                                           logits, best_logits, best_words,
                                                                part_sums
close_step     best_logits, best_words, part_sums, position,    token, position, slot, count, sums
               count, sums, window_slots
=============  ===============================================  ====================================

Those from ``project`` to ``add_experts`` run once for each layer; a dense one has no
``gate_experts``, and its MLP in the place of the shared experts.

It is for the language model that the three families share: rotary attention with as many key
heads as query heads, and a mixture of experts with a greedy router.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache

from ocr_phases.collectors.timeline import NoTimeline, Timeline
from ocr_phases.errors import OcrPhasesError, first_line
from ocr_phases.steps.capacity import power_of_two

#: What a record calls these kernels, of attention and of experts.
TOKEN_KERNELS = "token_kernels"

#: How much of a matrix's row a warp reads at once: 16 bytes for each of its threads.
_CHUNK_BYTES = 512


class Size(NamedTuple):
    """How much work a program of a kernel does: at most so many rows of each matrix (a power of
    two), with so many warps.
    """

    rows: int
    warps: int


#: A warp has one or two whole rows, but in `add_attention` some heads of all rows. The rows of
#: `attend` are entries of the cache; the first kernel and the last one have one program each.
#:
#: Small programs are best where many kernels are at work at once: a program of the next kernel
#: starts as soon as a multiprocessor has room for it, and then reads its weights. These sizes were
#: the fastest on an H200 in bfloat16 (`benchmarks/token_kernels.py` tries others).
SIZES = {
    "open_step": Size(1, 4),
    "project": Size(1, 1),
    "attend": Size(128, 8),
    "add_attention": Size(8, 8),
    "gate": Size(8, 4),
    "gate_experts": Size(16, 8),
    "add_experts": Size(1, 1),
    "score_words": Size(8, 4),
    "close_step": Size(1, 16),
}
#: How many blocks of rows a program of `score_words` does: the fewer programs there are, the fewer
#: results the last kernel has to read.
_ROUNDS = 4
#: Into how many parts the entries are divided at most: the kernel behind `attend` reads the results
#: of all of them in each of its programs.
MOST_PARTS = 16
_TRITON_NEEDS = (3, 6)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class TokenState:
    """What a step reads and moves on, all on the device, at addresses that do not change.

    Attributes
    ----------
    token, position : Tensor
        int64 [1, 1]: the step's token, and the position of the newest entry of the cache.
    slot : Tensor
        int64 [1]: the entry that the step writes.
    window_slots : Tensor
        int64 [2, 1]: the window's first slot, and the one behind its last.
    mask : Tensor
        [1, 1, 1, slots]: what is added to the scores of each entry.
    count : Tensor
        int64 without a dimension: the tokens so far.
    sums : Tensor
        float32 [1]: the sum of all logits so far, finite only if they all were.
    """

    token: Tensor
    position: Tensor
    slot: Tensor
    window_slots: Tensor
    mask: Tensor
    count: Tensor
    sums: Tensor


def has_triton() -> bool:
    """Whether a Triton is installed that compiles the kernels: the one they were measured with, or
    a later one.
    """
    try:
        major, minor = version("triton").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= _TRITON_NEEDS


def token_kernels_fit(language_model: nn.Module, head: nn.Module | None, batch: int) -> bool:
    """Whether the kernels can make the step of ``batch`` rows of this model.

    They need Triton, one row, plain weights of one type, row by row in memory and without biases,
    and layers like those of DeepSeek-OCR's language model.
    """
    if batch != 1 or not has_triton():
        return False
    layers = getattr(language_model, "layers", None)
    if not isinstance(head, nn.Linear) or not isinstance(layers, nn.ModuleList):
        return False
    if not all(_layer_fits(layer) for layer in layers):
        return False
    rotary = getattr(language_model, "rotary_emb", None)
    if getattr(rotary, "rope_type", "") != "default":
        return False
    if head.weight.shape[0] % _ROUNDS:
        return False
    weights = [*language_model.parameters(), *head.parameters()]
    names = [name for name, _ in language_model.named_parameters()]
    has_bias = head.bias is not None or any(name.endswith("bias") for name in names)
    types = {weight.dtype for weight in weights}
    if not all(weight.is_contiguous() for weight in weights):
        return False
    return not has_bias and len(types) == 1 and types <= set(_DTYPES)


def _layer_fits(layer: Any) -> bool:
    """Whether a layer is such as the kernels compute."""
    attention = getattr(layer, "self_attn", None)
    if not _has_linear(attention, "q_proj", "k_proj", "v_proj", "o_proj"):
        return False
    size = getattr(attention, "head_dim", 0)
    if size < 16 or size != power_of_two(1, size):
        return False
    if getattr(attention, "num_key_value_groups", 0) != 1:
        return False
    mlp = layer.mlp
    router = getattr(mlp, "gate", None)
    if router is None:
        return _mlp_fits(mlp)
    experts = getattr(mlp, "experts", None)
    return (
        getattr(router, "topk_method", "") == "greedy"
        and isinstance(getattr(experts, "gate_up_proj", None), Tensor)
        and _is_silu(getattr(experts, "act_fn", None))
        and _mlp_fits(getattr(mlp, "shared_experts", None))
    )


def _mlp_fits(mlp: Any) -> bool:
    """Whether an MLP is a product gated by SiLU."""
    return _has_linear(mlp, "gate_proj", "up_proj", "down_proj") and _is_silu(mlp.act_fn)


def _has_linear(module: Any, *names: str) -> bool:
    """Whether a module has such children, all of them plain linear layers."""
    children: dict[str, nn.Module] = {}
    if isinstance(module, nn.Module):
        children.update(module.named_children())
    return all(type(children.get(name)) is nn.Linear for name in names)


def _is_silu(function: Any) -> bool:
    """Whether an activation is SiLU, of torch or of transformers."""
    return type(function).__name__ in ("SiLU", "SiLUActivation")


def starts_early(device: torch.device) -> bool:
    """Whether a kernel may start there before the one in front of it has ended: on NVIDIA GPUs from
    Hopper on.
    """
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@contextmanager
def triton_explained() -> Iterator[None]:
    """Say in one sentence why Triton could not compile a kernel in a ``with`` block.

    Raises `OcrPhasesError`. Triton has errors of its own, and says by a RuntimeError that there is
    no C compiler. A lack of memory is not Triton's.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except _triton_errors() as error:
        reason = first_line(error).rstrip(".")
        raise OcrPhasesError(f"Triton failed here ({reason}): use 'cuda_graph'.") from error


def _triton_errors() -> tuple[type[Exception], ...]:
    """What Triton raises where it cannot compile a kernel."""
    if not has_triton():
        return (RuntimeError,)
    from triton.errors import TritonError

    return (RuntimeError, TritonError)


@dataclass(frozen=True)
class _MlpWeights:
    """What a layer has behind its attention, as the kernels take it.

    A dense layer has no experts, and its MLP stands in the place of the shared ones. The kernels
    then read nothing of ``router`` and ``expert_weight``, which only have to be tensors.
    """

    dense: Any
    gated_rows: int
    router: Tensor
    expert_weight: Tensor
    experts: int = 0
    chosen: int = 0
    expert_rows: int = 1

    @classmethod
    def of(cls, mlp: Any) -> _MlpWeights:
        """The weights of a layer's ``mlp``."""
        if not hasattr(mlp, "gate"):
            weight = mlp.down_proj.weight
            return cls(mlp, mlp.gate_proj.weight.shape[0], router=weight, expert_weight=weight)
        shared = mlp.shared_experts
        return cls(
            shared,
            shared.gate_proj.weight.shape[0],
            router=mlp.gate.weight,
            expert_weight=mlp.experts.down_proj,
            experts=mlp.gate.weight.shape[0],
            chosen=mlp.gate.top_k,
            expert_rows=mlp.experts.down_proj.shape[2],
        )


class TokenStep:
    """The step's kernels for one model, one state and one static cache.

    Parameters
    ----------
    language_model, head : nn.Module
        Of the model, such as `token_kernels_fit` is true for.
    cache : Cache
        A static cache of one row, whose entries have fixed addresses.
    state : TokenState
        What the step reads and moves on.
    early : bool
        Whether kernels may start before the one in front of them has ended (programmatic dependent
        launch, on NVIDIA GPUs from Hopper on).
    multiprocessors : int, optional
        How many the device has, where that is known.
    """

    def __init__(
        self,
        language_model: Any,
        head: Any,
        cache: Cache,
        state: TokenState,
        *,
        early: bool,
        multiprocessors: int | None = None,
    ) -> None:
        # Triton is not there on every machine.
        from ocr_phases.steps import token_kernels

        self._kernels: Any = token_kernels
        self._language_model = language_model
        self._head = head
        self._cache: Any = cache
        #: What the step reads and moves on.
        self.state = state
        self._early = early

        config = language_model.config
        attention = language_model.layers[0].self_attn
        device = state.token.device
        weight: Tensor = head.weight
        self._width: int = config.hidden_size
        self._size: int = attention.head_dim
        self._heads = attention.q_proj.weight.shape[0] // self._size
        self._slots = state.mask.shape[-1]
        # A program of `attend` that reads several blocks needs a multiprocessor for itself. With
        # more such programs than multiprocessors, some would wait for others to end.
        programs = multiprocessors or self._heads
        self._most_parts_of_blocks = min(MOST_PARTS, max(1, programs // self._heads))
        self._words = weight.shape[0]
        self._chunk = _CHUNK_BYTES // weight.element_size()
        self._eps: float = config.rms_norm_eps
        self._score_rows = _rows_of_program(self._words // _ROUNDS, SIZES["score_words"].rows)
        parts = self._words // (_ROUNDS * self._score_rows)

        def buffer(*sizes: int, dtype: torch.dtype = weight.dtype) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        # What one kernel hands to another.
        self._hidden = buffer(self._width)
        self._attended = buffer(self._width)
        self._cosines = buffer(self._size // 2)
        self._sines = buffer(self._size // 2)
        self._query = buffer(self._heads, self._size)
        self._means = buffer(self._heads, MOST_PARTS, self._size)
        self._log_totals = buffer(self._heads, MOST_PARTS, dtype=torch.float32)
        self._best_logits = buffer(parts, dtype=torch.float32)
        self._best_words = buffer(parts, dtype=torch.int32)
        self._part_sums = buffer(parts, dtype=torch.float32)
        mlps = [_MlpWeights.of(layer.mlp) for layer in language_model.layers]
        experts = max(1, *(mlp.experts for mlp in mlps))
        chosen = max(1, *(mlp.chosen for mlp in mlps))
        self._gated_values = buffer(max(mlp.gated_rows for mlp in mlps))
        self._router_logits = buffer(experts, dtype=torch.float32)
        self._chosen = buffer(chosen, dtype=torch.int32)
        self._chosen_weights = buffer(chosen, dtype=torch.float32)
        self._expert_values = buffer(chosen, max(mlp.expert_rows for mlp in mlps))
        #: Of the newest step, [1, vocab].
        self.logits = buffer(1, self._words)

    def __call__(self, read: int, timeline: Timeline | None = None) -> Tensor:
        """Start the kernels of one step that reads the first ``read`` entries.

        Parameters
        ----------
        read : int
            How many entries of the cache attention reads.
        timeline : Timeline, optional
            Gets a span for the layers, one for the head and one for the choice of the token, by the
            names that the class's step has; by default nothing is noted.

        Returns
        -------
        Tensor
            The logits [1, vocab], which the next step overwrites.
        """
        timeline = timeline or NoTimeline()
        with timeline.span("language_model"):
            self._open()
            for layer, entries in zip(self._language_model.layers, self._cache.layers, strict=True):
                self._attend(layer, entries, read)
                self._add_mlp(layer)
        with timeline.span("lm_head"):
            self._score()
        with timeline.span("sampling"):
            self._close()
        return self.logits

    def start(self, name: str, grid: tuple[int, ...], **arguments: Any) -> None:
        """Start a kernel of `token_kernels` with a grid of programs and all of its arguments."""
        if name != "open_step":  # which waits for the step before
            arguments["EARLY"] = self._early
            if self._early:
                arguments["launch_pdl"] = True  # an option of Triton, as is num_warps
        getattr(self._kernels, name)[grid](**arguments, num_warps=SIZES[name].warps)

    def _open(self) -> None:
        """The token's embedding, its position's angles, and that the step sees its own entry."""
        state = self.state
        self.start(
            "open_step",
            (1,),
            token=state.token,
            position=state.position,
            slot=state.slot,
            embeddings=self._language_model.embed_tokens.weight,
            frequencies=self._language_model.rotary_emb.inv_freq,
            mask=state.mask,
            hidden=self._hidden,
            cosines=self._cosines,
            sines=self._sines,
            WIDTH=self._width,
            WIDTH_BLOCK=power_of_two(1, self._width),
            HALF=self._size // 2,
        )

    def _attend(self, layer: Any, entries: Any, read: int) -> None:
        """A layer's attention, from the hidden state to the one after it."""
        state = self.state
        attention = layer.self_attn
        pairs = _rows_of_program(self._size // 2, SIZES["project"].rows)
        self.start(
            "project",
            (self._heads, self._size // 2 // pairs, 3),
            hidden=self._hidden,
            norm_weight=layer.input_layernorm.weight,
            query_weight=attention.q_proj.weight,
            key_weight=attention.k_proj.weight,
            value_weight=attention.v_proj.weight,
            cosines=self._cosines,
            sines=self._sines,
            slot=state.slot,
            query=self._query,
            keys=entries.keys,
            values=entries.values,
            eps=self._eps,
            SLOTS=self._slots,
            WIDTH=self._width,
            HALF=self._size // 2,
            CHUNK=self._chunk,
            ROWS=pairs,
        )
        block = SIZES["attend"].rows
        all_blocks = math.ceil(read / block)
        blocks = 1
        if all_blocks > MOST_PARTS:
            blocks = math.ceil(all_blocks / self._most_parts_of_blocks)
        parts = math.ceil(all_blocks / blocks)
        self.start(
            "attend",
            (self._heads, parts),
            query=self._query,
            keys=entries.keys,
            values=entries.values,
            mask=state.mask,
            slot=state.slot,
            means=self._means,
            log_totals=self._log_totals,
            read=read,
            scaling=attention.scaling,
            SLOTS=self._slots,
            SIZE=self._size,
            BLOCK=block,
            BLOCKS=blocks,
        )
        rows = _rows_of_program(self._width, SIZES["add_attention"].rows)
        self.start(
            "add_attention",
            (self._width // rows,),
            hidden=self._hidden,
            means=self._means,
            log_totals=self._log_totals,
            weight=attention.o_proj.weight,
            attended=self._attended,
            HEADS=self._heads,
            HEADS_BLOCK=power_of_two(1, self._heads),
            SIZE=self._size,
            PARTS=parts,
            ROWS=rows,
        )

    def _add_mlp(self, layer: Any) -> None:
        """A layer's dense MLP, or its experts: from the attended state to the next hidden one."""
        mlp = _MlpWeights.of(layer.mlp)
        rows = _rows_of_program(math.gcd(mlp.gated_rows, mlp.experts), SIZES["gate"].rows)
        self.start(
            "gate",
            ((mlp.gated_rows + mlp.experts) // rows,),
            attended=self._attended,
            norm_weight=layer.post_attention_layernorm.weight,
            gate_weight=mlp.dense.gate_proj.weight,
            up_weight=mlp.dense.up_proj.weight,
            router_weight=mlp.router,
            gated_values=self._gated_values,
            router_logits=self._router_logits,
            eps=self._eps,
            GATED=mlp.gated_rows,
            WIDTH=self._width,
            CHUNK=self._chunk,
            ROWS=rows,
        )
        if mlp.chosen:
            self._gate_experts(layer, mlp)
        rows = _rows_of_program(self._width, SIZES["add_experts"].rows)
        self.start(
            "add_experts",
            (self._width // rows,),
            attended=self._attended,
            gated_values=self._gated_values,
            weight=mlp.dense.down_proj.weight,
            expert_values=self._expert_values,
            expert_weight=mlp.expert_weight,
            chosen=self._chosen,
            chosen_weights=self._chosen_weights,
            hidden=self._hidden,
            GATED=mlp.gated_rows,
            EXPERT_GATED=mlp.expert_rows,
            CHOSEN=mlp.chosen,
            WIDTH=self._width,
            CHUNK=self._chunk,
            ROWS=rows,
        )

    def _gate_experts(self, layer: Any, mlp: _MlpWeights) -> None:
        """The first half of the chosen experts."""
        rows = _rows_of_program(mlp.expert_rows, SIZES["gate_experts"].rows)
        self.start(
            "gate_experts",
            (mlp.expert_rows // rows, mlp.chosen),
            attended=self._attended,
            norm_weight=layer.post_attention_layernorm.weight,
            router_logits=self._router_logits,
            weight=layer.mlp.experts.gate_up_proj,
            expert_values=self._expert_values,
            chosen=self._chosen,
            chosen_weights=self._chosen_weights,
            eps=self._eps,
            scaling=layer.mlp.gate.routed_scaling_factor,
            EXPERTS=mlp.experts,
            EXPERTS_BLOCK=power_of_two(1, mlp.experts),
            GATED=mlp.expert_rows,
            WIDTH=self._width,
            CHUNK=self._chunk,
            ROWS=rows,
        )

    def _score(self) -> None:
        """The final norm, and the head."""
        self.start(
            "score_words",
            (self._best_words.numel(),),
            hidden=self._hidden,
            norm_weight=self._language_model.norm.weight,
            weight=self._head.weight,
            logits=self.logits,
            best_logits=self._best_logits,
            best_words=self._best_words,
            part_sums=self._part_sums,
            eps=self._eps,
            WIDTH=self._width,
            CHUNK=self._chunk,
            ROWS=self._score_rows,
            ROUNDS=_ROUNDS,
        )

    def _close(self) -> None:
        """The choice of the next token, and the move to the next entry."""
        state = self.state
        parts = self._best_words.numel()
        self.start(
            "close_step",
            (1,),
            best_logits=self._best_logits,
            best_words=self._best_words,
            part_sums=self._part_sums,
            window_slots=state.window_slots,
            token=state.token,
            position=state.position,
            slot=state.slot,
            count=state.count,
            sums=state.sums,
            PARTS=parts,
            PARTS_BLOCK=power_of_two(1, parts),
            WINDOWED=bool(self._cache.layers[0].window),
        )


def _rows_of_program(count: int, most: int) -> int:
    """How many of ``count`` rows a program makes, so that each makes as many.

    ``most`` is a power of two, and so is this.
    """
    return math.gcd(count, most)
