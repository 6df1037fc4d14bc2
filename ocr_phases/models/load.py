"""A name (tiny, dummy, a folder, a hub id), or a model at hand, to a loaded checkpoint.

Nothing here runs remote code or goes through transformers' Auto classes: ``config.json`` is read as
JSON, weights as safetensors, and the tokenizer from ``tokenizer.json``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families.config import TokenizerLabels, read_model_config
from ocr_phases.models.devices import resolve_device
from ocr_phases.models.folders import (
    download,
    local_folder,
    read_config,
    read_json,
)
from ocr_phases.models.generation import GenerationDefaults, generation_defaults
from ocr_phases.models.growth import check_growth
from ocr_phases.models.stored import check_beginning_of
from ocr_phases.models.vendor import check_request, load_vendor
from ocr_phases.models.weights import (
    dummy_config,
    load_weights,
    quiet_loading,
    random_model,
    resolve_dtype,
)
from ocr_phases.models.wiring import NATIVES, Family, family_of, native_config
from ocr_phases.settings import ModelSettings
from ocr_phases.versions import asset, folder_hash

SPECIAL_TOKENS = ("<image>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>")
ROUND_TRIP = "Total 12 450,00 € at 20 °C"
#: The source of a checkpoint that `adopt` made.
AT_HAND = "a model at hand"
#: Those of ``tiny`` and of ``dummy``.
BUILT_IN, RANDOM = "built-in", "random weights"
#: The preset that suits the built-in weights.
BUILT_IN_PRESET = "small"
_REPLACEMENT = "ï¿½"  # U+FFFD as byte-level tokenizers spell it, a character a byte


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model on its device, with its tokenizer.

    ``default_preset`` suits the weights, None leaves it to the family; ``default_ignore_eos`` is
    True where the text is noise (dummy). ``revision`` is a hub commit, ``sha256:`` over config and
    safetensors headers of a folder, or the seed. ``cuda_calls`` is ``ignore`` where a class's own
    ``.cuda()`` does nothing (`ocr_phases.models.vendor`).
    """

    model: Any
    tokenizer: Any
    name: str
    source: str
    revision: str
    config: dict[str, Any]
    image_token_id: int
    device: str
    dtype: torch.dtype
    default_preset: str | None = None
    default_ignore_eos: bool = False
    cuda_calls: str | None = None

    @cached_property
    def family(self) -> Family:
        """The row of the model's class."""
        return family_of(self.model)

    @property
    def generation(self) -> GenerationDefaults:
        """Its end tokens and settings, as the model has them now; raises as `generation_defaults`
        does.
        """
        return generation_defaults(self.model, self.config)

    @property
    def eos_id(self) -> int:
        """The id that ends a generation, the first of several."""
        return self.generation.end_tokens[0]

    @property
    def bos_id(self) -> int:
        """The id in front of a prompt."""
        return self.model.config.get_text_config().bos_token_id

    @property
    def pad_id(self) -> int:
        """The id that fills rows: the tokenizer's pad token, else the end token."""
        pad = self.tokenizer.pad_token_id
        return self.eos_id if pad is None else pad

    def encode(self, text: str) -> list[int]:
        """Text to ids, without special tokens around it."""
        return self.tokenizer.encode(text, add_special_tokens=False)


