"""A checkpoint's JSON files, without torch: any known layout of ``config.json`` as transformers saves it.

A published layout is turned into the saved one, and that alone is held against declared types and ranges.
Entries that are not named here are never handed on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, TypedDict, get_type_hints

from msgspec import Meta

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, WINDOWED, FamilyFacts
from ocr_phases.schema import conform

# Several times the published sizes; products of them stay within 64 bits.
_Width = Annotated[int, Meta(ge=1, le=2**15)]
_Layers = Annotated[int, Meta(ge=1, le=2**8)]
_Heads = Annotated[int, Meta(ge=1, le=2**10)]
_Experts = Annotated[int, Meta(ge=1, le=2**12)]
_Vocab = Annotated[int, Meta(ge=1, le=2**22)]
_Positions = Annotated[int, Meta(ge=1, le=2**24)]
_Window = Annotated[int, Meta(ge=2, le=2**24)]  # the class keeps everything for a window of 1
_Side = Annotated[int, Meta(ge=1, le=2**14)]
_Id = Annotated[int, Meta(ge=0, le=2**31)]
_Small = Annotated[float, Meta(gt=0, le=1)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Factor = Annotated[float, Meta(gt=0, le=1e12)]
_Pair = Annotated[list[_Width], Meta(min_length=2, max_length=2)]
_Act = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu"]


class _Rope(TypedDict, total=False):
    rope_theta: _Factor
    rope_type: Literal["default"]


class _Text(TypedDict, total=False):
    """The language model. A class would put another model's sizes in the place of what is required here."""

    attention_bias: bool
    attention_dropout: _Share | None
    bos_token_id: Required[_Id]
    eos_token_id: Required[_Id]
    hidden_act: _Act
    hidden_size: Required[_Width]
    initializer_range: _Share
    intermediate_size: Required[_Width]
    layer_types: list[Literal["full_attention", "reference_sliding_attention"]] | None
    max_position_embeddings: Required[_Positions]
    mlp_bias: bool
    mlp_layer_types: Required[list[Literal["dense", "sparse"]]]
    moe_intermediate_size: Required[_Width]
    n_group: _Experts | None
    n_routed_experts: Required[_Experts]
    n_shared_experts: Required[_Heads]
    num_attention_heads: Required[_Heads]
    num_experts_per_tok: Required[_Experts]
    num_hidden_layers: Required[_Layers]
    num_key_value_heads: _Heads | None
    pad_token_id: _Id | None
    rms_norm_eps: _Small
    rope_parameters: _Rope | None
    routed_scaling_factor: _Factor
    sliding_window: _Window
    tie_word_embeddings: bool
    topk_group: _Experts | None
    topk_method: Literal["greedy"]
    vocab_size: Required[_Vocab]


class _Encoder(TypedDict, total=False):
    attention_dropout: _Share | None
    hidden_act: _Act
    hidden_size: Required[_Width]
    initializer_range: _Share
    layer_norm_eps: _Small
    num_attention_heads: Required[_Heads]
    num_channels: Literal[3]
    num_hidden_layers: Required[_Layers]


class _Sam(_Encoder, total=False):
    downsample_channels: Required[_Pair]
    global_attn_indexes: Required[list[Annotated[int, Meta(ge=0, le=2**8)]]]
    image_size: _Side
    mlp_dim: Required[_Width]
    output_channels: Required[_Width]
    patch_size: _Side
    qkv_bias: bool
    use_abs_pos: bool
    use_rel_pos: bool
    window_size: _Side


class _Clip(_Encoder, total=False):
    image_size: Required[_Side]
    initializer_factor: _Factor
    intermediate_size: Required[_Width]
    patch_size: Required[_Side]


class _EncoderRope(TypedDict):
    rope_theta: _Factor
    rope_type: Literal["default"]


class _Qwen2(TypedDict, total=False):
    attention_dropout: _Share | None
    hidden_act: _Act
    hidden_size: Required[_Width]
    initializer_range: _Share
    intermediate_size: Required[_Width]
    layer_types: list[Literal["full_attention"]] | None
    max_position_embeddings: _Positions
    num_attention_heads: Required[_Heads]
    num_hidden_layers: Required[_Layers]
    num_key_value_heads: Required[_Heads]
    rms_norm_eps: _Small
    rope_parameters: Required[_EncoderRope]


class _Vision(TypedDict):
    sam_config: _Sam
    encoder_config: _Clip


class _Saved(TypedDict):
    text_config: _Text
    vision_config: _Vision
    image_token_id: NotRequired[_Id]
    tie_word_embeddings: NotRequired[bool]


class _Vision2(TypedDict):
    sam_config: _Sam
    encoder_config: _Qwen2


