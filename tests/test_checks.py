"""The checklist: every rule that follows from a record, noise and who made it, how it is shown."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import PAGES, TINY_CONFIG
from elements import Elements
from example_run import SHAPES, altered, check_of, make_run, paced, with_steps
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.analyse.check_rules import RARE_RULES, RULES, outlier_causes
from ocr_phases.analyse.checks import (
    CHECK_COLUMNS,
    checks_table,
    run_checks,
    with_verdict,
    worst_verdict,
)
from ocr_phases.analyse.expectations import EXPECTATIONS
from ocr_phases.analyse.noise import CONDITION_COLUMNS, VERDICTS, Verdict, is_noisy
from ocr_phases.analyse.sentences import checks_verdict, headline, noise_warning, verdict
from ocr_phases.analyse.stages import decode_trend
from ocr_phases.record.parts import to_plain
from ocr_phases.show.checks_section import checks_html

STATE = {
    "sm_mhz": 1_980,
    "max_sm_mhz": 1_980,
    "throttle_reasons": 0,
    "utilization": 0,
    "other_processes": 0,
}
QUIET = {"waited_s": 0.01, "others": 0.01, "steal": 0.0, "load_start": 1.1, "load_end": 1.3}


def met(run: PhaseRun, gpu: dict[str, Any] | None = None, cores: int = 2, **host: Any) -> PhaseRun:
    """The record with what the machine did: quiet, but for ``host`` and ``gpu``."""
    rows = [
        {"repeat": number, "wall_s": 4.0, "cpu_s": 4.0, **QUIET, **host} for number in run.repeats
    ]
    conditions = {"repeats": rows, "gpu": gpu}
    return altered(run, device={"threads": 2, "host_cores": cores, "conditions": conditions})


def with_ceilings(
    bandwidth: float, flops: float = 1e13, dtype: str = "float32", cache: int = 1_000, **taken: Any
) -> PhaseRun:
    """A record of the tiny model with these measured ceilings."""
    ceilings = {
        "bandwidth_bytes_per_s": bandwidth,
        "matmul_flops_per_s": flops,
        "matmul_dtype": dtype,
    }
    taken = {"copied_bytes": 10**9, "matmul_size": 4096, **taken}
    device = {"ceilings": ceilings | {"launch_us": 5.0, "taken": taken}, "cache_bytes": cache}
    return altered(make_run(cuda=dtype != "float32"), model={"config": TINY_CONFIG}, device=device)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_shape_has_every_check_and_nothing_is_said_of_a_quiet_machine(shape: str) -> None:
    run = met(make_run(**SHAPES[shape]))
    checks, table = run_checks(run), checks_table(run)
    assert [check.name for check in checks] == [*RULES, *(EXPECTATIONS if shape == "cuda" else ())]
    assert (tuple(table.columns), len(table)) == (CHECK_COLUMNS, len(checks))
    for check in checks:
        assert check.verdict in (("note", "n/a") if check.name in EXPECTATIONS else VERDICTS)
        assert all(getattr(check, column) for column in CHECK_COLUMNS) and check.fix.endswith(
            "."
        ), check.name
    assert (worst_verdict(checks), check_of(run, "busy_host").verdict) == ("pass", "pass")
    assert noise_warning(run) == "" and not with_verdict(checks, "fail")
    said = f"{headline(run)} {verdict(run)} {checks_verdict(checks)}"
    assert "No check failed" in said and not {"trust", "nan"} & set(said.split())
    elements = Elements(checks_html(checks))
    assert not elements.open and not elements.stray


def strayed(run: PhaseRun) -> PhaseRun:
    stray = run.spans[run.spans["stage"] == "sam"].assign(phase="decode", step=3)
    return altered(run, spans=pd.concat([run.spans, stray], ignore_index=True))


def with_sizes(run: PhaseRun, *last: int) -> PhaseRun:
    """The record with another size of its cache at the end, or none."""
    return altered(run, cache={"bytes": [*run.cache.bytes[:-1], *last]})


def peaked(decode: float, **options: Any) -> PhaseRun:
    run = make_run(**options)
    return altered(
        run, memory={"peak_bytes": run.memory.peak_bytes | {"decode": [int(decode)] * 3}}
    )


def covered(share: float) -> PhaseRun:
    """The prefill's stages, all but the whole, so many times as long."""
    run = make_run()
    return paced(paced(run, share, phase="prefill"), 1.0 / share, phase="prefill", stage="prefill")


def looped() -> PhaseRun:
    run, ids = make_run(rows=2), [*range(100), *[5, 6, 7] * 20]
    loop = {"ids": ids, "token_texts": [f"<{n}>" for n in ids], "finish_reason": "length"}
    return altered(run, results=[run.result, to_plain(run.result) | loop])


