"""vLLM's worker with clocks: ``--worker-extension-cls ocr_phases.engines.vllm_worker.Stages``.

vLLM imports this module; it needs torch and nothing else of this package's requirements. `Stages`
is mixed into the worker, whose methods a client calls by ``/collective_rpc``
(``VLLM_SERVER_DEV_MODE=1``).
"""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path
from typing import Any

#: vLLM's modules of each stage, as far as a model has them.
MODULES = {
    "sam": "sam_model",
    "clip": "vision_model",
    "encoder": "qwen2_model",
    "projector": "projector",
    "language_model": "language_model",
}
#: What vLLM's models of other families call their parts, the first that a model has: of a merger
#: inside the encoder there is no stage, because its time would be added twice.
OTHER_MODULES = {
    "encoder": ("visual", "vision_tower", "vision_encoder", "vision_model"),
    "projector": (
        "multi_modal_projector",
        "mm_projector",
        "vision_projection",
        "connector",
        "aligner",
        "mlp_AR",
        "mlp1",
    ),
}
#: The stage of all of vision in a replayed CUDA graph (``cudagraph_mm_encoder``): its hooks do not
#: fire there, so that its parts have no times of their own.
ENCODER_GRAPH = "encoder_graph"
#: So many calls are kept until they are taken.
_MOST_ROWS = 200_000


def watched_modules(model: Any) -> dict[str, str]:
    """What a model of vLLM calls the modules that are a stage each, by the stage's name.

    A model that has none of DeepSeek-OCR's vision parts is watched by its own.
    """
    found = {stage: name for stage, name in MODULES.items() if _has(model, name)}
    if "sam" in found or "encoder" in found:
        return found
    found.pop("clip", None)
    for stage, names in OTHER_MODULES.items():
        for name in names:
            if stage not in found and _has(model, name):
                found[stage] = name
    return found


def _has(model: Any, name: str) -> bool:
    return getattr(model, name, None) is not None


class StageClocks:
    """Clocks around the calls of a model's `watched_modules`: CUDA events on a GPU, the host's
    clock elsewhere.

    A call within a CUDA graph that is captured or replayed is not seen. ``graphs`` is vLLM's
    ``EncoderCudaGraphManager``, as version 0.32.0 has it: of each graph that it replays, one for
    the whole page and one for its crops, the time is taken from outside. That was tried on a graph
    of torch alone, and has not been seen in a vLLM on a GPU.
    """

    def __init__(self, model: Any, device: Any, graphs: Any = None) -> None:
        import torch

        self.cuda = torch.cuda if device.type == "cuda" else None
        self.rows: deque[tuple[str, Any, Any, int]] = deque(maxlen=_MOST_ROWS)
        self.opened: list[Any] = []
        self.base = self._base()
        #: Whether replays of the encoder's graphs are timed.
        self.times_graphs = self._watch_graphs(graphs)
        for stage, name in watched_modules(model).items():
            self._watch_module(stage, getattr(model, name))

    def _watch_module(self, stage: str, module: Any) -> None:
        """Time each call of a module."""

        def begin(*_: Any) -> None:
            self.opened.append(self._now())

        def end(_: Any, arguments: Any, named: Any, output: Any) -> None:
            del output
            begun = self.opened.pop()
            self._keep(stage, begun, _token_count([*arguments, *named.values()]))

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end, with_kwargs=True)

    def _watch_graphs(self, graphs: Any) -> bool:
        """Time each replay of the encoder's graphs; False where there is nothing to be timed."""
        replay = getattr(graphs, "_run_budget_graph", None)
        if replay is None:
            return False

        def timed_replay(*arguments: Any, **named: Any) -> Any:
            begun = self._now()
            output = replay(*arguments, **named)
            if output is not None:  # None where no graph fits, and the modules run themselves
                self._keep(ENCODER_GRAPH, begun, 0)
            return output

        graphs._run_budget_graph = timed_replay
        return True

    def _keep(self, stage: str, begun: Any, tokens: int) -> None:
        """Keep a call that ends now; one within a capture has no times."""
        ended = self._now()
        if begun is not None and ended is not None:
            self.rows.append((stage, begun, ended, tokens))

    def _now(self) -> Any:
        """A time of the device; None within a graph that is captured."""
        if self.cuda is None:
            return time.monotonic()
        if self.cuda.is_current_stream_capturing():
            return None
        event = self.cuda.Event(enable_timing=True)
        return self.cuda.current_stream().record_event(event)

    def _base(self) -> tuple[Any, float]:
        """A time of the device and the same of the host."""
        if self.cuda is not None:
            self.cuda.synchronize()
        return self._now(), time.monotonic()

    def _ms_between(self, begun: Any, ended: Any) -> float:
        """The time between two times of the device in ms."""
        if self.cuda is not None:
            return float(begun.elapsed_time(ended))
        return float(1e3 * (ended - begun))

    def take(self) -> tuple[float, list[tuple[str, float, float, int]]]:
        """What was seen since the last call: the time now, and rows of stage, start, ms and tokens.

        The time and starts are seconds of the host's monotonic clock.
        """
        first, host = self.base
        self.base = self._base()  # waits for the device
        rows = []
        for name, begun, ended, tokens in self.rows:
            start = host + self._ms_between(first, begun) / 1e3
            rows.append((name, start, self._ms_between(begun, ended), tokens))
        self.rows.clear()
        rows.sort(key=_start_of)
        return time.monotonic(), rows


