"""A model class with its weights: those of a folder, or random ones of the published sizes."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ocr_phases.errors import Keyword, OcrPhasesError, SettingError, first_line
from ocr_phases.families import FamilyFacts
from ocr_phases.models.devices import device_of
from ocr_phases.models.interface import parameter_count
from ocr_phases.models.wiring import interface_of, native_class
from ocr_phases.settings import ModelSettings
from ocr_phases.text import bytes_text, count_text, millions_text

_SEED = 0
_LARGE = 300_000_000  # parameters, from which a CPU takes seconds a page
_PROMPT = 300  # tokens, about those of a page at the preset base
_NAMED_KEYS = 5


def resolve_dtype(dtype: str | None, device: str) -> torch.dtype:
    """The dtype that a `ModelSettings` names, or the default of a device for None.

    That is float32 on the CPU, bfloat16 on a GPU that computes with it, and float16 on an older
    one.
    """
    if dtype is not None:
        return getattr(torch, dtype)
    if device == "cpu":
        return torch.float32
    if device_of(device).computes_bfloat16():
        return torch.bfloat16
    return torch.float16


def choose_attention(model_class: Any, settings: ModelSettings) -> str:
    """The attention that the class is loaded with.

    Raises `SettingError` where the attention in ``settings`` cannot be had here.
    """
    has_sdpa = getattr(model_class, "_supports_sdpa", False)
    if settings.attention is None:
        return "sdpa" if has_sdpa else "eager"
    if settings.attention == "sdpa" and not has_sdpa:
        raise SettingError(
            "attention",
            "{model} has no SDPA: use {eager} or 'flash_attention_2'.",
            model=model_class.__name__,
            eager=Keyword("attention", "eager"),
        )
    if settings.attention == "flash_attention_2":
        _check_flash_attention(settings)
    return settings.attention


def _check_flash_attention(settings: ModelSettings) -> None:
    """Raise `SettingError` where device, dtype or installation allow no flash attention."""
    flash_attention = Keyword("attention", "flash_attention_2")
    if not settings.device.startswith("cuda"):
        raise SettingError(
            "attention",
            "{flash_attention} needs a CUDA device, and this is {device}: use 'eager'.",
            flash_attention=flash_attention,
            device=settings.device,
        )
    if resolve_dtype(settings.dtype, settings.device) == torch.float32:
        raise SettingError(
            "attention",
            "{flash_attention} needs bfloat16 or float16, and this is float32: use 'eager'.",
            flash_attention=flash_attention,
        )
    if importlib.util.find_spec("flash_attn") is None:
        raise SettingError(
            "attention",
            "{flash_attention} needs the package flash_attn, which is not installed "
            "(pip install flash-attn): install it, or use 'eager'.",
            flash_attention=flash_attention,
        )


def chosen_attention_of_parts(model_class: Any, settings: ModelSettings) -> str | None:
    """The attention that a class of several models is loaded with; None lets each choose.

    One of its models may have no SDPA where the class itself has. Raises `SettingError` as
    `choose_attention` does.
    """
    if settings.attention is None:
        return None
    return choose_attention(model_class, settings)


def load_weights(
    folder: Path, model_class: Any, title: str, attention: str | None, **options: Any
) -> Any:
    """A model of the class with the safetensors in ``folder``, on the CPU.

    ``attention`` is what `choose_attention` or `chosen_attention_of_parts` gave. ``options`` are
    those of the class's ``from_pretrained()``. Raises `OcrPhasesError`, which calls the class
    ``title``, where keys are missing, unknown or misshapen.
    """
    try:
        model, report = model_class.from_pretrained(
            folder,
            attn_implementation=attention,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    except (ImportError, OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        reason = first_line(error)
        raise OcrPhasesError(f"The weights in {folder} do not fit {title}: {reason}") from error
    # Buffers that the file lacks are made by the class itself; another shape is a RuntimeError
    # above.
    parameters = {key for key, _ in model.named_parameters()}
    _refuse_keys(folder, "missing", parameters & set(report["missing_keys"]))
    _refuse_keys(folder, "unexpected", report["unexpected_keys"])
    return model


def _refuse_keys(folder: Path, kind: str, keys: Collection[str]) -> None:
    """Raise `OcrPhasesError` where there are such keys, and name the first."""
    if not keys:
        return
    listed = ", ".join(sorted(keys)[:_NAMED_KEYS])
    more = ""
    if len(keys) > _NAMED_KEYS:
        more = f" and {len(keys) - _NAMED_KEYS} more"
    raise OcrPhasesError(f"The weights in {folder} have {kind} keys: {listed}{more}.")


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Loading without transformers' warnings, and with its progress bar in terminals only.

    The warnings are about keys, which `load_weights` looks at.
    """
    from transformers.utils import logging

    level = logging.get_verbosity()
    had_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bar:
            logging.enable_progress_bar()


