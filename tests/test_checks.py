"""The checklist: every rule that follows from a record, noise and who made it, how it is shown."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import PAGES, TINY_CONFIG
from elements import Elements
from example_run import SHAPES, altered, check_of, make_run, paced, with_steps
from wording import says

from ocr_phases import OCRSession, PhaseRun
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

#: The state of a GPU that does nothing else.
IDLE_GPU = {
    "sm_mhz": 1_980,
    "max_sm_mhz": 1_980,
    "throttle_reasons": 0,
    "utilization": 0,
    "other_processes": 0,
}
#: What a quiet machine did during a repeat.
QUIET = {"waited_s": 0.01, "others": 0.01, "steal": 0.0, "load_start": 1.1, "load_end": 1.3}


def on_machine(
    run: PhaseRun, gpu: dict[str, Any] | None = None, cores: int = 2, **host: Any
) -> PhaseRun:
    """The record with what the machine did: quiet, but for ``host`` and ``gpu``."""
    repeats = []
    for repeat in run.repeats:
        repeats.append({"repeat": repeat, "wall_s": 4.0, "cpu_s": 4.0, **QUIET, **host})
    conditions = {"repeats": repeats, "gpu": gpu}
    return altered(run, device={"threads": 2, "host_cores": cores, "conditions": conditions})


def with_ceilings(
    bandwidth: float, flops: float = 1e13, dtype: str = "float32", cache: int = 1_000, **taken: Any
) -> PhaseRun:
    """A record of the tiny model with these measured ceilings."""
    device = {
        "ceilings": {
            "bandwidth_bytes_per_s": bandwidth,
            "matmul_flops_per_s": flops,
            "matmul_dtype": dtype,
            "launch_us": 5.0,
            "taken": {"copied_bytes": 10**9, "matmul_size": 4096, **taken},
        },
        "cache_bytes": cache,
    }
    run = make_run(cuda=dtype != "float32")
    return altered(run, model={"config": TINY_CONFIG}, device=device)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_shape_of_record_has_every_check(shape: str) -> None:
    expected_names = [*RULES]
    if shape == "cuda":
        expected_names += EXPECTATIONS

    checks = run_checks(on_machine(make_run(**SHAPES[shape])))

    assert [check.name for check in checks] == expected_names
    for check in checks:
        verdicts = ("note", "n/a") if check.name in EXPECTATIONS else VERDICTS
        assert check.verdict in verdicts
        for column in CHECK_COLUMNS:
            assert getattr(check, column), check.name
        assert check.fix.endswith("."), check.name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_a_quiet_machine(shape: str) -> None:
    run = on_machine(make_run(**SHAPES[shape]))
    checks = run_checks(run)

    assert worst_verdict(checks) == "pass"
    assert check_of(run, "busy_host").verdict == "pass"
    assert noise_warning(run) == ""
    assert not with_verdict(checks, "fail")
    said = f"{headline(run)} {verdict(run)} {checks_verdict(checks)}"
    assert "No check failed" in said
    assert not {"trust", "nan"} & set(said.split())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_the_checks_are_a_table_and_a_section(shape: str) -> None:
    run = on_machine(make_run(**SHAPES[shape]))
    checks = run_checks(run)

    table = checks_table(run)
    elements = Elements(checks_html(checks))

    assert tuple(table.columns) == CHECK_COLUMNS
    assert len(table) == len(checks)
    assert not elements.open
    assert not elements.stray


# -- records that a rule is for --------------------------------------------------------------------


def with_vision_in_decode(run: PhaseRun) -> PhaseRun:
    """The record with SAM in a decode step, too."""
    spans = run.spans
    stray = spans[spans["stage"] == "sam"].assign(phase="decode", step=3)
    return altered(run, spans=pd.concat([spans, stray], ignore_index=True))


def with_last_size(run: PhaseRun, *last: int) -> PhaseRun:
    """The record with another size of its cache at the end, or none."""
    return altered(run, cache={"bytes": [*run.cache.bytes[:-1], *last]})


def with_decode_peak(peak_bytes: float, **options: Any) -> PhaseRun:
    """A record whose decode took so much memory at most; its prefill took 1.9 GB."""
    run = make_run(**options)
    decode = {"decode": [int(peak_bytes)] * 3}
    return altered(run, memory={"peak_bytes": run.memory.peak_bytes | decode})


def with_longer_stages(factor: float) -> PhaseRun:
    """A record with the prefill's stages, but not the whole, so many times as long."""
    longer = paced(make_run(), factor, phase="prefill")
    return paced(longer, 1.0 / factor, phase="prefill", stage="prefill")


