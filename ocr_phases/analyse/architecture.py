"""The sizes of a model, as `ocr_phases.config` reads them from its ``config.json`` in any layout.

Attention is full in every layer, or has the family's window in every layer, as the loader makes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, convert, field

from ocr_phases.config import read_model_config
from ocr_phases.errors import OcrPhasesError


class TextSizes(Struct):
    """The language model: SwiGLU MLPs, with a router and experts behind the first ``dense_layers``.

    ``mlp_width`` is that of a dense layer, ``expert_width`` of one expert.
    """

    hidden: int = field(name="hidden_size")
    layers: int = field(name="num_hidden_layers")
    heads: int = field(name="num_attention_heads")
    mlp_width: int = field(name="intermediate_size")
    expert_width: int = field(name="moe_intermediate_size")
    experts: int = field(name="n_routed_experts")
    top_k: int = field(name="num_experts_per_tok")
    shared_experts: int = field(name="n_shared_experts")
    vocab: int = field(name="vocab_size")
    mlp_layer_types: list[str]
    num_key_value_heads: int | None = None

    @property
    def kv_width(self) -> int:
        """Channels of the keys, and of the values, of all heads."""
        return self.hidden // self.heads * (self.num_key_value_heads or self.heads)

    @property
    def dense_layers(self) -> int:
        """Layers with one MLP."""
        return self.mlp_layer_types.count("dense")

    @property
    def sparse_layers(self) -> int:
        """Layers with a router and experts."""
        return self.layers - self.dense_layers


class SamSizes(Struct):
    """SAM ViT-B: attention in windows, global in some layers; a neck; two convolutions of stride 2.

    ``global_layers`` are the numbers of the global ones, ``image_size`` the pixels a side that the positions
    were made for.
    """

    width: int = field(name="hidden_size")
    layers: int = field(name="num_hidden_layers")
    heads: int = field(name="num_attention_heads")
    mlp_width: int = field(name="mlp_dim")
    neck_width: int = field(name="output_channels")
    downsample_widths: tuple[int, int] = field(name="downsample_channels")
    global_layers: list[int] = field(name="global_attn_indexes")
    image_size: int = 1024
    patch: int = field(name="patch_size", default=16)
    window: int = field(name="window_size", default=14)

    def grid(self, side: int) -> int:
        """Patches along one side of a view of ``side`` pixels."""
        return side // self.patch


class EncoderSizes(Struct):
    """The second encoder. CLIP ViT-L takes SAM's features in place of patches and has positions of its own.

    A Qwen2 body reads SAM's features and as many learnable queries, whose outputs go on: one table of
    ``queries`` is for views of 1024 pixels, one for 768.
    """

    width: int = field(name="hidden_size")
    layers: int = field(name="num_hidden_layers")
    heads: int = field(name="num_attention_heads")
    mlp_width: int = field(name="intermediate_size")
    image_size: int = 0
    patch_size: int = 1
    kv_heads: int = field(name="num_key_value_heads", default=0)
    queries: int = 256 + 144


@dataclass(frozen=True)
class Architecture:
    """All of it. ``encoder`` is of the stage ``encoder_stage``: ``clip``, or ``encoder`` for the Qwen2 body.

    ``window`` is how many generated tokens a step sees beside the prompt, None for all (`windowed_length`);
    ``tied`` says that the head uses the embedding's weights.
    """

    text: TextSizes
    sam: SamSizes
    encoder: EncoderSizes
    encoder_stage: str
    window: int | None
    tied: bool

    @property
    def features(self) -> int:
        """Channels of what the projector reads: CLIP's and SAM's side by side, or the queries' outputs."""
        beside = self.sam.downsample_widths[1] if self.encoder_stage == "clip" else 0
        return self.encoder.width + beside

    @property
    def separators(self) -> int:
        """Learnt vectors among the vision tokens: the line break that CLIP's rows have, and the separator."""
        return 2 if self.encoder_stage == "clip" else 1

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
    vision = model.saved["vision_config"]
    return Architecture(
        text=convert(model.saved["text_config"], TextSizes),
        sam=convert(vision["sam_config"], SamSizes),
        encoder=convert(vision["encoder_config"], EncoderSizes),
        encoder_stage=model.family.encoders[1],
        window=model.window,
        tied=model.saved.get("tie_word_embeddings", False),
    )
