"""A loaded model with what its measurements share, and the one model that this process keeps."""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch

from ocr_phases.measure.ceilings import measure_ceilings
from ocr_phases.models.devices import release_memory
from ocr_phases.models.load import Checkpoint, load_checkpoint
from ocr_phases.record.parts import CeilingsPart, GenerationPart, ModelPart, make_part
from ocr_phases.settings import ModelSettings, Strategy
from ocr_phases.steps.captured import KEPT_STEPS, CapturedVision, StaticStep
from ocr_phases.steps.compiled import CompiledVision
from ocr_phases.steps.decode_kernels import decode_backends, decode_experts
from ocr_phases.steps.forwards import ForwardsByShape
from ocr_phases.steps.last_used import LastUsed


class StepShape(NamedTuple):
    """What a `StaticStep` is made for: rows of a batch, entries of its cache, its strategy."""

    rows: int
    cache_length: int
    strategy: Strategy


class LoadedModel:
    """A checkpoint on its device, and what is made once for all measurements of it.

    Attributes
    ----------
    checkpoint : Checkpoint
        The model with its tokenizer, as `ocr_phases.models.load` gives it.
    steps : LastUsed
        The captured or compiled decode steps by their shape, the last used of them
        (`ocr_phases.steps.captured.KEPT_STEPS`).
    vision : dict
        The vision encoders as each way of running them makes them, ``cuda_graph`` and ``compiled``;
        both at each shape's first call.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.steps: LastUsed[StepShape, StaticStep] = LastUsed(KEPT_STEPS)
        self.vision: dict[str, ForwardsByShape] = {
            "cuda_graph": CapturedVision(checkpoint.model),
            "compiled": CompiledVision(checkpoint.model),
        }
        #: The shapes that a run has finished with.
        self.warm_shapes: set[tuple[object, ...]] = set()
        self._ceilings: dict[torch.dtype, CeilingsPart] = {}

    def step(self, shape: StepShape) -> StaticStep:
        """The step of this shape, made where there is none yet."""
        step = self.steps.get(shape)
        if step is None:
            self.steps.make_room()
            step = StaticStep(self.checkpoint.model, shape.rows, shape.cache_length, shape.strategy)
            self.steps.put(shape, step)
        return step

    def ceilings(self, dtype: torch.dtype) -> CeilingsPart:
        """The device's peak rates with numbers of this dtype, measured at the first call."""
        if dtype not in self._ceilings:
            rates = measure_ceilings(self.checkpoint.device, dtype)
            self._ceilings[dtype] = make_part(CeilingsPart, rates)
        return self._ceilings[dtype]


def attention_kernels(device: str, strategy: str = "eager") -> list[str]:
    """The SDPA kernels that a run, or a decode step of ``strategy``, may use, by name."""
    backends = decode_backends(device, strategy)
    if not backends:
        return ["default"]
    return [backend.name.lower() for backend in backends]


def describe_model(
    checkpoint: Checkpoint, strategy: str = "eager", vision: str = "eager"
) -> ModelPart:
    """The record's part about a model, as a run with this ``strategy`` and ``vision`` uses it."""
    model = checkpoint.model
    interface = checkpoint.interface
    generation = checkpoint.generation.described()
    return ModelPart(
        name=checkpoint.name,
        source=checkpoint.source,
        revision=checkpoint.revision,
        family=checkpoint.family.name,
        implementation=interface.implementation,
        class_name=type(model).__name__,
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        attention=model.config._attn_implementation,
        attention_kernels=attention_kernels(checkpoint.device),
        experts=getattr(model.config.get_text_config(), "_experts_implementation", None),
        decode_attention_kernels=attention_kernels(checkpoint.device, strategy),
        decode_experts=decode_experts(model, strategy).get("text_config"),
        strategy=strategy,
        vision=vision,
        cuda_calls=checkpoint.cuda_calls,
        parameters=interface.parameters(model),
        config=checkpoint.config,
        generation=make_part(GenerationPart, generation),
    )


def free_memory() -> None:
    """Give back what nothing holds any more, on all devices."""
    gc.collect()
    release_memory()


_kept: dict[ModelSettings, LoadedModel] = {}


def keep_model(settings: ModelSettings, model: LoadedModel) -> None:
    """Keep a model that is loaded already as the one that `kept_model` gives for ``settings``."""
    _kept.clear()
    _kept[settings] = model


def forget_kept_model() -> None:
    """Let go of the model that is kept, and free its memory."""
    _kept.clear()
    free_memory()


def kept_model(settings: ModelSettings) -> LoadedModel:
    """The model last loaded with these very settings, else a new one.

    One is kept. It is let go before another is loaded, so that a device never holds two. Raises
    `OcrPhasesError` as `ocr_phases.models.load.load_checkpoint` does.
    """
    if settings not in _kept:
        forget_kept_model()
        keep_model(settings, LoadedModel(load_checkpoint(settings)))
    return _kept[settings]
