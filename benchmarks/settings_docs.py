"""Writes what follows from `Settings`: docs/settings.md's lists and the notebooks' parameters.

``python -m benchmarks.settings_docs``; a test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import nbformat

from ocr_phases.cli.options import EVERY, KERNELS, SETTINGS
from ocr_phases.files import write_atomic
from ocr_phases.settings import ModelSettings, RunSettings, Settings, help_text

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->"
#: The settings among each notebook's parameters.
NOTEBOOKS = {
    "page_report": [*EVERY, *KERNELS],
    "sweep_report": list(SETTINGS["sweep"]),
    "verify": [name for name in EVERY if name not in ("generate", "verify")],
}


def settings_lists() -> str:
    """The lists of docs/settings.md: a list for each call, a line a setting."""
    lists = []
    for call, settings in (("OCRSession.load", ModelSettings), ("run_inference", RunSettings)):
        lines = [
            f"- `{item.name}` ({item.default}): {_escaped(help_text(item))}" for item in fields(settings)
        ]
        lists.append("\n".join([f"Keywords of `{call}`, defaults in brackets:", "", *lines, ""]))
    return "\n".join(lists)


def _escaped(text: str) -> str:
    return text.replace("<|grounding|>", "`<|grounding|>`")


def with_parameters(source: str, wanted: list[str]) -> str:
    """A parameters cell with the lines of the settings ``wanted`` as `Settings` has them; others stay."""
    known = {setting.name for setting in fields(Settings)}
    own = [line for line in source.splitlines() if line.partition(" = ")[0] not in known]
    results = next(n for n, line in enumerate(own) if re.match("(trace|record|retry_failed) = ", line))
    return "\n".join([*own[:results], *parameter_lines(wanted), *own[results:]])


def parameter_lines(wanted: Iterable[str]) -> list[str]:
    """The lines of a notebook's parameters cell for the settings ``wanted``."""
    known = {setting.name: setting for setting in fields(Settings)}
    return [f"{name} = {_literal(known[name].default)}  # {help_text(known[name])}" for name in wanted]


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def main() -> None:
    """Rewrite the page and the notebooks in place."""
    page = ROOT / "docs" / "settings.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_atomic(page, f"{before}{BEGIN}{settings_lists()}{END}{after}".encode())
    for name, wanted in NOTEBOOKS.items():
        path = ROOT / "notebooks" / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
        cell.source = with_parameters(cell.source, wanted)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
