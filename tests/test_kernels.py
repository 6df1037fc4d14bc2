"""The kernel view: what belongs to whom in a trace, what follows from it, and that nothing timed changes."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import GOLDEN, PAGES, SMALL_DUMMY
from elements import Elements
from example_run import make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_example import TraceWriter, example_view, mini_trace, with_kernels
from refusals import refused
from wording import says

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse import kernels as analyse
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.sentences import kernel_account, verdict
from ocr_phases.cli import main
from ocr_phases.collectors import kernels as measure
from ocr_phases.collectors.trace import busy_ms, reduce_trace
from ocr_phases.show import results

PAGE = PAGES / "slide.png"
intervals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=25,
)


def rows(view: dict[str, Any], name: str, *keys: str) -> dict[tuple, dict[str, Any]]:
    """A table of the view by its key columns."""
    table = pd.DataFrame(view[name]).to_dict("records")
    return {tuple(row[key] for key in keys): row for row in table}


# -- intervals ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(intervals)
def test_busy_time_and_gaps_add_up(found: list[tuple[int, int]]) -> None:
    """All of it in one stage: from the first start to the last end the device is busy or idle."""
    ticks = {tick for start, end in found for tick in range(start, end)}
    assert busy_ms(found) == len(ticks)
    trace = TraceWriter()
    trace.stage("prefill", "prefill", 0, 100)
    for start, end in found:
        trace.launch(0, ("kernel", start, end))
    gaps = pd.DataFrame(reduce_trace(*trace.done())["gaps"])
    first, last = min((start for start, _ in found), default=0), max((end for _, end in found), default=0)
    assert gaps["idle_ms"].sum() == pytest.approx((last - first - len(ticks)) / 1e3)


@settings(deadline=None, max_examples=30)
@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=12))
def test_a_kernel_belongs_to_the_innermost_stage_and_counts_in_all_around_it(tree: list[Any]) -> None:
    """A tree drawn as stages: each opens, launches a kernel, holds its children, launches another, closes."""
    trace = TraceWriter()
    clock = 0
    inside: dict[str, int] = {}

    def draw(children: list[Any]) -> int:
        nonlocal clock
        begin, name, kernels = clock, f"stage {len(inside)}", 2
        inside[name] = 0
        for child in [None, *children, None]:
            clock += 10
            if child is None:
                trace.launch(clock, ("kernel", clock + 1, clock + 2))
            else:
                kernels += draw(child)
        clock += 10
        trace.stage("prefill", name, begin, clock)
        inside[name] = kernels
        return kernels

    draw(tree)
    view = reduce_trace(*trace.done())
    assert dict(zip(view["stages"]["stage"], view["stages"]["kernels"], strict=True)) == inside
    assert dict(zip(view["top"]["stage"], view["top"]["count"], strict=True)) == dict.fromkeys(inside, 2)


# -- the trace ----------------------------------------------------------------------------------------


def test_stages_of_the_written_trace() -> None:
    view = reduce_trace(*mini_trace())
    stages = rows(view, "stages", "phase", "stage", "view")
    expected = {  # calls, kernels, copies, launches, busy µs, host µs
        ("prefill", "prefill", ""): (1, 6, 1, 7, 400, 2000),
        ("prefill", "sam", "global"): (1, 2, 0, 2, 160, 290),
        ("prefill", "language_model", ""): (1, 3, 1, 4, 230, 800),
        ("prefill", "sampling", ""): (1, 1, 0, 1, 10, 100),
        ("decode", "decode", ""): (1, 7, 0, 3, 348, 1400),
        ("decode", "decode_step", ""): (2, 7, 0, 3, 348, 800),
        ("decode", "sampling", ""): (2, 0, 0, 0, 0, 160),
    }
    names = ("calls", "kernels", "copies", "launches", "busy_ms", "host_ms")
    for key, values in expected.items():
        scaled = (*values[:4], values[4] / 1e3, values[5] / 1e3)
        assert tuple(stages[key][name] for name in names) == pytest.approx(scaled), key
    assert stages.keys() == expected.keys()
    assert view["steps"] == 2
    assert view["unattributed"] == {"events": 1, "busy_ms": pytest.approx(0.01)}


def test_every_kernel_of_a_graph_belongs_to_the_step_that_launched_it() -> None:
    steps = rows(reduce_trace(*mini_trace()), "decode_steps", "step")
    assert [steps[step,]["kernels"] for step in (0, 1)] == [3, 4]  # the lost call's is in step 1
    assert [steps[step,]["launches"] for step in (0, 1)] == [1, 2]
    assert [steps[step,]["busy_ms"] for step in (0, 1)] == pytest.approx([0.169, 0.179])
    assert [steps[step,]["host_syncs"] for step in (0, 1)] == [1, 1]


def test_gaps_have_their_cause() -> None:
    gaps = rows(reduce_trace(*mini_trace()), "gaps", "phase", "stage", "cause")
    found = {key: (row["count"], row["idle_ms"]) for key, row in gaps.items()}
    assert found == {
        ("prefill", "language_model", "launch"): (2, pytest.approx(0.240)),
        ("prefill", "language_model", "device"): (1, pytest.approx(0.010)),
        ("prefill", "language_model", "host sync"): (1, pytest.approx(0.170)),
        ("prefill", "sampling", "launch"): (1, pytest.approx(0.440)),
        ("decode", "decode_step", "device"): (3, pytest.approx(0.052)),
        ("decode", "decode_step", "host sync"): (1, pytest.approx(0.330)),
    }


def test_the_cache_and_attention_are_told_by_range_operator_or_name() -> None:
    parts = rows(reduce_trace(*mini_trace()), "parts", "phase", "part", "by")
    assert {key: (row["kernels"], row["busy_ms"]) for key, row in parts.items()} == {
        ("prefill", "attention", "operator"): (1, pytest.approx(0.1)),
        ("prefill", "kv_update", "range"): (1, pytest.approx(0.02)),
        ("decode", "kv_update", "name"): (2, pytest.approx(0.02)),
    }


def test_waits_name_the_operator() -> None:
    syncs = rows(reduce_trace(*mini_trace()), "host_syncs", "phase", "stage", "operator")
    item = syncs["prefill", "language_model", "aten::item"]
    assert (item["through"], item["copy"], item["count"]) == ("aten::_local_scalar_dense", "DtoH", 1)
    assert item["wait_ms"] == pytest.approx(0.085)  # the copy's call and the wait behind it
    bare = syncs["decode", "sampling", ""]
    assert (bare["call"], bare["copy"], bare["count"]) == ("cudaStreamSynchronize", "", 2)
    assert len(syncs) == 2


def test_lost_ranges_are_refused() -> None:
    trace, spans = mini_trace()
    with refused():
        reduce_trace(trace, [*spans, ("prefill", "sam", "local", None)])


def test_an_empty_trace_gives_empty_tables() -> None:
    view = reduce_trace({"traceEvents": []}, [])
    assert view["steps"] == 0
    assert all(
        not column for name in ("stages", "top", "gaps", "host_syncs") for column in view[name].values()
    )


# -- the record and its tables ------------------------------------------------------------------------


def test_figures_of_decode_are_of_one_step() -> None:
    run = with_kernels(view=reduce_trace(*mini_trace()))
    table = analyse.kernel_table(run).set_index(["phase", "stage", "view"])
    assert tuple(analyse.kernel_table(run).columns) == analyse.KERNEL_COLUMNS
    step = table.loc["decode", "decode_step", ""]
    assert (step["kernels"], step["launches"]) == (3.5, 1.5)
    assert step["busy_ms"] == pytest.approx(0.174)
    spans = run.spans
    same = spans[(spans["stage"] == "decode_step") & spans["step"].isin([0, 1])]
    assert step["wall_ms"] == same["device_ms"].median() != run["inter_token_ms"]
    assert pd.isna(table.loc["decode", "decode", ""]["wall_ms"])
    assert table.loc["prefill", "prefill", ""]["wall_ms"] == pytest.approx(run["prefill_ms"])
    syncs = analyse.host_syncs(run)
    assert list(syncs["count"]) == [1.0, 1.0]
    assert list(syncs["phase"]) == ["prefill", "decode"]
    top = analyse.top_kernels(run, "decode_step")
    assert list(top["kernel"][:2]) == ["gemv", "flash_decode"]
    assert list(top["count"][:2]) == [1.0, 1.0]
    assert top["share"].sum() == pytest.approx(1.0)
    assert set(analyse.top_kernels(run, "prefill")["stage"]) == {"sam", "language_model", "sampling"}
    gaps = analyse.idle_gaps(run)
    assert gaps.loc[gaps["phase"] == "decode", "idle_ms"].sum() == pytest.approx(0.382 / 2)


def test_verdicts_with_and_without_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_kernels()
    table = analyse.stage_verdict(run).set_index(["phase", "stage", "view"])
    step = table.loc["decode", "decode_step", ""]
    assert step["verdict"] == "launch-bound"
    assert says(kernel_account(run), "Decode", "launch-bound")
    assert says(kernel_account(run), "CUDA graph")
    assert "would remove most of the wait for launches" in verdict(run)
    graph = dataclasses.replace(run, model={**run.model, "strategy": "cuda_graph"})
    assert "CUDA graph" not in kernel_account(graph)
    assert not {"prepare", "decode"} & set(table.index.get_level_values("stage"))
    # A wall as long as the device's work is bound by the device, and the floors say by what.
    spans = run.spans.copy()
    spans.loc[spans["stage"] == "decode_step", "device_ms"] = step["busy_ms"] * 1.1
    key = {"phase": "decode", "stage": "decode_step", "view": ""}
    cases = (
        ("bandwidth", 0.6, "bandwidth-bound"),
        ("arithmetic", 0.5, "compute-bound"),
        ("arithmetic", 0.09, "device-bound"),
    )
    for bound_by, share, word in cases:
        floor_ms = share * step["busy_ms"]
        floor = {"floor_ms": floor_ms, "bound_by": bound_by, "mfu": 0.01, "mbu": 0.41}
        monkeypatch.setattr(analyse, "floor_table", lambda _, floor=floor: pd.DataFrame([{**key, **floor}]))
        busy = dataclasses.replace(run, spans=spans)
        found = analyse.stage_verdict(busy).set_index("stage").loc["decode_step"]
        assert found["verdict"] == word
        assert found["mbu"] == 0.41
        assert found["of_floor"] == pytest.approx(share)
        sentence = kernel_account(busy)
        assert says(sentence, "Decode", word)
        assert says(sentence, "9.0 %") == (word == "device-bound")
    monkeypatch.undo()
    bare = analyse.stage_verdict(dataclasses.replace(run, spans=spans)).set_index("stage").loc["decode_step"]
    assert bare["verdict"] == "device-bound"


def test_a_port_that_waits_in_every_layer_is_host_sync_bound() -> None:
    trace = TraceWriter()
    trace.stage("decode", "decode", 0, 100_000)
    clock = 10.0
    trace.stage("decode", "decode_step", clock, 3000, step=0)
    for _ in range(12):
        trace.launch(clock, ("experts", clock + 10, clock + 20))
        trace.operator("aten::nonzero", clock + 30, clock + 90)
        trace.sync(clock + 35, clock + 80)
        clock += 200
    run = with_kernels(view={"tool": "x", **reduce_trace(*trace.done())})
    row = analyse.stage_verdict(run).set_index("stage").loc["decode_step"]
    assert row["verdict"] == "host-sync-bound"
    waiting = row["wall_ms"] - row["busy_ms"]
    assert row["idle_after_sync"] == pytest.approx(11 * 0.190 / waiting)
    syncs = analyse.host_syncs(run)
    assert list(syncs[["operator", "count"]].iloc[0]) == ["aten::nonzero", 12.0]


def test_vision_is_ruled_out_of_replayed_steps_by_their_busy_time() -> None:
    graph = with_kernels(make_run(cuda=True))
    graph = dataclasses.replace(graph, model={**graph.model, "strategy": "cuda_graph"})
    checks = {check.name: check for check in run_checks(graph)}
    assert checks["vision_in_prefill_only"].verdict == "pass"
    view = example_view()
    view["stages"]["phase"] = [
        "decode" if stage == "clip" else phase
        for phase, stage in zip(view["stages"]["phase"], view["stages"]["stage"], strict=True)
    ]
    checks = {check.name: check for check in run_checks(with_kernels(view=view))}
    assert checks["vision_in_prefill_only"].verdict == "fail"


# -- shown --------------------------------------------------------------------------------------------


def test_the_fragments_hold_the_figures_and_escape_names() -> None:
    view = reduce_trace(*mini_trace())
    view["top"]["kernel"][0] = "<script>alert(1)</script>"
    run = with_kernels(view={"tool": "torch.profiler 2.11.0", **view})
    elements = Elements(results.kernels(run).html())
    assert not elements.open
    assert not elements.stray
    assert "script" not in elements.tags()
    for words in ("whole phase", "launch-bound", "with 2 decode steps", "1 per step"):
        assert words in elements.said
    for words in ("aten::_local_scalar_dense", "KV cache, read (attention)", "<script>alert"):
        assert words in elements.said
    assert results.kernels(make_run()).html() == ""
    failed = dataclasses.replace(make_run(), kernels={"tool": "x", "error": "No kernel <b>."})
    assert "No kernel &lt;b&gt;." in results.kernels(failed).html()


def test_the_command_line_prints_the_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def measured(arguments: Any, **options: Any) -> PhaseRun:
        asked.update(options)
        return with_kernels()

    monkeypatch.setattr("ocr_phases.cli.measuring.measure", measured)
    assert main(["profile", str(PAGE), "--save", str(tmp_path / "run.json"), "--trace"]) == 0
    assert asked == {"kernels": True, "kernel_trace": tmp_path / "trace.json.gz"}
    out = capsys.readouterr().out
    assert "launch-bound" in out
    assert "aten::item" in out
    main(["profile", str(PAGE), "--save", str(tmp_path / "run.json"), "--overwrite"])
    assert asked["kernels"] is False


# -- the pass -----------------------------------------------------------------------------------------


def test_the_cpu_profilers_ranges_nest_and_the_timed_record_stays(
    tiny_session: OCRSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a device there are no kernels, but ranges, steps and the host's times are the real ones."""
    monkeypatch.setattr("ocr_phases.recorder.check_kernels", lambda *args, **options: None)
    options: dict[str, Any] = {"max_new_tokens": 12, "repeats": 2, "warmup": 0}
    trace = tmp_path / "trace.json.gz"
    run = tiny_session.run_inference(PAGE, **options, kernels=True, kernel_steps=3, kernel_trace=trace)
    plain = tiny_session.run_inference(PAGE, **options)
    assert run.repeats == [0, 1]
    assert run.results == plain.results
    assert run.cache == plain.cache
    assert run.live_checks == plain.live_checks
    identity = ["repeat", "phase", "stage", "view", "step"]
    pd.testing.assert_frame_equal(run.spans[identity], plain.spans[identity])
    view = run.kernels
    assert view is not None
    assert "error" not in view
    assert view["decode_steps"]["step"] == [0, 1, 2]
    stages = rows(view, "stages", "phase", "stage", "view")
    known = run.spans[identity[1:4]].drop_duplicates().itertuples(index=False, name=None)
    assert set(stages) == set(known)
    assert stages["decode", "language_model", ""]["calls"] == 3
    inner = sum(row["host_ms"] for (phase, stage, _), row in stages.items() if phase != stage == "sam")
    assert 0 < inner <= stages["prefill", "prefill", ""]["host_ms"]
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    layers = tiny_session.model.config.get_text_config().num_hidden_layers
    updates = [event for event in events if event.get("name") == measure.KV_RANGE]
    assert len(updates) == layers * 4  # of the prefill and three steps
    forwards = [event for event in events if event.get("name") == "language_model"]
    assert all(any(_within(one, forward) for forward in forwards) for one in updates)


