"""The shipped notebooks as files: valid, without outputs, one cell of parameters, one parameter a line."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from ocr_phases.versions import asset

NOTEBOOKS = sorted(asset("notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_clean(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    assert len({cell["id"] for cell in notebook.cells}) == len(notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count is not None]
    assert notebook.cells[0].cell_type == "markdown"
    assert not {"widgets", "papermill"} & set(notebook.metadata)
    (parameters,) = (cell for cell in code if "parameters" in cell.metadata.get("tags", []))
    for line in parameters.source.splitlines():
        name, equals, _ = line.partition(" = ")
        assert equals and name.isidentifier()
