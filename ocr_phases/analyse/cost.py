"""What a forward costs: parameters, FLOPs and bytes of every stage, from a config and an input
shape alone.

FLOPs are those of matrix products, convolutions and attention, two a multiply-add, as
``torch.utils.flop_counter.FlopCounterMode`` counts them (causal attention over all pairs of
positions: `masked_flops` are those of the pairs that its mask leaves out); elementwise work is not
counted. Bytes are the least that must move: each weight and each cache entry once.

Formulas: a product of [n, a] and [a, b] takes 2nab FLOPs and attention of n queries over m keys of
all heads' width d takes 4nmd (Kaplan et al. 2020, arXiv:2001.08361, section 2.1); windows and
relative positions of SAM as in Li et al. 2022 (arXiv:2203.16527) and Kirillov et al. 2023
(arXiv:2304.02643); the experts as in DeepSeekMoE (Dai et al. 2024, arXiv:2401.06066).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace as Sizes
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd

from ocr_phases.analyse.stages import attended
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.families import DEEPSEEK_OCR, ViewSizes, facts_of, windowed_length
from ocr_phases.families.config import read_model_config
from ocr_phases.record import Record, RecordType
from ocr_phases.record.parts import EnergyPart
from ocr_phases.settings import RunSettings

COST_COLUMNS = (
    "phase",
    "stage",
    "view",
    "part",
    "parameters",
    "flops",
    "weight_bytes",
    "kv_bytes",
)
TENSOR_COLUMNS = ("tensor", "shape", "item_bytes", "bytes")
MEMORY_COLUMNS = ("phase", "weight_bytes", "kv_bytes", "activation_bytes", "peak_bytes")
#: How many workspaces cuBLAS keeps at most, by strategy: one of the stream, and one of each graph
#: of the prefill and of decode steps.
_WORKSPACES = {"eager": 1, "compiled": 3, "cuda_graph": 7}
_WORKSPACE_BYTES = 2**25
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Architecture(NamedTuple):
    """The sizes of a model, by the names that transformers' ``config.json`` gives them
    (`ocr_phases.families.config`).

    ``sam`` and ``encoder`` are the vision encoders, the second of the stage ``encoder_stage``:
    ``clip``, or ``encoder`` for the Qwen2 body. ``tied`` says that the head uses the embedding's
    weights.
    """

    text: Sizes
    sam: Sizes
    encoder: Sizes
    encoder_stage: str
    tied: bool


def read_architecture(config: dict[str, Any]) -> Architecture:
    """The sizes in a checkpoint's ``config.json``, or in a record's ``model["config"]``.

    Raises `OcrPhasesError` for a config of another model, or one that misses a size.
    """
    try:
        model = read_model_config(config)
    except OcrPhasesError as error:
        raise OcrPhasesError(f"No cost is known for this model ({error}).") from error
    vision = model.saved["vision_config"]
    sam_defaults = {"image_size": 1024, "patch_size": 16, "window_size": 14}
    return Architecture(
        text=Sizes(**{"num_key_value_heads": None, **model.saved["text_config"]}),
        sam=Sizes(**{**sam_defaults, **vision["sam_config"]}),
        encoder=Sizes(**vision["encoder_config"]),
        encoder_stage=model.family.second_encoder,
        tied=model.saved.get("tie_word_embeddings", False),
    )


class VisionCall(NamedTuple):
    """One call of the vision stack: ``images`` square images of ``side`` pixels."""

    view: str  # "global" or "local"
    side: int
    images: int = 1


def vision_calls(
    preset: str,
    grids: Sequence[Sequence[int]],
    family: str | None = DEEPSEEK_OCR,
    sizes: ViewSizes | None = None,
) -> list[VisionCall]:
    """The vision calls of pages in one preset of a family, which is DeepSeek-OCR by default.

    ``grids`` are each page's (columns, rows) of crops, (1, 1) for pages without crops; ``sizes``
    replace the preset's own. Raises `OcrPhasesError` for a preset or sizes that the family does
    not have.
    """
    facts = facts_of(family)
    if facts.is_unknown:
        raise OcrPhasesError(f"How {facts.title} cuts a page is unknown.")
    cutting = facts.preset(preset, sizes)
    calls = [VisionCall("global", cutting.base_size, len(grids))]
    crops = sum(math.prod(grid) for grid in grids if tuple(grid) != (1, 1))
    if cutting.crops and crops:
        calls.append(VisionCall("local", cutting.image_size, crops))
    return calls


# -- tables ----------------------------------------------------------------------------------------


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

    ``parameters`` are those of transformers' class: the vendor's holds 602,112 more in its CLIP, a
    patch embedding that it never uses. ``batch`` rows of ``prompt_len`` tokens each; ``views`` are
    those of the whole batch (`vision_calls`). ``dtype_bytes`` is the size of a weight and an
    activation. ``logits_for`` is ``last`` or ``all`` positions. ``kv_bytes`` are written.
    Parameters of a stage that runs for two views stand in the first one's rows; its weights are
    read once for each view. Experts: `expected_experts`, over ``distinct_rows`` of the batch (all
    by default), because equal rows choose equal experts. Raises `OcrPhasesError` for a shape or a
    config that cannot be.
    """
    _check(prompt_len=prompt_len, batch=batch, dtype_bytes=dtype_bytes)
    check_known("logits_for", logits_for, ("last", "all"))
    sizes = read_architecture(config)
    stages: list[_StageWork] = []
    for number, call in enumerate(views):
        for stage, parts in _vision_work(sizes, call).items():
            if number > 0:  # the parameters stand in the rows of the first view
                parts = {part: work * _SHARED for part, work in parts.items()}
            stages.append(_StageWork("prefill", stage, call.view, parts))
    # The separator of views, and the line break that CLIP's rows have.
    separators = 2 if sizes.encoder_stage == "clip" else 1
    fusion = {"separators": costs(learnt=separators * sizes.text.hidden_size)}
    language = _language_work(sizes.text, batch, prompt_len, prompt_len, distinct_rows or batch)
    positions = batch * prompt_len if logits_for == "all" else batch
    stages.append(_StageWork("prefill", "vision_fusion", "", fusion))
    stages.append(_StageWork("prefill", "language_model", "", language))
    stages.append(_StageWork("prefill", "lm_head", "", _head_work(sizes, positions)))
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

    ``batch`` rows make a token each, which attends to ``cache_len`` entries, its own among them
    (the length that the step leaves). ``kv_bytes`` are read, the new entry written. Experts:
    `expected_experts`, over ``distinct_rows`` as in `prefill_cost`; with one row that is exactly
    ``top_k`` a layer. Raises `OcrPhasesError` as `prefill_cost`.
    """
    _check(cache_len=cache_len, batch=batch, dtype_bytes=dtype_bytes)
    sizes = read_architecture(config)
    language = _language_work(sizes.text, batch, 1, cache_len, distinct_rows or batch)
    stages = [
        _StageWork("decode", "language_model", "", language),
        _StageWork("decode", "lm_head", "", _head_work(sizes, batch)),
    ]
    return _table(stages, dtype_bytes)


def generation_cost(
    config: dict[str, Any],
    *,
    prompt_len: int,
    new_tokens: int,
    views: Iterable[VisionCall] = (),
    batch: int = 1,
    dtype_bytes: int = 2,
    window: int | None = None,
) -> pd.DataFrame:
    """What a whole generation costs: the prefill, and ``new_tokens - 1`` decode steps.

    The prefill gives the first token, so there is a step less than there are tokens. The FLOPs of
    a step grow by the same with each entry of the cache, so that N steps cost N times their mean.

    Parameters
    ----------
    config : dict
        The model's ``config.json``.
    prompt_len, views, batch, dtype_bytes
        As `prefill_cost` takes them.
    new_tokens : int
        How many tokens each row makes.
    window : int, optional
        How many generated tokens a step sees; by default all.

    Returns
    -------
    DataFrame
        Rows ``prefill``, ``decode`` and ``all``, columns ``phase``, ``steps``, ``flops`` and
        ``bytes``: FLOPs and the weights and cache entries that are read or written.

    Raises
    ------
    OcrPhasesError
        For a shape or a config that cannot be.
    """
    _check(new_tokens=new_tokens)
    prefill = prefill_cost(
        config, prompt_len=prompt_len, views=views, batch=batch, dtype_bytes=dtype_bytes
    )
    sums = ["flops", "weight_bytes", "kv_bytes"]
    shape = {"batch": batch, "dtype_bytes": dtype_bytes}
    with_one = decode_cost(config, cache_len=1, **shape)[sums].sum()
    with_two = decode_cost(config, cache_len=2, **shape)[sums].sum()
    steps = new_tokens - 1
    lengths = [
        windowed_length(prompt_len + step, prompt_len, window) for step in range(1, new_tokens)
    ]
    decode = with_one * steps + (with_two - with_one) * (sum(lengths) - steps)
    rows = []
    for phase, count, cost in (("prefill", 1, prefill[sums].sum()), ("decode", steps, decode)):
        moved = int(cost["weight_bytes"] + cost["kv_bytes"])
        rows.append({"phase": phase, "steps": count, "flops": int(cost["flops"]), "bytes": moved})
    table = pd.DataFrame(rows)
    total = table[["steps", "flops", "bytes"]].sum()
    return pd.concat([table, pd.DataFrame([{"phase": "all", **total}])], ignore_index=True)


def training_cost(
    config: dict[str, Any],
    *,
    prompt_len: int,
    views: Iterable[VisionCall] = (),
    batch: int = 1,
) -> pd.DataFrame:
    """The FLOPs of one step of training with labels: forward, loss and backward.

    The forward makes the logits of all positions. The loss takes 4 FLOPs a logit that has a next
    token: a maximum, a difference, an exponential and a sum. The backward does each product twice,
    for the gradient of its weights and for that of its input (Kaplan et al. 2020, section 2.1);
    only the pixels need no gradient, so SAM's first product is done once. Gradient checkpointing
    would add another forward.

    Parameters
    ----------
    config : dict
        The model's ``config.json``.
    prompt_len, views, batch
        As `prefill_cost` takes them.

    Returns
    -------
    DataFrame
        Columns ``part`` and ``flops``: the stages of the forward, then ``loss``, ``backward`` and
        ``all``.

    Raises
    ------
    OcrPhasesError
        For a shape or a config that cannot be.
    """
    forward = prefill_cost(
        config, prompt_len=prompt_len, views=views, batch=batch, logits_for="all"
    )
    stages = forward.groupby("stage", sort=False)["flops"].sum()
    of_pixels = int(forward.loc[forward["part"] == "patches", "flops"].sum())
    vocabulary = read_architecture(config).text.vocab_size
    rows = [(stage, int(flops)) for stage, flops in stages.items() if flops > 0]
    rows.append(("loss", 4 * batch * (prompt_len - 1) * vocabulary))
    rows.append(("backward", 2 * int(stages.sum()) - of_pixels))
    rows.append(("all", sum(flops for _, flops in rows)))
    return pd.DataFrame(rows, columns=["part", "flops"])


def training_memory(
    config: dict[str, Any],
    *,
    prompt_len: int,
    views: Iterable[VisionCall] = (),
    batch: int = 1,
    dtype_bytes: int = 2,
    optimizer_numbers: int = 2,
) -> pd.DataFrame:
    """What a step of training holds for certain, in bytes: columns ``part`` and ``bytes``.

    Weights and gradients, the optimizer's states (``optimizer_numbers`` for each parameter, in the
    dtype of the weights: Adam has two, SGD without momentum none), and the logits of all positions:
    as the head makes them, in float32 for the loss, and the logarithms of their probabilities. The
    activations that the backward needs come on top: ``python -m benchmarks.training_peak`` measures
    the peak with them. ``prompt_len``, ``views``, ``batch`` and ``dtype_bytes`` are as in
    `prefill_cost`.
    """
    _check(prompt_len=prompt_len, batch=batch, dtype_bytes=dtype_bytes)
    parameters = int(prefill_cost(config, prompt_len=1, views=views)["parameters"].sum())
    logits = batch * prompt_len * read_architecture(config).text.vocab_size
    rows = [
        ("weights", parameters * dtype_bytes),
        ("gradients", parameters * dtype_bytes),
        ("optimizer", parameters * dtype_bytes * optimizer_numbers),
        ("logits", logits * dtype_bytes),
        ("float32 logits", logits * 4),
        ("log probabilities", logits * 4),
    ]
    rows.append(("all", sum(count for _, count in rows)))
    return pd.DataFrame(rows, columns=["part", "bytes"])


def tensor_sizes(
    config: dict[str, Any],
    *,
    prompt_len: int,
    new_tokens: int = 1,
    views: Iterable[VisionCall] = (),
    batch: int = 1,
    dtype_bytes: int = 2,
) -> pd.DataFrame:
    """The tensors between the parts of a generation: a row each, columns `TENSOR_COLUMNS`.

    Pixels of the views, ids and masks of the prompt, the language model's hidden states, the
    logits of the last position (what a prefill makes here) and of all (what training and the
    published class make), the KV cache at the last token, and the ids at the end. ``shape`` is a
    tuple, ``dtype_bytes`` the size of a number of the model's dtype. The arguments are as in
    `generation_cost`.
    """
    _check(prompt_len=prompt_len, new_tokens=new_tokens, batch=batch, dtype_bytes=dtype_bytes)
    text = read_architecture(config).text
    heads = text.num_key_value_heads or text.num_attention_heads
    head_width = text.hidden_size // text.num_attention_heads
    cached_tokens = prompt_len + new_tokens - 1
    rows: list[tuple[str, tuple[int, ...], int]] = []
    for call in views:
        name = "crops" if call.view == "local" else "global views"
        rows.append((name, (call.images, 3, call.side, call.side), dtype_bytes))
    rows += [
        ("input ids", (batch, prompt_len), 8),
        ("attention mask", (batch, prompt_len), 8),
        ("image mask", (batch, prompt_len), 1),
        ("hidden states", (batch, prompt_len, text.hidden_size), dtype_bytes),
        ("logits of the last position", (batch, 1, text.vocab_size), dtype_bytes),
        ("logits of all positions", (batch, prompt_len, text.vocab_size), dtype_bytes),
        ("the same in float32", (batch, prompt_len, text.vocab_size), 4),
        (
            "KV cache at the last token",
            (2 * text.num_hidden_layers, batch, heads, cached_tokens, head_width),
            dtype_bytes,
        ),
        ("output ids", (batch, prompt_len + new_tokens), 8),
    ]
    table = pd.DataFrame(rows, columns=["tensor", "shape", "item_bytes"])
    table["bytes"] = [math.prod(shape) * size for _, shape, size in rows]
    return table[list(TENSOR_COLUMNS)]


def masked_flops(config: dict[str, Any], *, prompt_len: int, batch: int = 1) -> int:
    """FLOPs of the prefill's language model on pairs of positions that the causal mask hides.

    Of T x T pairs T(T+1)/2 are seen, so T(T-1)/2 are not, at 4 FLOPs a channel of all heads and
    layer. They are in `prefill_cost`, and a causal kernel need not do them.
    """
    _check(prompt_len=prompt_len, batch=batch)
    text = read_architecture(config).text
    hidden_pairs = batch * prompt_len * (prompt_len - 1) // 2
    return 4 * hidden_pairs * text.hidden_size * text.num_hidden_layers


def run_cost(run: Record) -> pd.DataFrame:
    """The cost of a record's prefill and of the decode step in the middle of the run, columns
    `COST_COLUMNS`.

    Without a step there is none, and of a prompt without an image there is no vision. The vendor's
    class makes logits of all positions in its prefill. Raises `OcrPhasesError` where the record's
    config, dtype, preset or length of the prompt is unknown.
    """
    prompt_tokens = run.request.prefill_len
    if prompt_tokens is None:
        raise OcrPhasesError("The server did not tell how long the prompt is.")
    shape = run_shape(run)
    views: list[VisionCall] = []
    if run.has_page:
        views = vision_calls(
            run.request.preset,
            [page.grid for page in run.pages],
            run.model.family,
            ViewSizes.from_settings(run.request),
        )
    prefill = prefill_cost(
        run.model.config,
        prompt_len=prompt_tokens,
        views=views,
        logits_for="all" if run.model.implementation == "vendor" else "last",
        **shape,
    )
    if not run.has_page:  # and so no vectors of one that are put between those of the text
        prefill = prefill[prefill["stage"] != "vision_fusion"].reset_index(drop=True)
    lengths = run.cache.lengths or []
    steps = len(lengths) - 1  # the first length is the one that the prefill leaves
    if steps < 1:
        return prefill
    middle_length = lengths[1 + steps // 2]
    seen = int(attended(run, np.array(middle_length)))
    decode = decode_cost(run.model.config, cache_len=seen, **shape)
    return pd.concat([prefill, decode], ignore_index=True)


def run_shape(run: Record) -> dict[str, int]:
    """``batch``, ``distinct_rows`` and ``dtype_bytes`` of a record.

    Rows of one page, prompt and answer are equal. Raises `OcrPhasesError` for an unknown dtype.
    """
    check_known("dtype", run.model.dtype, DTYPE_BYTES)
    distinct = set()
    for row, (prompt, result) in enumerate(zip(run.request.prompts, run.results, strict=True)):
        pages = [page.sha256 for page in run.pages if page.row == row]
        distinct.add((prompt, *result.ids, *pages))
    return {
        "batch": len(run.results),
        "distinct_rows": len(distinct),
        "dtype_bytes": DTYPE_BYTES[run.model.dtype],
    }


def hours_per_1000_pages(page_ms: Any) -> Any:
    """How long 1,000 pages of ``page_ms`` each take, one after another."""
    return page_ms / 3600.0


def energy_of(run: Record) -> EnergyPart | None:
    """What a meter said of the record's energy; None where none was asked."""
    conditions = run.device.conditions
    return None if conditions is None else conditions.energy