class _Saved2(_Saved):
    vision_config: _Vision2  # type: ignore[misc]


class AnyConfig(TypedDict, total=False):
    """What is read of any ``config.json``."""

    model_type: str
    image_token_id: _Id
    auto_map: dict[str, str]


class Generation(TypedDict, total=False):
    """``generation_config.json``."""

    bos_token_id: _Id | None
    eos_token_id: _Id | list[_Id] | None
    pad_token_id: _Id | None
    max_length: _Positions | None
    max_new_tokens: _Positions | None
    do_sample: bool | None
    temperature: _Factor | None
    top_p: _Share | None
    top_k: _Vocab | None
    no_repeat_ngram_size: Annotated[int, Meta(ge=0, le=2**24)] | None
    use_cache: bool | None


class WeightsIndex(TypedDict):
    """``model.safetensors.index.json``: which file of the same folder each tensor is in."""

    metadata: dict[str, Any]
    weight_map: dict[str, Annotated[str, Meta(pattern=r"^[\w.-]+\.safetensors$")]]


class _Token(TypedDict):
    content: str


class TokenizerLabels(TypedDict, total=False):
    """``tokenizer_config.json``: the special tokens, the rest is not read."""

    bos_token: str | _Token | None
    eos_token: str | _Token | None
    pad_token: str | _Token | None


# -- the published layout ---------------------------------------------------------------------------


class _PublishedText(TypedDict, total=False):
    num_hidden_layers: Required[_Layers]
    max_position_embeddings: Required[_Positions]
    first_k_dense_replace: Annotated[int, Meta(ge=0, le=2**8)]
    rope_theta: _Factor
    sliding_window_size: _Window


class _PublishedVision(TypedDict):
    width: dict[str, dict[str, Any]]
    image_size: NotRequired[_Side]
    mlp_ratio: NotRequired[Annotated[float, Meta(gt=0, le=64)]]


class _Published(TypedDict, total=False):
    """What turning a published config into the saved layout computes with; the rest is renamed."""

    language_config: Required[_PublishedText]
    vision_config: Required[_PublishedVision]
    sliding_window_size: _Window
    sliding_window: _Window


