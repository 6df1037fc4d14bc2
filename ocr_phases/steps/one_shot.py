"""A request through the model's own ``generate()``: both phases in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from ocr_phases.errors import OcrPhasesError
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.settings import Request
from ocr_phases.steps.sampling import windowed_processors

if TYPE_CHECKING:
    from ocr_phases.models.load import Checkpoint

OnTokens = Callable[[list[list[int]]], None]


class _Streamer(BaseStreamer):
    """Tells of new ids as generate() makes them; it starts with the prompt's."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._prompt_seen = False

    def put(self, value: Tensor) -> None:
        if self._prompt_seen:
            self._on_tokens([[token] for token in value.tolist()])
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is held back."""


def one_shot(
    checkpoint: Checkpoint, inputs: DeviceInputs, request: Request, on_tokens: OnTokens | None = None
) -> list[list[int]]:
    """One list of new ids a row; ``on_tokens`` gets those of each step, one list a row.

    The caller's random numbers stay what they would have been. `OcrPhasesError` where the class cannot
    generate.
    """
    model, family = checkpoint.model, checkpoint.family
    ends: dict[str, Any] = {"eos_token_id": checkpoint.eos_id}
    if request.ignore_eos:
        ends = {"eos_token_id": None, "min_new_tokens": request.max_new_tokens}
    arguments = family.prefill_arguments(inputs)
    window = family.window(model)
    if window is not None and inputs.position_ids is not None and request.max_new_tokens > window:
        raise OcrPhasesError(
            f"generate() of {type(model).__name__} mistakes which slots are padding once its window "
            f"of {window} tokens is full: give rows of equal length, or measure without it."
        )
    if not hasattr(model, "generate"):
        raise OcrPhasesError(f"{type(model).__name__} has no generate() here: measure without generate=True.")
    with torch.no_grad(), family.silenced(), _seeded(request, inputs.input_ids.device):
        tokens = model.generate(
            **{**arguments, "attention_mask": inputs.attention_mask, "position_ids": None},
            max_new_tokens=request.max_new_tokens,
            pad_token_id=checkpoint.pad_id,
            streamer=None if on_tokens is None else _Streamer(on_tokens),
            logits_processor=windowed_processors(request.infer),
            **ends,
            **request.infer.as_generate(),
        )
    return tokens[:, inputs.input_ids.shape[1] :].tolist()


@contextlib.contextmanager
def _seeded(request: Request, device: torch.device) -> Iterator[None]:
    """torch's own generator of ``device``, which is what generate() samples with, at the request's seed."""
    if not request.infer.do_sample:
        yield
        return
    cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if cuda else []):
        (torch.cuda.manual_seed if cuda else torch.default_generator.manual_seed)(request.seed)
        yield
