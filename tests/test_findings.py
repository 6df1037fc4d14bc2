"""What is said of a record stays within what its checks judge, and no number is more exact than it
is.
"""

import re

import pytest
from elements import seen
from example_run import altered, check_of, make_run, paced, with_steps
from matplotlib.figure import Figure
from matplotlib.text import Text
from test_checks import with_ceilings

from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import check_title, run_checks
from ocr_phases.analyse.expectations import EXPECTATIONS
from ocr_phases.analyse.floors import floor_table
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.sentences import (
    checks_verdict,
    findings,
    headline,
    limit_sentence,
    noise_warning,
    verdict,
)
from ocr_phases.analyse.sweep_table import sweep_table
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.notebook_table import frame_html
from ocr_phases.show.roofline_plot import plot_roofline
from ocr_phases.show.run_overview import overview_section
from ocr_phases.show.run_times import floors_section
from ocr_phases.show.terminal_table import table_text
from ocr_phases.text import digits_within, percent_within

#: How much longer each repeat takes than the first one, on a machine that does other things, too.
BUSY_FACTORS = (1.0, 1.6, 3.0)


def drifting(run: PhaseRun, first_ms: float, drift_ms: float) -> PhaseRun:
    """The record with steps each of which takes so much longer than the one before."""

    def step_ms(step: int, _repeat: int) -> float:
        return first_ms + drift_ms * step

    return with_steps(run, step_ms)


def drawn_text(figure: Figure) -> str:
    """All texts of a figure, one below the other."""
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def all_words(run: PhaseRun) -> str:
    """Everything that is said of a record in words, in a terminal and on a page."""
    texts = [headline(run), limit_sentence(run), verdict(run), *findings(run)]
    texts.append(seen(overview_section(run).html()))
    texts.append(drawn_text(plot_latency(run)))
    texts.append(drawn_text(plot_roofline(run)))
    return "\n".join(texts)


# -- a finding whose check does not judge ----------------------------------------------------------


every_drift = pytest.mark.parametrize(
    ("direction", "drift_ms"), [("slower", 0.05), ("faster", -0.05)]
)


@every_drift
def test_a_drift_is_told_where_its_check_judges(direction: str, drift_ms: float) -> None:
    run = drifting(make_run(), 20.0, drift_ms)
    assert check_of(run, "decode_trend").verdict != "n/a"
    words = all_words(run)
    assert "became" in words
    assert f"{direction} over the run" in words


@every_drift
def test_a_drift_on_a_busy_machine_is_not_told(direction: str, drift_ms: float) -> None:
    run = paced(drifting(make_run(), 20.0, drift_ms), *BUSY_FACTORS)
    assert check_of(run, "decode_trend").verdict == "n/a"
    words = all_words(run)
    assert not ("became" in words and f"{direction} over the run" in words)


def test_a_rule_of_thumb_does_not_judge_a_drift_that_its_check_does_not() -> None:
    published_size = {"parameters": {"total": 3_300_000_000}}
    quiet = altered(drifting(make_run(cuda=True), 10.0, 0.05), model=published_size)
    busy = paced(quiet, *BUSY_FACTORS)
    assert check_of(quiet, "expected_constant_decode").measured.startswith("out of range")
    assert check_of(busy, "expected_constant_decode").verdict == "n/a"


TIMES_OF_CEILINGS = {"copied_bytes": 10**9, "matmul_size": 4096}
#: Records with a ceiling that was measured wrongly.
WRONG_CEILINGS = {
    "MBU above 100 %": with_ceilings(1e6),
    "MFU above 100 %": with_ceilings(1e12, 1e6),
    "copies that differ": with_ceilings(
        1e12, copy_ms=[4.0, 9.0, 8.8], matmul_ms=[5.0, 5.1], **TIMES_OF_CEILINGS
    ),
    "products that differ": with_ceilings(
        1e12, copy_ms=[4.0, 4.1], matmul_ms=[5.0, 11.0, 11.5], **TIMES_OF_CEILINGS
    ),
}
every_wrong_ceiling = pytest.mark.parametrize("run", WRONG_CEILINGS.values(), ids=WRONG_CEILINGS)
FLOORS_OF_A_CELL = ["prefill_floor_ms", "step_floor_ms"]
#: What is said where the distance from a floor is known.
CLAIM = re.compile(r"times its floor|hardware floor|its own floor|allows \d")


