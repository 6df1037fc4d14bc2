"""Evaluate a checkpoint on pages it has never seen, free-running and greedy, through the package itself.

    python data/tiny/train/evaluate.py --checkpoint DIR --fonts DIR --pages 200 --out eval.json

One row a preset and condition. Seeds of evaluation pages begin with another word than those of training, so
no page is ever drawn in both. The record is written after every row.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from metrics import Score, by_length, by_type, score, summary
from pages import Bucket, Sources, is_strip, load_families, load_sources, make_buckets, make_page, type_shown
from tokenizer import BOS, EOS, PAD, Codec
from transformers.modeling_outputs import BaseModelOutput

from ocr_phases.families import PRESETS, facts_of
from ocr_phases.inputs.images import load_page
from ocr_phases.inputs.packing import pack
from ocr_phases.inputs.views import PageViews, make_views
from ocr_phases.models.load import load_checkpoint
from ocr_phases.settings import ModelSettings
from ocr_phases.steps.phases import generate, until_end
from synth import degrade

CONDITIONS: dict[str, dict[str, Any]] = {
    "clean": {},
    "held-out": {},
    "effects": {},
    "colour": {"colour": 1.0},
    "small type": {},
    "strips": {"presets": ("gundam",)},
    "words": {"wide": 1.0, "texts": "held-out", "prose": 0.0, "plain": [1.0, 1.0]},
    "sentences": {"wide": 1.0, "texts": "held-out", "prose": 1.0},
    "browser": {"browser": 1.0, "characters": 900},
    "long": {"wide": 1.0, "texts": "held-out", "prose": 1.0, "presets": ("small", "base", "large", "gundam")},
    "A4 18 pt": {"size": [1240, 1754, 1.0], "type_px": [37.5, 37.5], "presets": ("gundam",)},
    "A4 11 pt": {"size": [1240, 1754, 1.0], "type_px": [22.9, 22.9], "presets": ("gundam",)},
    "unreadable": {"kinds": ["unreadable"], "wide": 1.0, "texts": "held-out"},
}
"""What each row changes of config.json's ``evaluation``; and ``presets``, where not all are asked.

