"""The panel's messages: news, and errors with a folded traceback."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import ipywidgets as widgets

from ocr_phases.errors import OcrPhasesError
from ocr_phases.show.web import element


class Messages(widgets.HTML):
    """One message at a time. As a context manager it shows and swallows an `Exception`."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("opx-messages")

    def say(self, sentence: str) -> None:
        """Show a sentence; an empty one clears the message."""
        self.value = element("p", sentence, role="status") if sentence else ""

    def show_error(self, error: BaseException) -> None:
        """Show an error as one sentence with a folded traceback."""
        trace = "".join(traceback.format_exception(error))
        folded = element("details", element("summary", "Traceback"), element("pre", trace, tabindex=0))
        sentence = element("p", error_sentence(error))
        self.value = element("div", sentence, folded, class_="opx-error", role="alert")

    def guarded(self, handler: Callable[..., object]) -> Callable[..., None]:
        """A widget's handler that shows its errors here; a widget alone only logs them."""

        def call(*arguments: Any) -> None:
            self.say("")
            with self:
                handler(*arguments)

        return call

    def __enter__(self) -> Messages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.show_error(error)
        else:
            return False
        return True


def error_sentence(error: BaseException) -> str:
    """The package's own message, or the type and first line of any other."""
    if isinstance(error, OcrPhasesError):
        return str(error)
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first if len(first) <= 300 else first[:299] + '…'}"
