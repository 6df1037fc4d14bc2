"""The rules by which a record is judged: each is a `Rule`, with its function and its texts.

A new check is one `Rule` in `RULES`. If it follows from a saved record, its ``judge`` returns a
`Verdict`. If it needs the running model, ``judge`` is None: `ocr_phases.measure.live_checks` judges
it while measuring, and the record keeps the result under the rule's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pandas as pd

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.kernels import has_kernels, vision_in_decode
from ocr_phases.analyse.noise import (
    Verdict,
    busy_host,
    has_untimed_tokens,
    impossible_values,
    is_noisy,
    repeat_spread,
)
from ocr_phases.analyse.repetition import repetition_table
from ocr_phases.analyse.stages import (
    OUTLIER_FACTOR,
    SPIKE_FACTOR,
    Trend,
    attended,
    decode_trend,
    overlapping_stages,
    step_repeats,
    step_table,
    token_of_step,
    undeclared_stages,
    vision_stages,
)
from ocr_phases.record import Record
from ocr_phases.text import (
    bytes_text,
    count_text,
    digits_text,
    digits_within,
    ms_text,
    percent_text,
    percent_within,
)

NO_IMAGE = Verdict("n/a", "the prompt has no image")
NO_STEPS = Verdict("n/a", "there was no decode step")
NO_TREND = "too few steps for a trend"
TOO_BUSY = "the machine was too busy to judge it"

STAGE_COVERAGE = 0.97
# Clocks read a little apart may add up to a little more than the whole.
_OVERLAP = 1.01
# Up to here two peaks of memory count as the same: they differ by an allocation or two.
_SAME_MEMORY = 1.01
# A growth of the step over the run, as a part of the median step, that a busy machine makes by
# itself, and one that it does not. The cache's bytes may be read this many times slower than a
# large copy.
_DRIFT = 0.10
_RUNAWAY = 0.50
_SLOW_READS = 4.0
_CACHE_BLOCK = 256
_NAMED = 3


@dataclass(frozen=True)
class Rule:
    """One check: how a record is judged by it, and what a reader is told.

    Parameters
    ----------
    name
        Its name in the JSON of the verbs and in records, which never changes.
    title
        The same in words, for reports and the terminal; at most 29 characters.
    expected
        What a sound measurement shows; a function where that depends on the record.
    why
        Why it matters.
    fix
        What to do where it fails.
    judge
        Judges a saved record. None if only a running model can be judged.
    """

    name: str
    title: str
    expected: str | Callable[[Record], str]
    why: str
    fix: str
    judge: Callable[[Record], Verdict] | None = None


# -- how a saved record is judged ---------------------------------------------------------------


def _without_steps(run: Record) -> Verdict:
    """The verdict of a check of decode steps on a record that has none."""
    if run.is_server and (has_untimed_tokens(run) or not run.knows_tokens):
        return Verdict("n/a", "the tokens have no times of their own")
    return NO_STEPS


def _vision_in_prefill_only(run: Record) -> Verdict:
    if not run.has_page:
        return NO_IMAGE
    if not summary(run)["decode_steps"]:
        return _without_steps(run)
    decode = run.spans[run.spans["phase"] == "decode"]
    vision = decode[decode["stage"].isin(vision_stages(run))]
    if len(vision):
        names = ", ".join(sorted(vision["stage"].unique()))
        took = ms_text(vision["device_ms"].sum())
        return Verdict("fail", f"{names} ran in {vision['step'].nunique()} steps and took {took}")
    evidence = []
    if run.model.strategy == "eager":  # only eager steps have spans of their stages
        evidence.append(f"none of the {len(decode):,} spans of decode is of a vision stage")
    if has_kernels(run):
        seen = vision_in_decode(run)
        if seen.ran:
            return Verdict("fail", seen.reason)
        if seen.ran is not None or evidence:
            evidence.append(seen.reason)
    if not evidence:
        return Verdict("n/a", f"{run.model.strategy} steps show no stages")
    return Verdict("pass", "; ".join(evidence))


def _cache_linear(run: Record) -> Verdict:
    """Every size of the cache has to be its number of entries times the bytes of one."""
    counts = run.cache.entries or run.cache.lengths or []
    sizes = run.cache.bytes or []
    bytes_per_token = run.cache.bytes_per_token
    if len(sizes) < 2:
        return Verdict("n/a", "no growing cache was seen")
    grew = f"{bytes_text(sizes[0])} to {bytes_text(sizes[-1])}"
    if not bytes_per_token:
        return Verdict("n/a", f"{grew}, in layers of several kinds, each of which has its own rule")
    text = f"{bytes_text(bytes_per_token)} per token, {grew}"
    wrong_sizes = 0
    for count, size in zip_longest(counts, sizes):
        if size != (count or 0) * bytes_per_token:
            wrong_sizes += 1
    if wrong_sizes:
        return Verdict("fail", f"{text}; {wrong_sizes} of {len(sizes)} sizes differ from that")
    return Verdict("pass", text)


def _decode_memory(run: Record) -> Verdict:
    """Above the prefill's peak by more than the cache's own growth, something is kept that should
    not be.
    """
    figures = summary(run)
    prefill = figures["prefill_peak_bytes"]
    decode = figures["decode_peak_bytes"]
    if prefill is None or decode is None:
        return Verdict("n/a", "memory was not counted")
    text = f"{bytes_text(decode)} in decode, {bytes_text(prefill)} in the prefill"
    if decode <= prefill:
        return Verdict("pass", text)
    if run.memory.source != "cuda_peak_allocated":
        reason = "the whole process is counted, not the model alone"
    else:
        sizes = run.cache.bytes or [0]
        grew = sizes[-1] - sizes[0]
        # While a cache is copied to a larger one, the old one is still there.
        if decode > prefill + 2 * grew:
            return Verdict("fail", f"{text}; the cache grew by {bytes_text(grew)} only")
        reason = "the growing cache explains it"
    if decode <= prefill * _SAME_MEMORY:
        return Verdict("pass", text)
    return Verdict("note", f"{text}; {reason}")


def _stage_coverage(run: Record) -> Verdict:
    coverage = summary(run)["stage_coverage"]
    if coverage is None:
        return Verdict("n/a", "there is no prefill, or its stages were not timed")
    text = f"{coverage * 100:.1f} %"
    if coverage > _OVERLAP:
        text += ": stages overlap, so one is counted twice"
        return Verdict("fail", text + _undeclared(run))
    verdict = "pass" if coverage >= STAGE_COVERAGE else "note"
    return Verdict(verdict, text + _undeclared(run))


def _undeclared(run: Record) -> str:
    """What to know of stages that nobody declared: which sums they are in."""
    text = ""
    overlapping = overlapping_stages(run)
    added = [name for name in undeclared_stages(run) if name not in overlapping]
    if added:
        names = ", ".join(added)
        text += f"; it is unknown what {names} is: it is in this sum, but in no time of vision"
    if overlapping:
        text += f"; {', '.join(overlapping)} overlaps other stages, so it is in no sum"
    return text


def _decode_trend(run: Record) -> Verdict:
    trend = decode_trend(run)
    if trend is None:
        return Verdict("n/a", NO_TREND)
    reach = (trend.interval[1] - trend.interval[0]) / 2
    text = (
        f"{digits_within(trend.slope * 1e3, reach * 1e3)} µs per cached token, {trend_text(trend)}"
    )
    if is_noisy(run):
        return Verdict("n/a", f"{text}; {TOO_BUSY}")
    ceilings = run.device.ceilings
    bandwidth = None if ceilings is None else ceilings.bandwidth_bytes_per_s
    if not bandwidth or not run.cache.bytes_per_token:
        place = "beyond" if abs(trend.shares[0]) > _DRIFT else "within"
        drift = f"{place} the usual drift of a machine; no measured bandwidth to compare with"
        return Verdict("note", f"{text}, {drift}")
    due = run.cache.bytes_per_token / bandwidth * 1e3
    # The growth beyond what slow reads of the cache explain, as a part of the median step. One
    # repeat alone cannot be told from a neighbour's start; repeats that differ are noisy.
    excess = trend.shares[0] - _SLOW_READS * due * trend.growth
    text += f"; its bytes alone cost {digits_text(due * 1e3)} µs"
    if excess <= _DRIFT:
        return Verdict("pass", text)
    if excess > _RUNAWAY and len(run.repeats) > 1:
        return Verdict("fail", text)
    return Verdict("note", text)


def trend_text(trend: Trend) -> str:
    """``"12 % of a step over the run (95 % interval 10 % to 14 %)"``."""
    reach = (trend.shares[2] - trend.shares[1]) / 2
    share, low, high = (percent_within(each, reach) for each in trend.shares)
    return f"{share} of a step over the run (95 % interval {low} to {high})"


def _outlier_steps(run: Record) -> Verdict:
    if not summary(run)["decode_steps"]:
        return _without_steps(run)
    causes = outlier_causes(run)
    return _note_of([f"token {token_of_step(run, step)}: {cause}" for step, cause in causes])


def _note_of(findings: Sequence[str], remark: str = "") -> Verdict:
    """A note that names the first few findings, and a remark behind them; a pass for none."""
    if not findings:
        return Verdict("pass", "none")
    named = [*findings[:_NAMED]]
    if len(findings) > _NAMED:
        named.append(f"and {len(findings) - _NAMED} more")
    return Verdict("note", "; ".join(named) + remark)


def outlier_causes(run: Record) -> list[tuple[int, str]]:
    """The outlier steps, each with its likely cause."""
    table = step_table(run)
    times = step_repeats(run) / table["device_ms"].median()
    host = step_repeats(run, "host_ms")
    late = host > OUTLIER_FACTOR * host.median(axis="columns").median()
    slow = table[table["outlier"]].fillna({"cache_len": 0})
    causes = []
    for step, held in slow[["step", "cache_len"]].astype(int).itertuples(index=False, name=None):
        host_was_late = bool(late.loc[step].all())
        causes.append((step, _outlier_cause(run, step, held, times.loc[step], host_was_late)))
    return causes


def _outlier_cause(run: Record, step: int, held: int, times: pd.Series, host_was_late: bool) -> str:
    """The likely cause of one slow step.

    ``held`` counts the entries of the cache after the step, ``times`` has the step's time in each
    repeat over the median step.
    """
    if step == 0:
        return "the first step, which sets up what the others reuse"
    over = times > OUTLIER_FACTOR
    if not over.all() and (over.mean() <= 0.5 or times.max() > SPIKE_FACTOR):
        repeats = count_text(len(over), "repeat")
        return f"in {over.sum()} of {repeats}: something else ran on this machine"
    every = run.request.eos_check_every or 1
    if every > 1 and (step + 1) % every == 0:
        return "the end token is read here, which waits for the device"
    # The step that made as many entries is the first to hold one more than a full block.
    begins_block = held > 0 and held % _CACHE_BLOCK <= 1
    if begins_block and attended(run, np.array(held)) == held:
        return f"the cache reached {held} entries: it moves to larger memory or another kernel"
    if run.device.kind != "cuda":
        return "the host was held up"
    if host_was_late:
        return "the host was late, so the device waited"
    return "the device itself took longer"


def _visible_page(run: Record) -> Verdict:
    """A page of which the vendor's formula leaves no image token is so long and narrow that it
    vanishes.
    """
    if not run.has_page:
        return NO_IMAGE
    counts = [page.valid_image_tokens for page in run.pages]
    if None in counts:
        return Verdict("n/a", "how the page was cut is unknown")
    invisible = []
    for number, page in enumerate(run.pages, 1):
        if page.valid_image_tokens == 0:
            where = f"page {number}: " if len(run.pages) > 1 else ""
            size = f"{page.width:,} x {page.height:,} pixels"
            invisible.append(f"{where}{size} at {page.preset}, so nothing on it can be read")
    return _note_of(invisible)


def _repetition_loop(run: Record) -> Verdict:
    """Every loop is noted with its place, its length and what it takes of the decode time.

    Random weights write noise, whose loops are no fault of a model.
    """
    if run.has_random_weights:
        return Verdict(
            "n/a", "the weights are random, so the text is noise and a loop says nothing"
        )
    loops = []
    for loop in repetition_table(run).to_dict("records"):
        text = f"row {loop['row'] + 1}: " if len(run.results) > 1 else ""
        if loop["measure"] == "exact":
            text += f"{count_text(loop['period'], 'token')} {loop['times']} times"
        else:
            repeated = count_text(loop["repeated"], "token")
            text += f"{repeated} that say nothing new (an inexact loop)"
        text += f" from token {loop['start'] + 1} on"
        if loop["to_limit"]:
            text += ", up to the limit"
        if not np.isnan(loop["share"]):
            text += f", {percent_text(loop['share'])} of the decode time"
        loops.append(text)
    remark = ""
    if run.request.ignore_eos:
        remark = "; the end token was ignored, which makes this likely"
    return _note_of(loops, remark)


# -- what is expected of a record, where that depends on it -------------------------------------


def _expected_parity(run: Record) -> str:
    """In 16 bits two tokens may tie, so the texts may differ from there on."""
    if run.request.autocast or run.model.dtype != "float32":
        return "the same tokens as generate(), or a tie where they first differ"
    return "the same tokens as generate()"


def _expected_host_syncs(run: Record) -> str:
    every = run.request.eos_check_every or 1
    if every == 1:
        return "one wait in each step, to read the end token"
    return f"one wait every {every} steps, to read the end token"


# -- the rules ----------------------------------------------------------------------------------

#: The checks of every record, in the order of the table.
_EVERY_RECORD = (
    Rule(
        name="parity",
        title="parity",
        expected=_expected_parity,
        why=(
            "The times mean nothing if this package computes something else than the model's own "
            "generate()."
        ),
        fix=(
            "Compare greedy runs in float32, and without the settings that are named here. Then "
            "look at the checks below, which show a wrong mask or cache."
        ),
    ),
    Rule(
        name="repeats_agree",
        title="repeats agree",
        expected="every repeat generates the same tokens",
        why="Medians over repeats are valid only if every repeat did the same work.",
        fix="Use greedy decoding or a fixed seed. In 16 bits, use deterministic kernels.",
    ),
    Rule(
        name="finite_logits",
        title="finite logits",
        expected="the model's logits are finite, and not all equal",
        why=(
            "If logits are NaN, infinite or all equal, the choice of a token is arbitrary, and the "
            "text has nothing to do with the page."
        ),
        fix=(
            "Look for NaN, infinite or zero weights. float16 overflows where bfloat16 or "
            "float32 does not: load the model with one of those."
        ),
    ),
    Rule(
        name="repeat_spread",
        title="repeat spread",
        expected=(
            "prefill and decode step vary by at most 5 % over the repeats (above 10 %: noisy)"
        ),
        why=(
            "Repeats of the same work differ because of the machine, not because of the model. "
            "Their median may be wrong by as much."
        ),
        fix=(
            "Close other programs, and in a notebook leave other cells and the panel alone. Pin "
            "the process to cores that nothing else uses (taskset), or compute with one CPU thread "
            "(--threads 1). Let a hot GPU cool, warm up, and measure 5 repeats or more."
        ),
        judge=repeat_spread,
    ),
    Rule(
        name="busy_host",
        title="busy host",
        expected="no other program uses the same cores or the same GPU",
        why="Waiting for a busy core, or a reduced clock rate, makes every time here longer.",
        fix=(
            "Close other programs, and in a notebook leave other cells and the panel alone. Pin "
            "the process to cores that nothing else uses (taskset), or compute with one CPU thread "
            "(--threads 1). Let a hot GPU cool, warm up, and measure 5 repeats or more."
        ),
        judge=busy_host,
    ),
    Rule(
        name="impossible_values",
        title="plausible ceilings",
        expected="no MFU or MBU above 100 %, and ceilings near those of the datasheet",
        why=(
            "No stage can do more than its hardware. Probably another program slowed the "
            "measurement of a ceiling (see How it was measured), and then the floors are wrong."
        ),
        fix=(
            "Close other programs, and in a notebook leave other cells and the panel alone. Pin "
            "the process to cores that nothing else uses (taskset), or compute with one CPU thread "
            "(--threads 1). Let a hot GPU cool, warm up, and measure 5 repeats or more."
        ),
        judge=impossible_values,
    ),
    Rule(
        name="eval_mode",
        title="eval mode",
        expected="the model is in eval mode in every forward",
        why="Training mode turns on dropout, and the model may then run other code.",
        fix="Call model.eval() after loading, and again after each training.",
    ),
    Rule(
        name="gradients_off",
        title="gradients off",
        expected="no forward tracks gradients",
        why="Tracking them costs time and keeps every activation, so memory grows with each step.",
        fix="Run under torch.no_grad() or torch.inference_mode().",
    ),
    Rule(
        name="single_token_steps",
        title="one token per decode step",
        expected="one token per row in each decode step",
        why=(
            "A step with several tokens recomputes cached ones, and makes the vendor's class run "
            "the vision encoders again."
        ),
        fix=(
            "Pass images to the prefill only. In decode steps pass None (or nothing) for them, and "
            "one token per row: input ids of shape [B, 1]."
        ),
    ),
    Rule(
        name="no_image_arguments_in_decode",
        title="no image arguments in decode",
        expected="every image argument is None in decode",
        why=(
            "The cache already holds the page. If vision runs in decode, every token pays for the "
            "vision stages again."
        ),
        fix=(
            "Pass images to the prefill only. In decode steps pass None (or nothing) for them, and "
            "one token per row: input ids of shape [B, 1]."
        ),
    ),
    Rule(
        name="vision_in_prefill_only",
        title="vision in prefill only",
        expected="no span of a vision stage in decode",
        why=(
            "The cache already holds the page. If vision runs in decode, every token pays for the "
            "vision stages again."
        ),
        fix=(
            "Pass images to the prefill only. In decode steps pass None (or nothing) for them, and "
            "one token per row: input ids of shape [B, 1]."
        ),
        judge=_vision_in_prefill_only,
    ),
    Rule(
        name="cache_reused",
        title="cache reused",
        expected="all steps use one KV cache",
        why="With a new cache, a step recomputes all earlier tokens and needs twice the memory.",
        fix=(
            "Pass the cache of the last call to the next one, with use_cache=True. Do not crop,"
            " copy or share it."
        ),
    ),
    Rule(
        name="cache_growth",
        title="cache growth",
        expected="one more entry per step, until a sliding window is full",
        why="Any other growth means that entries are lost, doubled or misplaced.",
        fix=(
            "Pass the cache of the last call to the next one, with use_cache=True. Do not crop,"
            " copy or share it."
        ),
    ),
    Rule(
        name="cache_linear",
        title="cache size per token",
        expected="the bytes of the cache are its entries times a constant",
        why="Any other growth means that entries are lost, doubled or misplaced.",
        fix=(
            "Look at the class of the cache: a step stores more, or less, than the keys and values "
            "of one token."
        ),
        judge=_cache_linear,
    ),
    Rule(
        name="attention_mask",
        title="attention mask",
        expected="it is 2-D, on the model's device, and has one more column per step",
        why=(
            "A mask of another shape hides the newest token, attends to padding, or makes the "
            "model build a wrong causal mask."
        ),
        fix="Keep it [B, length] and append one column of ones before each step.",
    ),
    Rule(
        name="mask_handed_over",
        title="mask covers the cache",
        expected="the mask that the model receives covers the cache and the new token",
        why=(
            "A mask of another shape hides the newest token, attends to padding, or makes the "
            "model build a wrong causal mask."
        ),
        fix="Keep it [B, length] and append one column of ones before each step.",
    ),
    Rule(
        name="image_mask",
        title="image mask",
        expected="the image mask marks exactly the image tokens, as many as the views need",
        why=(
            "The mask says where the image features go. If they are too few, too many or shifted, "
            "they go to wrong places, and some versions raise no error."
        ),
        fix=(
            "Pack the prompt with this model's image token, with one <image> per page, and for the "
            "preset that the page was cut with."
        ),
    ),
    Rule(
        name="image_features",
        title="one feature per image token",
        expected="one projector vector per image token",
        why=(
            "The mask says where the image features go. If they are too few, too many or shifted, "
            "they go to wrong places, and some versions raise no error."
        ),
        fix=(
            "Pack the prompt with this model's image token, with one <image> per page, and for the "
            "preset that the page was cut with."
        ),
    ),
    Rule(
        name="prompt_tokens",
        title="prompt tokens",
        expected="decoding the tokens of the prompt gives the prompt",
        why="A tokenizer that loses spaces or adds tokens changes the prompt.",
        fix=(
            "Load tokenizer.json itself: some versions of transformers rebuild this tokenizer "
            "wrongly."
        ),
    ),
    Rule(
        name="norm_layers",
        title="dtype of the norm layers",
        expected="every norm layer has the model's dtype, without autocast",
        why=(
            "Autocast changes the dtype between layers. That changes the logits, and adds a cast "
            "before many kernels."
        ),
        fix="Load the weights in the dtype you want, without autocast.",
    ),
    Rule(
        name="decode_memory",
        title="decode memory",
        expected="the peak of decode is no higher than that of the prefill",
        why=(
            "The prefill holds all activations of the prompt and the page, and a decode step "
            "those of one token."
        ),
        fix=(
            "Look for a cache that is not reused, for gradients, or for a mask that grows in two "
            "dimensions."
        ),
        judge=_decode_memory,
    ),
    Rule(
        name="stage_coverage",
        title="stage coverage",
        expected="the stages add up to at least 97 % of the prefill",
        why="This report cannot explain time outside the stages.",
        fix=(
            "Look for work between the stages, such as masks, copies and host syncs. If the "
            "machine was busy, measure again."
        ),
        judge=_stage_coverage,
    ),
    Rule(
        name="host_syncs",
        title="host syncs",
        expected=_expected_host_syncs,
        why="In each further host sync the host waits for the GPU, so the next step starts later.",
        fix=(
            "Read tokens only where the end token is looked for. A larger eos_check_every makes "
            "fewer syncs."
        ),
    ),
    Rule(
        name="decode_trend",
        title="decode trend",
        expected="a step becomes slower only because its cache has more bytes",
        why=(
            "Every step reads the whole cache. If a step becomes slower than that explains, "
            "something is recomputed, or a mask grows."
        ),
        fix=(
            "Look at the checks 'cache reused' and 'mask covers the cache', and then profile one "
            "early and one late step."
        ),
        judge=_decode_trend,
    ),
    Rule(
        name="outlier_steps",
        title="outlier steps",
        expected="no step stands out",
        why="Single slow steps distort the mean and the p99.",
        fix="Warm up, close other programs, raise eos_check_every, and quote medians.",
        judge=_outlier_steps,
    ),
    Rule(
        name="visible_page",
        title="visible page",
        expected="every page has image tokens that are not all padding",
        why=(
            "A page is scaled until its longer side fits. If it is very long and narrow, its "
            "shorter side then is thinner than one image token: the text is not what the page "
            "says."
        ),
        fix="Cut the page into several images whose sides differ less, and measure those.",
        judge=_visible_page,
    ),
    Rule(
        name="repetition_loop",
        title="repetition loop",
        expected="no text is repeated again and again",
        why=(
            "This model repeats itself endlessly on some pages. The decode time is then not "
            "that of the page."
        ),
        fix=(
            "Set no_repeat_ngram_size (the published code uses 20 to 35), take another preset, or "
            "a lower limit of tokens."
        ),
        judge=_repetition_loop,
    ),
)

#: Checks of those records alone that a stopped measurement, a card older than Ampere, a batch of a
#: model of no known family or a server left.
_SOME_RECORDS = (
    Rule(
        name="interrupted",
        title="interrupted",
        expected="every repeat was measured, and all that was asked for after them",
        why="With fewer repeats, less is known of their spread.",
        fix="Measure again without stopping it.",
    ),
    Rule(
        name="card_dtype",
        title="card dtype",
        expected="the card computes with the dtype of the weights itself",
        why=(
            "Cards before Ampere (T4, V100, P100) emulate bfloat16 slowly, so the default there"
            " is float16, which has a smaller range: a model made in bfloat16 may overflow it."
        ),
        fix=(
            "Look at finite logits: where float16 overflows, load with dtype float32. For times"
            " in bfloat16 use a newer card."
        ),
    ),
    Rule(
        name="rows_alone",
        title="rows alone",
        expected="each row of a batch gives the same tokens as its page alone",
        why=(
            "How the class of this model treats padding is not known, and a row that is changed by"
            " its neighbours has another text."
        ),
        fix="Measure the pages one at a time.",
    ),
    Rule(
        name="fresh_prompt",
        title="no prompt from a cache",
        expected="no repeat finds its page or prompt in a cache",
        why=(
            "A cached page skips vision or the whole prefill: the time to the first token is "
            "then not that of a new page."
        ),
        fix=(
            "Start vLLM with --no-enable-prefix-caching --mm-processor-cache-gb 0, or clear its"
            " caches."
        ),
    ),
    Rule(
        name="token_times",
        title="token times",
        expected="each chunk of the stream has one token, with its id",
        why="Tokens that arrive together have no times of their own.",
        fix=(
            "Use vLLM without speculative decoding and with --stream-interval 1, and no proxy "
            "that holds the stream back."
        ),
    ),
    Rule(
        name="token_limit",
        title="token limit",
        expected="no more tokens than were asked for",
        why=(
            "If a server goes on after the limit, it does something else than it was asked for, "
            "and its text and times are not those of the request."
        ),
        fix=(
            "Look for a proxy that drops max_tokens or max_new_tokens, or a server that does "
            "not know it."
        ),
    ),
    Rule(
        name="repetition_rule",
        title="repetition rule",
        expected="no run of tokens that no_repeat_ngram_size forbids",
        why=(
            "vLLM applies this rule only if its logits processor is loaded, and says nothing if it "
            "is not."
        ),
        fix=(
            "Start vLLM with --logits-processors "
            "vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor, or "
            "SGLang with --enable-custom-logit-processor."
        ),
    ),
    Rule(
        name="server_preset",
        title="server preset",
        expected="as many image tokens as the preset has",
        why=(
            "If the page is cut in another way, or if there is a token more or less, it is another "
            "prompt, and its times and text cannot be compared."
        ),
        fix=(
            "Choose the preset that the server uses. vLLM's is gundam (crop), with at most 6 crops "
            "instead of 9."
        ),
    ),
    Rule(
        name="encoder_graphs",
        title="encoder graphs",
        expected="every stage of vision has its own time",
        why=(
            "Within a replayed CUDA graph SAM, CLIP and the projector have no times of their own. "
            "The times of whole replays were written against vLLM 0.32 and have not been seen in a "
            "vLLM on a GPU."
        ),
        fix=(
            "For the times of the stages, start vLLM without cudagraph_mm_encoder. The server is "
            "then not the tuned one."
        ),
    ),
    Rule(
        name="region_tags",
        title="region tags",
        expected="regions have their tags",
        why=(
            "A server that leaves special tokens out takes the tags of regions with them. Lines of "
            "the text that look like a region's are then taken for one."
        ),
        fix=(
            "Have skip_special_tokens=false sent: name the engine with "
            'engine="vllm" or --engine vllm.'
        ),
    ),
    Rule(
        name="server_engine",
        title="server engine",
        expected="the server says which engine it is",
        why=(
            "Beyond OpenAI's entries each engine has its own, which are sent only to the engine "
            "that is known to take them."
        ),
        fix='Name it with engine="vllm" or --engine vllm, or let the proxy show /version.',
    ),
    Rule(
        name="server_prompt",
        title="server prompt",
        expected="the same prompt as that of the native class, token for token",
        why=(
            "If the page is cut in another way, or if there is a token more or less, it is another "
            "prompt, and its times and text cannot be compared."
        ),
        fix=(
            "If the BOS is missing, tokenizer.json needs a post-processor that puts it in front of "
            "the prompt."
        ),
    ),
)

#: The checks of every record by their names, in the order of the table.
RULES = {rule.name: rule for rule in _EVERY_RECORD}
#: The checks that only some records have, by their names.
RARE_RULES = {rule.name: rule for rule in _SOME_RECORDS}
