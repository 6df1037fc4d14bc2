"""A name (tiny, dummy, a folder, a hub id), or a model at hand, to a loaded checkpoint.

Nothing here runs remote code or goes through transformers' Auto classes: ``config.json`` is read as
JSON, weights as safetensors, and the tokenizer from ``tokenizer.json``
(`ocr_phases.models.tokenizers`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ocr_phases.errors import Keyword, OcrPhasesError, SettingError
from ocr_phases.families import FamilyFacts, facts_of
from ocr_phases.families.config import read_model_config
from ocr_phases.models.anyclass import any_class, any_config, is_of_another_class
from ocr_phases.models.devices import resolve_device
from ocr_phases.models.dummies import BUILT_IN_PRESET, dummy_config, dummy_family
from ocr_phases.models.folders import download, local_folder, read_config
from ocr_phases.models.generation import GenerationDefaults, generation_defaults
from ocr_phases.models.interface import ModelInterface
from ocr_phases.models.neutral import (
    NeutralPacker,
    dummy_source,
    has_own_processor,
    is_any_dummy,
    neutral_prompt_source,
    tell_what_it_takes,
    with_possible_ids,
)
from ocr_phases.models.processors import PagePacker, image_token_id, load_processor
from ocr_phases.models.text_model import end_token_of_config
from ocr_phases.models.tokenizers import (
    check_tokenizer,
    image_token_of,
    load_any_tokenizer,
    load_tokenizer,
)
from ocr_phases.models.vendor import check_request, load_vendor
from ocr_phases.models.weights import (
    choose_attention,
    chosen_attention_of_parts,
    load_weights,
    quiet_loading,
    random_model,
    random_weights,
    resolve_dtype,
)
from ocr_phases.models.wiring import (
    family_of_checkpoint,
    interface_of,
    is_wired,
    native_class,
    native_config,
    wired_interface,
)
from ocr_phases.record import RANDOM_WEIGHTS
from ocr_phases.settings import ModelSettings
from ocr_phases.versions import asset, folder_hash

#: The source of a checkpoint that `adopt` made.
AT_HAND = "a model at hand"
#: The source of ``tiny``.
BUILT_IN = "built-in"


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model on its device, with its tokenizer.

    ``family`` is what its ``config.json`` tells: of several families with one class, the class does
    not tell which it is. ``interface`` is how its class is driven.
    ``default_preset`` suits the weights, None leaves it to the family; ``default_ignore_eos`` is
    True where the text is noise (dummy). ``revision`` is a hub commit, ``sha256:`` over config and
    safetensors headers of a folder, or the seed. ``cuda_calls`` is ``ignore`` where a class's own
    ``.cuda()`` does nothing (`ocr_phases.models.vendor`). ``packer`` packs pages where no family
    does: by the checkpoint's own processor.
    """

    model: Any
    tokenizer: Any
    family: FamilyFacts
    interface: ModelInterface
    name: str
    source: str
    revision: str
    config: dict[str, Any]
    image_token_id: int | None
    device: str
    dtype: torch.dtype
    default_preset: str | None = None
    default_ignore_eos: bool = False
    cuda_calls: str | None = None
    packer: PagePacker | NeutralPacker | None = None

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


