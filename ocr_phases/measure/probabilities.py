"""How sure the model was of each generated token: its log probability and its margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.inputs.processed import ModelInputs
from ocr_phases.models.text_model import final_softcap, vocabulary_size
from ocr_phases.models.wiring import interface_of
from ocr_phases.record.parts import ProbabilitiesPart
from ocr_phases.steps.phases import until_end

_MOST_LOGITS = 2**24  # at once: 64 MB in float32
_DECIMALS = 3
#: How far the logits of a class may lie from what is made of its head's output, as a share of their
#: size: what rounding makes of them.
_ROUNDING = {torch.float32: 1e-3}
_ROUNDING_16_BITS = 0.02


@torch.no_grad()
def token_probabilities(
    model: Any, inputs: ModelInputs, ids: Sequence[Sequence[int]]
) -> list[ProbabilitiesPart]:
    """The probabilities of the generated ``ids``, after the prompts in ``inputs``.

    One forward over prompts and tokens together, without a cache. No temperature and no rule
    against repetition changes the logits, so a token that either chose may have a negative margin.
    Logits are made for a few tokens at a time, of any vocabulary and number of tokens: at most 256
    MB beside a prefill as long as the sequence.

    Parameters
    ----------
    model : PreTrainedModel
        The loaded model.
    inputs : ModelInputs
        The prompts of B rows, on the model's device.
    ids : sequence of sequence of int
        The generated tokens, a list per row.

    Returns
    -------
    list of ProbabilitiesPart
        Of each row's tokens ``logprobs``, the natural logarithm of each one's probability under the
        softmax of the model's own logits, and ``margins``, its logit minus the highest one of any
        other token (negative where another was more probable). From an image token on nothing is
        known, because the classes would ask for its image: None.

    Raises
    ------
    OcrPhasesError
        For a class that changes its head's logits in a way that is not known here.
    """
    # None where the checkpoint names no image token.
    image_tokens = inputs.input_ids[inputs.images_seq_mask][:1].tolist()
    # The image token's own probability needs no forward over it.
    known = [until_end(list(row), image_tokens) for row in ids]
    longest = max(len(row) for row in known)
    if not longest:
        return [_row_part([], len(row)) for row in ids]
    filled_rows = [row + [0] * (longest - len(row)) for row in known]
    tokens = torch.tensor(filled_rows, device=inputs.input_ids.device)
    forward = _forward_once(model, inputs, tokens)
    found = _in_chunks(model, forward, tokens)
    parts = []
    for row, own, values in zip(ids, known, found.tolist(), strict=True):
        parts.append(_row_part(values[: len(own)], len(row)))
    return parts


def _row_part(values: list[list[float]], count: int) -> ProbabilitiesPart:
    """A row's part from the log probability and margin of its first tokens, out of ``count``."""
    unknown = [None] * (count - len(values))
    return ProbabilitiesPart(
        logprobs=[*(_rounded(logprob) for logprob, _ in values), *unknown],
        margins=[*(_rounded(margin) for _, margin in values), *unknown],
    )


def _rounded(value: float) -> float | None:
    """A record holds no NaN and no infinity, and needs no minus before a zero."""
    if not math.isfinite(value):
        return None
    return round(value, _DECIMALS) + 0.0


@dataclass(frozen=True)
class _Forward:
    """What one forward over prompts and N tokens gave.

    ``hidden`` [B, N, width] is what the head makes the logits of the tokens from, ``last_logits``
    [B, vocab] those of the last token as the class gives them.
    """

    hidden: Tensor
    last_logits: Tensor


@dataclass(frozen=True)
class _ChangeOfLogits:
    """What a class does to its head's output: it multiplies all, and bends it below a cap."""

    factor: float = 1.0
    softcap: float | None = None

    def of(self, logits: Tensor) -> Tensor:
        """The class's logits, in float32, for those of its head."""
        changed = logits.float()
        if self.factor != 1:
            changed = changed * self.factor
        if self.softcap is None:
            return changed
        return torch.tanh(changed / self.softcap) * self.softcap


