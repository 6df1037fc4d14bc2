"""Synthetic records for the tests of the half that reads and draws: every shape a record can
have.
"""

import dataclasses
import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.sweep_table import FAILURE_COLUMNS
from ocr_phases.families import NO_VIEWS
from ocr_phases.images import describe_page
from ocr_phases.record import make_spans
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
#: The regions of the example's text: label, box and what is written in it.
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

#: A text that tries to become elements of a page.
ATTACK = (
    "<script>alert(1)</script></details></pre><img src=x onerror=alert(2)>"
    "<|ref|><svg onload=alert(3)><|/ref|><|det|>[[10, 10, 500, 500]]<|/det|>\n<iframe "
    "src='//example.org'>"
    "</style></title><b style='position:fixed'>"
) * 3

#: Keywords of `make_run` for a record of every shape.
SHAPES: dict[str, dict[str, Any]] = {
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
    "no image": {"image": False},
}

Row = tuple[Any, ...]
#: A time in ms, of the number of a step (NA where there is none) and of a repeat.
StepTime = Callable[[Any, int], float]


def page_image(width: int = 620, height: int = 877) -> Image.Image:
    """A page with grey bars for lines, so that overlays have something under them."""
    image = Image.new("RGB", (width, height), (250, 250, 247))
    draw = ImageDraw.Draw(image)
    for top in range(60, height - 60, 18):
        draw.rectangle((50, top, width - 60 - (top * 7) % 140, top + 8), fill=(190, 194, 200))
    return image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image's file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
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
    image: bool = True,
) -> PhaseRun:
    """A record as the measuring half writes it, with invented times that a seed fixes."""
    view = _GUNDAM if crops else _BASE
    if not image:
        view = _NO_VIEW
    pieces = _pieces(text, max_tokens)
    steps = len(pieces) if first_token == "redecode" else len(pieces) - 1

    rng = np.random.default_rng(seed)
    spans: list[Row] = []
    for repeat in range(repeats):
        if generate:
            spans += _generate_repeat(rng, repeat, cuda=cuda)
        else:
            spans += _repeat(rng, repeat, steps, crops=crops, cuda=cuda, image=image)

    lengths = [view.prefill_len + step for step in range(steps + 1)]
    if first_token == "redecode":  # its first step writes again what the prefill had written
        lengths = [view.prefill_len, *lengths[:-1]]

    pages = []
    if image:
        page = describe_page(*page_file(), page_name, embed=embed) | view.of_page()
        pages = [page | {"row": row} for row in range(rows)]
    prompt = _PROMPT if image else _PROMPT_ALONE
    result = _result(pieces, return_text=return_text)
    request = {
        "prompt": prompt,
        "prompts": [prompt] * rows,
        "preset": view.preset,
        "max_new_tokens": len(pieces),
        "prefill_len": view.prefill_len,
        "first_token": first_token,
        "repeats": repeats,
        "warmup": 1,
        "seed": 0,
        "strategy": "eager",
        "vision": "eager",
        "generate": generate,
    }
    return PhaseRun(
        created="2026-11-21T09:30:00Z",
        versions=_VERSIONS,
        device=as_parts("device", _GPU if cuda else _CPU),
        model=as_parts("model", _model(cuda=cuda)),
        pages=as_parts("pages", pages),
        request=as_parts("request", request),
        results=as_parts("results", [dict(result) for _ in range(rows)]),
        spans=make_spans(spans),
        memory=as_parts("memory", _memory(repeats, cuda, generate) if memory else _NO_MEMORY),
        cache=as_parts("cache", _cache([] if generate else lengths, rows)),
        live_checks=as_parts("live_checks", _live_checks(repeats, lengths)),
    )


#: `make_run`, of which equal calls give the same record: none ever changes, and what was computed
#: of one is kept with it. Tests that replace what computes make a record of their own.
example = cache(make_run)


@dataclasses.dataclass(frozen=True)
class _View:
    """How the page is cut, and how many tokens that makes."""

    preset: str
    grid: tuple[int, int]
    prefill_len: int
    image_tokens: int

    def of_page(self) -> dict[str, Any]:
        """The entries of a page that follow from it."""
        return {
            "preset": self.preset,
            "grid": list(self.grid),
            "image_tokens": self.image_tokens,
            "text_tokens": 9,
            "valid_image_tokens": 780,
        }


