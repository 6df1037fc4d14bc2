"""How a decode step is executed: what each strategy can do here, and the kernels it runs with.

``eager`` calls the model class step by step; ``cuda_graph`` replays one captured step over a static
cache; ``compiled`` compiles that step, and captures it too on a GPU (`ocr_phases.steps.captured`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map_only

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.interface import ModelInterface
from ocr_phases.settings import Request

#: cuDNN's attention builds a plan for every new KV length, which decode meets at every step.
DECODE_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
#: One query over a masked cache: a ready kernel keeps ten heads on ten processors (61 to 89 us a
#: layer on an H200); the plain formula spreads over all of them, and a compiler can fuse it.
STATIC_BACKENDS = (SDPBackend.MATH,)

#: How many steps apart the end token is looked for, where nobody says: each look waits for the
#: device.
EOS_INTERVALS = {"eager": 1, "cuda_graph": 16, "compiled": 16}

Value = TypeVar("Value")
Made = tuple[Callable[..., Any], "float | None"]

_SYNC = "called a synchronizing CUDA operation"  # torch's words
#: Told what is compiled or captured next ("compiling SAM"); it may raise `Stopped`.
preparing: ContextVar[Callable[[str], None]] = ContextVar("preparing", default=lambda what: None)


def check_strategy(request: Request, interface: ModelInterface, device: torch.device | str) -> None:
    """Raise `OcrPhasesError` where its ``strategy`` or ``vision`` cannot run with this model and
    device.
    """
    asked = {
        name: way for name in ("strategy", "vision") if (way := getattr(request, name)) != "eager"
    }
    kind, class_ = torch.device(device).type, interface.implementation
    missing = _missing_compiler(kind) if "compiled" in asked.values() else None
    gpu = f" needs a CUDA device, this is {device}: use 'eager', or 'compiled' where there is a C++ compiler."
    refusals = [
        (
            class_ != "native",
            f": the {class_} class runs only eagerly, so load implementation='native'.",
        ),
        (request.autocast, " has the model's own dtype only: drop it, or drop autocast."),
        (request.strategy == "cuda_graph" and kind != "cuda", gpu),
        (missing, f" needs {missing}: install it, or use 'eager'."),
    ]
    for refused, why in refusals:
        if asked and refused:
            raise OcrPhasesError(
                " and ".join(f"{name}={way!r}" for name, way in asked.items()) + why
            )


def _missing_compiler(kind: str) -> str | None:
    """What torch.compile would miss on a device of this kind; None where it has all it needs."""
    if kind == "cuda":
        return None if importlib.util.find_spec("triton") else "triton (pip install triton)"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return None if shutil.which(compiler) else f"a C++ compiler, and {compiler} is not here"


@contextlib.contextmanager
def forwards(chosen: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Run modules by other forwards than their class's, for the length of a ``with`` block.

    Hooks on the modules stay outside.
    """
    with contextlib.ExitStack() as after:
        for module, forward in chosen.items():
            module.forward = forward
            after.callback(delattr, module, "forward")
        yield


