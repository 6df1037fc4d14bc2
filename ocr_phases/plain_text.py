"""Makes foreign text (file names, records, model output) plain text before it is printed."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

# What a terminal obeys, what XML and UTF-8 cannot hold, and what turns the direction of the text after it.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_PROGRESS = re.compile(r"\n*(?:\r|\x1b\[[AK])*")


def plain(text: str) -> str:
    """The text with a replacement sign for each control character; line breaks and tabs stay."""
    return _COMMANDS.sub("\N{REPLACEMENT CHARACTER}", text)


@contextlib.contextmanager
def plain_streams() -> Iterator[_PlainStream]:
    """Make everything printed to the standard streams `plain`, except a progress bar on stderr.

    What a stream cannot hold is escaped; one that is closed or full is given up, so that no work ends for it.
    Yields the stream of stdout.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file would take its place, and what libraries print there
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    with Path(os.devnull).open("w") as nowhere:
        out = _PlainStream(sys.stdout or nowhere)
        err = _PlainStream(sys.stderr or nowhere, progress=True)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield out


class _PlainStream:
    """A text stream whose writes are plain. One that shows progress may begin a write with a bar's codes.

    A bar begins with them, and what comes from outside always follows words of this package. ``failed`` is
    True from the first write that failed on; nothing is written then.
    """

    def __init__(self, stream: TextIO, *, progress: bool = False) -> None:
        self.stream = stream
        self.progress = progress
        self.failed = False

    def write(self, text: str) -> int:
        match = _PROGRESS.match(text) if self.progress else None
        codes = match.group() if match else ""
        shown = (codes + plain(text[len(codes) :])).encode(self.encoding or "utf-8", "backslashreplace")
        self._attempt(self.stream.write, shown.decode(self.encoding or "utf-8"))
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, act: Callable[..., Any], *arguments: str) -> None:
        if not self.failed:
            try:
                act(*arguments)
            except OSError:
                self.failed = True
                with contextlib.suppress(OSError):  # a stream without a file
                    # What it still holds back goes nowhere, too.
                    os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
