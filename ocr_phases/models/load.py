"""A name (tiny, dummy, a folder, a hub id), or a model at hand, to a loaded checkpoint.

Nothing here runs remote code or goes through transformers' Auto classes: ``config.json`` is read as JSON,
weights as safetensors, and the tokenizer from ``tokenizer.json``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from ocr_phases.config import TokenizerLabels, read_model_config
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, WINDOWED, FamilyFacts
from ocr_phases.models.folders import (
    check_loaded,
    download,
    local_folder,
    progress_bar_in_terminals,
    read_config,
    read_json,
    transformers_version,
)
from ocr_phases.models.vendor import check_attention, check_request, choose_attention, load_vendor
from ocr_phases.models.wiring import NATIVES, Family, family_of, native_config
from ocr_phases.text import bytes_text, count_text, millions_text, nearest
from ocr_phases.versions import asset, folder_hash

NATIVE_NEEDS = (5, 20)
SPECIAL_TOKENS = ("<image>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>")
ROUND_TRIP = "Total 12 450,00 € at 20 °C"
_REPLACEMENT = "ï¿½"  # U+FFFD as byte-level tokenizers spell it, a character a byte
_LARGE = 300_000_000  # parameters, from which a CPU takes seconds a page
_PROMPT = 300  # tokens, about those of a page at the preset base
_TINY_VOCAB = 2048


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model on its device, with its tokenizer.

    ``default_preset`` suits the weights, None leaves it to the family; ``default_ignore_eos`` is True where
    the text is noise (dummy).
    ``revision`` is a hub commit, ``sha256:`` over config and safetensors headers of a folder, or the seed.
    ``cuda_calls`` is ``ignore`` where a class's own ``.cuda()`` does nothing (`ocr_phases.models.vendor`).
    """

    model: Any
    tokenizer: Any
    name: str
    source: str
    revision: str
    config: dict[str, Any]
    image_token_id: int
    device: str
    dtype: torch.dtype
    default_preset: str | None = None
    default_ignore_eos: bool = False
    cuda_calls: str | None = None

    @cached_property
    def family(self) -> Family:
        """The row of the model's class."""
        return family_of(self.model)

    @property
    def eos_id(self) -> int:
        """The id that ends a generation."""
        return self.model.config.get_text_config().eos_token_id

    @property
    def pad_id(self) -> int:
        """The id that fills rows: the tokenizer's pad token, else the end token."""
        pad = self.tokenizer.pad_token_id
        return self.eos_id if pad is None else pad

    def encode(self, text: str) -> list[int]:
        """Text to ids, without special tokens around it."""
        return self.tokenizer.encode(text, add_special_tokens=False)