_GUNDAM = _View("gundam", (2, 3), 912, 903)
_BASE = _View("base", (1, 1), 282, 273)
_NO_VIEW = _View(NO_VIEWS, (1, 1), 16, 0)
_PROMPT_ALONE = "Write a haiku about receipts."
_PROMPT = "<image>\n<|grounding|>Convert the document to markdown."
_VERSIONS = {
    "python": "3.11.2",
    "torch": "2.11.0",
    "transformers": "5.23.0",
    "ocr_phases": "0.1.0",
}
_CPU = {"name": "Example CPU, 2 cores", "kind": "cpu"}
_GPU = {"name": "NVIDIA H200", "kind": "cuda"}
_WEIGHTS = {"weights_bytes": 36_400_000}
_NO_MEMORY = {"source": None, "peak_bytes": {}} | _WEIGHTS
_CACHE_BYTES_PER_TOKEN = 61_440


def _model(*, cuda: bool) -> dict[str, Any]:
    """The model: a large one on a GPU, the built-in one elsewhere."""
    return {
        "name": "tiny",
        "source": "built in",
        "family": "deepseek-ocr",
        "implementation": "native",
        "class": "UnlimitedOcrForConditionalGeneration",
        "dtype": "bfloat16" if cuda else "float32",
        "strategy": "eager",
        "parameters": {
            "sam": 1_200_000,
            "clip": 1_500_000,
            "total": 3_300_000_000 if cuda else 9_100_000,
        },
        "config": {"hidden_size": 1280},
    }


def _result(pieces: list[str], *, return_text: bool) -> dict[str, Any]:
    """What a row generated, one id after the other."""
    result = {
        "ids": list(range(len(pieces))),
        "token_texts": [""] * len(pieces),
        "text": None,
        "finish_reason": "eos" if pieces[-1] == EOS else "length",
    }
    if return_text:
        result["token_texts"] = pieces
        result["text"] = "".join(piece for piece in pieces if piece != EOS)
    return result


def _memory(repeats: int, cuda: bool, generate: bool) -> dict[str, Any]:
    """The peak of each phase, the same in every repeat."""
    gigabytes = {"prepare": 0.7}
    if generate:
        gigabytes["generate"] = 1.9
    else:
        gigabytes["prefill"] = 1.9
        gigabytes["decode"] = 1.4
    return {
        "source": "cuda_peak_allocated" if cuda else "process_high_water_mark",
        "peak_bytes": {phase: [int(peak * 1e9)] * repeats for phase, peak in gigabytes.items()},
    } | _WEIGHTS


def _cache(lengths: list[int], rows: int) -> dict[str, Any]:
    """A cache that nothing is known of where it has no lengths, as of ``generate()``."""
    bytes_per_token = _CACHE_BYTES_PER_TOKEN * rows if lengths else 0
    return {
        "lengths": lengths,
        "bytes_per_token": bytes_per_token,
        "bytes": [length * bytes_per_token for length in lengths],
    }


def _live_checks(repeats: int, lengths: list[int]) -> list[dict[str, str]]:
    """Two checks that passed, and one that failed."""
    return [
        {
            "name": "repeats_agree",
            "verdict": "pass",
            "expected": "every repeat generates the same tokens",
            "measured": f"{repeats} repeats, equal tokens",
        },
        {
            "name": "cache_growth",
            "verdict": "pass",
            "expected": "exactly one entry a step",
            "measured": f"{lengths[0]} to {lengths[-1]} entries",
        },
        {
            "name": "stage_coverage",
            "verdict": "fail",
            "expected": "the stages sum to 90 % of the prefill",
            "measured": "81 %",
        },
    ]


def altered(run: PhaseRun, **parts: Any) -> PhaseRun:
    """The record with other entries in some parts: ``altered(run, model={"dtype":
    "bfloat16"})``.
    """
    changed = {}
    for name, part in parts.items():
        if isinstance(part, dict):
            present = getattr(run, name)
            if present is not None:
                part = to_plain(present) | part
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
    """The record with other times: each times one factor, or times that of its repeat.

    ``only`` names the spans that change, as ``stage="sam"``; without it all do.
    """
    spans = run.spans.copy()
    changed = (spans[[*only]] == pd.Series(only, dtype=object)).all(axis="columns")
    pace: float | pd.Series = factors[0]
    if len(factors) > 1:
        pace = spans["repeat"].map(dict(enumerate(factors)))
    for clock in ("device_ms", "host_ms"):
        spans[clock] = spans[clock].mask(changed, spans[clock] * pace)
    return dataclasses.replace(run, spans=spans)


def with_times(run: PhaseRun, stage: str, ms: StepTime) -> PhaseRun:
    """The record with other times of a stage: ``ms(step, repeat)`` on both clocks."""
    spans = run.spans.copy()
    changed = spans["stage"] == stage
    places = spans.loc[changed, ["step", "repeat"]].to_numpy()
    times = [float(ms(step, repeat)) for step, repeat in places]
    spans.loc[changed, "device_ms"] = times
    spans.loc[changed, "host_ms"] = times
    return dataclasses.replace(run, spans=spans)


