"""A timeline's picture tells the time that phases took, without the pauses between a person's
calls.
"""

import re
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
from conftest import PAGES
from elements import Elements
from example_run import make_run
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases import OCRSession, PhaseRun, Timeline
from ocr_phases.record import make_spans
from ocr_phases.show.timeline_plot import plot_spans
from ocr_phases.show.timeline_section import timeline_bundle
from ocr_phases.text import ms_text

#: How long a person reads the output of a cell, in ms.
PAUSE_MS = 5_000.0
#: How long each call takes on the device, in ms.
CALL_MS = {
    "prepare": 20.0,
    "prefill": 100.0,
    "decode_step": 10.0,
    "decode": 50.0,
    "generate": 200.0,
}
PHASES = ("prepare", "prefill", "decode", "generate")


class CallRecorder:
    """Writes down the spans of calls that a person makes one after another.

    The device's clock is not the host's: it starts at another time, and on a GPU the device takes
    half as long as the host.
    """

    def __init__(self, device: str) -> None:
        self.device_share = 0.5 if device == "cuda" else 1.0
        self.now = 3.0
        self.steps = 0
        self.rows: list[tuple[Any, ...]] = []

    def pause(self) -> None:
        self.now += PAUSE_MS

    def call(self, name: str) -> None:
        """A call with the stages inside it."""
        length = CALL_MS[name] / self.device_share
        if name == "prepare":
            self.span("prepare", "prepare", 0.0, length)
            self.span("prepare", "load_image", 0.0, 0.9 * length)
        elif name == "prefill":
            self.span("prefill", "prefill", 0.0, length)
            self.span("prefill", "sam", 0.0, 0.4 * length)
            self.span("prefill", "language_model", 0.45 * length, 0.2 * length)
        elif name == "decode":
            self.span("decode", "decode", 0.0, length)
            self.span("decode", "decode_step", 0.0, 0.6 * length, self.steps)
            self.steps += 1
        elif name == "decode_step":
            self.span("decode", "decode_step", 0.0, length, self.steps)
            self.steps += 1
        else:
            self.span(name, name, 0.0, length)
        self.now += length + 0.01

    def span(
        self, phase: str, stage: str, offset: float, length: float, step: int | None = None
    ) -> None:
        """A span that starts ``offset`` ms after the call, by the host's clock."""
        start = self.now + offset
        device_start = self.device_share * start + 7.0
        device_length = self.device_share * length
        row = (0, phase, stage, "", step, device_start, device_length, start, length)
        self.rows.append(row)


def spans_of(calls: list[str], device: str) -> pd.DataFrame:
    """The spans that a timeline on this device has after these calls and pauses."""
    recorder = CallRecorder(device)
    for name in calls:
        if name == "pause":
            recorder.pause()
        else:
            recorder.call(name)
    return make_spans(recorder.rows)


def ms_of(calls: list[str], *names: str) -> float:
    """How long the calls of these names take together; without a name, how long all take."""
    return sum(CALL_MS[call] for call in calls if call in (names or CALL_MS))


@dataclass(frozen=True)
class DrawnCalls:
    """Calls, how many breaks the axis of the whole run must have, and the picture of them."""

    calls: list[str]
    breaks: int
    figure: Figure

    @property
    def beginning_ms(self) -> float:
        """What comes before decoding, which has an axes of its own where both are there."""
        return ms_of(self.calls, "prepare", "prefill")

    @property
    def total_ms(self) -> float:
        return ms_of(self.calls)

    @property
    def is_split(self) -> bool:
        return 0.0 < self.beginning_ms < self.total_ms


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((["prepare", "prefill", "decode_step", "decode_step"], 0), id="no pause"),
        pytest.param((["pause", "prefill", "decode_step"], 0), id="before the first call"),
        pytest.param((["prepare", "pause", "prefill"], 1), id="between prepare and prefill"),
        pytest.param(
            (["prefill", "pause", "decode_step", "decode_step"], 1),
            id="between prefill and a step",
        ),
        pytest.param(
            (["prefill", "decode_step", "pause", "decode_step", "pause", "decode_step"], 2),
            id="between steps",
        ),
        pytest.param((["prefill", "decode_step", "pause"], 0), id="after the last call"),
        pytest.param((["prefill", "pause", "prefill", "decode_step"], 1), id="two prefills"),
        pytest.param((["pause", "decode_step", "pause", "decode_step"], 1), id="decode only"),
        pytest.param(
            (["prefill", "decode", "pause", "decode_step"], 1),
            id="decode as a whole, then a step",
        ),
        pytest.param(
            (["prefill", "decode_step", "pause", "prepare", "prefill", "pause", "decode_step"], 2),
            id="used again",
        ),
        pytest.param((["prepare", "pause", "generate"], 1), id="generate"),
        pytest.param((["pause", "prefill"], 0), id="a prefill alone"),
    ],
)
def drawn(request: pytest.FixtureRequest, device: str) -> DrawnCalls:
    """The picture of a timeline after calls with pauses between them."""
    calls, breaks = request.param
    return DrawnCalls(calls, breaks, plot_spans(spans_of(calls, device)))


