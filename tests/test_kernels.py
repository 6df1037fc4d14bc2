"""The kernel view: what belongs to whom in a trace, what follows from it, and that nothing timed
changes.

What is said of it is in ``tests/approved``: records of all strategies there have a view.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import GOLDEN, PAGES, SMALL_DUMMY
from elements import Elements
from example_run import altered, check_of, make_run, with_steps
from kernel_example import example_view, launched_step, mini_trace, with_kernels
from refusals import refused

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, compare
from ocr_phases.analyse import kernels as analyse
from ocr_phases.cli import main
from ocr_phases.measure import kernels as measure
from ocr_phases.measure.replayed import StepKernel, kernels_of_step
from ocr_phases.measure.trace import reduce_trace
from ocr_phases.record.parts import KernelsPart, columns_of, to_plain
from ocr_phases.show.kernel_section import kernels_section
from ocr_phases.stages import ENCODERS
from ocr_phases.versions import asset

PAGE = PAGES / "slide.png"
#: The columns by which a stage is known.
STAGE = ["phase", "stage", "view"]
DECODE_STEP = ("decode", "decode_step", "")

VIEW = to_plain(reduce_trace(*mini_trace()))


@dataclass(frozen=True)
class ExpectedTable:
    """A table of the kernel view: its keys, and the figures of each key."""

    keys: Sequence[str]
    figures: Sequence[str]
    rows: Mapping[Any, Sequence[float]]


#: The tables of the written trace.
TABLES = {
    "stages": ExpectedTable(
        STAGE,
        ["calls", "kernels", "copies", "launches", "busy_ms", "host_ms"],
        {
            ("prefill", "prefill", ""): (1, 6, 1, 7, 0.400, 2.0),
            ("prefill", "sam", "global"): (1, 2, 0, 2, 0.160, 0.29),
            ("prefill", "language_model", ""): (1, 3, 1, 4, 0.230, 0.8),
            ("prefill", "sampling", ""): (1, 1, 0, 1, 0.010, 0.1),
            ("decode", "decode", ""): (1, 7, 0, 3, 0.348, 1.4),
            ("decode", "decode_step", ""): (2, 7, 0, 3, 0.348, 0.8),
            ("decode", "sampling", ""): (2, 0, 0, 0, 0.0, 0.16),
        },
    ),
    # Every kernel of a graph is its step's; a call that the trace lost is in step 1.
    "decode_steps": ExpectedTable(
        ["step"],
        ["kernels", "launches", "busy_ms", "host_syncs"],
        {0: (3, 1, 0.169, 1), 1: (4, 2, 0.179, 1)},
    ),
    "gaps": ExpectedTable(
        ["phase", "stage", "cause"],
        ["count", "idle_ms"],
        {
            ("prefill", "language_model", "launch"): (2, 0.240),
            ("prefill", "language_model", "device"): (1, 0.010),
            ("prefill", "language_model", "host sync"): (1, 0.170),
            ("prefill", "sampling", "launch"): (1, 0.440),
            ("decode", "decode_step", "device"): (3, 0.052),
            ("decode", "decode_step", "host sync"): (1, 0.330),
        },
    ),
    "parts": ExpectedTable(
        ["phase", "part", "by"],
        ["kernels", "busy_ms"],
        {
            ("prefill", "attention", "operator"): (1, 0.1),
            ("prefill", "kv_update", "range"): (1, 0.02),
            ("decode", "kv_update", "name"): (2, 0.02),
        },
    ),
    # The copy's call and the wait behind it.
    "host_syncs": ExpectedTable(
        ["phase", "stage", "operator", "through", "copy"],
        ["count", "wait_ms"],
        {
            ("prefill", "language_model", "aten::item", "aten::_local_scalar_dense", "DtoH"): (
                1,
                0.085,
            ),
            ("decode", "sampling", "", "", ""): (2, 0.08),
        },
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_written_trace(name: str) -> None:
    expected = TABLES[name]

    table = pd.DataFrame(VIEW[name]).set_index(expected.keys)[expected.figures]

    assert list(table.index) == list(expected.rows)
    for key, figures in expected.rows.items():
        assert table.loc[key].tolist() == pytest.approx(list(figures)), key


def test_what_lies_in_no_range_belongs_to_nothing() -> None:
    assert VIEW["steps"] == 2
    assert VIEW["unattributed"] == {"events": 1, "busy_ms": pytest.approx(0.01)}


# -- the stages of a replayed step -----------------------------------------------------------------


def test_a_replayed_graph_has_the_stages_of_the_same_step_launched_kernel_by_kernel() -> None:
    kernels = kernels_of_step(*launched_step())
    assert [(kernel.stage, kernel.part) for kernel in kernels] == [
        ("language_model", "kv_update"),
        ("language_model", "attention"),
        ("lm_head", ""),
    ]

    view = to_plain(reduce_trace(*mini_trace(), step_kernels=kernels))

    stages = pd.DataFrame(view["stages"]).set_index(STAGE)
    language_model = stages.loc[("decode", "language_model", "")]
    head = stages.loc[("decode", "lm_head", "")]
    assert language_model["kernels"] == 4  # of two steps
    assert language_model["busy_ms"] == pytest.approx(2 * 0.070)
    assert language_model["replay_ms"] == pytest.approx(2 * 0.070)
    assert head["kernels"] == 2
    assert head["busy_ms"] == pytest.approx(2 * 0.099)

    without_stages = pd.DataFrame(VIEW["stages"]).set_index(STAGE).loc[DECODE_STEP]
    whole = stages.loc[DECODE_STEP]
    assert whole[without_stages.index].tolist() == without_stages.tolist()
    parts = pd.DataFrame(view["parts"]).set_index(["phase", "part", "by"])
    assert parts.loc[("decode", "attention", "order"), "kernels"] == 2
    assert parts.loc[("decode", "kv_update", "order"), "busy_ms"] == pytest.approx(0.02)


def test_a_compiled_step_has_its_stages_by_who_reads_the_head() -> None:
    kernels = kernels_of_step(*launched_step(head_by_shape=True), head_shape=(50, 8))
    assert [kernel.stage for kernel in kernels] == ["language_model", "language_model", "lm_head"]


def test_a_graph_of_other_kernels_has_no_stages() -> None:
    kernels = [*kernels_of_step(*launched_step()), StepKernel("another", "lm_head")]
    assert to_plain(reduce_trace(*mini_trace(), step_kernels=kernels)) == VIEW


# -- odd traces ------------------------------------------------------------------------------------


def test_the_calls_of_an_amd_gpu_are_read_like_those_of_nvidia() -> None:
    trace, spans = mini_trace()
    for event in trace["traceEvents"]:
        if event.get("cat") == "cuda_runtime":  # torch's profiler keeps this name for both
            event["name"] = event["name"].replace("cuda", "hip")

    view = to_plain(reduce_trace(trace, spans))

    calls = view["host_syncs"]["call"]
    view["host_syncs"]["call"] = [call.replace("hip", "cuda") for call in calls]
    assert view == VIEW


def test_a_trace_without_the_range_of_a_span_is_refused() -> None:
    trace, spans = mini_trace()
    with refused():
        reduce_trace(trace, [*spans, ("prefill", "sam", "local", None)])


def test_an_empty_trace_gives_empty_tables() -> None:
    view = to_plain(reduce_trace({"traceEvents": []}, []))

    assert view["steps"] == 0
    for name in ("stages", "top", "gaps", "host_syncs"):
        for column in view[name].values():
            assert not column


# -- what is made of a view ------------------------------------------------------------------------


def kernels_by_stage(run: PhaseRun) -> pd.DataFrame:
    """The table of kernels, by the stage."""
    return analyse.kernel_table(run).set_index(STAGE)


def test_the_kernel_tables_of_two_records_stand_side_by_side() -> None:
    runs = asset("data", "runs")
    eager = PhaseRun.load(runs / "h200-dummy-base.json.gz")
    graph = PhaseRun.load(runs / "h100-energy-deepseek-ocr-cuda-graph.json.gz")

    table = compare(eager, graph, labels=["eager", "graph"]).kernels.set_index(STAGE)

    step = table.loc[DECODE_STEP]
    of_eager = kernels_by_stage(eager)
    of_graph = kernels_by_stage(graph)
    assert step["kernels eager"] == of_eager.loc[DECODE_STEP, "kernels"]
    assert step["launches eager"] == of_eager.loc[DECODE_STEP, "launches"]
    assert step["kernels graph"] == of_graph.loc[DECODE_STEP, "kernels"]
    assert step["launches graph"] == of_graph.loc[DECODE_STEP, "launches"]
    assert step["launches eager"] > 100 > step["launches graph"]
    assert step["busy_ratio"] == step["busy_ms graph"] / step["busy_ms eager"]
    assert set(table.index) == set(of_eager.index) | set(of_graph.index)


def test_records_without_a_kernel_view_have_no_kernels_to_compare() -> None:
    comparison = compare(with_kernels(), make_run())
    with pytest.raises(OcrPhasesError, match="kernel view"):
        _ = comparison.kernels


def test_the_command_line_compares_kernels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = asset("data", "runs")
    base = str(runs / "h100-kernels-base.json.gz")
    gundam = str(runs / "h100-kernels-gundam.json.gz")

    assert main(["compare", base, gundam, "--kernels", "--out", str(tmp_path / "out")]) == 0

    assert "Kernels of each stage" in capsys.readouterr().out


#: The step of the written trace, in ms.
STEP_BUSY_MS = 0.174
IDLE_AFTER_SYNC_MS = 0.165


@pytest.mark.parametrize(
    ("bound_by", "share", "pace", "word"),
    [
        ("bandwidth", 0.6, 1.1, "bandwidth-bound"),
        ("bandwidth", 0.6, 8.0, "launch-bound"),
        ("arithmetic", 0.6, 2.5, "host-sync-bound"),
        ("arithmetic", 0.5, 1.1, "compute-bound"),
        ("arithmetic", 0.09, 1.1, "device-bound"),
        ("", np.nan, 1.1, "device-bound"),
    ],
)
def test_a_step_is_bound_by_the_host_or_as_its_floor_is(
    bound_by: str, share: float, pace: float, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A floor is ``share`` of the time that the step is busy, the whole step is ``pace`` of it."""
    floor = {
        "phase": "decode",
        "stage": "decode_step",
        "view": "",
        "floor_ms": share * STEP_BUSY_MS,
        "bound_by": bound_by,
        "mfu": 0.01,
        "mbu": 0.41,
    }
    monkeypatch.setattr(analyse, "trusted_floors", lambda _: pd.DataFrame([floor]))

    def step_ms(step: int, repeat: int) -> float:
        is_profiled = step < 2  # the others do not count
        return STEP_BUSY_MS * pace * (1 if is_profiled else 9)

    run = with_steps(with_kernels(view=VIEW), step_ms)

    found = analyse.stage_verdict(run).set_index("stage").loc["decode_step"]

    busy_ms = analyse.kernel_table(run).set_index("stage").loc["decode_step", "busy_ms"]
    idle_ms = STEP_BUSY_MS * (pace - 1)
    assert busy_ms == pytest.approx(STEP_BUSY_MS)
    assert found["verdict"] == word
    assert found["mbu"] == pytest.approx(0.41)
    assert found["of_floor"] == pytest.approx(share, nan_ok=True)
    assert found["idle_after_sync"] == pytest.approx(min(IDLE_AFTER_SYNC_MS / idle_ms, 1.0))


