"""The sizes of a model, read from its ``config.json`` alone, in any layout that `config_schema` knows.

Attention is full in every layer, or has the family's window in every layer, as the loader makes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ocr_phases.catalogue import UNLIMITED_OCR
from ocr_phases.config_schema import QWEN2_SIZES, check_config, layout_of, published_window
from ocr_phases.errors import OcrPhasesError


@dataclass(frozen=True)
class TextSizes:
    """The language model: SwiGLU MLPs, with a router and experts behind the first ``dense_layers``.

    ``window`` is how many generated tokens a step sees beside the prompt, None for all (`windowed_length`).
    """

    hidden: int
    layers: int
    dense_layers: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int  # of a dense layer
    expert_width: int  # of one expert
    experts: int
    top_k: int
    shared_experts: int
    vocab: int
    window: int | None = None

    @property
    def sparse_layers(self) -> int:
        """Layers with a router and experts."""
        return self.layers - self.dense_layers


@dataclass(frozen=True)
class SamSizes:
    """SAM ViT-B: attention in windows, global in some layers; a neck; two convolutions of stride 2."""

    width: int
    layers: int
    global_layers: int
    heads: int
    mlp_width: int
    neck_width: int
    downsample_widths: tuple[int, int]
    image_size: int  # pixels a side that the positions were made for
    patch: int = 16
    window: int = 14

    def grid(self, side: int) -> int:
        """Patches along one side of a view of ``side`` pixels."""
        return side // self.patch


@dataclass(frozen=True)
class ClipSizes:
    """CLIP ViT-L without its patch embedding: SAM's features take the place of patches."""

    width: int
    layers: int
    mlp_width: int
    positions: int  # along one side, of the learnt positions
    stage = "clip"


@dataclass(frozen=True)
class QuerySizes:
    """A Qwen2 body that reads SAM's features and as many learnable queries, whose outputs go on."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    queries: int = 256 + 144  # one table for views of 1024 pixels, one for 768
    stage = "encoder"

    @property
    def kv_width(self) -> int:
        """Channels of the keys, and of the values, of all heads."""
        return self.width // self.heads * self.kv_heads


@dataclass(frozen=True)
class Architecture:
    """All of it; ``tied`` says that the head uses the embedding's weights."""

    text: TextSizes
    sam: SamSizes
    encoder: ClipSizes | QuerySizes
    tied: bool = False

    @property
    def features(self) -> int:
        """Channels of what the projector reads: CLIP's and SAM's side by side, or the queries' outputs."""
        width = self.encoder.width
        return width + self.sam.downsample_widths[1] if isinstance(self.encoder, ClipSizes) else width

    @property
    def separators(self) -> int:
        """Learnt vectors among the vision tokens: the line break that CLIP's rows have, and the separator."""
        return 2 if isinstance(self.encoder, ClipSizes) else 1

    def vision_tokens(self, side: int) -> int:
        """Vision tokens along one side of a square view of ``side`` pixels, after two halvings."""
        return math.ceil(math.ceil(self.sam.grid(side) / 2) / 2)


def windowed_length(length: int, prompt_len: int, window: int | None) -> int:
    """Cache entries that a step sees of ``length`` tokens, its own and the prompt's among them."""
    return length if window is None else min(length, prompt_len + window)


def read_architecture(config: dict[str, Any]) -> Architecture:
    """The sizes in a checkpoint's ``config.json``, or in a record's ``model["config"]``.

    Raises `OcrPhasesError` for a config of another model, or one that misses a size.
    """
    try:
        layout = layout_of(config)
    except OcrPhasesError as error:
        kind = config.get("model_type")
        raise OcrPhasesError(f"No cost is known for a config of type {kind!r} ({error}).") from error
    try:
        check_config(config)
        sizes = _as_saved(config) if layout.saved else _published(config)
        if layout.family != UNLIMITED_OCR:
            return sizes
        window = config["text_config"]["sliding_window"] if layout.saved else published_window(config)
        return replace(sizes, text=replace(sizes.text, window=window))
    except (OcrPhasesError, KeyError) as error:
        raise OcrPhasesError(
            f"This config does not say how large the model is ({error}): "
            "give the checkpoint's whole config.json."
        ) from error


