"""Spans: where the time of one repeat went, on the host's clock and on the device's.

A span costs two clock reads and an NVTX range; on CUDA also two events, which are only recorded
here and read after one synchronize at the end of the repeat, so that measuring adds no wait. What
that takes within a step is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import nvtx
import pandas as pd
import torch

from ocr_phases.errors import Hinted, explain_wrong_calls
from ocr_phases.models.devices import Mark, device_of, resolve_device
from ocr_phases.record import make_spans

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Decimals of a time in ms: clocks tick in nanoseconds, and digits beyond them would fill half of
#: a record.
_DECIMALS = 6
#: What is entered around a phase of that name.
Around = Callable[[str], AbstractContextManager[Any]]


@dataclass(slots=True, eq=False)
class Span:
    """One open or closed stretch of time. Equal to itself alone."""

    phase: str
    stage: str
    view: str
    step: int | None
    profiler_range: Any = None
    start: Mark = (None, 0.0)
    end: Mark = (None, 0.0)


class Timeline(Hinted):
    """The spans of one repeat. `span` opens one; `rows` reads them all once, at the end.

    Spans nest; leaving one closes everything still open inside it, so that a phase that raises
    leaves neither an NVTX range nor a profiler range behind. ``around(phase)`` is entered around
    each whole phase.
    """

    @explain_wrong_calls
    def __init__(
        self, device: torch.device | str = "cpu", around: Around = contextlib.nullcontext
    ) -> None:
        self.around = around
        self._device = device_of(resolve_device(str(device)))
        self._clock = self._device.clock()
        self.closed: list[Span] = []
        self._open: list[Span] = []
        self.phase = ""
        self.step: int | None = None
        #: How many vectors the projector made in the prefill.
        self.vectors = 0
        self._origin = self._clock.mark()

    def begin(self, stage: str, view: str = "") -> Span:
        """Open a span of ``stage`` in the current phase and step."""
        span = Span(self.phase, stage, view, self.step)
        nvtx.push_range(stage)
        if torch.autograd._profiler_enabled():
            # torch's profiler does not show NVTX ranges.
            span.profiler_range = torch.profiler.record_function(stage)
            span.profiler_range.__enter__()
        self._open.append(span)
        span.start = self._clock.mark()
        return span

    def end(self, span: Span) -> None:
        """Close ``span`` and whatever is still open inside it.

        A span that is closed already stays as it is.
        """
        while span in self._open:
            inner = self._open.pop()
            inner.end = self._clock.mark()
            if inner.profiler_range is not None:
                inner.profiler_range.__exit__(None, None, None)
            nvtx.pop_range()
            self.closed.append(inner)

    @contextlib.contextmanager
    def span(self, stage: str, view: str = "") -> Iterator[None]:
        """A span around a block; closed also when the block raises."""
        span = self.begin(stage, view)
        try:
            yield
        finally:
            self.end(span)

    @contextlib.contextmanager
    def in_phase(self, phase: str, stage: str = "", step: int | None = None) -> Iterator[None]:
        """A span over a phase, or over one ``stage`` and ``step``; spans inside belong to it."""
        phase_before = self.phase
        step_before = self.step
        self.phase = phase
        self.step = step
        try:
            if stage:
                with self.span(stage):
                    yield
            else:
                with self.around(phase), self.span(phase):
                    yield
        finally:
            self.phase = phase_before
            self.step = step_before

    def rows(self, repeat: int = 0) -> list[tuple]:
        """All closed spans in order of their start, as rows of `ocr_phases.record.SPAN_COLUMNS`.

        On CUDA this waits for the device, once.
        """
        self._device.synchronize()
        rows = []
        for span in sorted(self.closed, key=lambda span: span.start[1]):
            start = _ms_between(self._origin, span.start)
            length = _ms_between(span.start, span.end)
            times = (start.device, length.device, start.host, length.host)
            rows.append((repeat, span.phase, span.stage, span.view, span.step, *times))
        return rows

    def table(self) -> pd.DataFrame:
        """All closed spans in order of their start, times in ms: the columns of `PhaseRun.spans`.

        On CUDA this waits for the device, once.
        """
        return make_spans(self.rows())

    def plot(self) -> Figure:
        """The spans over time: `ocr_phases.show.timeline_plot.plot_spans`."""
        from ocr_phases.show.timeline_plot import plot_spans

        return plot_spans(self.table())

    def __repr__(self) -> str:
        device = str(self._device.torch_device)
        return f"{type(self).__name__}(device={device!r}, spans={len(self.closed)})"

    def __str__(self) -> str:
        from ocr_phases.show.timeline_section import timeline_text

        return timeline_text(self.table())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.timeline_section import timeline_bundle

        return timeline_bundle(self.table())


class NoTimeline(Timeline):
    """Collects nothing.

    It is for a warm-up, for callers that want no times, and for measuring what collecting costs.
    """

    @contextlib.contextmanager
    def span(self, stage: str, view: str = "") -> Iterator[None]:
        """Nothing."""
        yield


class _Milliseconds(NamedTuple):
    """The time between two marks, by the device's clock and by the host's."""

    device: float
    host: float


def _ms_between(start: Mark, end: Mark) -> _Milliseconds:
    """The time from one mark to another. On a CPU both clocks are the host's."""
    start_event, start_s = start
    end_event, end_s = end
    host_ms = round((end_s - start_s) * 1e3, _DECIMALS)
    if start_event is None or end_event is None:
        return _Milliseconds(host_ms, host_ms)
    return _Milliseconds(round(start_event.elapsed_time(end_event), _DECIMALS), host_ms)
