"""Whether a measurement fits into a device's memory, before anything is loaded.

The device is one of this machine, or a GPU that is known by its datasheet alone: for that neither
torch nor a GPU is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from ocr_phases.analyse.cost import DTYPE_BYTES, VisionCall, memory_need, vision_calls
from ocr_phases.analyse.other_cards import (
    CardChoice,
    Work,
    card_sentence,
    card_table,
    fitting_sentence,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, ViewSizes, windowed_length
from ocr_phases.families.config import AnyConfig, read_model_config
from ocr_phases.images import load_page
from ocr_phases.inputs.rows import Pages
from ocr_phases.inputs.views import image_token_count
from ocr_phases.measure.request import resolve_request
from ocr_phases.models.dummies import BUILT_IN_PRESET, dummy_config
from ocr_phases.models.folders import read_json
from ocr_phases.models.quantised import refuse_quantised_config
from ocr_phases.settings import Request, RunSettings, Settings
from ocr_phases.steps.capacity import capacity_for
from ocr_phases.text import bytes_text
from ocr_phases.versions import asset

#: The page that is assumed where none is named: A4 at 200 dots per inch, width and height.
A4_PIXELS = (1654, 2339)


@dataclass(frozen=True)
class MemoryFit:
    """What a measurement needs of a device's memory.

    Attributes
    ----------
    need
        The table of `ocr_phases.analyse.cost.memory_need`, in bytes.
    sentence
        Whether it fits, in words.
    fits
        The same; None where the memory of the device is unknown. Of several cards, whether there
        is one that it fits into.
    cards
        The table of `ocr_phases.analyse.other_cards.card_table`; None without cards.
    """

    need: pd.DataFrame
    sentence: str
    fits: bool | None
    cards: pd.DataFrame | None = None


def fit(page: Pages | None, settings: Settings, *, batch: int = 1) -> MemoryFit:
    """What a measurement needs of its device's memory, by its model's ``config.json`` alone.

    Parameters
    ----------
    page : str, Path, bytes, PIL.Image.Image or a sequence of them, optional
        The pages that would be measured; by default a page of A4 at 200 dots per inch.
    settings : Settings
        The settings of the model and of the run. A prompt's characters are counted as tokens.
        ``device="cuda"`` may be named where there is no such device: only what it needs is then
        said.
    batch : int, default 1
        How many times the pages are taken, each as rows of their own.

    Returns
    -------
    MemoryFit
        The table, one sentence, and whether it fits.

    Raises
    ------
    OcrPhasesError
        Where page, prompt, preset, device or config cannot be had.
    """
    # These need torch, which a GPU that is known by its datasheet alone (`fit_cards`) does not.
    from ocr_phases.models.devices import device_of, is_cuda_elsewhere, resolve_device
    from ocr_phases.models.weights import resolve_dtype

    if is_cuda_elsewhere(settings.device):
        plan = _plan(page, settings, batch)
        need = plan.need(DTYPE_BYTES[settings.dtype or "bfloat16"])
        unknown = f"There is no {settings.device} here, so name a card to learn whether it fits"
        return MemoryFit(need, f"{_need_sentence(need, plan.subject)} {unknown}.", None)
    device = resolve_device(settings.device)
    plan = _plan(page, settings, batch)
    need = plan.need(resolve_dtype(settings.dtype, device).itemsize)
    # What an earlier model reserved is given back before the next one is loaded.
    free = device_of(device).free_bytes() + device_of(device).reserved_bytes()
    fits = bool(need["peak_bytes"].max() <= free)
    verdict = "it fits" if fits else "it does not fit"
    sentence = f"{_need_sentence(need, plan.subject)} {device} has {bytes_text(free)} free: "
    return MemoryFit(need, f"{sentence}{verdict}.", fits)


def fit_cards(
    page: Pages | None, settings: Settings, cards: Sequence[CardChoice], *, batch: int = 1
) -> MemoryFit:
    """Whether a measurement fits into GPUs, and how fast it could be there, by their datasheets.

    Parameters
    ----------
    page, settings, batch
        As `fit` takes them. The prompt's words are counted as tokens for the floors, so that these
        are none too high.
    cards : sequence of CardChoice
        The GPUs, each with a price or without.

    Returns
    -------
    MemoryFit
        With the table ``cards``.

    Raises
    ------
    OcrPhasesError
        As `fit` does.
    """
    plan = _plan(page, settings, batch)
    dtype_bytes = DTYPE_BYTES[settings.dtype or "bfloat16"]
    need = plan.need(dtype_bytes)
    table = card_table(
        plan.work(dtype_bytes),
        need,
        cards,
        dtype=settings.dtype,
        product_dtype="bfloat16" if plan.request.autocast else None,
    )
    verdict = card_sentence(table.iloc[0], plan.request.max_new_tokens)
    if len(table) > 1:
        verdict = fitting_sentence(table)
    sentence = f"{_need_sentence(need, plan.subject)} {verdict}"
    return MemoryFit(need, sentence, bool(table["fits"].any()), table)


@dataclass(frozen=True)
class _Plan:
    """A measurement as it would be, by its settings and its model's config alone."""

    config: dict[str, Any]
    settings: Settings
    request: Request
    views: list[VisionCall]
    rows: int
    image_tokens: int  # of a row
    window: int | None
    subject: str

    def need(self, dtype_bytes: int) -> pd.DataFrame:
        """What it needs of the memory; the prompt's characters are counted as tokens."""
        prompt_tokens = self.image_tokens + len(self.request.prompts[0])
        new_tokens = self.request.max_new_tokens
        if self.settings.strategy == "eager":
            length = prompt_tokens + new_tokens
            cache_length = windowed_length(length, prompt_tokens, self.window)
        else:
            cache_length = capacity_for(prompt_tokens, new_tokens, self.window)
        return memory_need(
            self.config,
            self.views,
            vars(self.settings),
            cache_len=cache_length,
            batch=self.rows,
            dtype_bytes=dtype_bytes,
        )

    def work(self, dtype_bytes: int) -> Work:
        """What it computes at the least; the prompt's words are counted as tokens."""
        words = self.request.prompts[0].replace("<image>", " ").split()
        return Work(
            config=self.config,
            views=self.views,
            prompt_tokens=self.image_tokens + len(words),
            new_tokens=self.request.max_new_tokens,
            batch=self.rows,
            pages=len(self.request.pages),
            window=self.window,
            logits_for="all" if self.settings.implementation == "vendor" else "last",
            dtype_bytes=dtype_bytes,
        )


