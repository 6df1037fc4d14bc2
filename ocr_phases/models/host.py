"""What the operating system tells of this machine. Imports no torch."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def host_name() -> str:
    """What the host's CPU is called."""
    model = text_in_file(r"model name\s*:\s*(.+)", "/proc/cpuinfo")
    return model or platform.processor() or platform.machine()


def text_in_file(pattern: str, path: str) -> str | None:
    """The group of ``pattern`` in a file of the system; None where either is missing."""
    if not Path(path).exists():
        return None
    match = re.search(pattern, Path(path).read_text())
    return None if match is None else match[1].strip()
