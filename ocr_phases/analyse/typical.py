"""The typical repeat, used wherever parts are shown beside their total.

Medians over repeats do not add up: the median of a whole is not the sum of its parts' medians. The parts and
the whole of one repeat are.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ocr_phases.analyse.kept import kept
from ocr_phases.record import PhaseRun


@kept
def typical_repeat(run: PhaseRun) -> int:
    """The number of the repeat whose time to first token and decode lie nearest to their medians.

    Nearest by the sum of both relative distances, so that a long decode does not choose alone; of equally
    near ones the first. A ``generate()`` run is judged by its only phase.
    """
    first_token = run.repeat_ms("prepare", "prepare") + run.repeat_ms("prefill", "prefill")
    distance = np.zeros(len(run.repeats))
    for times in (first_token, run.repeat_ms("decode", "decode"), run.repeat_ms("generate", "generate")):
        median = float(np.median(times))
        if median > 0:
            distance += np.abs(times / median - 1.0)
    return run.repeats[int(distance.argmin())]


@kept
def typical_run(run: PhaseRun) -> PhaseRun:
    """The record of its `typical_repeat` alone: all its times are of one repeat."""
    return one_repeat(run, typical_repeat(run))


def one_repeat(run: PhaseRun, number: int) -> PhaseRun:
    """The record with the spans of one repeat only; memory and checks stay."""
    spans = run.spans[run.spans["repeat"] == number]
    return dataclasses.replace(run, spans=spans.reset_index(drop=True))


def typical_sentence(run: PhaseRun) -> str:
    """Which repeat the figures are of; empty for a record of one repeat."""
    if len(run.repeats) == 1:
        return ""
    return (
        f"Times are of repeat {typical_repeat(run)}, of {len(run.repeats)} the one nearest to the medians of "
        "time to first token and decode, so that parts add up to their whole."
    )