def load_checkpoint(asked: ModelSettings, *, local_only: bool = False) -> Checkpoint:
    """Load ``tiny``, ``dummy`` (or `dummy_config`'s), a folder or a hub id; with ``local_only`` a
    folder.

    ``implementation="vendor"`` loads with the class in the checkpoint (`ocr_phases.models.vendor`).
    Raises `OcrPhasesError` for anything that is no checkpoint of a known family, naming what is
    wrong.
    """
    asked = replace(asked, device=resolve_device(asked.device))
    vendor = asked.implementation == "vendor"
    if vendor:
        check_request(asked)
    elif asked.cuda_calls != "refuse":
        raise OcrPhasesError('cuda_calls is for implementation="vendor": native calls no .cuda().')
    folder, name, source, revision = _find(asked, local_only)
    raw = dummy_config(name) if source == RANDOM else read_config(folder)
    family = None if vendor else NATIVES[read_model_config(raw).family.name]
    tokenizer = load_tokenizer(folder)
    image_token_id = raw["image_token_id"] if source == RANDOM else image_token(raw, tokenizer)
    content = folder_hash(folder, code=True) if vendor else ""
    dtype = resolve_dtype(asked.dtype, asked.device)
    with quiet_loading():
        if family is None:
            model = load_vendor(folder, raw, content, asked)
        elif source == RANDOM:
            model = random_model(family, native_config(raw), asked)
        else:
            options = {
                "config": native_config(raw | {"image_token_id": image_token_id}),
                "dtype": dtype,
            }
            model = load_weights(folder, family.model_class(), family.facts.title, asked, **options)
    checkpoint = Checkpoint(
        model=model.to(asked.device).eval(),
        tokenizer=tokenizer,
        name=name,
        source=source,
        revision=revision or f"sha256:{content or folder_hash(folder)}",
        config=raw,
        image_token_id=image_token_id,
        device=asked.device,
        dtype=dtype,
        default_preset=BUILT_IN_PRESET if source == BUILT_IN else None,
        default_ignore_eos=source == RANDOM,
        cuda_calls="ignore" if asked.cuda_calls == "ignore" and asked.device == "cpu" else None,
    )
    generation_defaults(checkpoint.model, checkpoint.config)  # raises for what is not applied here
    return checkpoint


def _find(asked: ModelSettings, local_only: bool) -> tuple[Path, str, str, str]:
    """The folder to read; the model's name, source and revision, empty for one that its content
    tells.
    """
    name = asked.model
    random = name.partition(":")[0] == "dummy"
    if not local_only and (random or name == "tiny"):
        return asset("data", "tiny"), name, *((RANDOM, "seed:0") if random else (BUILT_IN, ""))
    folder = local_folder(name, local_only=local_only)
    if folder is not None:
        return folder, folder.name, str(folder), ""
    folder = download(name, asked.revision, code=asked.implementation == "vendor")
    return folder, name, str(folder), folder.name


def adopt(model: Any, tokenizer: Any, *, name: str | None = None) -> Checkpoint:
    """A checkpoint of a model object and a tokenizer that the caller loaded, as they are.

    The model may be patched, quantised or merged with a LoRA; its family is that of its class and
    config, its device and dtype are those of its first floating-point parameter. ``name`` is by
    default its own, or its class's. The revision is ``sha256:`` over config and names, shapes,
    dtypes and sums of its tensors.

    Raises `OcrPhasesError` for a class of no family, naming every module that its family has and it
    lacks, for a config that does not fit, and for a tokenizer as `load_tokenizer` does.
    """
    family, title = family_of(model), type(model).__name__
    known = dict(model.named_modules())
    lacking = [path for path in family.paths() if path not in known]
    if lacking:
        raise OcrPhasesError(
            f"{title} has no {', '.join(lacking)}, which {family.facts.title} has and whose "
            "stages are timed: give the model without a wrapper."
        )
    config = json.loads(model.config.to_json_string(use_diff=False))
    if family.implementation == "native":
        read_model_config(config)
    check_tokenizer(tokenizer, f"beside {title}")
    prints = [f"{key} {_fingerprint(tensor)}\n" for key, tensor in model.state_dict().items()]
    digest = hashlib.sha256("".join([json.dumps(config, sort_keys=True), *prints]).encode())
    parameter = next(filter(torch.is_floating_point, model.parameters()))
    checkpoint = Checkpoint(
        model=model,
        tokenizer=tokenizer,
        name=name or getattr(model.config, "name_or_path", "") or title,
        source=AT_HAND,
        revision=f"sha256:{digest.hexdigest()}",
        config=config,
        image_token_id=image_token(config, tokenizer),
        device=str(parameter.device),
        dtype=parameter.dtype,
    )
    generation_defaults(checkpoint.model, checkpoint.config)  # raises for what is not applied here
    return checkpoint


def _fingerprint(value: Any) -> str:
    """What tells a model's tensor from another; a quantised layer holds its weights as other
    objects.
    """
    if not isinstance(value, torch.Tensor):
        return repr(value)
    values = value.dequantize() if value.is_quantized else value
    return f"{tuple(value.shape)} {value.dtype} {float(values.sum(dtype=torch.float64))}"