def test_replayed_steps_are_too_short_for_vision() -> None:
    graph = altered(with_kernels(), model={"strategy": "cuda_graph"})
    assert check_of(graph, "vision_in_prefill_only").verdict == "pass"


def test_vision_kernels_in_decode_fail() -> None:
    view = to_plain(example_view())
    stages = view["stages"]
    for row, stage in enumerate(stages["stage"]):
        if stage == "clip":
            stages["phase"][row] = "decode"

    assert check_of(with_kernels(view=view), "vision_in_prefill_only").verdict == "fail"


@pytest.mark.parametrize(("strategy", "verdict"), [("eager", "pass"), ("cuda_graph", "n/a")])
def test_a_view_without_vision_is_no_evidence_of_its_own(strategy: str, verdict: str) -> None:
    view = to_plain(example_view())
    stages = view["stages"]
    for row, stage in enumerate(stages["stage"]):
        if stage in ENCODERS:
            stages["stage"][row] = "projector"
    graph = altered(with_kernels(view=view), model={"strategy": strategy})

    check = check_of(graph, "vision_in_prefill_only")

    assert check.verdict == verdict
    if verdict == "pass":
        assert "the profiler saw no step, or no vision" in check.measured


def test_a_kernels_name_is_escaped() -> None:
    view = to_plain(reduce_trace(*mini_trace(), tool="torch.profiler"))
    view["top"]["kernel"][0] = "<script>alert(1)</script>"

    elements = Elements(kernels_section(with_kernels(view=view)).html())

    assert not elements.open
    assert not elements.stray
    assert "script" not in elements.tags()
    assert "<script>alert" in elements.said


