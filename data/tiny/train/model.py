"""The network: DeepSeek-OCR's architecture at about 9.8 million parameters, and how its weights start."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import UnlimitedOcrConfig, UnlimitedOcrForConditionalGeneration

_RESIDUAL_ENDS = ("o_proj", "down_proj", "attn.proj", "lin2", "fc2", "out_proj")
_RESIDUAL_GAIN = 0.5


def make_config(shape: dict[str, Any], vocabulary: int, image_token_id: int) -> UnlimitedOcrConfig:
    """The library's config for the sizes under ``model`` in config.json, with full attention throughout."""
    layers = shape["text_layers"]
    encoder_width = shape["downsample"][-1]
    text = {
        "vocab_size": vocabulary,
        "hidden_size": shape["text_width"],
        "intermediate_size": shape["text_mlp"],
        "moe_intermediate_size": shape["expert_mlp"],
        "num_hidden_layers": layers,
        "num_attention_heads": shape["text_heads"],
        "num_key_value_heads": shape["text_heads"],
        "n_shared_experts": shape["shared_experts"],
        "n_routed_experts": shape["experts"],
        "num_experts_per_tok": shape["experts_per_token"],
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "max_position_embeddings": 4096,
        "sliding_window": 4096,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
        "layer_types": ["full_attention"] * layers,
    }
    sam = {
        "hidden_size": shape["sam_width"],
        "num_hidden_layers": shape["sam_layers"],
        "num_attention_heads": shape["sam_heads"],
        "global_attn_indexes": shape["sam_global"],
        "image_size": 512,
        "output_channels": shape["neck"],
        "downsample_channels": shape["downsample"],
        "mlp_dim": 4 * shape["sam_width"],
    }
    encoder = {
        "hidden_size": encoder_width,
        "intermediate_size": 4 * encoder_width,
        "num_hidden_layers": shape["encoder_layers"],
        "num_attention_heads": shape["encoder_heads"],
        "image_size": 224,
        "patch_size": 14,
    }
    config = UnlimitedOcrConfig(
        text_config=text,
        vision_config={"sam_config": sam, "encoder_config": encoder},
        image_token_id=image_token_id,
    )
    config._attn_implementation = "sdpa"
    return config


def build_model(
    shape: dict[str, Any], vocabulary: int, image_token_id: int, seed: int
) -> UnlimitedOcrForConditionalGeneration:
    """The library's class with freshly drawn float32 weights; the same seed draws the same weights."""
    model = UnlimitedOcrForConditionalGeneration(make_config(shape, vocabulary, image_token_id))
    model.generation_config.update(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    initialise(model, torch.Generator().manual_seed(seed))
    return model


def grid_positions(side: int, width: int, amplitude: float) -> Tensor:
    """[side, side, width]: sines and cosines of row and column, from one to `side` / 2.5 waves a side."""
    steps = torch.arange(side).float() / side
    waves = 2 * math.pi * 2.0 ** torch.linspace(-1, math.log2(side / 2.5), width // 4)
    angles = steps[:, None] * waves
    one = torch.cat([angles.sin(), angles.cos()], dim=1)
    rows, columns = one[:, None].expand(side, side, -1), one[None].expand(side, side, -1)
    return amplitude * torch.cat([rows, columns], dim=-1)


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Draw every matrix anew: scaled by its fan-in, and positions as waves.

    The library draws all matrices with one deviation and sets SAM's positions to zero, from which a small
    network takes minutes to learn where on the page anything is.
    """
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            continue
        if name.endswith("pos_embed"):
            weight.copy_(grid_positions(weight.shape[1], weight.shape[3], 0.3)[None])
        elif "position_embedding" in name:
            side = math.isqrt(len(weight) - 1)
            weight.normal_(0, 0.02, generator=generator)
            weight[1:] = grid_positions(side, weight.shape[1], 1.0).flatten(0, 1)
        elif "embed_tokens" in name:
            weight.normal_(0, 0.3, generator=generator)
        elif any(part in name for part in ("lm_head", "rel_pos", "gate.weight")):
            weight.normal_(0, 0.02, generator=generator)
        else:
            fan_in = weight.shape[2] if weight.dim() == 3 else weight[0].numel()
            gain = _RESIDUAL_GAIN if any(part in name for part in _RESIDUAL_ENDS) else 1.0
            weight.normal_(0, gain * fan_in**-0.5, generator=generator)
    for name in ("image_newline", "view_separator"):
        getattr(model.model, name).normal_(0, 0.3, generator=generator)