# -- the tokenizer ------------------------------------------------------------------------------------


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of ``tokenizer.json``, whatever class the folder's label claims.

    Raises `OcrPhasesError` for a file that is missing or none, and as `check_growth` and
    `check_tokenizer` do.
    """
    from transformers import PreTrainedTokenizerFast

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise OcrPhasesError(
            f"{folder} has no tokenizer.json: put the one of the published checkpoint there "
            "(tokenizer.model, or vocab.json and merges.txt, are not read)."
        )
    check_beginning_of(path)
    check_growth(path)
    labels = read_json(folder / "tokenizer_config.json", TokenizerLabels, missing={})
    said = {
        name: labels[name] for name in ("bos_token", "eos_token", "pad_token") if labels.get(name)
    }
    names = {
        name: each["content"] if isinstance(each, dict) else each for name, each in said.items()
    }
    options = {"tokenizer_file": str(path), "clean_up_tokenization_spaces": False, **names}
    try:
        tokenizer = PreTrainedTokenizerFast(**options)
    except Exception as error:  # the tokenizers library raises no narrower class for a bad file
        raise OcrPhasesError(f"{path} {_tokenizer_problem(error)}.") from error
    check_tokenizer(tokenizer, f"in {folder}")
    return tokenizer


def _tokenizer_problem(error: Exception) -> str:
    """What is wrong with a tokenizer.json that ``error`` came of, and what to do about it."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    # What the library says of a part of a file that is valid JSON, but that this version does not
    # know.
    if any(
        sign in reason
        for sign in ("untagged enum", "unknown variant", "unknown field", "missing field")
    ):
        return (
            f"has a part that tokenizers {version('tokenizers')}, which is here, does not know "
            f"({reason}), as files "
            "of a newer version have: run 'pip install -U tokenizers transformers', or take the "
            "tokenizer.json of "
            "the published checkpoint"
        )
    return f"is no tokenizer file ({reason}): take the tokenizer.json of the published checkpoint again"


def check_tokenizer(tokenizer: Any, place: str) -> None:
    """Raise `OcrPhasesError` where a special token is not one id, or a round trip changes a
    sentence.

    That has spaces, digits and non-ASCII.
    """
    split = [
        text
        for text in SPECIAL_TOKENS
        if len(tokenizer.encode(text, add_special_tokens=False)) != 1
    ]
    if split:
        raise OcrPhasesError(
            f"The tokenizer {place} splits {', '.join(split)}: it is not DeepSeek-OCR's."
        )
    back = tokenizer.decode(tokenizer.encode(ROUND_TRIP, add_special_tokens=False))
    if back != ROUND_TRIP:
        raise OcrPhasesError(
            f"The tokenizer {place} turns {ROUND_TRIP!r} into {back!r}: it is damaged or mislabelled."
        )


class TokenReader:
    """The text each id adds, one id at a time; joined they are the decoded text, special tokens
    included.

    A character spread over several tokens belongs to the one that completes it; an id the tokenizer
    has no text for shows as ``<id>``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._waiting: list[int] = []

    def read(self, token: int, *, last: bool = False) -> str:
        """The text ``token`` adds: nothing while a character is incomplete, unless it is the
        ``last``.
        """
        known = token < len(self._tokenizer)
        self._waiting += [token] * known
        text = self._tokenizer.decode(self._waiting)
        # A U+FFFD at the end may be the text's own, or what an incomplete character decodes to.
        unsure = known and not last and text.endswith("\ufffd")
        spelled = self._tokenizer.convert_ids_to_tokens(self._waiting) if unsure else ()
        if unsure and not "".join(spelled).endswith(_REPLACEMENT):
            return ""
        self._waiting = []
        return text if known else f"{text}<{token}>"


def image_token(config: dict[str, Any], tokenizer: Any) -> int:
    """The id of ``<image>``; `OcrPhasesError` where config.json says another."""
    found = tokenizer.convert_tokens_to_ids("<image>")
    said = config.get("image_token_id", found)
    if said != found:
        raise OcrPhasesError(f"config.json says image token {said}, the tokenizer says {found}.")
    return found
