"""A name (tiny, dummy, a folder, a hub id) to a model, a tokenizer and what is known of both.

Nothing here runs remote code or goes through transformers' Auto classes: ``config.json`` is read as JSON,
weights as safetensors, and the tokenizer from ``tokenizer.json``. The one exception, asked for by name, is in
`ocr_phases.measure.remote`.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ocr_phases.assets import asset
from ocr_phases.config_schema import PUBLISHED as PUBLISHED_TYPE
from ocr_phases.config_schema import SAVED as SAVED_TYPE
from ocr_phases.config_schema import (
    PublishedText,
    SavedClip,
    SavedSam,
    SavedText,
    TokenizerLabels,
    check_config,
    known,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.folders import (
    check_loaded,
    download,
    folder_hash,
    local_folder,
    progress_bar_in_terminals,
    read_config,
    read_json,
    transformers_version,
)
from ocr_phases.type_fit import LEAST_TYPE_PX
from ocr_phases.words import count_text

NATIVE_NEEDS = (5, 20)
SPECIAL_TOKENS = ("<image>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>")
ROUND_TRIP = "Total 12 450,00 € at 20 °C"

_VISION = {"sam_vit_b", "clip-l-14-224"}

#: The published DeepSeek-OCR architecture, in the keys of its own ``config.json``.
PUBLISHED: dict[str, Any] = {
    "model_type": PUBLISHED_TYPE,
    "language_config": {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "first_k_dense_replace": 1,
        "hidden_size": 1280,
        "intermediate_size": 6848,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 896,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_attention_heads": 10,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 12,
        "num_key_value_heads": 10,
        "vocab_size": 129280,
    },
    "vision_config": {
        "image_size": 1024,
        "mlp_ratio": 4.0,
        "width": {
            "clip-l-14-224": {"heads": 16, "image_size": 224, "layers": 24, "patch_size": 14, "width": 1024},
            "sam_vit_b": {
                "downsample_channels": [512, 1024],
                "global_attn_indexes": [2, 5, 8, 11],
                "heads": 12,
                "layers": 12,
                "width": 768,
            },
        },
    },
    "image_token_id": 128815,
}


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with its tokenizer.

    ``default_preset`` suits the weights; ``default_ignore_eos`` is True where the text is noise (dummy).
    ``least_type_px`` is the smallest type that the model reads, where that is known (`LEAST_TYPE_PX`).
    ``revision`` is a hub commit, ``sha256:`` over config and safetensors headers of a folder, or the seed.
    ``cuda_calls`` is ``ignore`` where a class's own ``.cuda()`` does nothing (`ocr_phases.measure.remote`).
    """

    model: Any
    tokenizer: Any
    name: str
    source: str
    revision: str
    config: dict[str, Any]
    image_token_id: int
    default_preset: str = "gundam"
    default_ignore_eos: bool = False
    cuda_calls: str | None = None
    least_type_px: float | None = None


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
    """Load ``tiny``, ``dummy`` (or ``dummy:layers=2,...``), a folder or a hub id onto ``device``.

    ``implementation="vendor"`` loads with the class in the checkpoint (`ocr_phases.measure.remote`).
    Raises `OcrPhasesError` for anything that is no DeepSeek-OCR checkpoint, naming what is wrong.
    """
    if implementation == "vendor":
        from ocr_phases.measure.remote import load_vendor

        return load_vendor(
            name,
            device=device,
            dtype=dtype,
            revision=revision,
            local_only=local_only,
            trust_remote_code=trust_remote_code,
            attention=attention,
            cuda_calls=cuda_calls,
        )
    if implementation != "native":
        raise OcrPhasesError(f"Unknown implementation {implementation!r}: use native or vendor.")
    if attention not in (None, "sdpa") or cuda_calls != "refuse":
        raise OcrPhasesError(
            'attention and cuda_calls are for implementation="vendor": native always runs with SDPA, and '
            "calls no .cuda()."
        )
    _require_transformers()
    if not local_only and name == "tiny":
        checkpoint = _load_folder(asset("data", "tiny"), "tiny", device, dtype, default_preset="small")
        return replace(checkpoint, least_type_px=LEAST_TYPE_PX["tiny"])
    if not local_only and name.split(":")[0] == "dummy":
        return _make_dummy(name, device, dtype)
    folder = local_folder(name, local_only=local_only)
    if folder is not None:
        return _load_folder(folder, folder.name, device, dtype)
    downloaded = download(name, revision)
    return _load_folder(downloaded, name, device, dtype, revision=downloaded.name)


