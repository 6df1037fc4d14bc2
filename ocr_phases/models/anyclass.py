"""Any image-text-to-text class of transformers: where its parts hang, and how its steps are fed.

Such a class names its own parts: ``get_encoder("image")``, ``get_decoder()`` and
``get_output_embeddings()``. What has weights and hangs beside them leads from one to the other: the
projector. A step is fed by the class's own ``prepare_inputs_for_generation``, as ``generate()``
does it, so that rotary positions of pages, windows and masks are the class's.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES
from ocr_phases.inputs.processed import ProcessedInputs
from ocr_phases.models.class_errors import class_errors_told
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.interface import TimedPart, parameter_count
from ocr_phases.stages import Role

#: The first version of transformers whose classes are fed as they are here.
ANY_NEEDS = (5, 20)
#: Names of modules that bring an encoder's features into the language model's space.
_LEADS_OVER = re.compile(r"merg|proj|connect|adapt|align|resampl|embed_vision|perceiver", re.I)
#: Names of modules that look at pixels.
_SEES = re.compile(r"vision|visual|image|encoder|tower", re.I)
#: What a page never goes through.
_OTHER_MEDIA = re.compile(r"audio|speech|video|talker|token2wav|generation|vqmodel", re.I)
#: What a decode step must not be given: grids and masks may stay.
_PIXELS = re.compile(r"pixel_values|^image_features$|^images$|^patch|^flattened_patches$")


@dataclass(frozen=True)
class PartPath:
    """A part of a class that is a stage: its stage and role, its dotted path, and inside which."""

    stage: str
    role: Role
    path: str
    inside: str | None = None


@dataclass
class Carried:
    """What ``generate()`` keeps from one step to the next.

    Attributes
    ----------
    sequence
        The ids of prompt and generated tokens, int64 [B, length].
    arguments
        The further arguments of the class, such as masks and positions.
    """

    sequence: Tensor
    arguments: dict[str, Any]


@dataclass(frozen=True)
class AnyInterface:
    """How any image-text-to-text class is driven: a `ModelInterface`.

    Attributes
    ----------
    parts
        The stages, in the order that a page goes through them.
    takes
        The names of the arguments of the class's forward.
    implementation
        ``native``: the class is transformers' own.
    """

    parts: tuple[PartPath, ...]
    takes: frozenset[str]
    implementation: str = "native"
    #: A static step would need the class's positions and masks as tensors of fixed places.
    can_be_captured: bool = False

    def timed_parts(self, model: nn.Module) -> list[TimedPart]:
        """The parts of the model that are a stage each, in the order that a page goes through."""
        found = []
        for part in self.parts:
            module = model.get_submodule(part.path)
            timed = TimedPart(part.stage, part.role, part.path, module, module, part.inside)
            found.append(timed)
        return found

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The module that is a stage as a whole, by the stage's name."""
        return {part.stage: model.get_submodule(part.path) for part in self.parts}

    def parameters(self, model: nn.Module) -> dict[str, int]:
        """The number of parameters of each stage, and of all of the model as ``total``."""
        counts = {}
        for stage, module in self.modules(model).items():
            counts[stage] = parameter_count(module)
        counts["total"] = parameter_count(model)
        return counts

    def window(self, model: Any) -> int | None:
        """None: the class's own cache knows which of its layers have a window."""
        return None

    def views(self, inputs: Any) -> list[str]:
        """No names: how often the class calls its encoder for a page is its own affair."""
        return []

    def new_cache(self, model: Any) -> Any:
        """The empty KV cache of a prefill, as ``generate()`` makes it; None for a class whose
        ``generate()`` leaves that to the class.
        """
        with _driving_errors_told(model):
            if not model._supports_default_dynamic_cache():
                return None
            return transformers.DynamicCache(config=model.config.get_text_config(decoder=True))

    def prefill_arguments(self, inputs: Any, model: Any = None) -> dict[str, Any]:
        """The keyword arguments of the forward over B whole prompts, as ``generate()`` makes
        them.
        """
        with _driving_errors_told(model):
            given = self._given(inputs, model)
            ids = given.pop("input_ids")
            return model.prepare_inputs_for_generation(ids, is_first_iteration=True, **given)

    def _given(self, inputs: ProcessedInputs, model: Any) -> dict[str, Any]:
        """What the processor made of a page, with the positions that ``generate()`` begins with."""
        given = dict(inputs.arguments)
        if "position_ids" in self.takes:
            if inputs.start_positions is None:
                inputs.start_positions = model._prepare_position_ids_for_generation(
                    given["input_ids"], dict(given)
                )
            given["position_ids"] = inputs.start_positions
        given["use_cache"] = True
        return given

    def generate_arguments(self, inputs: Any) -> dict[str, Any]:
        """The keyword arguments of ``model.generate()``: what the processor made."""
        return dict(inputs.arguments)

    def carried_from_prefill(self, model: Any, inputs: Any, out: Any) -> Carried:
        """What the first step needs beside the cache."""
        with _driving_errors_told(model):
            given = self._given(inputs, model)
            ids = given.pop("input_ids")
            return Carried(ids, self._carried_on(model, out, given))

    def carried_from_step(self, model: Any, carried: Any, out: Any) -> Carried:
        """What the next step needs beside the cache."""
        with _driving_errors_told(model):
            arguments = self._carried_on(model, out, carried.arguments)
        return Carried(carried.sequence, arguments)

    @staticmethod
    def _carried_on(model: Any, out: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a step for the next one, which the class grows by one token itself."""
        return model._update_model_kwargs_for_generation(out, arguments, is_encoder_decoder=False)

    def step_arguments(
        self,
        model: Any,
        token: Tensor,
        cache: Any,
        mask: Tensor,
        positions: Tensor | None,
        prompt_len: int,
        carried: Any,
    ) -> dict[str, Any]:
        """The keyword arguments of the forward of one decode step, which the class makes itself."""
        carried.sequence = torch.cat([carried.sequence, token[:, None]], dim=1)
        kept = {name: value for name, value in carried.arguments.items() if not _is_pixels(name)}
        with _driving_errors_told(model):
            return model.prepare_inputs_for_generation(
                carried.sequence,
                next_sequence_length=1,
                is_first_iteration=False,
                **{**kept, "past_key_values": cache},
            )

    def leaked_images(self, arguments: dict[str, Any]) -> list[str]:
        """The names of the arguments with pixels that carry a value, which no step may have."""
        pixels = [name for name in arguments if _is_pixels(name)]
        return [name for name in pixels if arguments[name] is not None]

    def ready_mask(self, mask: Tensor | None) -> Any:
        """The mask as it is."""
        return mask

    def forward(self, model: nn.Module, arguments: dict[str, Any], **options: Any) -> Any:
        """One forward of the model; ``options`` that the class does not know are left out."""
        wanted = {name: value for name, value in options.items() if name in self.takes}
        if wanted.get("past_key_values") is None:
            wanted.pop("past_key_values", None)
        with _driving_errors_told(model):
            return model(**{**arguments, **wanted, "return_dict": True})

    def silenced(self) -> AbstractContextManager[Any]:
        """Around calls of the model: nothing, since transformers' classes do not print."""
        return contextlib.nullcontext()


def _driving_errors_told(model: nn.Module) -> AbstractContextManager[None]:
    """Around calls of a class, which may lack something in what it is given."""
    return class_errors_told(
        f"{type(model).__name__} cannot be driven with what its processor made of the page and the "
        "prompt",
        "its generate() needs to work with the same page first",
    )


def _is_pixels(name: str) -> bool:
    """Whether an argument of this name has pixels or features of a page."""
    return _PIXELS.search(name) is not None


def is_of_another_class(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is of a class of transformers that no family's facts describe."""
    model_type = config.get("model_type")
    if model_type in {facts.saved_type for facts in FAMILIES.values()}:
        return False
    return model_type in _class_names()


def class_type(config: Mapping[str, Any]) -> str | None:
    """The ``model_type`` of a config where transformers has a class for it; None for another."""
    model_type = config.get("model_type")
    return model_type if model_type in _class_names() else None


def class_of_name(name: str) -> str | None:
    """The ``model_type`` of a class by its own name or by that type; None for no such class."""
    if name in _class_names():
        return name
    for model_type, model_class in _class_names().items():
        if name == model_class:
            return model_type
    return None


def any_class(config: Mapping[str, Any]) -> Any:
    """transformers' image-text-to-text class of a ``config.json``, by its ``model_type``.

    The name is looked up in transformers' own table; ``auto_map`` is not read.
    """
    if transformers_version() < ANY_NEEDS:
        raise OcrPhasesError(
            f"A {config['model_type']!r} model needs transformers >= "
            f"{'.'.join(map(str, ANY_NEEDS))}, "
            f"here is {transformers.__version__}: upgrade transformers."
        )
    name = _class_names()[config["model_type"]]
    found = getattr(transformers, name, None)
    if found is None or getattr(found, "is_dummy", False):
        raise OcrPhasesError(
            f"transformers {transformers.__version__} cannot import {name} here: upgrade "
            "transformers, or install what the class needs."
        )
    return found


def any_config(model_class: Any, config: Mapping[str, Any]) -> Any:
    """The class's config of a ``config.json``; `OcrPhasesError` where its entries do not fit."""
    with class_errors_told(
        f"config.json does not fit {model_class.__name__}",
        "take the one of the published checkpoint",
    ):
        return model_class.config_class.from_dict(_with_special_floats(dict(config)))


def _with_special_floats(entry: Any) -> Any:
    """Entries in which infinity and NaN are numbers, which transformers writes as objects."""
    if isinstance(entry, dict):
        if set(entry) == {"__float__"} and isinstance(entry["__float__"], str):
            return float(entry["__float__"])
        return {name: _with_special_floats(value) for name, value in entry.items()}
    if isinstance(entry, list):
        return [_with_special_floats(value) for value in entry]
    return entry


def _class_names() -> Mapping[str, str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def any_interface(model: nn.Module) -> AnyInterface:
    """How a model of any class is driven, by the names that the class gives its own parts.

    Raises
    ------
    OcrPhasesError
        For a class that has an encoder and a decoder of text, for one with a loop of its own, for
        one that does not name an image encoder, a language model and a head, and for one whose
        language model holds its encoder.
    """
    title = type(model).__name__
    if not isinstance(model, transformers.PreTrainedModel):
        raise OcrPhasesError(f"{title} is no model of transformers, which is what can be driven.")
    if model.config.is_encoder_decoder:
        raise OcrPhasesError(
            f"{title} is an encoder-decoder: its decoder attends to the encoder's output at every "
            "step, which this version cannot time. Choose a decoder-only model."
        )
    own_loop = getattr(model, "generate", None)
    if own_loop is None:
        raise OcrPhasesError(
            f"{title} has no generate(), so that it writes no text about a page: choose another "
            "class."
        )
    if "inputs" not in inspect.signature(own_loop).parameters:
        raise OcrPhasesError(
            f"{title} has a generate() of its own, which does not make its tokens in transformers' "
            "loop of prefill and decode steps: choose another class."
        )
    encoder = _own_part(model, "get_encoder", modality="image")
    decoder = _own_part(model, "get_decoder")
    head = _own_part(model, "get_output_embeddings")
    if head is None and decoder is not None:
        head = _own_part(decoder, "get_output_embeddings")
    if encoder is None or decoder is None or head is None:
        named = {"an image encoder": encoder, "a language model": decoder, "a head": head}
        lacking = " and ".join(name for name, part in named.items() if part is None)
        raise OcrPhasesError(
            f"{title} does not name {lacking} of its own (with this config), so its stages are "
            "unknown: choose a class whose get_encoder(modality='image'), get_decoder() and "
            "get_output_embeddings() give them."
        )
    decoder = _without_head(decoder, head)
    if _holds(decoder, {id(encoder)}):
        raise OcrPhasesError(
            f"{title} has one module that reads both pixels and text, so that its vision cannot be "
            "timed apart from its language model: choose a class with an image encoder beside the "
            "language model."
        )
    paths = {id(module): path for path, module in model.named_modules()}
    encoder_path = paths[id(encoder)]
    beside = _parts_beside(model, encoder, decoder, head)
    has_several = any(part.role == "vision" for part in beside)
    stage = encoder_path.rpartition(".")[2] if has_several else "encoder"
    parts = [PartPath(stage, "vision", encoder_path), *beside]
    if not any(part.role == "projector" for part in beside):
        parts += _merger_inside(encoder, encoder_path, stage)
    parts.append(PartPath("language_model", "language", paths[id(decoder)]))
    parts.append(PartPath("lm_head", "head", paths[id(head)]))
    takes = frozenset(inspect.signature(model.forward).parameters)
    return AnyInterface(tuple(parts), takes)


def _without_head(decoder: nn.Module, head: nn.Module) -> nn.Module:
    """The language model proper of a decoder that holds the head, too; any other as it is."""
    if not _holds(decoder, {id(head)}):
        return decoder
    inner = _own_part(decoder, "get_decoder")
    if inner is None:
        inner = getattr(decoder, "model", None)
    return inner if isinstance(inner, nn.Module) else decoder


def _own_part(model: nn.Module, getter: str, **arguments: str) -> nn.Module | None:
    """A part by the method with which its class names it; None where it names none."""
    method = getattr(model, getter, None)
    if method is None:
        return None
    try:
        part = method(**arguments)
    except Exception:  # noqa: BLE001  # the class inherits the method, and has nothing of that kind
        return None
    if part is model or not isinstance(part, nn.Module):
        return None
    return part


def _parts_beside(
    model: nn.Module, encoder: nn.Module, decoder: nn.Module, head: nn.Module
) -> list[PartPath]:
    """What has weights and hangs beside encoder and language model, each by its own name.

    One projector is called so; of several each keeps its name, as further encoders do. A table of
    embeddings that is not the text's own turns an encoder's choices into features, which is what a
    projector does.
    """
    text_embeddings = _own_part(model, "get_input_embeddings")
    inner = getattr(model, "model", model)
    prefix = "model." if inner is not model else ""
    known = {id(encoder), id(decoder), id(head)}
    sees, leads = [], []
    for name, module in inner.named_children():
        if id(module) in known or _OTHER_MEDIA.search(name) or _holds(module, known):
            continue
        if next(module.parameters(), None) is None or module is text_embeddings:
            continue
        sees_pixels = _SEES.search(name) and not _LEADS_OVER.search(name)
        is_encoder = bool(sees_pixels) and not isinstance(module, nn.Embedding)
        for path in _called_paths(name, module):
            stage = path.replace(".", "_")
            if is_encoder:
                sees.append(PartPath(stage, "vision", prefix + path))
            else:
                leads.append(PartPath(stage, "projector", prefix + path))
    if len(leads) == 1:
        leads = [PartPath("projector", "projector", leads[0].path)]
    return [*sees, *leads]


def _called_paths(path: str, module: nn.Module) -> list[str]:
    """The path of a module that a class calls: of a list, which nobody calls, those in it."""
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):
        return [path]
    paths = []
    for name, inner in module.named_children():
        paths += _called_paths(f"{path}.{name}", inner)
    return paths


def _holds(module: nn.Module, known: set[int]) -> bool:
    return any(id(inner) in known for inner in module.modules())


def _merger_inside(encoder: nn.Module, path: str, stage: str) -> list[PartPath]:
    """The projector where it is a child of the encoder, whose time then holds the projector's."""
    for name, module in reversed(list(encoder.named_children())):
        if _LEADS_OVER.search(name) and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            return [PartPath("projector", "projector", f"{path}.{name}", inside=stage)]
    return []
