"""Whether guessing tokens ahead would pay: n-gram lookup played over the tokens of a record.

Speculative decoding lets the model check several guessed tokens in one step and keep those that it
would have written itself, so the text stays the same (Leviathan, Kalman and Matias 2023,
arXiv:2211.17192). Prompt lookup (Saxena 2023, "Prompt Lookup Decoding") guesses without a second
model: what followed the last few tokens when they stood in the text before. A document repeats
itself, in tables for example, so such guesses may be right often.

No GPU is needed: a record has the tokens, so it is known which guesses would have been kept. The
page itself cannot be looked up, as its tokens are no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ocr_phases.analyse.cost import decode_cost, run_shape, stage_cost
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import ceilings_of
from ocr_phases.analyse.stages import attended, grounding_of, tokens_of
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import Record

SPECULATION_COLUMNS = (
    "region",
    "label",
    "tokens",
    "steps",
    "drafted_steps",
    "drafted",
    "accepted",
    "acceptance",
    "tokens_per_step",
    "break_even",
    "verify_cost",
    "speedup",
)
#: The columns that are no counts.
_RATIOS = ("acceptance", "tokens_per_step", "break_even", "verify_cost", "speedup")
#: The label of the last row, which is all of them together.
TOTAL = "all"


@dataclass(frozen=True)
class GuessedStep:
    """One decode step with its guess.

    Attributes
    ----------
    first : int
        The place of its first token in the row.
    drafted : int
        How many tokens were guessed.
    accepted : int
        How many of these were right.
    tokens : int
        How many tokens the step made: the right guesses, and one that the model adds.
    """

    first: int
    drafted: int
    accepted: int
    tokens: int


def speculate(ids: Sequence[int], most: int, longest: int, *, first: int = 1) -> list[GuessedStep]:
    """The steps that would have made ``ids[first:]`` with guesses.

    A step keeps the guessed tokens up to the first wrong one, and adds the token that the model
    itself gives there. ``first`` is the number of tokens that no step makes, because the prefill
    does.
    """
    steps = []
    occurrences = _Occurrences(longest)
    occurrences.add(ids[:first])
    place = first
    while place < len(ids):
        guess = occurrences.guess(most)
        accepted = 0
        for guessed, actual in zip(guess, ids[place:], strict=False):
            if guessed != actual:
                break
            accepted += 1
        made = min(accepted + 1, len(ids) - place)
        steps.append(GuessedStep(place, len(guess), accepted, made))
        occurrences.add(ids[place : place + made])
        place += made
    return steps


class _Occurrences:
    """Prompt lookup over a growing text: where each piece of up to ``longest`` tokens stood
    first.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._ids: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0  # so many tokens are ends of known pieces

    def add(self, ids: Sequence[int]) -> None:
        """More of the text."""
        self._ids += ids

    def guess(self, most: int) -> list[int]:
        """What followed the longest ending of the text that stood in it before, where it stood
        first; at most ``most`` tokens, none where no ending did.
        """
        # The last token is no end of a piece before it: nothing has followed it yet.
        for end in range(self._indexed + 1, len(self._ids)):
            for size in range(1, min(self._longest, end) + 1):
                self._ends.setdefault(tuple(self._ids[end - size : end]), end)
        self._indexed = max(self._indexed, len(self._ids) - 1)
        for size in range(min(self._longest, len(self._ids) - 1), 0, -1):
            known = self._ends.get(tuple(self._ids[-size:]))
            if known is not None:
                return self._ids[known : known + most]
        return []