def _within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("cpu", {"generate": False}),
        ("cuda", {"generate": True}),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_runs(device: str, options: dict[str, Any]) -> None:
    with refused():
        measure.check_kernels(device, trace=None, **options)


# -- on a GPU -----------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
@pytest.mark.parametrize("preset", ["base", "gundam"])
def test_busy_time_is_the_profilers_own(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 3 % of what torch.profiler sums up for the same ranges by its own links."""
    session = OCRSession.load(SMALL_DUMMY, device="cuda")
    kept: dict[str, Any] = {}

    def keep(*args: Any) -> Any:
        kept["run"] = measure_run(*args)
        return kept["run"]

    measure_run = measure.profiled_run
    monkeypatch.setattr(measure, "profiled_run", keep)
    options: dict[str, Any] = {"preset": preset, "max_new_tokens": 16, "repeats": 1}
    page = GOLDEN / "pages" / "a4_1240x1754.png"
    run = session.run_inference(page, **options, kernels=True, kernel_steps=8)
    assert run.kernels is not None
    assert "error" not in run.kernels, run.kernels
    theirs: dict[str, float] = defaultdict(float)
    stages = set(run.kernels["stages"]["stage"])
    for event in kept["run"][0].events():
        if event.name in stages and event.device_type == torch.autograd.DeviceType.CPU:
            theirs[event.name] += _device_us(event, stages) / 1e3
    ours = pd.DataFrame(run.kernels["stages"]).groupby("stage")["busy_ms"].sum()
    for stage, ms in theirs.items():
        assert ours[stage] == pytest.approx(ms, rel=0.03, abs=0.005), stage
    steps = pd.DataFrame(run.kernels["decode_steps"])
    assert (steps["host_syncs"] == 1).all()
    parts = set(zip(run.kernels["parts"]["phase"], run.kernels["parts"]["part"], strict=True))
    assert ("decode", "kv_update") in parts


def _device_us(event: Any, stages: set[str]) -> float:
    """Kernels of an event and all inside it; a range's own shadow on the device is no kernel."""
    own = sum(kernel.duration for kernel in event.kernels if kernel.name not in stages)
    return own + sum(_device_us(child, stages) for child in event.cpu_children)