def _plan(page: Pages | None, settings: Settings, batch: int) -> _Plan:
    """Read the config and the pages' sizes."""
    config = _read_config(settings.model)
    try:
        family, _, window = read_model_config(config)
    except OcrPhasesError:
        _refuse_class_of(config, settings.model)
        raise
    own_preset = BUILT_IN_PRESET if settings.model == "tiny" else None
    run_settings = RunSettings(**settings.of_run())
    pages = _repeated(page, batch)
    request = resolve_request(run_settings, family, pages, preset=own_preset)

    preset = request.cutting
    grids = [preset.grid(*load_page(each)[0].size) for each in request.pages]
    rows = len(request.prompts)
    image_tokens = sum(image_token_count(preset, grid) for grid in grids)
    subject = f"{settings.model} at {preset.name}"
    if page is None:
        subject += f" with an A4 page of {A4_PIXELS[0]} x {A4_PIXELS[1]} pixels"
    if rows > 1:
        subject += f", batch {rows},"
    return _Plan(
        config=config,
        settings=settings,
        request=request,
        views=vision_calls(request.preset, grids, family.name, ViewSizes.from_settings(request)),
        rows=rows,
        image_tokens=image_tokens // rows,
        window=window,
        subject=subject,
    )


def _repeated(page: Pages | None, batch: int) -> Pages:
    """The pages, ``batch`` times."""
    if page is None:
        page = Image.new("L", A4_PIXELS, 255)
    if batch == 1:
        return page
    if isinstance(page, str | bytes | Path | Image.Image):
        return [page] * batch
    return [*page] * batch


def _read_config(model: str) -> dict[str, Any]:
    """The ``config.json`` of a model by its name; `OcrPhasesError` for one that cannot be used."""
    if model.split(":")[0] == "dummy":
        _refuse_other_class(model)
        config = dummy_config(model)
        file = Path(model, "config.json")
    else:
        folder = Path(model).expanduser()
        if model == "tiny":
            folder = asset("data", "tiny")
        file = folder / "config.json"
        config = read_json(file, AnyConfig)
    refuse_quantised_config(config, file)
    return config


def _refuse_other_class(model: str) -> None:
    """Raise `OcrPhasesError` for ``dummy:CLASS`` and ``dummy:path/to/config.json``."""
    first = model.partition(":")[2].partition(",")[0]
    if not first or first in FAMILIES or "=" in first:
        return
    from ocr_phases.models.neutral import is_any_dummy

    if is_any_dummy(model):
        raise _no_facts(model)


def _refuse_class_of(config: dict[str, Any], model: str) -> None:
    """Raise `OcrPhasesError` for a config of a class that no family's facts describe."""
    from ocr_phases.models.anyclass import is_of_another_class

    if is_of_another_class(config):
        raise _no_facts(model)


def _no_facts(model: str) -> OcrPhasesError:
    return OcrPhasesError(
        f"{model} is of no known family, so that what a page costs is n/a: nobody has written down "
        "what it computes. Measure it without --dry-run; of a dummy, what its weights take is said "
        "before they are made."
    )


def _need_sentence(need: pd.DataFrame, subject: str) -> str:
    """What the phase that needs most holds, and the KV cache at the last token."""
    most = need.iloc[int(need["peak_bytes"].argmax())]
    parts = [f"weights {bytes_text(most['weight_bytes'])}"]
    if most["kv_bytes"] > 0:
        parts.append(f"KV cache {bytes_text(most['kv_bytes'])}")
    parts.append(f"activations {bytes_text(most['activation_bytes'])}")
    return (
        f"{subject} needs {bytes_text(most['peak_bytes'])} in the {most['phase']} "
        f"({', '.join(parts)}); its KV cache takes {bytes_text(need['kv_bytes'].iloc[-1])} at the "
        "last token."
    )
