"""Runs the cells of a shipped notebook in this process: plain Python, whose last value shows itself.

JupyterLab and papermill run the same notebooks in a kernel. Starting one takes longer than a report.
"""

from __future__ import annotations

import ast
import copy
import json
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import read_regular
from ocr_phases.show.figures import Picture
from ocr_phases.show.sections import Section

_VALUE = "_"  # the name that a cell's value has while it is shown, as in IPython

Notebook = dict[str, Any]
Output = dict[str, Any]


class CellFailed(Exception):
    """A cell raised ``error``; ``number`` is its place in the notebook, which has the traceback."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(str(error))
        self.number = number
        self.error = error


def read_notebook(path: str | Path) -> Notebook:
    """A notebook of format 4; `OcrPhasesError` for anything else."""
    try:
        notebook = json.loads(read_regular(path))
        if notebook["nbformat"] != 4:
            raise ValueError(f"nbformat {notebook['nbformat']} instead of 4")
        for cell in notebook["cells"]:
            cell["source"] = joined(cell["source"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise OcrPhasesError(f"{path} is not a notebook that can be read ({error}).") from error
    return notebook


def joined(text: str | list[str]) -> str:
    """Text as a notebook's file has it: whole, or as lines."""
    return text if isinstance(text, str) else "".join(text)


def has_tag(cell: Mapping[str, Any], tag: str) -> bool:
    """Whether a cell has a tag."""
    return tag in cell["metadata"].get("tags", [])


def parameter_names(notebook: Notebook) -> list[str]:
    """The names that the cell tagged ``parameters`` sets."""
    return [
        target.id
        for cell in notebook["cells"]
        if has_tag(cell, "parameters")
        for line in ast.parse(cell["source"]).body
        if isinstance(line, ast.Assign)
        for target in line.targets
        if isinstance(target, ast.Name)
    ]


def with_parameters(notebook: Notebook, values: Mapping[str, Any]) -> Notebook:
    """The notebook without outputs, and with a cell behind its parameters that sets these values."""
    notebook = copy.deepcopy(notebook)
    cells = notebook["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    if values:
        place = next(number for number, cell in enumerate(cells) if has_tag(cell, "parameters"))
        injected = copy.deepcopy(cells[place])
        injected["source"] = "".join(f"{name} = {value!r}\n" for name, value in values.items()).rstrip()
        injected |= {"id": "injected-parameters", "metadata": {"tags": ["injected-parameters"]}}
        cells.insert(place + 1, injected)
    return notebook


def run_cells(notebook: Notebook) -> dict[str, Any]:
    """Run all code cells in one new namespace, which is returned; each keeps what it printed and showed.

    Raises `CellFailed` at the first that fails.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [(place, cell) for place, cell in enumerate(notebook["cells"]) if cell["cell_type"] == "code"]
    for count, (place, cell) in enumerate(cells, 1):
        outputs = cell["outputs"]
        names["print"] = partial(print, file=_Printed(outputs))
        cell["execution_count"] = count
        try:
            value = _run(cell["source"], names, f"<cell {place}>")
            outputs += [] if value is None else _shown(value)
        except Exception as error:
            outputs.append(_error(error))
            raise CellFailed(place, error) from error
    return names


def _run(source: str, names: dict[str, Any], place: str) -> Any:
    """Run a cell; the value of its last line, if that is an expression."""
    tree = ast.parse(source, place)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        kept = ast.Assign([ast.Name(_VALUE, ast.Store())], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
    exec(compile(tree, place, "exec"), names)
    return names.pop(_VALUE, None)


def _shown(value: Any) -> Iterator[Output]:
    """What a cell shows of a value, as IPython would: by its own representation, or as text."""
    parts = value.parts if isinstance(value, Section) else [value]
    for part in parts:
        if isinstance(part, Picture):
            data, about = part.bundle(still=False)
        elif isinstance(value, Section):
            data, about = {"text/html": str(part), "text/plain": ""}, {}
        else:
            data, about = _represented(part)
        yield {"output_type": "display_data", "data": data, "metadata": about}


def _represented(value: Any) -> tuple[dict[str, str], dict[str, Any]]:
    if hasattr(value, "_repr_mimebundle_"):
        bundle = value._repr_mimebundle_()
        return bundle if isinstance(bundle, tuple) else (bundle, {})
    data = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_()
    return data, {}


def _error(error: Exception) -> Output:
    if isinstance(error, OcrPhasesError):
        told = error._render_traceback_()
    else:
        within = error.__traceback__.tb_next if error.__traceback__ is not None else None
        told = "".join(traceback.format_exception(type(error), error, within)).splitlines()
    return {
        "output_type": "error",
        "ename": type(error).__name__,
        "evalue": str(error),
        "traceback": told,
    }


class _Printed:
    """A cell's standard output: lines printed one after the other are one output."""

    def __init__(self, outputs: list[Output]) -> None:
        self._outputs = outputs

    def write(self, text: str) -> int:
        if not self._outputs or self._outputs[-1]["output_type"] != "stream":
            self._outputs.append({"output_type": "stream", "name": "stdout", "text": ""})
        self._outputs[-1]["text"] += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""
