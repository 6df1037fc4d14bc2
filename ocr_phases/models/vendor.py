"""The published remote-code class: how a page goes into it, how a step does, and what it is silent about.

The class takes ``images`` as one (crops, global view) pair a row and looks at them only while its input is
longer than one token. `VENDOR` is its row; `remote` loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.models.family import Family, StepState
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from ocr_phases.inputs.packing import DeviceInputs


def views(inputs: DeviceInputs) -> list[str]:
    """The view of each vision call: page by page, the crops where there are any, then the global view."""
    order = [["local", "global"] if crops else ["global"] for crops in inputs.num_local_patches]
    return [view for page in order for view in page]


def prefill_arguments(inputs: DeviceInputs) -> dict[str, Any]:
    """The keyword arguments of the class's forward over a whole prompt.

    Raises `OcrPhasesError` for several pages in one prompt: the class reads one page a row.
    """
    rows, pages = inputs.input_ids.shape[0], len(inputs.pixel_values)
    if pages != rows:
        raise OcrPhasesError(
            f"The vendor's class reads one page a prompt, got {count_text(pages, 'page')} in "
            f"{count_text(rows, 'prompt')}: "
            'use implementation="native", or one prompt a page.'
        )
    # No crops are all zeros there, of the global view's size.
    none = torch.zeros_like(inputs.pixel_values[:1])
    crops = [none] * pages
    if inputs.pixel_values_local is not None:
        parts = inputs.pixel_values_local.split(inputs.num_local_patches)
        crops = [part if len(part) else none for part in parts]
    return {
        "input_ids": inputs.input_ids,
        "attention_mask": inputs.attention_mask,
        "position_ids": inputs.position_ids,
        "images": list(zip(crops, inputs.pixel_values.split(1), strict=True)),
        "images_seq_mask": inputs.images_seq_mask,
        "images_spatial_crop": torch.tensor(inputs.patches_grid, dtype=torch.int64),
    }


def new_cache() -> Any:
    """An empty cache as ``generate()`` hands it over: without one the class makes a new tuple each step."""
    from transformers import DynamicCache

    return DynamicCache()


def step_arguments(state: StepState) -> dict[str, Any]:
    """What one decode step hands to `prepare_step`."""
    return {
        "input_ids": state.token[:, None],
        "past_key_values": state.cache,
        "attention_mask": state.attention_mask,
        "use_cache": True,
    }


def prepare_step(model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """A decode step's arguments as the class's own ``prepare_inputs_for_generation`` makes them."""
    return model.prepare_inputs_for_generation(**arguments)


VENDOR = Family(
    facts=FAMILIES[DEEPSEEK_OCR],
    implementation="vendor",
    class_name="DeepseekOCRForCausalLM",
    modules={
        "sam": "model.sam_model",
        "clip": "model.vision_model",
        "projector": "model.projector",
        "lm_head": "lm_head",
    },
    # The class's `model` is the language model itself, with the vision parts inside, and calls its text
    # layers through super(): so `language_model` runs from the first layer to the last norm. Embedding,
    # fusion and the causal mask come before the first layer: in prefill they are in `vision_fusion`.
    parts={"language_model": ("model.embed_tokens", "model.layers", "model.norm")},
    language_model_between=("model.layers.0", "model.norm"),
    image_arguments=("images", "images_seq_mask", "images_spatial_crop"),
    views=views,
    prefill_arguments=prefill_arguments,
    step_arguments=step_arguments,
    prepare_step=prepare_step,
    new_cache=new_cache,
    keeps_logits=False,
    prints=True,
)
