"""Synthetic records for the tests of the half that reads and draws: every shape a record can
have.
"""

import dataclasses
import io
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.sweep_table import FAILURE_COLUMNS
from ocr_phases.images import describe_page
from ocr_phases.record import SPAN_COLUMNS, make_spans
from ocr_phases.record.parts import (
    CachePart,
    CheckPart,
    DevicePart,
    MemoryPart,
    ModelPart,
    PagePart,
    ProbabilitiesPart,
    RequestPart,
    ResultPart,
    make_kernels,
    make_part,
    to_plain,
)

EOS = "<｜end▁of▁sentence｜>"

SENTENCES = "A page is read once and written token by token. We time both halves. "
REGIONS = (
    ("title", (60, 40, 620, 90), "# Where the time goes"),
    ("text", (60, 120, 930, 300), SENTENCES * 3),
    ("image", (60, 330, 480, 620), ""),
    ("table", (520, 330, 930, 620), "<table><tr><td>Item</td><td>40</td></tr></table>"),
    ("text", (60, 660, 930, 900), "The second part is light but happens for every token. " * 4),
)
TEXT = "\n\n".join(
    f"<|ref|>{label}<|/ref|><|det|>[[{', '.join(map(str, box))}]]<|/det|>\n{words}"
    for label, box, words in REGIONS
)

ATTACK = (
    "<script>alert(1)</script></details></pre><img src=x onerror=alert(2)>"
    "<|ref|><svg onload=alert(3)><|/ref|><|det|>[[10, 10, 500, 500]]<|/det|>\n<iframe "
    "src='//example.org'>"
    "</style></title><b style='position:fixed'>"
) * 3

SHAPES = {
    "crops": {},
    "no crops": {"crops": False},
    "cuda": {"cuda": True},
    "one token": {"max_tokens": 1},
    "one step": {"max_tokens": 2},
    "one repeat": {"repeats": 1},
    "no text": {"return_text": False, "embed": False, "memory": False},
    "batch": {"rows": 3},
    "redecode": {"first_token": "redecode"},
    "generate": {"generate": True, "repeats": 2},
}

Row = tuple[Any, ...]


def page_image(width: int = 620, height: int = 877) -> Image.Image:
    """A page with grey bars for lines, so that overlays have something under them."""
    image = Image.new("RGB", (width, height), (250, 250, 247))
    draw = ImageDraw.Draw(image)
    for top in range(60, height - 60, 18):
        draw.rectangle((50, top, width - 60 - (top * 7) % 140, top + 8), fill=(190, 194, 200))
    return image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image's file."""
    image.save(buffer := io.BytesIO(), kind, **options)
    return buffer.getvalue()


@cache
def page_file() -> tuple[Image.Image, bytes]:
    """That page and its file."""
    return page_image(), encoded(page_image())


def two_page_run() -> PhaseRun:
    """Two pages in one prompt, with a region on each, as Unlimited-OCR marks them."""
    first = "<PAGE>one<|det|>text [1, 2, 300, 400]<|/det|>a"
    run = make_run(text=f"{first}<PAGE><|det|>title [5, 5, 90, 90]<|/det|>b", crops=False)
    return altered(run, model={"family": "unlimited-ocr"}, pages=run.pages * 2)


