"""CUDA graphs: work that is captured once, and then started by one call.

A graph holds addresses. It reads and writes the very tensors that it was captured with, and what it
makes lies in memory of its own, which the next replay overwrites.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from ocr_phases.collectors.host_syncs import note_host_syncs

Result = TypeVar("Result")

#: Runs before a capture, as libraries set up their workspaces in the first ones.
_WARM_RUNS = 3


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from running within.

    It could end a graph that nobody needs any more, which CUDA forbids while another one is
    captured: the capture would be lost.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def capture(run: Callable[[], Result]) -> Callable[[], Result]:
    """``run`` as a CUDA graph of the current device: the same work on the same tensors.

    Nothing in ``run`` may wait for the device. A call of what is returned starts the work and gives
    the same tensors every time, with new numbers in them.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_RUNS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with no_collection(), torch.cuda.graph(graph, stream=stream):
        result = run()

    def replay() -> Result:
        graph.replay()
        return result

    return replay


def capture_call(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """``function`` captured for arguments like these.

    The graph works on copies of the tensors in them. A call copies its own tensors there, which
    must have the same shapes, and gets copies of the results; what is no tensor in its arguments is
    that of the capture.
    """
    function(*args, **options)  # which tells a compiler what is marked on these tensors
    own_args, own_options = tree_map_only(Tensor, torch.clone, (args, options))
    own_tensors = tensors_in(own_args, own_options)

    def run() -> Any:
        return function(*own_args, **own_options)

    replay = capture(run)

    def call(*args: Any, **options: Any) -> Any:
        torch._foreach_copy_(own_tensors, tensors_in(args, options))
        return tree_map_only(Tensor, torch.clone, replay())

    return call


def tensors_in(*values: Any) -> list[Tensor]:
    """All tensors in lists, dicts and model outputs, in a fixed order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def waits_for_device(function: Callable[..., Any], *args: Any, **options: Any) -> bool:
    """Whether a function makes the host wait for the device, so that it cannot be captured."""
    function(*args, **options)  # a first call may wait for what later ones find ready
    waits: list[str] = []
    with note_host_syncs(waits):
        function(*args, **options)
    return bool(waits)
