"""A comparison of records in words: how each judged figure changed, and what else differs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ocr_phases.analyse.compared_metrics import EQUIVALENT, INCONCLUSIVE, NOISY, page_hashes
from ocr_phases.analyse.figure_rows import FIGURE_ROWS, SHARE
from ocr_phases.analyse.sentences import noise_sentences
from ocr_phases.analyse.stages import grounding_of
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.analyse.sweep_table import own_text, sweep_table
from ocr_phases.analyse.sweep_words import strategies_sentence
from ocr_phases.analyse.text import missing_text_libraries
from ocr_phases.record import Record
from ocr_phases.record.parts import ResultPart
from ocr_phases.stages import stage_title
from ocr_phases.text import count_text, first_difference, percent_text

#: What `ComparedRecords.table` has for a time in each record, and its ratio of.
STATISTICS = (
    "Times are medians over the repeats. Ratios and their intervals are of the geometric means."
)
_FAR = 2.0  # a ratio from here on is told as such, not in percent


def comparison_findings(
    runs: Sequence[Record], labels: Sequence[str], table: pd.DataFrame, figures: Collection[str]
) -> list[str]:
    """The result of a comparison, a sentence each: the judged figures, caveats, and noise.

    ``table`` is `ComparedRecords.table` of the records, of which the first is the baseline;
    ``figures`` are the names of the figures that are told.
    """
    baseline = runs[0]
    sentences: list[str] = []
    judged = table[table["metric"].isin(figures) & table["ratio"].notna()]
    for label, run in zip(labels[1:], runs[1:], strict=True):
        rows = judged[judged["run"] == label].to_dict("records")
        if rows:
            changes = ", ".join(_change_text(row) for row in rows)
            sentences.append(f"{label} against {labels[0]}: {changes}.")
        else:
            sentences.append(f"{label} and {labels[0]} have no phase in common.")
        sentences += _caveats(baseline, run, label)
        sentences.append(_text_sentence(table[(table["run"] == label) & (table["unit"] == SHARE)]))
    alike = {
        label: run
        for label, run in zip(labels, runs, strict=True)
        if _subject(run) == _subject(baseline)
    }
    sentences.append(strategies_sentence(sweep_table(alike)))
    sentences.append(few_repeats(runs, labels))
    sentences += _noise_of(runs, labels)
    return [sentence for sentence in sentences if sentence]


def _noise_of(runs: Sequence[Record], labels: Sequence[str]) -> list[str]:
    """What spoils the figures of each record, and the remedies, each of them once."""
    sentences: dict[str, None] = {}
    for label, run in zip(labels, runs, strict=True):
        noise = noise_sentences(run)
        if noise:
            sentences[f"{label}: {noise[0]}"] = None
            sentences.update(dict.fromkeys(noise[1:]))
    return list(sentences)


def few_repeats(runs: Sequence[Record], labels: Sequence[str]) -> str:
    """A note on intervals over few repeats; empty if all records have `LEAST_REPEATS`."""
    counts = [len(run.repeats) for run in runs]
    few = [
        f"{label} has {count_text(count, 'repeat')}"
        for label, count in zip(labels, counts, strict=True)
        if count < LEAST_REPEATS
    ]
    if not few:
        return ""
    if 1 in counts:
        effect = "the spread is unknown and nothing is called faster, slower or equivalent"
    else:
        effect = "the intervals are wide and small changes stay inconclusive"
    remedy = f"Set Repeats (--repeats) to {LEAST_REPEATS} or more."
    return f"{' and '.join(few)}, so {effect}. {remedy}"


def _subject(run: Record) -> tuple[Any, ...]:
    """Page, prompt, model and device: where these are the same, strategies compare."""
    return (
        page_hashes(run),
        run.request.prompt,
        run.device.name,
        run.model.name,
        run.model.revision,
        run.model.implementation,
        run.model.dtype,
    )


def _change_text(row: Mapping[Any, Any]) -> str:
    """How one figure changed: ``a decode step is 2.1 % slower (1.02 times as long, ...)``."""
    name = _figure_name(row["metric"], row["phase"])
    ratio = row["ratio"]
    verdict = row["verdict"]
    if verdict == "n/a":
        return f"{name} is {_times(ratio)}, from a single repeat"
    if verdict == NOISY:
        return f"{name} is {_times(ratio)}, but the runs varied too much to be sure"
    span = _times(ratio, row["ratio_low"], row["ratio_high"])
    if verdict == INCONCLUSIVE:
        resolved = percent_text(row["detectable"])
        return f"{name} is inconclusive ({span}; changes below {resolved} cannot be resolved)"
    if verdict != EQUIVALENT and 1.0 / _FAR < ratio < _FAR:
        return f"{name} is {percent_text(abs(ratio - 1.0))} {verdict} ({span})"
    return f"{name} is {verdict} ({span})"


def _figure_name(metric: str, phase: str) -> str:
    """What a judged figure is called as the subject of a sentence: of a whole phase by its name."""
    if metric == f"{phase}_ms":
        return stage_title(phase)
    return FIGURE_ROWS[metric].words or stage_title(phase)


def _times(ratio: float, *ends: float) -> str:
    """``1.77 times as long, 1.76 to 1.83``; from a half down the other way round: ``33.3 times as
    fast``.
    """
    word = "long"
    if 0 < ratio <= 0.5 and all(end > 0 for end in ends):
        word = "fast"
        ratio = 1.0 / ratio
        ends = tuple(1.0 / end for end in reversed(ends))
    text = f"{_ratio_text(ratio)} times as {word}"
    if ends:
        text += f", {' to '.join(_ratio_text(end) for end in ends)}"
    return text


def _ratio_text(ratio: float) -> str:
    """A ratio with three digits."""
    if ratio < 9.995:
        return f"{ratio:,.2f}"
    if ratio < 99.95:
        return f"{ratio:,.1f}"
    return f"{ratio:,.0f}"


def _text_sentence(changes: pd.DataFrame) -> str:
    """The agreement and the edit distances in words; empty for equal texts."""
    now = dict(zip(changes["metric"], changes["other"], strict=True))
    if now.get("agreement", 1.0) == 1.0:
        return ""
    if math.isnan(now["agreement"]):
        reason = missing_text_libraries()
        return f"Its text differs from the baseline's; their agreement is n/a: {reason}."
    agrees = f"Its text agrees with the baseline's to {percent_text(now['agreement'])}"
    if "edit_distance" not in now:
        return f"{agrees}."
    then = dict(zip(changes["metric"], changes["baseline"], strict=True))
    distance = percent_text(now["edit_distance"])
    before = percent_text(then["edit_distance"])
    return f"{agrees}; its edit distance to the reference text is {distance}, not {before}."


def _caveats(baseline: Record, other: Record, label: str) -> Iterator[str]:
    """What else differs, a sentence each, with the value of both records."""
    yield from _other_page(baseline, other, label)
    facts = _facts(other)
    for name, then in _facts(baseline).items():
        if facts[name] != then:
            yield f"{name}: {facts[name]} (baseline: {then})."
    if baseline.model.name == other.model.name:
        yield from _other_revision(baseline.model.revision, other.model.revision)
    known = baseline.knows_tokens and other.knows_tokens
    if known and other.token_count != baseline.token_count:
        counts = f"{other.token_count:,} (baseline: {baseline.token_count:,})"
        yield f"Tokens: {counts}, so compare decode steps, not whole decodes."
    if _numbers_pieces(baseline) or _numbers_pieces(other):
        return  # how a text was cut into pieces says nothing about its tokens
    if same_tokens(baseline, other):
        return
    parts = other_parts(baseline, other)
    if parts:
        yield f"The text is equal; {parts} differ."
    elif baseline.token_count == other.token_count:
        yield f"The tokens differ; both texts have {baseline.token_count:,} tokens."
    place = first_other_token(baseline, other)
    if place:
        yield f"The first different token is {place}."


def _other_page(baseline: Record, other: Record, label: str) -> Iterator[str]:
    """A sentence where the records read different pages."""
    if page_hashes(baseline) == page_hashes(other):
        return
    now = _page_names(other)
    then = _page_names(baseline)
    if not other.has_page:
        yield f"{label} has no page, because its prompt has no image (baseline: {then})."
    elif not baseline.has_page:
        yield f"{label} read a page, {now}, and the baseline's prompt has no image."
    elif now == then:
        yield f"{label} read another page of the same name, {now}."
    else:
        yield f"{label} read another page: {now} (baseline: {then})."


def _page_names(run: Record) -> str:
    return ", ".join(dict.fromkeys(page.file for page in run.pages))


def _facts(run: Record) -> dict[str, str]:
    """What a record is of, by the names that a sentence has for it."""
    server = run.model.server or {}
    prompt_tokens = run.request.prefill_len
    return {
        "Prompt": "of unknown length" if prompt_tokens is None else f"{prompt_tokens:,} tokens",
        "Rows side by side": f"{len(run.results):,}",
        "Device": run.device.name,
        "Server": server.get("url", "none"),
        "Model": run.model.name,
        "Dtype": run.model.dtype,
    }


def same_tokens(then: Record, now: Record) -> bool:
    """Whether every row generated the same tokens."""
    return [row.ids for row in then.results] == [row.ids for row in now.results]


def _other_revision(then: str | None, now: str | None) -> Iterator[str]:
    """A sentence where both revisions of a model's weights are known and differ."""
    if then is not None and now is not None and then != now:
        yield f"Revision of the weights: {now} (baseline: {then})."