@every_wrong_ceiling
def test_no_distance_from_a_floor_is_told_where_its_ceiling_is_wrong(run: PhaseRun) -> None:
    assert check_of(run, "impossible_values").verdict == "noisy"

    words = all_words(run)
    assert not CLAIM.search(words)
    assert "unknown, because the device's peak rates could not be measured" in words

    table = seen(floors_section(run).html())
    assert "no floor is known" in table
    assert "times its floor" not in table

    cell = sweep_table({"a": run}).iloc[0]
    assert cell[FLOORS_OF_A_CELL].isna().all()


def test_a_distance_from_a_floor_is_told_where_its_ceiling_is_right() -> None:
    run = with_ceilings(1e12)
    assert check_of(run, "impossible_values").verdict == "pass"

    words = all_words(run)
    assert "times its floor" in words
    assert "hardware floor" in words

    cell = sweep_table({"a": run}).iloc[0]
    assert cell[FLOORS_OF_A_CELL].notna().all()


@every_wrong_ceiling
def test_a_wrong_ceiling_does_not_make_the_machine_busy(run: PhaseRun) -> None:
    warning = noise_warning(run)
    assert warning.startswith("The device's peak rates could not be measured, so there are no")
    assert "busy" not in warning


# -- the verdict of all checks ---------------------------------------------------------------------

#: What a sentence says of the checks with each verdict.
WORDS_OF_VERDICTS = {
    "failed": "fail",
    "found it noisy": "noisy",
    "left a note": "note",
    "do not apply or have no data": "n/a",
}


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="quiet"),
        pytest.param(paced(make_run(), *BUSY_FACTORS), id="busy"),
        pytest.param(with_ceilings(1e6), id="wrong ceiling"),
        pytest.param(paced(with_ceilings(1e6), *BUSY_FACTORS), id="busy, wrong ceiling"),
        pytest.param(make_run(max_tokens=1), id="one token"),
        pytest.param(make_run(generate=True), id="one-shot"),
        pytest.param(
            altered(
                make_run(), live_checks=[{"name": "parity", "verdict": "fail", "measured": "1"}]
            ),
            id="a broken one",
        ),
    ],
)
def test_counts_of_checks_add_up_and_say_what_they_count(run: PhaseRun) -> None:
    checks = run_checks(run)
    verdicts = [check.verdict for check in checks if check.name not in EXPECTATIONS]

    sentence = re.search(
        r"(\d+) of (\d+) checks passed((?:, \d+ [a-z ]+)*)\.", checks_verdict(checks)
    )

    assert sentence is not None
    passed, total, rest = sentence.groups()
    others = {words: int(count) for count, words in re.findall(r"(\d+) ([a-z ]+)", rest)}
    assert int(total) == len(verdicts)
    assert int(passed) + sum(others.values()) == len(verdicts)
    for words, count in others.items():
        assert count == verdicts.count(WORDS_OF_VERDICTS[words])


