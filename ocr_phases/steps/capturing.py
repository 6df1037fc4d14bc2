"""CUDA graphs: work that the host starts with one call, over tensors that stay where they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

#: Runs before a capture, as libraries set up their workspaces in the first ones.
_WARM_RUNS = 3


def captured(run: Callable[[], Any]) -> Callable[[], Any]:
    """``run`` as a CUDA graph: the same work on the same tensors, started by one call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_RUNS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        given = run()

    def replay() -> Any:
        graph.replay()
        return given

    return replay


def captured_call(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """``function`` captured over copies of these tensors: a call copies its own there, and gets copies."""
    own = tree_map_only(Tensor, torch.clone, (args, options))
    copies = tensors_in(*own)
    replay = captured(lambda: function(*own[0], **own[1]))

    def call(*args: Any, **options: Any) -> Any:
        for copy, tensor in zip(copies, tensors_in(args, options), strict=True):
            copy.copy_(tensor)
        return tree_map_only(Tensor, torch.clone, replay())

    return call


def tensors_in(*values: Any) -> list[Tensor]:
    """All tensors in lists, dicts and model outputs, in a fixed order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def waits(run: Callable[[], Any]) -> bool:
    """Whether ``run``, which has run before, waits for the device somewhere: then it cannot be captured."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False