def gpu(before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> PhaseRun:
    """A GPU's record, its state before and after the repeats as usual but for these."""
    states = {"before": STATE | (before or {}), "after": None if after is None else STATE | after}
    return met(make_run(cuda=True), states)


def busy(cores: int = 2, **host: Any) -> PhaseRun:
    return met(make_run(), cores=cores, **host)


def with_page(
    width: int, height: int, valid: int | None, before: tuple[int, int, int] | None = None
) -> PhaseRun:
    """A record of a page of this size at base, with another page in front of it."""
    run = make_run()
    pages = []
    for size in (before, (width, height, valid)):
        if size is not None:
            entries = {
                "width": size[0],
                "height": size[1],
                "valid_image_tokens": size[2],
                "preset": "base",
            }
            pages.append(to_plain(run.page) | entries)
    return altered(run, pages=pages)


ABOVE = "exceeds the measured ceiling"
#: Of each check the records with the verdict and what is told of each.
CASES: dict[str, list[tuple[PhaseRun, str, str]]] = {
    "vision_in_prefill_only": [(strayed(make_run()), "fail", "sam ran in 1 steps")],
    "cache_linear": [(with_sizes(make_run(), *last), "fail", "1 of") for last in ((), (1,))],
    "decode_memory": [
        (peaked(1.9e9, cuda=True), "pass", ""),
        (peaked(1.905e9, cuda=True), "pass", ""),
        (peaked(1.92e9, cuda=True), "note", ""),
        (peaked(3e9, cuda=True), "fail", ""),
        (peaked(1.905e9), "pass", ""),
        (peaked(3e9), "note", ""),
    ],
    "stage_coverage": [
        (covered(1.0), "pass", ""),
        (covered(0.5), "note", ""),
        (covered(1.5), "fail", ""),
    ],
    "repeat_spread": [
        (paced(make_run(), 1.0, 1.04, 1.02), "pass", ""),
        (paced(make_run(), 1.0, 1.14, 1.05), "note", ""),
        (paced(make_run(), 1.0, 1.3, 1.1), "noisy", ""),
        (make_run(repeats=1), "n/a", ""),
    ],
    "impossible_values": [
        (make_run(), "n/a", ""),
        (with_ceilings(1e12), "pass", ""),
        (with_ceilings(1e6), "noisy", ABOVE),
        (with_ceilings(1e12, 1e6), "noisy", ABOVE),
        # The weights of a small model stay in a large cache: faster than memory, and no wonder.
        (with_ceilings(1e6, cache=10**9), "note", "processor's cache"),
        (with_ceilings(1e12, copy_ms=[4.0, 9.0, 8.8], matmul_ms=[5.0, 5.1]), "noisy", "2.2 times"),
        (with_ceilings(4.3e11, 7e14, "bfloat16"), "noisy", "9.0 %"),
    ],
    "visible_page": [
        (with_page(1024, 1448, 180), "pass", ""),
        (
            with_page(20_000, 50, 0),
            "note",
            "20,000 x 50 pixels at base, so nothing on it can be read",
        ),
        (with_page(50, 20_000, 0), "note", "50 x 20,000 pixels"),
        (with_page(20_000, 50, 1), "pass", ""),
        (with_page(20_000, 50, None), "n/a", "unknown"),
        (with_page(20_000, 50, 0, before=(800, 800, 256)), "note", "page 2: 20,000 x 50"),
    ],
    "repetition_loop": [
        (looped(), "note", "row 2: 3 tokens 20 times from token 101 on, up to the limit"),
    ],
    "busy_host": [
        (busy(waited_s=2.0), "noisy", "33 %"),
        (busy(waited_s=0.2), "note", "4.8 %"),
        (busy(other_threads_s=0.4), "noisy", "the panel or other cells used 10 % of a core"),
        (busy(other_threads_s=0.12), "note", "used 3.0 % of a core"),
        (busy(other_threads_s=0.06), "pass", "waited for a core for 0.2 %"),
        (busy(steal=0.2), "noisy", "hypervisor took 20 %"),
        (busy(others=0.6), "note", "other programs took 60 %"),
        (busy(others=0.6, waited_s=None), "noisy", "other programs took 60 %"),
        (busy(64, others=0.5, waited_s=None), "pass", "50 %"),  # there are cores enough
        (busy(cpu_s=2.0, waited_s=None), "noisy", "50 %"),
        (busy(**dict.fromkeys(("waited_s", *QUIET))), "n/a", "does not report"),
        (gpu(after={}), "pass", "1,980 of 1,980 MHz"),
        (gpu(after={"throttle_reasons": 0x24}), "noisy", "heat"),
        (gpu(after={"throttle_reasons": 0x4}), "note", "at its power limit"),
        (gpu(after={"sm_mhz": 1_000}), "note", "1,000 of 1,980 MHz"),
        (gpu(after={"other_processes": 1}), "note", "1 other program"),
        (gpu(), "pass", "waited"),
        (
            gpu({"other_processes": 2, "utilization": 90}),
            "noisy",
            "2 other programs held the GPU, busy 90 %",
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "case"), [(name, each) for name, cases in CASES.items() for each in cases]
)
def test_rules_and_only_noise_makes_a_record_noisy(
    name: str, case: tuple[PhaseRun, str, str]
) -> None:
    run, found, told = case
    checks = {check.name: check for check in run_checks(run)}
    check = checks[name]
    assert check.verdict == found and (not told or says(check.measured, told)), check.measured
    noisy = found == "noisy"
    assert bool(noise_warning(run)) == noisy and is_noisy(run) == (
        noisy and name != "impossible_values"
    )
    if noisy:
        assert (told or "from repeat to repeat") in noise_warning(run)
        assert not with_verdict(checks.values(), "fail")


@pytest.mark.parametrize(
    ("ms_a_token", "slow", "repeats", "machine", "found"),
    [
        *((0.0, 3, 3, {}, "pass"), (1e-4, 3, 3, {}, "pass"), (-0.02, 3, 3, {}, "pass")),
        *((0.02, 3, 3, {}, "note"), (0.2, 3, 3, {}, "fail")),
        # A neighbour is not called a broken model.
        *((0.2, 1, 1, {}, "note"), (0.2, 2, 3, {}, "n/a"), (0.2, 3, 3, {"waited_s": 2.0}, "n/a")),
    ],
)
def test_the_trend_is_held_against_the_bytes_of_the_cache(
    ms_a_token, slow, repeats, machine, found
):
    """61,440 bytes a token at 1 TB/s are 61 ns; the run has 238 steps of 10 ms, ``slow`` repeats
    grow.
    """
    rng = np.random.default_rng(1)
    steady = met(make_run(repeats=repeats), **machine)
    run = with_steps(
        steady,
        lambda step, repeat: 10.0 + ms_a_token * step * (repeat < slow) + rng.normal(0, 0.05),
    )
    if slow == repeats:
        assert decode_trend(run).slope == pytest.approx(ms_a_token, abs=2e-4)
    assert check_of(run, "decode_trend").verdict == ("n/a" if found == "n/a" else "note")
    check = check_of(
        altered(
            run, device={"ceilings": {"bandwidth_bytes_per_s": 1e12, "matmul_dtype": "float32"}}
        ),
        "decode_trend",
    )
    told = "too busy" if found == "n/a" else "0.061 µs"
    assert check.verdict == found and says(check.measured, told)


@pytest.mark.parametrize(
    ("slow", "options", "cause"),
    [
        (lambda step, repeat: step == 0, {}, "the first step"),
        (lambda step, repeat: step == 30, {}, "the host was held up"),
        (lambda step, repeat: step == 30, {"cuda": True}, "the host was late"),
        (
            lambda step, repeat: step == 30,
            {"cuda": True, "host": 9.0},
            "the device itself took longer",
        ),
        (lambda step, repeat: step % 8 == 7, {"every": 8}, "the end token is read"),
        (lambda step, repeat: step == 111, {}, "the cache reached 1024 entries"),
        (lambda step, repeat: step == 30 and repeat > 1, {"repeats": 4}, "in 2 of 4 repeats"),
        # A spike in a single repeat.
        (
            lambda step, repeat: 2.0 * ((step, repeat) == (30, 1)),
            {"repeats": 5},
            "in 1 of 5 repeats",
        ),
    ],
)
def test_outliers_have_a_likely_cause(slow: Any, options: dict[str, Any], cause: str) -> None:
    every, host = options.pop("every", 1), options.pop("host", None)
    run = with_steps(make_run(**options), lambda step, repeat: 60.0 * slow(step, repeat) or 10.0)
    spans = run.spans.assign(host_ms=run.spans["host_ms"] if host is None else host)
    run = altered(run, request={"eos_check_every": every}, spans=spans)
    check, causes = check_of(run, "outlier_steps"), outlier_causes(run)
    assert causes and all(cause in text for _, text in causes)
    assert (check.verdict, cause in check.measured) == ("note", True)


def test_a_measurement_keeps_what_the_machine_did(golden_session: Any) -> None:
    options = {"preset": "tiny", "max_new_tokens": 2, "repeats": 2, "warmup": 0}
    options |= {"ceilings": False, "token_probabilities": False}
    run = golden_session.run_inference(PAGES / "slide.png", **options)
    device = run.device
    assert [row.repeat for row in device.conditions.repeats] == run.repeats == [0, 1]
    assert device.conditions.gpu is None
    for row in device.conditions.repeats:
        assert tuple(to_plain(row)) == CONDITION_COLUMNS and row.wall_s > 0 and row.cpu_s > 0
    assert device.threads == torch.get_num_threads()
    assert device.host_cores == device.cores >= 1


def test_checks_are_escaped_and_a_failure_is_unfolded() -> None:
    bad = Verdict("fail", "<script>", "a<b", "<i>", "why", "<b>fix")
    elements = Elements(
        checks_html([bad, Verdict("pass", "y", "stage_coverage", "x", "why", "fix")])
    )
    assert "<script>" in elements.said and "script" not in elements.tags()
    assert [("open" in attributes) for tag, attributes in elements.found if tag == "details"] == [
        True,
        False,
    ]


def test_the_troubleshooting_page_names_checks_that_exist() -> None:
    page = (PAGES.parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    titles = {
        rule.title for rule in (*RULES.values(), *RARE_RULES.values(), *EXPECTATIONS.values())
    }
    assert set(re.findall(r"`([a-z]+ [a-z ]*[a-z]|stage coverage|parity)`", page)) <= titles
