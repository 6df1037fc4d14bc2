"""Hooks on the modules of a model: what times its stages, and what runs before each layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from torch import nn

from ocr_phases.collectors.timeline import NoTimeline, Span, Timeline
from ocr_phases.families import VISION_STAGES
from ocr_phases.models.wiring import Family


@contextlib.contextmanager
def stage_hooks(
    model: nn.Module, family: Family, timeline: Timeline, views: Sequence[str]
) -> Iterator[None]:
    """Time the model's stages by hooks on its submodules, for the length of a ``with`` block.

    ``views`` names the view of each successive vision call of a prefill (``"global"`` or
    ``"local"``). ``vision_fusion`` runs from the end of the last projector call to the start of the
    language model. The hooks are removed at the end, also after an error.
    """
    timed = {} if isinstance(timeline, NoTimeline) else family.timed(model)
    open_spans: dict[str, Span] = {}
    left = {stage: list(views) for stage in VISION_STAGES}

    def before(stage: str, module: nn.Module, args: Any) -> None:
        if stage == "language_model" and "vision_fusion" in open_spans:
            timeline.end(open_spans.pop("vision_fusion"))
        view = left[stage].pop(0) if left.get(stage) else ""
        open_spans[stage] = timeline.begin(stage, view)

    def after(stage: str, module: nn.Module, args: Any, output: Any) -> None:
        timeline.end(open_spans.pop(stage))
        if stage == "projector" and views:
            timeline.vectors += prod(output.shape[:-1])
            if not left[stage]:
                open_spans["vision_fusion"] = timeline.begin("vision_fusion")

    with contextlib.ExitStack() as hooks:
        for stage, (first, last) in timed.items():
            hooks.enter_context(first.register_forward_pre_hook(partial(before, stage)))
            hooks.enter_context(last.register_forward_hook(partial(after, stage)))
        yield


@contextlib.contextmanager
def layer_hooks(model: nn.Module, check: Callable[[], None]) -> Iterator[None]:
    """Call ``check`` before each layer that runs in a ``with`` block; it may raise `Stopped`.

    For eager runs on a CPU, where a prefill takes seconds. A check takes a microsecond.
    """

    def before(module: nn.Module, args: Any) -> None:
        check()

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, nn.ModuleList):
                for layer in module:
                    hooks.enter_context(layer.register_forward_pre_hook(before))
        yield
