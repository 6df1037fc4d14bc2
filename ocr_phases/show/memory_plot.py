"""Peak memory and the KV cache, drawn."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ocr_phases.record import Record
from ocr_phases.show.axes import hbars, lines, name_axis, new_figure, sentence_figure
from ocr_phases.show.colours import FAINT, GREEN, PHASE_COLOURS
from ocr_phases.text import bytes_text, filled

_SOURCES = {
    "cuda_peak_allocated": "allocated on the device",
    "process_high_water_mark": "whole process",
}
#: What is said of the KV cache's end, by the entries of a record.
_CACHE = {"bytes": "{x:bytes}", "lengths": "{x:,} tokens", "entries": "{x:,} held"}


def plot_memory(run: Record) -> Figure:
    """Peak memory of each phase, and how the KV cache grows with every step."""
    peaks, sizes = run.memory.peak_bytes, run.cache.bytes
    if not peaks and not sizes:
        return sentence_figure("Neither peak memory nor the KV cache was observed in this run.")
    ends = []
    for name, text in _CACHE.items():
        values = getattr(run.cache, name)
        if values:
            ends.append(filled(text, x=values[-1]))
    titles = (
        "Peak memory of each phase",
        ": ".join(["KV cache", ", ".join(ends)] if ends else ["KV cache"]),
    )
    figure, (left, right) = new_figure(2.9, titles, columns=2)
    if peaks:
        bars = [(phase, max(sizes), PHASE_COLOURS[phase]) for phase, sizes in peaks.items()]
        bars.append(("weights", run.memory.weights_bytes or 0, FAINT))
        hbars(
            left,
            [
                (name, [(0.0, size, colour)], bytes_text(size))
                for name, size, colour in bars
                if size
            ],
        )
        name_axis(left.xaxis, _SOURCES.get(str(run.memory.source), "peak"), "bytes")
    else:
        sentence_figure("Peak memory could not be measured here.", left)
    if sizes:
        lines(right, pd.Series(range(len(sizes))), pd.Series(sizes), color=GREEN, linewidth=2)
        right.set(xlim=(0, max(1, len(sizes) - 1)), ylim=(0, 1.22 * max(sizes)))
        name_axis(right.xaxis, "decode steps done (0: after the prefill)", "")
        name_axis(right.yaxis, "keys and values", "bytes")
    else:
        sentence_figure("The cache was not observed in this run.", right)
    return figure
