"""One record in words: headline, what limits it, findings, noise and checks.

Plain text, without any text of the model. Times are those of `summary`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ocr_phases.analyse.checks import noisy_checks, run_checks, with_verdict
from ocr_phases.analyse.expectations import EXPECTATIONS
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import (
    ceilings_of,
    datasheet_ceilings,
    measured_ceilings,
    times_text,
)
from ocr_phases.analyse.grounding import PREAMBLE
from ocr_phases.analyse.kernels import kernel_sentences
from ocr_phases.analyse.noise import Verdict, ceilings_are_wrong, trusted_floors
from ocr_phases.analyse.regions import UNCERTAIN_BELOW, regions_of
from ocr_phases.analyse.repetition import repeated_share
from ocr_phases.analyse.stages import (
    OUTLIER_FACTOR,
    decode_trend,
    end_to_end_ms,
    step_table,
    token_of_step,
)
from ocr_phases.record import TEXT_ONLY, Record
from ocr_phases.text import (
    count_text,
    digits_text,
    ms_text,
    percent_text,
    percent_within,
    rate_text,
)

UNCERTAIN_TEXT = f"uncertain: mean token probability below {percent_text(UNCERTAIN_BELOW)}"

# A smaller difference between the clocks does not show which side waits.
_CLEAR_GAP = 0.15
_CLEAR_TREND = 0.10
_MUCH_REPEATED = 0.10
_PHASES = ("prefill", "decode")
_CEILINGS = "impossible_values"  # the check of noise that is of the ceilings, not of the times
#: What the number of checks of a verdict is followed by, behind those that passed.
_COUNTED = {
    "fail": "failed",
    "noisy": "found it noisy",
    "note": "left a note",
    "n/a": "do not apply or have no data",
}


def preset_text(run: Record) -> str:
    """The preset and, where nobody asked for it, that it is the model's default; empty without one.

    Of a prompt without an image it says that there is none.

    The same weights may have another default under another name. What a server chose is not known
    to be its default.
    """
    if not run.has_page:
        return "no image"
    if not run.request.preset:
        return ""
    name = run.page.preset
    if run.request.preset_choice == "default" and name == run.request.preset and not run.is_server:
        return f"preset {name} (the model's default)"
    return f"preset {name}"


def subject(run: Record) -> str:
    """Model, device, preset, dtype, strategy and date in one line."""
    settings = [preset_text(run), run.model.dtype, run.model.strategy]
    known_settings = ", ".join(setting for setting in settings if setting)
    created = re.sub(r"\+00:00|Z", " UTC", run.created.replace("T", " "))
    return f"{run.model.name} · {run.device.name} · {known_settings} · {created}"


def headline(run: Record) -> str:
    """Where the time went: the larger of prefill and decode, and the vision stages' share of the
    prefill.
    """
    figures = summary(run)
    pages = _pages_text(run)
    if _is_generate(run):
        time = ms_text(figures["generate_ms"])
        if run.is_server:
            return f"The server read {pages} in {time}, and its answer came in one piece."
        verb = "read" if run.has_page else "answered"
        return f"generate() {verb} {pages} in {time}."
    larger = _larger_phase(run)
    share = percent_text(_phase_time(run, larger) / figures["page_ms"])
    is_single = len(run.results) == 1 and len(run.pages) <= 1
    took = "took" if is_single else "took together"
    whole = f"the {ms_text(figures['page_ms'])} that {pages} {took}"
    text = f"{_phase_subject(run, larger)} is {share} of {whole}"
    if not run.has_page:
        text += "; there is no vision"
    elif figures["vision_share"]:
        text += f"; vision is {percent_text(figures['vision_share'])} of the prefill"
    text += "."
    repeated = repeated_share(run)
    if repeated > _MUCH_REPEATED:
        text += f" Repeated text is {percent_text(repeated)} of the decode."
    return text


def _phase_subject(run: Record, phase: str) -> str:
    """What a phase is called at the beginning of a sentence."""
    if phase == "decode":
        return "Decode"
    if run.waits_for_first_token:
        return "The wait for the first token"
    return "The prefill"


def verdict(run: Record) -> str:
    """The result as a short paragraph: `headline`, `limit_sentence`, `noise_warning` and
    `findings`.
    """
    sentences = [headline(run), limit_sentence(run), noise_warning(run), *findings(run)]
    return " ".join(sentence for sentence in sentences if sentence)


def limit_sentence(run: Record) -> str:
    """What limits the larger phase, in one sentence: from the kernel view, else from the floors."""
    return next(iter(_limits(run)), "")


def findings(run: Record) -> list[str]:
    """What else is worth knowing, a sentence each: the other phase's limit and the floor's distance
    first.
    """
    sentences = [*_limits(run)[1:], *_phase_sentences(run), *_clock_sentences(run), *_caveats(run)]
    return [sentence for sentence in sentences if sentence]


def _limits(run: Record) -> list[str]:
    """What limits the times, a sentence each: by the kernel view of the larger phase first.

    Where that says nothing of the larger phase, the floor comes first.
    """
    larger = _larger_phase(run)
    smaller = "prefill" if larger == "decode" else "decode"
    of_larger = kernel_sentences(run, larger)
    of_smaller = kernel_sentences(run, smaller)
    floor = floor_sentence(run)
    sentences = [*of_larger, *of_smaller, floor] if of_larger else [floor, *of_smaller]
    # Of a kernel view that failed, both phases say the same.
    return list(dict.fromkeys(sentence for sentence in sentences if sentence))


def noise_sentences(run: Record) -> list[str]:
    """What spoils these figures, then the remedies; empty for a record without noise.

    A busy machine spoils the times, a wrong ceiling the floors: each has its own sentence.
    """
    checks = noisy_checks(run)
    busy = [check.reason for check in checks if check.name != _CEILINGS]
    wrong = [check.reason for check in checks if check.name == _CEILINGS]
    sentences = []
    if busy:
        sentences.append(f"The machine was busy: {'; '.join(busy)}.")
    if wrong:
        sentences.append(
            "The device's peak rates could not be measured, so there are no floors: "
            f"{'; '.join(wrong)}."
        )
    return [*sentences, *dict.fromkeys(check.remedy for check in checks)]


def noise_warning(run: Record) -> str:
    """`noise_sentences` as one text."""
    return " ".join(noise_sentences(run))


# -- sentences -------------------------------------------------------------------------------------


def kernel_account(run: Record) -> str:
    """What limits both phases by the kernel view; empty without one."""
    return " ".join(kernel_sentences(run, *_PHASES))


def floor_sentence(run: Record) -> str:
    """The decode step's distance from its floor, or that a wrong ceiling hides it; empty without a
    floor.
    """
    if ceilings_are_wrong(run):
        return (
            "How far a decode step is from its floor is unknown, because the device's peak rates "
            "could not be measured."
        )
    floors = trusted_floors(run)
    ceilings = ceilings_of(run)
    step = floors[(floors["stage"] == "decode_step") & (floors["times_floor"] > 0)]
    if ceilings is None or step.empty:
        return ""
    row = step.iloc[0]
    resource = "memory bandwidth" if row["bound_by"] == "bandwidth" else "arithmetic"
    source = "measured on this device"
    if ceilings.source == "datasheet":
        source = f"from the {ceilings.name}"
    return (
        f"A decode step takes {ms_text(row['device_ms'])}, {times_text(row['times_floor'])} its "
        f"floor of {ms_text(row['floor_ms'])}, which is the shortest time that the {resource} "
        f"({source}) allows."
    )


def read_rate_sentence(run: Record) -> str:
    """At which rate a decode step reads memory, beside the bandwidth that was measured and the
    datasheet's, to which published figures refer; empty where one of the three is unknown.
    """
    floors = trusted_floors(run)
    step = floors[(floors["stage"] == "decode_step") & (floors["device_ms"] > 0)]
    measured = measured_ceilings(run)
    datasheet = datasheet_ceilings(run)
    if step.empty or measured is None or datasheet is None:
        return ""
    mbu = step.iloc[0]["mbu"]
    bytes_per_s = mbu * measured.bandwidth_bytes_per_s
    of_datasheet = percent_text(bytes_per_s / datasheet.bandwidth_bytes_per_s)
    return (
        f"A decode step reads memory at {rate_text(bytes_per_s)}B/s, which is {percent_text(mbu)} "
        f"of the bandwidth measured on this device, and {of_datasheet} of the "
        f"{rate_text(datasheet.bandwidth_bytes_per_s)}B/s on its datasheet."
    )


def uncertain_sentence(run: Record) -> str:
    """How many of the regions are uncertain, over all rows; empty for none."""
    regions = 0
    uncertain = 0
    for row in range(len(run.results)):
        table = regions_of(run, row)
        marked = table[table["region"] != PREAMBLE]
        regions += len(marked)
        uncertain += int(marked["uncertain"].sum())
    if uncertain == 0:
        return ""
    reason = f"text has a mean token probability below {percent_text(UNCERTAIN_BELOW)}"
    if uncertain == 1:
        return f"1 of {regions} regions is uncertain: its {reason}."
    return f"{uncertain} of {regions} regions are uncertain: their {reason}."


def checks_verdict(checks: Sequence[Verdict]) -> str:
    """The result of all checks, in one or two sentences."""
    rules = [check for check in checks if check.name not in EXPECTATIONS]
    counts = _counts_text(rules)
    failed = _labels(rules, "fail")
    if failed:
        return f"Do not trust these times: these checks failed: {', '.join(failed)}. {counts}."
    sentence = f"No check failed{_noise_clause(rules)}. {counts}."
    notes = _labels(rules, "note")
    if notes:
        sentence += f" Read the notes of: {', '.join(notes)}."
    return sentence


def _labels(checks: Sequence[Verdict], verdict: str) -> list[str]:
    """What the checks of one verdict are called."""
    return [check.label for check in with_verdict(checks, verdict)]


def _counts_text(rules: Sequence[Verdict]) -> str:
    """How many checks have which verdict, so that the numbers add up to that of all checks."""
    parts = [f"{len(with_verdict(rules, 'pass'))} of {count_text(len(rules), 'check')} passed"]
    for verdict, what in _COUNTED.items():
        count = len(with_verdict(rules, verdict))
        if count:
            parts.append(f"{count} {what}")
    return ", ".join(parts)


def _noise_clause(rules: Sequence[Verdict]) -> str:
    """What the checks of noise found, as the end of a sentence; empty where they found none.

    A wrong ceiling spoils floors, MFU and MBU, but no time; a busy machine spoils the times.
    """
    busy = []
    clauses = []
    ceilings = ""
    for check in with_verdict(rules, "noisy"):
        if check.name == _CEILINGS:
            ceilings = check.label
        else:
            busy.append(check.label)
    if busy:
        clauses.append(f"the machine was busy ({', '.join(busy)})")
    if ceilings:
        clauses.append(f"the device's peak rates could not be measured ({ceilings})")
    if not clauses:
        return ""
    return f", but {' and '.join(clauses)}"


def _phase_sentences(run: Record) -> Iterator[str]:
    """Findings about prefill and decode: slow single steps, and drift over the run."""
    if not run.knows_tokens:
        pieces = count_text(run.token_count, "piece")
        yield (
            f"The server does not tell how many tokens it made: there were at least {pieces}, and "
            "rates are unknown."
        )
        return
    if _is_generate(run) and not run.is_server:
        yield "One-shot runs do not separate prefill and decode."
        return
    figures = summary(run)
    if not figures["decode_steps"]:
        if run.decoded_tokens > 0:
            yield "The tokens have no times of their own, so there is no time of a decode step."
        elif run.waits_for_first_token:
            yield "The answer has one token, so there is no time between tokens."
        else:
            yield "The prefill gave the only token, so no decode step ran."
        return
    ratio = _phase_time(run, "prefill") / figures["inter_token_ms"]
    steps = digits_text(ratio) if ratio < 9.95 else f"{ratio:,.0f}"
    if run.waits_for_first_token:
        yield f"The wait for the first token takes as long as {steps} decode steps."
    else:
        yield f"One prefill takes as long as {steps} decode steps."
    yield _slow_steps_sentence(run)
    yield _trend_sentence(run)


def _slow_steps_sentence(run: Record) -> str:
    """How many decode steps stand out, and which one most; empty for none."""
    table = step_table(run)
    slow = table[table["outlier"]]
    if slow.empty:
        return ""
    slowest = slow.nlargest(1, "device_ms").iloc[0]
    return (
        f"{count_text(len(slow), 'step')} took more than {OUTLIER_FACTOR} times the median; "
        f"the slowest made token {token_of_step(run, slowest['step'])}, with a median of "
        f"{ms_text(slowest['device_ms'])}."
    )


def _trend_sentence(run: Record) -> str:
    """How much slower or faster decode steps became; empty where that is small or not known."""
    trend = decode_trend(run)
    if trend is None or _verdict_of(run, "decode_trend") == "n/a":
        return ""  # what the check does not judge is not told either
    share, low, high = trend.shares
    is_clear = abs(share) > _CLEAR_TREND and not low <= 0 <= high
    if not is_clear:
        return ""
    change = percent_within(abs(share), (high - low) / 2)
    direction = "slower" if share > 0 else "faster"
    return f"Decode steps became {change} {direction} over the run."


def _verdict_of(run: Record, name: str) -> str:
    """The verdict of one check of the record."""
    return next(check.verdict for check in run_checks(run) if check.name == name)


def _clock_sentences(run: Record) -> Iterator[str]:
    """Whether host or device limits a phase, if their clocks clearly differ."""
    if not run.device.has_own_clock:
        return
    for phase in _PHASES:
        device_ms = np.median(run.repeat_ms(phase, phase, "device_ms"))
        host_ms = np.median(run.repeat_ms(phase, phase, "host_ms"))
        if abs(host_ms - device_ms) <= _CLEAR_GAP * device_ms:
            continue
        clocks = (
            f"The {phase} took {ms_text(host_ms)} on the host's clock and {ms_text(device_ms)} on "
            "the device's"
        )
        if host_ms < device_ms:
            yield f"{clocks}: the host ran ahead, so the device sets the time."
        else:
            yield f"{clocks}: the host was busy while the device was idle."


def _caveats(run: Record) -> Iterator[str]:
    """What else a reader of the times and the text should know."""
    yield uncertain_sentence(run)
    request = run.request
    if request.ignore_eos:
        yield "The end token was ignored, so the run made the requested number of tokens."
    elif _is_cut(run):
        limit = count_text(request.max_new_tokens, "token")
        yield f"It stopped at the limit of {limit}, so the text may be incomplete."
    totals = end_to_end_ms(run)
    if len(totals) == 1:
        yield "A single repeat shows no spread between runs."
    else:
        yield (
            f"Times are medians of {len(totals)} repeats, which took {ms_text(totals.min())} to "
            f"{ms_text(totals.max())}."
        )
    if request.warmed_before:
        yield "There was no warm-up, because the model had run these shapes before."
    elif request.warmup == 0:
        yield "There was no warm-up, so these times include one-time set-up."
    spent = ", ".join(_setup_times(run))
    if spent:
        yield f"Compile and capture time is not included: {spent}."


def _setup_times(run: Record) -> Iterator[str]:
    """What happened once, before the timed runs, each with its time."""
    setup = run.model.strategy_setup
    if setup is not None:
        if setup.compile_ms is not None:
            yield f"compiling the decode step {ms_text(setup.compile_ms)}"
        if setup.capture_ms is not None:
            yield f"capturing it {ms_text(setup.capture_ms)}"
        if setup.prefill_capture_ms is not None:
            yield f"capturing the prefill {ms_text(setup.prefill_capture_ms)}"
    vision = run.model.vision_setup
    if vision is not None:
        if vision.compile_ms is not None:
            yield f"compiling the vision encoders {ms_text(vision.compile_ms)}"
        if vision.capture_ms is not None:
            yield f"capturing the vision encoders {ms_text(vision.capture_ms)}"


def tokens_text(run: Record) -> str:
    """How many tokens the first row has: ``"64 tokens"``, or ``"at least 12 pieces"`` where nobody
    told.
    """
    if run.knows_tokens:
        return count_text(run.token_count, "token")
    return f"at least {count_text(run.token_count, 'piece')}"


def _phase_time(run: Record, phase: str) -> float:
    """The whole of a phase in ms, the median over repeats."""
    return float(np.median(run.phase_ms(phase)))


def _larger_phase(run: Record) -> str:
    return "decode" if _phase_time(run, "decode") > _phase_time(run, "prefill") else "prefill"


def _is_generate(run: Record) -> bool:
    """Whether there is one time for the whole, which does not tell prefill from decode."""
    return summary(run)["generate_ms"] is not None


def _is_cut(run: Record) -> bool:
    return run.result.finish_reason == "length"


def _pages_text(run: Record) -> str:
    """What was read, as the object of a sentence."""
    if not run.has_page:
        return f"this {TEXT_ONLY}"
    if len(run.results) > 1:
        return f"these {len(run.results)} rows"
    if len(run.pages) > 1:
        return f"these {len(run.pages)} pages"
    return "this page"