def resolve_device(device: str) -> str:
    """``auto`` to ``cuda`` where there is one, else ``cpu``; `OcrPhasesError` for one that is not here."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    if found is None:
        hint = nearest(device, ("auto", "cpu", "cuda"))
        raise OcrPhasesError(f"Unknown device {device!r}: use auto, cpu, cuda or cuda:N.{hint}")
    if not torch.cuda.is_available():
        raise OcrPhasesError(f"Device {device} was asked for, but torch sees no CUDA here: use device cpu.")
    if int(found[1] or 0) >= torch.cuda.device_count():
        raise OcrPhasesError(
            f"There is no {device}: torch sees {count_text(torch.cuda.device_count(), 'CUDA device')}."
        )
    return device


def resolve_dtype(dtype: str | None, device: str) -> torch.dtype:
    """The dtype that a `ModelSettings` names; None is bfloat16 on CUDA and float32 on the CPU."""
    return getattr(torch, dtype or ("float32" if device == "cpu" else "bfloat16"))


def load_checkpoint(
    name: str,
    *,
    device: str,
    dtype: torch.dtype,
    revision: str | None = None,
    local_only: bool = False,
    implementation: str = "native",
    trust_remote_code: bool = False,
    attention: str | None = None,
    cuda_calls: str = "refuse",
) -> Checkpoint:
    """Load ``tiny``, ``dummy`` (or `dummy_config`'s), a folder or a hub id onto ``device``.

    ``attention`` is ``eager``, ``sdpa`` or ``flash_attention_2``, by default SDPA where the class has it.
    ``implementation="vendor"`` loads with the class in the checkpoint (`ocr_phases.models.vendor`), which
    ``trust_remote_code`` and ``cuda_calls`` are for.
    Raises `OcrPhasesError` for anything that is no checkpoint of a known family, naming what is wrong.
    """
    vendor = implementation == "vendor"
    default_preset, source = None, None
    if vendor:
        check_request(name, trust_remote_code)
    check_attention(attention)
    if not vendor:
        _check_native(cuda_calls)
        if not local_only and name.split(":")[0] == "dummy":
            return _make_dummy(name, device, dtype, attention)
    if not local_only and name == "tiny":
        folder: Path | None = asset("data", "tiny")
        default_preset, source = "small", "built-in"
    else:
        folder = local_folder(name, local_only=local_only)
    if folder is None:
        if vendor and not re.fullmatch(r"[0-9a-f]{40}", revision or ""):
            raise OcrPhasesError(
                f"{name} brings its own code, which may change: pass revision= with the 40-digit commit hash "
                "of the version you have read."
            )
        folder = download(name, revision, code=vendor)
        revision = revision if vendor else folder.name
    else:
        name, revision = folder.name, None
    raw = read_config(folder)
    if not vendor:
        read_model_config(raw)
    tokenizer = load_tokenizer(folder)
    image_token_id = image_token(raw, tokenizer)
    content = folder_hash(folder, code=True) if vendor else ""
    if vendor:
        model = load_vendor(folder, raw, content, device, dtype, attention, cuda_calls)
    else:
        model = _load_native(folder, raw, image_token_id, device, dtype, attention)
    return Checkpoint(
        model=model,
        tokenizer=tokenizer,
        name=name,
        source=source or str(folder),
        revision=revision or f"sha256:{content or folder_hash(folder)}",
        config=raw,
        image_token_id=image_token_id,
        device=device,
        dtype=dtype,
        default_preset=default_preset,
        cuda_calls="ignore" if cuda_calls == "ignore" and torch.device(device).type == "cpu" else None,
    )


def adopt(model: Any, tokenizer: Any, *, name: str | None = None) -> Checkpoint:
    """A checkpoint of a model object and a tokenizer that the caller loaded, as they are.

    The model may be patched, quantised or merged with a LoRA; its family is that of its class and config, its
    device and dtype are those of its first floating-point parameter. ``name`` is by default its own, or its
    class's. The revision is ``sha256:`` over config and names, shapes, dtypes and sums of its tensors.

    Raises `OcrPhasesError` for a class of no family, naming every module that its family has and it lacks,
    for a config that does not fit, and for a tokenizer as `load_tokenizer` does.
    """
    family, title = family_of(model), type(model).__name__
    known = dict(model.named_modules())
    lacking = [path for path in family.paths() if path not in known]
    if lacking:
        raise OcrPhasesError(
            f"{title} has no {', '.join(lacking)}, which {family.facts.title} has and whose "
            "stages are timed: give the model without a wrapper."
        )
    config = json.loads(model.config.to_json_string(use_diff=False))
    if family.implementation == "native":
        read_model_config(config)
    check_tokenizer(tokenizer, f"beside {title}")
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for key, tensor in model.state_dict().items():
        digest.update(f"{key} {_fingerprint(tensor)}\n".encode())
    parameter = next(filter(torch.is_floating_point, model.parameters()))
    return Checkpoint(
        model=model,
        tokenizer=tokenizer,
        name=name or getattr(model.config, "name_or_path", "") or title,
        source="a model at hand",
        revision=f"sha256:{digest.hexdigest()}",
        config=config,
        image_token_id=image_token(config, tokenizer),
        device=str(parameter.device),
        dtype=parameter.dtype,
    )


def _fingerprint(value: Any) -> str:
    """What tells a model's tensor from another; a quantised layer holds its weights as other objects."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    values = value.dequantize() if value.is_quantized else value
    return f"{tuple(value.shape)} {value.dtype} {float(values.sum(dtype=torch.float64))}"


# -- the tokenizer ------------------------------------------------------------------------------------


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of ``tokenizer.json``, whatever class the folder's label claims.

    Raises `OcrPhasesError` for a file that is missing or none, and as `check_tokenizer` does.
    """
    from transformers import PreTrainedTokenizerFast

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise OcrPhasesError(f"{folder} has no tokenizer.json: add the checkpoint's tokenizer.")
    labels = read_json(folder / "tokenizer_config.json", TokenizerLabels, missing={})
    names = {key: _token_text(labels.get(key)) for key in ("bos_token", "eos_token", "pad_token")}
    names = {key: text for key, text in names.items() if text}
    try:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(path), clean_up_tokenization_spaces=False, **names
        )
    except Exception as error:  # the tokenizers library raises no narrower class for a bad file
        raise OcrPhasesError(f"{path} is no tokenizer file ({error}).") from error
    check_tokenizer(tokenizer, f"in {folder}")
    return tokenizer


def check_tokenizer(tokenizer: Any, place: str) -> None:
    """Raise `OcrPhasesError` where a special token is not one id, or a round trip changes a sentence.

    That has spaces, digits and non-ASCII.
    """
    split = [text for text in SPECIAL_TOKENS if len(tokenizer.encode(text, add_special_tokens=False)) != 1]
    if split:
        raise OcrPhasesError(f"The tokenizer {place} splits {', '.join(split)}: it is not DeepSeek-OCR's.")
    back = tokenizer.decode(tokenizer.encode(ROUND_TRIP, add_special_tokens=False))
    if back != ROUND_TRIP:
        raise OcrPhasesError(
            f"The tokenizer {place} turns {ROUND_TRIP!r} into {back!r}: it is damaged or mislabelled."
        )


class TokenReader:
    """The text each id adds, one id at a time; joined they are the decoded text, special tokens included.

    A character spread over several tokens belongs to the one that completes it; an id the tokenizer has no
    text for shows as ``<id>``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # what decodes into the text in front of the next
        self._waiting: list[int] = []

    def read(self, token: int, *, last: bool = False) -> str:
        """The text ``token`` adds: nothing while a character is incomplete, unless it is the ``last``."""
        known = token < len(self._tokenizer)
        if known:
            self._waiting.append(token)
        before = self._tokenizer.decode(self._before)
        now = self._tokenizer.decode(self._before + self._waiting)
        if not known:
            self._before, self._waiting = [], []
            return f"{now[len(before) :]}<{token}>"
        if now.endswith("\ufffd") and not last and not self._whole():
            return ""
        self._before, self._waiting = self._waiting, []
        return now[len(before) :]

    def _whole(self) -> bool:
        """Whether the U+FFFD at the end is the text's own, not what an incomplete character decodes to."""
        return "".join(self._tokenizer.convert_ids_to_tokens(self._waiting)).endswith(_REPLACEMENT)


def token_texts(tokenizer: Any, ids: list[int]) -> list[str]:
    """The text each of ``ids`` adds, as `TokenReader` tells it."""
    reader = TokenReader(tokenizer)
    return [reader.read(token, last=place == len(ids)) for place, token in enumerate(ids, start=1)]


def image_token(config: dict[str, Any], tokenizer: Any) -> int:
    """The id of ``<image>``; `OcrPhasesError` where config.json says another."""
    found = tokenizer.convert_tokens_to_ids("<image>")
    if config.get("image_token_id", found) != found:
        raise OcrPhasesError(
            f"config.json says image token {config['image_token_id']}, the tokenizer says {found}."
        )
    return found


def _token_text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, dict) else value


