"""The project's own benchmark: what measuring costs, and how fast each way of running a step is.

Every part keeps its raw times; `benchmarks.tables` makes figures of them. Hosts are noisy, so two
ways are compared by pairs that alternate in one process. A part that fails leaves its reason, and
the file is whole after every part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.tables import BENCH_SCHEMA, KIND
from ocr_phases import PhaseRun
from ocr_phases.analyse.floors import floor_table
from ocr_phases.analyse.kernels import kernel_table
from ocr_phases.analyse.stages import prefill_stages
from ocr_phases.collectors import machine
from ocr_phases.collectors.timeline import NoTimeline, Timeline
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.families import PRESET_NAMES
from ocr_phases.files import each_page, write_atomic
from ocr_phases.images import describe_page, load_page
from ocr_phases.inputs.processed import ModelInputs
from ocr_phases.measure.loaded_model import describe_model, free_memory
from ocr_phases.measure.verdicts import one_sentence
from ocr_phases.models.devices import device_of
from ocr_phases.record.parts import to_plain
from ocr_phases.session import OCRSession
from ocr_phases.settings import STRATEGIES, VISIONS
from ocr_phases.steps import phases
from ocr_phases.steps.decode_kernels import decode_attention

PARTS = ("overhead", "collectors", "stage_coverage", "prefill", "strategies")

_BLOCK = 16  # decode steps between turns


@dataclass(frozen=True)
class BenchSettings:
    """What a benchmark measures; ``pairs`` alternate, ``rounds`` are of more than two ways or one.

    Without ``presets`` it is the model's own, without ``strategies`` eager on a CPU and all on a
    GPU.
    """

    parts: tuple[str, ...] = PARTS
    presets: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    pairs: int = 15
    max_new_tokens: int = 128
    prompt: str = "markdown"

    def __post_init__(self) -> None:
        known = {"preset": PRESET_NAMES, "part": PARTS, "strategy": STRATEGIES}
        for name, values in (
            ("preset", self.presets),
            ("part", self.parts),
            ("strategy", self.strategies),
        ):
            for value in values:
                check_known(name, value, known[name])
        if self.pairs < 1:
            raise OcrPhasesError(f"pairs is {self.pairs}: it must be at least 1.")
        if self.max_new_tokens < 2:
            raise OcrPhasesError("A benchmark needs a decode step: ask for at least 2 new tokens.")

    @property
    def rounds(self) -> int:
        """Repeats of what is not a pair."""
        return max(3, self.pairs // 3)


@dataclass(frozen=True)
class _Bench:
    """One page and preset on a loaded model."""

    session: OCRSession
    page: str | Path
    preset: str
    settings: BenchSettings

    def run(self, **options: Any) -> PhaseRun:
        """A measurement of the page with every asked token made; ``options`` as in
        `run_inference`.
        """
        options = {
            "max_new_tokens": self.settings.max_new_tokens,
            "repeats": 1,
            "warmup": 0,
            **options,
        }
        return self.session.run_inference(
            self.page,
            self.settings.prompt,
            preset=self.preset,
            ignore_eos=True,
            embed_page=False,
            token_probabilities=False,
            **options,
        )


def run_bench(
    session: OCRSession, page: str | Path, settings: BenchSettings, target: str | Path
) -> dict[str, Any]:
    """Run the parts for each preset, write all of it to ``target`` as JSON after every part, and
    return it.

    Raises `OcrPhasesError` for a page or file that cannot be had.
    """
    image, data, name = load_page(each_page(str(page))[0])
    suits = session.checkpoint.default_preset or session.family.preset().name
    presets = settings.presets or (suits,)
    usual = STRATEGIES if _on_gpu(session) else ("eager",)
    settings = replace(settings, presets=presets, strategies=settings.strategies or usual)
    bench: dict[str, Any] = {
        "schema": BENCH_SCHEMA,
        "kind": KIND,
        "created": machine.now(),
        "versions": machine.versions(),
        "device": machine.describe_device(session.device),
        "model": to_plain(describe_model(session.checkpoint)),
        "page": describe_page(image, data, name, embed=False),
        "settings": {**asdict(settings), "rounds": settings.rounds},
        "results": [],
    }
    _write(bench, target)
    for preset, part in tqdm(
        [*product(presets, filter(settings.parts.__contains__, PARTS))], disable=None
    ):
        start = perf_counter()
        result: dict[str, Any] = {"part": part, "preset": preset}
        try:
            with device_of(session.device).made_current():
                result |= _PARTS[part](_Bench(session, page, preset, settings))
        except (OcrPhasesError, RuntimeError) as error:
            result["failed"] = one_sentence(error)
        if _on_gpu(session):
            free_memory()
        result["took_s"] = round(perf_counter() - start, 1)
        bench["results"].append(result)
        _write(bench, target)
    return bench


def _overhead(bench: _Bench) -> dict[str, Any]:
    """The measured two-phase run against ``model.generate()``: ms from the prefill's start to the
    last token.

    Ours has every collector on: spans, memory peaks and the forward hooks. Reading the spans
    afterwards is not in it.
    """
    ways = {"two_phase_ms": False, "generate_ms": True}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, bench.settings.pairs):
        for name in sorted(ways, reverse=number % 2 == 1):
            milliseconds = _host_ms(bench.run(generate=ways[name]))
            if number >= 0:  # the first pair warms up
                times[name].append(milliseconds)
    return {name: _rounded(values) for name, values in times.items()}


def _collectors(bench: _Bench) -> dict[str, Any]:
    """The same two phases with spans and without: ms on the host's clock until the device is done.

    Both runs of a pair go on block by block, in turns, because a host's pace changes by more within
    seconds than spans cost. They are read afterwards, as in every run.
    """
    session, tokens = bench.session, bench.settings.max_new_tokens
    packed = session.prepare(bench.page, preset=bench.preset, prompt=bench.settings.prompt)
    inputs = packed.to(session.device, session.dtype)
    stops = [*range(1, tokens, _BLOCK), tokens]
    times: dict[str, list[float]] = {"on_ms": [], "off_ms": []}
    for number in range(-1, bench.settings.pairs):
        timelines = {"on_ms": Timeline(session.device), "off_ms": NoTimeline()}
        runs = {
            name: _in_blocks(session, inputs, stops, timeline)
            for name, timeline in timelines.items()
        }
        spent = dict.fromkeys(runs, 0.0)
        for turn in range(len(stops)):
            for name in sorted(runs, reverse=(number + turn) % 2 == 1):
                spent[name] += next(runs[name])
        timelines["on_ms"].rows()
        if number >= 0:  # the first pair warms up
            for name, milliseconds in spent.items():
                times[name].append(milliseconds)
    return {name: _rounded(values) for name, values in times.items()}


def _in_blocks(
    session: OCRSession, inputs: ModelInputs, stops: Sequence[int], timeline: Timeline
) -> Iterator[float]:
    """Both phases with a halt after each of ``stops`` tokens, the first being the prefill's: ms of
    each.
    """
    state = None
    for tokens in stops:
        start = perf_counter()
        with decode_attention(session.device):
            if state is None:
                state = phases.prefill(session.model, inputs, timeline)
            else:
                phases.decode(session.model, state, tokens, timeline, pad_id=session.pad_id)
        device_of(session.device).synchronize()
        yield (perf_counter() - start) * 1e3


def _stage_coverage(bench: _Bench) -> dict[str, Any]:
    """The prefill's stages and the whole of it, ms on the device clock, a list over repeats
    each.
    """
    run = bench.run(max_new_tokens=1, repeats=bench.settings.pairs, warmup=2)
    stages = {stage: _rounded(run.repeat_ms(stage, "prefill")) for stage in prefill_stages(run)}
    return {
        "prefill_len": run.request.prefill_len,
        "prefill_ms": _rounded(run.repeat_ms("prefill", "prefill")),
        "stages_ms": stages,
    }


def _prefill(bench: _Bench) -> dict[str, Any]:
    """The prefill with vision as it is, captured and compiled, in turns: wall and device ms, and
    vision's part.
    """
    visions = [vision for vision in VISIONS if vision in ("eager", *bench.settings.strategies)]
    ready, failed = _ready(bench, "vision", visions, 1)
    ways: dict[str, dict[str, Any]] = {
        vision: {
            "host_ms": [],
            "device_ms": [],
            "vision_ms": [],
            "setup": to_plain(first.model.vision_setup),
        }
        for vision, first in ready.items()
    }
    for _ in range(bench.settings.pairs):
        for vision, kept in ways.items():
            run = bench.run(max_new_tokens=1, vision=vision)
            for clock in ("host_ms", "device_ms"):
                kept[clock] += _rounded(run.repeat_ms("prefill", "prefill", clock))
            kept["vision_ms"] += _rounded([run["vision_ms"]])
    for vision, kept in ways.items():
        kept |= _busy(bench, "prefill", vision=vision, max_new_tokens=2)
    return {"ways": ways, "ways_failed": failed}


def _strategies(bench: _Bench) -> dict[str, Any]:
    """Decode by each strategy, in turns: ms of every step, of the whole decode, setup, and the
    tokens.
    """
    asked = bench.settings
    ready, failed = _ready(bench, "strategy", asked.strategies, asked.max_new_tokens, verify=True)
    reference = ready["eager"].results if "eager" in ready else bench.run().results
    ways: dict[str, dict[str, Any]] = {}
    for strategy, first in ready.items():
        lengths = first.cache.lengths or [0]
        ways[strategy] = {
            "setup": to_plain(first.model.strategy_setup),
            "eos_check_every": first.request.eos_check_every,
            "cache_len": [lengths[0], lengths[-1]],
            "equal_tokens": len(os.path.commonprefix([reference[0].ids, first.results[0].ids])),
            "tokens": first.token_count,
            # Whether tokens that differ from generate()'s do so at a tie.
            "parity": next(
                (to_plain(check) for check in first.live_checks if check.name == "parity"), None
            ),
            **_floor(first),
            "step_ms": [],
            "decode_ms": [],
        }
    for _ in range(bench.settings.rounds):
        for strategy, kept in ways.items():
            run = bench.run(strategy=strategy)
            kept["step_ms"].append(_rounded(run.stage_ms("decode_step")))
            kept["decode_ms"] += _rounded(run.repeat_ms("decode", "decode", "host_ms"))
    # Last, because a profiler may slow down what comes after it.
    for strategy, kept in ways.items():
        kept |= _busy(bench, "decode_step", strategy=strategy)
    return {"ways": ways, "ways_failed": failed}


def _ready(
    bench: _Bench, setting: str, values: Sequence[str], max_new_tokens: int, *, verify: bool = False
) -> tuple[dict[str, PhaseRun], dict[str, str]]:
    """A first run of each way, which makes it ready and warm; and why the others cannot run
    here.
    """
    ready, failed = {}, {}
    for value in values:
        try:
            options: dict[str, Any] = {setting: value, "max_new_tokens": max_new_tokens}
            ready[value] = bench.run(warmup=1, verify=verify, **options)
        except (OcrPhasesError, RuntimeError) as error:
            failed[value] = one_sentence(error)
            free_memory()
    if not ready:
        raise OcrPhasesError(" ".join(failed.values()))
    return ready, failed


_PARTS: dict[str, Callable[[_Bench], dict[str, Any]]] = {
    "overhead": _overhead,
    "collectors": _collectors,
    "stage_coverage": _stage_coverage,
    "prefill": _prefill,
    "strategies": _strategies,
}


def _on_gpu(session: OCRSession) -> bool:
    return torch.device(session.device).type == "cuda"


def _host_ms(run: PhaseRun) -> float:
    """From the start of the first phase behind prepare to the end of the last, ms on the host's
    clock.
    """
    spans = run.spans[run.spans["phase"] != "prepare"]
    ends = spans["host_start_ms"] + spans["host_ms"]
    return float(ends.max() - spans["host_start_ms"].min())


def _busy(bench: _Bench, stage: str, **options: Any) -> dict[str, Any]:
    """How long the GPU works in a stage, ms, from one more run under the profiler; empty without a
    GPU.
    """
    if not _on_gpu(bench.session):
        return {}
    try:
        table = kernel_table(bench.run(kernels=True, **options))
    except (OcrPhasesError, RuntimeError) as error:  # what was timed stands
        return {"busy_failed": one_sentence(error)}
    busy = table.loc[table["stage"] == stage, "busy_ms"]
    return {"busy_ms": round(float(busy.iloc[0]), 4)} if len(busy) else {}


def _floor(run: PhaseRun) -> dict[str, Any]:
    """What the hardware allows a decode step in the middle of the run, ms, and by what; empty if
    unknown.
    """
    table = floor_table(run)
    steps = table.loc[table["stage"] == "decode_step", ["floor_ms", "bound_by", "source"]]
    names = ("floor_ms", "floor_bound_by", "floor_source")
    return {name: value for row in steps.to_numpy() for name, value in zip(names, row, strict=True)}


def _rounded(values: Any) -> list[float]:
    """Tenths of a microsecond: what is below is no information, and the file half as long."""
    return [round(float(value), 4) for value in values]


def _write(bench: dict[str, Any], target: str | Path) -> None:
    text = json.dumps(bench, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_atomic(target, text.encode() + b"\n")
