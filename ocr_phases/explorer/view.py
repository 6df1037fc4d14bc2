"""`View`: one row of a record drawn and linked in the browser; the kernel only hears which token is shown.

`drawings.js` and `view.js` draw it: together a plain module that the notebook loads from this widget, without
a build step or network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.explorer.view_data import boxes, numbers, page_jpegs, row_data, scale_of
from ocr_phases.families import FAMILIES
from ocr_phases.record import PhaseRun
from ocr_phases.show.web import jpeg_file
from ocr_phases.text import plain

if TYPE_CHECKING:
    from PIL.Image import Image

_HERE = Path(__file__).parent
_LIVE_SIDE = 1_000  # pixels of the page under a running measurement
_LIVE_POINTS = 400
_LIVE_LINES = 3
#: A family whose way to mark regions takes in the others'.
_ANY_MARKS = next(name for name, facts in FAMILIES.items() if facts.page_mark)


class _Drawing(anywidget.AnyWidget):
    _esm = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("drawings.js", "view.js"))
    _css = (_HERE / "view.css").read_text(encoding="utf-8")
    data = traitlets.Dict().tag(sync=True)
    pages = traitlets.List(traitlets.Bytes()).tag(sync=True)


class View(_Drawing):
    """A row of a record, drawn as what the tab is for that shows it: page, text or timeline.

    `token` is the index of the token shown, from 0, and `row` that of the row: both may be set, and change
    when a person moves the scrubber or chooses a row.
    """

    token = traitlets.Int(0).tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)

    def __init__(self) -> None:
        super().__init__(layout={"flex": "0 0 auto", "overflow": "visible"})
        self._run: PhaseRun | None = None
        self.observe(lambda _: self._load(), "row")

    @property
    def region(self) -> int:
        """The region that the token shown belongs to; -1 is the preamble."""
        return self.data["region"][self.token] if self.data else -1

    def show(self, run: PhaseRun) -> None:
        """Show the first token of a record's first row."""
        self._run = run
        if self.row:
            self.row = 0  # which loads it
        else:
            self._load()

    def _load(self) -> None:
        if self._run is None:
            return
        with self.hold_sync():
            self.token = 0
            self.pages = page_jpegs(self._run, self.row)
            self.data = row_data(self._run, self.row)

    @traitlets.validate("token")
    def _of_row(self, proposal: Any) -> int:
        return min(max(proposal["value"], 0), max(len(self.data.get("texts", ())) - 1, 0))

    @traitlets.validate("row")
    def _of_run(self, proposal: Any) -> int:
        return min(max(proposal["value"], 0), 0 if self._run is None else len(self._run.results) - 1)


class LiveView(_Drawing):
    """A running measurement: its page with the boxes written so far, over the latency of each token.

    Call `begin` once and `update` at each refresh: an update is one message of at most some 30 kB.
    """

    live = traitlets.Dict().tag(sync=True)

    def begin(self, page: Image | None) -> None:
        """Show a page (or none) without boxes."""
        with self.hold_sync():
            self.live = {}
            self.data = {} if page is None else {"width": page.width, "height": page.height}
            self.pages = [] if page is None else [jpeg_file(page, _LIVE_SIDE, _LIVE_SIDE)[1]]

    def update(self, texts: Sequence[str], times: Sequence[Sequence[float]], most: int) -> None:
        """Draw the token texts of this run so far, and the ms of each token of it and of the runs before it.

        A time may be NaN. ``most`` is how many tokens the curve has room for.
        """
        shown = [numbers(run) for run in times[-_LIVE_LINES:]]
        found = [time for run in shown for time in run if time is not None]
        self.live = {
            "lines": [[len(run), _thinned(run, most)] for run in shown],
            "count": most,
            "top": 1.3 * scale_of(found),
            "boxes": self._boxes(plain("".join(texts))),
        }

    def _boxes(self, text: str) -> list[dict[str, Any]]:
        if not self.data:
            return []
        regions = parse_grounding(text, _ANY_MARKS).on_page(0).regions
        labels = list(dict.fromkeys(region.label for region in regions))
        return boxes(regions, (self.data["width"], self.data["height"]), labels)


def _thinned(times: list[float | None], most: int) -> list[list[float]]:
    """``[token, ms]`` of the slowest of each few tokens, so that no slow one goes missing."""
    bunch = -(-most // _LIVE_POINTS)
    points = []
    for start in range(0, len(times), bunch):
        known = (
            (ms, token) for token, ms in enumerate(times[start : start + bunch], start) if ms is not None
        )
        points += [[token, ms] for ms, token in sorted(known)[-1:]]
    return points
