"""A checkpoint's JSON files, without torch: any known layout of ``config.json`` as transformers saves it.

A published layout is turned into the saved one, and that alone is held against declared types and ranges.
Entries that are not named here are never handed on.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, FULL, WINDOWED, FamilyFacts
from ocr_phases.record.schema import conform, shape


def _whole(least: int, most: int) -> Any:
    return Annotated[int, Meta(ge=least, le=most)]


_Id = Annotated[int, Meta(ge=0, le=2**31)]
_Width = Annotated[int, Meta(ge=1, le=2**15)]

#: What the entries are, for `shape`. Ranges are several times the published sizes; products stay within 64
#: bits. Those that one file or part has a type of its own for come last.
_KINDS: dict[str, Any] = {
    "flag": bool,
    "string": str,
    "object": dict[str, Any],
    "id": _Id,
    "layer": _whole(0, 2**8),
    "width": _Width,
    "layers": _whole(1, 2**8),
    "heads": _whole(1, 2**10),
    "experts": _whole(1, 2**12),
    "vocab": _whole(1, 2**22),
    "positions": _whole(1, 2**24),
    "size": _whole(0, 2**24),
    "window": _whole(2, 2**24),  # the class keeps everything for a window of 1
    "side": _whole(1, 2**14),
    "small": Annotated[float, Meta(gt=0, le=1)],
    "share": Annotated[float, Meta(ge=0, le=1)],
    "ratio": Annotated[float, Meta(gt=0, le=64)],
    "factor": Annotated[float, Meta(gt=0, le=1e12)],
    "act": Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu"],
    "rope": Literal["default"],
    "attention": Literal[FULL, WINDOWED],
    "full": Literal[FULL],
    "mlp": Literal["dense", "sparse"],
    "greedy": Literal["greedy"],
    "colours": Literal[3],
    "pair": Annotated[list[_Width], Meta(min_length=2, max_length=2)],
    "parts": dict.__class_getitem__((str, shape({"width": _Width}, "width?:width dim?:width"))),
    "amount": Annotated[float, Meta(ge=0, le=1e12)],
    "ids": _Id | list[_Id],
    "words": list[Annotated[list[_Id], Meta(min_length=1)]],
    "modules": dict[str, str],
    "files": dict[str, Annotated[str, Meta(pattern=r"^[\w.-]+\.safetensors$")]],
    "token": str | shape({"string": str}, "content:string"),
}
_ENCODER = """attention_dropout?:share? hidden_act?:act hidden_size:width initializer_range?:share
    num_attention_heads:heads num_hidden_layers:layers"""
_SAVED = "image_token_id?:id tie_word_embeddings?:flag text_config:text vision_config:vision"
#: The parts of the files, in which those above them are kinds, too.
_PARTS = {
    # What is read of any config.json.
    "any": "image_token_id?:id model_type?:string auto_map?:modules eos_token_id?:ids?",
    # generation_config.json
    "generation": """bos_token_id?:id? eos_token_id?:ids? pad_token_id?:id? max_length?:positions?
        max_new_tokens?:positions? do_sample?:flag? temperature?:amount? top_p?:share? top_k?:size?
        no_repeat_ngram_size?:size? repetition_penalty?:factor? suppress_tokens?:id*?
        begin_suppress_tokens?:id*? bad_words_ids?:words? min_length?:size? min_new_tokens?:size?
        use_cache?:flag?""",
    # model.safetensors.index.json: which file of the same folder each tensor is in.
    "index": "metadata:object weight_map:files",
    # tokenizer_config.json: the special tokens, the rest is not read.
    "labels": "bos_token?:token? eos_token?:token? pad_token?:token?",
    "rotary": "rope_theta?:factor rope_type?:rope",
    "base": "rope_theta:factor rope_type:rope",
    # The language model. A class would put another model's sizes in the place of what is required here.
    "text": """attention_bias?:flag attention_dropout?:share? bos_token_id:id eos_token_id:ids
        hidden_act?:act hidden_size:width initializer_range?:share intermediate_size:width
        layer_types?:attention*? max_position_embeddings:positions mlp_bias?:flag mlp_layer_types:mlp*
        moe_intermediate_size:width n_group?:experts? n_routed_experts:experts n_shared_experts:heads
        num_attention_heads:heads num_experts_per_tok:experts num_hidden_layers:layers
        num_key_value_heads?:heads? pad_token_id?:id? rms_norm_eps?:small rope_parameters?:rotary?
        routed_scaling_factor?:factor sliding_window?:window tie_word_embeddings?:flag topk_group?:experts?
        topk_method?:greedy vocab_size:vocab""",
    "sam": f"""{_ENCODER} downsample_channels:pair global_attn_indexes:layer* image_size?:side
        layer_norm_eps?:small mlp_dim:width num_channels?:colours output_channels:width patch_size?:side
        qkv_bias?:flag use_abs_pos?:flag use_rel_pos?:flag window_size?:side""",
    # The second vision encoder by its stage, and a config with that as transformers saves it.
    "clip": f"""{_ENCODER} image_size:side initializer_factor?:factor intermediate_size:width
        layer_norm_eps?:small num_channels?:colours patch_size:side""",
    "encoder": f"""{_ENCODER} intermediate_size:width layer_types?:full*? max_position_embeddings?:positions
        num_key_value_heads:heads rms_norm_eps?:small rope_parameters:base""",
    "vision_clip": "sam_config:sam encoder_config:clip",
    "vision_encoder": "sam_config:sam encoder_config:encoder",
    "saved_clip": f"{_SAVED}_clip",
    "saved_encoder": f"{_SAVED}_encoder",
    # What turning a published config into the saved layout computes with; the rest is renamed.
    "language": """num_hidden_layers:layers max_position_embeddings:positions first_k_dense_replace?:layer
        rope_theta?:factor sliding_window_size?:window""",
    "vision": "image_size?:side mlp_ratio?:ratio width:parts",
    "published": """sliding_window_size?:window sliding_window?:window language_config:language
        vision_config:vision""",
}
for _name, _entries in _PARTS.items():
    _KINDS[_name] = shape(_KINDS, _entries)
AnyConfig, Generation = _KINDS["any"], _KINDS["generation"]
WeightsIndex, TokenizerLabels = _KINDS["index"], _KINDS["labels"]

_SAM = "sam_vit_b"
#: The saved names of a published vision part's entries; others are the same in both.
_RENAMED = {
    "width": "hidden_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}


class ModelConfig(NamedTuple):
    """A checked config: its ``family``, and ``saved``, what its class's config takes.

    ``saved`` has ``text_config`` and ``vision_config`` (``sam_config``, ``encoder_config``) with every size.
    ``window`` is how many generated tokens a decode step sees, its own among them; None for all.
    """

    family: FamilyFacts
    saved: dict[str, Any]
    window: int | None


def read_model_config(config: dict[str, Any]) -> ModelConfig:
    """A checkpoint's ``config.json``, as published or as transformers saves it, in the saved layout.

    Raises `OcrPhasesError`, naming the known ones, for another model's, and, naming the entry, where it is
    damaged or lacks a size.
    """
    family, published = _layout(config)
    try:
        if published:
            conform(config, _KINDS["published"])
            config = _as_saved(config, family)
        saved = conform(config, _KINDS[f"saved_{family.encoders[1]}"])
        _check_sizes(saved, family)
    except OcrPhasesError as error:
        text = _published_names(str(error), family) if published else str(error)
        raise OcrPhasesError(f"config.json is damaged ({text}).") from error
    window = saved["text_config"]["sliding_window"] if family.attention == WINDOWED else None
    return ModelConfig(family, saved, window)


def _layout(config: dict[str, Any]) -> tuple[FamilyFacts, bool]:
    """The family of a config, and whether it is in the published layout."""
    vision, text = config.get("vision_config"), config.get("text_config")
    width = vision.get("width") if isinstance(vision, dict) else None
    parts = set(width) if isinstance(width, dict) else set()
    types = text.get("layer_types") if isinstance(text, dict) else None
    # The class's own attention, where a saved config does not say.
    attention = " and ".join(sorted(set(map(str, types)))) if isinstance(types, list) and types else WINDOWED
    for family in FAMILIES.values():
        if config.get("model_type") == family.config["model_type"] and {_SAM, family.encoder_part} <= parts:
            return family, True
        if config.get("model_type") == family.saved_type and family.attention in (None, attention):
            return family, False
    known = [
        f"{family.title} ({family.config['model_type']} with {family.encoder_part} and {_SAM}, or "
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
    unsaid = {_SAM: {"output_channels": 256}, family.encoder_part: family.unsaid}
    sam, encoder = (
        {**defaults, **{_RENAMED.get(entry, entry): value for entry, value in vision["width"][name].items()}}
        for name, defaults in unsaid.items()
    )
    sam |= {"image_size": vision.get("image_size", 1024), "mlp_dim": int(sam.get("hidden_size", 1) * ratio)}
    encoder.setdefault("intermediate_size", int(encoder.get("hidden_size", 1) * ratio))
    parts, image = {"sam_config": sam, "encoder_config": encoder}, config.get("image_token_id", 128815)
    return {"text_config": text, "vision_config": parts, "image_token_id": image}


def _window(config: dict[str, Any]) -> int:
    """The window of a published config, from the places that its vendor's code reads."""
    names = ("sliding_window_size", "sliding_window")
    windows = {config["language_config"].get(names[0]), *(config.get(name) for name in names)} - {None}
    if len(windows) != 1:  # which of them the vendor's code takes would be a guess
        listed = ", ".join(map(str, sorted(windows))) or "none"
        raise OcrPhasesError(f"sliding_window_size: one window is needed, it has {listed}")
    return windows.pop()


def _check_sizes(saved: dict[str, Any], family: FamilyFacts) -> None:
    """Raise `OcrPhasesError` where the sizes of a config do not fit each other."""
    text = saved["text_config"]
    if family.attention == WINDOWED and "sliding_window" not in text:
        raise OcrPhasesError("the language model has no sliding_window")
    for name, part in {"text_config": text, **saved["vision_config"]}.items():
        width = part["hidden_size"]
        heads = part["num_attention_heads"]
        if width % heads:
            raise OcrPhasesError(f"{name}: hidden_size {width} is no multiple of num_attention_heads {heads}")
    if text["num_experts_per_tok"] > text["n_routed_experts"]:
        raise OcrPhasesError("num_experts_per_tok is more than n_routed_experts")
    if text["num_attention_heads"] % (text.get("num_key_value_heads") or 1):
        raise OcrPhasesError("num_attention_heads is no multiple of num_key_value_heads")
    for name in ("layer_types", "mlp_layer_types"):
        types = text.get(name)
        if types and len(types) != text["num_hidden_layers"]:
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