def make_run(
    *,
    text: str = TEXT,
    return_text: bool = True,
    repeats: int = 3,
    crops: bool = True,
    rows: int = 1,
    embed: bool = True,
    memory: bool = True,
    cuda: bool = False,
    generate: bool = False,
    first_token: str = "prefill",
    max_tokens: int | None = None,
    seed: int = 0,
    page_name: str = "example.png",
) -> PhaseRun:
    """A record as the measuring half writes it, with invented times that a seed fixes."""
    rng = np.random.default_rng(seed)
    pieces = _pieces(text, max_tokens)
    steps = len(pieces) if first_token == "redecode" else len(pieces) - 1
    prefill_len, preset, grid, image_tokens = (
        (912, "gundam", [2, 3], 903) if crops else (282, "base", [1, 1], 273)
    )
    spans: list[Row] = []
    for repeat in range(repeats):
        spans += _repeat(rng, repeat, 0 if generate else steps, crops, cuda, generate)
    columns = {name: [row[place] for row in spans] for place, name in enumerate(SPAN_COLUMNS)}
    lengths = [prefill_len + step for step in range(steps + 1)]
    if first_token == "redecode":
        lengths = [prefill_len, *lengths[:-1]]
    cached, per_token = [] if generate else lengths, 0 if generate else 61_440 * rows
    page = describe_page(*page_file(), page_name, embed=embed)
    page |= {"preset": preset, "grid": grid, "image_tokens": image_tokens}
    page |= {"text_tokens": 9, "valid_image_tokens": 780}
    result = {
        "ids": list(range(len(pieces))),
        "token_texts": pieces if return_text else [""] * len(pieces),
        "text": "".join(piece for piece in pieces if piece != EOS) if return_text else None,
        "finish_reason": "eos" if pieces[-1] == EOS else "length",
    }
    phases = {"generate": 1.9} if generate else {"prefill": 1.9, "decode": 1.4}
    peaks = {
        phase: [int(peak * 1e9)] * repeats for phase, peak in ({"prepare": 0.7} | phases).items()
    }
    agreed, entries = (
        f"{repeats} repeats, equal tokens",
        ("name", "verdict", "expected", "measured"),
    )
    checks = (
        ("repeats_agree", "pass", "every repeat generates the same tokens", agreed),
        (
            "cache_growth",
            "pass",
            "exactly one entry a step",
            f"{lengths[0]} to {lengths[-1]} entries",
        ),
        ("stage_coverage", "fail", "the stages sum to 90 % of the prefill", "81 %"),
    )
    device = ("NVIDIA H200", "cuda") if cuda else ("Example CPU, 2 cores", "cpu")
    model = {
        "name": "tiny",
        "source": "built in",
        "family": "deepseek-ocr",
        "implementation": "native",
    }
    model |= {
        "class": "UnlimitedOcrForConditionalGeneration",
        "dtype": "bfloat16" if cuda else "float32",
    }
    total = 3_300_000_000 if cuda else 9_100_000
    prompt = "<image>\n<|grounding|>Convert the document to markdown."
    request = {
        "prompt": prompt,
        "prompts": [prompt] * rows,
        "preset": preset,
        "max_new_tokens": len(pieces),
    }
    request |= {
        "prefill_len": prefill_len,
        "first_token": first_token,
        "repeats": repeats,
        "warmup": 1,
    }
    ways = {"seed": 0, "strategy": "eager", "vision": "eager", "generate": generate}
    source = "cuda_peak_allocated" if cuda else "process_high_water_mark"
    held = {"source": source, "peak_bytes": peaks} if memory else {"source": None, "peak_bytes": {}}
    sizes = [length * per_token for length in cached]
    return PhaseRun(
        created="2026-11-21T09:30:00Z",
        versions={
            "python": "3.11.2",
            "torch": "2.11.0",
            "transformers": "5.23.0",
            "ocr_phases": "0.1.0",
        },
        device=as_parts("device", dict(zip(("name", "kind"), device, strict=True))),
        model=as_parts(
            "model",
            {
                **model,
                "strategy": "eager",
                "parameters": {"sam": 1_200_000, "clip": 1_500_000, "total": total},
                "config": {"hidden_size": 1280},
            },
        ),
        pages=as_parts("pages", [page | {"row": row} for row in range(rows)]),
        request=as_parts("request", request | ways),
        results=as_parts("results", [dict(result) for _ in range(rows)]),
        spans=make_spans(columns),
        memory=as_parts("memory", held | {"weights_bytes": 36_400_000}),
        cache=as_parts("cache", {"lengths": cached, "bytes_per_token": per_token, "bytes": sizes}),
        live_checks=as_parts(
            "live_checks", [dict(zip(entries, check, strict=True)) for check in checks]
        ),
    )


def altered(run: PhaseRun, **parts: Any) -> PhaseRun:
    """The record with other entries in some parts: ``altered(run, model={"dtype":
    "bfloat16"})``.
    """
    changed = {}
    for name, part in parts.items():
        if isinstance(part, dict):
            present = getattr(run, name)
            part = ({} if present is None else to_plain(present)) | part
        changed[name] = as_parts(name, part)
    return dataclasses.replace(run, **changed)


#: The kinds of the parts that a record holds, and of those that it holds lists of.
PARTS = {
    "device": DevicePart,
    "model": ModelPart,
    "pages": PagePart,
    "request": RequestPart,
    "results": ResultPart,
    "memory": MemoryPart,
    "cache": CachePart,
    "live_checks": CheckPart,
    "probabilities": ProbabilitiesPart,
}


