"""The spans of a repeat over time, drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import offset_copy

from ocr_phases.analyse.stages import typical_repeat
from ocr_phases.record import PHASES, Record, is_whole_phase
from ocr_phases.show.axes import ChartBar, bar_charts, sentence_figure
from ocr_phases.show.colours import INK, MUTED, ORANGE, PHASE_COLOURS, STAGE_COLOURS
from ocr_phases.show.stage_rows import SMALL_SHARE, with_names
from ocr_phases.text import count_text, ms_text

#: Decode steps without a prefill are drawn by stage up to this number.
_MOST_STEPS_BY_STAGE = 20
_CLOCK_ROUNDING_MS = 1e-5  # starts and lengths of spans are rounded, each by itself


@dataclass(frozen=True)
class _SpansChart:
    """One chart of a timeline: its spans, its lanes, and the places in ms of pauses left out."""

    spans: pd.DataFrame
    rows: list[ChartBar]
    breaks: list[float]


def plot_phase_timeline(run: Record) -> Figure:
    """The typical repeat from its start, in ms.

    Prepare and prefill are drawn by stage, and the phases below them, by the device's clock where
    it has one. The titles name the repeat, because these times are its own and no medians.
    """
    repeat = typical_repeat(run)
    note = ""
    if len(run.repeats) > 1:
        note = f" in repeat {run.repeats.index(repeat) + 1} of {len(run.repeats)}"
    return plot_spans(run.spans[run.spans["repeat"] == repeat], note)


def plot_spans(spans: pd.DataFrame, note: str = "") -> Figure:
    """The spans of one repeat as `plot_phase_timeline` draws them.

    ``note`` stands behind the time of each title. That time is the sum of what ran in its phases,
    and the axis is as long: the time between two calls, such as the one in which a person reads the
    output of a cell, is cut out. A mark breaks the axis where such a pause was longer than a
    hundredth of what is drawn.
    """
    if spans.empty:
        return sentence_figure("There are no spans to draw.")
    spans = named_spans(spans)
    early = spans[spans["phase"].isin(("prepare", "prefill"))]
    charts: list[_SpansChart] = []
    if not early.empty:
        charts.append(_chart_of(early, by_stage=True))
    if len(early) < len(spans):
        # Of a few decode steps by themselves a person asks what each of them took.
        steps = (spans["stage"] == "decode_step").sum()
        by_stage = early.empty and steps <= _MOST_STEPS_BY_STAGE
        charts.append(_chart_of(spans, by_stage=by_stage))
    titled_rows = []
    for chart in charts:
        title = _spans_title(chart.spans, note)
        titled_rows.append((title, chart.rows, _axis_label(chart.breaks)))
    figure, all_axes = bar_charts(titled_rows)
    for axes, chart in zip(all_axes, charts, strict=True):
        length_ms = _total_ms(chart.spans)
        axes.set_xlim(0, 1.02 * length_ms or 1.0)  # an axis needs a length
        _break_axis(axes, chart.breaks)
    return figure


def _chart_of(spans: pd.DataFrame, *, by_stage: bool) -> _SpansChart:
    """A chart of `named_spans`, with a lane for each stage if they have stages, or each phase."""
    drawn, breaks = without_pauses(spans)
    lanes: list[ChartBar] = []
    if by_stage:
        lanes = _stage_lanes(drawn)
    if not lanes:
        lanes = _phase_lanes(drawn)
    return _SpansChart(drawn, lanes, breaks)


def named_spans(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans of the phases, with ``name`` (the stage in words), ``colour`` and ``outermost``."""
    in_phases = spans[spans["phase"].isin(PHASES)]
    if len(in_phases):  # a span that a caller puts around phases would hold their pauses, too
        spans = in_phases
    colours = spans["stage"].map(STAGE_COLOURS | PHASE_COLOURS).fillna(ORANGE)
    return with_names(spans).assign(colour=colours, outermost=_outermost(spans))


def _stage_lanes(drawn: pd.DataFrame) -> list[ChartBar]:
    """A lane for each stage, in the order in which they begin; whole phases are left out."""
    stages = drawn[~is_whole_phase(drawn)].sort_values("drawn_ms")
    return [_lane(str(name), each) for name, each in stages.groupby("name", sort=False)]


def _outermost(spans: pd.DataFrame) -> pd.Series:
    """Which spans lie in no other one: the calls of a person, or the phases of a measured repeat.

    A span lies in another one where it begins before its end, by either clock.
    """
    # Of spans that begin together the longest comes first: the others lie in it.
    ordered = spans.sort_values(["host_start_ms", "host_ms"], ascending=[True, False])
    starts = ordered[["host_start_ms", "device_start_ms"]].to_numpy(dtype=np.float64)
    ends = starts + ordered[["host_ms", "device_ms"]].to_numpy(dtype=np.float64)
    is_outermost = pd.Series(False, index=spans.index)
    last_end = np.full(2, -np.inf)  # of the outermost span before, by the host's and device's clock
    for label, start, end in zip(ordered.index, starts, ends, strict=True):
        begins_after = start >= last_end - _CLOCK_ROUNDING_MS
        if begins_after.all():
            is_outermost[label] = True
            last_end = end
    return is_outermost


