"""What a forward costs: parameters, FLOPs and bytes of every stage, from a config and an input shape alone.

FLOPs are those of matrix products, convolutions and attention, two a multiply-add, as
``torch.utils.flop_counter.FlopCounterMode`` counts them (causal attention over all pairs of positions:
`masked_flops` are those of the pairs that its mask leaves out);
elementwise work is not counted. Bytes are the least that must move: each weight and each cache entry once.
``activation_bytes`` are the tensors that enter and leave each of the counted products, with everything
between them fused; they can stay on the chip, so a floor (`ocr_phases.analyse.floors`) leaves them out.

Formulas: a product of [n, a] and [a, b] takes 2nab FLOPs and attention of n queries over m keys of all heads'
width d takes 4nmd (Kaplan et al. 2020, arXiv:2001.08361, section 2.1); windows and relative positions of
SAM as in Li et al. 2022 (arXiv:2203.16527) and Kirillov et al. 2023 (arXiv:2304.02643); the experts as in
DeepSeekMoE (Dai et al. 2024, arXiv:2401.06066).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ocr_phases.analyse.architecture import Architecture, read_architecture
from ocr_phases.analyse.work import (
    VisionCall,
    Work,
    encoder_work,
    expected_experts,
    linear,
    norm,
    projector_work,
    sam_work,
    swiglu,
)
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.families import facts_of, windowed_length
from ocr_phases.record import PhaseRun

COST_COLUMNS = (
    "phase",
    "stage",
    "view",
    "part",
    "parameters",
    "flops",
    "weight_bytes",
    "activation_bytes",
    "kv_bytes",
)
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


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


def parameters(config: dict[str, Any]) -> pd.DataFrame:
    """One row a part: ``stage``, ``part`` and ``parameters`` (int64), as transformers' class holds them.

    The vendor's class holds 602,112 more in its CLIP, a patch embedding that it never uses. Raises
    `OcrPhasesError` for a config of no known family.
    """
    table = prefill_cost(config, prompt_len=1, views=[VisionCall("global", 1024)])
    return table[["stage", "part", "parameters"]]


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

    ``batch`` rows of ``prompt_len`` tokens each; ``views`` are those of the whole batch (`vision_calls`).
    ``dtype_bytes`` is the size of a weight and an activation. ``logits_for`` is ``last`` or ``all``
    positions. ``kv_bytes`` are written. Parameters of a stage that runs for two views stand in the first
    one's rows; its weights are read once for each view. Experts: `expected_experts`, over ``distinct_rows``
    of the batch (all by default), because equal rows choose equal experts. Raises `OcrPhasesError` for a
    shape or a config that cannot be.
    """
    _check(prompt_len=prompt_len, batch=batch, dtype_bytes=dtype_bytes)
    sizes = read_architecture(config)
    check_known("logits_for", logits_for, ("last", "all"))
    rows = []
    for number, call in enumerate(views):
        _check(side=call.side, images=call.images)
        stages = (
            ("sam", sam_work(sizes, call)),
            (sizes.encoder_stage, encoder_work(sizes, call)),
            ("projector", projector_work(sizes, call)),
        )
        for stage, parts in stages:
            for part, work in parts.items():
                held = 0 if number else work.parameters
                rows.append(_row("prefill", stage, call.view, part, work, dtype_bytes, held=held))
    learnt = Work(sizes.separators * sizes.text.hidden)
    rows.append(_row("prefill", "vision_fusion", "", "separators", learnt, dtype_bytes))
    rows += _language_rows(
        "prefill", sizes, prompt_len, prompt_len, batch, dtype_bytes, distinct_rows or batch
    )
    positions = prompt_len if logits_for == "all" else 1
    rows.append(_head_row("prefill", sizes, positions * batch, dtype_bytes))
    return _table(rows)


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
    rows = _language_rows("decode", sizes, 1, cache_len, batch, dtype_bytes, distinct_rows or batch)
    return _table([*rows, _head_row("decode", sizes, batch, dtype_bytes)])


