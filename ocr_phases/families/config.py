"""A checkpoint's JSON files: any known layout of ``config.json``, as transformers saves it.

There are two layouts: the *published* one of the makers, and the *saved* one, which transformers
writes. A published config is turned into the saved layout, and that alone is checked against
declared types and ranges. Entries that are not named here are never handed on.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from msgspec import Meta

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, WINDOWED, FamilyFacts
from ocr_phases.families.facts import SAM_PART
from ocr_phases.files import conform

# The types of the entries. Ranges reach to several times the published sizes, and end so low that
# no product of sizes needs more than 64 bits.
TokenId = Annotated[int, Meta(ge=0, le=2**31)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
LayerIndex = Annotated[int, Meta(ge=0, le=2**8)]
Width = Annotated[int, Meta(ge=1, le=2**15)]
Layers = Annotated[int, Meta(ge=1, le=2**8)]
Heads = Annotated[int, Meta(ge=1, le=2**10)]
Experts = Annotated[int, Meta(ge=1, le=2**12)]
VocabularySize = Annotated[int, Meta(ge=1, le=2**22)]
PositionCount = Annotated[int, Meta(ge=1, le=2**24)]
TokenCount = Annotated[int, Meta(ge=0, le=2**24)]
Window = Annotated[int, Meta(ge=2, le=2**24)]  # the class keeps everything for a window of 1
Side = Annotated[int, Meta(ge=1, le=2**14)]
Pair = Annotated[list[Width], Meta(min_length=2, max_length=2)]
Epsilon = Annotated[float, Meta(gt=0, le=1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Ratio = Annotated[float, Meta(gt=0, le=64)]
Factor = Annotated[float, Meta(gt=0, le=1e12)]
NonNegative = Annotated[float, Meta(ge=0, le=1e12)]
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu"]
RopeType = Literal["default"]
Attention = Literal["full_attention", "reference_sliding_attention"]
FullAttention = Literal["full_attention"]
MlpType = Literal["dense", "sparse"]
GreedyTopK = Literal["greedy"]
Colours = Literal[3]
SafetensorsName = Annotated[str, Meta(pattern=r"^[\w.-]+\.safetensors$")]


class TokenContent(TypedDict):
    """A special token that is written as an object."""

    content: str


class PublishedEncoder(TypedDict):
    """The width of a published vision encoder, under one of two names."""

    width: NotRequired[Width]
    dim: NotRequired[Width]


class AnyConfig(TypedDict):
    """What is read of any ``config.json``."""

    image_token_id: NotRequired[TokenId | None]
    model_type: NotRequired[str]
    auto_map: NotRequired[dict[str, str]]
    eos_token_id: NotRequired[TokenId | list[TokenId] | None]


class Generation(TypedDict):
    """What is read of ``generation_config.json``."""

    bos_token_id: NotRequired[TokenId | None]
    eos_token_id: NotRequired[TokenId | list[TokenId] | None]
    pad_token_id: NotRequired[TokenId | None]
    max_length: NotRequired[PositionCount | None]
    max_new_tokens: NotRequired[PositionCount | None]
    do_sample: NotRequired[bool | None]
    temperature: NotRequired[NonNegative | None]
    top_p: NotRequired[Fraction | None]
    top_k: NotRequired[TokenCount | None]
    no_repeat_ngram_size: NotRequired[TokenCount | None]
    repetition_penalty: NotRequired[Factor | None]
    suppress_tokens: NotRequired[list[TokenId] | None]
    begin_suppress_tokens: NotRequired[list[TokenId] | None]
    bad_words_ids: NotRequired[list[TokenIds] | None]
    min_length: NotRequired[TokenCount | None]
    min_new_tokens: NotRequired[TokenCount | None]
    use_cache: NotRequired[bool | None]


class WeightsIndex(TypedDict):
    """``model.safetensors.index.json``: which file of the same folder each tensor is in."""

    metadata: dict[str, Any]
    weight_map: dict[str, SafetensorsName]


class TokenizerLabels(TypedDict):
    """``tokenizer_config.json``: the special tokens; the rest is not read."""

    bos_token: NotRequired[str | TokenContent | None]
    eos_token: NotRequired[str | TokenContent | None]
    pad_token: NotRequired[str | TokenContent | None]


class RopeParameters(TypedDict):
    """The rotary embedding of the language model."""

    rope_theta: NotRequired[Factor]
    rope_type: NotRequired[RopeType]


class EncoderRopeParameters(TypedDict):
    """The rotary embedding of the second vision encoder."""

    rope_theta: Factor
    rope_type: RopeType


class TextConfig(TypedDict):
    """The language model.

    What is required here would be another model's size if it were missing: a class of transformers
    has a default for each of its entries.
    """

    attention_bias: NotRequired[bool]
    attention_dropout: NotRequired[Fraction | None]
    bos_token_id: TokenId
    eos_token_id: TokenId | list[TokenId]
    hidden_act: NotRequired[Activation]
    hidden_size: Width
    initializer_range: NotRequired[Fraction]
    intermediate_size: Width
    layer_types: NotRequired[list[Attention] | None]
    max_position_embeddings: PositionCount
    mlp_bias: NotRequired[bool]
    mlp_layer_types: list[MlpType]
    moe_intermediate_size: Width
    n_group: NotRequired[Experts | None]
    n_routed_experts: Experts
    n_shared_experts: Heads
    num_attention_heads: Heads
    num_experts_per_tok: Experts
    num_hidden_layers: Layers
    num_key_value_heads: NotRequired[Heads | None]
    pad_token_id: NotRequired[TokenId | None]
    rms_norm_eps: NotRequired[Epsilon]
    rope_parameters: NotRequired[RopeParameters | None]
    routed_scaling_factor: NotRequired[Factor]
    sliding_window: NotRequired[Window]
    tie_word_embeddings: NotRequired[bool]
    topk_group: NotRequired[Experts | None]
    topk_method: NotRequired[GreedyTopK]
    vocab_size: VocabularySize


class SamConfig(TypedDict):
    """The first vision encoder."""

    attention_dropout: NotRequired[Fraction | None]
    hidden_act: NotRequired[Activation]
    hidden_size: Width
    initializer_range: NotRequired[Fraction]
    num_attention_heads: Heads
    num_hidden_layers: Layers
    downsample_channels: Pair
    global_attn_indexes: list[LayerIndex]
    image_size: NotRequired[Side]
    layer_norm_eps: NotRequired[Epsilon]
    mlp_dim: Width
    num_channels: NotRequired[Colours]
    output_channels: Width
    patch_size: NotRequired[Side]
    qkv_bias: NotRequired[bool]
    use_abs_pos: NotRequired[bool]
    use_rel_pos: NotRequired[bool]
    window_size: NotRequired[Side]


class ClipConfig(TypedDict):
    """The second vision encoder where it is CLIP."""

    attention_dropout: NotRequired[Fraction | None]
    hidden_act: NotRequired[Activation]
    hidden_size: Width
    initializer_range: NotRequired[Fraction]
    num_attention_heads: Heads
    num_hidden_layers: Layers
    image_size: Side
    initializer_factor: NotRequired[Factor]
    intermediate_size: Width
    layer_norm_eps: NotRequired[Epsilon]
    num_channels: NotRequired[Colours]
    patch_size: Side


class EncoderConfig(TypedDict):
    """The second vision encoder where it is a Qwen2 body."""

    attention_dropout: NotRequired[Fraction | None]
    hidden_act: NotRequired[Activation]
    hidden_size: Width
    initializer_range: NotRequired[Fraction]
    num_attention_heads: Heads
    num_hidden_layers: Layers
    intermediate_size: Width
    layer_types: NotRequired[list[FullAttention] | None]
    max_position_embeddings: NotRequired[PositionCount]
    num_key_value_heads: Heads
    rms_norm_eps: NotRequired[Epsilon]
    rope_parameters: EncoderRopeParameters


class ClipVisionConfig(TypedDict):
    """Both vision encoders, the second of them CLIP."""

    sam_config: SamConfig
    encoder_config: ClipConfig


class EncoderVisionConfig(TypedDict):
    """Both vision encoders, the second of them a Qwen2 body."""

    sam_config: SamConfig
    encoder_config: EncoderConfig


class ClipModelConfig(TypedDict):
    """A config as transformers saves it, with CLIP."""

    image_token_id: NotRequired[TokenId | None]
    tie_word_embeddings: NotRequired[bool]
    text_config: TextConfig
    vision_config: ClipVisionConfig


class EncoderModelConfig(TypedDict):
    """A config as transformers saves it, with a Qwen2 body."""

    image_token_id: NotRequired[TokenId | None]
    tie_word_embeddings: NotRequired[bool]
    text_config: TextConfig
    vision_config: EncoderVisionConfig


class PublishedLanguage(TypedDict):
    """What the saved layout is computed from, of a published language config.

    The other entries are taken over as they are.
    """

    num_hidden_layers: Layers
    max_position_embeddings: PositionCount
    first_k_dense_replace: NotRequired[LayerIndex]
    rope_theta: NotRequired[Factor]
    sliding_window_size: NotRequired[Window]


class PublishedVision(TypedDict):
    """What the saved layout is computed from, of a published vision config."""

    image_size: NotRequired[Side]
    mlp_ratio: NotRequired[Ratio]
    width: dict[str, PublishedEncoder]


class PublishedConfig(TypedDict):
    """What the saved layout is computed from, of a published config."""

    sliding_window_size: NotRequired[Window]
    sliding_window: NotRequired[Window]
    language_config: PublishedLanguage
    vision_config: PublishedVision


#: A saved config by the stage of its second vision encoder.
_SAVED_CONFIGS = {"clip": ClipModelConfig, "encoder": EncoderModelConfig}

#: The saved names of a published vision part's entries; others are the same in both layouts.
_RENAMED = {
    "width": "hidden_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}

#: The id of the image token where a published config does not say it, and other sizes that the
#: published code takes then.
_IMAGE_TOKEN_ID = 128_815
_IMAGE_SIZE = 1024
_MLP_RATIO = 4.0
_ROPE_THETA = 10_000.0
_SAM_OUTPUT_CHANNELS = 256


class ModelConfig(NamedTuple):
    """A checked config: its ``family``, and ``saved``, what its class's config takes.

    ``saved`` has ``text_config`` and ``vision_config`` (``sam_config``, ``encoder_config``) with
    every size. ``window`` is how many generated tokens a decode step sees, its own among them; None
    for all.
    """

    family: FamilyFacts
    saved: dict[str, Any]
    window: int | None


def read_model_config(config: dict[str, Any]) -> ModelConfig:
    """A checkpoint's ``config.json`` in the saved layout, whichever of the two it is written in.

    Parameters
    ----------
    config : dict
        The content of the file.

    Returns
    -------
    ModelConfig
        The family, every size of the model, and its window.

    Raises
    ------
    OcrPhasesError
        For the config of another model, with the names of the known ones; and, with the name of the
        entry, for one that is damaged or lacks a size.
    """
    family, is_published = _find_layout(config)
    try:
        if is_published:
            conform(config, PublishedConfig)
            config = _as_saved(config, family)
        saved = conform(config, _SAVED_CONFIGS[family.second_encoder])
        _check_sizes(saved, family)
    except OcrPhasesError as error:
        text = str(error)
        if is_published:
            text = _with_published_names(text, family)
        raise OcrPhasesError(f"config.json is damaged ({text}).") from error
    window = None
    if family.attention == WINDOWED:
        window = saved["text_config"]["sliding_window"]
    return ModelConfig(family, saved, window)


def family_of_config(config: dict[str, Any]) -> FamilyFacts:
    """The family of a ``config.json``, whose sizes are not looked at.

    Of families that transformers saves alike, to the kind of attention, it is the first in
    `FAMILIES`: their published files tell them apart, the saved ones do not.

    Raises `OcrPhasesError` for the config of another model, with the names of the known ones.
    """
    return _find_layout(config).family


class _Layout(NamedTuple):
    """The family of a config, and whether it is written in the published layout."""

    family: FamilyFacts
    is_published: bool


def _find_layout(config: dict[str, Any]) -> _Layout:
    """Tell the family of a config and its layout.

    ``model_type`` decides where it is one that a vendor or transformers writes. People save
    these models with others, too (``deepseekocr``, ``DeepseekOCR``, ``deepseek_vl2``): then the
    parts decide.
    """
    model_type = config.get("model_type")
    for family in FAMILIES.values():
        if model_type == family.config["model_type"] and _has_published_parts(config, family):
            return _Layout(family, is_published=True)
        if (
            model_type == family.saved_type
            and not _is_published(config)
            and _has_attention(config, family)
        ):
            return _Layout(family, is_published=False)
    for family in FAMILIES.values():
        if not _names_family(model_type, family):
            continue
        if _has_published_parts(config, family):
            return _Layout(family, is_published=True)
        if _saved_encoder(config) == family.second_encoder and _has_attention(config, family):
            return _Layout(family, is_published=False)
    known = ", ".join(_known_config(family) for family in FAMILIES.values())
    raise OcrPhasesError(
        f"config.json describes {_description(config)}: what can be loaded is {known}."
    )


def _known_config(family: FamilyFacts) -> str:
    """How the two layouts of a family's config are known, for an error."""
    saved = family.saved_type
    if family.attention is not None:
        saved = f"{saved} with {family.attention}"
    published = f"{family.config['model_type']} with {family.encoder_part} and {SAM_PART}"
    return f"{family.title} ({published}, or {saved})"


