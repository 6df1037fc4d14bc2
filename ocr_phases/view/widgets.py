"""Widgets of a finished record: the linked view, and each of its parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import anywidget
import ipywidgets
import pandas as pd
import traitlets

from ocr_phases.analyse.stages import tokens_of
from ocr_phases.record import Record
from ocr_phases.show.timeline_plot import plot_phase_timeline
from ocr_phases.show.web import notebook_css
from ocr_phases.view.assets import view_file
from ocr_phases.view.data import row_data
from ocr_phases.view.overlay import check_others, overlaid_curves
from ocr_phases.view.scripts import VIEW_SCRIPT
from ocr_phases.view.still import Stilled, show_pictures_of_boxes
from ocr_phases.view.still_picture import figure_bundle, still_bundle
from ocr_phases.view.timeline import timeline_data

_WIDGET_SCRIPT = VIEW_SCRIPT + view_file("timeline.js") + view_file("widgets.js")


class RowData(ipywidgets.Widget):
    """What the browser draws of one row of a record: several widgets share it, so that the page and
    the texts are sent once.
    """

    data = traitlets.Dict().tag(sync=True)

    def __init__(self, run: Record, row: int) -> None:
        super().__init__(data=row_data(run, row))
        self.run = run


_shared: WeakValueDictionary[tuple[int, int], RowData] = WeakValueDictionary()


def _data_of(run: Record, row: int) -> RowData:
    """The data of a row, made once for all widgets that show this very record."""
    key = (id(run), row)
    shared = _shared.get(key)
    if shared is None or shared.run is not run:
        shared = RowData(run, row)
        _shared[key] = shared
    return shared


#: The list of the data that each of these traits chooses from.
_CHOSEN_FROM = {"token": "texts", "row": "rows", "sheet": "pages"}


class LinkedTraits(traitlets.HasTraits):
    """The traits that every view of a record has; a notebook may set, observe and link them.

    Attributes
    ----------
    token : int
        The chosen token, counted from 0. What lies outside becomes the first or the last.
    row : int
        The row of a batch that is shown, counted from 0.
    sheet : int
        The page of the prompt that is shown, counted from 0.
    selection : list of int
        The brushed tokens: the first and the one behind the last; empty for none.
    color : {"type", "time"}
        What the colours mean.
    """

    token = traitlets.Int(0).tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    sheet = traitlets.Int(0).tag(sync=True)
    selection = traitlets.List(traitlets.Int(), maxlen=2).tag(sync=True)
    color = traitlets.Enum(["type", "time"], "type").tag(sync=True)

    def held(self, name: str) -> int:
        """How many there are to choose from: ``texts``, ``pages`` or ``rows`` of the data."""
        raise NotImplementedError

    @traitlets.validate("token", "row", "sheet")
    def _inside(self, proposal: Any) -> int:
        """What lies outside becomes the first or the last one."""
        count = self.held(_CHOSEN_FROM[proposal["trait"].name])
        last = max(count - 1, 0)
        return min(max(proposal["value"], 0), last)

    @traitlets.validate("selection")
    def _ordered(self, proposal: Any) -> list[int]:
        """A selection has two ends in order and inside; anything else is refused."""
        selection = proposal["value"]
        if not selection:
            return []
        tokens = self.held("texts")
        if len(selection) != 2 or not 0 <= selection[0] < selection[1] <= tokens:
            raise traitlets.TraitError(
                f"selection is {selection}: give the first token and the one behind the last, of "
                f"{tokens:,} tokens, as in [10, 20]; or [] for none."
            )
        return selection


class _RecordWidget(Stilled, anywidget.AnyWidget, LinkedTraits):
    """A widget of one row of a finished record.

    Parameters
    ----------
    run : Record
        The record, such as a `PhaseRun`. Widgets of the same object share what they send.
    row : int, default 0
        The row of a batch, counted from 0. It is a trait: setting it shows another row.
    **values
        First values of the traits `token`, `sheet`, `selection` and `color`, and what every widget
        takes, such as ``layout``.
    """

    _esm = _WIDGET_SCRIPT
    _css = notebook_css(view_file("view.css") + view_file("timeline.css"))

    kind = traitlets.Unicode("").tag(sync=True)
    source = traitlets.Instance(RowData).tag(sync=True, **ipywidgets.widget_serialization)

    def __init__(self, run: Record, row: int = 0, **values: Any) -> None:
        self.run = run
        show_pictures_of_boxes()
        # In an HBox, a widget without a width of its own would have none.
        layout = values.pop("layout", {"flex": "1 1 20rem", "min_width": "0"})
        super().__init__(source=_data_of(run, row), row=row, layout=layout)
        for name, value in values.items():
            setattr(self, name, value)
        self.observe(self._show_row, "row")
        self.observe(lambda _: self.draw_still_soon(), ["row", "token", "color"])

    def held(self, name: str) -> int:
        """How many there are to choose from: ``texts``, ``pages`` or ``rows`` of the data."""
        return len(self.source.data[name])

    def _show_row(self, _: Any) -> None:
        with self.hold_sync():
            self.selection = []
            self.token = 0
            self.sheet = 0
            self.source = _data_of(self.run, self.row)

    def picture(self) -> dict[str, Any]:
        """What a saved notebook shows: the page beside the curve."""
        return still_bundle(self.run, self.row, self.token, self.color, "page")

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self.run}"

    __repr__ = __str__

    @property
    def selected(self) -> pd.DataFrame:
        """The brushed tokens, as rows of `PhaseRun.tokens_of`; of none, an empty table."""
        return selected_tokens(self.run, self.row, self.selection)


def selected_tokens(run: Record, row: int, selection: list[int]) -> pd.DataFrame:
    """The tokens of a selection, with the columns of `tokens_of`, and ``share``: of the time of
    all tokens.
    """
    tokens = tokens_of(run, row)
    first = 0
    end = 0
    if selection:
        first, end = selection
    chosen = tokens.iloc[first:end]
    return chosen.assign(share=chosen["device_ms"] / tokens["device_ms"].sum())


class _CurveWidget(_RecordWidget):
    """A widget that draws the latency curves of other records over one another with its own.

    Page, tokens and text stay those of ``run``.

    Parameters
    ----------
    run : Record
        The record, such as a `PhaseRun`.
    row : int, default 0
        The row of a batch, counted from 0.
    others : list of Record, optional
        At most five other records. `others` is a trait: setting it draws others.
    **values
        As for `PageView`.

    Raises
    ------
    OcrPhasesError
        If there are more than five others, or one is no record.
    """

    others: Any = traitlets.Any(default_value=())
    curves: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(
        self, run: Record, row: int = 0, *, others: Sequence[Record] = (), **values: Any
    ) -> None:
        super().__init__(run, row, **values)
        self.observe(lambda _: self._draw_curves(), ["others", "row"])
        self.others = others

    @traitlets.validate("others")
    def _records(self, proposal: Any) -> list[Record]:
        """What is no record, and more curves than can be told apart, are refused."""
        check_others(proposal["value"])
        return list(proposal["value"])

    def _draw_curves(self) -> None:
        self.curves = overlaid_curves(self.run, self.others, self.row)
        self.draw_still_soon()

    def picture(self) -> dict[str, Any]:
        """What a saved notebook shows: the page beside the curves."""
        return still_bundle(self.run, self.row, self.token, self.color, "page", self.curves)


class RecordView(_CurveWidget):
    """The linked view of a record: page, latency curve, tokens and text, with lists and a scrubber.

    Parameters
    ----------
    run, row and all others
        As for `LatencyCurve`.

    Examples
    --------
    >>> RecordView(run)  # doctest: +SKIP
    >>> RecordView(eager, others=[compiled])  # doctest: +SKIP
    """

    kind = traitlets.Unicode("record").tag(sync=True)


class PageView(_RecordWidget):
    """The page of a record under its boxes: a click chooses the first token of a region.

    Parameters
    ----------
    run : Record
        The record, such as a `PhaseRun`. Widgets of the same object share what they send.
    row : int, default 0
        The row of a batch, counted from 0.
    **values
        First values of the traits `token`, `sheet`, `selection` and `color`, and what every widget
        takes, such as ``layout``.

    Examples
    --------
    >>> page = PageView(run)  # doctest: +SKIP
    >>> curve = LatencyCurve(run)  # doctest: +SKIP
    >>> ipywidgets.jslink((page, "token"), (curve, "token"))  # doctest: +SKIP
    >>> ipywidgets.HBox([page, curve])  # doctest: +SKIP
    """

    kind = traitlets.Unicode("page").tag(sync=True)


class LatencyCurve(_CurveWidget):
    """The latency of each token of a record: a drag brushes tokens, which `selected` then has.

    Parameters
    ----------
    run : Record
        The record, such as a `PhaseRun`. Widgets of the same object share what they send.
    row : int, default 0
        The row of a batch, counted from 0.
    others : list of Record, optional
        At most five other records, whose curves are drawn over one another with its own, with a
        legend. `others` is a trait: setting it draws others.
    **values
        As for `PageView`.

    Examples
    --------
    >>> curve = LatencyCurve(run, selection=[10, 40])  # doctest: +SKIP
    >>> curve.selected["device_ms"].sum()  # doctest: +SKIP
    >>> curve.others = [compiled]  # doctest: +SKIP
    """

    kind = traitlets.Unicode("curve").tag(sync=True)


class TokenStrip(_RecordWidget):
    """The tokens of a record as they were written, coloured by their time where `color` is "time".

    Parameters
    ----------
    run, row and all others
        As for `PageView`.

    Examples
    --------
    >>> TokenStrip(run, color="time")  # doctest: +SKIP
    """

    kind = traitlets.Unicode("tokens").tag(sync=True)


class TimelineView(_RecordWidget):
    """The typical repeat of a record over time: a lane for each phase and each stage, to zoom and
    move.

    It opens at the prefill. The buttons show the prefill or the whole repeat; Ctrl and the wheel,
    or + and -, zoom; a drag, or A and D, moves; 0 shows all. A click on a decode step chooses its
    token, the arrow keys go from step to step, and brushed tokens are shaded.
    `run.plot.timeline()` is the same repeat as a figure.

    Parameters
    ----------
    run, row and all others
        As for `PageView`.

    Examples
    --------
    >>> timeline = TimelineView(run)  # doctest: +SKIP
    >>> ipywidgets.jslink((timeline, "token"), (PageView(run), "token"))  # doctest: +SKIP
    """

    kind = traitlets.Unicode("timeline").tag(sync=True)
    timeline = traitlets.Dict().tag(sync=True)

    def __init__(self, run: Record, row: int = 0, **values: Any) -> None:
        super().__init__(run, row, timeline=timeline_data(run), **values)

    def picture(self) -> dict[str, Any]:
        """What a saved notebook shows: `run.plot.timeline()`."""
        return figure_bundle(self.run, plot_phase_timeline(self.run))
