"""Hooks on the modules of a model: what times its stages, and what runs before each layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from torch import nn

from ocr_phases.collectors.timeline import NoTimeline, Span, Timeline
from ocr_phases.models.interface import ModelInterface, TimedPart
from ocr_phases.stages import VISION_ROLES

#: The stage between the projector and the language model, which is no module.
_FUSION = "vision_fusion"


@contextlib.contextmanager
def stage_hooks(
    model: nn.Module, interface: ModelInterface, timeline: Timeline, views: Sequence[str]
) -> Iterator[None]:
    """Time the model's stages by hooks on its submodules, for the length of a ``with`` block.

    ``views`` names the view of each successive vision call of a prefill (``"global"`` or
    ``"local"``). ``vision_fusion`` runs from the end of the last projector call to the start of the
    language model. The hooks are removed at the end, also after an error.
    """
    if isinstance(timeline, NoTimeline):
        yield
        return
    parts = interface.timed_parts(model)
    open_spans: dict[str, Span] = {}
    views_left = {part.stage: list(views) for part in parts if part.role in VISION_ROLES}

    def begin_stage(part: TimedPart, module: nn.Module, args: Any) -> None:
        if part.role == "language" and _FUSION in open_spans:
            timeline.end(open_spans.pop(_FUSION))
        view = ""
        if views_left.get(part.stage):
            view = views_left[part.stage].pop(0)
        open_spans[part.stage] = timeline.begin(part.stage, view)

    def end_stage(part: TimedPart, module: nn.Module, args: Any, output: Any) -> None:
        timeline.end(open_spans.pop(part.stage))
        if part.role == "projector" and views:
            timeline.vectors += prod(output.shape[:-1])
            if not views_left[part.stage]:
                open_spans[_FUSION] = timeline.begin(_FUSION)

    with contextlib.ExitStack() as hooks:
        for part in parts:
            hooks.enter_context(part.first.register_forward_pre_hook(partial(begin_stage, part)))
            hooks.enter_context(part.last.register_forward_hook(partial(end_stage, part)))
        yield


@contextlib.contextmanager
def generate_ranges(
    model: nn.Module, interface: ModelInterface, views: Sequence[str]
) -> Iterator[None]:
    """NVTX ranges of the phases of a ``generate()`` that a ``with`` block calls once.

    The range ``prefill`` reaches from the beginning of the block, because a class may encode its
    images before its first forward, to the end of that forward. It has a range for each of its
    stages.
    What follows is the range ``decode``, which ends with the block and has none inside: hooks in
    each step would slow down what is measured. The record gets no spans of them, because
    ``generate()`` is recorded as one phase. ``views`` are those of `stage_hooks`.
    """
    # Its spans are not read: only their ranges are wanted.
    timeline = Timeline("cpu")
    with contextlib.ExitStack() as ranges, contextlib.ExitStack() as hooks:

        def begin_decode(module: nn.Module, args: Any, output: Any) -> None:
            hooks.close()
            ranges.close()
            ranges.enter_context(timeline.span("decode"))

        hooks.enter_context(stage_hooks(model, interface, timeline, views))
        hooks.enter_context(model.register_forward_hook(begin_decode))
        ranges.enter_context(timeline.span("prefill"))
        yield


@contextlib.contextmanager
def layer_hooks(model: nn.Module, check: Callable[[], None]) -> Iterator[None]:
    """Call ``check`` before each layer that runs in a ``with`` block; it may raise `Stopped`.

    For eager runs on a CPU, where a prefill takes seconds. A check takes a microsecond.
    """

    def check_before(module: nn.Module, args: Any) -> None:
        check()

    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, nn.ModuleList):
                for layer in module:
                    hooks.enter_context(layer.register_forward_pre_hook(check_before))
        yield