def speculation(
    run: Record,
    draft: int = 10,
    longest: int = 3,
    row: int = 0,
    *,
    verified_by: Record | None = None,
) -> pd.DataFrame:
    """Whether n-gram lookup would pay for the text of a record.

    Parameters
    ----------
    run : Record
        The record.
    draft : int, default 10
        The maximum number of tokens that are guessed for a step.
    longest : int, default 3
        The maximum number of last tokens that are looked up.
    row : int, default 0
        Which row of a batch, counted from 0.
    verified_by : Record, optional
        A record of ``draft + 1`` rows of the same model on the same device: its step costs as much
        as one that checks ``draft`` guesses. By default that is estimated.

    Returns
    -------
    DataFrame
        A row for each region of the text that has tokens, and a last one, ``all``; columns
        `SPECULATION_COLUMNS`. ``steps`` would have made the ``tokens``, in ``drafted_steps`` of
        them there was a guess, of ``drafted`` tokens in all, of which ``accepted`` were right;
        ``acceptance`` is the share of these. A step belongs to the region of its first token.
        ``tokens_per_step`` is over all steps. ``verify_cost`` is the time of a step that checks a
        guess over that of a plain step, and ``break_even`` is the cost at which guessing neither
        wins nor loses: the tokens that a step with a guess makes. ``speedup`` is how many times as
        fast decoding would be: tokens / (plain steps + drafted steps x ``verify_cost``). That is
        the walltime improvement of Leviathan et al. (theorem 3.8) with the measured number of
        tokens in place of its expectation, a drafter without cost, and a price of checking.

    Raises
    ------
    OcrPhasesError
        Where the record has no ids of tokens, ``draft`` or ``longest`` is below 1, or
        ``verified_by`` has another number of rows.

    Notes
    -----
    Without ``verified_by`` the cost is estimated as (step + floor of draft + 1 tokens - floor of
    one) / step: a step that checks guesses takes longer by what it reads and computes more, at the
    device's best rates. It reads the weights of more experts, and the KV cache once. Without a
    floor ``verify_cost`` and ``speedup`` are missing. With sampling the acceptance is that of the
    text which was drawn.

    Examples
    --------
    >>> run.speculation(draft=5).tail(1)  # doctest: +SKIP
    """
    if draft < 1 or longest < 1:
        raise OcrPhasesError("Speculation needs a draft and a longest n-gram of at least 1 token.")
    result = run.result_of(row)
    if result.pieces:
        raise OcrPhasesError("The server sent pieces of text and no tokens: nothing to look up.")
    tokens = tokens_of(run, row)
    first = int((tokens["source"] != "decode").sum())
    steps = speculate(result.ids, draft, longest, first=first)
    labels = {region.index: region.label for region in grounding_of(run, row).regions}
    cost = _verify_cost(run, draft, verified_by)

    regions = tokens["region"].to_numpy()
    rows = []
    for region in dict.fromkeys(regions[first:].tolist()):
        own_steps = [step for step in steps if regions[step.first] == region]
        if own_steps:
            label = labels.get(region, "preamble")
            rows.append({"region": region, "label": label, **_figures_of(own_steps, cost)})
    rows.append({"region": pd.NA, "label": TOTAL, **_figures_of(steps, cost)})
    table = pd.DataFrame(rows, columns=list(SPECULATION_COLUMNS))
    ratios = dict.fromkeys(_RATIOS, "float64")
    return table.astype({"region": "Int64", "label": object, **ratios})


def _figures_of(steps: Sequence[GuessedStep], cost: float) -> dict[str, float]:
    """The figures of some steps, by their columns; ``cost`` is that of a step with a guess."""
    with_guess = [step for step in steps if step.drafted > 0]
    plain_steps = len(steps) - len(with_guess)
    tokens = sum(step.tokens for step in steps)
    drafted = sum(step.drafted for step in steps)
    accepted = sum(step.accepted for step in steps)
    figures: dict[str, float] = {
        "tokens": tokens,
        "steps": len(steps),
        "drafted_steps": len(with_guess),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": np.nan,
        "tokens_per_step": np.nan,
        "break_even": np.nan,
        "verify_cost": cost,
        "speedup": np.nan,
    }
    if drafted:
        figures["acceptance"] = accepted / drafted
    if with_guess:
        figures["break_even"] = sum(step.tokens for step in with_guess) / len(with_guess)
    if steps:
        time = float(plain_steps)
        if with_guess:  # without a guess an unknown cost does not matter
            time += len(with_guess) * cost
        figures["tokens_per_step"] = tokens / len(steps)
        figures["speedup"] = tokens / time
    return figures


def _verify_cost(run: Record, draft: int, verified_by: Record | None) -> float:
    """The time of a step that checks a draft over that of a plain step; NaN where it is unknown."""
    step_ms = summary(run)["inter_token_ms"]
    if verified_by is not None:
        rows = len(verified_by.results)
        if rows != draft + 1:
            raise OcrPhasesError(
                f"A step that checks {draft} guesses is like one of {draft + 1} rows, and the "
                f"other record has {rows}: measure it with {draft + 1}."
            )
        batch_ms = summary(verified_by)["inter_token_ms"]
        return batch_ms / step_ms if batch_ms and step_ms else np.nan
    ceilings = ceilings_of(run)
    lengths = run.cache.lengths
    if ceilings is None or not step_ms or not lengths:
        return np.nan
    seen = int(attended(run, np.array(lengths[len(lengths) // 2])))
    floors = []
    for checked in (1, draft + 1):
        try:
            shape = run_shape(run)
            table = decode_cost(
                run.model.config,
                cache_len=seen,
                batch=shape["batch"] * checked,
                dtype_bytes=shape["dtype_bytes"],
                distinct_rows=shape["distinct_rows"] * checked,
            )
        except OcrPhasesError:
            return np.nan
        table["kv_bytes"] //= checked  # tokens of one row read one cache
        stages = stage_cost(table)
        floors.append(float(ceilings.floors(stages["flops"], stages["bytes"])[0].sum()))
    return (step_ms + floors[1] - floors[0]) / step_ms
