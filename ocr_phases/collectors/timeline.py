"""Spans: where the time of one repeat went, on the host's clock and on the device's.

A span costs two clock reads and an NVTX range; on CUDA also two events, which are only recorded
here and read after one synchronize at the end of the repeat, so that measuring adds no wait. What
that takes within a step is in ``benchmarks/README.md``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

import nvtx
import pandas as pd
import torch
from torch import nn

from ocr_phases.errors import Hinted, explain_wrong_calls
from ocr_phases.models.interface import ModelInterface, TimedPart
from ocr_phases.models.load import resolve_device
from ocr_phases.record import make_spans
from ocr_phases.stages import VISION_ROLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_DECIMALS = (
    6  # of ms: clocks tick in nanoseconds, and digits beyond them would fill half of a record
)


#: The stage between the projector and the language model, which is no module.
_FUSION = "vision_fusion"

#: What is entered around a phase of that name.
Around = Callable[[str], AbstractContextManager[Any]]
#: A moment: an event recorded on the device (None on a CPU), and `perf_counter` seconds.
Mark = tuple[Any, float]


@dataclass(slots=True, eq=False)
class Span:
    """One open or closed stretch of time. Equal to itself alone."""

    phase: str
    stage: str
    view: str
    step: int | None
    profiled: Any = None
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
        self._device = torch.device(resolve_device(str(device)))
        # Asking for it at every mark would cost as much as the mark.
        self._stream = (
            torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        )
        self.closed: list[Span] = []
        self._open: list[Span] = []
        self.phase = ""
        self.step: int | None = None
        self.vectors = 0  # that the projector made in the prefill
        self._origin = self._mark()

    def begin(self, stage: str, view: str = "") -> Span:
        """Open a span of ``stage`` in the current phase and step."""
        span = Span(self.phase, stage, view, self.step)
        nvtx.push_range(stage)
        if torch.autograd._profiler_enabled():
            # torch's profiler does not show NVTX ranges.
            span.profiled = torch.profiler.record_function(stage)
            span.profiled.__enter__()
        self._open.append(span)
        span.start = self._mark()
        return span

    def end(self, span: Span) -> None:
        """Close ``span`` and whatever is still open inside it; a span already closed stays as it
        is.
        """
        while span in self._open:
            inner = self._open.pop()
            inner.end = self._mark()
            if inner.profiled is not None:
                inner.profiled.__exit__(None, None, None)
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
        """A span over a whole phase, or over one ``stage`` and ``step``; spans inside belong to it."""
        before = self.phase, self.step
        self.phase, self.step = phase, step
        try:
            with (
                contextlib.nullcontext() if stage else self.around(phase),
                self.span(stage or phase),
            ):
                yield
        finally:
            self.phase, self.step = before

    def _mark(self) -> Mark:
        event = None
        if self._stream is not None:
            event = torch.cuda.Event(enable_timing=True)
            event.record(self._stream)
        return event, perf_counter()

    def rows(self, repeat: int = 0) -> list[tuple]:
        """All closed spans in order of their start, as rows of `ocr_phases.record.SPAN_COLUMNS`.

        On CUDA this waits for the device, once.
        """
        torch.get_device_module(self._device).synchronize(self._device)
        rows = []
        for span in sorted(self.closed, key=lambda span: span.start[1]):
            times = zip(_ms(self._origin, span.start), _ms(span.start, span.end), strict=True)
            rows.append((repeat, span.phase, span.stage, span.view, span.step, *chain(*times)))
        return rows

    def table(self) -> pd.DataFrame:
        """All closed spans in order of their start, times in ms: the columns of `PhaseRun.spans`.

        On CUDA this waits for the device, once.
        """
        return make_spans(self.rows())

    def plot(self) -> Figure:
        """The spans over time: `ocr_phases.show.plots.plot_spans`."""
        from ocr_phases.show.plots import plot_spans

        return plot_spans(self.table())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(device={str(self._device)!r}, spans={len(self.closed)})"

    def __str__(self) -> str:
        from ocr_phases.show.results import timeline_text

        return timeline_text(self.table())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.results import timeline_bundle

        return timeline_bundle(self.table())


class NoTimeline(Timeline):
    """Collects nothing: for warm-up, for callers without interest in times, and to price the
    collectors.
    """

    @contextlib.contextmanager
    def span(self, stage: str, view: str = "") -> Iterator[None]:
        """Nothing."""
        yield


def _ms(start: Mark, end: Mark) -> tuple[float, float]:
    """From one mark to another by the device's clock and by the host's, ms; on a CPU they are the
    same.
    """
    host = round((end[1] - start[1]) * 1e3, _DECIMALS)
    return (host if start[0] is None else round(start[0].elapsed_time(end[0]), _DECIMALS)), host


@contextlib.contextmanager
def stage_hooks(
    model: nn.Module, interface: ModelInterface, timeline: Timeline, views: Sequence[str]
) -> Iterator[None]:
    """Time the model's stages by hooks on its submodules, for the length of a ``with`` block.

    ``views`` names the view of each successive vision call of a prefill (``"global"`` or
    ``"local"``). ``vision_fusion`` runs from the end of the last projector call to the start of the
    language model. The hooks are removed at the end, also after an error.
    """
    if isinstance(timeline, NoTimeline):
        yield
        return
    parts = interface.timed_parts(model)
    open_spans: dict[str, Span] = {}
    views_left = {part.stage: list(views) for part in parts if part.role in VISION_ROLES}

    def before(part: TimedPart, module: nn.Module, args: Any) -> None:
        if part.role == "language" and _FUSION in open_spans:
            timeline.end(open_spans.pop(_FUSION))
        view = ""
        if views_left.get(part.stage):
            view = views_left[part.stage].pop(0)
        open_spans[part.stage] = timeline.begin(part.stage, view)

    def after(part: TimedPart, module: nn.Module, args: Any, output: Any) -> None:
        timeline.end(open_spans.pop(part.stage))
        if part.role == "projector" and views:
            timeline.vectors += prod(output.shape[:-1])
            if not views_left[part.stage]:
                open_spans[_FUSION] = timeline.begin(_FUSION)

    with contextlib.ExitStack() as hooks:
        for part in parts:
            hooks.enter_context(part.first.register_forward_pre_hook(partial(before, part)))
            hooks.enter_context(part.last.register_forward_hook(partial(after, part)))
        yield
