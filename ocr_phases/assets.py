"""Where the notebooks, sample pages and the built-in checkpoint are: in a wheel or in the source tree."""

from __future__ import annotations

import os
import sysconfig
from importlib import resources
from pathlib import Path

from ocr_phases.errors import OcrPhasesError


def asset(*parts: str) -> Path:
    """The path of a shipped file or folder (``asset("data", "tiny")``); `OcrPhasesError` if missing."""
    package = Path(str(resources.files("ocr_phases")))
    installed = package / "_assets"
    path = (installed if installed.is_dir() else package.parent).joinpath(*parts)
    if not path.exists():
        raise OcrPhasesError(f"{'/'.join(parts)} is missing here: install ocr_phases again.")
    return path


def child_environment() -> dict[str, str]:
    """This process's environment for one it starts; in a source tree the package is found from anywhere."""
    environment = dict(os.environ)
    package = str(Path(str(resources.files("ocr_phases"))).parent)
    if package not in sysconfig.get_paths().values():
        paths = (package, environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment
