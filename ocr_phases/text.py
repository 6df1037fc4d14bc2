"""Words and numbers of every sentence; foreign text made plain before it is printed."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO


def count_text(number: int, noun: str) -> str:
    """``"1 page"``, ``"2,000 pages"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def prompt_text(tokens: float | None) -> str:
    """The length of a prompt (``"912 prompt tokens"``); None and NaN are an unknown one."""
    if tokens is None or math.isnan(tokens):
        return "a prompt of unknown length"
    return f"{int(tokens):,} prompt tokens"


def ms_text(ms: float | None) -> str:
    """Milliseconds with three digits and a fitting unit (``"4.02 ms"``, ``"1.25 s"``); ``"n/a"``
    for none.
    """
    return _unit_text(ms, "ms", "s")


def bytes_text(count: float | None) -> str:
    """Bytes in decimal units with three digits (``"1.90 GB"``); ``"n/a"`` for none."""
    if count is None:
        return "n/a"
    if count < 999.5:
        return f"{count:.0f} B"
    return _unit_text(count / 1000.0, "kB", "MB", "GB")


def millions_text(count: int) -> str:
    """A number of parameters in millions (``"95.6 M"``) or thousand millions (``"3.34 B"``)."""
    return _unit_text(count / 1e6, "M", "B")


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def rate_text(value: float) -> str:
    """Three digits with a decimal prefix: ``4.3 T``."""
    for size, prefix in _PREFIXES:
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


def _unit_text(value: float | None, *units: str) -> str:
    """Three digits and the first unit, each a thousand of the one before, in which they are
    enough.
    """
    if value is None or not math.isfinite(value):
        return "n/a"
    unit, *larger_units = units
    for larger_unit in larger_units:
        if abs(value) >= 999.5:  # rounding to three digits would show four
            value /= 1000.0
            unit = larger_unit
    return f"{digits_text(value)} {unit}"


def percent_text(share: float | None) -> str:
    """A share of one as per cent (``"62 %"``, ``"0.4 %"``); ``"n/a"`` for none."""
    if share is None or not math.isfinite(share):
        return "n/a"
    value = share * 100.0
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:.0f} %"


def digits_text(value: float) -> str:
    """Three significant digits, below 0.1 two, without an exponent; never fewer than the integer
    part has.
    """
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    if decimals > 3:  # below 0.1 two digits are enough
        decimals -= 1
    text = f"{value:,.{decimals}f}"
    digits = text.lstrip("-0.").replace(".", "")
    if "." in text and len(digits) > 3:  # 9.996 was rounded up to 10.00
        return text[:-1].rstrip(".")
    return text


def digits_within(value: float, reach: float) -> str:
    """A number with the digits that its uncertainty leaves: two of ``reach``, and never more than
    three.

    ``reach`` is half of the value's interval: ``354.326`` with a reach of 257 is ``"350"``.
    """
    if value == 0 or not math.isfinite(value) or not (math.isfinite(reach) and reach > 0):
        return digits_text(value)
    known = 1 - math.floor(math.log10(reach))
    decimals = min(known, 2 - math.floor(math.log10(abs(value))))
    rounded = round(value, decimals)
    return f"{rounded + 0.0:,.{max(decimals, 0)}f}"  # + 0.0: a zero has no sign


def percent_within(share: float, reach: float) -> str:
    """A share of one as per cent with the digits that half of its interval, ``reach``, leaves."""
    return f"{digits_within(100.0 * share, 100.0 * reach)} %"


def any_of(words: Iterable[str]) -> str:
    """``"a, b or c"``."""
    *first, last = words
    if not first:
        return last
    return f"{', '.join(first)} or {last}"


def nearest(name: str, known: Iterable[str], *, least: float = 0.6) -> str:
    """`` Did you mean X?`` with the name of ``known`` that is most like ``name``, in any case; else
    empty.

    ``least`` is the least likeness, 0 to 1, as `difflib.get_close_matches` counts it.
    """
    lowered = {each.lower(): each for each in known}
    # The search takes quadratic time in the length of the name.
    matches = difflib.get_close_matches(name[:100].lower(), lowered, n=1, cutoff=least)
    if not matches:
        return ""
    return f" Did you mean {lowered[matches[0]]}?"


# What a terminal obeys, what XML and UTF-8 cannot hold, and what turns the direction of the text
# after it.
_COMMANDS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_PROGRESS = re.compile(r"\n*(?:\r|\x1b\[[AK])*")


def plain(text: str) -> str:
    """The text with a replacement sign for each control character; line breaks and tabs stay."""
    return _COMMANDS.sub("\N{REPLACEMENT CHARACTER}", text)


@contextlib.contextmanager
def plain_streams() -> Iterator[_PlainStream]:
    """Make everything printed to the standard streams `plain`, except a progress bar on stderr.

    What a stream cannot hold is escaped; one that is closed or full is given up, so that no work
    ends for it. Yields the stream of stdout.
    """
    # In the place of a standard stream that is closed the next file would be, and what libraries
    # print there.
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:  # the lowest free number
        pass
    os.close(number)
    with Path(os.devnull).open("w") as nowhere:
        out = _PlainStream(sys.stdout or nowhere)
        err = _PlainStream(sys.stderr or nowhere, progress=True)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield out


class _PlainStream:
    """A text stream whose writes are plain. One that shows progress may begin a write with a bar's
    codes.

    A bar begins with them, and what comes from outside always follows words of this package.
    ``failed`` is True from the first write that failed on; nothing is written then.
    """

    def __init__(self, stream: TextIO, *, progress: bool = False) -> None:
        self.stream = stream
        self.progress = progress
        self.failed = False

    def write(self, text: str) -> int:
        codes = _PROGRESS.findall(text)[0] if self.progress else ""
        encoding = self.encoding or "utf-8"
        data = (codes + plain(text[len(codes) :])).encode(encoding, "backslashreplace")
        self._attempt(self.stream.write, data.decode(encoding))
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, act: Callable[..., Any], *arguments: str) -> None:
        if self.failed:
            return
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


def first_difference(mine: Sequence[int], other: Sequence[int]) -> int | None:
    """The first index at which two lists of ids differ, or one ends; None where they are equal."""
    for index, (one, two) in enumerate(itertools.zip_longest(mine, other)):
        if one != two:
            return index
    return None
