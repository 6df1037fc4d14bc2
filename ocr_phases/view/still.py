"""How a widget leaves a picture below itself, which a saved notebook shows where no kernel runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import ipywidgets
from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle, display

#: Seconds in which several changes make one picture.
_SOON_S = 0.02


class BoxHandle:
    """The joined picture of the widgets of a box, below that box."""

    def __init__(self, handle: DisplayHandle, widgets: Sequence[Stilled]) -> None:
        self.handle = handle
        self.widgets = widgets

    def update(self, _: dict[str, Any], *, raw: bool) -> None:
        """Draw the picture anew, because that of one widget changed."""
        self.handle.update(joined_picture(self.widgets), raw=raw)


class Stilled:
    """A widget that leaves a picture below itself, which a saved notebook shows without a
    kernel.
    """

    _handle: DisplayHandle | BoxHandle | None = None  # once a cell has the picture
    _due: asyncio.TimerHandle | None = None

    def picture(self) -> dict[str, Any]:
        """What a saved notebook shows, by MIME type."""
        raise NotImplementedError

    def draw_still_soon(self) -> None:
        """Draw the picture soon: once for what changes together."""
        if self._due is not None:
            self._due.cancel()
        loop = running_loop()
        if loop is not None:
            self._due = loop.call_later(_SOON_S, self.draw_still)

    def draw_still(self) -> None:
        """Draw the picture now, where a cell shows it."""
        if self._handle is not None:
            self._handle.update(self.picture(), raw=True)

    def _ipython_display_(self) -> None:
        # No words for the widget itself: where it cannot be shown, the picture stands for it.
        view, facts = super()._repr_mimebundle_()  # type: ignore[misc]  # the widget's own
        display({**view, "text/plain": ""}, metadata=facts, raw=True)
        self._handle = display(self.picture(), raw=True, display_id=True)


def joined_picture(widgets: Sequence[Stilled]) -> dict[str, Any]:
    """What a saved notebook shows of several widgets, by MIME type; what is equal is there once.

    A viewer that drops HTML shows the JPEG of the first widget alone.
    """
    pictures = [widget.picture() for widget in widgets]
    different_html = dict.fromkeys(picture["text/html"] for picture in pictures)
    different_texts = dict.fromkeys(picture["text/plain"] for picture in pictures)
    return {
        **pictures[0],
        "text/html": "".join(different_html),
        "text/plain": "\n".join(different_texts),
    }


def stilled_in(box: ipywidgets.Box) -> list[Stilled]:
    """The widgets with a picture that stand in a box or in boxes within it, in their order."""
    widgets: list[Stilled] = []
    for child in box.children:
        if isinstance(child, Stilled):
            widgets.append(child)
        elif isinstance(child, ipywidgets.Box):
            widgets += stilled_in(child)
    return widgets


def _show_box(box: ipywidgets.Box) -> None:
    """Show a box with our widgets, and their picture below it; any other box as IPython does."""
    widgets = stilled_in(box)
    if not widgets:
        raise NotImplementedError  # IPython then shows the box in the usual way
    display({**box._repr_mimebundle_(), "text/plain": ""}, raw=True)
    handle = display(joined_picture(widgets), raw=True, display_id=True)
    for widget in widgets:
        widget._handle = BoxHandle(handle, widgets)


def show_pictures_of_boxes() -> None:
    """From now on a box of ipywidgets with our widgets in it leaves their picture, too."""
    shell = get_ipython()
    if shell is not None:
        shell.display_formatter.ipython_display_formatter.for_type(ipywidgets.Box, _show_box)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that this thread runs; None in a plain script."""
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None