@pytest.mark.parametrize(
    ("verdicts", "told", "untold"),
    [
        ({}, "No check failed.", "but"),
        ({"repeat_spread": "noisy"}, "but the machine was busy (repeat spread).", "ceilings"),
        ({"busy_host": "noisy"}, "but the machine was busy (busy host).", "ceilings"),
        (
            {"impossible_values": "noisy"},
            "but the device's peak rates could not be measured",
            "busy",
        ),
        (
            {"busy_host": "noisy", "impossible_values": "noisy"},
            "(busy host) and the device's peak rates could not be measured",
            "correct",
        ),
        (
            {"parity": "fail", "impossible_values": "noisy"},
            "these checks failed: parity.",
            "No check failed",
        ),
        ({"parity": "note"}, "Read the notes of: parity.", "busy"),
        ({"impossible_values": "note"}, "Read the notes of: plausible ceilings.", "impossible"),
    ],
)
def test_what_noise_spoils_is_named(verdicts: dict[str, str], told: str, untold: str) -> None:
    names = ["parity", "repeat_spread", "busy_host", "impossible_values", "cache_growth"]
    checks = [
        Verdict(verdicts.get(name, "pass"), "", name, title=check_title(name)) for name in names
    ]

    sentence = checks_verdict(checks)

    assert told in sentence
    assert untold not in sentence
    assert "correctly" not in sentence


# -- digits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reach", "text"),
    [
        (354.326, 257.0, "350"),
        (354.326, 25.7, "354"),
        (354.326, 0.001, "354"),
        (-354.326, 257.0, "-350"),
        (0.31417, 0.226, "0.31"),
        (0.31417, 0.0226, "0.314"),
        (31.417, 22.6, "31"),
        (8.9, 22.6, "9"),
        (0.0, 1.0, "0"),
        (3.0, 257.0, "0"),
        (-3.0, 257.0, "0"),
        (0.000123456, 0.00001, "0.000123"),
        (354.326, 0.0, "354"),
        (354.326, float("nan"), "354"),
        (354.326, float("inf"), "354"),
        (123456.0, 900.0, "123,000"),
    ],
)
def test_a_number_has_the_digits_that_its_interval_leaves(
    value: float, reach: float, text: str
) -> None:
    assert digits_within(value, reach) == text


@pytest.mark.parametrize(("share", "text"), [(0.31, "31 %"), (0.089, "9 %"), (0.54, "54 %")])
def test_a_share_has_the_digits_that_its_interval_leaves(share: float, text: str) -> None:
    assert percent_within(share, 0.225) == text


def digits_of(number: str) -> str:
    """The digits of a number that count."""
    return re.sub(r"[^\d]", "", number).lstrip("0")


def test_a_trend_is_as_exact_as_its_interval() -> None:
    def scattered_ms(step: int, repeat: int) -> float:
        scatter = step * 7919 % 13
        return 10.0 + 0.05 * step + scatter * (1 + repeat / 50)

    check = check_of(with_steps(make_run(), scattered_ms), "decode_trend")

    slope = re.match(r"(-?[\d.,]+) µs per cached token", check.measured)
    assert slope is not None
    assert len(digits_of(slope[1])) <= 3


def test_a_terminal_table_has_no_digits_of_noise() -> None:
    floors = floor_table(with_ceilings(1e12))[["device_ms", "floor_ms", "times_floor"]]
    for number in re.findall(r"\d[\d,]*\.\d+", table_text(floors)):
        assert len(digits_of(number)) <= 3


# -- more than the hardware can do -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["MBU above 100 %", "MFU above 100 %"])
def test_more_than_the_hardware_can_do_is_marked_in_its_cell(name: str) -> None:
    run = WRONG_CEILINGS[name]
    shares = floor_table(run).dropna(subset=["device_ms"])[["mfu", "mbu"]]
    impossible = int((shares > 1.005).sum().sum())
    assert impossible > 0

    for html in (floors_section(run).html(), frame_html(run.floors)):
        text = seen(html)
        assert text.count("⚠ above 100 %") == impossible
        assert "No stage can do more than its hardware" in text
    assert str(run.floors).count("⚠ above 100 %") == impossible


def test_what_the_hardware_can_do_is_not_marked() -> None:
    run = with_ceilings(1e12)
    assert "⚠" not in floors_section(run).html()
    assert "⚠" not in frame_html(run.floors)
    assert "⚠" not in str(run.floors)