# -- transformers' own class --------------------------------------------------------------------------


def _check_native(cuda_calls: str) -> None:
    import transformers

    if cuda_calls != "refuse":
        raise OcrPhasesError('cuda_calls is for implementation="vendor": native calls no .cuda().')
    if transformers_version() < NATIVE_NEEDS:
        raise OcrPhasesError(
            f"The native model needs transformers >= {'.'.join(map(str, NATIVE_NEEDS))}, "
            f"here is {transformers.__version__}: upgrade transformers."
        )


def _load_native(
    folder: Path,
    raw: dict[str, Any],
    image_token_id: int,
    device: str,
    dtype: torch.dtype,
    attention: str | None,
) -> nn.Module:
    family = NATIVES[read_model_config(raw).family.name]
    model_class, config = family.model_class(), native_config(raw)
    config.image_token_id = image_token_id
    try:
        with progress_bar_in_terminals():
            model, report = model_class.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=choose_attention(model_class, attention, device, dtype),
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise OcrPhasesError(f"The weights in {folder} do not fit {family.facts.title}: {first}") from error
    check_loaded(folder, report)
    return model.to(device).eval()


# -- random weights -----------------------------------------------------------------------------------


def dummy_sizes(facts: FamilyFacts) -> dict[str, tuple[str, ...]]:
    """The keys that lead to each number of a published config that a dummy may have otherwise."""
    language = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "experts": "n_routed_experts",
        "vocab": "vocab_size",
    }
    sizes: dict[str, tuple[str, ...]] = {key: ("language_config", name) for key, name in language.items()}
    for stage, part in zip(facts.encoders, ("sam_vit_b", facts.encoder_part), strict=True):
        sizes[f"{stage}_layers"] = ("vision_config", "width", part, "layers")
    return sizes | ({"window": ("sliding_window_size",)} if facts.attention == WINDOWED else {})


