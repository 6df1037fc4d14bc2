"""What the JSON files of a checkpoint may hold, declared once: types, ranges, and sizes that fit each other.

Of each family the layout of its publisher and the one that transformers saves are known (`LAYOUTS`).
Entries that are not named here are never handed on (`known`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict, get_type_hints

from msgspec import Meta

from ocr_phases.catalogue import DEEPSEEK_OCR, DEEPSEEK_OCR_2, FAMILIES, UNLIMITED_OCR
from ocr_phases.errors import OcrPhasesError
from ocr_phases.plain_json import conform

PUBLISHED, SAVED = "deepseek_vl_v2", "unlimited_ocr"
FULL, WINDOWED = "full_attention", "reference_sliding_attention"

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
_Indexes = list[Annotated[int, Meta(ge=0, le=2**8)]]
_Act = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu"]


class Text(TypedDict, total=False):
    """The language model; the names that both layouts share."""

    bos_token_id: _Id
    eos_token_id: _Id
    hidden_size: _Width
    intermediate_size: _Width
    max_position_embeddings: Required[_Positions]
    moe_intermediate_size: _Width
    n_group: _Experts | None
    n_routed_experts: _Experts
    n_shared_experts: _Heads
    num_attention_heads: _Heads
    num_experts_per_tok: _Experts
    num_hidden_layers: Required[_Layers]
    num_key_value_heads: _Heads | None
    rms_norm_eps: _Small
    routed_scaling_factor: _Factor
    topk_group: _Experts | None
    topk_method: Literal["greedy"]
    vocab_size: _Vocab


class PublishedText(Text, total=False):
    """``language_config`` of the published layout."""

    first_k_dense_replace: Annotated[int, Meta(ge=0, le=2**8)]
    rope_theta: _Factor


class _WindowedText(PublishedText, total=False):
    sliding_window_size: _Window


class _Rope(TypedDict, total=False):
    rope_theta: _Factor
    rope_type: Literal["default"]


class SavedText(Text, total=False):
    """``text_config`` as transformers saves it."""

    attention_bias: bool
    attention_dropout: _Share | None
    hidden_act: _Act
    initializer_range: _Share
    layer_types: list[str] | None
    mlp_bias: bool
    mlp_layer_types: list[Literal["dense", "sparse"]] | None
    pad_token_id: _Id | None
    rope_parameters: _Rope | None
    sliding_window: _Window
    tie_word_embeddings: bool


class _PublishedSam(TypedDict):
    width: _Width
    layers: _Layers
    heads: _Heads
    global_attn_indexes: _Indexes
    downsample_channels: _Pair
    output_channels: NotRequired[_Width]


class _PublishedClip(TypedDict):
    width: _Width
    layers: _Layers
    heads: _Heads
    image_size: _Side
    patch_size: _Side


_PublishedParts = TypedDict("_PublishedParts", {"sam_vit_b": _PublishedSam, "clip-l-14-224": _PublishedClip})


class _PublishedVision(TypedDict):
    width: _PublishedParts
    image_size: NotRequired[_Side]
    mlp_ratio: NotRequired[Annotated[float, Meta(gt=0, le=64)]]


class _PublishedQwen2(TypedDict, total=False):
    """Of the file as published only ``dim`` is there."""

    dim: Required[_Width]
    layers: _Layers
    heads: _Heads
    kv_heads: _Heads
    intermediate_size: _Width


_PublishedParts2 = TypedDict("_PublishedParts2", {"sam_vit_b": _PublishedSam, "qwen2-0-5b": _PublishedQwen2})


class _PublishedVision2(TypedDict):
    width: _PublishedParts2
    image_size: NotRequired[_Side]
    mlp_ratio: NotRequired[Annotated[float, Meta(gt=0, le=64)]]


class PublishedConfig2(TypedDict):
    """``config.json`` of DeepSeek-OCR-2 as published."""

    language_config: PublishedText
    vision_config: _PublishedVision2
    image_token_id: NotRequired[_Id]


class PublishedConfig(TypedDict):
    """``config.json`` as published."""

    language_config: PublishedText
    vision_config: _PublishedVision
    image_token_id: NotRequired[_Id]


class PublishedWindowed(TypedDict, total=False):
    """``config.json`` of Unlimited-OCR as published: DeepSeek-OCR's, and a window in two or three places."""

    language_config: Required[_WindowedText]
    vision_config: Required[_PublishedVision]
    image_token_id: _Id
    sliding_window_size: _Window
    sliding_window: _Window


