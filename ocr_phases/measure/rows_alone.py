"""Whether each row of a batch gives what its page gives alone.

What the families' classes do with padding is known from their vendors' code. Of any other class
nobody knows it: its processor may pad on the wrong side, its language model may attend to the
padding, and its encoder to the padding of another page. So the first tokens of every batch whose
rows differ are compared with those of each row alone, before anything is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ocr_phases.errors import OcrPhasesError
from ocr_phases.inputs.processed import PackedPages
from ocr_phases.measure.record_parts import LoadedPage
from ocr_phases.measure.verdicts import passing_check
from ocr_phases.models.load import Checkpoint
from ocr_phases.record.parts import CheckPart
from ocr_phases.steps.phases import generate
from ocr_phases.steps.sampling import Sampler
from ocr_phases.text import count_text

#: How many tokens are compared: the prefill's, and those of two steps, whose positions and masks
#: the class grows by itself.
COMPARED_TOKENS = 3
#: How far the logits of a row may lie from those of its page alone, as a share of their spread:
#: what rounding makes of another order of the same sums.
_ROUNDING = {torch.float32: 1e-3}
_ROUNDING_16_BITS = 0.1


def check_rows_alone(
    checkpoint: Checkpoint,
    packed: PackedPages,
    pages: Sequence[LoadedPage],
    *,
    autocast: bool = False,
) -> CheckPart | None:
    """The check ``rows_alone``; None where there is nothing to compare.

    That is a batch of one row or of equal rows, and any batch of a family's class.

    Parameters
    ----------
    checkpoint : Checkpoint
        The model.
    packed : PackedPages
        The batch.
    pages : sequence of LoadedPage
        Its pages, in row order.
    autocast : bool, default False
        Whether the model computes in 16 bits.

    Raises
    ------
    OcrPhasesError
        For a batch in which a row gives something else than its page alone.
    """
    if checkpoint.packer is None or packed.batch_size == 1:
        return None
    images = [image for image, _, _ in pages]
    rows = []
    first = 0
    for views, prompt in zip(packed.views_per_row, packed.prompts, strict=True):
        rows.append((images[first : first + views], prompt))
        first += views
    if all(row == rows[0] for row in rows[1:]):
        return None

    alone = []
    for row_images, prompt in rows:
        row = checkpoint.packer.pack(row_images, [prompt])
        alone.append(_first_logits(checkpoint, row)[:, 0])
    together = _first_logits(checkpoint, packed, [logits.argmax(dim=-1) for logits in alone])

    has_16_bits = autocast or checkpoint.dtype not in _ROUNDING
    allowed = _ROUNDING_16_BITS if has_16_bits else _ROUNDING[checkpoint.dtype]
    largest = 0.0
    for number, expected in enumerate(alone):
        for token in range(COMPARED_TOKENS):
            difference = _difference(together[token, number], expected[token])
            if not difference <= allowed:  # which NaN is not, either
                raise OcrPhasesError(_refusal(checkpoint, packed, number, token, difference))
            largest = max(largest, difference)
    return passing_check(
        "rows_alone",
        f"the logits of the first {COMPARED_TOKENS} tokens of {count_text(len(rows), 'row')} "
        f"differ by at most {largest:.1g} of their spread ({allowed:g} is allowed)",
    )


class _Collected(Sampler):
    """Keeps the logits of every token, and chooses the tokens that it is given.

    ``tokens`` has one int64 tensor [N] for each row; None chooses the most probable ones.
    """

    def __init__(self, tokens: Sequence[Tensor] | None) -> None:
        super().__init__()
        self.logits: list[Tensor] = []
        self._tokens = tokens

    def __call__(self, logits: Tensor, sequence: Any) -> Tensor:
        self.logits.append(logits.float())
        if self._tokens is None:
            return logits.argmax(dim=-1)
        place = len(self.logits) - 1
        return torch.stack([tokens[place] for tokens in self._tokens])


def _first_logits(
    checkpoint: Checkpoint, packed: PackedPages, tokens: Sequence[Tensor] | None = None
) -> Tensor:
    """The logits of the first tokens, float32 [`COMPARED_TOKENS`, B, vocab]."""
    inputs = packed.to(checkpoint.device, checkpoint.dtype)
    sampler = _Collected(tokens)
    generate(checkpoint.model, inputs, COMPARED_TOKENS, sampler=sampler)
    return torch.stack(sampler.logits)


def _difference(logits: Tensor, expected: Tensor) -> float:
    """How far logits [vocab] lie from the expected ones, as a share of the latter's spread."""
    spread = torch.linalg.vector_norm(expected - expected.mean())
    return float(torch.linalg.vector_norm(logits - expected) / spread)


def _refusal(
    checkpoint: Checkpoint, packed: PackedPages, row: int, token: int, difference: float
) -> str:
    """Why a batch is not measured, and what can be."""
    title = type(checkpoint.model).__name__
    remedy = "measure these pages one at a time"
    if packed.padded:
        remedy += ", or together only pages whose prompts have the same number of tokens"
    return (
        f"In this batch, row {row + 1} does not give what its page gives alone: the logits of "
        f"token {token + 1} differ by {difference:.2g} of their spread. {title} or its processor "
        f"does not keep the rows of a batch apart: {remedy}."
    )
