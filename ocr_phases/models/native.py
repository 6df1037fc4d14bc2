"""Loads weights into transformers' own class: a folder, the built-in checkpoint, or random ones (dummy).

Nothing here runs remote code or goes through transformers' Auto classes: ``config.json`` is read as JSON,
weights as safetensors, and the tokenizer from ``tokenizer.json``.
"""

from __future__ import annotations

import copy
import os
import re
import sys
from functools import reduce
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError

from ocr_phases.config import read_model_config
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import DEEPSEEK_OCR
from ocr_phases.families import FAMILIES as FACTS
from ocr_phases.models.checkpoint import Checkpoint, image_token, load_tokenizer
from ocr_phases.models.families import NATIVES, native_config
from ocr_phases.models.family import Family
from ocr_phases.models.folders import (
    check_loaded,
    download,
    folder_hash,
    local_folder,
    progress_bar_in_terminals,
    read_config,
    transformers_version,
)
from ocr_phases.text import bytes_text, count_text, millions_text, nearest
from ocr_phases.versions import asset

NATIVE_NEEDS = (5, 20)
_LARGE = 300_000_000  # parameters, from which a CPU takes seconds a page
_PROMPT = 300  # tokens, about those of a page at the preset base


def load_native(
    name: str, *, device: str, dtype: torch.dtype, revision: str | None = None, local_only: bool = False
) -> Checkpoint:
    """Load ``tiny``, ``dummy`` (or `dummy_config`'s), a folder or a hub id onto ``device``.

    Raises `OcrPhasesError` for anything that is no checkpoint of a known family, naming what is wrong.
    """
    _require_transformers()
    if not local_only and name == "tiny":
        tiny = asset("data", "tiny")
        return _load_folder(tiny, "tiny", device, dtype, source="built-in", default_preset="small")
    if not local_only and name.split(":")[0] == "dummy":
        return _make_dummy(name, device, dtype)
    folder = local_folder(name, local_only=local_only)
    if folder is not None:
        return _load_folder(folder, folder.name, device, dtype)
    downloaded = download(name, revision)
    return _load_folder(downloaded, name, device, dtype, revision=downloaded.name)


def _require_transformers() -> None:
    import transformers

    if transformers_version() < NATIVE_NEEDS:
        raise OcrPhasesError(
            f"The native model needs transformers >= {'.'.join(map(str, NATIVE_NEEDS))}, "
            f"here is {transformers.__version__}: upgrade transformers."
        )


def _load_folder(
    folder: Path,
    name: str,
    device: str,
    dtype: torch.dtype,
    *,
    source: str | None = None,
    revision: str | None = None,
    default_preset: str | None = None,
) -> Checkpoint:
    raw = read_config(folder)
    family = NATIVES[read_model_config(raw).family.name]
    model_class, config = family.model_class(), native_config(raw)
    tokenizer = load_tokenizer(folder)
    image_token_id = image_token(raw, tokenizer)
    config.image_token_id = image_token_id
    try:
        with progress_bar_in_terminals():
            model, report = model_class.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation="sdpa",
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise OcrPhasesError(f"The weights in {folder} do not fit {family.facts.title}: {first}") from error
    check_loaded(folder, report)
    model = model.to(device).eval()
    return Checkpoint(
        model=model,
        tokenizer=tokenizer,
        name=name,
        source=source or str(folder),
        revision=revision or f"sha256:{folder_hash(folder)}",
        config=raw,
        image_token_id=image_token_id,
        device=device,
        dtype=dtype,
        default_preset=default_preset,
    )


