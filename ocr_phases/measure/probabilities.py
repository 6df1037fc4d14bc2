"""How sure the model was of each generated token: its log probability and its margin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.models.wiring import interface_of
from ocr_phases.steps.phases import until_end

_MOST_LOGITS = 2**24  # at once: 64 MB in float32
_DECIMALS = 3
_PARTS = ("logprobs", "margins")


#: Of a row's tokens: ``logprobs``, the natural logarithm of each one's probability under the
#: softmax of the model's own logits, and ``margins``, its logit minus the highest one of any other
#: token (negative where another was more probable); None for what is not known.
Sureness = dict[str, list[float | None]]


@torch.no_grad()
def token_probabilities(
    model: Any, inputs: DeviceInputs, ids: Sequence[Sequence[int]]
) -> list[Sureness]:
    """The sureness of the generated ``ids``, one list a row, after the prompts in ``inputs``.

    One forward over prompts and tokens together, without a cache. No temperature and no rule
    against repetition changes the logits, so a token that either chose may have a negative margin.
    Logits are made for a few tokens at a time, of any vocabulary and number of tokens: at most 256
    MB beside a prefill as long as the sequence. From an image token among the ``ids`` on nothing is
    known: the classes would ask for its image.
    """
    image_token = int(inputs.input_ids[inputs.images_seq_mask][0])
    # The image token's own probability needs no forward over it.
    known = [until_end(list(row), (image_token,)) for row in ids]
    longest = max(map(len, known))
    if not longest:
        return [dict.fromkeys(_PARTS, [None] * len(row)) for row in ids]
    wanted = torch.tensor(
        [row + [0] * (longest - len(row)) for row in known], device=inputs.input_ids.device
    )
    hidden = _hidden_states(model, inputs, wanted)
    head = interface_of(model).modules(model)["lm_head"]
    size = max(1, _MOST_LOGITS // (model.config.get_text_config().vocab_size * len(known)))
    chunks = zip(hidden.split(size, dim=1), wanted.split(size, dim=1), strict=True)
    found = torch.cat([_sureness(head(part).float(), tokens) for part, tokens in chunks], dim=1)
    return [
        {
            part: [*map(_rounded, values[: len(mine)]), *[None] * (len(row) - len(mine))]
            for part, values in zip(_PARTS, both, strict=True)
        }
        for row, mine, both in zip(ids, known, found.transpose(1, 2).tolist(), strict=True)
    ]


def _hidden_states(model: nn.Module, inputs: DeviceInputs, tokens: Tensor) -> Tensor:
    """What the head makes the logits of ``tokens`` [B, N] from: [B, N, hidden]."""
    interface = interface_of(model)
    count = tokens.shape[1]
    arguments = interface.prefill_arguments(inputs.followed_by(tokens[:, :-1]), model)
    window = interface.window(model)
    if window is not None and count - 1 > window:
        # Without a cache the class takes all of it for the prompt, which has no window.
        mask = windowed_mask(inputs.attention_mask, count - 1, window)
        arguments["attention_mask"] = interface.ready_mask(mask)
    hidden: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        hidden.append(given[0])
        return (given[0][:, -1:],)  # the head's logits of all positions would take much memory

    with interface.modules(model)["lm_head"].register_forward_pre_hook(keep):
        interface.forward(model, arguments, use_cache=False, logits_to_keep=0)
    return hidden[0][:, -count:]


def windowed_mask(mask: Tensor, new: int, window: int) -> Tensor:
    """Bool [B, 1, T + new, T + new], True where a position sees another.

    ``mask`` int64 [B, T] is that of the prompts. The ``new`` tokens see the prompt and the last
    ``window`` of themselves. Padding sees itself: a row of nothing would make NaN.
    """
    prompt = mask.shape[1]
    places = torch.arange(prompt + new, device=mask.device)
    query, key = places[:, None], places
    seen = (key <= query) & ((key < prompt) | (query - key < window))
    real = nn.functional.pad(mask.bool(), (0, new), value=True)
    return ((seen & real[:, None]) | (query == key))[:, None]


def _sureness(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log probability and margin of ``tokens`` [B, N] in ``logits`` [B, N, vocab]: [B, N, 2]."""
    places = tokens[..., None]
    chosen = logits.gather(-1, places)
    logprob = chosen - logits.logsumexp(-1, keepdim=True)
    other = logits.scatter(-1, places, -math.inf).amax(-1, keepdim=True)
    return torch.cat([logprob.clamp(max=0), chosen - other], dim=-1)


def _rounded(value: float) -> float | None:
    """A record holds no NaN and no infinity, and needs no minus before a zero."""
    return round(value, _DECIMALS) + 0.0 if math.isfinite(value) else None
