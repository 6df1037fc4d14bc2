"""The shipped notebooks as files: valid, without outputs, one cell of parameters, one parameter a line."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from ocr_phases.versions import asset

NOTEBOOKS = sorted(asset("notebooks").glob("*.ipynb"))


def parameter_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]


def test_there_is_a_page_report() -> None:
    assert "page_report" in [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_clean(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    ids = [cell["id"] for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert notebook.cells[0].cell_type == "markdown"
    assert "widgets" not in notebook.metadata
    assert "papermill" not in notebook.metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_one_cell_of_parameters_one_a_line(path: Path) -> None:
    (cell,) = parameter_cells(nbformat.read(path, as_version=4))
    assert cell.cell_type == "code"
    for line in cell.source.splitlines():
        name, equals, _ = line.partition(" = ")
        assert equals
        assert name.isidentifier()