def dummy_config(name: str) -> dict[str, Any]:
    """A family's published config with the sizes in ``dummy:layers=2,vocab=2048,...`` put in place.

    ``dummy:FAMILY`` or ``dummy:FAMILY,layers=2,...`` is of another family than DeepSeek-OCR.
    """
    named, *given = name.partition(":")[2].split(",")
    if named not in FACTS:
        named, given = DEEPSEEK_OCR, [named, *given]
    family = NATIVES[named]
    raw = copy.deepcopy(dict(family.published))
    for part in filter(None, given):
        key, _, value = part.partition("=")
        if key not in family.sizes or not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise OcrPhasesError(
                f"{part!r} is no size of dummy: write dummy:KEY=NUMBER,... with {', '.join(family.sizes)}, "
                f"or in front of them a family ({', '.join(FACTS)}).{nearest(key, (*family.sizes, *FACTS))}"
            )
        *above, field = family.sizes[key]
        sizes = reduce(dict.__getitem__, above, raw)
        most = 8 * sizes.get(field, 24)  # DeepSeek-OCR-2's published file says no layers of its encoder
        if int(value) > most:
            raise OcrPhasesError(f"dummy's {key} is {value}: it must be at most {most}.")
        sizes[field] = int(value)
    text = raw["language_config"]
    text["num_key_value_heads"] = text["num_attention_heads"]
    if text["hidden_size"] % text["num_attention_heads"]:
        raise OcrPhasesError("dummy's hidden must be a multiple of its heads: give both.")
    if text["n_routed_experts"] < text["num_experts_per_tok"]:
        raise OcrPhasesError(f"dummy needs at least {text['num_experts_per_tok']} experts.")
    tiny_vocab = 2048
    if text["vocab_size"] < tiny_vocab:
        raise OcrPhasesError(
            f"dummy needs a vocab of at least {tiny_vocab}: its prompts use tiny's tokenizer."
        )
    raw["image_token_id"] = min(raw["image_token_id"], text["vocab_size"] - 1)
    return raw


def _make_dummy(name: str, device: str, dtype: torch.dtype, seed: int = 0) -> Checkpoint:
    """The full-size architecture with seeded random weights, made where they are used."""
    raw = dummy_config(name)
    family = NATIVES[read_model_config(raw).family.name]
    model_class, config = family.model_class(), native_config(raw)
    if device == "cpu":
        _tell_what_it_takes(name, family, config, dtype)
    with torch.device(device), torch.random.fork_rng(devices=[] if device == "cpu" else None):
        torch.manual_seed(seed)  # vectors, which the generator below leaves as they are made
        model = model_class._from_config(config, dtype=dtype, attn_implementation="sdpa")
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
    return Checkpoint(
        model=model.eval(),
        tokenizer=load_tokenizer(asset("data", "tiny")),
        name=name,
        source="random weights",
        revision=f"seed:{seed}",
        config=raw,
        image_token_id=raw["image_token_id"],
        device=device,
        dtype=dtype,
        default_ignore_eos=True,
    )


def _tell_what_it_takes(name: str, family: Family, config: Any, dtype: torch.dtype) -> None:
    """Memory and time of a large model on this CPU, on stderr, before it is made."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = family.model_class()._from_config(config, dtype=dtype)
    count = sum(parameter.numel() for parameter in model.parameters())
    if count < _LARGE:
        return
    weights = bytes_text(count * dtype.itemsize)
    here = bytes_text(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    _tell(f"{name}: {millions_text(count)} parameters take {weights} of this machine's {here}.")
    token_s, prompt_s = _layer_seconds(type(family.stages(model)["language_model"]), config, dtype)
    layers = config.get_text_config().num_hidden_layers
    _tell(
        f"By one layer's time, {count_text(layers, 'layer')} take {layers * token_s:.2g} s a token, and "
        f"{layers * prompt_s:.2g} s for a prompt of {_PROMPT}; vision stages and head come on top."
    )


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


@torch.no_grad()
def _layer_seconds(language_model: Any, config: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds that the last layer of a language model takes for one token, and for `_PROMPT`."""
    text = copy.deepcopy(config.get_text_config())
    text.update({"num_hidden_layers": 1, "vocab_size": 1})
    for kinds in ("mlp_layer_types", "layer_types"):
        if getattr(text, kinds, None):
            setattr(text, kinds, getattr(text, kinds)[-1:])
    with torch.random.fork_rng(devices=[]):
        layer = language_model._from_config(text, dtype=dtype, attn_implementation="sdpa").eval()

    def seconds(tokens: int) -> float:
        given = torch.zeros(1, tokens, text.hidden_size, dtype=dtype)
        layer(inputs_embeds=given, use_cache=False)
        start = perf_counter()
        layer(inputs_embeds=given, use_cache=False)
        return perf_counter() - start

    return seconds(1), seconds(_PROMPT)
