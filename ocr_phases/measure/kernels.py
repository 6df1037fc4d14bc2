"""The kernel view: one more run of a measured request under torch.profiler, apart from every timed
run.

The profiler slows the host down, so nothing here goes into the record's spans: only what the device
did, and on whose behalf, is kept (`ocr_phases.measure.trace`).
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function
from transformers import Cache

from ocr_phases.errors import Keyword, OcrPhasesError, SettingError
from ocr_phases.files import TRACE_OWNER, TemporaryFolder, output_file, write_given
from ocr_phases.measure.replayed import StepKernel, kernels_of_step
from ocr_phases.measure.trace import reduce_trace
from ocr_phases.measure.trace_events import KV_RANGE, Identity
from ocr_phases.record.parts import KernelsPart
from ocr_phases.settings import Request

#: Starts a decode step kernel by kernel and gives its spans, as rows of `SPAN_COLUMNS`.
LaunchStep = Callable[[], list[tuple]]


def check_kernels(device: str, *, generate: bool, trace: str | Path | None) -> None:
    """Whether a kernel view can be taken and its trace be kept; `SettingError` where not."""
    if torch.device(device).type != "cuda":
        raise SettingError(
            "kernels",
            "The kernel view needs a CUDA device, and this is {device}: drop {kernels}.",
            device=device,
            kernels=Keyword("kernels", True),
        )
    if generate:
        raise SettingError(
            "kernels",
            "The kernel view needs the two phases: drop {generate} or {kernels}.",
            generate=Keyword("generate", True),
            kernels=Keyword("kernels", True),
        )
    if trace is not None:
        output_file(trace)


def kernel_view(
    run_spans: Callable[[Request], list[tuple]],
    request: Request,
    device: str,
    launch_step: LaunchStep | None = None,
    head_shape: tuple[int, int] | None = None,
) -> KernelsPart:
    """Run a request once more under the profiler: the record's kernel view.

    Parameters
    ----------
    run_spans : callable
        Runs a request and gives its spans, as rows of `ocr_phases.record.SPAN_COLUMNS`.
    request : Request
        What is run. At most ``kernel_steps`` decode steps run, which is enough for shares;
        ``kernel_trace`` is the file for the Chrome trace (``.json.gz``, for
        https://ui.perfetto.dev).
    device : str
        Where it runs.
    launch_step : callable, optional
        For decode steps that replay a graph: starts such a step kernel by kernel and gives its
        spans, so that the kernels of the replays find their stages.
    head_shape : (int, int), optional
        The shape of the head's weight, where the steps are compiled.

    Raises
    ------
    OcrPhasesError
        Where the profiler saw too little.
    """
    profiler, spans = profiled_run(run_spans, request)
    trace = chrome_trace(profiler)
    step_kernels: list[StepKernel] = []
    if launch_step is not None:
        step_kernels = launched_kernels(launch_step, head_shape)
    view = reduce_trace(trace, spans, f"torch.profiler {torch.__version__}", step_kernels)
    if device.startswith("cuda") and not any(view.stages.kernels):
        raise OcrPhasesError(
            "The profiler saw no kernel: another profiler may hold the device, or this user may "
            "not read its counters."
        )
    if request.kernel_trace is not None:
        content = json.dumps({**TRACE_OWNER, **trace}).encode()
        write_given(request.kernel_trace, gzip.compress(content, compresslevel=6))
    return view


def profiled_run(
    run_spans: Callable[[Request], list[tuple]], request: Request
) -> tuple[profile, list[Identity]]:
    """One run of at most ``kernel_steps`` decode steps: the profiler and the run's spans by start.

    A run of the same shapes goes before it without the profiler, as before every timed one.
    """
    tokens = request.kernel_steps
    if request.first_token != "redecode":
        tokens += 1  # the prefill's
    short = replace(request, max_new_tokens=min(request.max_new_tokens, tokens))
    run_spans(short)
    with cache_updates_marked(), profile() as profiler:  # of the host and of CUDA
        spans = run_spans(short)
    return profiler, _identities(spans)


def launched_kernels(
    launch_step: LaunchStep, head_shape: tuple[int, int] | None
) -> list[StepKernel]:
    """The kernels of a step that ``launch_step`` starts one by one, in their order."""
    launch_step()
    with cache_updates_marked(), profile(record_shapes=head_shape is not None) as profiler:
        spans = launch_step()
    return kernels_of_step(chrome_trace(profiler), _identities(spans), head_shape)


def _identities(spans: list[tuple]) -> list[Identity]:
    identities = []
    for _, phase, stage, view, step, *_times in spans:
        identities.append((phase, stage, view, step))
    return identities


def chrome_trace(profiler: profile) -> dict[str, Any]:
    """What the profiler exports, read back: the one form that its versions share."""
    with TemporaryFolder() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))


@contextlib.contextmanager
def cache_updates_marked() -> Iterator[None]:
    """A profiler range (`KV_RANGE`) around each ``update`` of a transformers KV cache.

    For the length of a ``with`` block.
    """
    mark = record_function(KV_RANGE)
    with contextlib.ExitStack() as undo:
        for kind in _subclasses(Cache):
            update = vars(kind).get("update")
            if update is not None:
                undo.callback(setattr, kind, "update", update)
                kind.update = mark(update)
        yield


def _subclasses(kind: type[Cache]) -> list[type[Cache]]:
    """A class and all that inherit from it, each once."""
    kinds = [kind]
    for each in kinds:
        kinds += [child for child in each.__subclasses__() if child not in kinds]
    return kinds
