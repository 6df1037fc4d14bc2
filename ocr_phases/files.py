"""Writing files so that a reader sees the old one or the new one, never half of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ocr_phases.errors import OcrPhasesError


def output_folder(folder: str | Path) -> Path:
    """Create ``folder`` where it is missing and prove that it can be written; else `OcrPhasesError`."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OcrPhasesError(
            f"The output folder {path} cannot be written ({error.strerror or error}): choose another one."
        ) from error
    return path


def write_atomic(path: str | Path, data: bytes) -> Path:
    """Write ``data`` beside ``path`` and rename it into place; `OcrPhasesError` when that fails."""
    target = Path(path)
    scratch = None
    try:
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, 0o666 & ~_umask())  # noqa: PTH101  (mkstemp makes private files)
        os.replace(scratch, target)  # noqa: PTH105
    except OSError as error:
        if scratch is not None:
            with contextlib.suppress(OSError):
                Path(scratch).unlink(missing_ok=True)
        raise OcrPhasesError(f"{target} cannot be written ({error.strerror or error}).") from error
    return target


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