class _SavedEncoder(TypedDict, total=False):
    attention_dropout: _Share | None
    hidden_act: _Act
    hidden_size: _Width
    image_size: _Side
    initializer_range: _Share
    layer_norm_eps: _Small
    num_attention_heads: _Heads
    num_channels: Literal[3]
    num_hidden_layers: _Layers
    patch_size: _Side


class SavedSam(_SavedEncoder, total=False):
    """``sam_config`` as transformers saves it."""

    downsample_channels: _Pair
    global_attn_indexes: _Indexes
    mlp_dim: _Width
    output_channels: _Width
    qkv_bias: bool
    use_abs_pos: bool
    use_rel_pos: bool
    window_size: _Side


class SavedClip(_SavedEncoder, total=False):
    """``encoder_config`` as transformers saves it."""

    initializer_factor: _Factor
    intermediate_size: _Width


class _EncoderRope(TypedDict):
    rope_theta: _Factor
    rope_type: Literal["default"]


#: What of the published second encoder its ``config.json`` does not say: it is a Qwen2-0.5B.
QWEN2_SIZES = {"layers": 24, "heads": 14, "kv_heads": 2, "intermediate_size": 4864}


class SavedQwen2(TypedDict, total=False):
    """``encoder_config`` of DeepSeek-OCR-2 as transformers saves it."""

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


class _SavedVision2(TypedDict):
    sam_config: SavedSam
    encoder_config: SavedQwen2


class SavedConfig2(TypedDict):
    """``config.json`` of DeepSeek-OCR-2 as transformers saves it."""

    text_config: SavedText
    vision_config: _SavedVision2
    image_token_id: NotRequired[_Id]
    tie_word_embeddings: NotRequired[bool]


class _SavedVision(TypedDict):
    sam_config: SavedSam
    encoder_config: SavedClip


class SavedConfig(TypedDict):
    """``config.json`` as transformers saves it."""

    text_config: SavedText
    vision_config: _SavedVision
    image_token_id: NotRequired[_Id]
    tie_word_embeddings: NotRequired[bool]


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


@dataclass(frozen=True)
class Layout:
    """One way in which the config of a family is written: its ``model_type`` and its ``shape``.

    ``parts`` are the names of its vision parts, where the type alone does not tell the family, ``attention``
    the kind that all layers have, where nothing else does. ``needs`` are
    entries of the language model that have to be there: its class would put another model's in their place.
    """

    family: str
    model_type: str
    shape: Any
    parts: frozenset[str] = frozenset()
    needs: tuple[str, ...] = ()
    attention: str | None = None

    @property
    def saved(self) -> bool:
        """Whether transformers wrote it."""
        return "text_config" in self.shape.__annotations__

    def described(self) -> str:
        """The layout in words."""
        parts = f" with {' and '.join(sorted(self.parts))}" if self.parts else ""
        attention = f" with {self.attention}" if self.attention else ""
        return f"{FAMILIES[self.family].title} ({self.model_type}{parts}{attention})"


_TEXT = (
    *("bos_token_id", "eos_token_id", "hidden_size", "intermediate_size", "max_position_embeddings"),
    *("moe_intermediate_size", "n_routed_experts", "n_shared_experts", "num_attention_heads"),
    *("num_experts_per_tok", "num_hidden_layers", "vocab_size"),
)

LAYOUTS = (
    Layout(DEEPSEEK_OCR, PUBLISHED, PublishedConfig, frozenset(_PublishedParts.__annotations__)),
    Layout(DEEPSEEK_OCR, SAVED, SavedConfig, attention=FULL),
    Layout(DEEPSEEK_OCR_2, PUBLISHED, PublishedConfig2, frozenset(_PublishedParts2.__annotations__), _TEXT),
    Layout(DEEPSEEK_OCR_2, "deepseek_ocr2", SavedConfig2, needs=(*_TEXT, "mlp_layer_types")),
    Layout(UNLIMITED_OCR, "unlimited-ocr", PublishedWindowed, frozenset(_PublishedParts.__annotations__)),
    Layout(UNLIMITED_OCR, SAVED, SavedConfig, needs=("sliding_window",), attention=WINDOWED),
)
"""Every layout that is known; the first that fits is a config's."""


