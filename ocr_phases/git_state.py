"""Which commit this package runs from."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def git_state() -> str | None:
    """Commit of the source tree the package runs from, with ``-dirty`` behind it.

    As it was when first asked for: it costs a process. None when the package is installed, or git cannot say.
    """
    if not (_ROOT / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(_ROOT)]
    try:
        answer = subprocess.run(
            [*command, "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