def load_checkpoint(settings: ModelSettings, *, local_only: bool = False) -> Checkpoint:
    """Load ``tiny``, ``dummy`` (or `dummy_config`'s), a folder or a hub id; with ``local_only`` a
    folder.

    ``implementation="vendor"`` loads with the class in the checkpoint (`ocr_phases.models.vendor`).
    Raises `OcrPhasesError` for anything that is no checkpoint of a known family, naming what is
    wrong.
    """
    if settings.family is not None:
        raise OcrPhasesError(
            f"Only a server is told its model's family, and {settings.model} is loaded here: drop "
            f"family={settings.family!r}."
        )
    settings = replace(settings, device=resolve_device(settings.device))
    is_vendor = settings.implementation == "vendor"
    if is_vendor:
        check_request(settings)
    elif settings.cuda_calls != "refuse":
        raise SettingError(
            "cuda_calls",
            "{cuda_calls} is for {vendor}: native calls no .cuda().",
            cuda_calls=Keyword("cuda_calls"),
            vendor=Keyword("implementation", "vendor"),
        )
    source = _find_source(settings, local_only)
    if is_any_dummy(settings.model):
        return _load_any_random(settings, source)
    if source.origin == RANDOM_WEIGHTS:
        return _load_random(settings, source)
    if is_vendor:
        return _load_vendor(settings, source)
    return _load_native(settings, source)


@dataclass(frozen=True)
class _Source:
    """Where a checkpoint is read from.

    ``origin`` is what the record has as the model's source. ``revision`` is empty where the content
    of the folder tells it.
    """

    folder: Path
    name: str
    origin: str
    revision: str


def _find_source(settings: ModelSettings, local_only: bool) -> _Source:
    """The folder of a model by its name; `OcrPhasesError` where there is none."""
    name = settings.model
    if not local_only:
        if name == "tiny":
            return _Source(asset("data", "tiny"), name, BUILT_IN, "")
        if name.partition(":")[0] == "dummy":  # its prompts use tiny's tokenizer
            return _Source(asset("data", "tiny"), name, RANDOM_WEIGHTS, "seed:0")
    folder = local_folder(name, local_only=local_only)
    if folder is not None:
        return _Source(folder, folder.name, str(folder), "")
    folder = download(name, settings.revision, code=settings.implementation == "vendor")
    return _Source(folder, name, str(folder), folder.name)


def _load_random(settings: ModelSettings, source: _Source) -> Checkpoint:
    """``dummy``: a family's native class with random weights, whose text is noise."""
    family = dummy_family(settings.model)
    config = dummy_config(settings.model)
    tokenizer = load_tokenizer(source.folder)
    with quiet_loading():
        model = random_model(family, native_config(config), settings)
    return _checked(
        Checkpoint(
            model=model.to(settings.device).eval(),
            tokenizer=tokenizer,
            family=family,
            interface=interface_of(model),
            name=source.name,
            source=source.origin,
            revision=source.revision,
            config=config,
            image_token_id=config["image_token_id"],
            device=settings.device,
            dtype=resolve_dtype(settings.dtype, settings.device),
            default_ignore_eos=True,
        )
    )


def _load_any_random(settings: ModelSettings, source: _Source) -> Checkpoint:
    """``dummy:CLASS`` or ``dummy:path/to/config.json``: random weights, and prompts of its own.

    The prompts are those of the processor whose files lie beside the config, else neutral ones.
    """
    entries, folder = dummy_source(settings.model)
    model_class = any_class(entries)
    dtype = resolve_dtype(settings.dtype, settings.device)
    config = with_possible_ids(any_config(model_class, entries))
    with quiet_loading():
        tell_what_it_takes(settings.model, model_class, config, dtype, settings.device)
        attention = chosen_attention_of_parts(model_class, settings)
        model = random_weights(model_class, config, settings, attention).to(settings.device).eval()
    interface = interface_of(model)
    packer: PagePacker | NeutralPacker
    if folder is not None and has_own_processor(folder):
        tokenizer = load_any_tokenizer(folder)
        processor = load_processor(folder, entries, tokenizer)
        image_id = image_token_id(config, processor)
        packer = PagePacker(processor, str(entries["model_type"]), image_id)
        origin = source.origin
    else:
        tokenizer = load_tokenizer(source.folder)
        packer = NeutralPacker(model, tokenizer, str(entries["model_type"]))
        origin = neutral_prompt_source(source.origin)
    return _checked(
        Checkpoint(
            model=_with_end_token(model, tokenizer),
            tokenizer=tokenizer,
            family=facts_of(packer.model_type),
            interface=interface,
            name=source.name,
            source=origin,
            revision=source.revision,
            config=entries,
            image_token_id=packer.image_token_id,
            device=settings.device,
            dtype=dtype,
            default_ignore_eos=True,
            packer=packer,
        )
    )


