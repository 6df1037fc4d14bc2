"""The machine that a record is from: when it was measured, with which versions, on which device."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

import torch

from ocr_phases.models.devices import device_of, usable_cores
from ocr_phases.models.host import host_name, text_in_file
from ocr_phases.versions import __version__, code_hash, git_state

# Taken as this module is imported: later the files may have been edited, but not what runs.
_CODE = code_hash()
#: What ``/proc/driver/nvidia/version`` says before the driver's version.
_DRIVER_VERSION = r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)"


def now() -> str:
    """The time, ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, Any]:
    """Versions of everything a time depends on; None for what is not there."""
    import tokenizers
    import transformers

    versions: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "cuda": torch.version.cuda,
        "driver": text_in_file(_DRIVER_VERSION, "/proc/driver/nvidia/version"),
        "ocr_phases": __version__,
        "code": _CODE,
        "git": git_state(),
    }
    if torch.version.hip:  # what AMD has in place of CUDA
        versions["hip"] = torch.version.hip
    return versions


def describe_device(device: torch.device | str) -> dict[str, Any]:
    """Name, kind, memory in bytes, cores and bytes of the last cache of ``device``, and its host.

    ``cores`` are multiprocessors on CUDA, else those that this process may use, as ``host_cores``
    are; ``threads`` is how many of them torch computes with.
    """
    described = device_of(device)
    chip = described.chip()
    return {
        "name": chip.name,
        "kind": described.kind,
        "memory_bytes": chip.memory_bytes,
        "cores": chip.cores,
        "cache_bytes": chip.cache_bytes,
        "host": host_name(),
        "host_cores": len(usable_cores()),
        "threads": torch.get_num_threads(),
        "ceilings": None,
    }
