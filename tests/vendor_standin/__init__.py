"""A small class with the published remote-code class's contract, and the folder it is loaded from.

Written for the tests: it shares names, argument shapes and habits with the published class (the
gate, the order of the vision calls, prints), on transformers' Llama, and nothing else.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
TOKENIZER = HERE.parent / "golden" / "checkpoint"
CODE = ("modeling_deepseekocr.py", "deepencoder.py")

#: What `OCRSession.load` needs to run the class.
RULES: dict[str, Any] = {"implementation": "vendor", "trust_remote_code": True}

#: Changes for `copy_of` that move tensors to a GPU, as the published forward does.
CUDA_CALL = (".to(inputs_embeds.device)", ".cuda()")
CUDA_IMAGES = ("(images) / 8", "(images.cuda()) / 8")

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekOCRForCausalLM"],
    "auto_map": {
        "AutoConfig": "modeling_deepseekocr.DeepseekOCRConfig",
        "AutoModel": "modeling_deepseekocr.DeepseekOCRForCausalLM",
    },
    "model_type": "deepseek_vl_v2",
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "vision_width": 32,
}


def make_checkpoint(folder: Path) -> Path:
    """A checkpoint folder with the class's code, seeded weights and the golden tokenizer."""
    from vendor_standin.modeling_deepseekocr import DeepseekOCRConfig, DeepseekOCRForCausalLM

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name in CODE:
        shutil.copy(HERE / name, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder)
    fields = {key: value for key, value in CONFIG.items() if key not in ("auto_map", "model_type")}
    model = DeepseekOCRForCausalLM(DeepseekOCRConfig(**fields))
    generator = torch.Generator().manual_seed(7)
    weights = {}
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        weights[name] = 1 + 0.1 * noise if name.endswith("norm.weight") else 0.25 * noise
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def copy_of(folder: Path, where: Path, **changes: tuple[str, str]) -> Path:
    """The checkpoint at ``where``, with text replaced in its files (by the name before the dot)."""
    shutil.copytree(folder, where)
    for file in where.iterdir():
        if file.stem in changes:
            before, after = changes[file.stem]
            text = file.read_text()
            assert before in text
            file.write_text(text.replace(before, after))
    return where