Clean pages hold trained fonts and the generator's own words, without colour or effects; the others differ
from them in what they say. Pages of small type have less than the least size of all others, and strips are
more than twice as long as wide (or as wide as long), which only crops know; no other condition has any.
``words`` and ``sentences`` hold text that training never showed, ``long`` and A4 full pages of it.
"""

SAMPLES = "data/pages"
_COLUMNS = (
    "cer",
    "cer_median",
    "iou",
    "precision",
    "recall",
    "out_of_order",
    "well_formed",
    "ended",
    "tokens",
    "invented",
)
_SPARE = 64  # tokens beyond the longest truth
_VIEWS = 32
_HELD_OUT_TEXT = ("words", "sentences", "long", "A4 18 pt", "A4 11 pt", "unreadable")
_A4_GRID = (2, 3)
_FULL = 3500  # letters, which no page of A4 here exceeds


_INHERITED: dict[Any, Any] = {}


@dataclass(frozen=True, eq=False)
class Case:
    """One page to read: a name to report, its views, the truth as text and its length in tokens.

    type_px: its type as the views would show it before any effect, pixels; 0 where nobody knows.
    """

    name: str
    views: PageViews
    truth: str
    tokens: int
    type_px: float = 0.0


@dataclass(frozen=True)
class Task:
    """One page to draw."""

    number: int
    bucket: Bucket
    condition: str
    stage: dict[str, Any]


def draw_case(codec: Codec, sources: Sources, task: Task) -> Case:
    """Draw one evaluation page and, where its condition says so, degrade it."""
    rng = random.Random(f"evaluate {task.condition} {task.bucket.name} {task.number}")
    page = make_page(rng, task.bucket, task.stage, sources)
    type_px = type_shown(page, task.bucket)
    if task.condition == "effects":
        page = degrade(page, rng, rng.uniform(0.2, 1.0))
    views = make_views(page.image, task.bucket.preset)
    return Case(f"{task.number}", views, page.markdown, len(codec.target(page, "markdown")), type_px)


def draw_tasks(config: dict[str, Any], preset: str, condition: str, pages: int, first: int = 0) -> list[Task]:
    """That many pages for a preset and a condition; with crops, spread over the condition's grids."""
    changes = CONDITIONS[condition]
    a4 = "size" in changes
    buckets = [
        bucket
        for bucket in make_buckets(config["buckets"]).values()
        if bucket.preset.name == preset
        and is_strip(bucket) == (condition == "strips")
        and bool(bucket.long) == (a4 or condition == "long")
        and (not a4 or bucket.grid == _A4_GRID)
    ]
    stage = {**config["evaluation"], "degrade": 0.0, "colour": 0.0, **changes}
    if condition == "small type":
        stage["type_px"] = stage["small_type_px"]
        buckets = [replace(bucket, type_scale=1.0) for bucket in buckets]
    if a4:
        stage |= {key: CONDITIONS["long"][key] for key in ("wide", "texts", "prose")}
        buckets = [replace(bucket, long=_FULL) for bucket in buckets]
    return [
        Task(first + number, buckets[number * len(buckets) // pages], condition, stage)
        for number in range(pages)
    ]


def sample_cases(folder: Path, preset: str, codec: Codec) -> list[Case]:
    """The package's sample pages."""
    cases = []
    for path in sorted(folder.glob("*.png")):
        truth = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["markdown"]
        views = make_views(load_page(path)[0], PRESETS[preset])
        cases.append(Case(path.stem, views, truth, len(codec.encode(truth))))
    return cases


def read_cases(
    checkpoint: Any, codec: Codec, cases: Sequence[Case], device: str, batch: int, limit: int = 0
) -> list[tuple[Score, str]]:
    """Let the model read the pages, ``batch`` at a time; score and answer of each.

    Without a ``limit`` a batch may have a fifth more tokens than its longest truth, and some: who needs more
    runs away.
    """
    results = []
    prompt = facts_of(None).text_of("markdown")
    for start in range(0, len(cases), batch):
        chosen = cases[start : start + batch]
        tokens = SimpleNamespace(
            encode=codec.encode, image_token_id=checkpoint.image_token_id, bos_id=BOS, pad_id=PAD
        )
        packed = pack([case.views for case in chosen], [prompt] * len(chosen), tokens)
        longest = limit or int(1.2 * max(case.tokens for case in chosen)) + _SPARE
        options = {"eos_ids": (EOS,), "pad_id": PAD, "eos_check_every": 16}
        inputs = packed.to(device, checkpoint.model.dtype)
        answers = generate(checkpoint.model, inputs, longest, **options).ids
        for case, ids in zip(chosen, answers, strict=True):
            ids = until_end(ids, (EOS,))
            answer = codec.decode(ids)
            results.append((score(answer, case.truth, ended=ids[-1] == EOS, tokens=len(ids)), answer))
    return results


def see_in_parts(model: Any, views: int) -> None:
    """Let the vision tower take so many views at a time: its attention needs memory for each."""
    tower = model.model.vision_tower
    whole = tower.forward

    def forward(pixel_values: torch.Tensor, **kwargs: Any) -> BaseModelOutput:
        parts = [whole(part, **kwargs).last_hidden_state for part in pixel_values.split(views)]
        return BaseModelOutput(last_hidden_state=torch.cat(parts))

    tower.forward = forward


@dataclass(frozen=True)
class Plan:
    """What is evaluated."""

    config: dict[str, Any]
    fonts: Path | None
    texts: Path | None
    printed: Path | None
    samples: Path | None
    pages: int
    first: int
    presets: Sequence[str]
    conditions: Sequence[str]


def evaluate(folder: Path, plan: Plan, *, device: str, workers: int, batch: int) -> Iterable[dict[str, Any]]:
    """One row after another: preset, condition, figures, seconds, and the two worst answers.

    While one row is read, the next one's pages are drawn.
    """
    codec = Codec.load(folder)
    cells = [
        (preset, condition)
        for condition in plan.conditions
        for preset in plan.presets
        if preset in CONDITIONS[condition].get("presets", plan.presets)
    ]
    todo = [draw_tasks(plan.config, *cell, plan.pages, plan.first) for cell in cells]
    _remember(codec, plan)
    # Forked before CUDA starts, which would not survive it.
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        checkpoint = load_checkpoint(ModelSettings(model=str(folder), device=device), local_only=True)
        see_in_parts(checkpoint.model, _VIEWS)
        if plan.samples is not None:
            for preset in plan.presets:
                cases = sample_cases(plan.samples, preset, codec)
                yield _row(checkpoint, codec, cases, preset, "samples", device, batch)
        drawing = None
        for index, (preset, condition) in enumerate(cells):
            now = drawing or pool.map_async(_draw, todo[index], chunksize=2)
            cases = now.get()
            if index + 1 < len(cells):
                drawing = pool.map_async(_draw, todo[index + 1], chunksize=2)
            yield _row(checkpoint, codec, cases, preset, condition, device, batch)


def _remember(codec: Codec, plan: Plan) -> None:
    """Keep what the drawing processes inherit."""
    sources = load_sources(plan.fonts, plan.texts, plan.printed)
    _INHERITED[False] = sources
    _INHERITED[True] = replace(sources, families=load_families(plan.fonts, held_out=True))
    _INHERITED["codec"] = codec


def _draw(task: Task) -> Case:
    return draw_case(_INHERITED["codec"], _INHERITED[task.condition == "held-out"], task)


def compute_dtype(device: str) -> torch.dtype:
    """What answers are computed in there."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def _row(
    checkpoint: Any, codec: Codec, cases: Sequence[Case], preset: str, condition: str, device: str, batch: int
) -> dict[str, Any]:
    start = time.perf_counter()
    results = read_cases(checkpoint, codec, cases, device, batch)
    scores = [result for result, _ in results]
    figures = {key: round(value, 5) for key, value in summary(scores).items()}
    rates = [result.edits / max(1, result.letters) for result in scores]
    row: dict[str, Any] = {"preset": preset, "condition": condition, **figures}
    row["seconds"] = round(time.perf_counter() - start, 1)
    row["by_letters"] = by_length(scores)
    if condition != "samples":
        row["by_type_px"] = by_type(scores, [case.type_px for case in cases])
    else:
        row["each"] = {
            case.name: {"cer": round(rate, 5), "found": result.found, "regions": result.truths}
            for case, rate, (result, _) in zip(cases, rates, results, strict=True)
        }
    worst = sorted(range(len(cases)), key=lambda i: -rates[i])[:2]
    row["worst"] = [{"page": cases[i].name, "truth": cases[i].truth, "answer": results[i][1]} for i in worst]
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [f"| preset | condition | pages | {' | '.join(_COLUMNS)} |", "| --- " * (len(_COLUMNS) + 3) + "|"]
    for row in rows:
        figures = " | ".join(_shown(name, row[name]) for name in _COLUMNS)
        lines.append(f"| {row['preset']} | {row['condition']} | {row['pages']:.0f} | {figures} |")
    return "\n".join(lines)


def _shown(name: str, value: float) -> str:
    if name == "tokens":
        return f"{value:.0f}"
    return f"{value:.3f}" if name == "iou" else f"{100 * value:.2f} %"


def _possible(condition: str, args: argparse.Namespace) -> bool:
    needs = {"held-out": args.fonts, "browser": args.printed, **dict.fromkeys(_HELD_OUT_TEXT, args.texts)}
    return bool(needs.get(condition, True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read fresh pages and write the figures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.json"))
    parser.add_argument("--fonts", type=Path, help="Debian's font files; without, no held-out families")
    parser.add_argument("--texts", type=Path, help="of texts.py; without, no rows of held-out text")
    parser.add_argument("--printed", type=Path, help="of browser.py --held-out; without, no such rows")
    parser.add_argument("--samples", type=Path, default=Path(SAMPLES))
    parser.add_argument("--pages", type=int, default=200, help="of each preset and condition")
    parser.add_argument("--first", type=int, default=0, help="number of the first page: other pages")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--conditions", nargs="*", default=list(CONDITIONS), choices=list(CONDITIONS))
    parser.add_argument("--minutes", type=float, help="start no row after so long")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--workers", type=int, default=12, help="drawing processes")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    start = time.perf_counter()
    config = json.loads(args.config.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    plan = Plan(
        config,
        args.fonts,
        args.texts,
        args.printed,
        args.samples if args.samples.is_dir() else None,
        args.pages,
        args.first,
        args.presets,
        [c for c in args.conditions if _possible(c, args)],
    )
    found = evaluate(args.checkpoint, plan, device=args.device, workers=args.workers, batch=args.batch)
    for row in found:
        rows.append(row)
        record = {
            "checkpoint": str(args.checkpoint),
            "pages": args.pages,
            "device": args.device,
            "dtype": str(compute_dtype(args.device)).removeprefix("torch."),
            "rows": rows,
        }
        args.out.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        print(table(rows).splitlines()[-1], f"{row['seconds']} s", flush=True)
        if args.minutes and time.perf_counter() - start > 60 * args.minutes:
            break
    print(table(rows))


if __name__ == "__main__":
    main()