def without_pauses(spans: pd.DataFrame) -> tuple[pd.DataFrame, list[float]]:
    """The spans on an axis on which the outermost ones follow each other without a pause.

    Parameters
    ----------
    spans : DataFrame
        `named_spans`.

    Returns
    -------
    DataFrame
        The spans with a new column ``drawn_ms``: where each starts on that axis, in ms.
    list of float
        The places on that axis of the pauses that are long enough for a mark, in ms.
    """
    calls = spans[spans["outermost"]].sort_values("device_start_ms")
    starts = calls["device_start_ms"].to_numpy(dtype=np.float64)
    lengths = calls["device_ms"].to_numpy(dtype=np.float64)
    # A call is drawn from where those before it end.
    drawn_starts = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])

    # A span belongs to the last call that began before it, or else to the first.
    latest_start = spans["device_start_ms"] + _CLOCK_ROUNDING_MS
    calls_begun = np.searchsorted(starts, latest_start, side="right")
    call = (calls_begun - 1).clip(min=0)
    after_start_ms = spans["device_start_ms"] - starts[call]
    drawn = spans.assign(drawn_ms=after_start_ms + drawn_starts[call])

    ends = starts + lengths
    pauses = starts[1:] - ends[:-1]
    is_long = pauses > SMALL_SHARE * lengths.sum()
    breaks = drawn_starts[1:][is_long]
    return drawn, breaks.tolist()


def _total_ms(spans: pd.DataFrame) -> float:
    """What ran in these spans, each moment counted once."""
    return float(spans.loc[spans["outermost"], "device_ms"].sum())


def _spans_title(spans: pd.DataFrame, note: str) -> str:
    """The phases of these spans, what ran in them together, and how many calls that were."""
    calls = spans[spans["outermost"]]
    phases = _phase_names(spans)
    together = " and ".join(phases).capitalize() or "Outside a phase"
    if "decode" in phases and len(phases) > 1:
        together = "The whole run"
    title = f"{together}, {ms_text(_total_ms(spans))}{note}"
    prefills = int((calls["stage"] == "prefill").sum())
    if prefills > 1:
        title += f", {count_text(prefills, 'prefill')}"
    steps = int((spans["stage"] == "decode_step").sum())
    if steps:
        title += f", {count_text(steps, 'decode step')}"
    return title


def _axis_label(breaks: list[float]) -> str:
    if breaks:
        return "time in the phases (ms); where the axis is broken (//), a pause is left out"
    return "time in the phases (ms)"


def _break_axis(axes: Axes, breaks: list[float]) -> None:
    """Mark where a pause is left out: by two strokes on the axis and a dotted line above."""
    figure = axes.get_figure(root=True)
    for at in breaks:
        axes.axvline(at, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=3)
        for points in (-1.7, 1.7):
            beside = offset_copy(axes.get_xaxis_transform(), figure, points, 0.0, "points")
            (stroke,) = axes.plot(
                [at], [0.0], transform=beside, marker=[(-1, -2), (1, 2)], markersize=10
            )
            stroke.set(color=INK, markeredgewidth=1.1, clip_on=False, in_layout=False)


def _phase_lanes(spans: pd.DataFrame) -> list[ChartBar]:
    """A lane a phase: its outermost spans."""
    calls = spans[spans["outermost"]]
    present = set(calls["phase"])
    phases = [phase for phase in PHASES if phase in present]
    if not phases:  # spans of a caller's own, which are in no phase or in one of another name
        phases = calls["phase"].unique().tolist()
    lanes = []
    for phase in phases:
        own_calls = calls[calls["phase"] == phase]
        name = _phase_names(own_calls)[0] or "outside a phase"
        lanes.append(_lane(name, own_calls))
    return lanes


def _phase_names(spans: pd.DataFrame) -> list[str]:
    """What the phases of some spans are called.

    The prefill of a server is not seen, only the wait for its first token.
    """
    waits = spans["stage"] == "first_token"
    return spans["phase"].mask(waits, "first token").unique().tolist()


def _lane(name: str, spans: pd.DataFrame) -> ChartBar:
    """Spans as a bar, each where it lies, and their sum."""
    pieces = list(zip(spans["drawn_ms"], spans["device_ms"], spans["colour"], strict=True))
    return name, pieces, ms_text(spans["device_ms"].sum())
