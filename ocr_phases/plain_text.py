"""Makes foreign text (file names, records, model output) plain text before it is printed."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

# What a terminal obeys, what XML and UTF-8 cannot hold, and what turns the direction of the text after it.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_PROGRESS = re.compile(r"\n*(?:\r|\x1b\[[AK])*")


def plain(text: str) -> str:
    """The text with a replacement sign for each control character; line breaks and tabs stay."""
    return _COMMANDS.sub("\N{REPLACEMENT CHARACTER}", text)


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Make everything printed to the standard streams `plain`, except a progress bar on stderr."""
    with (
        contextlib.redirect_stdout(_PlainStream(sys.stdout)),
        contextlib.redirect_stderr(_PlainStream(sys.stderr, progress=True)),
    ):
        yield


class _PlainStream:
    """A text stream whose writes are plain. One that shows progress may begin a write with a bar's codes.

    A bar begins with them, and what comes from outside always follows words of this package.
    """

    def __init__(self, stream: TextIO, *, progress: bool = False) -> None:
        self.stream = stream
        self.progress = progress

    def write(self, text: str) -> int:
        match = _PROGRESS.match(text) if self.progress else None
        codes = match.group() if match else ""
        return self.stream.write(codes + plain(text[len(codes) :]))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
