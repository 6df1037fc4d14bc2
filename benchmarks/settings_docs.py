"""Writes what follows from `Settings`: docs/settings.md's lists and the notebooks' parameters.

``python -m benchmarks.settings_docs``; a test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import nbformat

from benchmarks.documents import rewrite
from ocr_phases.cli.options import EVERY, KERNELS, SETTINGS
from ocr_phases.settings import ModelSettings, RunSettings, Settings, help_text

ROOT = Path(__file__).parents[1]
#: The settings among each notebook's parameters.
NOTEBOOKS = {
    "page_report": [*EVERY, *KERNELS],
    "sweep_report": list(SETTINGS["sweep"]),
    "verify": [name for name in EVERY if name not in ("generate", "verify")],
}


def settings_lists() -> str:
    """The lists of docs/settings.md: a list for each call, a line a setting."""
    parts = []
    for call, settings in (("OCRSession.load", ModelSettings), ("run_inference", RunSettings)):
        lines = [
            f"- `{item.name}` ({item.default}): {help_text(item)}" for item in fields(settings)
        ]
        parts += [f"Keywords of `{call}`, defaults in brackets:", "\n".join(lines)]
    return "\n\n".join(parts).replace("<|grounding|>", "`<|grounding|>`")


def with_parameters(source: str, wanted: list[str]) -> str:
    """A parameters cell with the lines of the settings ``wanted`` as `Settings` has them; others
    stay.
    """
    known = {setting.name for setting in fields(Settings)}
    own = [line for line in source.splitlines() if line.partition(" = ")[0] not in known]
    results = next(
        n for n, line in enumerate(own) if re.match("(trace|record|retry_failed) = ", line)
    )
    return "\n".join([*own[:results], *parameter_lines(wanted), *own[results:]])


def parameter_lines(wanted: Iterable[str]) -> list[str]:
    """The lines of a notebook's parameters cell for the settings ``wanted``."""
    known = {setting.name: setting for setting in fields(Settings)}
    values = {name: item.default for name, item in known.items()}
    literals = {
        name: json.dumps(v) if isinstance(v, str) else repr(v) for name, v in values.items()
    }
    return [f"{name} = {literals[name]}  # {help_text(known[name])}" for name in wanted]


def main() -> None:
    """Rewrite the page and the notebooks in place."""
    rewrite(ROOT / "docs" / "settings.md", {"settings": settings_lists()})
    for name, wanted in NOTEBOOKS.items():
        path = ROOT / "notebooks" / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        cell = next(
            cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
        )
        cell.source = with_parameters(cell.source, wanted)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
