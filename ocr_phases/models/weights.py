"""A model class with its weights: those of a folder, or random ones of the published sizes."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import re
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, WINDOWED, FamilyFacts
from ocr_phases.models.devices import device_of
from ocr_phases.models.wiring import interface_of, native_class
from ocr_phases.settings import ModelSettings
from ocr_phases.text import bytes_text, count_text, millions_text, nearest

_SEED = 0
_LARGE = 300_000_000  # parameters, from which a CPU takes seconds a page
_PROMPT = 300  # tokens, about those of a page at the preset base
_VOCAB = 2048  # of tiny's tokenizer
_UNSAID_LAYERS = 24  # of a vision encoder


def resolve_dtype(dtype: str | None, device: str) -> torch.dtype:
    """The dtype that a `ModelSettings` names, or the default of a device for None.

    That is float32 on the CPU, bfloat16 on a GPU that computes with it, and float16 on an older
    one.
    """
    if dtype is not None:
        return getattr(torch, dtype)
    if device == "cpu":
        return torch.float32
    return torch.bfloat16 if device_of(device).computes_bfloat16() else torch.float16


def choose_attention(found: Any, asked: ModelSettings) -> str:
    """The attention the class is loaded with; `OcrPhasesError` where what is asked cannot be had
    here.
    """
    attention, has_sdpa = asked.attention, getattr(found, "_supports_sdpa", False)
    if attention is None:
        return "sdpa" if has_sdpa else "eager"
    if attention == "sdpa" and not has_sdpa:
        raise OcrPhasesError(
            f"{found.__name__} has no SDPA: use attention='eager' or 'flash_attention_2'."
        )
    flash = importlib.util.find_spec("flash_attn")
    needs = {
        f"a CUDA device, this is {asked.device}": asked.device.startswith("cuda"),
        "bfloat16 or float16, this is float32": resolve_dtype(asked.dtype, asked.device)
        != torch.float32,
        "the package flash_attn, which is not installed (pip install flash-attn)": flash
        is not None,
    }
    if attention == "flash_attention_2" and not all(needs.values()):
        lacking = next(need for need, met in needs.items() if not met)
        raise OcrPhasesError(f"attention='flash_attention_2' needs {lacking}: or use 'eager'.")
    return attention


def load_weights(
    folder: Path, model_class: Any, title: str, asked: ModelSettings, **options: Any
) -> Any:
    """A model of the class with the safetensors in ``folder``, on the CPU; ``options`` are its
    class's.

    Raises `OcrPhasesError`, which calls the class ``title``, where keys are missing, unknown or
    misshapen.
    """
    try:
        model, report = model_class.from_pretrained(
            folder,
            attn_implementation=choose_attention(model_class, asked),
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    except (ImportError, OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OcrPhasesError(f"The weights in {folder} do not fit {title}: {first}") from error
    # Buffers that the file lacks are made by the class itself; another shape is a RuntimeError
    # above.
    parameters = {key for key, _ in model.named_parameters()}
    wrong = {
        "missing": parameters & set(report["missing_keys"]),
        "unexpected": report["unexpected_keys"],
    }
    for kind, keys in wrong.items():
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise OcrPhasesError(
                f"The weights in {folder} have {kind} keys: {', '.join(sorted(keys)[:5])}{more}."
            )
    return model


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Without transformers' warnings, as keys are looked at above, and with its bar in terminals
    only.
    """
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


# -- random weights ----------------------------------------------------------------------------------


def dummy_sizes(facts: FamilyFacts) -> dict[str, tuple[str, ...]]:
    """The keys that lead to each number of a published config that a dummy may have otherwise."""
    language = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "experts": "n_routed_experts",
        "vocab": "vocab_size",
    }
    sizes: dict[str, tuple[str, ...]] = {
        key: ("language_config", name) for key, name in language.items()
    }
    for stage, part in facts.encoder_parts.items():
        sizes[f"{stage}_layers"] = ("vision_config", "width", part, "layers")
    if facts.attention == WINDOWED:
        sizes["window"] = ("sliding_window_size",)
    return sizes


def dummy_family(name: str) -> FamilyFacts:
    """The family of ``dummy:FAMILY`` or ``dummy:FAMILY,layers=2,...``, by default DeepSeek-OCR."""
    first = name.partition(":")[2].partition(",")[0]
    return FAMILIES.get(first, FAMILIES[DEEPSEEK_OCR])