def bar_ends(axes: Axes) -> tuple[float, float]:
    """Where the first bar of an axes begins, and where the last one ends."""
    bars = [path.vertices[:, 0] for path in axes.collections[0].get_paths()]
    first = min(corners.min() for corners in bars)
    last = max(corners.max() for corners in bars)
    return first, last


def test_a_pause_lengthens_no_axis_and_no_title(drawn: DrawnCalls) -> None:
    lengths = [drawn.total_ms]
    if drawn.is_split:
        lengths = [drawn.beginning_ms, drawn.total_ms]

    assert len(drawn.figure.axes) == len(lengths)
    for axes, length in zip(drawn.figure.axes, lengths, strict=True):
        assert f", {ms_text(length)}" in axes.get_title("left")
        assert axes.get_xlim() == pytest.approx((0.0, 1.02 * length))
        first, last = bar_ends(axes)
        assert first == pytest.approx(0.0, abs=0.01)
        assert last <= length + 0.01


def test_each_pause_that_was_cut_is_marked(drawn: DrawnCalls) -> None:
    axes = drawn.figure.axes[-1]

    marks = set()
    for line in axes.lines:
        marks.update(float(place) for place in line.get_xdata())

    assert len(marks) == drawn.breaks
    assert ("pause is left out" in axes.get_xlabel()) == (drawn.breaks > 0)


def test_each_phase_has_its_time_without_pauses_beside_its_row(drawn: DrawnCalls) -> None:
    if drawn.beginning_ms == drawn.total_ms:
        return  # a prefill alone is drawn by stage, not by phase
    words = [text.get_text() for text in drawn.figure.axes[-1].texts]
    for phase in PHASES:
        calls = ["decode", "decode_step"] if phase == "decode" else [phase]
        phase_ms = ms_of(drawn.calls, *calls)
        # A few steps by themselves are drawn by stage.
        only_steps = phase == "decode" and not drawn.beginning_ms
        title = "decode step" if only_steps else phase
        if phase_ms:
            assert words[words.index(title) + 1] == ms_text(phase_ms)


def test_two_prefills_are_counted() -> None:
    figure = plot_spans(spans_of(["prefill", "prefill"], "cpu"))
    assert "2 prefills" in figure.axes[0].get_title("left")


def test_short_gaps_between_steps_are_no_breaks() -> None:
    calls = ["prefill"] + ["decode_step"] * 20
    figure = plot_spans(spans_of(calls, "cpu"))
    assert "pause" not in figure.axes[-1].get_xlabel()


def repeat_in_title(run: PhaseRun, title: str) -> int:
    """The repeat that a timeline's title says it is of; where it says none there is but one."""
    named = re.search(r"in repeat (\d+)", title)
    if named is None:
        return run.repeats[0]
    return run.repeats[int(named[1]) - 1]


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({}, id="a CPU"),
        pytest.param({"cuda": True}, id="a GPU"),
        pytest.param({"generate": True}, id="generate"),
        pytest.param({"max_tokens": 1}, id="one token"),
        pytest.param({"repeats": 1}, id="one repeat"),
    ],
)
def test_the_timeline_of_a_record_has_the_times_of_its_repeat(shape: dict[str, Any]) -> None:
    run = make_run(**shape)

    axes = run.plot.timeline().axes[-1]

    title = axes.get_title("left")
    spans = run.spans[run.spans["repeat"] == repeat_in_title(run, title)]
    phases = spans[spans["stage"] == spans["phase"]]
    total_ms = phases["device_ms"].sum()
    assert f", {ms_text(total_ms)}" in title
    _, end = bar_ends(axes)
    assert end == pytest.approx(total_ms)


class JumpingClock:
    """A clock that goes on as the real one does, and that a test sets forward."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.late = 0.0

    def __call__(self) -> float:
        return self.clock() + self.late


def test_a_pause_in_a_notebook_is_no_part_of_a_prefill(
    golden_session: OCRSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock jumps by an hour between the calls, as for a person who reads what a cell shows."""
    from ocr_phases.models import devices

    clock = JumpingClock(devices.perf_counter)
    monkeypatch.setattr(devices, "perf_counter", clock)
    timeline = Timeline("cpu")

    inputs = golden_session.prepare(PAGES / "slide.png", preset="tiny")
    clock.late += 3600.0
    state = golden_session.run_prefill(inputs, timeline)
    clock.late += 3600.0
    golden_session.run_decode_step(state, timeline)

    table = timeline.table()
    ms_by_stage = table.groupby("stage")["device_ms"].sum()
    prefill_ms = ms_by_stage["prefill"]
    step_ms = ms_by_stage["decode_step"]
    beginning, whole = timeline.plot().axes
    assert beginning.get_title("left") == f"Prefill, {ms_text(prefill_ms)}"
    assert whole.get_title("left") == (
        f"The whole run, {ms_text(prefill_ms + step_ms)}, 1 decode step"
    )
    shown = Elements(timeline_bundle(table)["text/html"]).said
    assert ms_text(prefill_ms) in shown
    assert "3,600" not in shown
    assert "7,200" not in shown