def _start_of(row: tuple[str, float, float, int]) -> float:
    return row[1]


def _token_count(inputs: list[Any]) -> int:
    """How many tokens a text model is given: the length of the ids or positions that it gets."""
    for tensor in inputs:
        if hasattr(tensor, "shape"):
            return int(tensor.shape[-1])
    return 0


class Stages:
    """The methods that the worker gets; their names must be none of vLLM's.

    ``ocr_take``, once `ocr_watch` was called, is `StageClocks.take`.
    """

    def ocr_encoder_ms(self: Any) -> float | None:
        """The time of the encoder since the last call, in ms, by vLLM's own statistics.

        None where the server was not started with ``--enable-mm-processor-stats``.
        """
        observability = getattr(self.vllm_config, "observability_config", None)
        if not getattr(observability, "enable_mm_processor_stats", False):
            return None
        requests = self.model_runner.get_encoder_timing_stats().values()
        return 1e3 * sum(float(each["encoder_forward_secs"]) for each in requests)

    def ocr_watch(self: Any) -> dict[str, Any]:
        """Begin to watch, once, and say what is watched: model class and modules, dtype, device,
        settings, versions.

        ``self`` is vLLM's worker: vLLM adds the methods of this class to it, so what has to last
        from one call to the next is kept on the worker.
        """
        import torch

        model = self.model_runner.get_model()
        device = self.device
        if not hasattr(self, "ocr_take"):
            graphs = getattr(self.model_runner, "encoder_cudagraph_manager", None)
            clocks = StageClocks(model, device, graphs)
            self.ocr_times_graphs = clocks.times_graphs
            self.ocr_take = clocks.take
        return {
            "model": {
                "class": type(model).__name__,
                "dtype": str(self.vllm_config.model_config.dtype).removeprefix("torch."),
            },
            "device": {
                "name": _device_name(device),
                "kind": device.type,
                "threads": torch.get_num_threads(),
            },
            "versions": {"torch": str(torch.__version__)},
            "modules": watched_modules(model),
            "settings": _settings(self.vllm_config, times_graphs=self.ocr_times_graphs),
        }


def _settings(config: Any, *, times_graphs: bool) -> dict[str, Any]:
    """vLLM's settings that a time depends on; of an older version those that it has."""
    settings = {
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "enforce_eager": config.model_config.enforce_eager,
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
    }
    observability = getattr(config, "observability_config", None)
    if getattr(observability, "enable_mm_processor_stats", False):
        settings["enable_mm_processor_stats"] = True
    compilation = getattr(config, "compilation_config", None)
    if getattr(compilation, "cudagraph_mm_encoder", False):
        settings["cudagraph_mm_encoder"] = True
        settings["encoder_graphs_timed"] = times_graphs
    return settings


def _device_name(device: Any) -> str:
    """The name of the GPU or of the CPU."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return cpu[1] if cpu else str(device.type)
