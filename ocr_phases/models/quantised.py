"""Finds quantised weights, which no class here can run, and refuses them by name; no torch.

A class of transformers takes what it does not know of a config in silence, and an integer tensor
without its scale as a weight: the text would be noise, and nothing would say why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocr_phases.errors import OcrPhasesError, short
from ocr_phases.models.stored import StoredTensors

#: Entries of a config.json that say how weights are quantised, at the top or in the config of a
#: part.
_ENTRIES = (
    "quantization_config",
    "quantization",
    "compression_config",
    "quant_config",
    "quantize_config",
)
#: Files that say so beside a config.json.
_FILES = (
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
    "hf_quant_config.json",
    "quantization_map.json",
    "quanto_qmap.json",
    "quant_strategy.json",
    "smash_config.json",
)
#: The dtypes of weights that can be run, as safetensors names them.
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_INTEGERS = frozenset({"I64", "I32", "BOOL"})
#: Buffers of a class that count or mark: they are integers in a model that is not quantised, too.
_INTEGER_BUFFERS = (
    "position_ids",
    "num_batches_tracked",
    "relative_position_index",
    "token_type_ids",
)
#: The last part of the names of what stands beside quantised weights, and of packed weights.
_SIGNS = re.compile(
    r"(\w+_)?scales?(_inv|_2)?|(\w+_)?zero_points?|(\w+_)?q?zeros"
    r"|(\w+_)?(absmax|amax|quant_map|packed)"
    r"|q_?weight|g_idx|q_(perm|invperm|groups|group_size|scale_max)"
    r"|SCBt?|CB|weight_format|bitsandbytes__\w+"
    r"|W_q|_data|codes|codebooks?|trellis|suh|svh|SU|SV|Qidxs|\w+_blocks"
)
#: Names of that kind that classes give parameters of their own, which are not quantised.
_NO_SIGNS = (
    "correct_output_scale",
    "global_scale",
    "hc_scale",
    "hidden_states_scale",
    "input_hidden_states_scale",
    "layer_scale",
    "log_scale",
    "logit_scale",
    "per_dim_scale",
    "per_expert_scale",
    "residual_scale",
    "router_states_scale",
)

NEXT_STEP = (
    "name the checkpoint that they were made from, with weights in float32, bfloat16 or float16, "
    "or load them yourself and give the object to OCRSession.from_model(model, tokenizer)"
)
#: How many sections deep a config is searched for entries.
_DEEPEST = 3
_METHOD_KEYS = ("quant_method", "quant_algo", "quant_type", "mode", "format")
_BITS_KEYS = ("bits", "w_bit", "num_bits", "nbits")


def refuse_quantised_config(
    config: dict[str, Any], place: Path, stored: StoredTensors | None = None
) -> None:
    """Raise `OcrPhasesError` where a ``config.json`` at ``place`` says that weights are quantised.

    Where the ``stored`` tensors show that they are not (the entry asks for it to be done while they
    are loaded), the sentence says so.
    """
    first = next(_entries(config), None)
    if first is None:
        return
    entry, value = first
    raise OcrPhasesError(
        f"{place} asks for quantised weights ({entry}: {_method(value)}), which are not run "
        f"here: {NEXT_STEP}{_what_plain_weights_need(stored, 'take that entry out')}."
    )


def refuse_quantised(folder: Path, config: dict[str, Any], stored: StoredTensors) -> None:
    """Raise `OcrPhasesError` where anything in a folder says that its weights are quantised.

    That is an entry of its config, a file beside it, a tensor that only quantised weights need, or
    a weight that is stored as something else than floating-point numbers.
    """
    refuse_quantised_config(config, folder / "config.json", stored)
    sign = _sign(stored)
    if sign is not None:
        raise OcrPhasesError(
            f"The weights in {folder} are quantised ({sign}), and such weights are not run here: "
            f"{NEXT_STEP}."
        )
    for name in _FILES:
        if (folder / name).exists():
            raise OcrPhasesError(
                f"{folder / name} says that the weights are quantised, and such weights are not "
                f"run here: {NEXT_STEP}{_what_plain_weights_need(stored, 'remove that file')}."
            )


def _entries(config: dict[str, Any], above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The entries of a config on quantisation, with their names.

    An empty one says that there is none. ``above`` is the name of the section that ``config`` is,
    with its dot, and ``depth`` how many sections are around it.
    """
    for name, value in config.items():
        if name in _ENTRIES and value:
            yield f"{above}{name}", value
        elif isinstance(value, dict) and depth < _DEEPEST:
            yield from _entries(value, f"{above}{name}.", depth + 1)


def _method(value: Any) -> str:
    """What an entry says of the method, in a few words."""
    if not isinstance(value, dict):
        return short(value)
    name = _method_name(value)
    bits = _method_bits(value)
    if bits is None:
        return name
    return f"{name}, {bits} bits"


def _method_name(entry: dict[str, Any]) -> str:
    """The name of the method of an entry."""
    # MLX names no method, and its mode is none.
    if "quant_method" not in entry and "group_size" in entry and "bits" in entry:
        return "MLX"
    for key in _METHOD_KEYS:
        if entry.get(key):
            return short(entry[key]).strip("'\"")
    return "no method named"


def _method_bits(entry: dict[str, Any]) -> int | None:
    """The bits of a weight that an entry names, or None."""
    if entry.get("load_in_8bit") or entry.get("_load_in_8bit"):
        return 8
    if entry.get("load_in_4bit") or entry.get("_load_in_4bit"):
        return 4
    for key in _BITS_KEYS:
        bits = entry.get(key)
        if isinstance(bits, int):
            return bits
    return None


def _sign(stored: StoredTensors) -> str | None:
    """What says of the stored tensors that they are quantised, by the name of one.

    None where nothing does.
    """
    for name in sorted(stored.dtypes):
        module, _, last = name.rpartition(".")
        if "quant_state" in name:
            return f"they have {name}"
        # A norm may call its only parameter so; that of a quantised weight stands beside it.
        is_alone = last == "scale" and f"{module}.weight" not in stored.dtypes
        if _SIGNS.fullmatch(last) and last not in _NO_SIGNS and not is_alone:
            return f"they have {name}"
    for name, dtype in sorted(stored.dtypes.items()):
        if dtype in _FLOATS:
            continue
        if dtype in _INTEGERS and name.endswith(_INTEGER_BUFFERS):
            continue
        return f"{name} is stored as {dtype}"
    return None


def _what_plain_weights_need(stored: StoredTensors | None, step: str) -> str:
    """The end of a sentence for weights that are not quantised, whatever the config says."""
    if stored is None or not stored.dtypes or _sign(stored) is not None:
        return ""
    dtypes = " and ".join(sorted(set(stored.dtypes.values()) & _FLOATS))
    return f"; its stored weights are plain {dtypes}, so {step} to measure these"
