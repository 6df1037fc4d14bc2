"""vLLM's own class, given two smaller encoders while it is built; nothing else of it is changed."""

import functools
from unittest import mock

from torch.nn import LayerNorm
from transformers import CLIPVisionConfig
from vllm.model_executor.layers.conv import Conv2dLayer
from vllm.model_executor.models import deepseek_ocr as published
from vllm.model_executor.models.deepencoder import ImageEncoderViT
from vllm.multimodal import MULTIMODAL_REGISTRY


def _sam(sizes, side):
    neck, (middle, last) = sizes["output_channels"], sizes["downsample_channels"]
    shape = {"embed_dim": sizes["width"], "depth": sizes["layers"], "num_heads": sizes["heads"]}
    shape |= {"img_size": side, "out_chans": neck, "last_conv_output": last, "use_rel_pos": True}
    shape |= {"window_size": 14, "global_attn_indexes": tuple(sizes["global_attn_indexes"])}
    encoder = ImageEncoderViT(**shape, norm_layer=functools.partial(LayerNorm, eps=1e-6))
    step = functools.partial(Conv2dLayer, kernel_size=3, stride=2, padding=1, bias=False)
    encoder.net_2, encoder.net_3 = step(neck, middle), step(middle, last)
    return encoder


def _clip(sizes):
    width, names = sizes["width"], {"num_hidden_layers": "layers", "num_attention_heads": "heads"}
    names |= {name: name for name in ("image_size", "patch_size")}
    given = {name: sizes[own] for name, own in names.items()}
    return CLIPVisionConfig(hidden_size=width, intermediate_size=4 * width, **given)


@MULTIMODAL_REGISTRY.register_processor(
    published.DeepseekOCRMultiModalProcessor,
    info=published.DeepseekOCRProcessingInfo,
    dummy_inputs=published.DeepseekOCRDummyInputsBuilder,
)
class TinyDeepseekOCR(published.DeepseekOCRForCausalLM):
    """The class under its published name in ``config.json``."""

    def __init__(self, *, vllm_config, prefix=""):
        vision = vllm_config.model_config.hf_config.vision_config
        sizes, side = vision.width, vision.image_size
        with (
            mock.patch.object(published, "build_sam_vit_b", lambda: _sam(sizes["sam_vit_b"], side)),
            mock.patch.object(
                published, "CLIPVisionConfig", lambda **_: _clip(sizes["clip-l-14-224"])
            ),
        ):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