def _published(config: dict[str, Any]) -> Architecture:
    vision = config["vision_config"]
    sam, ratio = vision["width"]["sam_vit_b"], vision.get("mlp_ratio", 4.0)
    language = config["language_config"]
    return Architecture(
        text=_text(language, language.get("first_k_dense_replace", 1)),
        sam=SamSizes(
            width=sam["width"],
            layers=sam["layers"],
            global_layers=len(sam["global_attn_indexes"]),
            heads=sam["heads"],
            mlp_width=int(sam["width"] * ratio),
            neck_width=sam.get("output_channels", 256),
            downsample_widths=_pair(sam["downsample_channels"]),
            image_size=vision.get("image_size", 1024),
        ),
        encoder=_published_encoder(vision["width"], ratio),
    )


def _published_encoder(parts: dict[str, Any], ratio: float) -> ClipSizes | QuerySizes:
    if "clip-l-14-224" in parts:
        clip = parts["clip-l-14-224"]
        return ClipSizes(
            width=clip["width"],
            layers=clip["layers"],
            mlp_width=int(clip["width"] * ratio),
            positions=clip["image_size"] // clip["patch_size"],
        )
    sizes = {**QWEN2_SIZES, **parts["qwen2-0-5b"]}
    return QuerySizes(
        width=sizes["dim"],
        layers=sizes["layers"],
        heads=sizes["heads"],
        kv_heads=sizes["kv_heads"],
        mlp_width=sizes["intermediate_size"],
    )


def _as_saved(config: dict[str, Any]) -> Architecture:
    text = config["text_config"]
    sam, encoder = config["vision_config"]["sam_config"], config["vision_config"]["encoder_config"]
    return Architecture(
        text=_text(text, text["mlp_layer_types"].count("dense")),
        sam=SamSizes(
            width=sam["hidden_size"],
            layers=sam["num_hidden_layers"],
            global_layers=len(sam["global_attn_indexes"]),
            heads=sam["num_attention_heads"],
            mlp_width=sam["mlp_dim"],
            neck_width=sam["output_channels"],
            downsample_widths=_pair(sam["downsample_channels"]),
            image_size=sam["image_size"],
            patch=sam["patch_size"],
            window=sam["window_size"],
        ),
        encoder=_saved_encoder(encoder),
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _saved_encoder(encoder: dict[str, Any]) -> ClipSizes | QuerySizes:
    sizes = {"width": encoder["hidden_size"], "layers": encoder["num_hidden_layers"]}
    sizes["mlp_width"] = encoder["intermediate_size"]
    if "patch_size" in encoder:
        return ClipSizes(positions=encoder["image_size"] // encoder["patch_size"], **sizes)
    return QuerySizes(heads=encoder["num_attention_heads"], kv_heads=encoder["num_key_value_heads"], **sizes)


def _text(text: dict[str, Any], dense_layers: int) -> TextSizes:
    return TextSizes(
        hidden=text["hidden_size"],
        layers=text["num_hidden_layers"],
        dense_layers=min(dense_layers, text["num_hidden_layers"]),
        heads=text["num_attention_heads"],
        kv_heads=text.get("num_key_value_heads") or text["num_attention_heads"],
        head_width=text["hidden_size"] // text["num_attention_heads"],
        mlp_width=text["intermediate_size"],
        expert_width=text["moe_intermediate_size"],
        experts=text["n_routed_experts"],
        top_k=text["num_experts_per_tok"],
        shared_experts=text["n_shared_experts"],
        vocab=text["vocab_size"],
    )


def _pair(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return first, second