def layout_of(config: dict[str, Any]) -> Layout:
    """The layout of a config; `OcrPhasesError`, naming the known ones, for another model's."""
    vision = config.get("vision_config")
    width = vision.get("width") if isinstance(vision, dict) else None
    found = set(width) if isinstance(width, dict) else set()
    attention = _attention(config)
    for layout in LAYOUTS:
        fits = layout.parts <= found and layout.attention in (None, attention)
        if config.get("model_type") == layout.model_type and fits:
            return layout
    raise OcrPhasesError(
        f"config.json describes a {config.get('model_type')!r} model with vision parts "
        f"{', '.join(sorted(found)) or 'unknown'} and {attention}: what can be loaded is "
        f"{', '.join(layout.described() for layout in LAYOUTS)}."
    )


def _attention(config: dict[str, Any]) -> str:
    """The attention of all layers of a config that transformers saved; `WINDOWED` where it does not say."""
    text = config.get("text_config")
    types = text.get("layer_types") if isinstance(text, dict) else None
    if not isinstance(types, list) or not types:
        return WINDOWED
    return " and ".join(sorted(set(map(str, types))))


def published_window(config: dict[str, Any]) -> int:
    """The window of a published Unlimited-OCR config, from the places that its vendor's code reads.

    `OcrPhasesError` where none of them has it, or two differ: the vendor's own would then be a guess.
    """
    found = {
        config["language_config"].get("sliding_window_size"),
        config.get("sliding_window_size"),
        config.get("sliding_window"),
    } - {None}
    if len(found) != 1:
        listed = ", ".join(map(str, sorted(found))) or "none"
        raise OcrPhasesError(f"sliding_window_size: one window is needed, it has {listed}")
    return found.pop()


def check_config(config: dict[str, Any]) -> Layout:
    """The layout of a model's config; `OcrPhasesError`, naming the entry, where it is damaged."""
    layout = layout_of(config)
    try:
        conform(config, layout.shape)
        for what, fits in _fits(config, layout):
            if not fits:
                raise OcrPhasesError(what)
    except OcrPhasesError as error:
        raise OcrPhasesError(f"config.json is damaged ({error}).") from error
    return layout


def known(section: dict[str, Any], shape: Any) -> dict[str, Any]:
    """The entries of a section that ``shape``, a `TypedDict`, names."""
    return {name: section[name] for name in get_type_hints(shape) if name in section}


def _fits(config: dict[str, Any], layout: Layout) -> Any:
    """What has to fit each other within a config of the right types, each with whether it does."""
    if layout.saved:
        text, vision = config["text_config"], config["vision_config"]
        parts = {
            "sam_config": (vision["sam_config"], "hidden_size", "num_attention_heads"),
            "encoder_config": (vision["encoder_config"], "hidden_size", "num_attention_heads"),
        }
    else:
        text, vision = config["language_config"], config["vision_config"]["width"]
        parts = {name: (vision[name], "width", "heads") for name in layout.parts}
    if layout.shape is PublishedWindowed:
        published_window(config)
    for name in layout.needs:
        yield f"the language model has no {name}", text.get(name) is not None
    parts["the language model"] = (text, "hidden_size", "num_attention_heads")
    for name, (part, width, heads) in parts.items():
        if width in part and heads in part:
            yield f"{name}: {width} is no multiple of {heads}", part[width] % part[heads] == 0
    experts = text.get("n_routed_experts", 2**12)
    yield (
        "num_experts_per_tok is more than n_routed_experts",
        (text.get("num_experts_per_tok") or 1) <= experts,
    )
    if text.get("num_key_value_heads") and "num_attention_heads" in text:
        divides = text["num_attention_heads"] % text["num_key_value_heads"] == 0
        yield "num_attention_heads is no multiple of num_key_value_heads", divides
    for name in ("layer_types", "mlp_layer_types"):
        if text.get(name) is not None:
            yield (
                f"{name}: there are other layers than num_hidden_layers",
                (len(text[name]) == text.get("num_hidden_layers", len(text[name]))),
            )
