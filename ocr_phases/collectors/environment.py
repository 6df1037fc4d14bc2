"""What a measurement was taken with: versions, git state and the device."""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from ocr_phases.steps.execution import decode_backends
from ocr_phases.versions import __version__, code_hash, git_state

_CODE = code_hash()  # while the modules are loaded, not when they may have been edited


def now() -> str:
    """The time, ISO 8601 in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def versions() -> dict[str, Any]:
    """Versions of everything a time depends on; None for what is not there."""
    import tokenizers
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "ocr_phases": __version__,
        "code": _CODE,
        "git": git_state(),
    }


def describe_device(device: str) -> dict[str, Any]:
    """Name, kind, memory in bytes, cores and bytes of the last cache of ``device``, and its host.

    ``cores`` are multiprocessors on CUDA, else those that this process may use, as ``host_cores`` are;
    ``threads`` is how many of them torch computes with.
    """
    host_cores = _usable_cores()
    host = {"host": _cpu_name(), "host_cores": host_cores, "threads": torch.get_num_threads()}
    if torch.device(device).type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return {
            "name": properties.name,
            "kind": "cuda",
            "memory_bytes": properties.total_memory,
            "cores": properties.multi_processor_count,
            "cache_bytes": getattr(properties, "L2_cache_size", None),
            **host,
            "ceilings": None,
        }
    return {
        "name": _cpu_name(),
        "kind": "cpu",
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cores": host_cores,
        "cache_bytes": _last_cache_bytes(),
        **host,
        "ceilings": None,
    }


def attention_kernels(device: str, strategy: str = "eager") -> list[str]:
    """The SDPA kernels that a run, or a decode step of ``strategy``, may use, by name."""
    return [backend.name.lower() for backend in decode_backends(device, strategy)] or ["default"]


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", path.read_text()) if path.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _usable_cores() -> int:
    """Cores that this process may run on: a container or a batch system often gives fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _last_cache_bytes() -> int | None:
    """Bytes of the host's largest cache; None where the system does not tell."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("*/size")]
    known = [int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]] for size in sizes if size[-1:] in "KM"]
    return max(known, default=None)


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", path.read_text()) if path.exists() else None
    return found[1] if found else None