def test_a_record_without_a_view_has_no_section_and_one_whose_view_failed_says_why() -> None:
    failed = altered(make_run(), kernels={"tool": "x", "error": "No kernel <b>."})

    assert kernels_section(make_run()).html() == ""
    assert "No kernel &lt;b&gt;." in kernels_section(failed).html()


def test_a_trace_is_taken_with_the_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_options = []

    def measured(arguments: Any, **options: Any) -> PhaseRun:
        all_options.append(options)
        return make_run()

    monkeypatch.setattr("ocr_phases.cli.measuring.measure", measured)
    command = ["profile", str(PAGE), "--save", str(tmp_path / "run.json"), "--overwrite"]

    assert main([*command, "--trace"]) == 0
    assert main(command) == 0

    with_trace, without_trace = all_options
    assert with_trace == {"kernels": True, "kernel_trace": tmp_path / "trace.json.gz"}
    assert without_trace["kernels"] is False


# -- real profiles ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profiled:
    """A measurement with a kernel view of three steps, its trace, and the same without."""

    run: PhaseRun
    trace: list[dict[str, Any]]
    plain: PhaseRun


@pytest.fixture(scope="module")
def profiled(golden_session: OCRSession, tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    """Without a device there are no kernels, but ranges, steps and the host's times are the real
    ones.
    """
    trace = tmp_path_factory.mktemp("kernels") / "trace.json.gz"
    settings = {
        "preset": "tiny",
        "max_new_tokens": 4,
        "repeats": 1,
        "warmup": 0,
        "token_probabilities": False,
        "ceilings": False,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ocr_phases.measure.measurement.check_kernels", lambda *args, **options: None)
        run = golden_session.run_inference(
            PAGE, **settings, kernels=True, kernel_steps=3, kernel_trace=trace
        )
    plain = golden_session.run_inference(PAGE, **settings)
    return Profiled(run, json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"], plain)


def test_the_timed_record_is_the_same_with_a_profile(profiled: Profiled) -> None:
    for part in ("results", "cache", "live_checks"):
        assert getattr(profiled.run, part) == getattr(profiled.plain, part)
    identity = ["repeat", *STAGE, "step"]
    pd.testing.assert_frame_equal(profiled.run.spans[identity], profiled.plain.spans[identity])


def test_the_view_has_the_stages_of_the_record(profiled: Profiled) -> None:
    view = profiled.run.kernels

    assert isinstance(view, KernelsPart)
    assert view.decode_steps.step == [0, 1, 2]
    stages = pd.DataFrame(columns_of(view.stages)).set_index(STAGE)
    assert set(stages.index) == set(profiled.run.spans[STAGE].itertuples(index=False, name=None))
    assert stages.loc[("decode", "language_model", ""), "calls"] == 3
    sam_ms = stages.loc[("prefill", "sam", "global"), "host_ms"]
    prefill_ms = stages.loc[("prefill", "prefill", ""), "host_ms"]
    assert 0 < sam_ms <= prefill_ms


def test_every_update_of_the_cache_lies_in_the_language_model(
    profiled: Profiled, golden_session: OCRSession
) -> None:
    def times_of(name: str) -> list[tuple[float, float]]:
        """Begin and end of each range with this name."""
        events = [event for event in profiled.trace if event.get("name") == name]
        return [(event["ts"], event["ts"] + event["dur"]) for event in events]

    updates = times_of(measure.KV_RANGE)
    forwards = times_of("language_model")

    layers = golden_session.model.config.get_text_config().num_hidden_layers
    assert len(updates) == layers * 4  # of the prefill and three steps
    for begin, end in updates:
        assert any(start <= begin <= end <= stop for start, stop in forwards)


def test_a_single_generate_has_no_view() -> None:
    with refused():
        measure.check_kernels("cuda", trace=None, generate=True)


def device_us(event: Any, stages: set[str]) -> float:
    """Kernels of an event and all inside it; a range's own shadow on the device is no kernel."""
    total = sum(kernel.duration for kernel in event.kernels if kernel.name not in stages)
    for child in event.cpu_children:
        total += device_us(child, stages)
    return total


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
@pytest.mark.parametrize("preset", ["base", "gundam"])
def test_busy_time_is_the_profilers_own(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 3 % of what torch.profiler sums up for the same ranges by its own links."""
    session = OCRSession.load(SMALL_DUMMY, device="cuda")
    page = GOLDEN / "pages" / "a4_1240x1754.png"
    settings = {
        "preset": preset,
        "max_new_tokens": 16,
        "repeats": 1,
        "kernels": True,
        "kernel_steps": 8,
    }
    # In the first profile of a process the two sums have once differed by a tenth, because the
    # profiler itself was still being set up; in later ones they agree.
    session.run_inference(page, **settings)
    profilers = []
    profiled_run = measure.profiled_run

    def keep_profiler(*args: Any) -> Any:
        profiler, spans = profiled_run(*args)
        profilers.append(profiler)
        return profiler, spans

    monkeypatch.setattr(measure, "profiled_run", keep_profiler)
    view = session.run_inference(page, **settings).kernels
    assert isinstance(view, KernelsPart), view

    profiler_ms: dict[str, float] = defaultdict(float)
    stages = set(view.stages.stage)
    for event in profilers[0].events():
        if event.name in stages and event.device_type == torch.autograd.DeviceType.CPU:
            profiler_ms[event.name] += device_us(event, stages) / 1e3
    view_ms = pd.DataFrame(columns_of(view.stages)).groupby("stage")["busy_ms"].sum()
    for stage, ms in profiler_ms.items():
        assert view_ms[stage] == pytest.approx(ms, rel=0.03, abs=0.005), stage
    assert set(columns_of(view.decode_steps)["host_syncs"]) == {1}
    assert ("decode", "kv_update") in zip(view.parts.phase, view.parts.part, strict=True)