_SAM = "sam_vit_b"
#: The saved layout by the published name of the second vision encoder.
_SHAPES: dict[str, Any] = {"clip-l-14-224": _Saved, "qwen2-0-5b": _Saved2}
#: The saved names of a published vision part's entries; others are the same in both.
_RENAMED = {
    "width": "hidden_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}
#: What a published vision part need not say. Of the second encoder, a Qwen2-0.5B, the published file gives
#: the width alone; the class's own RoPE base of 10,000 gives other tokens.
_UNSAID: dict[str, dict[str, Any]] = {
    _SAM: {"output_channels": 256},
    "clip-l-14-224": {},
    "qwen2-0-5b": {
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
}


class ModelConfig(NamedTuple):
    """A checked config: its ``family``, and ``saved``, what its class's config takes.

    ``saved`` has ``text_config`` and ``vision_config`` (``sam_config``, ``encoder_config``) with every size.
    """

    family: FamilyFacts
    saved: dict[str, Any]

    @property
    def window(self) -> int | None:
        """How many generated tokens a decode step sees, its own among them; None for all."""
        return self.saved["text_config"]["sliding_window"] if self.family.attention == WINDOWED else None


def read_model_config(config: dict[str, Any]) -> ModelConfig:
    """A checkpoint's ``config.json``, as published or as transformers saves it, in the saved layout.

    Raises `OcrPhasesError`, naming the known ones, for another model's, and, naming the entry, where it is
    damaged or lacks a size.
    """
    family, published = _layout(config)
    shape = _SHAPES[family.encoder_part]
    try:
        if published:
            conform(config, _Published)
            config = _as_saved(config, family)
        conform(config, shape)
        saved = _declared(config, shape)
        _check_sizes(saved, family)
    except OcrPhasesError as error:
        text = _published_names(str(error), family) if published else str(error)
        raise OcrPhasesError(f"config.json is damaged ({text}).") from error
    return ModelConfig(family, saved)


def _layout(config: dict[str, Any]) -> tuple[FamilyFacts, bool]:
    """The family of a config, and whether it is in the published layout."""
    vision, text = config.get("vision_config"), config.get("text_config")
    width = vision.get("width") if isinstance(vision, dict) else None
    parts = set(width) if isinstance(width, dict) else set()
    types = text.get("layer_types") if isinstance(text, dict) else None
    # The class's own attention, where a saved config does not say.
    attention = " and ".join(sorted(set(map(str, types)))) if isinstance(types, list) and types else WINDOWED
    for family in FAMILIES.values():
        if config.get("model_type") == family.published_type and {_SAM, family.encoder_part} <= parts:
            return family, True
        if config.get("model_type") == family.saved_type and family.attention in (None, attention):
            return family, False
    known = [
        f"{family.title} ({family.published_type} with {family.encoder_part} and {_SAM}, or "
        f"{family.saved_type}{f' with {family.attention}' if family.attention else ''})"
        for family in FAMILIES.values()
    ]
    raise OcrPhasesError(
        f"config.json describes a {config.get('model_type')!r} model with vision parts "
        f"{', '.join(sorted(parts)) or 'unknown'} and {attention}: what can be loaded is {', '.join(known)}."
    )


def _as_saved(config: dict[str, Any], family: FamilyFacts) -> dict[str, Any]:
    """A published config in the saved layout."""
    language, vision = config["language_config"], config["vision_config"]
    ratio, layers = vision.get("mlp_ratio", 4.0), language["num_hidden_layers"]
    dense = language.get("first_k_dense_replace", 1)
    text = language | {
        "mlp_layer_types": ["dense" if number < dense else "sparse" for number in range(layers)],
        "rope_parameters": {"rope_type": "default", "rope_theta": language.get("rope_theta", 10_000.0)},
    }
    if family.attention is not None:
        # The class needs a number for a window; full attention reads none.
        window = _window(config) if family.attention == WINDOWED else language["max_position_embeddings"]
        text |= {"layer_types": [family.attention] * layers, "sliding_window": window}
    sam, encoder = (
        _UNSAID[name] | {_RENAMED.get(entry, entry): value for entry, value in vision["width"][name].items()}
        for name in (_SAM, family.encoder_part)
    )
    sam |= {"image_size": vision.get("image_size", 1024), "mlp_dim": _times(sam, ratio)}
    encoder.setdefault("intermediate_size", _times(encoder, ratio))
    parts = {"sam_config": sam, "encoder_config": encoder}
    return {
        "text_config": text,
        "vision_config": parts,
        "image_token_id": config.get("image_token_id", 128815),
    }


def _times(part: dict[str, Any], ratio: float) -> Any:
    """The MLP's width; what is no number is returned as it is, and refused with the rest."""
    width = part.get("hidden_size")
    return int(width * ratio) if isinstance(width, int) else width


def _window(config: dict[str, Any]) -> int:
    """The window of a published config, from the places that its vendor's code reads."""
    names = ("sliding_window_size", "sliding_window")
    windows = {config["language_config"].get(names[0]), *(config.get(name) for name in names)} - {None}
    if len(windows) != 1:  # which of them the vendor's code takes would be a guess
        listed = ", ".join(map(str, sorted(windows))) or "none"
        raise OcrPhasesError(f"sliding_window_size: one window is needed, it has {listed}")
    return windows.pop()


def _declared(value: Any, shape: Any) -> Any:
    """The entries that ``shape``, a `TypedDict`, names; so for the sections in it."""
    hints = get_type_hints(shape)
    return {
        name: _declared(value[name], hint) if hasattr(hint, "__total__") else value[name]
        for name, hint in hints.items()
        if name in value
    }


def _check_sizes(saved: dict[str, Any], family: FamilyFacts) -> None:
    """Raise `OcrPhasesError` for sizes that do not fit each other."""
    text, vision = saved["text_config"], saved["vision_config"]
    if family.attention == WINDOWED and "sliding_window" not in text:
        raise OcrPhasesError("the language model has no sliding_window")
    for name, part in {"text_config": text, **vision}.items():
        width, heads = part["hidden_size"], part["num_attention_heads"]
        if width % heads:
            raise OcrPhasesError(f"{name}: hidden_size {width} is no multiple of num_attention_heads {heads}")
    if text["num_experts_per_tok"] > text["n_routed_experts"]:
        raise OcrPhasesError("num_experts_per_tok is more than n_routed_experts")
    if text["num_attention_heads"] % (text.get("num_key_value_heads") or 1):
        raise OcrPhasesError("num_attention_heads is no multiple of num_key_value_heads")
    for name in ("layer_types", "mlp_layer_types"):
        if text.get(name) is not None and len(text[name]) != text["num_hidden_layers"]:
            raise OcrPhasesError(f"{name}: there are other layers than num_hidden_layers")


def _published_names(text: str, family: FamilyFacts) -> str:
    """A message about the saved layout with the entry's name in the published file."""
    section = {"sam_config": _SAM, "encoder_config": family.encoder_part}
    for saved, part in section.items():
        if saved in text:
            text = text.replace(f"vision_config.{saved}", f"vision_config.width.{part}").replace(saved, part)
            for name in ("width", "layers", "heads", "kv_heads"):
                text = text.replace(_RENAMED[name], name)
    return text.replace("text_config", "language_config")