def resolve_device(device: str) -> str:
    """``auto`` to ``cuda`` where there is one, else ``cpu``; `OcrPhasesError` for one that is not here."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    if found is None:
        raise OcrPhasesError(f"Unknown device {device!r}: use auto, cpu, cuda or cuda:N.")
    if not torch.cuda.is_available():
        raise OcrPhasesError(f"Device {device} was asked for, but torch sees no CUDA here: use device cpu.")
    if int(found[1] or 0) >= torch.cuda.device_count():
        raise OcrPhasesError(
            f"There is no {device}: torch sees {count_text(torch.cuda.device_count(), 'CUDA device')}."
        )
    return device


def resolve_dtype(dtype: str | torch.dtype | None, device: str) -> torch.dtype:
    """A dtype by name; None is bfloat16 on CUDA and float32 on the CPU."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype is None:
        return torch.float32 if device == "cpu" else torch.bfloat16
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in known:
        raise OcrPhasesError(f"Unknown dtype {dtype!r}: use {', '.join(known)}.")
    return known[dtype]


def native_config(raw: dict[str, Any]) -> Any:
    """transformers' config for a checkpoint's ``config.json``, with full attention in every layer.

    Accepts the published layout (``deepseek_vl_v2``) and the one transformers saves (``unlimited_ocr``);
    anything else is an `OcrPhasesError` naming the model type.
    """
    from transformers import UnlimitedOcrConfig

    kind = raw.get("model_type")
    if kind not in (PUBLISHED_TYPE, SAVED_TYPE) or (
        kind == PUBLISHED_TYPE and not _vision_parts(raw) >= _VISION
    ):
        found = ", ".join(sorted(_vision_parts(raw))) or "unknown"
        raise OcrPhasesError(
            f"config.json describes a {kind!r} model with vision parts {found}: "
            "only DeepSeek-OCR (sam_vit_b and clip-l-14-224) can be loaded."
        )
    try:
        check_config(raw)
    except OcrPhasesError as error:
        raise OcrPhasesError(f"config.json is damaged ({error}).") from error
    return UnlimitedOcrConfig(**(_saved_parts(raw) if kind == SAVED_TYPE else _published_parts(raw)))


def _vision_parts(raw: dict[str, Any]) -> set[str]:
    """The names of a published config's vision parts, whatever the config looks like."""
    vision = raw.get("vision_config")
    width = vision.get("width") if isinstance(vision, dict) else None
    return set(width) if isinstance(width, dict) else set()


def _saved_parts(raw: dict[str, Any]) -> dict[str, Any]:
    """Arguments of transformers' config for the layout that it saves, full attention in every layer."""
    text, vision = known(raw["text_config"], SavedText), raw["vision_config"]
    other = set(text.get("layer_types") or ["reference_sliding_attention"]) - {"full_attention"}
    if other:
        raise OcrPhasesError(
            f"This unlimited_ocr checkpoint uses {', '.join(sorted(other))}: only full attention is known."
        )
    return {
        **{name: raw[name] for name in ("image_token_id", "tie_word_embeddings") if name in raw},
        "text_config": text,
        "vision_config": {
            "sam_config": known(vision["sam_config"], SavedSam),
            "encoder_config": known(vision["encoder_config"], SavedClip),
        },
    }