def _is_published(config: dict[str, Any]) -> bool:
    """Whether a config's vision parts stand where the published layout has them."""
    vision = config.get("vision_config")
    return isinstance(vision, dict) and isinstance(vision.get("width"), dict)


def _vision_parts(config: dict[str, Any]) -> set[str]:
    """The names of a config's vision parts, in either layout."""
    vision = config.get("vision_config")
    if not isinstance(vision, dict):
        return set()
    if _is_published(config):
        return set(vision["width"])
    return {name for name, part in vision.items() if isinstance(part, dict)}


def _has_published_parts(config: dict[str, Any], family: FamilyFacts) -> bool:
    """Whether a config is in the published layout, with the vision encoders of a family."""
    return _is_published(config) and {SAM_PART, family.encoder_part} <= _vision_parts(config)


def _has_attention(config: dict[str, Any], family: FamilyFacts) -> bool:
    """Whether a saved config's layers have the attention of a family.

    Where the file names none, they have that of transformers' class, which is windowed.
    """
    if family.attention is None:
        return True
    kinds = _layer_types(config)
    if not kinds:
        return family.attention == WINDOWED
    return kinds == [family.attention]


def _layer_types(config: dict[str, Any]) -> list[str]:
    """The kinds of layers that a saved config names, each once."""
    text = config.get("text_config")
    if not isinstance(text, dict) or not isinstance(text.get("layer_types"), list):
        return []
    return sorted({str(kind) for kind in text["layer_types"]})