def _change_of_logits(model: Any, head_logits: Tensor, logits: Tensor) -> _ChangeOfLogits:
    """What turns ``head_logits`` [B, vocab] into the class's own ``logits`` [B, vocab]."""
    of_head = head_logits.float()
    of_class = logits.float()
    if not bool(of_class.isfinite().all()):
        return _ChangeOfLogits()
    factor = float((of_head * of_class).sum() / of_head.square().sum())
    allowed = _ROUNDING.get(logits.dtype, _ROUNDING_16_BITS) * float(of_class.norm())
    changes = [
        _ChangeOfLogits(),
        _ChangeOfLogits(softcap=final_softcap(model)),
        _ChangeOfLogits(factor=factor),
    ]
    for change in changes:
        if float((change.of(of_head) - of_class).norm()) <= allowed:
            return change
    raise OcrPhasesError(
        f"{type(model).__name__} changes its head's logits in a way that is not known here, so "
        "that the probabilities of its tokens are not either."
    )


def _in_chunks(model: Any, forward: _Forward, tokens: Tensor) -> Tensor:
    """Log probability and margin of ``tokens`` [B, N]: [B, N, 2].

    The logits of all tokens together would take much memory.
    """
    hidden = forward.hidden
    lm_head = interface_of(model).modules(model)["lm_head"]
    change = _change_of_logits(model, lm_head(hidden[:, -1]), forward.last_logits)
    size = max(1, _MOST_LOGITS // (vocabulary_size(model) * len(tokens)))
    chunks = []
    for states, wanted in zip(hidden.split(size, dim=1), tokens.split(size, dim=1), strict=True):
        chunks.append(_logprob_and_margin(change.of(lm_head(states)), wanted))
    return torch.cat(chunks, dim=1)


def _forward_once(model: nn.Module, inputs: ModelInputs, tokens: Tensor) -> _Forward:
    """One forward over the prompts and ``tokens`` [B, N]."""
    interface = interface_of(model)
    count = tokens.shape[1]
    arguments = interface.prefill_arguments(inputs.followed_by(tokens[:, :-1]), model)
    window = interface.window(model)
    if window is not None and count - 1 > window:
        # Without a cache the class takes all of it for the prompt, which has no window.
        mask = windowed_mask(inputs.attention_mask, count - 1, window)
        arguments["attention_mask"] = interface.ready_mask(mask)
    hidden: list[Tensor] = []

    def keep_hidden(_: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        hidden.append(args[0])
        return (args[0][:, -1:],)  # the head's logits of all positions would take much memory

    with interface.modules(model)["lm_head"].register_forward_pre_hook(keep_hidden):
        out = interface.forward(model, arguments, use_cache=False, logits_to_keep=0)
    return _Forward(hidden[0][:, -count:], out.logits[:, -1])


def windowed_mask(mask: Tensor, new: int, window: int) -> Tensor:
    """Bool [B, 1, T + new, T + new], True where a position sees another.

    ``mask`` int64 [B, T] is that of the prompts. The ``new`` tokens see the prompt and the last
    ``window`` of themselves. Padding sees itself: a row of nothing would make NaN.
    """
    prompt = mask.shape[1]
    places = torch.arange(prompt + new, device=mask.device)
    query = places[:, None]
    key = places
    seen = (key <= query) & ((key < prompt) | (query - key < window))
    real = nn.functional.pad(mask.bool(), (0, new), value=True)
    return ((seen & real[:, None]) | (query == key))[:, None]


def _logprob_and_margin(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log probability and margin of ``tokens`` [B, N] in ``logits`` [B, N, vocab]: [B, N, 2]."""
    places = tokens[..., None]
    chosen = logits.gather(-1, places)
    logprob = chosen - logits.logsumexp(-1, keepdim=True)
    other = logits.scatter(-1, places, -math.inf).amax(-1, keepdim=True)
    return torch.cat([logprob.clamp(max=0), chosen - other], dim=-1)
