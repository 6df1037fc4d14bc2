"""Which code of this package runs, whether it was installed or lies in a source tree."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_DIGITS = 16


@lru_cache(maxsize=1)
def code_hash(package: Path = _PACKAGE) -> str:
    """The first 16 hex digits of a SHA-256 over names and contents of the package's Python files.

    Read once in a process: what runs is what was imported, not what was edited since.
    """
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).digest()
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()[:_DIGITS]
