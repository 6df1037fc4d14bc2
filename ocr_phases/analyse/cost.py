"""What a forward costs: parameters, FLOPs and bytes of every stage, from a config and an input shape alone.

FLOPs are those of matrix products, convolutions and attention, two a multiply-add, as
``torch.utils.flop_counter.FlopCounterMode`` counts them (causal attention over all pairs of positions:
`masked_flops` are those of the pairs that its mask leaves out);
elementwise work is not counted. Bytes are the least that must move: each weight and each cache entry once.

Formulas: a product of [n, a] and [a, b] takes 2nab FLOPs and attention of n queries over m keys of all heads'
width d takes 4nmd (Kaplan et al. 2020, arXiv:2001.08361, section 2.1); windows and relative positions of
SAM as in Li et al. 2022 (arXiv:2203.16527) and Kirillov et al. 2023 (arXiv:2304.02643); the experts as in
DeepSeekMoE (Dai et al. 2024, arXiv:2401.06066).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.architecture import Architecture, EncoderSizes, TextSizes, read_architecture
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.families import facts_of, windowed_length
from ocr_phases.record import PhaseRun

COST_COLUMNS = (*("phase", "stage", "view", "part"), *("parameters", "flops", "weight_bytes", "kv_bytes"))
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class VisionCall:
    """One call of the vision stack: ``images`` square images of ``side`` pixels."""

    view: str  # "global" or "local"
    side: int
    images: int = 1


def vision_calls(preset: str, grids: Sequence[Sequence[int]], family: str | None = None) -> list[VisionCall]:
    """The vision calls of pages in one preset of a family, which is DeepSeek-OCR by default.

    ``grids`` are each page's (columns, rows) of crops, (1, 1) for pages without crops. Raises
    `OcrPhasesError` for a preset it does not know.
    """
    named = facts_of(family).preset(preset)
    crops = sum(math.prod(grid) for grid in grids if tuple(grid) != (1, 1)) if named.crops else 0
    calls = [VisionCall("global", named.base_size, len(grids))]
    return calls + [VisionCall("local", named.image_size, crops)] if crops else calls


# -- tables ---------------------------------------------------------------------------------------------


def prefill_cost(
    config: dict[str, Any],
    *,
    prompt_len: int,
    views: Iterable[VisionCall] = (),
    batch: int = 1,
    dtype_bytes: int = 2,
    logits_for: str = "last",
    distinct_rows: int | None = None,
) -> pd.DataFrame:
    """The prefill's cost: one row a stage, view and part, columns `COST_COLUMNS`.

    ``parameters`` are those of transformers' class: the vendor's holds 602,112 more in its CLIP, a patch
    embedding that it never uses. ``batch`` rows of ``prompt_len`` tokens each; ``views`` are those of the
    whole batch (`vision_calls`). ``dtype_bytes`` is the size of a weight and an activation. ``logits_for`` is
    ``last`` or ``all`` positions. ``kv_bytes`` are written. Parameters of a stage that runs for two views
    stand in the first one's rows; its weights are read once for each view. Experts: `expected_experts`, over
    ``distinct_rows`` of the batch (all by default), because equal rows choose equal experts. Raises
    `OcrPhasesError` for a shape or a config that cannot be.
    """
    _check(prompt_len=prompt_len, batch=batch, dtype_bytes=dtype_bytes)
    check_known("logits_for", logits_for, ("last", "all"))
    sizes, stages = read_architecture(config), list[_Stage]()
    for number, call in enumerate(views):
        _check(side=call.side, images=call.images)
        for stage, parts in _vision_work(sizes, call).items():
            once = {part: work * _SHARED if number else work for part, work in parts.items()}
            stages.append(("prefill", stage, call.view, once))
    separators = learnt(sizes.separators * sizes.text.hidden)
    positions = batch * (prompt_len if logits_for == "all" else 1)
    language = _language_work(sizes.text, batch, prompt_len, prompt_len, distinct_rows or batch)
    stages.append(("prefill", "vision_fusion", "", {"separators": separators}))
    stages.append(("prefill", "language_model", "", language))
    stages.append(("prefill", "lm_head", "", _head_work(sizes, positions)))
    return _table(stages, dtype_bytes)


def decode_cost(
    config: dict[str, Any],
    *,
    cache_len: int,
    batch: int = 1,
    dtype_bytes: int = 2,
    distinct_rows: int | None = None,
) -> pd.DataFrame:
    """One decode step's cost: one row a part, columns `COST_COLUMNS`.

    ``batch`` rows make a token each, which attends to ``cache_len`` entries, its own among them (the length
    that the step leaves). ``kv_bytes`` are read, the new entry written. Experts: `expected_experts`, over
    ``distinct_rows`` as in `prefill_cost`; with one row that is exactly ``top_k`` a layer. Raises
    `OcrPhasesError` as `prefill_cost`.
    """
    _check(cache_len=cache_len, batch=batch, dtype_bytes=dtype_bytes)
    sizes = read_architecture(config)
    language = _language_work(sizes.text, batch, 1, cache_len, distinct_rows or batch)
    head = _head_work(sizes, batch)
    return _table([("decode", "language_model", "", language), ("decode", "lm_head", "", head)], dtype_bytes)


def generation_flops(
    config: dict[str, Any], *, prompt_len: int, tokens: int, views: Iterable[VisionCall] = (), batch: int = 1
) -> int:
    """FLOPs of a whole generation: the prefill and the ``tokens`` - 1 decode steps after it.

    ``batch`` rows of ``prompt_len`` tokens generate ``tokens`` each, the prefill's counted; ``views`` are
    those of the whole batch (`vision_calls`). The logits are those of the last position. The steps leave
    caches of ``prompt_len`` + 1 to ``prompt_len + tokens - 1`` entries, and attention is linear in that
    length, so they cost as many steps at the mean of the two ends; those of a full window cost the same.
    Raises `OcrPhasesError` as `prefill_cost`.
    """
    _check(tokens=tokens)
    prefill = int(prefill_cost(config, prompt_len=prompt_len, views=views, batch=batch)["flops"].sum())
    steps = tokens - 1
    growing = min(steps, read_architecture(config).window or steps)
    first, last = (
        int(decode_cost(config, cache_len=prompt_len + step, batch=batch)["flops"].sum())
        for step in (1, max(1, growing))
    )
    return prefill + growing * (first + last) // 2 + (steps - growing) * last


def masked_flops(config: dict[str, Any], *, prompt_len: int, batch: int = 1) -> int:
    """FLOPs of the prefill's language model on pairs of positions that the causal mask hides.

    Of T x T pairs T(T+1)/2 are seen, so T(T-1)/2 are not, at 4 FLOPs a channel of all heads and layer. They
    are in `prefill_cost`, and a causal kernel need not do them.
    """
    _check(prompt_len=prompt_len, batch=batch)
    text = read_architecture(config).text
    hidden_pairs = batch * prompt_len * (prompt_len - 1) // 2
    return 4 * hidden_pairs * text.hidden * text.layers


def run_cost(run: PhaseRun) -> pd.DataFrame:
    """The cost of a record's prefill and of the decode step in the middle of the run, columns `COST_COLUMNS`.

    Without a step there is none. The vendor's class makes logits of all positions in its prefill. Raises
    `OcrPhasesError` where the record's config, dtype or preset is unknown.
    """
    config, shape, length = run.model["config"], run_shape(run), run.request["prefill_len"]
    views = vision_calls(run.request["preset"], [page["grid"] for page in run.pages], run.model.get("family"))
    logits_for = "all" if run.model.get("implementation") == "vendor" else "last"
    prefill = prefill_cost(config, prompt_len=length, views=views, logits_for=logits_for, **shape)
    lengths = run.cache.get("lengths") or []
    if len(lengths) < 2:
        return prefill
    middle = lengths[1 + (len(lengths) - 1) // 2]
    seen = windowed_length(middle, length, run.cache.get("window"))
    return pd.concat([prefill, decode_cost(config, cache_len=seen, **shape)], ignore_index=True)


def run_shape(run: PhaseRun) -> dict[str, int]:
    """``batch``, ``distinct_rows`` and ``dtype_bytes`` of a record.

    Rows of one page, prompt and answer are equal. Raises `OcrPhasesError` for an unknown dtype.
    """
    check_known("dtype", run.model["dtype"], DTYPE_BYTES)
    rows = zip(run.request["prompts"], run.results, strict=True)
    distinct = {
        (prompt, *result["ids"], *(page["sha256"] for page in run.pages if page["row"] == row))
        for row, (prompt, result) in enumerate(rows)
    }
    return {
        "batch": len(run.results),
        "distinct_rows": len(distinct),
        "dtype_bytes": DTYPE_BYTES[run.model["dtype"]],
    }


def stage_cost(table: pd.DataFrame) -> pd.DataFrame:
    """A cost table added up by phase, stage and view, in its order; ``bytes`` are all that move."""
    added = table.groupby(["phase", "stage", "view"], sort=False).sum(numeric_only=True).reset_index()
    return added.assign(bytes=added["weight_bytes"] + added["kv_bytes"])


# -- work ---------------------------------------------------------------------------------------------


Work = np.ndarray
"""Parameters held, FLOPs done, parameters read and cached numbers moved: float64 [4], exact below 2^53."""
_Stage = tuple[str, str, str, dict[str, Work]]
"""Phase, stage, view, and the work of its parts."""
_SHARED = np.array([0.0, 1.0, 1.0, 1.0])
"""What is left of work whose parameters another row holds."""


def learnt(count: float) -> Work:
    """Parameters that are read for elementwise work, so without FLOPs."""
    return np.array([count, 0.0, count, 0.0])


def weightless(*, flops: float = 0, cached: float = 0) -> Work:
    """Work without parameters."""
    return np.array([0.0, flops, 0.0, cached])


def linear(tokens: float, width: int, out: int, *, bias: bool = True) -> Work:
    """[tokens, width] times [width, out]: 2 tokens width out FLOPs.

    A square convolution is one, of as many tokens as places that it makes and kernel^2 times the width.
    """
    return learnt(width * out + (out if bias else 0)) + weightless(flops=2 * tokens * width * out)


def attention(queries: float, keys: float, width: int) -> Work:
    """Scores and their sums over the values, all heads ``width`` wide: 4 queries keys width FLOPs."""
    return weightless(flops=4 * queries * keys * width)


def mlp(tokens: float, width: int, hidden: int) -> Work:
    """Up and down: two products."""
    return linear(tokens, width, hidden) + linear(tokens, hidden, width)


def swiglu(tokens: float, width: int, hidden: int) -> Work:
    """Gate, up and down: three products, 6 tokens width hidden FLOPs (Shazeer 2020, arXiv:2002.05202)."""
    return linear(tokens, width, 3 * hidden, bias=False)


def expected_experts(experts: int, top_k: int, tokens: float) -> float:
    """How many distinct experts ``tokens`` tokens reach in one layer, expected under uniform routing.

    Each token picks ``top_k`` different ones of ``experts``, so an expert is missed by all of them with
    probability (1 - top_k / experts)^tokens. Real routing is skewed, so it reaches fewer.
    """
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


def _sam_work(sizes: Architecture, call: VisionCall) -> dict[str, Work]:
    """SAM ViT-B over square images: windows are padded to whole ones, as the model pads them."""
    sam, grid = sizes.sam, sizes.sam.grid(call.side)
    places = call.images * grid * grid
    windows = call.images * math.ceil(grid / sam.window) ** 2
    trained = sam.image_size // sam.patch
    windowed = _sam_attention(sizes, windows, sam.window, sam.window) * (sam.layers - len(sam.global_layers))
    everywhere = _sam_attention(sizes, call.images, grid, trained) * len(sam.global_layers)
    half, quarter = (call.images * math.ceil(grid / step) ** 2 for step in (2, 4))
    first, second = sam.downsample_widths
    return {
        "patches": linear(places, 3 * sam.patch**2, sam.width) + learnt(trained * trained * sam.width),
        "attention": windowed + everywhere,
        "mlp": mlp(places, sam.width, sam.mlp_width) * sam.layers,
        "norms": learnt(4 * sam.layers * sam.width + 4 * sam.neck_width),
        "neck": linear(places, sam.width + 9 * sam.neck_width, sam.neck_width, bias=False),
        "downsample": linear(half, 9 * sam.neck_width, first, bias=False)
        + linear(quarter, 9 * first, second, bias=False),
    }


def _sam_attention(sizes: Architecture, squares: int, side: int, trained_side: int) -> Work:
    """One layer over ``squares`` of side x side tokens, with relative positions along both axes.

    A position's bias is the query times the learnt vector of the distance, once an axis: 2 x 2 side FLOPs a
    channel and token.
    """
    sam, tokens = sizes.sam, squares * side * side
    positions = learnt(2 * (2 * trained_side - 1) * (sam.width // sam.heads))
    positions += weightless(flops=2 * 2 * tokens * sam.width * side)
    return linear(tokens, sam.width, 4 * sam.width) + attention(tokens, side * side, sam.width) + positions


def _vision_work(sizes: Architecture, call: VisionCall) -> dict[str, dict[str, Work]]:
    """The vision stages, the second encoder by the kind that the model has."""
    places = sizes.vision_tokens(call.side) ** 2
    encoded = _clip_work if sizes.encoder_stage == "clip" else _query_work
    return {
        "sam": _sam_work(sizes, call),
        sizes.encoder_stage: encoded(sizes.encoder, call.images, places),
        "projector": {"linear": linear(call.images * places, sizes.features, sizes.text.hidden)},
    }


def _clip_work(clip: EncoderSizes, images: int, places: int) -> dict[str, Work]:
    """CLIP ViT-L over SAM's features and a class token, global attention."""
    tokens, width = images * (places + 1), clip.width
    attend = linear(tokens, width, 4 * width) + attention(tokens, places + 1, width)
    return {
        # The class token, and a position for it and every patch.
        "embeddings": learnt(((clip.image_size // clip.patch_size) ** 2 + 2) * width),
        "attention": attend * clip.layers,
        "mlp": mlp(tokens, width, clip.mlp_width) * clip.layers,
        "norms": learnt(2 * width * (2 * clip.layers + 1)),
    }


def _query_work(body: EncoderSizes, images: int, places: int) -> dict[str, Work]:
    """A Qwen2 body over SAM's features and as many queries; its mask leaves out no product of a kernel."""
    tokens, width = images * 2 * places, body.width
    keys = width // body.heads * body.kv_heads
    attend = linear(tokens, width, width + 2 * keys) + linear(tokens, width, width, bias=False)
    return {
        "queries": learnt(body.queries * width),
        "attention": (attend + attention(tokens, 2 * places, width)) * body.layers,
        "mlp": swiglu(tokens, width, body.mlp_width) * body.layers,
        "norms": learnt(width * (2 * body.layers + 1)),
    }


def _language_work(text: TextSizes, batch: int, length: int, context: int, distinct: int) -> dict[str, Work]:
    """The language model over ``length`` new tokens a row of the batch, attending to ``context`` entries.

    ``distinct`` rows of the batch choose experts of their own.
    """
    tokens, width = batch * length, text.hidden
    attend = linear(tokens, width, width + 2 * text.kv_width, bias=False)
    attend += linear(tokens, width, width, bias=False) + attention(tokens, context, width)
    attend += weightless(cached=2 * text.kv_width * batch * context)
    reached = expected_experts(text.experts, text.top_k, distinct * length)
    routed = swiglu(1, width, text.expert_width) * [text.experts, tokens * text.top_k, reached, 0]
    shared = swiglu(tokens, width, text.expert_width * text.shared_experts)
    return {
        "embedding": np.array([text.vocab * width, 0.0, tokens * width, 0.0]),
        "attention": attend * text.layers,
        "dense_mlp": swiglu(tokens, width, text.mlp_width) * text.dense_layers,
        "router": linear(tokens, width, text.experts, bias=False) * text.sparse_layers,
        "experts": routed * text.sparse_layers,
        "shared_experts": shared * text.sparse_layers,
        "norms": learnt(width * (2 * text.layers + 1)),
    }


def _head_work(sizes: Architecture, positions: int) -> dict[str, Work]:
    head = linear(positions, sizes.text.hidden, sizes.text.vocab, bias=False)
    return {"linear": head * _SHARED if sizes.tied else head}


def _table(stages: Iterable[_Stage], dtype_bytes: int) -> pd.DataFrame:
    """A row a part; counts are int64, expectations of the experts' bytes rounded to whole bytes."""
    size = [1, 1, dtype_bytes, dtype_bytes]
    rows = [(*place, part, *work * size) for *place, parts in stages for part, work in parts.items()]
    counts = dict.fromkeys(COST_COLUMNS[4:], "int64")
    return pd.DataFrame(rows, columns=list(COST_COLUMNS)).round().astype(counts)


def _check(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise OcrPhasesError(f"{name.replace('_', ' ')} is {value}: it must be at least 1.")