class MadeForwards:
    """Other forwards of modules, each made at the first call with inputs of a shape; ``most`` are
    kept.

    ``made`` has what `make` gave, by name and shape of the first tensor; ``used`` says which were
    called since they were last `installed`.
    """

    def __init__(self, modules: Mapping[str, nn.Module], most: int) -> None:
        self._modules, self._most = modules, most
        self.made: dict[tuple, Made] = {}
        self.used: set[tuple] = set()

    def installed(self) -> AbstractContextManager[None]:
        """Run the modules by them within a ``with`` block."""
        self.used.clear()
        modules = self._modules.items()
        return forwards(
            {module: partial(self.run, name, module.forward) for name, module in modules}
        )

    def run(self, name: str, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """One call of the module of this ``name``, whose own forward is ``forward``."""
        key = name, *tensors_in(args, options)[0].shape
        self.used.add(key)
        make = partial(self.make, name, forward, *args, **options)
        return last_used(self.made, key, make, self._most)[0](*args, **options)

    def make(self, name: str, forward: Callable[..., Any], *args: Any, **options: Any) -> Made:
        """What runs in place of ``forward`` for arguments like these, and the ms it took to make,
        or None.
        """
        raise NotImplementedError

    def took_ms(self) -> float | None:
        """The time that making those in ``used`` took; None where there is none."""
        return sum(self.made[key][1] or 0 for key in self.used) or None


@contextlib.contextmanager
def stoppable(model: nn.Module, check: Callable[[], None]) -> Iterator[None]:
    """Call ``check``, which may raise `Stopped`, before each layer that runs in a ``with`` block.

    For eager runs on a CPU, where a prefill takes seconds. A check takes a microsecond.
    """
    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            for layer in module if isinstance(module, nn.ModuleList) else ():
                hooks.enter_context(layer.register_forward_pre_hook(lambda module, args: check()))
        yield


@contextlib.contextmanager
def told_of_preparing(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell ``tell`` what is compiled or captured in a ``with`` block, before each."""
    with contextlib.ExitStack() as after:
        after.callback(preparing.reset, preparing.set(tell))
        yield


def first_call_ms(device: torch.device | str, function: Callable[[], Value]) -> tuple[Value, float]:
    """What ``function`` gives and the milliseconds it took, the device's work included.

    Raises `OcrPhasesError` where it is compiled and the compiler fails.
    """
    wait = partial(torch.get_device_module(device).synchronize, device)
    wait()
    start = perf_counter()
    try:
        given = function()
    except torch._dynamo.exc.TorchDynamoException as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise OcrPhasesError(f"torch.compile failed here ({first}): use 'eager'.") from error
    wait()
    return given, (perf_counter() - start) * 1e3


def last_used(made: dict[Any, Value], key: Any, make: Callable[[], Value], most: int) -> Value:
    """``made[key]``, made where it is missing; ``made`` holds the ``most`` last used values."""
    found = made.pop(key, None)
    while len(made) >= most:
        made.pop(next(iter(made)))
    return made.setdefault(key, found or make())


def decode_backends(device: torch.device | str, strategy: str = "eager") -> tuple[SDPBackend, ...]:
    """The SDPA backends a decode step may use; none where the choice is left to torch (CPU)."""
    backends = DECODE_BACKENDS if strategy == "eager" else STATIC_BACKENDS
    return backends if torch.device(device).type == "cuda" else ()


def decode_attention(device: torch.device | str, strategy: str = "eager") -> AbstractContextManager:
    """SDPA without cuDNN on CUDA; as it is on the CPU."""
    backends = decode_backends(device, strategy)
    return sdpa_kernel(list(backends)) if backends else contextlib.nullcontext()


def decode_experts(model: Any, strategy: str = "eager") -> dict[str, str | None]:
    """Which experts kernel each part of the model's config uses in decode; empty where there is no
    choice.

    On a GPU one token a step is far faster with ``batched_mm`` (it gathers the chosen experts'
    weights) than with ``grouped_mm``, the prefill's default; ``generate()`` makes the same change.
    It is also what a compiler can fuse.
    """
    if not hasattr(model, "get_experts_implementation"):
        return {}
    chosen = model.get_experts_implementation()
    if strategy != "compiled" and next(model.parameters()).device.type == "cpu":
        return chosen
    return {part: "batched_mm" if name == "grouped_mm" else name for part, name in chosen.items()}


@contextlib.contextmanager
def decode_execution(model: Any, strategy: str = "eager") -> Iterator[None]:
    """The kernels a decode step runs with, for the length of a ``with`` block: attention and
    experts.
    """
    experts = decode_experts(model, strategy)
    with (
        decode_attention(next(model.parameters()).device, strategy),
        contextlib.ExitStack() as after,
    ):
        if experts and experts != (before := model.get_experts_implementation()):
            model.set_experts_implementation(experts)
            after.callback(model.set_experts_implementation, before)
        yield


@contextlib.contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Within it torch computes with so many CPU threads; None leaves the number as it is."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def current_device(device: torch.device | str) -> AbstractContextManager:
    """Make a CUDA device the current one, for its events, memory counters and synchronize."""
    return torch.cuda.device(torch.device(device) if torch.device(device).type == "cuda" else -1)


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
    """``function`` captured over copies of these tensors: a call copies its own there, and gets
    copies.
    """
    function(*args, **options)  # which tells a compiler what is marked on these tensors
    own = tree_map_only(Tensor, torch.clone, (args, options))
    copies = tensors_in(*own)
    replay = captured(lambda: function(*own[0], **own[1]))

    def call(*args: Any, **options: Any) -> Any:
        torch._foreach_copy_(copies, tensors_in(args, options))
        return tree_map_only(Tensor, torch.clone, replay())

    return call


def tensors_in(*values: Any) -> list[Tensor]:
    """All tensors in lists, dicts and model outputs, in a fixed order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


@contextlib.contextmanager
def syncs_counted(found: list[str]) -> Iterator[None]:
    """The host's waits for a CUDA device in a ``with`` block go into ``found``; other warnings are
    shown.

    As far as torch's sync debug mode tells: it does not see a ``synchronize()``. Its warnings take
    time.
    """

    def show(message: Warning | str, *rest: Any, **named: Any) -> None:
        found.append(str(message)) if _SYNC in str(message) else shown(message, *rest, **named)

    with warnings.catch_warnings(), contextlib.ExitStack() as after:
        warnings.filterwarnings(
            "ignore", message="Synchronization debug mode"
        )  # that it misses some
        warnings.filterwarnings("always", message=_SYNC)
        shown, warnings.showwarning = warnings.showwarning, show
        after.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
        torch.cuda.set_sync_debug_mode("warn")
        yield
