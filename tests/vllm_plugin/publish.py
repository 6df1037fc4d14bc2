"""The built-in model in the published layout, as vLLM reads it: ``python publish.py FOLDER``."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ocr_phases.families import FAMILIES
from ocr_phases.versions import asset

#: A tensor of the published files that no model uses.
UNUSED = "model.vision_model.embeddings.patch_embedding.weight"
VISION = {"mlp_ratio": 4.0, "model_type": "vision", "model_name": "deeplip_b_l"}


def publish(out: Path) -> None:
    """Write config, weights and tokenizer; the tokenizer puts the BOS in front, as the package
    does.
    """
    source = asset("data", "tiny")
    config = json.loads((source / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    sam, clip = vision["sam_config"], vision["encoder_config"]
    published = FAMILIES["deepseek-ocr"].config
    language = {name: text.get(name, value) for name, value in published["language_config"].items()}
    language |= dict.fromkeys(("kv_lora_rank", "q_lora_rank"))
    language |= dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 0)
    language |= {
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "use_mla": False,
        "lm_head": True,
    }
    language["num_key_value_heads"] = text["num_key_value_heads"]
    language["first_k_dense_replace"] = text["mlp_layer_types"].count("dense")
    language |= {"architectures": ["DeepseekV2ForCausalLM"], "rms_norm_eps": text["rms_norm_eps"]}
    names = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
    of_sam, of_clip = ({own: part[name] for own, name in names.items()} for part in (sam, clip))
    of_sam |= {
        name: sam[name]
        for name in ("downsample_channels", "output_channels", "global_attn_indexes")
    }
    of_clip |= {"image_size": clip["image_size"], "patch_size": 14}
    joined = sam["downsample_channels"][1] + clip["hidden_size"]
    projector = {"model_type": "mlp_projector", "projector_type": "linear", "input_dim": joined}
    encoders = {"sam_vit_b": of_sam, "clip-l-14-224": of_clip}
    whole = language | {
        "architectures": ["DeepseekOCRForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "candidate_resolutions": [[1024, 1024]],
        "global_view_pos": "head",
        "tile_tag": "2D",
        "torch_dtype": "bfloat16",
        "image_token_id": config["image_token_id"],
        "language_config": language,
        "projector_config": {**projector, "n_embed": text["hidden_size"]},
        "vision_config": {"image_size": sam["image_size"], "width": encoders, **VISION},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(whole, indent=1))
    weights = load_file(source / "model.safetensors")
    weights[UNUSED] = torch.zeros(clip["hidden_size"], 3, 14, 14, dtype=torch.bfloat16)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "tokenizer_config.json", out)
    bos = json.loads((out / "tokenizer_config.json").read_text())["bos_token"]
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    begin, sequence = (
        {"SpecialToken": {"id": bos, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    special = {bos: {"id": bos, "ids": [text["bos_token_id"]], "tokens": [bos]}}
    template = {
        "type": "TemplateProcessing",
        "single": [begin, sequence],
        "special_tokens": special,
    }
    pair = [begin, sequence, {"Sequence": {"id": "B", "type_id": 1}}]
    tokenizer["post_processor"] = {**template, "pair": pair}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