def _published_parts(raw: dict[str, Any]) -> dict[str, Any]:
    """The same for the published layout."""
    vision = raw["vision_config"]
    sam, clip = vision["width"]["sam_vit_b"], vision["width"]["clip-l-14-224"]
    text = known(raw["language_config"], PublishedText)
    text["layer_types"] = ["full_attention"] * text["num_hidden_layers"]
    text["sliding_window"] = text["max_position_embeddings"]
    ratio = vision.get("mlp_ratio", 4.0)
    sam_config = {
        "hidden_size": sam["width"],
        "num_hidden_layers": sam["layers"],
        "num_attention_heads": sam["heads"],
        "global_attn_indexes": sam["global_attn_indexes"],
        "downsample_channels": sam["downsample_channels"],
        "output_channels": sam.get("output_channels", 256),
        "image_size": vision.get("image_size", 1024),
        "mlp_dim": int(sam["width"] * ratio),
    }
    clip_config = {
        "hidden_size": clip["width"],
        "intermediate_size": int(clip["width"] * ratio),
        "num_hidden_layers": clip["layers"],
        "num_attention_heads": clip["heads"],
        "image_size": clip["image_size"],
        "patch_size": clip["patch_size"],
    }
    return {
        "text_config": text,
        "vision_config": {"sam_config": sam_config, "encoder_config": clip_config},
        "image_token_id": raw.get("image_token_id", PUBLISHED["image_token_id"]),
    }


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of ``tokenizer.json``, whatever class the folder's label claims.

    Refused (`OcrPhasesError`) where a special token is not one id, or a sentence with spaces, digits and
    non-ASCII does not survive encoding and decoding.
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
    split = [text for text in SPECIAL_TOKENS if len(tokenizer.encode(text, add_special_tokens=False)) != 1]
    if split:
        raise OcrPhasesError(
            f"The tokenizer in {folder} splits {', '.join(split)}: it is not DeepSeek-OCR's."
        )
    back = tokenizer.decode(tokenizer.encode(ROUND_TRIP, add_special_tokens=False))
    if back != ROUND_TRIP:
        raise OcrPhasesError(
            f"The tokenizer in {folder} turns {ROUND_TRIP!r} into {back!r}: it is damaged or mislabelled."
        )
    return tokenizer


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


def _load_folder(
    folder: Path,
    name: str,
    device: str,
    dtype: torch.dtype,
    *,
    revision: str | None = None,
    default_preset: str = "gundam",
) -> Checkpoint:
    from transformers import UnlimitedOcrForConditionalGeneration

    raw = read_config(folder)
    config = native_config(raw)
    tokenizer = load_tokenizer(folder)
    image_token_id = image_token(raw, tokenizer)
    config.image_token_id = image_token_id
    try:
        with progress_bar_in_terminals():
            model, report = UnlimitedOcrForConditionalGeneration.from_pretrained(
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
        raise OcrPhasesError(f"The weights in {folder} do not fit DeepSeek-OCR: {first}") from error
    check_loaded(folder, report)
    model = model.to(device).eval()
    return Checkpoint(
        model=model,
        tokenizer=tokenizer,
        name=name,
        source=str(folder) if name not in ("tiny",) else "built-in",
        revision=revision or f"sha256:{folder_hash(folder)}",
        config=raw,
        image_token_id=image_token_id,
        default_preset=default_preset,
    )


_DUMMY_SIZES = {
    "layers": ("language_config", "num_hidden_layers"),
    "hidden": ("language_config", "hidden_size"),
    "heads": ("language_config", "num_attention_heads"),
    "experts": ("language_config", "n_routed_experts"),
    "vocab": ("language_config", "vocab_size"),
    "sam_layers": ("sam_vit_b", "layers"),
    "clip_layers": ("clip-l-14-224", "layers"),
}


def dummy_config(name: str) -> dict[str, Any]:
    """The published config with the sizes in ``dummy:layers=2,vocab=2048,...`` put in place.

    Known sizes: layers, hidden, heads, experts, vocab, sam_layers, clip_layers.
    """
    raw = copy.deepcopy(PUBLISHED)
    widths = raw["vision_config"]["width"]
    sections = {"language_config": raw["language_config"], **widths}
    for part in filter(None, name.partition(":")[2].split(",")):
        key, _, value = part.partition("=")
        if key not in _DUMMY_SIZES or not re.fullmatch(r"[1-9]\d*", value):
            raise OcrPhasesError(
                f"{part!r} is no size of dummy: write dummy:KEY=NUMBER,... with {', '.join(_DUMMY_SIZES)}."
            )
        section, field = _DUMMY_SIZES[key]
        sections[section][field] = int(value)
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
    from transformers import UnlimitedOcrForConditionalGeneration

    raw = dummy_config(name)
    config = native_config(raw)
    with torch.device(device), torch.random.fork_rng(devices=[] if device == "cpu" else None):
        model = UnlimitedOcrForConditionalGeneration._from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
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
        default_ignore_eos=True,
    )


def _require_transformers() -> None:
    import transformers

    if transformers_version() < NATIVE_NEEDS:
        raise OcrPhasesError(
            f"The native model needs transformers >= {'.'.join(map(str, NATIVE_NEEDS))}, "
            f"here is {transformers.__version__}: upgrade transformers."
        )