def with_steps(run: PhaseRun, ms: StepTime) -> PhaseRun:
    """The record with other times of its decode steps: ``ms(step, repeat)``."""
    return with_times(run, "decode_step", ms)


def check_of(run: PhaseRun, name: str) -> Verdict:
    """The check of this name."""
    (check,) = (check for check in run_checks(run) if check.name == name)
    return check


def failed_cells(*reasons: str) -> pd.DataFrame:
    """A sweep's table of failures, with a cell for each reason."""
    settings = ("base", "eager", "eager", 1, 9)
    rows = [(f"cell{number}", *settings, reason) for number, reason in enumerate(reasons)]
    return pd.DataFrame(rows, columns=list(FAILURE_COLUMNS))


def _pieces(text: str, max_tokens: int | None) -> list[str]:
    """The text in tokens of about four characters, closed by the end token unless a limit
    cuts it.
    """
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
    pieces.append(EOS)
    return pieces[:max_tokens]


class _RepeatClock:
    """Writes down the spans of one repeat, each with a time that varies a little."""

    def __init__(self, rng: np.random.Generator, repeat: int, *, cuda: bool) -> None:
        self.rng = rng
        self.repeat = repeat
        #: How long everything takes beside the times that are named here.
        self.scale = 0.2 if cuda else 1.0
        #: On a GPU the host runs ahead of the device in the prefill.
        self.host_share = 0.6 if cuda else 1.0
        self.now = 0.0
        self.rows: list[Row] = []

    def stage(
        self, phase: str, name: str, ms: float, view: str = "", step: int | None = None
    ) -> None:
        """A stage that begins now, and the clock goes on to its end."""
        length = float(ms * self.scale * self.rng.normal(1.0, 0.03))
        self.span(phase, name, self.now, length, view, step)
        self.now += length

    def span(
        self,
        phase: str,
        name: str,
        start: float,
        length: float,
        view: str = "",
        step: int | None = None,
    ) -> None:
        """A span of exactly this length; the clock stays where it is."""
        host_length = length
        if phase == "prefill":
            host_length *= self.host_share
        row = (self.repeat, phase, name, view, step, start, length, start, host_length)
        self.rows.append(row)


def _prepare(clock: _RepeatClock) -> None:
    """The spans of reading a page and packing it."""
    for name, ms in (("load_image", 21.0), ("tokenizer", 1.3), ("transfer", 4.2)):
        clock.stage("prepare", name, ms)
    clock.span("prepare", "prepare", 0.0, clock.now + 0.4 * clock.scale)
    clock.now += 0.5 * clock.scale


def _generate_repeat(rng: np.random.Generator, repeat: int, *, cuda: bool) -> list[Row]:
    """The spans of a repeat by ``generate()``, which has one phase and no stages."""
    clock = _RepeatClock(rng, repeat, cuda=cuda)
    _prepare(clock)
    clock.stage("generate", "generate", 4200.0)
    return clock.rows


def _repeat(
    rng: np.random.Generator, repeat: int, steps: int, *, crops: bool, cuda: bool, image: bool
) -> list[Row]:
    """The spans of a repeat; of its decode steps number 60 takes four times as long."""
    clock = _RepeatClock(rng, repeat, cuda=cuda)
    _prepare(clock)

    begin = clock.now
    views: tuple[str, ...] = ()
    if image:
        views = ("local", "global") if crops else ("global",)
    for view in views:
        pace = 1.3 if view == "local" else 1.0
        for name, ms in (("sam", 95.0), ("clip", 46.0), ("projector", 0.9)):
            clock.now += 0.2
            clock.stage("prefill", name, ms * pace, view)
    if image:
        clock.stage("prefill", "vision_fusion", 3.5)
    clock.stage("prefill", "language_model", 160.0)
    clock.stage("prefill", "lm_head", 2.0)
    clock.stage("prefill", "sampling", 0.4)
    clock.now += 2.0 * clock.scale
    clock.span("prefill", "prefill", begin, clock.now - begin)

    clock.now += 0.1
    decode_begin = clock.now
    for step in range(steps):
        begin = clock.now + 0.05 * clock.scale
        clock.now = begin + 0.02 * clock.scale
        pace = 4.0 if step == 60 else 1.0
        clock.stage("decode", "language_model", (14.0 + step * 0.004) * pace, step=step)
        clock.stage("decode", "lm_head", 1.1 * pace, step=step)
        clock.stage("decode", "sampling", 0.5 * pace, step=step)
        clock.span("decode", "decode_step", begin, clock.now - begin, step=step)
    clock.span("decode", "decode", decode_begin, clock.now + 0.02 - decode_begin)
    return clock.rows
