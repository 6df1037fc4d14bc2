"""A record's spans as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

After the Trace Event Format: complete events (``X``) with times in microseconds, and metadata events (``M``)
that name processes and threads. A process is a repeat, a thread a clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocr_phases.files import TRACE_OWNER, write_given
from ocr_phases.record import PhaseRun

_CLOCKS = ("host", "device")


def chrome_trace(run: PhaseRun) -> dict[str, Any]:
    """All spans of all repeats as one trace; each repeat starts at 0.

    On a CPU there is one clock, ``host``. Process numbers start at 1: viewers give 0 a meaning of its own.
    """
    clocks = _CLOCKS if run.device.get("kind") == "cuda" else _CLOCKS[:1]
    events = [*_names(run, clocks), *_spans(run, clocks)]
    return {**TRACE_OWNER, "traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(run: PhaseRun, path: str | Path, *, overwrite: bool = False) -> Path:
    """`chrome_trace` as a JSON file; raises as `PhaseRun.save` does."""
    data = json.dumps(chrome_trace(run), allow_nan=False).encode() + b"\n"
    return write_given(path, data, overwrite=overwrite)


def _names(run: PhaseRun, clocks: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for repeat in run.repeats:
        name = f"repeat {repeat}: {run.page['file']}"
        yield {"name": "process_name", "ph": "M", "pid": repeat + 1, "args": {"name": name}}
        for thread, clock in enumerate(clocks, start=1):
            place = {"pid": repeat + 1, "tid": thread}
            yield {"name": "thread_name", "ph": "M", **place, "args": {"name": f"{clock} clock"}}


def _spans(run: PhaseRun, clocks: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    texts = dict(run.token_table.dropna(subset=["step"])[["step", "text"]].itertuples(index=False, name=None))
    for span in run.spans.to_dict("records"):
        arguments: dict[str, Any] = {"view": span["view"]} if span["view"] else {}
        if span["stage"] == "decode_step":
            arguments |= {"step": int(span["step"]), "token": texts.get(span["step"], "")}
        name = " ".join(filter(None, (span["stage"], span["view"])))
        for thread, clock in enumerate(clocks, start=1):
            yield {
                "name": name,
                "cat": span["phase"],
                "ph": "X",
                "ts": 1e3 * span[f"{clock}_start_ms"],
                "dur": 1e3 * span[f"{clock}_ms"],
                "pid": span["repeat"] + 1,
                "tid": thread,
                "args": arguments,
            }
