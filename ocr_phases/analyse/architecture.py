"""The sizes of a model, read from its ``config.json`` alone, in any layout that `ocr_phases.config` knows.

Attention is full in every layer, or has the family's window in every layer, as the loader makes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ocr_phases.config import read_model_config
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
    patch: int
    window: int

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


def read_architecture(config: dict[str, Any]) -> Architecture:
    """The sizes in a checkpoint's ``config.json``, or in a record's ``model["config"]``.

    Raises `OcrPhasesError` for a config of another model, or one that misses a size.
    """
    try:
        model = read_model_config(config)
    except OcrPhasesError as error:
        raise OcrPhasesError(f"No cost is known for this model ({error}).") from error
    text, vision = model.saved["text_config"], model.saved["vision_config"]
    sam, encoder = vision["sam_config"], vision["encoder_config"]
    return Architecture(
        text=TextSizes(
            hidden=text["hidden_size"],
            layers=text["num_hidden_layers"],
            dense_layers=text["mlp_layer_types"].count("dense"),
            heads=text["num_attention_heads"],
            kv_heads=text.get("num_key_value_heads") or text["num_attention_heads"],
            head_width=text["hidden_size"] // text["num_attention_heads"],
            mlp_width=text["intermediate_size"],
            expert_width=text["moe_intermediate_size"],
            experts=text["n_routed_experts"],
            top_k=text["num_experts_per_tok"],
            shared_experts=text["n_shared_experts"],
            vocab=text["vocab_size"],
            window=model.window,
        ),
        sam=SamSizes(
            width=sam["hidden_size"],
            layers=sam["num_hidden_layers"],
            global_layers=len(sam["global_attn_indexes"]),
            heads=sam["num_attention_heads"],
            mlp_width=sam["mlp_dim"],
            neck_width=sam["output_channels"],
            downsample_widths=tuple(sam["downsample_channels"]),
            image_size=sam.get("image_size", 1024),
            patch=sam.get("patch_size", 16),
            window=sam.get("window_size", 14),
        ),
        encoder=_encoder(encoder),
        tied=model.saved.get("tie_word_embeddings", False),
    )


def _encoder(encoder: dict[str, Any]) -> ClipSizes | QuerySizes:
    sizes = {"width": encoder["hidden_size"], "layers": encoder["num_hidden_layers"]}
    sizes["mlp_width"] = encoder["intermediate_size"]
    if "patch_size" in encoder:
        return ClipSizes(positions=encoder["image_size"] // encoder["patch_size"], **sizes)
    return QuerySizes(heads=encoder["num_attention_heads"], kv_heads=encoder["num_key_value_heads"], **sizes)
