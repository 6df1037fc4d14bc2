"""What a user is told while something is measured: where it is, and when it will probably end.

The times are numbers of these tests; no clock is read.
"""

import io
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pytest

from ocr_phases.cli.measuring import Bar, ShownText, measure_with_bar
from ocr_phases.errors import Interrupted
from ocr_phases.measure.cells import Cell
from ocr_phases.measure.progress import RunProgress, SweepProgress, left_text, write_line

LIMIT = 8_192

#: What happened so far, as (runs done, seconds) and numbers of new tokens; then what is told.
STORIES = [
    ("nothing has begun", 1, [], "", None, None),
    ("the warm-up begins", 1, [(0, 5.0)], "warm-up, waiting for the first token", None, None),
    (
        "the first run claims no end, and the limit is no length",
        1,
        [(0, 5.0), 1, 56],
        "warm-up, token 57 of at most 8,192",
        None,
        None,
    ),
    (
        "the second warm-up",
        2,
        [(0, 0.0), 8, (1, 4.0), 2],
        "warm-up 2 of 2, token 2 of about 8",
        32,
        11.0,
    ),
    ("without warm-up", 0, [(0, 0.0), 7], "repeat 1 of 4, token 7 of at most 8,192", None, None),
    ("one run is done", 1, [(0, 5.0), 100, (1, 15.0)], "1 of 4 runs done", 400, 30.0),
    (
        "the estimate follows the work, also within a run",
        1,
        [(0, 5.0), 100, (1, 15.0), 50],
        "repeat 1 of 3, token 50 of about 100",
        400,
        25.0,
    ),
    (
        "a slow warm-up says nothing once a repeat is done",
        1,
        [(0, 0.0), 100, (1, 60.0), 100, (2, 70.0)],
        "2 of 4 runs done",
        400,
        20.0,
    ),
    (
        "a run that is longer than the one before is not said to be over",
        1,
        [(0, 0.0), 100, (1, 10.0), 130],
        "repeat 1 of 3, token 130 of about 130",
        490,
        20.0,
    ),
    ("runs that tell no tokens", 1, [(0, 0.0), (1, 10.0)], "1 of 4 runs done", 0, 30.0),
    (
        "all runs are done",
        1,
        [(0, 0.0), 9, (1, 1.0), 9, (2, 2.0), 9, (3, 3.0), 9, (4, 4.0)],
        "4 of 4 runs done, checks follow",
        36,
        None,
    ),
]


@pytest.mark.parametrize(
    ("warmup", "story", "text", "total", "left"),
    [story[1:] for story in STORIES],
    ids=[story[0] for story in STORIES],
)
def test_progress_counts_what_will_happen_and_claims_no_end_before_a_run_is_done(
    warmup, story, text, total, left
):
    progress = RunProgress(LIMIT, warmup)
    for event in story:
        if isinstance(event, tuple):
            progress.next_run(event[0], 4, event[1])
        else:
            progress.add_tokens(event)
    assert progress.text == text
    assert progress.tokens_total == total
    assert progress.left_s == (None if left is None else pytest.approx(left))
    assert total is None or progress.tokens_done <= total


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.0, "about 1 s left"),
        (40.4, "about 40 s left"),
        (204.0, "about 3 min left"),
        (9_000.0, "about 2.5 h left"),
    ],
)
def test_a_remaining_time_is_told_in_the_unit_that_a_person_would_use(seconds, text):
    assert left_text(seconds) == text


def test_a_command_shows_the_warm_up_and_then_an_estimate_from_the_runs_that_are_done(capsys):
    def measure(progress, on_tokens):
        progress(0, 3)
        on_tokens(-1, [[1]])
        progress(1, 3)
        on_tokens(0, [[1]])
        raise Interrupted("a record", 2)

    arguments = SimpleNamespace()

    assert measure_with_bar(arguments, measure, LIMIT, warmup=1) == "a record"

    assert arguments.stopped == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, "a log gets one line for each finished run"
    assert "33%" in lines[0]
    assert "1 of 3 runs done, about " in lines[0]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "before"), [(Terminal, "\r"), (io.StringIO, "")])
def test_a_line_that_is_printed_beside_a_bar_begins_at_the_left(stream, before):
    shown = stream()
    with redirect_stdout(shown), redirect_stderr(shown), Bar(4, "page", "Measuring") as bar:
        bar.print_above("A line.")
        write_line("A warning.")
    assert f"{before}A line.\n" in shown.getvalue()
    assert f"{before}A warning.\n" in shown.getvalue()


# -- a sweep ---------------------------------------------------------------------------------------

FAST = Cell(preset="tiny", max_new_tokens=10)
LONG = Cell(preset="tiny", max_new_tokens=100)
SLOW = Cell(preset="base", strategy="eager", max_new_tokens=10)
SLOW_LONG = Cell(preset="base", strategy="eager", max_new_tokens=100)
CELLS = [FAST, LONG, SLOW, SLOW_LONG]


@pytest.mark.parametrize(
    ("ended", "left"),
    [
        ([], None),
        # Nothing was measured, so nothing is known of the cells that are left.
        ([(FAST, False, 0.1)], None),
        # More tokens take longer in proportion, as long as nothing else was seen.
        ([(FAST, True, 2.0)], 20.0 + 2.0 + 20.0),
        # A cell of the same length that was measured says more than one of another length.
        ([(FAST, True, 2.0), (LONG, True, 8.0)], 2.0 + 6.0),
        ([(FAST, True, 2.0), (LONG, True, 8.0), (SLOW, True, 38.0)], 300.0),
        (
            [(FAST, True, 2.0), (LONG, True, 8.0), (SLOW, True, 38.0), (SLOW_LONG, False, 38.1)],
            None,
        ),
    ],
)
def test_the_estimate_of_a_sweep_follows_the_cost_of_the_cells_that_were_measured(ended, left):
    progress = SweepProgress(CELLS)
    progress.begin_work(0.0)
    for cell, measured, at in ended:
        progress.end_cell(cell, measured, at)
    assert progress.left_s == (None if left is None else pytest.approx(left))


def test_loading_a_model_is_no_part_of_a_cell_of_a_sweep():
    progress = SweepProgress([FAST, FAST])
    progress.begin_loading()
    progress.begin_work(60.0)
    progress.begin_work(61.0)  # the second run of this cell
    progress.end_cell(FAST, measured=True, at=62.0)
    assert progress.left_s == pytest.approx(2.0)


def test_a_cell_with_the_model_s_own_preset_counts_for_the_one_that_was_asked_for():
    progress = SweepProgress(CELLS)
    progress.begin_work(0.0)
    progress.end_cell(Cell(preset="processor", max_new_tokens=100), measured=True, at=1.0)
    assert len(progress.waiting) == 3
    assert sorted(cell.max_new_tokens for cell in progress.waiting) == [10, 10, 100]


def test_the_text_is_shown_line_by_line_while_the_first_run_makes_it(capsys):
    pieces = {1: "A title\n", 2: "A li", 3: "ne\x1b\n\n", 4: "the end"}
    shown = ShownText(pieces.__getitem__)
    shown.add(-1, [1, 2])
    assert capsys.readouterr().err == "A title\n"
    shown.add(-1, [3, 4])
    assert capsys.readouterr().err == "A line\N{REPLACEMENT CHARACTER}\n\n"
    shown.add(0, [1, 2, 3, 4])
    shown.end()
    assert capsys.readouterr() == ("", "the end\n")