def as_parts(name: str, content: Any) -> Any:
    """What a record holds by this name, from plain values, parts or lists of them; nothing is
    checked.
    """
    if name == "kernels" and isinstance(content, dict):
        return make_kernels(content)
    if name not in PARTS or content is None:
        return content
    if isinstance(content, list):
        return [as_parts(name, item) for item in content]
    if isinstance(content, dict):
        return make_part(PARTS[name], content)
    return content


def paced(run: PhaseRun, *factors: float, **only: str) -> PhaseRun:
    """The record with its times, or those of the spans named by ``only``, times a factor, or one a
    repeat.
    """
    spans = run.spans.copy()
    named = (spans[[*only]] == pd.Series(only, dtype=object)).all(axis="columns")
    for clock in ("device_ms", "host_ms"):
        pace = factors[0] if len(factors) == 1 else spans["repeat"].map(dict(enumerate(factors)))
        spans[clock] = spans[clock].mask(named, spans[clock] * pace)
    return dataclasses.replace(run, spans=spans)


def with_times(run: PhaseRun, stage: str, ms: Any) -> PhaseRun:
    """The record with other times of a stage: ``ms(step, repeat)`` on both clocks."""
    spans = run.spans.copy()
    named = spans["stage"] == stage
    times = [float(ms(*each)) for each in spans.loc[named, ["step", "repeat"]].to_numpy()]
    spans.loc[named, ["device_ms", "host_ms"]] = np.column_stack([times, times])
    return dataclasses.replace(run, spans=spans)


def with_steps(run: PhaseRun, ms: Any) -> PhaseRun:
    return with_times(run, "decode_step", ms)


def check_of(run: PhaseRun, name: str) -> Verdict:
    (check,) = (check for check in run_checks(run) if check.name == name)
    return check


def failed_cells(*reasons: str) -> pd.DataFrame:
    shape = ("base", "eager", "eager", 1, 9)
    rows = [(f"cell{number}", *shape, reason) for number, reason in enumerate(reasons)]
    return pd.DataFrame(rows, columns=list(FAILURE_COLUMNS))


def _pieces(text: str, max_tokens: int | None) -> list[str]:
    """The text in tokens of about four characters, closed by the end token unless a limit
    cuts it.
    """
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)] + [EOS]
    return pieces if max_tokens is None else pieces[:max_tokens]


def _repeat(
    rng: np.random.Generator, repeat: int, steps: int, crops: bool, cuda: bool, generate: bool
) -> list[Row]:
    scale = 0.2 if cuda else 1.0
    lead = 0.6 if cuda else 1.0  # the host runs ahead of the device
    rows: list[Row] = []

    def add(
        phase: str, stage: str, view: str, step: int | None, start: float, length: float
    ) -> float:
        host = length * (lead if phase == "prefill" else 1.0)
        rows.append((repeat, phase, stage, view, step, start, length, start, host))
        return start + length

    def jitter(ms: float) -> float:
        return float(ms * scale * rng.normal(1.0, 0.03))

    clock = 0.0
    for stage, ms in (("load_image", 21.0), ("tokenizer", 1.3), ("transfer", 4.2)):
        clock = add("prepare", stage, "", None, clock, jitter(ms))
    add("prepare", "prepare", "", None, 0.0, clock + 0.4 * scale)
    start = clock = clock + 0.5 * scale
    if generate:
        add("generate", "generate", "", None, start, jitter(4200.0))
        return rows
    views = ("local", "global") if crops else ("global",)
    for view in views:
        for stage, ms in (("sam", 95.0), ("clip", 46.0), ("projector", 0.9)):
            slow = 1.3 if view == "local" else 1.0
            clock = add("prefill", stage, view, None, clock + 0.2, jitter(ms * slow))
    for stage, ms in (
        ("vision_fusion", 3.5),
        ("language_model", 160.0),
        ("lm_head", 2.0),
        ("sampling", 0.4),
    ):
        clock = add("prefill", stage, "", None, clock, jitter(ms))
    clock += 2.0 * scale
    add("prefill", "prefill", "", None, start, clock - start)
    start = clock = clock + 0.1
    for step in range(steps):
        slow = 4.0 if step == 60 else 1.0
        begin = clock + 0.05 * scale
        clock = begin + 0.02 * scale
        for stage, ms in (
            ("language_model", 14.0 + step * 0.004),
            ("lm_head", 1.1),
            ("sampling", 0.5),
        ):
            clock = add("decode", stage, "", step, clock, jitter(ms * slow))
        add("decode", "decode_step", "", step, begin, clock - begin)
    add("decode", "decode", "", None, start, clock + 0.02 - start)
    return rows