def _load_native(settings: ModelSettings, source: _Source) -> Checkpoint:
    """A folder's weights in transformers' class."""
    config = read_config(source.folder)
    if is_of_another_class(config):
        return _load_any(settings, source, config)
    family = read_model_config(config).family
    tokenizer = load_tokenizer(source.folder)
    image_id = image_token_of(config, tokenizer)
    dtype = resolve_dtype(settings.dtype, settings.device)
    class_config = native_config({**config, "image_token_id": image_id})
    model_class = native_class(family)
    with quiet_loading():
        model = load_weights(
            source.folder,
            model_class,
            family.title,
            choose_attention(model_class, settings),
            config=class_config,
            dtype=dtype,
        )
    return _checked(
        Checkpoint(
            model=model.to(settings.device).eval(),
            tokenizer=tokenizer,
            family=family,
            interface=interface_of(model),
            name=source.name,
            source=source.origin,
            revision=source.revision or f"sha256:{folder_hash(source.folder)}",
            config=config,
            image_token_id=image_id,
            device=settings.device,
            dtype=dtype,
            default_preset=BUILT_IN_PRESET if source.origin == BUILT_IN else None,
        )
    )


def _load_any(settings: ModelSettings, source: _Source, config: dict[str, Any]) -> Checkpoint:
    """A folder's weights in the class that transformers has for its ``model_type``."""
    model_class = any_class(config)
    tokenizer = load_any_tokenizer(source.folder)
    processor = load_processor(source.folder, config, tokenizer)
    class_config = any_config(model_class, config)
    image_id = image_token_id(class_config, processor)
    packer = PagePacker(processor, str(config["model_type"]), image_id)
    dtype = resolve_dtype(settings.dtype, settings.device)
    with quiet_loading():
        model = load_weights(
            source.folder,
            model_class,
            model_class.__name__,
            chosen_attention_of_parts(model_class, settings),
            config=class_config,
            dtype=dtype,
        )
    return _checked(
        Checkpoint(
            model=_with_end_token(model, tokenizer).to(settings.device).eval(),
            tokenizer=tokenizer,
            family=facts_of(str(config["model_type"])),
            interface=interface_of(model),
            name=source.name,
            source=source.origin,
            revision=source.revision or f"sha256:{folder_hash(source.folder)}",
            config=config,
            image_token_id=packer.image_token_id,
            device=settings.device,
            dtype=dtype,
            packer=packer,
        )
    )


def _load_vendor(settings: ModelSettings, source: _Source) -> Checkpoint:
    """A folder's weights in the class that its own Python files have."""
    config = read_config(source.folder)
    tokenizer = load_tokenizer(source.folder)
    image_id = image_token_of(config, tokenizer)
    content = folder_hash(source.folder, code=True)
    with quiet_loading():
        model = load_vendor(source.folder, config, content, settings)
    model = model.to(settings.device).eval()
    interface = wired_interface(model)
    ignores_cuda = settings.cuda_calls == "ignore" and settings.device == "cpu"
    return _checked(
        Checkpoint(
            model=model,
            tokenizer=tokenizer,
            family=family_of_checkpoint(interface, config),
            interface=interface,
            name=source.name,
            source=source.origin,
            revision=source.revision or f"sha256:{content}",
            config=config,
            image_token_id=image_id,
            device=settings.device,
            dtype=resolve_dtype(settings.dtype, settings.device),
            cuda_calls="ignore" if ignores_cuda else None,
        )
    )


