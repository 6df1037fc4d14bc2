"""Writes the tables of docs/cost.md from the cost model: ``python -m benchmarks.cost_tables``.

`tests/test_cost.py` fails where the page differs from the cost model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.documents import markdown, rewrite
from ocr_phases.analyse import cost
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.inputs.views import image_token_count
from ocr_phases.text import bytes_text

PUBLISHED = FAMILIES[DEEPSEEK_OCR].config
PAGE = Path(__file__).parents[1] / "docs" / "cost.md"
TEXT_TOKENS = 18  # of the markdown prompt, with the built-in model's tokenizer
LONG = 8192  # tokens
VISION = ["sam", "clip", "projector"]
CLAIMS = """\
| what | figure in circulation | computed here | verdict |
| --- | --- | --- | --- |
| FLOPs of vision for seven views (`gundam` with 2 x 3 crops) | 2.5 TFLOP | {seven:.2f} TFLOP | \
wrong: too low by a quarter |
| parameters of SAM, CLIP and projector | 393 M | {vision:.1f} M | 2 % too low |
| parameters of the language head | 131 M or 165 M | {head:.1f} M | 165 M is right |
| FLOPs of the head for 8,192 positions | 2.15 TFLOP | {every:.2f} TFLOP | \
wrong: assumes a vocabulary of 102,400 tokens |
| FLOPs of the head in the prefill | 2.15 TFLOP | {last:.2f} GFLOP | \
wrong: only the last position is needed |
| FLOPs of the loss for 8,192 positions | 0.84 GFLOP | {loss:.2f} GFLOP | \
wrong: softmax takes 4 FLOPs per logit |
| logits of 8,192 positions in float32 | 3.3 GB | {logits} | \
wrong: assumes a vocabulary of 102,400 tokens |
| logits of one position in float32 | 400 kB | {one_logits} | \
wrong: assumes a vocabulary of 102,400 tokens |
| hidden states of 8,192 positions | 21 MB | {hidden} | right |
| pixels of a crop | 2.5 MB | {crop} | right |
| pixels of the global view | 6.3 MB | {view} | right |
| ids of 8,192 positions | 64 KB | {ids} | right |
| mask of 8,192 positions | 8 KB | {mask} | right |
| ids after 512 tokens of prompt and 8,192 new ones | 70 KB | {output} | right |
| activations of vision | 67 MB | over {bias} | wrong: the position bias of SAM alone takes more |
| memory of the KV cache in a long generation | more than all else | \
{cache} of the {whole} of weights and cache | wrong at batch 1, for 8,192 tokens |
| bytes that a decode step reads | the same at any length | {early} to {late} | \
wrong: they grow (here from 291 to 8,192 cached tokens) |
| FLOPs of a decode step with 1,000 cached tokens, by the formula for dense models | 0.49 GFLOP | \
{dense:.2f} GFLOP | wrong: if the peak rate for sparse matrices is taken as well, \
the MFU comes out {low:.1f} times too low |"""
GRIDS = {"tiny": (1, 1), "small": (1, 1), "base": (1, 1), "large": (1, 1), "gundam": (2, 3)}

#: The worked example: one page in gundam, cut into 2 x 3 crops, and 256 new tokens.
EXAMPLE_VIEWS = cost.vision_calls("gundam", [GRIDS["gundam"]])
EXAMPLE_PROMPT = (
    image_token_count(FAMILIES[DEEPSEEK_OCR].presets["gundam"], GRIDS["gundam"]) + TEXT_TOKENS
)
EXAMPLE_TOKENS = 256


def claims() -> str:
    """Each figure in circulation beside the computed one, and a verdict: a Markdown table."""
    size = cost.read_architecture(PUBLISHED)
    held = _prefill([cost.VisionCall("global", 1024)]).groupby("stage")["parameters"].sum()
    seven = _prefill(cost.vision_calls("gundam", [(2, 3)])).groupby("stage")["flops"].sum()
    every = cost.prefill_cost(PUBLISHED, prompt_len=LONG, logits_for="all").set_index("stage")[
        "flops"
    ]
    step = cost.decode_cost(PUBLISHED, cache_len=1000)
    early, late = (cost.decode_cost(PUBLISHED, cache_len=length) for length in (291, LONG))
    cache = int(late["kv_bytes"].sum())
    sizes = _tensors(LONG, 1)
    return CLAIMS.format(
        seven=seven[VISION].sum() / 1e12,
        vision=held[VISION].sum() / 1e6,
        head=held["lm_head"] / 1e6,
        every=every["lm_head"] / 1e12,
        last=step.set_index("stage")["flops"]["lm_head"] / 1e9,
        # A maximum, a difference, an exponential and a sum a logit.
        loss=4 * (LONG - 1) * size.text.vocab_size / 1e9,
        logits=bytes_text(4 * LONG * size.text.vocab_size),
        one_logits=bytes_text(4 * size.text.vocab_size),
        hidden=bytes_text(sizes["hidden states"]),
        crop=bytes_text(sizes["crops"] / math.prod(GRIDS["gundam"])),
        view=bytes_text(sizes["global views"]),
        ids=bytes_text(sizes["input ids"]),
        mask=bytes_text(sizes["image mask"]),
        output=bytes_text(_tensors(512, LONG)["output ids"]),
        bias=bytes_text(size.sam.num_attention_heads * (1024 // size.sam.patch_size) ** 4 * 2),
        cache=bytes_text(cache),
        whole=bytes_text(cache + 2 * float(held.sum())),
        early=bytes_text(_read(early)),
        late=bytes_text(_read(late)),
        dense=step["flops"].sum() / 1e9,
        low=2 * float(step["flops"].sum()) / 0.49e9,
    )


def presets() -> list[tuple[str, ...]]:
    """Rows of each preset's prefill cost, at full size in bfloat16."""
    rows = []
    for name, grid in GRIDS.items():
        prompt = image_token_count(FAMILIES[DEEPSEEK_OCR].presets[name], grid) + TEXT_TOKENS
        views = cost.vision_calls(name, [grid])
        table = cost.stage_cost(cost.prefill_cost(PUBLISHED, prompt_len=prompt, views=views))
        flops = table.groupby("stage")["flops"].sum()
        shown = f"{name} {grid[0]}x{grid[1]}" if grid != (1, 1) else name
        work = [f"{flops[stage] / 1e9:,.0f}" for stage in ("sam", "clip", "language_model")]
        rows.append((shown, str(prompt), *work, bytes_text(table["bytes"].sum())))
    return rows


