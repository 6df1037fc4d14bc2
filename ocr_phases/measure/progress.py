"""How far a measurement or a sweep is, in words and numbers, and when it will probably end.

An estimate follows what was seen: the runs of this measurement that are done, the cells of this
sweep that are done. Before the first of them nobody knows when it ends, and nothing is claimed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from statistics import fmean

from tqdm import tqdm

from ocr_phases.settings import Settings


def is_in_notebook() -> bool:
    """Whether a notebook's kernel runs this, whose cells show what is printed."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def write_line(text: str) -> None:
    """Write a line that a person shall read now; a bar that is shown goes on below it.

    It goes to stderr, but for a notebook's cell, where the bar is on stdout.
    """
    if is_in_notebook():
        tqdm.write(text, file=sys.stdout)
    elif sys.stderr.isatty():
        tqdm.write(text, file=sys.stderr)
    else:  # a log, to which bars write whole lines, too
        print(text, file=sys.stderr, flush=True)


def left_text(seconds: float | None) -> str:
    """A remaining time in words, "about 40 s left"; nothing where it is unknown."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"about {max(round(seconds), 1)} s left"
    if seconds < 90 * 60:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} h left"


class RunProgress:
    """The runs of one measurement: which one it is, its tokens, and how many are still to come.

    A run's length is unknown until one run is done, because most pages end long before the limit.
    From then on, the other runs are expected to have as many tokens and to take as long as the
    finished repeats; as the warm-up, where no repeat is finished yet.

    Parameters
    ----------
    token_limit : int
        The maximum number of new tokens of a run.
    warmup : int
        How many of the runs, the first ones, are warm-up.
    """

    def __init__(self, token_limit: int, warmup: int) -> None:
        self.token_limit = token_limit
        self.warmup = warmup
        self.runs = 0
        self.run_tokens: list[int] = []
        self.run_seconds: list[float] = []
        self.tokens = 0
        self._began = 0.0

    def next_run(self, done: int, runs: int, at: float) -> None:
        """``done`` of ``runs`` runs are done at the time ``at``, in seconds of any one clock."""
        self.runs = runs
        if done > len(self.run_tokens):
            self.run_tokens.append(self.tokens)
            self.run_seconds.append(at - self._began)
        self.tokens = 0
        self._began = at

    def add_tokens(self, count: int) -> None:
        """The current run wrote ``count`` more tokens."""
        self.tokens += count

    @property
    def done(self) -> int:
        """How many runs are done."""
        return len(self.run_tokens)

    @property
    def expected_tokens(self) -> int | None:
        """How many tokens the current run will probably have; None during the first run."""
        if not self.run_tokens:
            return None
        return max(self.run_tokens[-1], self.tokens)

    @property
    def tokens_done(self) -> int:
        """The tokens of all runs so far."""
        return sum(self.run_tokens) + self.tokens

    @property
    def tokens_total(self) -> int | None:
        """The tokens that all runs will probably have; None during the first run."""
        if self.expected_tokens is None:
            return None
        return sum(self.run_tokens) + self.expected_tokens * (self.runs - self.done)

    @property
    def left_s(self) -> float | None:
        """The seconds that the remaining runs will probably take; None where that is unknown."""
        if self.expected_tokens is None or self.done == self.runs:
            return None
        repeats = self.run_seconds[self.warmup :]
        seconds_per_run = fmean(repeats) if repeats else self.run_seconds[-1]
        share_of_current_run = self.tokens / max(self.expected_tokens, 1)
        return seconds_per_run * (self.runs - self.done - share_of_current_run)

    @property
    def run_name(self) -> str:
        """What the current run is: "warm-up" or "repeat 2 of 3"."""
        number = self.done + 1
        if number > self.warmup:
            return f"repeat {number - self.warmup} of {self.runs - self.warmup}"
        if self.warmup > 1:
            return f"warm-up {number} of {self.warmup}"
        return "warm-up"

    @property
    def text(self) -> str:
        """Where the measurement is, without the estimate: "warm-up, token 57 of at most 8,192"."""
        if not self.runs:
            return ""
        if self.done == self.runs:
            return f"{self.done} of {self.runs} runs done, checks follow"
        if self.tokens == 0 and self.done:
            return f"{self.done} of {self.runs} runs done"
        if self.tokens == 0:
            return f"{self.run_name}, waiting for the first token"
        if self.expected_tokens is None:
            return f"{self.run_name}, token {self.tokens:,} of at most {self.token_limit:,}"
        return f"{self.run_name}, token {self.tokens:,} of about {self.expected_tokens:,}"


class SweepProgress:
    """The cells of a sweep, which differ in cost.

    What is left follows the cells that were measured. Of a cell that is still to come, the cost is
    that of the measured cell that shares most settings with it, in proportion to their numbers of
    new tokens.

    Parameters
    ----------
    cells : iterable of Settings
        The cells that the sweep will come to.
    """

    def __init__(self, cells: Iterable[Settings]) -> None:
        self.waiting = list(cells)
        self.measured: list[tuple[Settings, float]] = []
        self._began: float | None = None

    def begin_work(self, at: float) -> None:
        """A run of a cell begins at the time ``at``; a cell's earlier start stays."""
        if self._began is None:
            self._began = at

    def begin_loading(self) -> None:
        """A model is being loaded, which is no part of a cell's cost."""
        self._began = None

    def end_cell(self, cell: Settings, measured: bool, at: float) -> None:
        """The cell is done at the time ``at``: ``measured`` now, or else kept or failed."""
        if measured and self._began is not None:
            self.measured.append((cell, at - self._began))
        self._began = at
        if self.waiting:
            # A model may have a preset of its own in place of the one that was asked for, so that
            # the cell need not be among those that wait as it is.
            shared = [_shared_settings(cell, other) for other in self.waiting]
            del self.waiting[shared.index(max(shared))]

    @property
    def left_s(self) -> float | None:
        """The seconds that the waiting cells will probably take; None before one was measured."""
        if not self.measured or not self.waiting:
            return None
        return sum(map(self._cost, self.waiting))

    def _cost(self, cell: Settings) -> float:
        """The seconds that a waiting cell will probably take."""
        nearest, seconds = self.measured[0]
        for other, other_seconds in self.measured:  # the later one, where two share as many
            if _shared_settings(cell, other) >= _shared_settings(cell, nearest):
                nearest = other
                seconds = other_seconds
        return seconds * cell.expected_tokens / nearest.expected_tokens


def _shared_settings(cell: Settings, other: Settings) -> int:
    """How many settings two cells have in common."""
    values = vars(other)
    return sum(values[name] == value for name, value in vars(cell).items())
