"""The stand-in for the published class: same names and arguments, a small Llama inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from .deepencoder import Clip, Sam

print("the stand-in is imported")


class DeepseekOCRConfig(LlamaConfig):
    model_type = "deepseek_vl_v2"


class DeepseekOCRModel(LlamaModel):
    config_class = DeepseekOCRConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width = config.vision_width
        self.sam_model = Sam(width)
        self.vision_model = Clip(width)
        self.projector = nn.Linear(2 * width, config.hidden_size)
        self.image_newline = nn.Parameter(torch.zeros(config.hidden_size))
        self.view_seperator = nn.Parameter(torch.zeros(config.hidden_size))

    def _see(self, images: Tensor) -> Tensor:
        """[N, 3, S, S] to [N, q, q, hidden]."""
        grid = self.sam_model(images)
        tokens = self.vision_model(images, grid)
        both = torch.cat([tokens[:, 1:], grid.flatten(2).transpose(1, 2)], dim=-1)
        return self.projector(both).unflatten(1, grid.shape[-2:])

    def _lines(self, plane: Tensor) -> Tensor:
        """[h, w, hidden] to [h * (w + 1), hidden], a line break behind each line."""
        breaks = self.image_newline.expand(plane.shape[0], 1, -1)
        return torch.cat([plane, breaks], dim=1).flatten(0, 1)

    def forward(
        self,
        input_ids: Any = None,
        inputs_embeds: Any = None,
        past_key_values: Any = None,
        use_cache: Any = None,
        images: Any = None,
        images_seq_mask: Any = None,
        images_spatial_crop: Any = None,
        **others: Any,
    ) -> Any:
        inputs_embeds = (
            self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        )
        seq_len = inputs_embeds.shape[1]
        if images is not None and seq_len != 1 and torch.sum(images[0][1]).item() != 0:
            inputs_embeds = inputs_embeds.clone()
            for row, ((crops, page), (columns, rows)) in enumerate(
                zip(images, images_spatial_crop.tolist(), strict=True)
            ):
                parts = []
                if torch.sum(crops).item() != 0:
                    tiles = self._see(crops)
                    plane = (
                        tiles.unflatten(0, (rows, columns))
                        .transpose(1, 2)
                        .flatten(0, 1)
                        .flatten(1, 2)
                    )
                    parts.append(self._lines(plane))
                    print("PATCHES:", tuple(tiles.shape))
                else:
                    print("NO PATCHES")
                parts += [self._lines(self._see(page)[0]), self.view_seperator[None]]
                print("BASE:", tuple(page.shape))
                mask = images_seq_mask[row].unsqueeze(-1).to(inputs_embeds.device)
                inputs_embeds[row].masked_scatter_(mask, torch.cat(parts))
        kept = {"past_key_values": past_key_values, "use_cache": use_cache}
        out = super().forward(inputs_embeds=inputs_embeds, **kept, **others)
        if use_cache and not isinstance(
            past_key_values, Cache
        ):  # the published one then makes tuples
            out.past_key_values = ()
        return out


class DeepseekOCRForCausalLM(LlamaForCausalLM):
    config_class = DeepseekOCRConfig

    def __init__(self, config: Any) -> None:
        super(LlamaForCausalLM, self).__init__(config)
        self.model = DeepseekOCRModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        inputs_embeds: Any = None,
        labels: Any = None,
        use_cache: Any = None,
        output_attentions: Any = None,
        output_hidden_states: Any = None,
        images: Any = None,
        images_seq_mask: Any = None,
        images_spatial_crop: Any = None,
        return_dict: Any = None,
    ) -> CausalLMOutputWithPast:
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            images=images,
            images_seq_mask=images_seq_mask,
            images_spatial_crop=images_spatial_crop,
        )
        logits = self.lm_head(out.last_hidden_state).float()
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            )
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=out.past_key_values)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Any = None,
        attention_mask: Any = None,
        inputs_embeds: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        past = past_key_values.get_seq_length() if past_key_values else 0
        if past and attention_mask is not None and attention_mask.shape[1] > input_ids.shape[1]:
            input_ids = input_ids[:, past - attention_mask.shape[1] :]
        elif past < input_ids.shape[1]:
            input_ids = input_ids[:, past:]
        position_ids = kwargs.get("position_ids")
        if attention_mask is not None and position_ids is None:
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        if position_ids is not None:
            position_ids = position_ids[:, -input_ids.shape[1] :]
        names = ("use_cache", "images", "images_seq_mask", "images_spatial_crop")
        inputs = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "attention_mask": attention_mask,
        }
        return {
            **inputs,
            "past_key_values": past_key_values,
            **{name: kwargs.get(name) for name in names},
        }

    def infer(self, tokenizer: Any, prompt: str = "", image_file: str = "") -> str:
        """Not used: only here because the published one moves tensors to a GPU."""
        ids = torch.zeros(1, 1, dtype=torch.long).cuda()
        return self.generate(ids, images=[], images_seq_mask=None, images_spatial_crop=None)
