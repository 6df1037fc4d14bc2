"""Runs a shipped notebook with papermill and renders it as one HTML file without requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases import errors
from ocr_phases.errors import NotebookFailed, OcrPhasesError
from ocr_phases.files import folder_for, only_writer, read_regular, write_into
from ocr_phases.report.artifacts import RESULTS, VERIFICATION
from ocr_phases.report.notebook_html import cells_html, contents
from ocr_phases.show.web import document_html
from ocr_phases.versions import asset

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.record import PhaseRun


def page_report(
    run: PhaseRun,
    output_dir: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    show_code: bool = False,
    overwrite: bool = False,
) -> Path:
    """A record's report, its record, notebook and artifacts in ``output_dir``; the path of ``report.html``.

    ``parameters`` are those of ``page_report`` that would measure or read the record again. Raises
    `OcrPhasesError` where the folder cannot be written, has files in the way
    (`ocr_phases.files.folder_for`), another report is being written into it, or the notebook fails;
    ``report.ipynb`` then shows where.
    """
    values = dict(parameters or {})
    others = [values.get(name) for name in ("page", "truth")]
    options: dict[str, Any] = {"arguments": others, "record": values.get("record"), "overwrite": overwrite}
    folder = folder_for(output_dir, "", RESULTS, **options).resolve()
    values |= {"output_dir": str(folder), "overwrite": overwrite}
    title = f"{Path(run.page_name()).name} – ocr_phases"
    return write_report("page_report", folder, "report", values, {"run": run}, title, overwrite, show_code)


def verify_report(
    run: PhaseRun,
    output_dir: str | Path,
    references: pd.DataFrame | None = None,
    *,
    record: str | None = None,
    overwrite: bool = False,
) -> Path:
    """The verdicts of a run's checks as ``verify.html`` in ``output_dir``, beside its record and notebook.

    ``references`` is what `OCRSession.references` says of the model that was measured, ``record`` the file
    that ``run`` is from, if any. Raises as `page_report` does.
    """
    folder = folder_for(output_dir, "", VERIFICATION, record=record, overwrite=overwrite).resolve()
    title = f"Verification: {run.page['file']} – ocr_phases"
    values = {"record": record, "output_dir": str(folder), "overwrite": overwrite}
    given = {"run": run, "references": references}
    return write_report("verify", folder, "verify", values, given, title, overwrite)


def write_report(
    name: str,
    folder: Path,
    stem: str,
    parameters: Mapping[str, Any],
    given: Mapping[str, Any],
    title: str,
    overwrite: bool = False,
    show_code: bool = False,
) -> Path:
    """Run the notebook ``name`` into ``folder``, as ``stem`` with .ipynb and .html; the path of the latter.

    Raises as `execute_notebook` and `render_html` do, and where another report is being written there.
    """
    with only_writer(folder):
        notebook = execute_notebook(
            name, parameters, folder / f"{stem}.ipynb", given=given, overwrite=overwrite
        )
        html = folder / f"{stem}.html"
        return render_html(notebook, html, show_code=show_code, title=title, overwrite=overwrite)


def execute_notebook(
    name: str,
    parameters: Mapping[str, Any],
    output_path: str | Path,
    *,
    given: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Run the shipped notebook ``name`` by papermill and keep it, executed, at ``output_path``.

    Its cells run in this process and working directory, in a namespace of their own, where ``given`` are live
    objects (`ocr_phases.report.engine`). Raises `OcrPhasesError` for an unknown notebook or parameter, and
    for a file in the way that is not this package's unless ``overwrite``. Where a cell fails, the notebook is
    kept with its error, and an error of this package is raised again, any other as `NotebookFailed`.
    """
    from nbformat import writes
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook
    from papermill.translators import PythonTranslator

    from ocr_phases.report.engine import InProcess

    notebook = load_notebook_node(str(_notebook(name)))
    tagged = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    known = [parameter.name for cell in tagged for parameter in PythonTranslator.inspect(cell)]
    if unknown := ", ".join(sorted(set(parameters) - set(known))):  # papermill only warns
        raise OcrPhasesError(f"{name} has no parameter {unknown}: it takes {', '.join(known)}.")
    target = Path(output_path).absolute()
    folder_for(target.parent, "", re.escape(target.name), overwrite=overwrite)
    notebook = parameterize_notebook(notebook, dict(parameters), kernel_name="python3", language="python")
    InProcess.execute_notebook(notebook, "python3", progress_bar=False, given=given, stills=False)
    data = writes(notebook).encode("utf-8", "replace")
    write_into(target.parent, {target.name: data}, overwrite=overwrite)
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    failed = next((output for output in outputs if output.output_type == "error"), None)
    if failed is not None:
        own = getattr(errors, failed.ename, NotebookFailed)
        raise own(failed.evalue if own is not NotebookFailed else _bug(name, failed, target))
    return target


def _bug(name: str, failed: Any, target: Path) -> str:
    line = next(iter(failed.evalue.splitlines()), "")
    return f"{name} failed, which is a bug of ocr_phases ({failed.ename}: {line}): see {target}."


def render_html(
    notebook: str | Path,
    html_path: str | Path,
    *,
    show_code: bool = False,
    title: str = "ocr_phases report",
    overwrite: bool = False,
) -> Path:
    """Render an executed notebook as one HTML file that makes no request; stderr and widgets are left out.

    Headings of the second level become the contents. ``show_code`` adds the code. Raises `OcrPhasesError`
    where the notebook cannot be read or the file cannot be written, and for a file in its way that is not
    this package's unless ``overwrite``.
    """
    import nbformat

    try:
        content = nbformat.reads(read_regular(notebook).decode(), as_version=4)
    except (OSError, ValueError, nbformat.ValidationError, AttributeError, RecursionError) as error:
        raise OcrPhasesError(f"{notebook} is not a notebook that can be read ({error}).") from error
    path = Path(html_path)
    document = document_html(title, contents(content), cells_html(content, show_code=show_code))
    return write_into(path.parent, {path.name: document.encode()}, overwrite=overwrite)[0]


def _notebook(name: str) -> Path:
    folder = asset("notebooks")
    path = folder / f"{name}.ipynb"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.ipynb")))
        raise OcrPhasesError(f"There is no notebook {name!r}: choose one of {known}.")
    return path
