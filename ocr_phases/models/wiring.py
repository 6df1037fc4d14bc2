"""The model classes that can be driven: where their parts hang, how a page goes in and how a step
is fed.

What differs between them is data (`ocr_phases.families`). The published remote-code class looks at
``images``, one (crops, global view) pair a row, only while its input is longer than one token.
"""

from __future__ import annotations

import contextlib
import io
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, FULL, WINDOWED, FamilyFacts, Wiring
from ocr_phases.families.config import read_model_config
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.models.folders import transformers_version
from ocr_phases.text import count_text

NATIVE_NEEDS = (5, 20)


@dataclass(frozen=True)
class Family:
    """A family's row in `ocr_phases.families` with one of its two classes: ``native`` or
    ``vendor``.
    """

    facts: FamilyFacts
    implementation: str

    @property
    def wiring(self) -> Wiring:
        """How the class is driven."""
        return getattr(self.facts, self.implementation)

    def model_class(self) -> Any:
        """transformers' class; `OcrPhasesError` where this version is too old to have it."""
        import transformers

        if transformers_version() < NATIVE_NEEDS:
            raise OcrPhasesError(
                f"The native model needs transformers >= {'.'.join(map(str, NATIVE_NEEDS))}, "
                f"here is {transformers.__version__}: upgrade transformers."
            )
        return getattr(transformers, self.wiring.class_name)

    # -- where things hang ------------------------------------------------------------------------

    def drives(self, model: nn.Module) -> bool:
        """Whether ``model`` is of this class, and of this family where two families have one class."""
        if self.wiring.class_name not in {base.__name__ for base in type(model).__mro__}:
            return False
        return self.implementation == "vendor" or self.facts.attention in (None, _attention(model))

    def window(self, model: Any) -> int | None:
        """How many generated tokens a step sees, its own among them; None for all.

        The cache holds no more of them, beside the whole prompt.
        """
        windowed = self.implementation == "native" and _attention(model) == WINDOWED
        return model.config.get_text_config().sliding_window if windowed else None

    def stages(self, model: nn.Module) -> dict[str, nn.Module]:
        """The submodules that are a stage each, by stage name."""
        return {stage: model.get_submodule(path) for stage, path in self.wiring.modules.items()}

    def timed(self, model: nn.Module) -> dict[str, tuple[nn.Module, nn.Module]]:
        """The modules whose start and whose end are those of a stage, by stage name."""
        ends = {stage: (path, path) for stage, path in self.wiring.modules.items()}
        ends.update(self.wiring.between)
        get = model.get_submodule
        return {stage: (get(first), get(last)) for stage, (first, last) in ends.items()}

    def paths(self) -> list[str]:
        """The path of every module that must be there."""
        several = (*self.wiring.between.values(), *self.wiring.parts.values())
        return [*self.wiring.modules.values(), *chain.from_iterable(several)]

    def parameters(self, model: nn.Module) -> dict[str, int]:
        """Parameter count of each stage and the total; what belongs to no stage is in the total
        only.
        """
        held: dict[str, tuple[str, ...]] = {
            stage: (path,) for stage, path in self.wiring.modules.items()
        }
        held.update(self.wiring.parts)
        held["total"] = ("",)  # the model itself
        return {
            stage: sum(p.numel() for path in paths for p in model.get_submodule(path).parameters())
            for stage, paths in held.items()
        }

    # -- what goes in -----------------------------------------------------------------------------

    def views(self, inputs: DeviceInputs) -> list[str]:
        """The view of each successive vision call of a prefill.

        transformers' classes read all pages' global views, then all crops; the vendor's goes page
        by page, crops first.
        """
        if self.implementation == "native":
            return ["global"] if inputs.pixel_values_local is None else ["global", "local"]
        order = [["local", "global"] if crops else ["global"] for crops in inputs.num_local_patches]
        return [view for page in order for view in page]

    def ready_mask(self, mask: Tensor | None) -> Any:
        """``mask``, a 4-D one or None where nothing but causality hides, as the class takes it
        unworked.
        """
        # Building two masks from the 2-D one, which one class otherwise does at every step, is then
        # skipped.
        return {FULL: mask, WINDOWED: mask} if self.wiring.mask == "by attention" else mask

    def prefill_arguments(self, inputs: DeviceInputs, model: Any = None) -> dict[str, Any]:
        """The keyword arguments of the forward over a whole prompt.

        Of a ``model`` whose attention is not causal by itself (eager) the class gets the mask to
        work on. Raises `OcrPhasesError` for several pages in one prompt of the vendor's class.
        """
        known, ids = dict(vars(inputs)), inputs.input_ids
        if self.implementation == "vendor":
            known["images"] = _image_pairs(inputs)
            known["images_spatial_crop"] = torch.tensor(inputs.patches_grid, dtype=torch.int64)
        elif inputs.position_ids is None:
            # Not left to the class: a captured prefill would count on from what the cache held
            # before.
            known["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None]
            if model is None or model.config.get_text_config()._attn_implementation != "eager":
                known["attention_mask"] = self.ready_mask(None)
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
    ) -> dict[str, Any]:
        """The keyword arguments of one decode step's forward.

        ``token`` int64 [B]; ``mask`` int64 [B, length] of all tokens, this one's among them;
        ``positions`` int64 [B, 1], None where no row is padded.
        """
        arguments = {"input_ids": token[:, None], "past_key_values": cache, "attention_mask": mask}
        if self.implementation == "vendor":
            return model.prepare_inputs_for_generation(**arguments, use_cache=True)
        if positions is None:
            arguments["attention_mask"] = self.ready_mask(None)
        elif (window := self.window(model)) is not None:
            # From a 2-D mask the class takes, once the window is full, the padding of other slots:
            # those of the prompt are followed by the last generated tokens.
            slots = torch.cat([mask[:, :prompt_len], mask[:, prompt_len:][:, -window:]], dim=1)
            arguments["attention_mask"] = self.ready_mask(slots.bool()[:, None, None])
        return arguments | {"position_ids": positions}

    def new_cache(self) -> Any:
        """The empty KV cache of a prefill, None where the class makes its own."""
        # As generate() hands it over: without one the vendor's class makes a tuple each step.
        return DynamicCache() if self.implementation == "vendor" else None

    def forward(self, model: nn.Module, arguments: dict[str, Any], **options: Any) -> Any:
        """One forward of the model; ``options`` go over ``arguments``.

        The vendor's class knows no ``logits_to_keep``: it makes logits for every position.
        """
        if self.implementation == "vendor":
            options.pop("logits_to_keep", None)
        with self.silenced():
            return model(**{**arguments, **options})

    def silenced(self) -> AbstractContextManager:
        """Around calls of the model: drops what the vendor's class prints."""
        vendor = self.implementation == "vendor"
        return contextlib.redirect_stdout(io.StringIO()) if vendor else contextlib.nullcontext()