def _names_family(model_type: Any, family: FamilyFacts) -> bool:
    """Whether a ``model_type`` that nobody publishes has the maker of a family in front."""
    if not isinstance(model_type, str):
        return False
    maker, _, _ = family.name.partition("-")
    letters = re.sub("[^a-z]", "", model_type.lower())
    return letters.startswith(maker)


def _saved_encoder(config: dict[str, Any]) -> str | None:
    """The stage of the second vision encoder of a config in the saved layout.

    It is None for another layout.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, dict) or not isinstance(vision.get("sam_config"), dict):
        return None
    encoder = vision.get("encoder_config")
    if not isinstance(encoder, dict):
        return None
    # CLIP cuts an image into patches; Qwen2's body gets vectors, and has rotary positions.
    if "patch_size" in encoder:
        return "clip"
    return "encoder"


def _description(config: dict[str, Any]) -> str:
    """What a config that is of no family says of its model, and no more than it says."""
    model = "a model without model_type"
    if config.get("model_type") is not None:
        model = f"a {config['model_type']!r} model"
    vision = "no vision parts"
    parts = _vision_parts(config)
    if parts:
        vision = f"vision parts {', '.join(sorted(parts))}"
    types = _layer_types(config)
    if types:
        return f"{model} with {vision} and {' and '.join(types)}"
    if isinstance(config.get("text_config"), dict) and parts:
        return f"{model} with {vision} and no layer_types in its text_config"
    return f"{model} with {vision}"


# -- from the published layout to the saved one ----------------------------------------------------


def _as_saved(config: dict[str, Any], family: FamilyFacts) -> dict[str, Any]:
    """A published config in the saved layout."""
    return {
        "text_config": _saved_language(config, family),
        "vision_config": {
            "sam_config": _saved_sam(config),
            "encoder_config": _saved_second_encoder(config, family),
        },
        "image_token_id": config.get("image_token_id", _IMAGE_TOKEN_ID),
    }


def _saved_language(config: dict[str, Any], family: FamilyFacts) -> dict[str, Any]:
    language = config["language_config"]
    layers = language["num_hidden_layers"]
    dense = language.get("first_k_dense_replace", 1)
    rope = {"rope_type": "default", "rope_theta": language.get("rope_theta", _ROPE_THETA)}
    text = dict(language)
    text["mlp_layer_types"] = ["dense" if layer < dense else "sparse" for layer in range(layers)]
    text["rope_parameters"] = rope
    if family.attention is None:
        return text
    text["layer_types"] = [family.attention] * layers
    if family.attention == WINDOWED:
        text["sliding_window"] = _published_window(config)
    else:
        # The class needs a number for a window; full attention reads none.
        text["sliding_window"] = language["max_position_embeddings"]
    return text


def _saved_sam(config: dict[str, Any]) -> dict[str, Any]:
    vision = config["vision_config"]
    sam = {"output_channels": _SAM_OUTPUT_CHANNELS, **_renamed(vision["width"][SAM_PART])}
    sam["image_size"] = vision.get("image_size", _IMAGE_SIZE)
    sam["mlp_dim"] = _mlp_width(vision, sam)
    return sam


def _saved_second_encoder(config: dict[str, Any], family: FamilyFacts) -> dict[str, Any]:
    vision = config["vision_config"]
    encoder = {**family.encoder_defaults, **_renamed(vision["width"][family.encoder_part])}
    encoder.setdefault("intermediate_size", _mlp_width(vision, encoder))
    return encoder


def _renamed(part: dict[str, Any]) -> dict[str, Any]:
    """The entries of a published vision part by their saved names."""
    return {_RENAMED.get(entry, entry): value for entry, value in part.items()}


def _mlp_width(vision: dict[str, Any], part: dict[str, Any]) -> int:
    """The width of a vision part's MLPs; a part without a width of its own is refused later."""
    return int(part.get("hidden_size", 1) * vision.get("mlp_ratio", _MLP_RATIO))


