"""The kernel view: what belongs to whom in a trace, what follows from it, and that nothing timed
changes.

What is said of it is in ``tests/approved``: records of all strategies there have a view.
"""

import gzip
import json
from collections import defaultdict

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
from ocr_phases.versions import asset

PAGE = PAGES / "slide.png"
STAGE = ["phase", "stage", "view"]


VIEW = to_plain(reduce_trace(*mini_trace()))


@pytest.mark.parametrize(
    ("table", "keys", "figures", "expected"),
    [
        (
            *("stages", "phase stage view", "calls kernels copies launches busy_ms host_ms"),
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
        (  # every kernel of a graph is its step's; a call that the trace lost is in step 1
            *("decode_steps", "step", "kernels launches busy_ms host_syncs"),
            {0: (3, 1, 0.169, 1), 1: (4, 2, 0.179, 1)},
        ),
        (
            *("gaps", "phase stage cause", "count idle_ms"),
            {
                ("prefill", "language_model", "launch"): (2, 0.240),
                ("prefill", "language_model", "device"): (1, 0.010),
                ("prefill", "language_model", "host sync"): (1, 0.170),
                ("prefill", "sampling", "launch"): (1, 0.440),
                ("decode", "decode_step", "device"): (3, 0.052),
                ("decode", "decode_step", "host sync"): (1, 0.330),
            },
        ),
        (
            *("parts", "phase part by", "kernels busy_ms"),
            {
                ("prefill", "attention", "operator"): (1, 0.1),
                ("prefill", "kv_update", "range"): (1, 0.02),
                ("decode", "kv_update", "name"): (2, 0.02),
            },
        ),
        (  # the copy's call and the wait behind it
            *("host_syncs", "phase stage operator through copy", "count wait_ms"),
            {
                ("prefill", "language_model", "aten::item", "aten::_local_scalar_dense", "DtoH"): (
                    1,
                    0.085,
                ),
                ("decode", "sampling", "", "", ""): (2, 0.08),
            },
        ),
    ],
)
def test_the_tables_of_the_written_trace(table, keys, figures, expected):
    found = pd.DataFrame(VIEW[table]).set_index(keys.split())[figures.split()]
    assert sorted(found.index) == sorted(expected)
    for key, values in expected.items():
        assert found.loc[key].tolist() == pytest.approx([*values]), key
    assert VIEW["steps"] == 2
    assert VIEW["unattributed"] == {"events": 1, "busy_ms": pytest.approx(0.01)}


def test_a_replayed_graph_has_the_stages_of_the_same_step_launched_kernel_by_kernel():
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
    assert (language_model["kernels"], head["kernels"]) == (4, 2)  # of two steps
    assert language_model["busy_ms"] == pytest.approx(2 * 0.070)
    assert head["busy_ms"] == pytest.approx(2 * 0.099)
    assert language_model["replay_ms"] == pytest.approx(2 * 0.070)
    whole = stages.loc[("decode", "decode_step", "")]
    expected = pd.DataFrame(VIEW["stages"]).set_index(STAGE).loc[("decode", "decode_step", "")]
    assert whole[expected.index].tolist() == expected.tolist()  # the whole stays what it was
    parts = pd.DataFrame(view["parts"]).set_index(["phase", "part", "by"])
    assert parts.loc[("decode", "attention", "order"), "kernels"] == 2
    assert parts.loc[("decode", "kv_update", "order"), "busy_ms"] == pytest.approx(0.02)


def test_a_compiled_step_has_its_stages_by_who_reads_the_head():
    kernels = kernels_of_step(*launched_step(head_by_shape=True), head_shape=(50, 8))
    assert [kernel.stage for kernel in kernels] == ["language_model", "language_model", "lm_head"]


def test_a_graph_of_other_kernels_has_no_stages():
    kernels = [*kernels_of_step(*launched_step()), StepKernel("another", "lm_head")]
    assert to_plain(reduce_trace(*mini_trace(), step_kernels=kernels)) == VIEW


def test_kernel_tables_stand_side_by_side(capsys, tmp_path):
    runs = asset("data", "runs")
    eager = PhaseRun.load(runs / "h200-dummy-base.json.gz")
    replayed = PhaseRun.load(runs / "h100-energy-deepseek-ocr-cuda-graph.json.gz")

    table = compare(eager, replayed, labels=["eager", "graph"]).kernels.set_index(STAGE)

    step = table.loc[("decode", "decode_step", "")]
    each = [analyse.kernel_table(run).set_index(STAGE) for run in (eager, replayed)]
    for label, alone in zip(("eager", "graph"), each, strict=True):
        row = alone.loc[("decode", "decode_step", "")]
        assert step[f"kernels {label}"] == row["kernels"]
        assert step[f"launches {label}"] == row["launches"]
    assert step["launches eager"] > 100 > step["launches graph"]
    assert step["busy_ratio"] == step["busy_ms graph"] / step["busy_ms eager"]
    assert set(table.index) == set(each[0].index) | set(each[1].index)
    with pytest.raises(OcrPhasesError, match="kernel view"):
        _ = compare(eager, make_run()).kernels

    paths = [str(runs / f"h100-{name}.json.gz") for name in ("kernels-base", "kernels-gundam")]
    assert main(["compare", *paths, "--kernels", "--out", str(tmp_path / "out")]) == 0
    assert "Kernels of each stage" in capsys.readouterr().out


def test_the_calls_of_an_amd_gpu_are_read_like_those_of_nvidia():
    trace, spans = mini_trace()
    for event in trace["traceEvents"]:
        if event.get("cat") == "cuda_runtime":  # torch's profiler keeps this name for both
            event["name"] = event["name"].replace("cuda", "hip")
    view = to_plain(reduce_trace(trace, spans))
    view["host_syncs"]["call"] = [
        call.replace("hip", "cuda") for call in view["host_syncs"]["call"]
    ]
    assert view == VIEW


def test_lost_ranges_are_refused_and_an_empty_trace_gives_empty_tables():
    trace, spans = mini_trace()
    with refused():
        reduce_trace(trace, [*spans, ("prefill", "sam", "local", None)])
    view = to_plain(reduce_trace({"traceEvents": []}, []))
    tables = [view[name] for name in ("stages", "top", "gaps", "host_syncs")]
    assert view["steps"] == 0 and not any(column for table in tables for column in table.values())


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
def test_a_step_is_bound_by_the_host_or_as_its_floor_is(bound_by, share, pace, word, monkeypatch):
    """The step of the written trace is busy for 0.174 ms and idle for 0.165 ms after a wait of the
    host.
    """
    floor = {"phase": "decode", "stage": "decode_step", "view": "", "floor_ms": share * 0.174}
    table = pd.DataFrame([floor | {"bound_by": bound_by, "mfu": 0.01, "mbu": 0.41}])
    monkeypatch.setattr(analyse, "trusted_floors", lambda _: table)
    # Only the two profiled steps count.
    run = with_steps(with_kernels(view=VIEW), lambda step, _: 0.174 * pace * (1 if step < 2 else 9))
    found = analyse.stage_verdict(run).set_index("stage").loc["decode_step"]
    assert analyse.kernel_table(run).set_index("stage").loc[
        "decode_step", "busy_ms"
    ] == pytest.approx(0.174)
    assert found["verdict"] == word
    measured, after = (
        found[["mbu", "of_floor", "idle_after_sync"]].tolist(),
        0.165 / 0.174 / (pace - 1),
    )
    assert measured == pytest.approx([0.41, share, min(after, 1.0)], nan_ok=True)


def test_vision_is_ruled_out_of_replayed_steps_by_their_busy_time():
    graph = altered(with_kernels(), model={"strategy": "cuda_graph"})
    assert check_of(graph, "vision_in_prefill_only").verdict == "pass"
    view = to_plain(example_view())
    places = zip(view["stages"]["phase"], view["stages"]["stage"], strict=True)
    view["stages"]["phase"] = ["decode" if stage == "clip" else phase for phase, stage in places]
    assert check_of(with_kernels(view=view), "vision_in_prefill_only").verdict == "fail"


def test_names_are_escaped_and_a_view_that_failed_says_why():
    view = to_plain(reduce_trace(*mini_trace(), tool="torch.profiler"))
    view["top"]["kernel"][0] = "<script>alert(1)</script>"
    elements = Elements(kernels_section(with_kernels(view=view)).html())
    assert not elements.open and not elements.stray and "script" not in elements.tags()
    assert "<script>alert" in elements.said
    assert kernels_section(make_run()).html() == ""
    failed = altered(make_run(), kernels={"tool": "x", "error": "No kernel <b>."})
    assert "No kernel &lt;b&gt;." in kernels_section(failed).html()


def test_a_trace_is_taken_with_the_view(tmp_path, monkeypatch):
    asked = []

    def measured(arguments, **options):
        asked.append(options)
        return make_run()

    monkeypatch.setattr("ocr_phases.cli.measuring.measure", measured)
    command = ["profile", str(PAGE), "--save", str(tmp_path / "run.json"), "--overwrite"]
    assert main([*command, "--trace"]) == main(command) == 0
    assert asked[0] == {"kernels": True, "kernel_trace": tmp_path / "trace.json.gz"}
    assert asked[1]["kernels"] is False


def test_the_cpu_profilers_ranges_nest_and_the_timed_record_stays(
    golden_session, tmp_path, monkeypatch
):
    """Without a device there are no kernels, but ranges, steps and the host's times are the real
    ones.
    """
    monkeypatch.setattr(
        "ocr_phases.measure.measurement.check_kernels", lambda *args, **options: None
    )
    options = {"preset": "tiny", "max_new_tokens": 4, "repeats": 1, "warmup": 0}
    options |= {"token_probabilities": False, "ceilings": False}
    trace = tmp_path / "trace.json.gz"
    run = golden_session.run_inference(
        PAGE, **options, kernels=True, kernel_steps=3, kernel_trace=trace
    )
    plain = golden_session.run_inference(PAGE, **options)
    for part in ("results", "cache", "live_checks"):
        assert getattr(run, part) == getattr(plain, part)
    identity = ["repeat", *STAGE, "step"]
    pd.testing.assert_frame_equal(run.spans[identity], plain.spans[identity])
    view = run.kernels
    assert isinstance(view, KernelsPart)
    assert view.decode_steps.step == [0, 1, 2]
    stages = pd.DataFrame(columns_of(view.stages)).set_index(STAGE)
    assert {*stages.index} == {*run.spans[STAGE].itertuples(index=False, name=None)}
    assert stages.loc[("decode", "language_model", ""), "calls"] == 3
    sam, whole = (
        stages["host_ms"]["prefill", "sam", "global"],
        stages["host_ms"]["prefill", "prefill", ""],
    )
    assert 0 < sam <= whole
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    layers = golden_session.model.config.get_text_config().num_hidden_layers
    updates = [event for event in events if event.get("name") == measure.KV_RANGE]
    assert len(updates) == layers * 4  # of the prefill and three steps
    forwards = [event for event in events if event.get("name") == "language_model"]
    ends = [(each["ts"], each["ts"] + each["dur"]) for each in forwards]
    for each in updates:
        assert any(start <= each["ts"] <= each["ts"] + each["dur"] <= end for start, end in ends)


def test_a_single_generate_has_no_view():
    with refused():
        measure.check_kernels("cuda", trace=None, generate=True)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
@pytest.mark.parametrize("preset", ["base", "gundam"])
def test_busy_time_is_the_profilers_own(preset, monkeypatch):
    """Within 3 % of what torch.profiler sums up for the same ranges by its own links."""
    session = OCRSession.load(SMALL_DUMMY, device="cuda")
    page = GOLDEN / "pages" / "a4_1240x1754.png"
    options = {"preset": preset, "max_new_tokens": 16, "repeats": 1}
    options |= {"kernels": True, "kernel_steps": 8}
    # In the first profile of a process the two sums have once differed by a tenth, because the
    # profiler itself was still being set up; in later ones they agree.
    session.run_inference(page, **options)
    profilers = []
    profiled_run = measure.profiled_run

    def keep_profiler(*args):
        profiler, spans = profiled_run(*args)
        profilers.append(profiler)
        return profiler, spans

    monkeypatch.setattr(measure, "profiled_run", keep_profiler)
    view = session.run_inference(page, **options).kernels
    assert isinstance(view, KernelsPart), view
    theirs = defaultdict(float)
    stages = set(view.stages.stage)
    for event in profilers[0].events():
        if event.name in stages and event.device_type == torch.autograd.DeviceType.CPU:
            theirs[event.name] += _device_us(event, stages) / 1e3
    ours = pd.DataFrame(columns_of(view.stages)).groupby("stage")["busy_ms"].sum()
    for stage, ms in theirs.items():
        assert ours[stage] == pytest.approx(ms, rel=0.03, abs=0.005), stage
    assert {*columns_of(view.decode_steps)["host_syncs"]} == {1}
    assert ("decode", "kv_update") in zip(view.parts.phase, view.parts.part, strict=True)


def _device_us(event, stages):
    """Kernels of an event and all inside it; a range's own shadow on the device is no kernel."""
    own = sum(kernel.duration for kernel in event.kernels if kernel.name not in stages)
    return own + sum(_device_us(child, stages) for child in event.cpu_children)
