"""Runs a shipped notebook and renders it as one HTML file without requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.assets import asset
from ocr_phases.catalogue import FAMILIES
from ocr_phases.errors import NotebookFailed, OcrPhasesError
from ocr_phases.files import (
    TemporaryFolder,
    only_writer,
    output_file,
    output_folder,
    save_or_rescue,
    write_atomic,
)
from ocr_phases.plain_text import plain
from ocr_phases.record import PhaseRun
from ocr_phases.report.artifacts import results_folder
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

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.report.progress import Watch


def report_page(
    output_dir: str | Path,
    parameters: Mapping[str, Any],
    *,
    show_code: bool = False,
    watch: Watch | None = None,
) -> dict[str, Path]:
    """`page_report`, of which only the files are of interest."""
    return page_report(output_dir, parameters, show_code=show_code, watch=watch)[0]


def page_report(
    output_dir: str | Path,
    parameters: Mapping[str, Any],
    *,
    show_code: bool = False,
    watch: Watch | None = None,
) -> tuple[dict[str, Path], PhaseRun]:
    """Run ``page_report`` into ``output_dir``: what it wrote there, by file name, and the record it shows.

    ``parameters`` are the notebook's; ``output_dir`` among them is set here. ``watch`` shows how far its
    measurement is. Raises `OcrPhasesError` where the folder cannot be written, another report is being
    written into it, or the notebook fails; ``report.ipynb`` then shows where.
    """
    folder = output_folder(output_dir).resolve()
    values = {**parameters, "output_dir": str(folder), "overwrite": True}
    page = values.get("page") or values.get("record") or "sample page"
    title = f"{Path(str(page)).name} – ocr_phases"
    with only_writer(folder):
        notebook, left = _executed("page_report", values, folder / "report.ipynb", watch)
        render_html(notebook, folder / "report.html", show_code=show_code, title=title)
    names = (
        "run.json",
        *dict.fromkeys(facts.result_name for facts in FAMILIES.values()),
        "images",
        "result_with_boxes.jpg",
        *sorted(path.name for path in folder.glob("result_with_boxes_*.jpg")),
        "geo.jpg",
        "report.ipynb",
        "report.html",
    )
    return {name: folder / name for name in names if (folder / name).exists()}, left["run"]


def report_record(run: PhaseRun, output_dir: str | Path) -> Path:
    """`report_page` of a record in memory; the path of its ``report.html``.

    A folder with another record stays as it is: a number is added to the name.
    """
    with TemporaryFolder() as folder:
        record = str(run.save(Path(folder) / "run.json"))
        with handing({record: run}):
            return report_page(results_folder(output_dir, run), {"record": record})["report.html"]


def verify_report(output_dir: str | Path, run: PhaseRun, references: pd.DataFrame | None = None) -> Path:
    """The verdicts of a run's checks as ``verify.html`` in ``output_dir``, beside its record and notebook.

    ``references`` is what `OCRSession.references` says of the model that was measured. Raises as
    `report_page` does.
    """
    folder = results_folder(output_dir, run).resolve()
    with only_writer(folder):
        record = str(save_or_rescue(run.save, folder / "run.json"))
        parameters: dict[str, Any] = {"record": record, "output_dir": str(folder)}
        if references is not None:
            parameters["references"] = json.loads(references.to_json(orient="records"))
        with handing({record: run}):
            notebook = execute_notebook("verify", parameters, folder / "verify.ipynb")
        title = f"Verification: {run.page['file']} – ocr_phases"
        return render_html(notebook, folder / "verify.html", title=title)


def execute_notebook(
    name: str, parameters: Mapping[str, Any], output_path: str | Path, *, watch: Watch | None = None
) -> Path:
    """Run the shipped notebook ``name`` with ``parameters`` and keep it, executed, at ``output_path``.

    Its cells run in this process and working directory, in a namespace of their own. ``watch`` shows how far
    a measurement is, and ends it. Raises `OcrPhasesError` for an unknown notebook or parameter, and
    `NotebookFailed` where a cell fails: the notebook is then kept up to its error, which the message names.
    """
    return _executed(name, parameters, output_path, watch)[0]


def _executed(
    name: str, parameters: Mapping[str, Any], output_path: str | Path, watch: Watch | None
) -> tuple[Path, dict[str, Any]]:
    """`execute_notebook`, and the names that the notebook has set."""
    source = _notebook(name)
    notebook = read_notebook(source)
    _check_parameters(name, parameter_names(notebook), parameters)
    target = output_file(Path(output_path).resolve())
    executed = with_parameters(notebook, parameters)
    failure, left = None, {}
    try:
        with followed_by(watch):
            left = run_cells(executed)
    except CellFailed as failed:
        failure = failed
    write_atomic(target, json.dumps(executed, ensure_ascii=False, indent=1).encode("utf-8", "replace"))
    if failure is not None:
        ename, evalue = type(failure.error).__name__, str(failure.error)
        why = f"Cell {failure.number} of {name} failed ({ename}: {_one_line(evalue)}): see {target}."
        raise NotebookFailed(why, ename, evalue) from failure.error
    return target, left


def render_html(
    notebook: str | Path, html_path: str | Path, *, show_code: bool = False, title: str = "ocr_phases report"
) -> Path:
    """Render an executed notebook as one HTML file that makes no request; stderr and widgets are left out.

    Headings of the second level become the contents. ``show_code`` adds the code. Raises `OcrPhasesError`
    where the notebook cannot be read or the file cannot be written.
    """
    content = read_notebook(notebook)
    body = cells_html(content, show_code=show_code)
    return write_atomic(html_path, plain(document_html(title, contents(content), body)).encode())


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
