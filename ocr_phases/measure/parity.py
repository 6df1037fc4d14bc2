"""Whether decode's tokens are those of the model's own ``generate()``."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ocr_phases.inputs.packing import DeviceInputs, PageInputs
from ocr_phases.measure.verdicts import check_that, failing_check, note_check, passing_check
from ocr_phases.models.load import Checkpoint
from ocr_phases.record.parts import CheckPart
from ocr_phases.settings import Request
from ocr_phases.steps.phases import generate, until_end
from ocr_phases.steps.sampling import Sampler, one_shot, sampler_for
from ocr_phases.text import count_text, first_difference

#: In 16 bits a first difference is a tie where the two logits lie this many bfloat16 steps apart at
#: most.
TIE_STEPS = 2
Rows = list[list[int]]  # of ids


@dataclass(frozen=True)
class RowPair:
    """A row's tokens up to their end: decode's and those of ``generate()``."""

    ours: list[int]
    theirs: list[int]


@dataclass(frozen=True)
class Difference:
    """The first place where a row's tokens differ; None for a token that is not there."""

    row: int
    place: int
    ours: int | None
    theirs: int | None


@dataclass(frozen=True)
class Margins:
    """How close two tokens of different choice score, in an eager step.

    Attributes
    ----------
    is_tie : bool
        Whether both score within `TIE_STEPS` bfloat16 steps of the best.
    words : str
        The margins, for the check.
    """

    is_tie: bool
    words: str


def parity_check(
    checkpoint: Checkpoint, request: Request, packed: PageInputs, ours: Rows
) -> CheckPart:
    """The ``parity`` check of the record: decode's tokens against those of ``generate()``.

    In float32 they must be equal. In 16 bits, and under autocast, the first difference of a row
    passes as a tie, which costs one more run up to there to look at the logits. Sampled tokens are
    only reported.

    Parameters
    ----------
    checkpoint : Checkpoint
        The model.
    request : Request
        What ran.
    packed : PageInputs
        The inputs of the run.
    ours : list of list of int
        The tokens that decode made, a list per row.

    Raises
    ------
    OcrPhasesError
        For a class without ``generate()``.
    """
    inputs = packed.to(checkpoint.device, checkpoint.dtype)
    theirs = one_shot(checkpoint, inputs, request)
    end_tokens = () if request.ignore_eos else checkpoint.generation.end_tokens
    pairs = []
    for our_row, their_row in zip(ours, theirs, strict=True):
        pairs.append(RowPair(until_end(our_row, end_tokens), until_end(their_row, end_tokens)))
    differences = _first_differences(pairs)

    if request.infer.do_sample:
        return note_check("parity", _sampled(pairs, differences))
    if not differences:
        return _equal(checkpoint, pairs, end_tokens)

    # Of several rows that differ, the sentence tells of the one that does so first.
    first = min(differences, key=lambda difference: difference.place)
    sentence = _difference_sentence(first, pairs, _choice_settings(checkpoint, request))
    has_ties = request.autocast or checkpoint.dtype != torch.float32
    ends_early = any(None in (each.ours, each.theirs) for each in differences)
    if not has_ties or ends_early:
        return failing_check("parity", sentence)

    scored = scores(checkpoint, request, inputs, ours, {each.place for each in differences})
    margins = {each.row: _margins(scored[each.place][each.row], each) for each in differences}
    all_ties = all(each.is_tie for each in margins.values())
    return check_that(all_ties, "parity", f"{sentence}; {margins[first.row].words}")


def _first_differences(pairs: Sequence[RowPair]) -> list[Difference]:
    """Where each row that differs does so first."""
    differences = []
    for row, pair in enumerate(pairs):
        place = first_difference(pair.ours, pair.theirs)
        if place is not None:
            differences.append(
                Difference(row, place, _token(pair.ours, place), _token(pair.theirs, place))
            )
    return differences


def _token(ids: Sequence[int], place: int) -> int | None:
    return ids[place] if place < len(ids) else None


def _count_tokens(pairs: Sequence[RowPair]) -> int:
    return sum(len(pair.ours) for pair in pairs)