def dummy_config(name: str) -> dict[str, Any]:
    """A family's published config with the sizes in ``dummy:layers=2,vocab=2048,...`` put in place.

    ``dummy:FAMILY`` or ``dummy:FAMILY,layers=2,...`` is of another family than DeepSeek-OCR.
    """
    named, *given = name.partition(":")[2].split(",")
    if named not in FAMILIES:
        named, given = DEEPSEEK_OCR, [named, *given]
    facts = FAMILIES[named]
    raw, known = copy.deepcopy(facts.config), dummy_sizes(facts)
    for part in filter(None, given):
        key, _, value = part.partition("=")
        if key not in known or not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise OcrPhasesError(
                f"{part!r} is no size of dummy: write dummy:KEY=NUMBER,... with {', '.join(known)}, "
                f"or in front of them a family ({', '.join(FAMILIES)}).{nearest(key, (*known, *FAMILIES))}"
            )
        *above, field = known[key]
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
    if text["vocab_size"] < _TINY_VOCAB:
        raise OcrPhasesError(
            f"dummy needs a vocab of at least {_TINY_VOCAB}: its prompts use tiny's tokenizer."
        )
    raw["image_token_id"] = min(raw["image_token_id"], text["vocab_size"] - 1)
    return raw


def _make_dummy(
    name: str, device: str, dtype: torch.dtype, attention: str | None, seed: int = 0
) -> Checkpoint:
    """The full-size architecture with seeded random weights, made where they are used."""
    raw = dummy_config(name)
    family = NATIVES[read_model_config(raw).family.name]
    model_class, config = family.model_class(), native_config(raw)
    if device == "cpu":
        _tell_what_it_takes(name, family, config, dtype)
    with torch.device(device), torch.random.fork_rng(devices=[] if device == "cpu" else None):
        torch.manual_seed(seed)  # vectors, which the generator below leaves as they are made
        chosen = choose_attention(model_class, attention, device, dtype)
        model = model_class._from_config(config, dtype=dtype, attn_implementation=chosen)
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
