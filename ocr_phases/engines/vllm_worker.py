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
MODULES = {"sam": "sam_model", "clip": "vision_model", "encoder": "qwen2_model"}
MODULES |= {name: name for name in ("projector", "language_model")}
_SETTINGS = ("max_num_seqs", "max_num_batched_tokens", "enforce_eager", "enable_prefix_caching")


class Watch:
    """Clocks around the calls of a model's `MODULES`: CUDA events on a GPU, the host's clock
    elsewhere.

    A call within a CUDA graph that is captured or replayed is not seen.
    """

    def __init__(self, model: Any, device: Any) -> None:
        import torch

        self.cuda = torch.cuda if device.type == "cuda" else None
        self.rows: deque[tuple[str, Any, Any, int]] = deque(maxlen=200_000)
        self.opened, self.base = list[Any](), self._base()
        for stage, name in MODULES.items():
            if module := getattr(model, name, None):
                module.register_forward_pre_hook(lambda *_: self.opened.append(self._now()))
                module.register_forward_hook(
                    lambda *seen, at=stage: self._end(at, *seen), with_kwargs=True
                )

    def _end(self, stage: str, _: Any, given: Any, named: Any, made: Any) -> None:
        begun, ended = self.opened.pop(), self._now()
        # A text model is given ids or positions of its tokens.
        sizes = (each.shape[-1] for each in (*given, *named.values()) if hasattr(each, "shape"))
        if begun is not None and ended is not None:
            self.rows.append((stage, begun, ended, next(sizes, 0)))

    def _now(self) -> Any:
        """A time of the device; None within a graph that is captured."""
        if self.cuda is None:
            return time.monotonic()
        event = (
            None if self.cuda.is_current_stream_capturing() else self.cuda.Event(enable_timing=True)
        )
        return event and self.cuda.current_stream().record_event(event)

    def _base(self) -> tuple[Any, float]:
        """A time of the device and the same of the host."""
        if self.cuda is not None:
            self.cuda.synchronize()
        return self._now(), time.monotonic()

    def take(self) -> tuple[float, list[tuple[str, float, float, int]]]:
        """What was seen since the last call: the time now, and rows of stage, start, ms and tokens.

        The time and starts are seconds of the host's monotonic clock.
        """
        (first, host), self.base = self.base, self._base()  # waits for the device
        ms: Any = (
            self.cuda.Event.elapsed_time
            if self.cuda
            else lambda begun, ended: 1e3 * (ended - begun)
        )
        rows = [
            (name, host + ms(first, at) / 1e3, ms(at, end), size)
            for name, at, end, size in self.rows
        ]
        self.rows.clear()
        return time.monotonic(), sorted(rows, key=lambda row: row[1])


class Stages:
    """The methods that the worker gets; their names must be none of vLLM's.

    ``ocr_take``, once `ocr_watch` was called, is `Watch.take`.
    """

    def ocr_watch(self: Any) -> dict[str, Any]:
        """Begin to watch, once, and say what is watched: model class, dtype, device, settings,
        versions.
        """
        import torch

        model, device, config = self.model_runner.get_model(), self.device, self.vllm_config
        if not hasattr(self, "ocr_take"):
            self.ocr_take = Watch(model, device).take
        cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu and cpu[1]
        parts = (
            vars(config.scheduler_config) | vars(config.model_config) | vars(config.cache_config)
        )
        return {
            "model": {
                "class": type(model).__name__,
                "dtype": str(parts["dtype"]).removeprefix("torch."),
            },
            "device": {
                "name": name or device.type,
                "kind": device.type,
                "threads": torch.get_num_threads(),
            },
            "versions": {"torch": str(torch.__version__)},
            "settings": {name: parts[name] for name in _SETTINGS},
        }
