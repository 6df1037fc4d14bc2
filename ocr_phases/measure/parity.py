"""Whether decode's tokens are those of the model's own ``generate()``."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ocr_phases.inputs.packing import DeviceInputs, PageInputs
from ocr_phases.measure.verdicts import LiveCheck, check
from ocr_phases.settings import Request
from ocr_phases.steps.phases import generate, until_end
from ocr_phases.steps.sampling import Sampler, one_shot, sampler_for
from ocr_phases.text import count_text, first_difference

if TYPE_CHECKING:
    from ocr_phases.models.load import Checkpoint

#: In 16 bits a first difference is a tie where the two logits lie this many bfloat16 steps apart at
#: most.
TIE_STEPS = 2
Rows = list[list[int]]  # of ids


def parity_check(
    checkpoint: Checkpoint, request: Request, packed: PageInputs, ours: Rows
) -> LiveCheck:
    """The ``parity`` check of the record: tokens of decode against those of ``generate()``, row by
    row.

    In float32 they must be equal. In 16 bits, and under autocast, the first difference of a row
    passes as a tie, which costs one more run up to there to look at the logits. Sampled tokens are
    only reported. Raises `OcrPhasesError` for a class without ``generate()``.
    """
    inputs = packed.to(checkpoint.device, checkpoint.dtype)
    theirs = one_shot(checkpoint, inputs, request)
    said = checkpoint.generation
    ends: tuple[int, ...] = ()
    own_ends: tuple[int, ...] = ()
    if not request.ignore_eos:
        ends = said.end_tokens
        own_ends = said.own_end_tokens or ends
    pairs = [[until_end(ids, ends) for ids in both] for both in zip(ours, theirs, strict=True)]
    # generate() goes on behind an end token that config.json alone names.
    unknown = {mine[-1] for mine, _ in pairs if mine[-1] in ends and mine[-1] not in own_ends}
    total = sum(len(mine) for mine, _ in pairs)
    places = {
        row: place
        for row, pair in enumerate(pairs)
        if (place := first_difference(*pair)) is not None
    }
    if request.infer.do_sample:
        equal = f"the first {min(places.values())}" if places else "all"
        return check("parity", "note", f"sampled with one seed: {equal} of {total} tokens equal")
    if not places:
        equal = f"{count_text(total, 'token')} equal"
        if unknown:
            named = ", ".join(map(str, sorted(unknown)))
            reason = f"generate() goes on behind end token {named}, which generation_config.json does not name"
            return check("parity", "note", f"{equal}; {reason}")
        return check("parity", True, equal)
    tokens: dict[int, list[Any]] = {
        row: [ids[place] if place < len(ids) else None for ids in pairs[row]]
        for row, place in places.items()
    }
    first = min(places, key=places.__getitem__)
    where = f"token {places[first] + 1}" + (f" of row {first + 1}" if len(pairs) > 1 else "")
    mine, other = tokens[first]
    differs = (
        f"{where} of {len(pairs[first][0])} is the first that differs ({mine}, generate(): {other})"
    )
    if settings := {**request.infer.changes(), **said.rules}:
        differs += f"; both were asked for {', '.join(f'{name} {value}' for name, value in settings.items())}"
    low = request.autocast or checkpoint.dtype != torch.float32
    if not low or any(None in both for both in tokens.values()):
        return check("parity", False, differs)
    found = scores(checkpoint, request, inputs, ours, set(places.values()))
    ties = {row: _tie(found[place][row], *tokens[row]) for row, place in places.items()}
    return check("parity", all(tie for tie, _ in ties.values()), f"{differs}; {ties[first][1]}")


def _tie(scores: Tensor, mine: int, other: int) -> tuple[bool, str]:
    """Whether both tokens score within `TIE_STEPS` bfloat16 steps of the best, and the margins in
    words.

    The scores are an eager step's: a captured or compiled one may have chosen another token than
    their best.
    """
    (best, second), _ = scores.topk(2)
    step = bfloat16_step(float(best))
    margin = float(best - scores[other])
    return (
        max(margin, float(best - scores[mine])) <= TIE_STEPS * step,
        f"top-2 margin {float(best - second):.4g}, to generate()'s {margin:.4g}, "
        f"at {float(best):.4g} where a bfloat16 step is {step:.4g}",
    )


def bfloat16_step(value: float) -> float:
    """The distance between neighbouring bfloat16 numbers at the magnitude of ``value``."""
    return math.ldexp(torch.finfo(torch.bfloat16).eps, math.frexp(value)[1] - 1)


def scores(
    checkpoint: Checkpoint, request: Request, inputs: DeviceInputs, ours: Rows, places: set[int]
) -> dict[int, Tensor]:
    """What the token at each place is chosen from, float32 [B, vocab], after the very tokens in
    ``ours``.
    """
    found, count = {}, itertools.count()

    class Told(Sampler):
        """Chooses the tokens of ``ours``."""

        def __call__(self, logits: Tensor, sequence: Any) -> Tensor:
            place = next(count)
            if place in places:
                found[place] = self.processors(sequence, logits.float())
            return torch.tensor([ids[place] for ids in ours], device=logits.device)

    sampler = sampler_for(checkpoint, request, inputs.input_ids.shape[1], Told)
    generate(checkpoint.model, inputs, max(places) + 1, sampler=sampler)
    return found
