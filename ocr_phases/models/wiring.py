"""The model classes of the three families: where their parts hang, how a page goes in and how a
step is fed.

What differs between them is data (`ocr_phases.families.Wiring`).
"""

from __future__ import annotations

import contextlib
import io
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from ocr_phases.errors import Keyword, OcrPhasesError
from ocr_phases.families import FAMILIES, FULL, WINDOWED, FamilyFacts, Wiring
from ocr_phases.families.config import family_of_config, read_model_config
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.models.anyclass import any_interface
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.interface import ModelInterface, TimedPart, parameter_count
from ocr_phases.stages import stage_of, stage_place
from ocr_phases.text import count_text

#: The first version of transformers that has the classes of all families.
NATIVE_NEEDS = (5, 20)


@dataclass(frozen=True)
class NativeInterface:
    """How transformers' class of a family is driven: a `ModelInterface`."""

    wiring: Wiring
    implementation: str = "native"
    can_be_captured: bool = True

    # -- where things hang ------------------------------------------------------------------------

    def timed_parts(self, model: nn.Module) -> list[TimedPart]:
        """The parts of the model that are a stage each, in the order that a page goes through."""
        parts = []
        for stage, path in self.wiring.modules.items():
            module = model.get_submodule(path)
            parts.append(TimedPart(stage, stage_of(stage).role, path, module, module))
        for stage, (path, last_path) in self.wiring.between.items():
            first = model.get_submodule(path)
            last = model.get_submodule(last_path)
            parts.append(TimedPart(stage, stage_of(stage).role, path, first, last))
        return sorted(parts, key=lambda part: stage_place(stage_of(part.stage)))

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The module that is a stage as a whole, by the stage's name."""
        return {stage: model.get_submodule(path) for stage, path in self.wiring.modules.items()}

    def missing_modules(self, model: nn.Module) -> list[str]:
        """The paths of the modules that a stage needs and the model lacks."""
        needed = [*self.wiring.modules.values()]
        for paths in (*self.wiring.between.values(), *self.wiring.parts.values()):
            needed += paths
        known = dict(model.named_modules())
        return [path for path in needed if path not in known]

    def parameters(self, model: nn.Module) -> dict[str, int]:
        """The number of parameters of each stage, and of all of the model as ``total``.

        What belongs to no stage is in the total only.
        """
        paths_of_stage: dict[str, tuple[str, ...]] = {}
        for stage, path in self.wiring.modules.items():
            paths_of_stage[stage] = (path,)
        paths_of_stage.update(self.wiring.parts)
        counts = {}
        for stage, paths in paths_of_stage.items():
            counts[stage] = sum(parameter_count(model.get_submodule(path)) for path in paths)
        counts["total"] = parameter_count(model)
        return counts

    def window(self, model: Any) -> int | None:
        """How many generated tokens a step sees, its own among them; None for all.

        The cache holds no more of them, beside the whole prompt.
        """
        text = model.config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ())
        if kinds == {WINDOWED}:
            return text.sliding_window
        return None

    # -- what goes in -----------------------------------------------------------------------------

    def views(self, inputs: DeviceInputs) -> list[str]:
        """The view of each successive vision call of a prefill: all pages' global views, then all
        crops.
        """
        if inputs.pixel_values is None:  # a prompt without an image
            return []
        if inputs.pixel_values_local is None:
            return ["global"]
        return ["global", "local"]

    def new_cache(self, model: Any) -> Any:
        """None: the class makes the empty KV cache of a prefill itself."""
        return None

    def ready_mask(self, mask: Tensor | None) -> Any:
        """``mask``, a 4-D one or None where nothing but causality hides, as the class takes it
        without work on it.

        Building two masks from the 2-D one, which one of the classes otherwise does at every step,
        takes about a fifth of an eager step (20.5 against 16.5 ms per token on an H200).
        """
        if self.wiring.mask == "by attention":
            return {FULL: mask, WINDOWED: mask}
        return mask

    def prefill_arguments(self, inputs: DeviceInputs, model: Any = None) -> dict[str, Any]:
        """The keyword arguments of the forward over a whole prompt.

        A ``model`` whose attention is not causal by itself (eager) gets the mask to work on.
        """
        arguments = self._arguments_of(inputs)
        if inputs.position_ids is not None:
            return arguments
        # Not left to the class: a captured prefill would count on from what the cache held before.
        ids = inputs.input_ids
        arguments["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None]
        if model is None or model.config.get_text_config()._attn_implementation != "eager":
            arguments["attention_mask"] = self.ready_mask(None)
        return arguments

    def _arguments_of(self, inputs: DeviceInputs, **others: Any) -> dict[str, Any]:
        """What the class takes of the inputs, by its names; ``others`` are made from them."""
        known = {**vars(inputs), **others}
        names = ("input_ids", "attention_mask", "position_ids", *self.wiring.image_arguments)
        return {name: known[name] for name in names}

    def step_arguments(
        self,
        model: Any,
        token: Tensor,
        cache: Any,
        mask: Tensor,
        positions: Tensor | None,
        prompt_len: int,
        carried: Any = None,
    ) -> dict[str, Any]:
        """The keyword arguments of the forward of one decode step, as `ModelInterface` has them."""
        position_ids = positions
        if position_ids is None:
            # The class would ask the cache for the same number, and launch two kernels for it.
            length = mask.shape[1]
            position_ids = torch.arange(length - 1, length, device=token.device)[None]
        return {
            "input_ids": token[:, None],
            "past_key_values": cache,
            "attention_mask": self._step_mask(model, mask, positions, prompt_len),
            "position_ids": position_ids,
        }

    def generate_arguments(self, inputs: DeviceInputs) -> dict[str, Any]:
        """The keyword arguments of ``model.generate()``, which finds positions by itself."""
        arguments = self.prefill_arguments(inputs)
        arguments["attention_mask"] = inputs.attention_mask
        arguments["position_ids"] = None
        if inputs.pixel_values is None:  # generate() would encode an image argument that is None
            for name in self.wiring.image_arguments:
                del arguments[name]
        return arguments

    def carried_from_prefill(self, model: Any, inputs: DeviceInputs, out: Any) -> None:
        """None: a step needs no more than the cache."""

    def carried_from_step(self, model: Any, carried: Any, out: Any) -> None:
        """None: a step needs no more than the cache."""

    def _step_mask(
        self, model: Any, mask: Tensor, positions: Tensor | None, prompt_len: int
    ) -> Any:
        """The mask of one step as the class takes it: none where no row is padded."""
        if positions is None:
            return self.ready_mask(None)
        window = self.window(model)
        if window is None:
            return mask
        # From a 2-D mask the class takes, once the window is full, the padding of other slots:
        # those of the prompt are followed by the last generated tokens.
        slots = torch.cat([mask[:, :prompt_len], mask[:, prompt_len:][:, -window:]], dim=1)
        return self.ready_mask(slots.bool()[:, None, None])

    def leaked_images(self, arguments: dict[str, Any]) -> list[str]:
        """The names of the image arguments that carry a value, which no decode step may have."""
        return [name for name in self.wiring.image_arguments if arguments.get(name) is not None]

    def forward(self, model: nn.Module, arguments: dict[str, Any], **options: Any) -> Any:
        """One forward of the model; ``options`` go over ``arguments``."""
        return model(**{**arguments, **options})

    def silenced(self) -> AbstractContextManager[Any]:
        """Around calls of the model: nothing, since transformers' classes do not print."""
        return contextlib.nullcontext()


@dataclass(frozen=True)
class VendorInterface(NativeInterface):
    """How the published remote-code class is driven: a `ModelInterface`.

    The class looks at ``images``, one (crops, global view) pair per row, only while its input is
    longer than one token.
    """

    implementation: str = "vendor"
    can_be_captured: bool = False

    def window(self, model: Any) -> int | None:
        """None: a step sees all generated tokens."""
        return None

    def views(self, inputs: DeviceInputs) -> list[str]:
        """The view of each successive vision call of a prefill: page by page, crops first."""
        views = []
        for crops in inputs.num_local_patches:
            if crops:
                views.append("local")
            views.append("global")
        return views

    def new_cache(self, model: Any) -> Any:
        """The empty KV cache of a prefill, as generate() hands it over.

        Without one the class makes a tuple in each step.
        """
        return DynamicCache()

    def prefill_arguments(self, inputs: DeviceInputs, model: Any = None) -> dict[str, Any]:
        """The keyword arguments of the forward over a whole prompt.

        Raises `OcrPhasesError` for several pages in one prompt.
        """
        return self._arguments_of(
            inputs,
            images=_image_pairs(inputs),
            images_spatial_crop=torch.tensor(inputs.patches_grid, dtype=torch.int64),
        )

    def step_arguments(
        self,
        model: Any,
        token: Tensor,
        cache: Any,
        mask: Tensor,
        positions: Tensor | None,
        prompt_len: int,
        carried: Any = None,
    ) -> dict[str, Any]:
        """The keyword arguments of the forward of one decode step, which the class makes itself."""
        return model.prepare_inputs_for_generation(
            input_ids=token[:, None], past_key_values=cache, attention_mask=mask, use_cache=True
        )

    def forward(self, model: nn.Module, arguments: dict[str, Any], **options: Any) -> Any:
        """One forward of the model; ``options`` go over ``arguments``.

        The class knows no ``logits_to_keep``: it makes logits for every position.
        """
        options.pop("logits_to_keep", None)
        with self.silenced():
            return model(**{**arguments, **options})

    def silenced(self) -> AbstractContextManager[Any]:
        """Around calls of the model: drops what the class prints."""
        return contextlib.redirect_stdout(io.StringIO())


def interfaces() -> list[NativeInterface]:
    """How each class of each family is driven, transformers' classes first."""
    families = FAMILIES.values()
    natives = [NativeInterface(facts.native) for facts in families]
    vendors = [VendorInterface(facts.vendor) for facts in families if facts.vendor is not None]
    return [*natives, *vendors]


def _find_wired(model: nn.Module) -> NativeInterface | None:
    """How a class that a family's facts describe is driven; None for any other class."""
    class_names = {base.__name__ for base in type(model).__mro__}
    for interface in interfaces():
        if interface.wiring.class_name in class_names:
            return interface
    return None


def is_wired(model: nn.Module) -> bool:
    """Whether a family's facts describe the class of a model."""
    return _find_wired(model) is not None


def wired_interface(model: nn.Module) -> NativeInterface:
    """`interface_of`, for the classes that a family's facts describe alone."""
    wired = _find_wired(model)
    if wired is not None:
        return wired
    known = ", ".join(dict.fromkeys(interface.wiring.class_name for interface in interfaces()))
    raise OcrPhasesError(
        f"{type(model).__name__} is no model this version can drive; it knows {known}."
    )


def interface_of(model: nn.Module) -> ModelInterface:
    """How a loaded model is driven, by its class.

    Families that have one class are driven alike. Which of them a checkpoint is of, its class does
    not tell: that is `Checkpoint.family`. A class that no family has is driven by its own names for
    its parts.

    Raises `OcrPhasesError` as `ocr_phases.models.anyclass.any_interface` does.
    """
    wired = _find_wired(model)
    if wired is not None:
        return wired
    interface = _any_interfaces.get(model)
    if interface is None:
        interface = any_interface(model)
        _any_interfaces[model] = interface
    return interface


#: Found by a search through all modules, which no step should repeat.
_any_interfaces: WeakKeyDictionary[nn.Module, ModelInterface] = WeakKeyDictionary()


def family_of_checkpoint(interface: NativeInterface, config: dict[str, Any]) -> FamilyFacts:
    """The family of a checkpoint, by its ``config.json`` and how its class is driven.

    A published class of its own need not have the entries of the published file, so a vendor class
    that only one family has tells it. Else the config decides; raises `OcrPhasesError` as
    `ocr_phases.families.config.family_of_config` does.
    """
    if interface.implementation == "vendor":
        owners = [facts for facts in FAMILIES.values() if facts.vendor == interface.wiring]
        if len(owners) == 1:
            return owners[0]
    return family_of_config(config)


def native_class(family: FamilyFacts) -> Any:
    """The class that transformers has for a family.

    Raises `OcrPhasesError` where the version of transformers is too old to have it.
    """
    import transformers

    if transformers_version() < NATIVE_NEEDS:
        raise OcrPhasesError(
            f"The native model needs transformers >= {'.'.join(map(str, NATIVE_NEEDS))}, "
            f"here is {transformers.__version__}: upgrade transformers."
        )
    return getattr(transformers, family.native.class_name)


def native_config(raw: dict[str, Any]) -> Any:
    """The config that transformers' class takes, for a checkpoint's ``config.json``.

    Raises `OcrPhasesError` as `read_model_config` does.
    """
    model = read_model_config(raw)
    return native_class(model.family).config_class(**model.saved)


def _image_pairs(inputs: DeviceInputs) -> list[tuple[Tensor, Tensor]]:
    """The (crops, global view) of each row, as the vendor's class takes them.

    A page without crops has zeros of the global view's size in their place.
    """
    rows = inputs.input_ids.shape[0]
    pages = 0 if inputs.pixel_values is None else len(inputs.pixel_values)
    if inputs.pixel_values is None or pages != rows:
        raise OcrPhasesError(
            "The vendor's class reads one page a prompt, got {pages} in {prompts}: use {native}, "
            "or one prompt per page.",
            pages=count_text(pages, "page"),
            prompts=count_text(rows, "prompt"),
            native=Keyword("implementation", "native"),
        )
    views = inputs.pixel_values.split(1)
    no_crops = torch.zeros_like(views[0])
    if inputs.pixel_values_local is None:
        return [(no_crops, view) for view in views]
    pairs = []
    crops_of_pages = inputs.pixel_values_local.split(inputs.num_local_patches)
    for crops, view in zip(crops_of_pages, views, strict=True):
        pairs.append((crops if len(crops) else no_crops, view))
    return pairs