def other_parts(baseline: Record, other: Record) -> str:
    """What differs beside equal text: ``the boxes``, ``the labels and the boxes``; empty where
    texts differ.

    Text is equal where the words of all rows are the same without the model's marks, which is what
    agreement compares.
    """
    parts: dict[str, None] = {}
    for row in range(min(len(baseline.results), len(other.results))):
        ours = own_text(baseline, row)
        theirs = own_text(other, row)
        if ours is None or ours != theirs or len(baseline.results) != len(other.results):
            return ""
        parts |= dict.fromkeys(_other_parts_of(baseline, other, row))
    return " and ".join(parts)


def _other_parts_of(baseline: Record, other: Record, row: int) -> list[str]:
    """`other_parts` of one row; none where its tokens are the same."""
    if baseline.results[row].ids == other.results[row].ids:
        return []
    if baseline.results[row].text == other.results[row].text:
        return ["the tokens that it is made of"]
    ours = grounding_of(baseline, row).regions
    theirs = grounding_of(other, row).regions
    parts = []
    if [region.label for region in ours] != [region.label for region in theirs]:
        parts.append("the labels")
    if [region.boxes for region in ours] != [region.boxes for region in theirs]:
        parts.append("the boxes")
    return parts or ["marks or white space"]


def _numbers_pieces(run: Record) -> bool:
    """Whether a server sent no ids, so that what stands for them numbers its pieces of text."""
    return any(result.pieces for result in run.results)


def first_other_token(baseline: Record, other: Record) -> str:
    """Where the tokens of two records first differ: ``number 17: 'cat' here, 'dog' in the
    baseline``.

    Tokens and rows are counted from 1; a token without a text is named by its id. Empty where all
    rows that both have are equal.
    """
    pairs = zip(other.results, baseline.results, strict=False)
    for number, (now, then) in enumerate(pairs, start=1):
        place = first_difference(now.ids, then.ids)
        if place is None:
            continue
        where = f"number {place + 1}"
        if len(baseline.results) > 1:
            where += f" of row {number}"
        return (
            f"{where}: {_token_text(now, place)} here, {_token_text(then, place)} in the baseline"
        )
    return ""


def _token_text(result: ResultPart, place: int) -> str:
    if place >= len(result.ids):
        return "the end"
    # As a literal: a token may be a line break, or a control character.
    return repr(result.token_texts[place] or result.ids[place])
