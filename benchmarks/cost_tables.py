"""Writes the tables of docs/cost.md from the cost model: ``python -m benchmarks.cost_tables``.

`tests/test_cost_docs.py` fails where the page differs from the cost model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ocr_phases.analyse.cost import (
    VisionCall,
    decode_cost,
    prefill_cost,
    read_architecture,
    stage_cost,
    vision_calls,
)
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.inputs.views import image_token_count

PUBLISHED = FAMILIES[DEEPSEEK_OCR].config
PAGE = Path(__file__).parents[1] / "docs" / "cost.md"
OLD_VOCABULARY = "wrong: vocabulary of 102,400"
TEXT_TOKENS = 18  # of the markdown prompt, with the built-in model's tokenizer
VISION = ("sam", "clip", "projector")
GRIDS = [("tiny", (1, 1)), ("small", (1, 1)), ("base", (1, 1)), ("large", (1, 1)), ("gundam", (2, 3))]


def claims() -> list[tuple[str, str, str, str]]:
    """Quantity, circulating figure, computed figure and verdict."""
    size = read_architecture(PUBLISHED)
    long = 8192
    table = prefill_cost(PUBLISHED, prompt_len=1, views=[VisionCall("global", 1024)])
    held = table.groupby("stage")["parameters"].sum()
    seven = _stages(vision_calls("gundam", [(2, 3)]))
    every = prefill_cost(PUBLISHED, prompt_len=long, logits_for="all").set_index("stage")["flops"]
    loss = 4 * (long - 1) * size.text.vocab_size  # a maximum, a difference, an exponential and a sum a logit
    step = decode_cost(PUBLISHED, cache_len=1000)
    head = step.set_index("stage").loc["lm_head"]
    logits = 4 * long * size.text.vocab_size
    weights = float(held.sum()) * 2
    cache = int(decode_cost(PUBLISHED, cache_len=long)["kv_bytes"].sum())
    early, late = (_read(decode_cost(PUBLISHED, cache_len=length)) for length in (291, long))
    bias = size.sam.num_attention_heads * (1024 // size.sam.patch_size) ** 4 * 2
    low = float(step["flops"].sum()) / 0.49e9
    return [
        ("vision, seven views (gundam 2x3)", "2.5 TFLOP", _tera(seven), "wrong: too low by a quarter"),
        ("SAM, CLIP and projector", "393 M parameters", _mega(held[list(VISION)].sum()), "2 % too low"),
        ("language head", "131 M parameters, or 165 M", _mega(held["lm_head"]), "the second is right"),
        ("head over 8,192 positions", "2.15 TFLOP", _tera(every["lm_head"]), OLD_VOCABULARY),
        ("head in the prefill", "2.15 TFLOP", _giga(head["flops"]), "wrong: the last position is enough"),
        ("loss over 8,192 positions", "0.84 GFLOP", _giga(loss), "wrong: softmax takes 4 per logit"),
        ("float32 logits of 8,192 positions", "3.3 GB", _gb(logits), OLD_VOCABULARY),
        ("activations of the vision stack", "67 MB", f"over {_mb(bias)}", "wrong: SAM's position bias alone"),
        (
            "KV cache dominates long generations",
            "no figure",
            f"{_gb(cache)} of {_gb(cache + weights)}",
            "wrong at batch 1 (8,192 tokens)",
        ),
        (
            "bytes per decode step do not depend on length",
            "constant",
            f"{_gb(early)} to {_gb(late)}",
            "wrong (291 to 8,192 cached tokens)",
        ),
        (
            "decode step, 1,000 cached tokens, dense formula",
            "0.49 GFLOP",
            _giga(step["flops"].sum()),
            f"wrong: with a sparse peak rate too, MFU reads {2 * low:.1f} times too low",
        ),
    ]


def presets() -> list[tuple[str, ...]]:
    """Rows of each preset's prefill cost, at full size in bfloat16."""
    rows = []
    for name, grid in GRIDS:
        prompt = image_token_count(FAMILIES[DEEPSEEK_OCR].presets[name], grid) + TEXT_TOKENS
        table = stage_cost(prefill_cost(PUBLISHED, prompt_len=prompt, views=vision_calls(name, [grid])))
        flops = table.groupby("stage")["flops"].sum()
        read = table["bytes"].sum()
        shown = f"{name} {grid[0]}x{grid[1]}" if grid != (1, 1) else name
        work = [f"{flops[stage] / 1e9:,.0f}" for stage in ("sam", "clip", "language_model")]
        rows.append((shown, str(prompt), *work, _gb(read)))
    return rows


def step_parts() -> list[tuple[str, ...]]:
    """A decode step by part that reads 2 MB or more: full size, bfloat16, 1,000 cached tokens."""
    one, many = (decode_cost(PUBLISHED, cache_len=1000, batch=batch) for batch in (1, 16))
    rows = []
    for (_, row), (_, other) in zip(one.iterrows(), many.iterrows(), strict=True):
        part = "lm_head" if row["stage"] == "lm_head" else row["part"]
        own = [f"{row[name] / 1e6:,.1f}" for name in ("parameters", "flops")]
        read = [(each["weight_bytes"] + each["kv_bytes"]) / 1e6 for each in (row, other)]
        if read[0] >= 2:
            rows.append((part.replace("_", " "), *own, *(f"{size:,.1f}" for size in read)))
    totals = [f"{one['parameters'].sum() / 1e6:,.1f}", f"{one['flops'].sum() / 1e6:,.1f}"]
    return [*rows, ("**all**", *totals, *(f"{_read(table) / 1e6:,.1f}" for table in (one, many)))]


def tables() -> dict[str, str]:
    """The page's tables in Markdown, by the name of their marks."""
    return {
        "presets": _markdown(
            (
                "preset",
                "prompt tokens",
                "SAM, GFLOP",
                "CLIP, GFLOP",
                "language model, GFLOP",
                "read",
            ),
            presets(),
        ),
        "step": _markdown(
            ("part", "parameters, M", "MFLOP", "read at batch 1, MB", "read at batch 16, MB"), step_parts()
        ),
        "claims": "\n".join(
            f"- {name}: {said}; computed {found}, {verdict}" for name, said, found, verdict in claims()
        ),
    }


def written(text: str) -> str:
    """The page with its tables as the cost model gives them now."""
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        text = re.sub(
            rf"{begin}.*?{end}", lambda _, t=table, b=begin, e=end: f"{b}\n{t}\n{e}", text, flags=re.S
        )
    return text


def _stages(calls: Sequence[VisionCall]) -> float:
    table = prefill_cost(PUBLISHED, prompt_len=1, views=calls)
    return float(table[table["stage"].isin(VISION)]["flops"].sum())


def _read(table: pd.DataFrame) -> float:
    return float(table["weight_bytes"].sum() + table["kv_bytes"].sum())


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _tera(flops: float) -> str:
    return f"{flops / 1e12:.2f} TFLOP"


def _giga(flops: float) -> str:
    return f"{flops / 1e9:.2f} GFLOP"


def _mega(count: float) -> str:
    return f"{count / 1e6:.1f} M"


def _mb(count: float) -> str:
    return f"{count / 1e6:.3g} MB"


def _gb(count: float) -> str:
    return f"{count / 1e9:.2f} GB"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