def page_cost(run: Record, page_ms: float) -> dict[str, float | None]:
    """What pages cost where they are read as here, one measurement after another; ``page_ms`` is
    this one's.

    ``pages_per_hour``; ``energy_j`` of a repeat, ``thousand_tokens_j`` for 1,000 tokens of its
    rows, ``wh_per_1000_pages``, and ``idle_energy_share``, the part of the energy that the idle
    device takes in the same time, None without a meter; and ``price_per_1000_pages`` by the
    request's ``price_per_hour``, None without one. Loading the model and what is between two pages
    are not in it. Of a prompt without an image the figures of pages are None.
    """
    pages = len(run.pages)
    price_per_hour = run.request.price_per_hour
    figures: dict[str, float | None] = {
        "energy_j": None,
        "pages_per_hour": None,
        "price_per_1000_pages": None,
        "wh_per_1000_pages": None,
        "thousand_tokens_j": None,
        "idle_energy_share": None,
    }
    if run.has_page:
        hours = hours_per_1000_pages(page_ms / pages)
        figures["pages_per_hour"] = 1000.0 / hours
        if price_per_hour is not None:
            figures["price_per_1000_pages"] = price_per_hour * hours
    energy = energy_of(run)
    if energy is None or energy.run_joules is None:
        return figures
    joules = energy.run_joules
    figures["energy_j"] = joules
    if run.has_page:
        figures["wh_per_1000_pages"] = joules / pages / 3.6
    tokens = sum(len(row.ids) for row in run.results)
    if tokens > 0:
        figures["thousand_tokens_j"] = joules / tokens * 1000
    if joules > 0 and energy.idle_w is not None and energy.seconds is not None:
        figures["idle_energy_share"] = energy.idle_w * energy.seconds / len(run.repeats) / joules
    return figures


