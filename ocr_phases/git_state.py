"""Which commit this package runs from."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_state() -> str | None:
    """Commit of the source tree the package runs from, with ``-dirty`` behind it; None when installed."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
