"""Runs a shipped notebook and renders it as one HTML file without requests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.errors import NotebookFailed, OcrPhasesError
from ocr_phases.files import (
    TemporaryFolder,
    folder_for,
    only_writer,
    write_into,
)
from ocr_phases.record import PhaseRun
from ocr_phases.report.artifacts import RECORD_NAME, RESULTS, write_record
from ocr_phases.report.handed import handing
from ocr_phases.report.notebook_html import cells_html, contents
from ocr_phases.report.notebooks import (
    CellFailed,
    parameter_names,
    read_notebook,
    run_cells,
    with_parameters,
)
from ocr_phases.report.progress import followed_by
from ocr_phases.show.document import document_html
from ocr_phases.text import plain
from ocr_phases.versions import asset

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.report.progress import Watch


def report_page(output_dir: str | Path, parameters: Mapping[str, Any], **options: Any) -> dict[str, Path]:
    """`page_report`, of which only the files are of interest."""
    return page_report(output_dir, parameters, **options)[0]


def page_report(
    output_dir: str | Path,
    parameters: Mapping[str, Any],
    *,
    show_code: bool = False,
    watch: Watch | None = None,
    overwrite: bool = False,
) -> tuple[dict[str, Path], PhaseRun]:
    """Run ``page_report`` into ``output_dir``: what it wrote there, by file name, and the record it shows.

    ``parameters`` are the notebook's; ``output_dir`` and ``overwrite`` among them are set here. ``watch``
    shows how far its measurement is. Raises `OcrPhasesError` where the folder cannot be written, has files in
    the way (`ocr_phases.files.folder_for`), another report is being written into it, or the notebook fails;
    ``report.ipynb`` then shows where.
    """
    others = [parameters.get(name) for name in ("page", "truth")]
    record = parameters.get("record")
    folder = folder_for(
        output_dir, "", RESULTS, overwrite=overwrite, arguments=others, record=record
    ).resolve()
    values = {**parameters, "output_dir": str(folder), "overwrite": overwrite}
    page = values.get("page") or values.get("record") or "sample page"
    title = f"{Path(str(page)).name} – ocr_phases"
    with only_writer(folder):
        notebook, left = _executed("page_report", values, folder / "report.ipynb", watch, overwrite)
        render_html(notebook, folder / "report.html", show_code=show_code, title=title, overwrite=overwrite)
    written = [path for path in sorted(folder.iterdir()) if re.fullmatch(RESULTS, path.name)]
    return {path.name: path for path in written}, left["run"]


def report_record(run: PhaseRun, output_dir: str | Path, *, overwrite: bool = False) -> Path:
    """`report_page` of a record in memory; the path of its ``report.html``."""
    with TemporaryFolder() as folder:
        record = str(run.save(Path(folder) / RECORD_NAME))
        with handing({record: run}):
            return report_page(output_dir, {"record": record}, overwrite=overwrite)["report.html"]


def verify_report(
    output_dir: str | Path,
    run: PhaseRun,
    references: pd.DataFrame | None = None,
    *,
    record: str | None = None,
    overwrite: bool = False,
) -> Path:
    """The verdicts of a run's checks as ``verify.html`` in ``output_dir``, beside its record and notebook.

    ``references`` is what `OCRSession.references` says of the model that was measured, ``record`` the file
    that ``run`` is from, if any. Raises as `report_page` does.
    """
    folder = Path(output_dir).resolve()
    with only_writer(folder):
        write_record(folder, run, record, overwrite=overwrite)
        kept = str(folder / RECORD_NAME)
        parameters: dict[str, Any] = {"record": kept, "output_dir": str(folder), "overwrite": overwrite}
        if references is not None:
            parameters["references"] = json.loads(references.to_json(orient="records"))
        with handing({kept: run}):
            notebook = execute_notebook("verify", parameters, folder / "verify.ipynb", overwrite=overwrite)
        title = f"Verification: {run.page['file']} – ocr_phases"
        return render_html(notebook, folder / "verify.html", title=title, overwrite=overwrite)


def execute_notebook(
    name: str,
    parameters: Mapping[str, Any],
    output_path: str | Path,
    *,
    watch: Watch | None = None,
    overwrite: bool = False,
) -> Path:
    """Run the shipped notebook ``name`` with ``parameters`` and keep it, executed, at ``output_path``.

    Its cells run in this process and working directory, in a namespace of their own. ``watch`` shows how far
    a measurement is, and ends it. Raises `OcrPhasesError` for an unknown notebook or parameter, and for a
    file in the way that is not this package's unless ``overwrite``; `NotebookFailed` where a cell fails: the
    notebook is then kept up to its error, which the message names.
    """
    return _executed(name, parameters, output_path, watch, overwrite)[0]


def _executed(
    name: str, parameters: Mapping[str, Any], output_path: str | Path, watch: Watch | None, overwrite: bool
) -> tuple[Path, dict[str, Any]]:
    """`execute_notebook`, and the names that the notebook has set."""
    source = _notebook(name)
    notebook = read_notebook(source)
    _check_parameters(name, parameter_names(notebook), parameters)
    target = Path(output_path).absolute()
    folder_for(target.parent, "", re.escape(target.name), overwrite=overwrite)
    executed = with_parameters(notebook, parameters)
    failure, left = None, {}
    try:
        with followed_by(watch):
            left = run_cells(executed)
    except CellFailed as failed:
        failure = failed
    data = json.dumps(executed, ensure_ascii=False, indent=1).encode("utf-8", "replace")
    write_into(target.parent, {target.name: data}, overwrite=overwrite)
    if failure is not None:
        ename, evalue = type(failure.error).__name__, str(failure.error)
        why = f"Cell {failure.number} of {name} failed ({ename}: {_one_line(evalue)}): see {target}."
        raise NotebookFailed(why, ename, evalue) from failure.error
    return target, left


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
    content, path = read_notebook(notebook), Path(html_path)
    body = cells_html(content, show_code=show_code)
    document = plain(document_html(title, contents(content), body)).encode()
    return write_into(path.parent, {path.name: document}, overwrite=overwrite)[0]


def _notebook(name: str) -> Path:
    folder = asset("notebooks")
    path = folder / f"{name}.ipynb"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.ipynb")))
        raise OcrPhasesError(f"There is no notebook {name!r}: choose one of {known}.")
    return path


def _check_parameters(name: str, known: Sequence[str], parameters: Mapping[str, Any]) -> None:
    """A notebook would ignore an unknown parameter."""
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise OcrPhasesError(f"{name} has no parameter {', '.join(unknown)}: it takes {', '.join(known)}.")


def _one_line(text: object) -> str:
    """The first line of a message, short enough for a sentence."""
    line = next((line.strip() for line in str(text).splitlines() if line.strip()), "no message")
    return (line if len(line) <= 200 else f"{line[:199]}…").rstrip(".")
