"""Whether a measurement fits into its device's memory, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ocr_phases.analyse.cost import memory_need, vision_calls
from ocr_phases.families import windowed_length
from ocr_phases.families.config import AnyConfig, read_model_config
from ocr_phases.images import load_page
from ocr_phases.inputs.views import Pages, image_token_count
from ocr_phases.measure.request import resolve_request
from ocr_phases.models.devices import device_of, resolve_device
from ocr_phases.models.folders import read_json
from ocr_phases.models.load import BUILT_IN_PRESET
from ocr_phases.models.quantised import refuse_quantised_config
from ocr_phases.models.weights import dummy_config, resolve_dtype
from ocr_phases.settings import RunSettings, Settings
from ocr_phases.steps.captured import capacity_for
from ocr_phases.text import bytes_text
from ocr_phases.versions import asset


def fit(page: Pages, settings: Settings) -> tuple[pd.DataFrame, str]:
    """What a measurement needs of its device's memory, by its model's ``config.json`` alone.

    Parameters
    ----------
    page : str, Path, bytes, PIL.Image.Image or a sequence of them
        The pages that would be measured.
    settings : Settings
        The settings of the model and of the run. A prompt's characters are counted as tokens.

    Returns
    -------
    tuple of DataFrame and str
        The table of `ocr_phases.analyse.cost.memory_need`, in bytes, and one sentence that says
        whether it fits.

    Raises
    ------
    OcrPhasesError
        Where page, prompt, preset, device or config cannot be had.
    """
    device = resolve_device(settings.device)
    config = _read_config(settings.model)
    family, _, window = read_model_config(config)
    own_preset = BUILT_IN_PRESET if settings.model == "tiny" else None
    run_settings = RunSettings(**settings.of_run())
    request = resolve_request(run_settings, family, page, preset=own_preset)

    preset = family.preset(request.preset)
    grids = [preset.grid(*load_page(each)[0].size) for each in request.pages]
    rows = len(request.prompts)
    image_tokens = sum(image_token_count(preset, grid) for grid in grids)
    prompt_tokens = image_tokens // rows + len(request.prompts[0])
    if settings.strategy == "eager":
        cache_length = windowed_length(
            prompt_tokens + request.max_new_tokens, prompt_tokens, window
        )
    else:
        cache_length = capacity_for(prompt_tokens, request.max_new_tokens, window)

    need = memory_need(
        config,
        vision_calls(preset.name, grids, family.name),
        vars(settings),
        cache_len=cache_length,
        batch=rows,
        dtype_bytes=resolve_dtype(settings.dtype, device).itemsize,
    )
    return need, _sentence(need, f"{settings.model} at {preset.name}", device)


def _read_config(model: str) -> dict[str, Any]:
    """The ``config.json`` of a model by its name; `OcrPhasesError` for one that cannot be used."""
    if model.split(":")[0] == "dummy":
        config = dummy_config(model)
        file = Path(model, "config.json")
    else:
        folder = asset("data", "tiny") if model == "tiny" else Path(model).expanduser()
        file = folder / "config.json"
        config = read_json(file, AnyConfig)
    refuse_quantised_config(config, file)
    return config


def _sentence(need: pd.DataFrame, subject: str, device: str) -> str:
    """Whether the phase that needs most fits into what the device has free."""
    most = need.iloc[int(need["peak_bytes"].argmax())]
    # What an earlier model reserved is given back before the next one is loaded.
    free = device_of(device).free_bytes() + device_of(device).reserved_bytes()
    fits = "fits" if most["peak_bytes"] <= free else "does not fit"
    return (
        f"{subject} needs {bytes_text(most['peak_bytes'])} in the {most['phase']} "
        f"(weights {bytes_text(most['weight_bytes'])}, KV cache {bytes_text(most['kv_bytes'])}, "
        f"activations {bytes_text(most['activation_bytes'])}), "
        f"{device} has {bytes_text(free)} free: it {fits}."
    )
