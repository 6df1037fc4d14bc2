"""Peak memory and the KV cache, drawn."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ocr_phases.record import Record
from ocr_phases.show.axes import ChartBar, hbars, lines, name_axis, new_figure, sentence_figure
from ocr_phases.show.colours import FAINT, GREEN, PHASE_COLOURS
from ocr_phases.text import bytes_text

_ROOM_ABOVE = 1.22  # the height of the KV cache's axes, in largest sizes
_SOURCES = {
    "cuda_peak_allocated": "allocated on the device",
    "process_high_water_mark": "whole process",
}


def plot_memory(run: Record) -> Figure:
    """Peak memory of each phase, and how the KV cache grows with every step."""
    peaks = run.memory.peak_bytes
    sizes = run.cache.bytes
    if not peaks and not sizes:
        return sentence_figure("Neither peak memory nor the KV cache was observed in this run.")
    titles = ("Peak memory of each phase", _cache_title(run))
    figure, (left, right) = new_figure(2.9, titles, columns=2)
    if peaks:
        hbars(left, _peak_bars(peaks, run.memory.weights_bytes))
        name_axis(left.xaxis, _SOURCES.get(str(run.memory.source), "peak"), "bytes")
    else:
        sentence_figure("Peak memory could not be measured here.", left)
    if sizes:
        lines(right, pd.Series(range(len(sizes))), pd.Series(sizes), color=GREEN, linewidth=2)
        last_step = len(sizes) - 1
        right.set_xlim(0, max(1, last_step))
        right.set_ylim(0, _ROOM_ABOVE * max(sizes))
        name_axis(right.xaxis, "decode steps done (0: after the prefill)", "")
        name_axis(right.yaxis, "keys and values", "bytes")
    else:
        sentence_figure("The cache was not observed in this run.", right)
    return figure


def _cache_title(run: Record) -> str:
    """The title of the KV cache's plot, with what it was at its end."""
    ends: list[str] = []
    if run.cache.bytes:
        ends.append(bytes_text(run.cache.bytes[-1]))
    if run.cache.lengths:
        ends.append(f"{run.cache.lengths[-1]:,} tokens")
    if run.cache.entries:
        ends.append(f"{run.cache.entries[-1]:,} held")
    if not ends:
        return "KV cache"
    return f"KV cache: {', '.join(ends)}"


def _peak_bars(peaks: dict[str, list[int]], weights: int | None) -> list[ChartBar]:
    """A bar for the peak of each phase and one for the weights; none for what has no bytes."""
    bars: list[ChartBar] = []
    for phase, of_repeats in peaks.items():
        peak = max(of_repeats)
        if peak:
            bars.append((phase, [(0.0, peak, PHASE_COLOURS[phase])], bytes_text(peak)))
    if weights:
        bars.append(("weights", [(0.0, weights, FAINT)], bytes_text(weights)))
    return bars