def with_loop() -> PhaseRun:
    """A record of two rows, of which the second repeats three tokens up to the limit."""
    run = make_run(rows=2)
    ids = [*range(100), *[5, 6, 7] * 20]
    loop = {
        "ids": ids,
        "token_texts": [f"<{number}>" for number in ids],
        "finish_reason": "length",
    }
    return altered(run, results=[run.result, to_plain(run.result) | loop])


def with_gpu(before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> PhaseRun:
    """A GPU's record, its state before and after the repeats as usual but for these."""
    states: dict[str, Any] = {"before": IDLE_GPU, "after": None}
    if before is not None:
        states["before"] = IDLE_GPU | before
    if after is not None:
        states["after"] = IDLE_GPU | after
    return on_machine(make_run(cuda=True), states)


def with_host(cores: int = 2, **host: Any) -> PhaseRun:
    """A CPU's record, measured while the machine did this."""
    return on_machine(make_run(), cores=cores, **host)


@dataclass(frozen=True)
class PageSize:
    """The pixels of a page, and how many of its image tokens show something."""

    width: int
    height: int
    valid_tokens: int | None


def with_pages(*sizes: PageSize) -> PhaseRun:
    """A record of pages of these sizes at base."""
    run = make_run()
    pages = []
    for size in sizes:
        entries = {
            "width": size.width,
            "height": size.height,
            "valid_image_tokens": size.valid_tokens,
            "preset": "base",
        }
        pages.append(to_plain(run.page) | entries)
    return altered(run, pages=pages)


@dataclass(frozen=True)
class CheckCase:
    """A record, the verdict of a check on it, and what the check tells."""

    run: PhaseRun
    verdict: str
    measured: str = ""


STRIP = PageSize(20_000, 50, 0)
THROTTLED_BY_HEAT = 0x24
AT_POWER_LIMIT = 0x4
#: What a machine reports that can tell nothing of itself.
NOTHING_KNOWN = dict.fromkeys(("waited_s", *QUIET))
#: The cases of each check.
CASES: dict[str, dict[str, CheckCase]] = {
    "vision_in_prefill_only": {
        "in-decode": CheckCase(with_vision_in_decode(make_run()), "fail", "sam ran in 1 steps"),
    },
    "cache_linear": {
        "one-size-less": CheckCase(with_last_size(make_run()), "fail", "1 of"),
        "another-size": CheckCase(with_last_size(make_run(), 1), "fail", "1 of"),
    },
    "decode_memory": {
        "gpu-equal": CheckCase(with_decode_peak(1.9e9, cuda=True), "pass"),
        "gpu-hardly-more": CheckCase(with_decode_peak(1.905e9, cuda=True), "pass"),
        "gpu-a-little-more": CheckCase(with_decode_peak(1.92e9, cuda=True), "note"),
        "gpu-much-more": CheckCase(with_decode_peak(3e9, cuda=True), "fail"),
        "cpu-hardly-more": CheckCase(with_decode_peak(1.905e9), "pass"),
        "cpu-much-more": CheckCase(with_decode_peak(3e9), "note"),
    },
    "stage_coverage": {
        "whole": CheckCase(with_longer_stages(1.0), "pass"),
        "half": CheckCase(with_longer_stages(0.5), "note"),
        "more-than-the-whole": CheckCase(with_longer_stages(1.5), "fail"),
    },
    "repeat_spread": {
        "small": CheckCase(paced(make_run(), 1.0, 1.04, 1.02), "pass"),
        "middle": CheckCase(paced(make_run(), 1.0, 1.14, 1.05), "note"),
        "large": CheckCase(paced(make_run(), 1.0, 1.3, 1.1), "noisy"),
        "unknown": CheckCase(make_run(repeats=1), "n/a"),
    },
    "impossible_values": {
        "no-ceilings": CheckCase(make_run(), "n/a"),
        "below": CheckCase(with_ceilings(1e12), "pass"),
        "bandwidth": CheckCase(with_ceilings(1e6), "noisy", "exceeds the measured ceiling"),
        "arithmetic": CheckCase(with_ceilings(1e12, 1e6), "noisy", "exceeds the measured ceiling"),
        # The weights of a small model stay in a large cache: faster than memory, and no wonder.
        "large-cache": CheckCase(with_ceilings(1e6, cache=10**9), "note", "processor's cache"),
        "copies-differ": CheckCase(
            with_ceilings(1e12, copy_ms=[4.0, 9.0, 8.8], matmul_ms=[5.0, 5.1]),
            "noisy",
            "2.2 times",
        ),
        "far-below-the-datasheet": CheckCase(
            with_ceilings(4.3e11, 7e14, "bfloat16"), "noisy", "9.0 %"
        ),
    },
    "visible_page": {
        "usual": CheckCase(with_pages(PageSize(1024, 1448, 180)), "pass"),
        "wide": CheckCase(
            with_pages(STRIP), "note", "20,000 x 50 pixels at base, so nothing on it can be read"
        ),
        "high": CheckCase(with_pages(PageSize(50, 20_000, 0)), "note", "50 x 20,000 pixels"),
        "one-token": CheckCase(with_pages(PageSize(20_000, 50, 1)), "pass"),
        "unknown": CheckCase(with_pages(PageSize(20_000, 50, None)), "n/a", "unknown"),
        "second-page": CheckCase(
            with_pages(PageSize(800, 800, 256), STRIP), "note", "page 2: 20,000 x 50"
        ),
    },
    "repetition_loop": {
        "second-row": CheckCase(
            with_loop(), "note", "row 2: 3 tokens 20 times from token 101 on, up to the limit"
        ),
        "random-weights": CheckCase(
            altered(with_loop(), model={"source": "random weights"}), "n/a", "weights are random"
        ),
    },
    "busy_host": {
        "waited-long": CheckCase(with_host(waited_s=2.0), "noisy", "33 %"),
        "waited": CheckCase(with_host(waited_s=0.2), "note", "4.8 %"),
        "other-threads-busy": CheckCase(
            with_host(other_threads_s=0.4),
            "noisy",
            "the panel or other cells used 10 % of a core",
        ),
        "other-threads": CheckCase(with_host(other_threads_s=0.12), "note", "used 3.0 % of a core"),
        "other-threads-idle": CheckCase(
            with_host(other_threads_s=0.06), "pass", "waited for a core for 0.2 %"
        ),
        "hypervisor": CheckCase(with_host(steal=0.2), "noisy", "hypervisor took 20 %"),
        "other-programs": CheckCase(with_host(others=0.6), "note", "other programs took 60 %"),
        "other-programs-and-unknown-waits": CheckCase(
            with_host(others=0.6, waited_s=None), "noisy", "other programs took 60 %"
        ),
        "cores-enough": CheckCase(with_host(64, others=0.5, waited_s=None), "pass", "50 %"),
        "little-of-the-time": CheckCase(with_host(cpu_s=2.0, waited_s=None), "noisy", "50 %"),
        "unknown": CheckCase(with_host(**NOTHING_KNOWN), "n/a", "does not report"),
        "gpu-idle": CheckCase(with_gpu(after={}), "pass", "1,980 of 1,980 MHz"),
        "gpu-hot": CheckCase(
            with_gpu(after={"throttle_reasons": THROTTLED_BY_HEAT}), "noisy", "heat"
        ),
        "gpu-power": CheckCase(
            with_gpu(after={"throttle_reasons": AT_POWER_LIMIT}), "note", "at its power limit"
        ),
        "gpu-slow": CheckCase(with_gpu(after={"sm_mhz": 1_000}), "note", "1,000 of 1,980 MHz"),
        "gpu-shared": CheckCase(with_gpu(after={"other_processes": 1}), "note", "1 other program"),
        "gpu-without-end": CheckCase(with_gpu(), "pass", "waited"),
        "gpu-busy": CheckCase(
            with_gpu(before={"other_processes": 2, "utilization": 90}),
            "noisy",
            "2 other programs held the GPU, busy 90 %",
        ),
    },
}


def all_cases(*verdicts: str) -> list[Any]:
    """A parameter for each case with one of these verdicts: its check and the case."""
    parameters = []
    for name, cases in CASES.items():
        for label, case in cases.items():
            if case.verdict in verdicts:
                parameters.append(pytest.param(name, case, id=f"{name}-{label}"))
    return parameters


def assert_judged(name: str, case: CheckCase) -> None:
    """The check of this name has the verdict of the case, and tells what it should."""
    check = check_of(case.run, name)
    assert check.verdict == case.verdict, check.measured
    assert not case.measured or says(check.measured, case.measured), check.measured


@pytest.mark.parametrize(("name", "case"), all_cases("pass", "note", "fail", "n/a"))
def test_a_rule_judges_a_record_and_makes_it_not_noisy(name: str, case: CheckCase) -> None:
    assert_judged(name, case)
    assert noise_warning(case.run) == ""
    assert not is_noisy(case.run)


@pytest.mark.parametrize(("name", "case"), all_cases("noisy"))
def test_noise_makes_a_record_noisy_and_a_warning_says_why(name: str, case: CheckCase) -> None:
    assert_judged(name, case)
    assert (case.measured or "from repeat to repeat") in noise_warning(case.run)
    assert not with_verdict(run_checks(case.run), "fail")
    # Ceilings that are wrong make no other figure doubtful.
    assert is_noisy(case.run) == (name != "impossible_values")


# -- the trend and the outliers of decode ----------------------------------------------------------


@dataclass(frozen=True)
class Trend:
    """A run whose steps of 10 ms grow by so much a token, in the first ``slow_repeats`` of its
    repeats, on a machine that was quiet but for ``host``; and the verdict.
    """

    ms_a_token: float
    verdict: str
    slow_repeats: int = 3
    repeats: int = 3
    waited_s: float = QUIET["waited_s"]


TRENDS = {
    "none": Trend(0.0, "pass"),
    "of-the-cache": Trend(1e-4, "pass"),
    "falling": Trend(-0.02, "pass"),
    "middle": Trend(0.02, "note"),
    "steep": Trend(0.2, "fail"),
    # A neighbour is not called a broken model.
    "one-repeat-alone": Trend(0.2, "note", slow_repeats=1, repeats=1),
    "two-of-three-repeats": Trend(0.2, "n/a", slow_repeats=2),
    "on-a-busy-machine": Trend(0.2, "n/a", waited_s=2.0),
}


def with_trend(trend: Trend) -> PhaseRun:
    """A record of 238 steps with this trend and a little noise."""
    noise = np.random.default_rng(1)

    def step_ms(step: int, repeat: int) -> float:
        growth = 0.0
        if repeat < trend.slow_repeats:
            growth = trend.ms_a_token * step
        return 10.0 + growth + noise.normal(0, 0.05)

    run = make_run(repeats=trend.repeats)
    return with_steps(on_machine(run, waited_s=trend.waited_s), step_ms)


@pytest.mark.parametrize("name", TRENDS)
def test_the_trend_is_held_against_the_bytes_of_the_cache(name: str) -> None:
    """61,440 bytes a token at 1 TB/s are 61 ns."""
    trend = TRENDS[name]
    run = with_trend(trend)
    ceilings = {"bandwidth_bytes_per_s": 1e12, "matmul_dtype": "float32"}

    without_ceilings = check_of(run, "decode_trend")
    check = check_of(altered(run, device={"ceilings": ceilings}), "decode_trend")

    if trend.slow_repeats == trend.repeats:
        assert decode_trend(run).slope == pytest.approx(trend.ms_a_token, abs=2e-4)
    assert check.verdict == trend.verdict
    if trend.verdict == "n/a":
        assert without_ceilings.verdict == "n/a"
        assert says(check.measured, "too busy")
    else:
        assert without_ceilings.verdict == "note"
        assert says(check.measured, "0.061 µs")


def first_step(step: int, repeat: int) -> float:
    return 60.0 if step == 0 else 10.0


def one_step(step: int, repeat: int) -> float:
    return 60.0 if step == 30 else 10.0


def every_eighth_step(step: int, repeat: int) -> float:
    return 60.0 if step % 8 == 7 else 10.0


def step_of_cache_growth(step: int, repeat: int) -> float:
    return 60.0 if step == 111 else 10.0


def one_step_in_later_repeats(step: int, repeat: int) -> float:
    return 60.0 if step == 30 and repeat > 1 else 10.0


def one_step_in_one_repeat(step: int, repeat: int) -> float:
    """A spike in a single repeat, twice as high."""
    return 120.0 if step == 30 and repeat == 1 else 10.0


@dataclass(frozen=True)
class Outlier:
    """A run with slow steps, by ``ms`` of a step and a repeat, and their likely cause.

    ``host_ms`` is the host's time of every span, where it differs from the device's.
    """

    ms: Callable[[int, int], float]
    cause: str
    cuda: bool = False
    repeats: int = 3
    eos_check_every: int = 1
    host_ms: float | None = None

    def run(self) -> PhaseRun:
        run = with_steps(make_run(cuda=self.cuda, repeats=self.repeats), self.ms)
        spans = run.spans
        if self.host_ms is not None:
            spans = spans.assign(host_ms=self.host_ms)
        return altered(run, request={"eos_check_every": self.eos_check_every}, spans=spans)


OUTLIERS = {
    "first-step": Outlier(first_step, "the first step"),
    "cpu": Outlier(one_step, "the host was held up"),
    "gpu-and-host": Outlier(one_step, "the host was late", cuda=True),
    "gpu-alone": Outlier(one_step, "the device itself took longer", cuda=True, host_ms=9.0),
    "end-token": Outlier(every_eighth_step, "the end token is read", eos_check_every=8),
    "cache": Outlier(step_of_cache_growth, "the cache reached 1024 entries"),
    "some-repeats": Outlier(one_step_in_later_repeats, "in 2 of 4 repeats", repeats=4),
    "one-repeat": Outlier(one_step_in_one_repeat, "in 1 of 5 repeats", repeats=5),
}


@pytest.mark.parametrize("name", OUTLIERS)
def test_outliers_have_a_likely_cause(name: str) -> None:
    outlier = OUTLIERS[name]
    run = outlier.run()

    check = check_of(run, "outlier_steps")
    causes = outlier_causes(run)

    assert causes
    for _, text in causes:
        assert outlier.cause in text
    assert check.verdict == "note"
    assert outlier.cause in check.measured


# -- how checks are kept and shown -----------------------------------------------------------------


def test_a_measurement_keeps_what_the_machine_did(golden_session: OCRSession) -> None:
    run = golden_session.run_inference(
        PAGES / "slide.png",
        preset="tiny",
        max_new_tokens=2,
        repeats=2,
        warmup=0,
        ceilings=False,
        token_probabilities=False,
    )

    conditions = run.device.conditions
    assert run.repeats == [0, 1]
    assert [row.repeat for row in conditions.repeats] == [0, 1]
    for row in conditions.repeats:
        assert tuple(to_plain(row)) == CONDITION_COLUMNS
        assert row.wall_s > 0
        assert row.cpu_s > 0
    assert conditions.gpu is None
    assert run.device.threads == torch.get_num_threads()
    assert run.device.host_cores == run.device.cores
    assert run.device.cores >= 1


def test_checks_are_escaped_and_a_failure_is_unfolded() -> None:
    failed = Verdict("fail", "<script>", "a<b", "<i>", "why", "<b>fix")
    passed = Verdict("pass", "y", "stage_coverage", "x", "why", "fix")

    elements = Elements(checks_html([failed, passed]))

    assert "<script>" in elements.said
    assert "script" not in elements.tags()
    of_failed, of_passed = elements.attributes_of("details")
    assert "open" in of_failed
    assert "open" not in of_passed


def test_the_troubleshooting_page_names_checks_that_exist() -> None:
    page = (PAGES.parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    titles = set()
    for rules in (RULES, RARE_RULES, EXPECTATIONS):
        titles |= {rule.title for rule in rules.values()}

    named = re.findall(r"`([a-z]+ [a-z ]*[a-z]|stage coverage|parity)`", page)

    assert set(named) <= titles
