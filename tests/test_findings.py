"""What is said of a record stays within what its checks judge, and no number is more exact than it
is.
"""

import re

import pytest
from elements import seen
from example_run import altered, check_of, make_run, paced, with_steps
from matplotlib.text import Text
from test_checks import with_ceilings

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

DRIFTING = with_steps(make_run(), lambda step, _: 10.0 + 0.05 * step)
BUSY_FACTORS = (1.0, 1.6, 3.0)


def drawn(figure):
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def said(run):
    """Everything that is said of a record in words, in a terminal and on a page."""
    texts = [headline(run), limit_sentence(run), verdict(run), *findings(run)]
    texts += [
        seen(overview_section(run).html()),
        drawn(plot_latency(run)),
        drawn(plot_roofline(run)),
    ]
    return "\n".join(texts)


# -- a finding whose check does not judge ----------------------------------------------------------


@pytest.mark.parametrize("way", ["slower", "faster"])
@pytest.mark.parametrize("busy", [False, True])
def test_a_drift_is_told_only_where_its_check_judges(way, busy):
    sign = 1 if way == "slower" else -1
    run = with_steps(make_run(), lambda step, _: 20.0 + sign * 0.05 * step)
    if busy:
        run = paced(run, *BUSY_FACTORS)
    judged = check_of(run, "decode_trend").verdict != "n/a"
    assert judged != busy
    assert ("became" in said(run) and f"{way} over the run" in said(run)) == judged


def test_a_rule_of_thumb_does_not_judge_a_drift_that_its_check_does_not():
    published = {"parameters": {"total": 3_300_000_000}}
    run = altered(
        with_steps(make_run(cuda=True), lambda step, _: 10.0 + 0.05 * step), model=published
    )
    assert check_of(run, "expected_constant_decode").measured.startswith("out of range")
    busy = paced(run, *BUSY_FACTORS)
    assert check_of(busy, "expected_constant_decode").verdict == "n/a"


TAKEN = {"copied_bytes": 10**9, "matmul_size": 4096}
WRONG = {
    "MBU above 100 %": with_ceilings(1e6),
    "MFU above 100 %": with_ceilings(1e12, 1e6),
    "copies that differ": with_ceilings(
        1e12, copy_ms=[4.0, 9.0, 8.8], matmul_ms=[5.0, 5.1], **TAKEN
    ),
    "products that differ": with_ceilings(
        1e12, copy_ms=[4.0, 4.1], matmul_ms=[5.0, 11.0, 11.5], **TAKEN
    ),
}
CLAIM = re.compile(r"times its floor|hardware floor|its own floor|allows \d")


@pytest.mark.parametrize("name", WRONG)
def test_no_distance_from_a_floor_is_told_where_its_ceiling_is_wrong(name):
    run = WRONG[name]
    assert check_of(run, "impossible_values").verdict == "noisy"
    text = said(run)
    assert not CLAIM.search(text)
    assert "unknown, because the device's peak rates could not be measured" in text
    table = seen(floors_section(run).html())
    assert "no floor is known" in table and "times its floor" not in table
    cell = sweep_table({"a": run}).iloc[0]
    assert cell[["prefill_floor_ms", "step_floor_ms"]].isna().all()


def test_a_distance_from_a_floor_is_told_where_its_ceiling_is_right():
    run = with_ceilings(1e12)
    assert check_of(run, "impossible_values").verdict == "pass"
    text = said(run)
    assert "times its floor" in text and "hardware floor" in text
    assert sweep_table({"a": run}).iloc[0][["prefill_floor_ms", "step_floor_ms"]].notna().all()


# -- the verdict of all checks ---------------------------------------------------------------------