def generation_flops(
    config: dict[str, Any],
    *,
    prompt_len: int,
    tokens: int,
    views: Iterable[VisionCall] = (),
    batch: int = 1,
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
    if not steps:
        return prefill
    growing = min(steps, read_architecture(config).window or steps)
    ends = [
        int(decode_cost(config, cache_len=prompt_len + step, batch=batch)["flops"].sum())
        for step in (1, growing)
    ]
    return prefill + growing * sum(ends) // 2 + (steps - growing) * ends[1]


def training_cost(
    config: dict[str, Any],
    *,
    prompt_len: int,
    views: Iterable[VisionCall] = (),
    batch: int = 1,
    dtype_bytes: int = 2,
) -> pd.DataFrame:
    """A forward with labels: the prefill with logits for every position, without a cache, and the loss.

    Columns `COST_COLUMNS`, phase ``training``. The loss is elementwise: per logit a maximum, a difference, an
    exponential and a sum make 4 FLOPs. Its activations are float32: the upcast logits, a shifted copy, as the
    vendor's class makes it, and the log-probabilities kept for the backward, which costs about two forwards
    more (Kaplan et al. 2020, section 2.1). Raises `OcrPhasesError` as `prefill_cost`.
    """
    table = prefill_cost(
        config, prompt_len=prompt_len, views=views, batch=batch, dtype_bytes=dtype_bytes, logits_for="all"
    )
    vocab = read_architecture(config).text.vocab
    predicted = batch * (prompt_len - 1) * vocab
    moved = 4 * (batch * prompt_len * vocab + 2 * predicted)
    loss = ("training", "loss", "", "cross_entropy", 0, 4 * predicted, 0, moved, 0)
    table = pd.concat([table, _table([loss])], ignore_index=True)
    return table.assign(phase="training", kv_bytes=0)


def logits_bytes(
    config: dict[str, Any], *, prompt_len: int, batch: int = 1, dtype_bytes: int = 4
) -> dict[str, int]:
    """Memory of the prefill's logits: for ``all`` positions and for the ``last`` alone, bytes.

    float32 by default, because the vendor's class makes float32 logits of all positions.
    """
    _check(prompt_len=prompt_len, batch=batch, dtype_bytes=dtype_bytes)
    position_bytes = batch * read_architecture(config).text.vocab * dtype_bytes
    return {"all": prompt_len * position_bytes, "last": position_bytes}


def masked_flops(config: dict[str, Any], *, prompt_len: int, batch: int = 1) -> int:
    """FLOPs of the prefill's language model on pairs of positions that the causal mask hides.

    Of T x T pairs T(T+1)/2 are seen, so T(T-1)/2 are not, at 4 FLOPs a channel of all heads and layer. They
    are in `prefill_cost`, and a causal kernel need not do them.
    """
    _check(prompt_len=prompt_len, batch=batch)
    text = read_architecture(config).text
    hidden_pairs = batch * prompt_len * (prompt_len - 1) // 2
    return 4 * hidden_pairs * text.heads * text.head_width * text.layers


def kv_bytes_per_token(config: dict[str, Any], *, batch: int = 1, dtype_bytes: int = 2) -> int:
    """Bytes one cached token takes over all layers, keys and values, for ``batch`` rows."""
    text = read_architecture(config).text
    return 2 * text.layers * text.kv_heads * text.head_width * batch * dtype_bytes


def run_cost(run: PhaseRun, cache_len: int | None = None) -> pd.DataFrame:
    """The cost of a record's prefill and one decode step, columns `COST_COLUMNS`.

    The step is the one in the middle of the run, or one that leaves ``cache_len`` tokens seen; without either
    there is none. The
    vendor's class makes logits of all positions in its prefill. Raises `OcrPhasesError` where the record's
    config, dtype or preset is unknown.
    """
    config, shape = run.model["config"], run_shape(run)
    views = vision_calls(run.request["preset"], [page["grid"] for page in run.pages], run.model.get("family"))
    logits_for = "all" if run.model.get("implementation") == "vendor" else "last"
    prefill = prefill_cost(config, views=views, logits_for=logits_for, **shape)
    lengths = run.cache.get("lengths") or []
    if cache_len is None and len(lengths) > 1:
        cache_len = int(lengths[1 + (len(lengths) - 1) // 2])
    if cache_len is None:
        return prefill
    del shape["prompt_len"]
    seen = windowed_length(cache_len, run.request["prefill_len"], run.cache.get("window"))
    step = decode_cost(config, cache_len=seen, **shape)
    return pd.concat([prefill, step], ignore_index=True)


def run_shape(run: PhaseRun) -> dict[str, int]:
    """``prompt_len``, ``batch``, ``distinct_rows`` and ``dtype_bytes`` of a record.

    Rows of one page, prompt and answer are equal. Raises `OcrPhasesError` for an unknown dtype.
    """
    dtype = str(run.model.get("dtype"))
    if dtype not in DTYPE_BYTES:
        raise OcrPhasesError(f"This record's dtype is {dtype!r}: cost is known for {', '.join(DTYPE_BYTES)}.")
    prompts = run.request.get("prompts") or [run.request.get("prompt")] * len(run.results)
    rows = set()
    for row, (prompt, result) in enumerate(zip(prompts, run.results, strict=True)):
        pages = tuple(page["sha256"] for page in run.pages if page.get("row", 0) == row)
        rows.add((pages, prompt, tuple(result["ids"])))
    return {
        "prompt_len": int(run.request["prefill_len"]),
        "batch": len(run.results),
        "distinct_rows": len(rows),
        "dtype_bytes": DTYPE_BYTES[dtype],
    }


def stage_cost(table: pd.DataFrame) -> pd.DataFrame:
    """A cost table added up by phase, stage and view, in its order."""
    return table.groupby(["phase", "stage", "view"], sort=False).sum(numeric_only=True).reset_index()


# -- rows -----------------------------------------------------------------------------------------------


def _language_rows(
    phase: str, sizes: Architecture, length: int, context: int, batch: int, dtype_bytes: int, distinct: int
) -> list[tuple]:
    """The language model's rows: ``length`` new tokens a row of the batch, attending to ``context`` entries.

    ``distinct`` rows of the batch choose experts of their own.
    """
    text = sizes.text
    tokens = batch * length
    heads, kv_heads = text.heads * text.head_width, text.kv_heads * text.head_width
    attend = (
        linear(tokens, text.hidden, heads + 2 * kv_heads, bias=False)
        + linear(tokens, heads, text.hidden, bias=False)
        + Work(0, 4 * tokens * context * heads, tokens * 2 * (heads + kv_heads))
    )
    expert = swiglu(1, text.hidden, text.expert_width)
    routed = expert * (tokens * text.top_k * text.sparse_layers)
    held = expert.parameters * text.experts * text.sparse_layers
    read = (
        expert.parameters * expected_experts(text.experts, text.top_k, distinct * length) * text.sparse_layers
    )
    shared = swiglu(tokens, text.hidden, text.expert_width * text.shared_experts)
    router = linear(tokens, text.hidden, text.experts, bias=False)
    embedding = Work(text.vocab * text.hidden, 0, tokens * text.hidden)
    kv_bytes = 2 * text.layers * kv_heads * batch * context * dtype_bytes

    def row(part: str, work: Work, **counts: float) -> tuple:
        return _row(phase, "language_model", "", part, work, dtype_bytes, **counts)

    return [
        row("embedding", embedding, read=tokens * text.hidden),
        row("attention", attend * text.layers, kv_bytes=kv_bytes),
        row("dense_mlp", swiglu(tokens, text.hidden, text.mlp_width) * text.dense_layers),
        row("router", router * text.sparse_layers),
        row("experts", routed, held=held, read=read),
        row("shared_experts", shared * text.sparse_layers),
        row("norms", norm(text.hidden, bias=False) * (2 * text.layers + 1)),
    ]


def _head_row(phase: str, sizes: Architecture, positions: int, dtype_bytes: int) -> tuple:
    head = linear(positions, sizes.text.hidden, sizes.text.vocab, bias=False)
    held = 0 if sizes.tied else head.parameters
    return _row(phase, "lm_head", "", "linear", head, dtype_bytes, held=held, read=head.parameters)


def _row(
    phase: str,
    stage: str,
    view: str,
    part: str,
    work: Work,
    dtype_bytes: int,
    *,
    held: float | None = None,
    read: float | None = None,
    kv_bytes: float = 0,
) -> tuple:
    """One row of `COST_COLUMNS`; ``held`` and ``read`` parameters are the work's own where not given."""
    held = work.parameters if held is None else held
    read = work.parameters if read is None else read
    return (
        phase,
        stage,
        view,
        part,
        held,
        work.flops,
        read * dtype_bytes,
        work.moved * dtype_bytes,
        kv_bytes,
    )


def _table(rows: Sequence[tuple]) -> pd.DataFrame:
    """Rows as a table; counts are int64, expectations of the experts' bytes rounded to whole bytes."""
    table = pd.DataFrame(rows, columns=list(COST_COLUMNS))
    counts = list(COST_COLUMNS[4:])
    table[counts] = table[counts].round().astype("int64")
    return table


def _check(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise OcrPhasesError(f"{name.replace('_', ' ')} is {value}: it must be at least 1.")
