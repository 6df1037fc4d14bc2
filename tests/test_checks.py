"""The checklist over records: every shape, every rule that follows from a record, and how it is shown."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import GOLDEN, PAGES
from elements import Elements
from example_run import SHAPES, check_of, make_run, with_steps
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import (
    CHECK_COLUMNS,
    EXPECTATIONS,
    RULES,
    VERDICTS,
    Verdict,
    checks_table,
    outlier_causes,
    run_checks,
    with_verdict,
)
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.analyse.stages import decode_trend
from ocr_phases.report.render import execute_notebook, render_html
from ocr_phases.show import results


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_shape_has_every_check(shape: str) -> None:
    run = make_run(**SHAPES[shape])
    checks = run_checks(run)
    expected = EXPECTATIONS if run.device["kind"] == "cuda" else ()
    assert [check.name for check in checks] == [*RULES, *expected]
    assert not with_verdict(checks, "fail")
    for check in checks:
        assert check.verdict in VERDICTS
        assert all(getattr(check, column) for column in CHECK_COLUMNS), check.name
    assert all(check.verdict in ("note", "n/a") for check in checks if check.name in EXPECTATIONS)
    table = checks_table(run)
    assert tuple(table.columns) == CHECK_COLUMNS
    assert len(table) == len(checks)
    assert "nan" not in checks_verdict(checks)
    elements = Elements(results.checks_html(checks))
    assert not elements.open
    assert not elements.stray


def test_checks_of_another_version_are_kept_and_its_verdicts_shown() -> None:
    other = {"name": "from_the_future", "verdict": "fail", "expected": "more", "measured": "less"}
    run = dataclasses.replace(make_run(), live_checks=[other])
    assert check_of(run, "from_the_future").verdict == "fail"
    assert says(checks_verdict(run_checks(run)), f"1 of {len(RULES) + 1}", "failed", "from the future")


# -- rules from the record ----------------------------------------------------------------------------


def test_vision_in_decode_fails() -> None:
    run = make_run()
    stray = run.spans[run.spans["stage"] == "sam"].assign(phase="decode", step=3)
    spans = pd.concat([run.spans, stray], ignore_index=True)
    check = check_of(dataclasses.replace(run, spans=spans), "vision_in_prefill_only")
    assert check.verdict == "fail"
    assert says(check.measured, "sam", "1")


@pytest.mark.parametrize("damage", [lambda sizes: sizes[:-1], lambda sizes: [*sizes[:-1], sizes[-1] * 2]])
def test_cache_bytes_off_the_line_fail(damage: Any) -> None:
    run = make_run()
    cache = {**run.cache, "bytes": damage(run.cache["bytes"])}
    check = check_of(dataclasses.replace(run, cache=cache), "cache_linear")
    assert check.verdict == "fail"
    assert "1 of" in check.measured


@pytest.mark.parametrize(
    ("cuda", "decode", "verdict"),
    [
        (True, 1.9e9, "pass"),
        (True, 1.905e9, "pass"),
        (True, 1.92e9, "note"),
        (True, 3e9, "fail"),
        (False, 1.905e9, "pass"),
        (False, 3e9, "note"),
    ],
)
def test_decode_memory_above_the_prefills(cuda: bool, decode: float, verdict: str) -> None:
    run = make_run(cuda=cuda)
    peaks = {**run.memory["peak_bytes"], "decode": [int(decode)] * 3}
    run = dataclasses.replace(run, memory={**run.memory, "peak_bytes": peaks})
    assert check_of(run, "decode_memory").verdict == verdict


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "pass"), (0.5, "note"), (1.5, "fail")])
def test_stage_coverage(scale: float, verdict: str) -> None:
    run = make_run()
    spans = run.spans.copy()
    inner = (spans["phase"] == "prefill") & (spans["stage"] != "prefill")
    spans.loc[inner, "device_ms"] *= scale
    assert check_of(dataclasses.replace(run, spans=spans), "stage_coverage").verdict == verdict


@pytest.mark.parametrize(
    ("ms_a_token", "verdict"),
    [(0.0, "pass"), (1e-4, "pass"), (0.02, "note"), (0.2, "fail"), (-0.02, "pass")],
)
def test_the_trend_is_held_against_the_bytes_of_the_cache(ms_a_token: float, verdict: str) -> None:
    """61,440 bytes a token at 1 TB/s are 61 ns; the run has 238 steps of 10 ms."""
    rng = np.random.default_rng(1)
    run = with_steps(make_run(), lambda step, _: 10.0 + ms_a_token * step + rng.normal(0, 0.05))
    slope = decode_trend(run).slope
    assert slope == pytest.approx(ms_a_token, abs=2e-4)
    assert check_of(run, "decode_trend").verdict == "note"
    known = dataclasses.replace(run, device={**run.device, "ceilings": {"bandwidth_bytes_per_s": 1e12}})
    check = check_of(known, "decode_trend")
    assert check.verdict == verdict
    assert says(check.measured, "0.061 µs")


@pytest.mark.parametrize(
    ("slow", "options", "cause"),
    [
        (lambda step, repeat: step == 0, {}, "the first step"),
        (lambda step, repeat: step == 30, {}, "the host was held up"),
        (lambda step, repeat: step == 30, {"cuda": True}, "the host was late"),
        (lambda step, repeat: step % 8 == 7, {"every": 8}, "the end token is read"),
        (lambda step, repeat: step == 111, {}, "the cache reached 1024 entries"),
        (lambda step, repeat: step == 30 and repeat > 1, {"repeats": 4}, "in 2 of 4 repeats"),
    ],
)
def test_outliers_have_a_likely_cause(slow: Any, options: dict[str, Any], cause: str) -> None:
    every = options.pop("every", 1)
    run = with_steps(make_run(**options), lambda step, repeat: 60.0 if slow(step, repeat) else 10.0)
    run = dataclasses.replace(run, request={**run.request, "eos_check_every": every})
    causes = outlier_causes(run)
    assert causes
    assert all(cause in text for _, text in causes)
    check = check_of(run, "outlier_steps")
    assert (check.verdict, cause in check.measured) == ("note", True)


def test_a_spike_in_one_repeat_is_an_outlier() -> None:
    run = with_steps(make_run(repeats=5), lambda step, repeat: 120.0 if (step, repeat) == (30, 1) else 10.0)
    assert outlier_causes(run) == [(30, "in 1 of 5 repeats: something else ran on this machine")]


def test_a_device_that_is_slow_itself_is_told_from_a_late_host() -> None:
    run = with_steps(make_run(cuda=True), lambda step, _: 60.0 if step == 30 else 10.0)
    spans = run.spans.copy()
    spans.loc[(spans["stage"] == "decode_step") & (spans["step"] == 30), "host_ms"] = 9.0
    assert outlier_causes(dataclasses.replace(run, spans=spans)) == [(30, "the device itself took longer")]


# -- loops --------------------------------------------------------------------------------------------


def test_a_loop_is_a_note_with_its_place() -> None:
    run = make_run(rows=2)
    ids = [*range(100), *[5, 6, 7] * 20]
    looping = {**run.result, "ids": ids, "token_texts": [f"<{n}>" for n in ids], "finish_reason": "length"}
    check = check_of(dataclasses.replace(run, results=[run.result, looping]), "repetition_loop")
    assert check.verdict == "note"
    assert says(check.measured, "row 2", "3 tokens 20 times from token 101 on, up to the limit")


# -- shown --------------------------------------------------------------------------------------------


def test_checks_are_escaped_and_a_failure_is_unfolded() -> None:
    bad = Verdict("fail", "<script>", "a<b", "<i>", "why", "<b>fix")
    elements = Elements(results.checks_html([bad, Verdict("pass", "y", "stage_coverage", "x", "why", "fix")]))
    assert "<script>" in elements.said
    assert "script" not in elements.tags()
    assert [("open" in attributes) for tag, attributes in elements.found if tag == "details"] == [True, False]


def test_the_troubleshooting_page_names_checks_that_exist() -> None:
    page = (PAGES.parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    names = {name.replace("_", " ") for name in (*RULES, *EXPECTATIONS)}
    named = set(re.findall(r"`([a-z]+ [a-z ]*[a-z]|stage coverage|parity)`", page))
    assert named <= names
    missing = names - named - {name for name in names if name.startswith("expected")}
    assert missing <= {"repeats agree", "single token steps", "cache reused", "cache growth", "host syncs"}


def test_texts_are_complete() -> None:
    for name, text in {**RULES, **EXPECTATIONS}.items():
        assert text["expected"], name
        assert text["fix"].endswith("."), name
        assert name in EXPECTATIONS or text["why"].endswith("."), name


@pytest.mark.parametrize("live", [True, False], ids=["live", "record"])
def test_the_verify_notebook(live: bool, tmp_path: Path) -> None:
    parameters: dict[str, Any] = {"output_dir": str(tmp_path)}
    if live:
        parameters |= {"max_new_tokens": 8, "repeats": 1, "warmup": 0, "device": "cpu"}
        parameters |= {"strategy": "eager", "vision": "eager", "eos_check_every": 4, "ceilings": False}
    else:
        parameters["record"] = str(GOLDEN / "run.json")
    notebook = execute_notebook("verify", parameters, tmp_path / "verify.ipynb")
    elements = Elements(render_html(notebook, tmp_path / "verify.html").read_text(encoding="utf-8"))
    assert not elements.open
    assert not elements.stray
    assert "checks failed" not in elements.said
    assert ("8 tokens" if live else "not requested") in elements.said
    assert ("condition of vision" if live else "Records do not contain source lines") in elements.said
    request = PhaseRun.load(tmp_path / "run.json").request
    assert request.get("verify", False) == live
    assert (request["eos_check_every"] == 4) == live