CHECKED = {
    "quiet": make_run(),
    "busy": paced(make_run(), *BUSY_FACTORS),
    "wrong ceiling": with_ceilings(1e6),
    "busy, wrong ceiling": paced(with_ceilings(1e6), *BUSY_FACTORS),
    "one token": make_run(max_tokens=1),
    "one-shot": make_run(generate=True),
    "a broken one": altered(
        make_run(), live_checks=[{"name": "parity", "verdict": "fail", "measured": "1"}]
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_counts_of_checks_add_up_and_say_what_they_count(name):
    checks = run_checks(CHECKED[name])
    rules = [check for check in checks if check.name not in EXPECTATIONS]
    sentence = checks_verdict(checks)
    passed, total, rest = re.search(
        r"(\d+) of (\d+) checks passed((?:, \d+ [a-z ]+)*)\.", sentence
    ).groups()
    counts = {word: int(count) for count, word in re.findall(r"(\d+) ([a-z ]+)", rest)}
    assert int(passed) + sum(counts.values()) == int(total) == len(rules)
    words = {
        "failed": "fail",
        "found it noisy": "noisy",
        "left a note": "note",
        "do not apply or have no data": "n/a",
    }
    for word, count in counts.items():
        assert count == sum(check.verdict == words[word] for check in rules)


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
def test_what_noise_spoils_is_named(verdicts, told, untold):
    names = ["parity", "repeat_spread", "busy_host", "impossible_values", "cache_growth"]
    checks = [
        Verdict(verdicts.get(name, "pass"), "", name, title=check_title(name)) for name in names
    ]
    sentence = checks_verdict(checks)
    assert told in sentence and untold not in sentence and "correctly" not in sentence


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_ceiling_does_not_make_the_machine_busy(name):
    warning = noise_warning(WRONG[name])
    assert warning.startswith("The device's peak rates could not be measured, so there are no")
    assert "busy" not in warning


# -- digits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reach", "text"),
    [
        *(
            (354.326, 257.0, "350"),
            (354.326, 25.7, "354"),
            (354.326, 0.001, "354"),
            (-354.326, 257.0, "-350"),
        ),
        *(
            (0.31417, 0.226, "0.31"),
            (0.31417, 0.0226, "0.314"),
            (31.417, 22.6, "31"),
            (8.9, 22.6, "9"),
        ),
        *(
            (0.0, 1.0, "0"),
            (3.0, 257.0, "0"),
            (-3.0, 257.0, "0"),
            (0.000123456, 0.00001, "0.000123"),
        ),
        *((354.326, 0.0, "354"), (354.326, float("nan"), "354"), (354.326, float("inf"), "354")),
        (123456.0, 900.0, "123,000"),
    ],
)
def test_a_number_has_the_digits_that_its_interval_leaves(value, reach, text):
    assert digits_within(value, reach) == text


def test_a_share_has_the_digits_that_its_interval_leaves():
    assert [percent_within(share, 0.225) for share in (0.31, 0.089, 0.54)] == [
        "31 %",
        "9 %",
        "54 %",
    ]


@pytest.mark.parametrize(
    "step", [lambda step, repeat: 10.0 + 0.05 * step + (step * 7919 % 13) * (1 + repeat / 50)]
)
def test_a_trend_is_as_exact_as_its_interval(step):
    measured = check_of(with_steps(make_run(), step), "decode_trend").measured
    slope = re.match(r"(-?[\d.,]+) µs per cached token", measured)[1]
    assert len(slope.strip("-").replace(".", "").replace(",", "").lstrip("0")) <= 3


@pytest.mark.parametrize("shown", [table_text])
def test_a_terminal_table_has_no_digits_of_noise(shown):
    table = shown(floor_table(with_ceilings(1e12))[["device_ms", "floor_ms", "times_floor"]])
    for number in re.findall(r"\d[\d,]*\.\d+", table):
        assert len(number.replace(",", "").replace(".", "").lstrip("0")) <= 3


# -- more than the hardware can do -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["MBU above 100 %", "MFU above 100 %"])
def test_more_than_the_hardware_can_do_is_marked_in_its_cell(name):
    run = WRONG[name]
    table = floor_table(run).dropna(subset=["device_ms"])
    above = int((table[["mfu", "mbu"]] > 1.005).sum().sum())
    for shown in (floors_section(run).html(), frame_html(run.floors)):
        text = seen(shown)
        assert text.count("⚠ above 100 %") == above > 0
        assert "No stage can do more than its hardware" in text
    assert str(run.floors).count("⚠ above 100 %") == above


def test_what_the_hardware_can_do_is_not_marked():
    run = with_ceilings(1e12)
    assert "⚠" not in floors_section(run).html() + frame_html(run.floors) + str(run.floors)