NATIVES = {name: Family(facts, "native") for name, facts in FAMILIES.items()}
"""Those that transformers has a class for, by name."""

VENDORS = {name: Family(facts, "vendor") for name, facts in FAMILIES.items() if facts.vendor}
"""Those whose published remote-code class can be driven, by name."""


def family_of(model: nn.Module) -> Family:
    """The family of a loaded model, by its class name; `OcrPhasesError` for a class without a row."""
    families = (*NATIVES.values(), *VENDORS.values())
    for family in families:
        if family.drives(model):
            return family
    known = ", ".join(dict.fromkeys(family.wiring.class_name for family in families))
    raise OcrPhasesError(
        f"{type(model).__name__} is no model this version can drive; it knows {known}."
    )


def native_config(raw: dict[str, Any]) -> Any:
    """transformers' config for a checkpoint's ``config.json``; raises as `read_model_config` does."""
    model = read_model_config(raw)
    return NATIVES[model.family.name].model_class().config_class(**model.saved)


def _attention(model: Any) -> str:
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    return WINDOWED if kinds == {WINDOWED} else FULL


def _image_pairs(inputs: DeviceInputs) -> list[tuple[Tensor, Tensor]]:
    """One (crops, global view) a row; no crops are all zeros, of the global view's size."""
    rows, pages = inputs.input_ids.shape[0], len(inputs.pixel_values)
    if pages != rows:
        raise OcrPhasesError(
            f"The vendor's class reads one page a prompt, got {count_text(pages, 'page')} in "
            f'{count_text(rows, "prompt")}: use implementation="native", or one prompt a page.'
        )
    views, local = inputs.pixel_values.split(1), inputs.pixel_values_local
    none = torch.zeros_like(views[0])
    crops = [none] * pages if local is None else local.split(inputs.num_local_patches)
    return [(part if len(part) else none, view) for part, view in zip(crops, views, strict=True)]