def _checked(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint; raises `OcrPhasesError` for generation settings that are not applied here."""
    generation_defaults(checkpoint.model, checkpoint.config)
    return checkpoint


def adopt(model: Any, tokenizer: Any, *, name: str | None = None) -> Checkpoint:
    """A checkpoint of a model object and a tokenizer that the caller loaded, as they are.

    The model may be patched, quantised or merged with a LoRA; its family is that of its class and
    config, its device and dtype are those of its first floating-point parameter. ``name`` is by
    default its own, or its class's. The revision is ``sha256:`` over config and names, shapes,
    dtypes and sums of its tensors.

    Raises `OcrPhasesError` for a class of no family, naming every module that its family has and it
    lacks, for a config that does not fit, and for a tokenizer as `load_tokenizer` does.
    """
    if not is_wired(model):
        return _adopt_any(model, tokenizer, name)
    interface = wired_interface(model)
    title = type(model).__name__
    config = json.loads(model.config.to_json_string(use_diff=False))
    family = family_of_checkpoint(interface, config)
    lacking = interface.missing_modules(model)
    if lacking:
        raise OcrPhasesError(
            f"{title} has no {', '.join(lacking)}, which {family.title} has and whose "
            "stages are timed: give the model without a wrapper."
        )
    if interface.implementation == "native":
        read_model_config(config)
    check_tokenizer(tokenizer, f"beside {title}")
    parameter = next(filter(torch.is_floating_point, model.parameters()))
    return _checked(
        Checkpoint(
            model=model,
            tokenizer=tokenizer,
            family=family,
            interface=interface,
            name=name or getattr(model.config, "name_or_path", "") or title,
            source=AT_HAND,
            revision=f"sha256:{_model_hash(model, config)}",
            config=config,
            image_token_id=image_token_of(config, tokenizer),
            device=str(parameter.device),
            dtype=parameter.dtype,
        )
    )


def _adopt_any(model: Any, processor: Any, name: str | None) -> Checkpoint:
    """`adopt` of a model of any class, beside its processor.

    Raises `OcrPhasesError` for a tokenizer in place of a processor, and as `any_interface` does.
    """
    interface = interface_of(model)
    title = type(model).__name__
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None:
        raise OcrPhasesError(
            f"{title} needs its processor to pack a page, not {type(processor).__name__}: call "
            "OCRSession.from_model(model, processor)."
        )
    config = json.loads(model.config.to_json_string(use_diff=False))
    image_id = image_token_id(model.config, processor)
    packer = PagePacker(processor, str(config.get("model_type")), image_id)
    parameter = next(filter(torch.is_floating_point, model.parameters()))
    return _checked(
        Checkpoint(
            model=_with_end_token(model, tokenizer),
            tokenizer=tokenizer,
            family=facts_of(packer.model_type),
            interface=interface,
            name=name or getattr(model.config, "name_or_path", "") or title,
            source=AT_HAND,
            revision=f"sha256:{_model_hash(model, config)}",
            config=config,
            image_token_id=packer.image_token_id,
            device=str(parameter.device),
            dtype=parameter.dtype,
            packer=packer,
        )
    )


def _with_end_token(model: Any, tokenizer: Any) -> Any:
    """The model, which takes the tokenizer's end token where its checkpoint names none."""
    known = model.generation_config.eos_token_id
    if known is None and end_token_of_config(model) is None:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def _model_hash(model: Any, config: dict[str, Any]) -> str:
    """SHA-256 over a model's config and the name, shape, dtype and sum of each of its tensors."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for key, tensor in model.state_dict().items():
        digest.update(f"{key} {_fingerprint(tensor)}\n".encode())
    return digest.hexdigest()


def _fingerprint(value: Any) -> str:
    """What tells a model's tensor from another; a quantised layer holds its weights as other
    objects.
    """
    if not isinstance(value, torch.Tensor):
        return repr(value)
    values = value.dequantize() if value.is_quantized else value
    return f"{tuple(value.shape)} {value.dtype} {float(values.sum(dtype=torch.float64))}"