def _published_window(config: dict[str, Any]) -> int:
    """The window of a published config, from the places that its vendor's code reads."""
    places = (
        config["language_config"].get("sliding_window_size"),
        config.get("sliding_window_size"),
        config.get("sliding_window"),
    )
    windows = {window for window in places if window is not None}
    # Of several different ones, which the vendor's code takes would be a guess.
    if len(windows) != 1:
        listed = ", ".join(map(str, sorted(windows))) or "none"
        raise OcrPhasesError(f"sliding_window_size: one window is needed, it has {listed}")
    return windows.pop()


# -- what has to fit -------------------------------------------------------------------------------


def _check_sizes(saved: dict[str, Any], family: FamilyFacts) -> None:
    """Raise `OcrPhasesError` where the sizes of a config do not fit each other."""
    text = saved["text_config"]
    if family.attention == WINDOWED and "sliding_window" not in text:
        raise OcrPhasesError("the language model has no sliding_window")
    for name, part in {"text_config": text, **saved["vision_config"]}.items():
        width = part["hidden_size"]
        heads = part["num_attention_heads"]
        if width % heads:
            raise OcrPhasesError(
                f"{name}: hidden_size {width} is no multiple of num_attention_heads {heads}"
            )
    if text["num_experts_per_tok"] > text["n_routed_experts"]:
        raise OcrPhasesError("num_experts_per_tok is more than n_routed_experts")
    if text["num_attention_heads"] % (text.get("num_key_value_heads") or 1):
        raise OcrPhasesError("num_attention_heads is no multiple of num_key_value_heads")
    for name in ("layer_types", "mlp_layer_types"):
        types = text.get(name)
        if types and len(types) != text["num_hidden_layers"]:
            raise OcrPhasesError(f"{name}: there are other layers than num_hidden_layers")


def _with_published_names(text: str, family: FamilyFacts) -> str:
    """An error about a config, with its entries named as in the file that the user has.

    Configs are checked in the layout of transformers, whose names the published ``config.json``
    does not have. The longer name is replaced first, because it contains the shorter one.
    """
    section = {"sam_config": SAM_PART, "encoder_config": family.encoder_part}
    for saved, part in section.items():
        if saved in text:
            text = text.replace(f"vision_config.{saved}", f"vision_config.width.{part}")
            text = text.replace(saved, part)
            for name in ("width", "layers", "heads", "kv_heads"):
                text = text.replace(_RENAMED[name], name)
    return text.replace("text_config", "language_config")