def _sampled(pairs: Sequence[RowPair], differences: Sequence[Difference]) -> str:
    """What is said of sampled tokens."""
    equal = "all"
    if differences:
        equal = f"the first {min(each.place for each in differences)}"
    return f"sampled with one seed: {equal} of {_count_tokens(pairs)} tokens equal"


def _equal(
    checkpoint: Checkpoint, pairs: Sequence[RowPair], end_tokens: Collection[int]
) -> CheckPart:
    """The check of equal tokens: a note where ``generate()`` itself would have gone on.

    It goes on behind an end token that ``config.json`` alone names.
    """
    equal = f"{count_text(_count_tokens(pairs), 'token')} equal"
    own_ends = checkpoint.generation.own_end_tokens or end_tokens
    unknown_ends = set()
    for pair in pairs:
        last = pair.ours[-1]
        if last in end_tokens and last not in own_ends:
            unknown_ends.add(last)
    if not unknown_ends:
        return passing_check("parity", equal)
    named = ", ".join(str(token) for token in sorted(unknown_ends))
    return note_check(
        "parity",
        f"{equal}; generate() goes on behind end token {named}, "
        "which generation_config.json does not name",
    )


def _choice_settings(checkpoint: Checkpoint, request: Request) -> dict[str, Any]:
    """What changes the choice of a token: the request's settings and the checkpoint's rules."""
    return {**request.infer.changes(), **checkpoint.generation.rules}


def _difference_sentence(
    first: Difference, pairs: Sequence[RowPair], settings: Mapping[str, Any]
) -> str:
    """Where the tokens differ first, and what both were asked for."""
    where = f"token {first.place + 1}"
    if len(pairs) > 1:
        where += f" of row {first.row + 1}"
    sentence = (
        f"{where} of {len(pairs[first.row].ours)} is the first that differs "
        f"({first.ours}, generate(): {first.theirs})"
    )
    if settings:
        values = ", ".join(f"{name} {value}" for name, value in settings.items())
        sentence += f"; both were asked for {values}"
    return sentence


def _margins(row_scores: Tensor, difference: Difference) -> Margins:
    """How close the two tokens of a difference score, in the scores [vocab] of their place.

    The scores are an eager step's: a captured or compiled one may have chosen another token than
    their best.
    """
    (best, second), _ = row_scores.topk(2)
    bfloat16 = bfloat16_step(float(best))
    to_theirs = float(best - row_scores[difference.theirs])
    to_ours = float(best - row_scores[difference.ours])
    words = (
        f"top-2 margin {float(best - second):.4g}, to generate()'s {to_theirs:.4g}, "
        f"at {float(best):.4g} where a bfloat16 step is {bfloat16:.4g}"
    )
    return Margins(max(to_theirs, to_ours) <= TIE_STEPS * bfloat16, words)


def bfloat16_step(value: float) -> float:
    """The distance between neighbouring bfloat16 numbers at the magnitude of ``value``."""
    return math.ldexp(torch.finfo(torch.bfloat16).eps, math.frexp(value)[1] - 1)


def scores(
    checkpoint: Checkpoint, request: Request, inputs: DeviceInputs, ours: Rows, places: set[int]
) -> dict[int, Tensor]:
    """What the token at each place is chosen from, float32 [B, vocab].

    The tokens before it are those of ``ours``.
    """
    found: dict[int, Tensor] = {}

    class ForcedTokens(Sampler):
        """Chooses the tokens of ``ours``, and keeps the scores at the places."""

        place = 0

        def __call__(self, logits: Tensor, sequence: Any) -> Tensor:
            if self.place in places:
                found[self.place] = self.processors(sequence, logits.float())
            tokens = [ids[self.place] for ids in ours]
            self.place += 1
            return torch.tensor(tokens, device=logits.device)

    sampler = sampler_for(checkpoint, request, inputs.input_ids.shape[1], ForcedTokens)
    generate(checkpoint.model, inputs, max(places) + 1, sampler=sampler)
    return found