# -- random weights -------------------------------------------------------------------------------


def random_model(family: FamilyFacts, config: Any, settings: ModelSettings) -> Any:
    """The family's native class of these sizes with seeded random weights.

    They are made on the device where they are used.
    """
    if settings.device == "cpu":
        dtype = resolve_dtype(settings.dtype, settings.device)
        _tell_what_it_takes(settings.model, family, config, dtype)
    model_class = native_class(family)
    return random_weights(model_class, config, settings, choose_attention(model_class, settings))


@torch.no_grad()
def random_weights(
    model_class: Any, config: Any, settings: ModelSettings, attention: str | None
) -> Any:
    """A model of a class with seeded random weights, made on the device where they are used.

    ``attention`` is what `choose_attention` or `chosen_attention_of_parts` gave.
    """
    device = settings.device
    dtype = resolve_dtype(settings.dtype, device)
    # Vectors are made from these random numbers, and the generator below leaves them as they are.
    with torch.device(device), device_of(device).seeded(_SEED):
        model = model_class._from_config(config, dtype=dtype, attn_implementation=attention)
    generator = torch.Generator(device).manual_seed(_SEED)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, 0.02, generator=generator)
    return model


def _tell_what_it_takes(name: str, family: FamilyFacts, config: Any, dtype: torch.dtype) -> None:
    """Memory and time of a large model on this CPU, on stderr, before it is made."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = native_class(family)._from_config(config, dtype=dtype)
    count = parameter_count(model)
    if count < _LARGE:
        return
    weights = bytes_text(count * dtype.itemsize)
    here = bytes_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    language_model = interface_of(model).modules(model)["language_model"]
    layer = _last_layer(type(language_model), config, dtype)
    layers = config.get_text_config().num_hidden_layers
    token_s = layers * _layer_seconds(layer, 1)
    prompt_s = layers * _layer_seconds(layer, _PROMPT)
    print(
        f"{name}: {millions_text(count)} parameters take {weights} of this machine's {here}.\n"
        f"By one layer's time, {count_text(layers, 'layer')} take {token_s:.2g} s a token, and "
        f"{prompt_s:.2g} s for a prompt of {_PROMPT}; vision stages and head come on top.",
        file=sys.stderr,
    )


@torch.no_grad()
def _last_layer(model_class: Any, config: Any, dtype: torch.dtype) -> Any:
    """A language model of the class with nothing but the last layer of ``config``."""
    text = copy.deepcopy(config.get_text_config())
    sizes = {"num_hidden_layers": 1, "vocab_size": 1}
    # transformers checks that there is a kind for each layer.
    for kinds in ("mlp_layer_types", "layer_types"):
        of_layers = getattr(text, kinds, None)
        if of_layers:
            sizes[kinds] = of_layers[-1:]
    text.update(sizes)
    with torch.random.fork_rng(devices=[]):
        return model_class._from_config(text, dtype=dtype, attn_implementation="sdpa").eval()


@torch.no_grad()
def _layer_seconds(layer: Any, tokens: int) -> float:
    """Seconds that a layer takes for a prompt of so many tokens, at the second time."""
    embeddings = torch.zeros(1, tokens, layer.config.hidden_size, dtype=layer.dtype)
    layer(inputs_embeds=embeddings, use_cache=False)  # what the first forward sets up is not timed
    start = time.perf_counter()
    layer(inputs_embeds=embeddings, use_cache=False)
    return time.perf_counter() - start