def priced(run: RecordType, price_per_hour: float | None) -> RecordType:
    """The same record at another price of an hour, for None at its own; `OcrPhasesError` for no
    price.
    """
    price = RunSettings(price_per_hour=price_per_hour).price_per_hour
    if price is None:
        return run
    return replace(run, request=msgspec.structs.replace(run.request, price_per_hour=price))


def memory_need(
    config: dict[str, Any],
    views: Sequence[VisionCall],
    how: Mapping[str, Any],
    *,
    cache_len: int,
    **shape: int,
) -> pd.DataFrame:
    """What a device must hold at once, a row a phase, columns `MEMORY_COLUMNS`, in bytes.

    ``how`` has ``attention``, ``strategy`` and ``vision`` as `Settings` have them; ``cache_len``
    are the entries of the KV cache at its end, or those that a static one has from the start;
    ``views`` and ``shape`` (``batch``, ``dtype_bytes``) are as in `prefill_cost`.

    The prefill's activations are largest in a layer of SAM with global attention: of each image its
    pixels, eight times its hidden states (the layer's input and norm; query, key and value, also as
    they leave their product), and for each head and pair of places the decomposed position bias (Li
    et al. 2022, arXiv:2203.16527): as it is added up and again contiguous for SDPA, once where that
    is compiled. Eager attention has scores, bias, and before and after the softmax both in float32.
    A decode step gathers the experts of each row. cuBLAS keeps a workspace of 32 MiB a stream and
    captured graph.
    """
    sizes = read_architecture(config)
    dtype_bytes = shape["dtype_bytes"]
    score_copies = _score_copies(how, dtype_bytes)
    largest_layer = 0
    for call in views:
        places = (call.side // sizes.sam.patch_size) ** 2
        scores = score_copies * sizes.sam.num_attention_heads * places**2
        states = 8 * places * sizes.sam.hidden_size
        largest_layer = max(largest_layer, call.images * (scores + states) * dtype_bytes)
    pixels = sum(3 * call.images * call.side**2 for call in views) * dtype_bytes
    workspaces = _WORKSPACES[how["strategy"]] * _WORKSPACE_BYTES
    expert = 3 * sizes.text.hidden_size * sizes.text.moe_intermediate_size
    gathered = shape["batch"] * sizes.text.num_experts_per_tok * expert * dtype_bytes
    weights = prefill_cost(config, prompt_len=1, views=views)["parameters"].sum() * dtype_bytes
    cache = decode_cost(config, cache_len=cache_len, **shape)["kv_bytes"].sum()
    table = pd.DataFrame({"phase": ["prefill", "decode"]})
    table["weight_bytes"] = weights
    # A static cache has its room from the start.
    table["kv_bytes"] = [0 if how["strategy"] == "eager" else cache, cache]
    table["activation_bytes"] = [
        largest_layer + pixels + workspaces,
        gathered + pixels + workspaces,
    ]
    return table.assign(peak_bytes=table.sum(axis="columns", numeric_only=True))


def _score_copies(how: Mapping[str, Any], dtype_bytes: int) -> int:
    """How many matrices of attention's scores a layer of SAM holds at once, in the run's dtype."""
    if how["attention"] == "eager":
        # Scores and bias, and the softmax before and after in float32: twice as large in bfloat16.
        return 3 if dtype_bytes == 4 else 6
    return 1 if how["vision"] == "compiled" else 2


def stage_cost(table: pd.DataFrame) -> pd.DataFrame:
    """A cost table added up by phase, stage and view, in its order; ``bytes`` are all that move."""
    stages = table.groupby(["phase", "stage", "view"], sort=False)
    sums = stages.sum(numeric_only=True).reset_index()
    return sums.assign(bytes=sums["weight_bytes"] + sums["kv_bytes"])


# -- work ------------------------------------------------------------------------------------------


#: Parameters held, FLOPs done, parameters read and cached numbers moved: float64 [4], exact below
#: 2^53.
WorkVector = np.ndarray
#: What is left of work whose parameters another row holds.
_SHARED = np.array([0.0, 1.0, 1.0, 1.0])
#: Learnable queries of the Qwen2 body: a table for views of 1024 pixels, and one for 768.
_QUERIES = 256 + 144


@dataclass(frozen=True)
class _StageWork:
    """The work of a stage by its parts."""

    phase: str
    stage: str
    view: str
    parts: dict[str, WorkVector]


def costs(*, learnt: float = 0, flops: float = 0, cached: float = 0) -> WorkVector:
    """Work with ``learnt`` parameters, each read once; without FLOPs it is elementwise."""
    return np.array([learnt, flops, learnt, cached], dtype=np.float64)


def linear(tokens: float, width: int, out: int, *, bias: bool = True) -> WorkVector:
    """[tokens, width] times [width, out]: 2 tokens width out FLOPs.

    A square convolution is one, of as many tokens as places that it makes and kernel^2 times the
    width.
    """
    return costs(learnt=width * out + (out if bias else 0), flops=2 * tokens * width * out)


def attention(queries: float, keys: float, width: int) -> WorkVector:
    """Scores and their sums over the values, all heads ``width`` wide: 4 queries keys width."""
    return costs(flops=4 * queries * keys * width)


def mlp(tokens: float, width: int, hidden: int) -> WorkVector:
    """Up and down: two products."""
    return linear(tokens, width, hidden) + linear(tokens, hidden, width)


def swiglu(tokens: float, width: int, hidden: int) -> WorkVector:
    """Gate, up and down: three products, 6 tokens width hidden FLOPs (Shazeer 2020,
    arXiv:2002.05202).
    """
    return linear(tokens, width, 3 * hidden, bias=False)


def expected_experts(experts: int, top_k: int, tokens: float) -> float:
    """How many distinct experts ``tokens`` tokens reach in one layer, expected under uniform
    routing.

    Each token picks ``top_k`` different ones of ``experts``, so an expert is missed by all of them
    with probability (1 - top_k / experts)^tokens. Real routing is skewed, so it reaches fewer.
    """
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


def _vision_work(sizes: Architecture, call: VisionCall) -> dict[str, dict[str, WorkVector]]:
    """The vision stages, the second encoder by the kind that the model has."""
    places = math.ceil(call.side // sizes.sam.patch_size / 4) ** 2  # halved twice
    # The projector reads CLIP's and SAM's features side by side, or the queries' outputs.
    beside = sizes.sam.downsample_channels[1] if sizes.encoder_stage == "clip" else 0
    features = sizes.encoder.hidden_size + beside
    return {
        "sam": _sam_work(sizes.sam, call),
        sizes.encoder_stage: _encoder_work(sizes, call.images, places),
        "projector": {"linear": linear(call.images * places, features, sizes.text.hidden_size)},
    }


def _sam_work(sam: Sizes, call: VisionCall) -> dict[str, WorkVector]:
    """SAM ViT-B: attention in windows, global in some layers; a neck; two convolutions of stride 2.

    Windows are padded to whole ones, as the model pads them.
    """
    width = sam.hidden_size
    layers = sam.num_hidden_layers
    patches_a_side = call.side // sam.patch_size
    patches = call.images * patches_a_side**2
    # An image has three colours; every place of the size that SAM was trained on has a position.
    trained_patches_a_side = sam.image_size // sam.patch_size
    embedding = linear(patches, 3 * sam.patch_size**2, width)
    positions = costs(learnt=trained_patches_a_side**2 * width)

    global_layers = len(sam.global_attn_indexes)
    windows = call.images * math.ceil(patches_a_side / sam.window_size) ** 2
    in_windows = _sam_attention(sam, windows, sam.window_size, sam.window_size)
    everywhere = _sam_attention(sam, call.images, patches_a_side, trained_patches_a_side)

    # The neck: a convolution of 1 x 1 and one of 3 x 3, then two of 3 x 3 with stride 2.
    neck = sam.output_channels
    first, second = sam.downsample_channels
    halved = call.images * math.ceil(patches_a_side / 2) ** 2
    quartered = call.images * math.ceil(patches_a_side / 4) ** 2
    first_convolution = linear(halved, 9 * neck, first, bias=False)
    second_convolution = linear(quartered, 9 * first, second, bias=False)
    return {
        "patches": embedding + positions,
        "attention": in_windows * (layers - global_layers) + everywhere * global_layers,
        "mlp": mlp(patches, width, sam.mlp_dim) * layers,
        # Scale and shift of two norms a layer, and of two in the neck.
        "norms": costs(learnt=2 * 2 * layers * width + 2 * 2 * neck),
        "neck": linear(patches, width + 9 * neck, neck, bias=False),
        "downsample": first_convolution + second_convolution,
    }


def _sam_attention(sam: Sizes, squares: int, side: int, trained_side: int) -> WorkVector:
    """One layer over ``squares`` of side x side tokens, with relative positions along both axes.

    A position's bias is the query times the learnt vector of the distance, once an axis: 2 x 2 side
    FLOPs a channel and token.
    """
    width = sam.hidden_size
    tokens = squares * side * side
    vectors = 2 * (2 * trained_side - 1) * (width // sam.num_attention_heads)
    positions = costs(learnt=vectors, flops=2 * 2 * tokens * width * side)
    return linear(tokens, width, 4 * width) + attention(tokens, side * side, width) + positions


def _encoder_work(sizes: Architecture, images: int, places: int) -> dict[str, WorkVector]:
    """CLIP ViT-L over SAM's features and a class token, or a Qwen2 body over them and as many
    queries.

    Attention is global: the body's mask leaves out no product of a kernel.
    """
    if sizes.encoder_stage == "clip":
        return _clip_work(sizes.encoder, images, places)
    return _qwen_work(sizes.encoder, images, places)


def _clip_work(clip: Sizes, images: int, places: int) -> dict[str, WorkVector]:
    """CLIP: biased products, a norm with scale and shift before and after each layer's halves."""
    width = clip.hidden_size
    layers = clip.num_hidden_layers
    tokens_of_image = places + 1  # with the class token
    tokens = images * tokens_of_image
    products = linear(tokens, width, 3 * width) + linear(tokens, width, width)
    # A position for the class token and every patch, and that token.
    embeddings = (clip.image_size // clip.patch_size) ** 2 + 2
    return {
        "embeddings": costs(learnt=embeddings * width),
        "attention": (products + attention(tokens, tokens_of_image, width)) * layers,
        "mlp": mlp(tokens, width, clip.intermediate_size) * layers,
        "norms": costs(learnt=2 * width * (2 * layers + 1)),
    }


def _qwen_work(body: Sizes, images: int, places: int) -> dict[str, WorkVector]:
    """The Qwen2 body: fewer heads of keys and values than of queries, SwiGLU, norms with a
    scale.
    """
    width = body.hidden_size
    layers = body.num_hidden_layers
    tokens_of_image = 2 * places  # SAM's features, and a query for each
    tokens = images * tokens_of_image
    keys = width // body.num_attention_heads * body.num_key_value_heads
    products = linear(tokens, width, width + 2 * keys) + linear(tokens, width, width, bias=False)
    return {
        "queries": costs(learnt=_QUERIES * width),
        "attention": (products + attention(tokens, tokens_of_image, width)) * layers,
        "mlp": swiglu(tokens, width, body.intermediate_size) * layers,
        "norms": costs(learnt=width * (2 * layers + 1)),
    }


def _language_work(
    text: Sizes, batch: int, length: int, context: int, distinct: int
) -> dict[str, WorkVector]:
    """The language model over ``length`` new tokens a row of the batch, attending to ``context``
    entries.

    SwiGLU MLPs, with a router and experts in the sparse layers; ``distinct`` rows of the batch
    choose experts of their own.
    """
    tokens = batch * length
    width = text.hidden_size
    layers = text.num_hidden_layers
    dense_layers = text.mlp_layer_types.count("dense")
    sparse_layers = layers - dense_layers

    heads = text.num_attention_heads
    keys = width // heads * (text.num_key_value_heads or heads)
    queries_keys_values = linear(tokens, width, width + 2 * keys, bias=False)
    output = linear(tokens, width, width, bias=False)
    cache = costs(cached=2 * keys * batch * context)
    attend = queries_keys_values + output + attention(tokens, context, width) + cache

    # All experts are held, those that are reached are read, and each token takes its own.
    experts = text.n_routed_experts
    reached = expected_experts(experts, text.num_experts_per_tok, distinct * length)
    expert = swiglu(1, width, text.moe_intermediate_size)
    routed = expert * [experts, tokens * text.num_experts_per_tok, reached, 0]
    shared = swiglu(tokens, width, text.moe_intermediate_size * text.n_shared_experts)
    return {
        # A token reads its own row of the table.
        "embedding": np.array([text.vocab_size * width, 0.0, tokens * width, 0.0]),
        "attention": attend * layers,
        "dense_mlp": swiglu(tokens, width, text.intermediate_size) * dense_layers,
        "router": linear(tokens, width, experts, bias=False) * sparse_layers,
        "experts": routed * sparse_layers,
        "shared_experts": shared * sparse_layers,
        "norms": costs(learnt=width * (2 * layers + 1)),
    }


def _head_work(sizes: Architecture, positions: int) -> dict[str, WorkVector]:
    """The head at these positions; tied to the embedding it holds no parameters of its own."""
    head = linear(positions, sizes.text.hidden_size, sizes.text.vocab_size, bias=False)
    if sizes.tied:
        head = head * _SHARED
    return {"linear": head}


def _table(stages: Iterable[_StageWork], dtype_bytes: int) -> pd.DataFrame:
    """A row a part; counts are int64, expectations of the experts' bytes rounded to whole bytes."""
    rows = []
    for stage in stages:
        for part, (parameters, flops, read, cached) in stage.parts.items():
            rows.append(
                {
                    "phase": stage.phase,
                    "stage": stage.stage,
                    "view": stage.view,
                    "part": part,
                    "parameters": round(parameters),
                    "flops": round(flops),
                    "weight_bytes": round(read * dtype_bytes),
                    "kv_bytes": round(cached * dtype_bytes),
                }
            )
    return pd.DataFrame(rows, columns=list(COST_COLUMNS))


def _check(**values: int) -> None:
    """Raise `OcrPhasesError` for a count below 1."""
    for name, value in values.items():
        if value < 1:
            raise OcrPhasesError(f"{name.replace('_', ' ')} is {value}: it must be at least 1.")
