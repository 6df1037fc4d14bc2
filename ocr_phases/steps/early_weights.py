"""Kernels that read their weights while the kernel before them still runs.

A decode step is a chain of some 200 small kernels, and each of them waits about a microsecond for
its first bytes. On a GPU with programmatic dependent launch (NVIDIA from Hopper on) a kernel may
start before the one in front of it has ended, as long as it waits for that end before it touches
what the other writes. Weights are written by no kernel, so they can be read before.

The compiler writes the wait in front of a kernel's first loop, where the weights are read too. Here
it is moved behind the loop's reads of weights (a later turn of the loop finds nothing to wait for).
On an H200 a token of a step that was compiled as a whole took 5 % less time. What moves is decided
on the lines of the kernel's source, because the compiler offers no other way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

#: Lines that the compiler writes: a kernel waits for the one before, and lets the next one start.
WAIT = "tl.extra.cuda.gdc_wait()"
LAUNCH = "tl.extra.cuda.gdc_launch_dependents()"

#: The pointers by which a kernel reads and writes memory.
_POINTER = re.compile(r"\b(?:in_out_ptr|in_ptr|out_ptr|ws_ptr)\w*")
_LOAD = re.compile(r"\s*(?P<name>\w+) = tl\.load\((?P<pointer>in_ptr\d+) \+ ")
_NAME = re.compile(r"[A-Za-z_]\w*")
_CAST = ".to(tl.float32)"

#: A line of a kernel: text, or an object of the compiler that has its text in ``line``.
Line = Any


class EarlyWeights(CustomGraphPass):
    """The compiler's cache keeps what is compiled with this pass apart; the pass changes no graph.

    Without it the cache would give back kernels that were written without `weights_read_early`.
    """

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Leave the graph as it is."""

    def uuid(self) -> bytes:
        """What stands for this module's source in the key of the cache."""
        return get_hash_for_files((__file__,))


@contextmanager
def weights_read_early() -> Iterator[None]:
    """Let the compiler write such kernels for the length of a ``with`` block.

    A version of torch that writes no waits, or writes them in another place, is left as it is.
    """
    from torch._inductor.codegen.triton import TritonKernel

    if not hasattr(TritonKernel, "_filter_pdl"):
        yield
        return

    def rewrite(kernel: Any, code: Any) -> None:
        code._lines = reordered(code._lines, _weight_pointers(kernel))

    with patch.object(TritonKernel, "_filter_pdl", rewrite):
        yield


def _weight_pointers(kernel: Any) -> set[str]:
    """The pointers to a kernel's weights."""
    from torch._inductor.virtualized import V

    weights = weight_names(V.graph)
    pointers = set()
    for buffer, pointer in kernel.args.input_buffers.items():
        if buffer in weights:
            pointers.add(pointer)
    return pointers


def weight_names(graph: Any) -> set[str]:
    """The inputs of the compiler's graph that are parameters or buffers of modules, by their names.

    What the graph itself writes to, like a KV cache, is none of them. Other inputs may come from
    the kernel that ran last.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return set()
    of_modules = {graph.graph_input_names[i] for i in context.fw_metadata.static_input_indices}
    return of_modules - set(graph.mutated_inputs)


def reordered(lines: Sequence[Line], weights: set[str]) -> list[Line]:
    """A kernel's lines, with its wait behind the first reads of ``weights``, pointers by name.

    The next kernel may start at once; it waits itself. Lines without a wait stay as they are.
    """
    kept = [line for line in lines if _text(line).strip() not in (WAIT, LAUNCH)]
    if len(kept) == len(lines):
        return list(lines)

    def needs_wait(line: Line) -> bool:
        return bool(_POINTER.search(_text(line))) and not _reads_weight(line, weights)

    first = next((number for number, line in enumerate(kept) if needs_wait(line)), len(kept))
    first = _outside_conditions(kept, first)
    depth = _depth(kept[first]) if first < len(kept) else _depth(kept[0])
    end = first
    while end < len(kept) and (_depth(kept[end]) >= depth or not _text(kept[end]).strip()):
        end += 1
    early, late = _parted(kept[first:end], weights, depth)
    margin = " " * depth
    launch = " " * _depth(kept[0]) + LAUNCH
    return [launch, *kept[:first], *early, margin + WAIT, *late, *kept[end:]]


def _parted(block: Sequence[Line], weights: set[str], depth: int) -> tuple[list[Line], list[Line]]:
    """The reads of weights in a block that need nothing else of it, and all its other lines.

    A read that is turned into float32 at once would wait for its bytes there: the turning stays
    where it was.
    """
    early: list[Line] = []
    late: list[Line] = []
    made_late: set[str] = set()
    for line in block:
        text = _text(line)
        load = _LOAD.match(text)
        uses = set(_NAME.findall(text.partition(" = ")[2]))
        if load and _depth(line) == depth and _reads_weight(line, weights) and not uses & made_late:
            name = load["name"]
            if not text.endswith(_CAST):
                early.append(line)
                continue
            raw = text.removesuffix(_CAST).replace(f"{name} = ", f"{name}_raw = ", 1)
            early.append(_with_text(line, raw))
            line = " " * depth + f"{name} = {name}_raw{_CAST}"
        made_late.update(_made_by(line))
        late.append(line)
    return early, late


def _made_by(line: Line) -> list[str]:
    """The variables that a line gives a value."""
    target, assigns, _ = _text(line).partition(" = ")
    return _NAME.findall(target) if assigns else []


def _reads_weight(line: Line, weights: set[str]) -> bool:
    load = _LOAD.match(_text(line))
    return bool(load) and set(_POINTER.findall(_text(line))) <= weights


def _outside_conditions(lines: Sequence[Line], number: int) -> int:
    """The place of a line, or of the outermost block around it that need not run: not of loops."""
    place = number
    if number == len(lines):
        return place
    depth = _depth(lines[number])
    for above in range(number - 1, -1, -1):
        text = _text(lines[above])
        if text.strip() and _depth(lines[above]) < depth:
            depth = _depth(lines[above])
            if not text.strip().startswith("for "):
                place = above
    return place


def _text(line: Line) -> str:
    return line if isinstance(line, str) else getattr(line, "line", "")


def _with_text(line: Line, text: str) -> Line:
    """A line of the same kind."""
    return text if isinstance(line, str) else line._new_line(text)


def _depth(line: Line) -> int:
    text = _text(line)
    return len(text) - len(text.lstrip())
