"""How a decode step is executed: what each strategy can do here, and the kernels it runs with.

``eager`` calls the model class step by step; ``cuda_graph`` replays one captured step over a static cache;
``compiled`` compiles that step, and captures it too on a GPU (`ocr_phases.steps.static_step`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from time import perf_counter
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.wiring import Family

#: cuDNN's attention builds a plan for every new KV length, which decode meets at every step.
DECODE_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
#: One query over a masked cache: a ready kernel keeps ten heads on ten processors (61 to 89 us a layer on an
#: H200); the plain formula spreads over all of them, and a compiler can fuse it.
STATIC_BACKENDS = (SDPBackend.MATH,)

_EOS_EVERY = 16
#: What the compiler writes before each trial of a kernel, in bytes, as ``triton.testing.do_bench`` does.
_FLUSHED = 256 * 2**20

#: Told what is compiled or captured next ("compiling SAM"); it may raise `Stopped`.
preparing: ContextVar[Callable[[str], None]] = ContextVar("preparing", default=lambda what: None)


def eos_interval(strategy: str) -> int:
    """How many steps apart the end token is looked for, where nobody says: each step waits for the device."""
    return 1 if strategy == "eager" else _EOS_EVERY


def check_strategy(
    strategy: str, vision: str, *, family: Family, device: torch.device | str, autocast: bool
) -> None:
    """Raise `OcrPhasesError` where ``strategy`` or ``vision`` cannot run with this model and device."""
    kind = torch.device(device).type
    wanted = [f"strategy={strategy!r}"] if strategy != "eager" else []
    wanted += [f"vision={vision!r}"] if vision != "eager" else []
    if not wanted:
        return
    named = " and ".join(wanted)
    if family.implementation != "native":
        raise OcrPhasesError(
            f"{named}: the {family.implementation} class runs only eagerly, so load implementation='native'."
        )
    if autocast:
        raise OcrPhasesError(f"{named} has the model's own dtype only: drop it, or drop autocast.")
    if strategy == "cuda_graph" and kind != "cuda":
        raise OcrPhasesError(
            f"{named} needs a CUDA device, this is {device}: use 'eager', or 'compiled' where there is a "
            "C++ compiler."
        )
    if "compiled" in (strategy, vision):
        missing = _missing_compiler(kind)
        if missing:
            raise OcrPhasesError(f"{named} needs {missing}: install it, or use 'eager'.")


def _missing_compiler(kind: str) -> str | None:
    """What torch.compile would miss on a device of this kind; None where it has all it needs."""
    if kind == "cuda":
        return None if importlib.util.find_spec("triton") else "triton (pip install triton)"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return None if shutil.which(compiler) else f"a C++ compiler, and {compiler} is not here"


def compiled_apart(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``torch.compile`` of ``function`` for one set of shapes, which no other compilation can crowd out.

    The compiler keeps, and limits, what it made by code object; so every call here gets a code object of its
    own. ``options`` are those of ``torch.compile``.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    own = FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)
    return torch.compile(own, fullgraph=True, dynamic=False, **options)


@contextlib.contextmanager
def tuned_steadily() -> Iterator[None]:
    """Let the compiler time its trials of a kernel well, for the length of a ``with`` block.

    It empties the L2 cache before each trial, which takes less time than a launch: a kernel of 5 us was timed
    with its launch, and chosen by chance. With more to write, the host is ahead of the device.
    """
    from torch._inductor.runtime.benchmarking import benchmarker

    vars(benchmarker)["L2_cache_size"] = _FLUSHED
    try:
        yield
    finally:
        del vars(benchmarker)["L2_cache_size"]


@contextlib.contextmanager
def forwards(chosen: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Run modules by other forwards than their class's, for the length of a ``with`` block.

    Hooks on the modules stay outside.
    """
    for module, forward in chosen.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in chosen:
            del module.forward


@contextlib.contextmanager
def stoppable(model: nn.Module, check: Callable[[], None]) -> Iterator[None]:
    """Call ``check``, which may raise `Stopped`, before each layer that runs in a ``with`` block.

    For eager runs on a CPU, where a prefill takes seconds. A check takes a microsecond.
    """

    def before(module: nn.Module, args: Any) -> None:
        check()

    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    handles = [layer.register_forward_pre_hook(before) for layers in lists for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def told_of_preparing(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell ``tell`` what is compiled or captured in a ``with`` block, before each."""
    before = preparing.set(tell)
    try:
        yield
    finally:
        preparing.reset(before)


def first_call_ms(
    device: torch.device | str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Any, float]:
    """What ``function`` gives and the milliseconds it took, the device's work included.

    Raises `OcrPhasesError` where it is compiled and the compiler fails.
    """
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start = perf_counter()
    try:
        given = function(*args, **kwargs)
    except torch._dynamo.exc.TorchDynamoException as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise OcrPhasesError(f"torch.compile failed here ({first}): use 'eager'.") from error
    if cuda:
        torch.cuda.synchronize()
    return given, (perf_counter() - start) * 1e3


def decode_backends(device: torch.device | str, strategy: str = "eager") -> tuple[SDPBackend, ...]:
    """The SDPA backends a decode step may use; none where the choice is left to torch (CPU)."""
    if torch.device(device).type != "cuda":
        return ()
    return DECODE_BACKENDS if strategy == "eager" else STATIC_BACKENDS


def decode_attention(device: torch.device | str, strategy: str = "eager") -> AbstractContextManager:
    """SDPA without cuDNN on CUDA; as it is on the CPU."""
    backends = decode_backends(device, strategy)
    return sdpa_kernel(list(backends)) if backends else contextlib.nullcontext()


def decode_experts(model: Any, strategy: str = "eager") -> dict[str, str | None]:
    """Which experts kernel each part of the model's config uses in decode; empty where there is no choice.

    On a GPU one token a step is far faster with ``batched_mm`` (it gathers the chosen experts' weights) than
    with ``grouped_mm``, the prefill's default; ``generate()`` makes the same change. It is also what a
    compiler can fuse.
    """
    if not hasattr(model, "get_experts_implementation"):
        return {}
    chosen = model.get_experts_implementation()
    if strategy != "compiled" and next(model.parameters()).device.type == "cpu":
        return chosen
    return {part: "batched_mm" if name == "grouped_mm" else name for part, name in chosen.items()}


@contextlib.contextmanager
def decode_execution(model: Any, strategy: str = "eager") -> Iterator[None]:
    """The kernels a decode step runs with, for the length of a ``with`` block: attention and experts."""
    experts = decode_experts(model, strategy)
    before = model.get_experts_implementation() if experts else {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(decode_attention(next(model.parameters()).device, strategy))
        if experts != before:
            model.set_experts_implementation(experts)
            stack.callback(model.set_experts_implementation, before)
        yield


def current_device(device: torch.device | str) -> AbstractContextManager:
    """Make a CUDA device the current one, for its events, memory counters and synchronize."""
    if torch.device(device).type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.device(torch.device(device))
