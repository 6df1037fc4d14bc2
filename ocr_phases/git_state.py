"""Which commit this package runs from, and what was changed since."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

#: What a measurement runs, below the source tree: the package and its built-in model.
MEASURING = ("ocr_phases", "data/tiny")

_ROOT = Path(__file__).resolve().parents[1]


def git_state() -> str | None:
    """Commit of the source tree the package runs from, with ``-dirty`` behind it; None when installed."""
    return _git("describe", "--always", "--dirty", "--abbrev=12")


def source_changes() -> str | None:
    """SHA-256 of `MEASURING` where it differs from the commit, new files and all; None where it does not.

    None too when the package is installed, or git cannot say.
    """
    if not _git("status", "--porcelain", "--untracked-files=all", "--", *MEASURING):
        return None
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *MEASURING) or ""
    digest = hashlib.sha256()
    for name in sorted(set(filter(None, listed.split("\0")))):
        path = _ROOT / name
        content = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0" + content)
    return digest.hexdigest()


def _git(*arguments: str) -> str | None:
    """What git answers in the source tree; None where there is none, or no git."""
    if not (_ROOT / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(_ROOT), *arguments]
    try:
        answer = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
