"""vLLM's worker with clocks: ``--worker-extension-cls ocr_phases.engines.vllm_worker.Stages``.

vLLM imports this module; it needs torch and nothing else of this package's requirements. `Stages` is mixed
into the worker, whose methods a client calls by ``/collective_rpc`` (``VLLM_SERVER_DEV_MODE=1``).
"""

from __future__ import annotations

import platform
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
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
_MOST_ROWS = 200_000


class Watch:
    """Clocks around the calls of ``modules``, by stage: CUDA events on a GPU, the host's clock elsewhere.

    A call within a CUDA graph that is captured or replayed is not seen.
    """

    def __init__(self, modules: Mapping[str, Any], device: Any) -> None:
        self.device, self.number = device, 0
        self.rows: deque[tuple[int, str, Any, Any, int]] = deque(maxlen=_MOST_ROWS)
        self.base = self._base()
        for stage, module in modules.items():
            self._clock(stage, module)

    def _clock(self, stage: str, module: Any) -> None:
        opened: list[Any] = []

        def begin(*_: Any) -> None:
            opened.append(self._now())

        def end(*_: Any) -> None:
            self._add(stage, opened.pop(), self._now(), 0)

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)

    def _add(self, stage: str, begun: Any, ended: Any, tokens: int) -> None:
        if begun is not None and ended is not None:
            self.rows.append((self.number, stage, begun, ended, tokens))

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.monotonic()
        import torch

        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _base(self) -> tuple[Any, float]:
        """A time of the device and the same of the host."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)
        return self._now(), time.monotonic()

    def around(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        """``execute_model`` of a runner, with its forwards numbered and timed on the host's clock."""

        def executed(scheduled: Any, *args: Any, **named: Any) -> Any:
            tokens = scheduled.total_num_scheduled_tokens
            self.number += bool(tokens)
            begun = time.monotonic()
            result = execute(scheduled, *args, **named)
            if tokens:
                self.rows.append((self.number, "forward", begun, time.monotonic(), tokens))
            return result

        return executed

    def take(self) -> dict[str, Any]:
        """What was seen since the last call: ``now`` and rows of forward, stage, start, ms and tokens.

        Starts and ``now`` are seconds of the host's monotonic clock.
        """
        event, host = self.base
        self.base = self._base()  # waits for the device

        def seconds(at: Any) -> float:
            return at if isinstance(at, float) else host + event.elapsed_time(at) / 1e3

        rows = [
            (number, stage, seconds(begun), 1e3 * (seconds(ended) - seconds(begun)), tokens)
            for number, stage, begun, ended, tokens in self.rows
        ]
        self.rows.clear()
        return {"now": time.monotonic(), "rows": sorted(rows, key=lambda row: row[2])}


def _processor() -> str:
    """The CPU's name, as far as the system tells it."""
    path = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", path.read_text()) if path.exists() else None
    return named[1].strip() if named else platform.machine()


class Stages:
    """The methods that the worker gets; their names must be none of vLLM's."""

    def ocr_watch(self) -> dict[str, Any]:
        """Begin to watch, once, and say what is watched: model class, dtype, device, settings, versions."""
        import torch

        worker: Any = self
        runner, config = worker.model_runner, worker.vllm_config
        model, device = runner.get_model(), worker.device
        if not hasattr(self, "ocr_watching"):
            named = {stage: getattr(model, name, None) for stage, name in MODULES.items()}
            self.ocr_watching = Watch({stage: each for stage, each in named.items() if each}, device)
            runner.execute_model = self.ocr_watching.around(runner.execute_model)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
        return {
            "class": type(model).__name__,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "device": {"name": name, "kind": device.type, "threads": torch.get_num_threads()},
            "versions": {"torch": str(torch.__version__)},
            "settings": {
                "enforce_eager": config.model_config.enforce_eager,
                "prefix_caching": config.cache_config.enable_prefix_caching,
                "max_num_seqs": config.scheduler_config.max_num_seqs,
                "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            },
        }

    def ocr_take(self) -> dict[str, Any]:
        """`Watch.take`."""
        return self.ocr_watching.take()