def dummy_config(name: str) -> dict[str, Any]:
    """A family's published config with the sizes in ``dummy:layers=2,vocab=2048,...`` put in place.

    ``dummy:FAMILY`` or ``dummy:FAMILY,layers=2,...`` is of another family than DeepSeek-OCR. Raises
    `OcrPhasesError` for a size that there is not, that is too large, or that does not fit the
    others.
    """
    family = dummy_family(name)
    config = copy.deepcopy(dict(family.config))
    known = dummy_sizes(family)
    parts = name.partition(":")[2].split(",")
    if parts[0] == family.name:
        parts = parts[1:]
    for part in parts:
        if part:
            _set_size(config, part, known)
    text = config["language_config"]
    text["num_key_value_heads"] = text["num_attention_heads"]
    if text["hidden_size"] % text["num_attention_heads"]:
        raise OcrPhasesError("dummy's hidden must be a multiple of its heads: give both.")
    if text["n_routed_experts"] < text["num_experts_per_tok"]:
        raise OcrPhasesError(f"dummy needs at least {text['num_experts_per_tok']} experts.")
    if text["vocab_size"] < _VOCAB:
        raise OcrPhasesError(
            f"dummy needs a vocab of at least {_VOCAB}: its prompts use tiny's tokenizer."
        )
    config["image_token_id"] = min(config["image_token_id"], text["vocab_size"] - 1)
    return config


def _set_size(config: dict[str, Any], part: str, known: dict[str, tuple[str, ...]]) -> None:
    """Put one ``KEY=NUMBER`` of a dummy's name into its config."""
    key, _, value = part.partition("=")
    if key not in known or not re.fullmatch(r"[1-9]\d{0,8}", value):
        raise OcrPhasesError(
            f"{part!r} is no size of dummy: write dummy:KEY=NUMBER,... with {', '.join(known)}, "
            f"or in front of them a family ({', '.join(FAMILIES)})."
            f"{nearest(key, (*known, *FAMILIES))}"
        )
    *sections, entry = known[key]
    sizes = config
    for section in sections:
        sizes = sizes[section]
    # DeepSeek-OCR-2's published file does not say how many layers its second encoder has.
    most = 8 * sizes.get(entry, _UNSAID_LAYERS)
    if int(value) > most:
        raise OcrPhasesError(f"dummy's {key} is {value}: it must be at most {most}.")
    sizes[entry] = int(value)


@torch.no_grad()
def random_model(family: FamilyFacts, config: Any, asked: ModelSettings) -> Any:
    """The family's native class of these sizes with seeded random weights, made where they are
    used.
    """
    device, dtype, model_class = (
        asked.device,
        resolve_dtype(asked.dtype, asked.device),
        native_class(family),
    )
    if device == "cpu":
        _tell_what_it_takes(asked.model, family, config, dtype)
    # Vectors are made from these random numbers, and the generator below leaves them as they are.
    with torch.device(device), device_of(device).seeded(_SEED):
        chosen = choose_attention(model_class, asked)
        model = model_class._from_config(config, dtype=dtype, attn_implementation=chosen)
    generator = torch.Generator(device).manual_seed(_SEED)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, 0.02, generator=generator)
    return model


def _tell_what_it_takes(name: str, family: FamilyFacts, config: Any, dtype: torch.dtype) -> None:
    """Memory and time of a large model on this CPU, on stderr, before it is made."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = native_class(family)._from_config(config, dtype=dtype)
    count = sum(parameter.numel() for parameter in model.parameters())
    if count < _LARGE:
        return
    weights = bytes_text(count * dtype.itemsize)
    here = bytes_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    token_s, prompt_s = _layer_seconds(
        type(interface_of(model).modules(model)["language_model"]), config, dtype
    )
    layers = config.get_text_config().num_hidden_layers
    print(
        f"{name}: {millions_text(count)} parameters take {weights} of this machine's {here}.\n"
        f"By one layer's time, {count_text(layers, 'layer')} take {layers * token_s:.2g} s a token, and "
        f"{layers * prompt_s:.2g} s for a prompt of {_PROMPT}; vision stages and head come on top.",
        file=sys.stderr,
    )


@torch.no_grad()
def _layer_seconds(language_model: Any, config: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds that the last layer of a language model takes for one token, and for `_PROMPT`."""
    text = copy.deepcopy(config.get_text_config())
    kinds = {name: getattr(text, name, None) for name in ("mlp_layer_types", "layer_types")}
    last = {name: layers[-1:] for name, layers in kinds.items() if layers}
    text.update({"num_hidden_layers": 1, "vocab_size": 1, **last})
    with torch.random.fork_rng(devices=[]):
        layer = language_model._from_config(text, dtype=dtype, attn_implementation="sdpa").eval()

    def seconds(tokens: int) -> float:
        given = torch.zeros(1, tokens, text.hidden_size, dtype=dtype)
        return timeit.repeat(
            lambda: layer(inputs_embeds=given, use_cache=False), number=1, repeat=2
        )[-1]

    return seconds(1), seconds(_PROMPT)
