"""A request through the model's own ``generate()``: both phases in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.inputs.packing import DeviceInputs
from ocr_phases.measure.inputs.request import Request
from ocr_phases.measure.steps.sampling import windowed_processors

if TYPE_CHECKING:
    from ocr_phases.measure.models.checkpoint import LoadedModel


def one_shot(session: LoadedModel, inputs: DeviceInputs, request: Request) -> list[list[int]]:
    """One list of new ids a row. `OcrPhasesError` where the class cannot generate them."""
    model, family = session.model, session.family
    ends: dict[str, Any] = {"eos_token_id": session.eos_id}
    if request.ignore_eos:
        ends = {"eos_token_id": None, "min_new_tokens": request.max_new_tokens}
    if request.infer.do_sample:
        torch.manual_seed(request.seed)
    arguments = family.prefill_arguments(inputs)
    window = family.window(model)
    if window is not None and inputs.position_ids is not None and request.max_new_tokens > window:
        raise OcrPhasesError(
            f"generate() of {type(model).__name__} mistakes which slots are padding once its window "
            f"of {window} tokens is full: give rows of equal length, or measure without it."
        )
    if not hasattr(model, "generate"):
        raise OcrPhasesError(f"{type(model).__name__} has no generate() here: measure without generate=True.")
    with torch.no_grad(), family.silenced():
        tokens = model.generate(
            **{**arguments, "attention_mask": inputs.attention_mask, "position_ids": None},
            max_new_tokens=request.max_new_tokens,
            pad_token_id=session.pad_id,
            logits_processor=windowed_processors(request.infer),
            **ends,
            **request.infer.as_generate(),
        )
    return tokens[:, inputs.input_ids.shape[1] :].tolist()
