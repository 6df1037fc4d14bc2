"""Whether decode's tokens are those of the model's own ``generate()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.settings import Request
from ocr_phases.steps import phases
from ocr_phases.steps.execution import decode_execution
from ocr_phases.steps.sampling import Sampler
from ocr_phases.text import count_text, first_difference

if TYPE_CHECKING:
    from ocr_phases.models.load import Checkpoint

#: In 16 bits a first difference is a tie where the two logits lie this many bfloat16 steps apart at most.
TIE_STEPS = 2


def parity_check(
    checkpoint: Checkpoint,
    request: Request,
    inputs: DeviceInputs,
    ours: list[list[int]],
    theirs: list[list[int]],
) -> dict[str, Any]:
    """The ``parity`` check of the record: tokens of decode against those of ``generate()``, row by row.

    In float32 they must be equal. In 16 bits, and under autocast, the first difference of a row passes as a
    tie, which costs one more run up to there to look at the logits. Sampled tokens are only reported.
    """
    eos = () if request.ignore_eos else (checkpoint.eos_id,)
    pairs = [
        (phases.until_end(mine, eos), phases.until_end(other, eos))
        for mine, other in zip(ours, theirs, strict=True)
    ]
    total = sum(len(mine) for mine, _ in pairs)
    places = {row: place for row, pair in enumerate(pairs) if (place := first_difference(*pair)) is not None}
    if request.infer.do_sample:
        first = min(places.values(), default=None)
        equal = "all" if first is None else f"the first {first}"
        return parity_result("note", f"sampled with one seed: {equal} of {total} tokens equal")
    if not places:
        return parity_result("pass", f"{count_text(total, 'token')} equal")
    row, place = min(places.items(), key=lambda item: item[1])
    where = f"token {place}" + (f" of row {row}" if len(pairs) > 1 else "")
    tokens = [ids[place] if place < len(ids) else None for ids in pairs[row]]
    length = len(pairs[row][0])
    differs = f"{where} of {length} is the first that differs ({tokens[0]}, generate(): {tokens[1]})"
    low = request.autocast or checkpoint.dtype != torch.float32
    if not low or None in tokens:
        return parity_result("fail", differs)
    scores = _scores(checkpoint, request, inputs, ours, set(places.values()))
    ties = {
        number: _tie(scores[at][number], pairs[number][0][at], pairs[number][1][at])
        for number, at in places.items()
    }
    tied = all(tie for tie, _ in ties.values())
    return parity_result("pass" if tied else "fail", f"{differs}; {ties[row][1]}")


def parity_result(verdict: str, measured: str) -> dict[str, Any]:
    """The check as the record keeps it."""
    return {"name": "parity", "verdict": verdict, "measured": measured}


def _tie(scores: Tensor, mine: int, other: int) -> tuple[bool, str]:
    """Whether both tokens score within `TIE_STEPS` bfloat16 steps of the best, and the margins in words.

    The scores are an eager step's: a captured or compiled one may have chosen another token than their best.
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
    _, exponent = torch.frexp(torch.tensor(value, dtype=torch.float64))
    return float(2.0 ** (int(exponent) - 1) * torch.finfo(torch.bfloat16).eps)


@torch.no_grad()
def _scores(
    checkpoint: Checkpoint, request: Request, inputs: DeviceInputs, ours: list[list[int]], places: set[int]
) -> dict[int, Tensor]:
    """What the token at each place is chosen from, float32 [B, vocab], after the very tokens in ``ours``."""
    sampler = Sampler(request.infer, request.seed, checkpoint.device)
    state = phases.prefill(checkpoint.model, inputs, sampler=sampler)
    found = {}
    with decode_execution(checkpoint.model):
        for place in range(max(places) + 1):
            if place in places:
                scores, seen = state.logits.float(), state.sequence
                found[place] = scores if seen is None else sampler.processors(seen[:, :-1], scores)
            if place == max(places):
                break
            state.token = torch.tensor([ids[place] for ids in ours], device=state.token.device)
            if state.sequence is not None:
                state.sequence[:, -1] = state.token
            phases.decode_step(checkpoint.model, state)
    return found
