"""A timeline's picture tells the time that phases took, without the pauses between a person's
calls.
"""

import re
from collections.abc import Sequence

import pandas as pd
import pytest
from conftest import PAGES
from elements import Elements
from example_run import make_run

from ocr_phases import Timeline
from ocr_phases.record import make_spans
from ocr_phases.show.timeline_plot import plot_spans
from ocr_phases.show.timeline_section import timeline_bundle
from ocr_phases.text import ms_text

PAUSE = 5_000.0  # ms, in which a person reads a cell's output
#: What each call takes on the device, by its phase.
TAKES = {"prepare": 20.0, "prefill": 100.0, "decode_step": 10.0, "decode": 50.0, "generate": 200.0}
#: What is called, with the pauses between; and how many breaks the last axis has.
CASES: dict[str, tuple[Sequence[str], int]] = {
    "no pause": (["prepare", "prefill", "decode_step", "decode_step"], 0),
    "before the first call": (["pause", "prefill", "decode_step"], 0),
    "between prepare and prefill": (["prepare", "pause", "prefill"], 1),
    "between prefill and a step": (["prefill", "pause", "decode_step", "decode_step"], 1),
    "between steps": (
        ["prefill", "decode_step", "pause", "decode_step", "pause", "decode_step"],
        2,
    ),
    "after the last call": (["prefill", "decode_step", "pause"], 0),
    "two prefills": (["prefill", "pause", "prefill", "decode_step"], 1),
    "decode only": (["pause", "decode_step", "pause", "decode_step"], 1),
    "decode as a whole, then a step": (["prefill", "decode", "pause", "decode_step"], 1),
    "used again": (
        ["prefill", "decode_step", "pause", "prepare", "prefill", "pause", "decode_step"],
        2,
    ),
    "generate": (["prepare", "pause", "generate"], 1),
    "a prefill alone": (["pause", "prefill"], 0),
}


def spans_of(calls: Sequence[str], device: str) -> pd.DataFrame:
    """The spans of these calls: with stages inside a prefill, and a device clock that is not the
    host's.
    """
    rows = []
    steps = 0
    now = 3.0
    # The device's clock starts elsewhere, and its times are shorter.
    scale = 0.5 if device == "cuda" else 1.0

    def add(phase: str, stage: str, step: int | None, start: float, length: float) -> None:
        device_start = scale * start + 7.0
        rows.append((0, phase, stage, "", step, device_start, scale * length, start, length))

    for call in calls:
        if call == "pause":
            now += PAUSE
            continue
        length = TAKES[call] / scale
        phase = "decode" if call == "decode_step" else call
        add(phase, call, steps if call == "decode_step" else None, now, length)
        if call == "prepare":
            add("prepare", "load_image", None, now, 0.9 * length)
        if call == "prefill":
            add("prefill", "sam", None, now, 0.4 * length)
            add("prefill", "language_model", None, now + 0.45 * length, 0.2 * length)
        if call == "decode":
            add("decode", "decode_step", steps, now, 0.6 * length)
        steps += call in ("decode_step", "decode")
        now += length + 0.01
    return make_spans(rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("case", CASES)
def test_title_axis_and_table_agree_and_pauses_are_cut(case, device):
    calls, breaks = CASES[case]
    spans = spans_of(calls, device)
    took = sum(TAKES[call] for call in calls if call != "pause")
    early = sum(TAKES[call] for call in calls if call in ("prepare", "prefill"))
    figure = plot_spans(spans)
    wholes = [each for each in (early, took) if each]
    if early == took:
        wholes = [took]
    assert len(figure.axes) == len(wholes)
    for axes, whole in zip(figure.axes, wholes, strict=True):
        assert f", {ms_text(whole)}" in axes.get_title("left")
        assert axes.get_xlim() == pytest.approx((0.0, 1.02 * whole))
        corners = [path.vertices[:, 0] for path in axes.collections[0].get_paths()]
        assert min(each.min() for each in corners) == pytest.approx(0.0, abs=0.01)
        assert max(each.max() for each in corners) <= whole + 0.01
    last = figure.axes[-1]
    assert ("pause is left out" in last.get_xlabel()) == bool(breaks)
    marks = {float(at) for line in last.lines for at in line.get_xdata()}
    assert len(marks) == breaks
    for phase in ("prepare", "prefill", "decode", "generate"):
        lane = sum(TAKES[call] for call in calls if call.split("_")[0] == phase)
        words = [text.get_text() for text in last.texts]
        if lane and early != took:
            # A few steps by themselves are drawn by stage.
            row = "decode step" if phase == "decode" and not early else phase
            assert words[words.index(row) + 1] == ms_text(lane)


def test_two_prefills_are_counted():
    assert "2 prefills" in plot_spans(spans_of(["prefill", "prefill"], "cpu")).axes[0].get_title(
        "left"
    )


def test_short_gaps_between_steps_are_no_breaks():
    figure = plot_spans(spans_of(["prefill", *["decode_step"] * 20], "cpu"))
    assert "pause" not in figure.axes[-1].get_xlabel()


@pytest.mark.parametrize(
    "shape", [{}, {"cuda": True}, {"generate": True}, {"max_tokens": 1}, {"repeats": 1}]
)
def test_the_timeline_of_a_record_has_the_times_of_its_repeat(shape):
    run = make_run(**shape)
    figure = run.plot.timeline()
    title = figure.axes[-1].get_title("left")
    number = int((re.search(r"in repeat (\d+)", title) or ["", "1"])[1]) - 1
    spans = run.spans[run.spans["repeat"] == run.repeats[number]]
    phases = spans[spans["stage"] == spans["phase"]]
    assert f", {ms_text(phases['device_ms'].sum())}" in title
    ends = [path.vertices[:, 0].max() for path in figure.axes[-1].collections[0].get_paths()]
    assert max(ends) == pytest.approx(phases["device_ms"].sum())


def test_a_pause_in_a_notebook_is_no_part_of_a_prefill(golden_session, monkeypatch):
    """With a clock that jumps between the calls, as it does for a person who reads what a cell
    shows.
    """
    from ocr_phases.models import devices as module

    late = [0.0]
    clock = module.perf_counter
    monkeypatch.setattr(module, "perf_counter", lambda: clock() + late[0])
    timeline = Timeline("cpu")
    inputs = golden_session.prepare(PAGES / "slide.png", preset="tiny")
    late[0] += 3600.0
    state = golden_session.run_prefill(inputs, timeline)
    late[0] += 3600.0
    golden_session.run_decode_step(state, timeline)
    table = timeline.table()
    prefill, step = (
        table[table["stage"] == name]["device_ms"].sum() for name in ("prefill", "decode_step")
    )
    first, last = timeline.plot().axes
    assert first.get_title("left") == f"Prefill, {ms_text(prefill)}"
    assert last.get_title("left") == f"The whole run, {ms_text(prefill + step)}, 1 decode step"
    shown = Elements(timeline_bundle(table)["text/html"]).said
    assert ms_text(prefill) in shown and "3,600" not in shown and "7,200" not in shown