def step_parts() -> list[tuple[str, ...]]:
    """A decode step by part that reads 2 MB or more: full size, bfloat16, 1,000 cached tokens."""
    one, many = (cost.decode_cost(PUBLISHED, cache_len=1000, batch=batch) for batch in (1, 16))
    parts = one["part"].where(one["stage"] != "lm_head", "lm_head").str.replace("_", " ")
    read = [table["weight_bytes"] + table["kv_bytes"] for table in (one, many)]
    figures = pd.concat([one["parameters"], one["flops"], *read], axis="columns") / 1e6
    shown = figures.set_index(parts)[(read[0] >= 2e6).to_numpy()]
    shown.loc["**all**"] = figures.sum()
    return [
        (str(part), *(f"{value:,.1f}" for value in row))
        for part, row in zip(shown.index, shown.to_numpy(), strict=True)
    ]


def tensor_rows() -> list[tuple[str, ...]]:
    """The tensors of the worked example: a page in gundam, and 256 new tokens."""
    table = cost.tensor_sizes(
        PUBLISHED, prompt_len=EXAMPLE_PROMPT, new_tokens=EXAMPLE_TOKENS, views=EXAMPLE_VIEWS
    )
    rows = []
    for tensor, shape, item_bytes, count in table.itertuples(index=False, name=None):
        rows.append((tensor, str(list(shape)), str(item_bytes), f"{count:,}"))
    return rows


def generation_rows() -> list[tuple[str, ...]]:
    """What the worked example computes and moves."""
    table = cost.generation_cost(
        PUBLISHED, prompt_len=EXAMPLE_PROMPT, new_tokens=EXAMPLE_TOKENS, views=EXAMPLE_VIEWS
    )
    rows = []
    for phase, steps, flops, count in table.itertuples(index=False, name=None):
        rows.append((phase, str(steps), f"{flops / 1e9:,.1f}", bytes_text(count)))
    return rows


def training_flops_rows() -> list[tuple[str, ...]]:
    """The FLOPs of a training step with the worked example's prompt."""
    flops = cost.training_cost(PUBLISHED, prompt_len=EXAMPLE_PROMPT, views=EXAMPLE_VIEWS)
    return [(part.replace("_", " "), f"{count / 1e9:,.1f}") for part, count in flops.to_numpy()]


def training_memory_rows() -> list[tuple[str, ...]]:
    """What a training step with the worked example's prompt holds in memory."""
    held = cost.training_memory(PUBLISHED, prompt_len=EXAMPLE_PROMPT, views=EXAMPLE_VIEWS)
    return [(part, bytes_text(count)) for part, count in held.to_numpy()]


def _tensors(prompt_len: int, new_tokens: int) -> dict[str, int]:
    """The bytes of each tensor of a page in gundam."""
    table = cost.tensor_sizes(
        PUBLISHED, prompt_len=prompt_len, new_tokens=new_tokens, views=EXAMPLE_VIEWS
    )
    return dict(zip(table["tensor"], table["bytes"], strict=True))


def tables() -> dict[str, str]:
    """The page's tables in Markdown, by the name of their marks."""
    stages = ("SAM, GFLOP", "CLIP, GFLOP", "language model, GFLOP")
    read = ("read at batch 1, MB", "read at batch 16, MB")
    return {
        "presets": markdown(("preset", "prompt tokens", *stages, "read from memory"), presets()),
        "step": markdown(("part", "parameters, million", "MFLOP", *read), step_parts()),
        "tensors": markdown(("tensor", "shape", "bytes per number", "bytes"), tensor_rows()),
        "generation": markdown(("phase", "steps", "GFLOP", "read and written"), generation_rows()),
        "training": markdown(("part", "GFLOP"), training_flops_rows()),
        "training memory": markdown(("what is in memory", "bytes"), training_memory_rows()),
        "claims": claims(),
    }


def _prefill(views: Sequence[cost.VisionCall]) -> pd.DataFrame:
    return cost.prefill_cost(PUBLISHED, prompt_len=1, views=views)


def _read(table: pd.DataFrame) -> float:
    return float(table["weight_bytes"].sum() + table["kv_bytes"].sum())


if __name__ == "__main__":
    rewrite(PAGE, tables())
