"""Runs a shipped notebook through papermill and renders it as one HTML file without requests."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from importlib import resources
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
from ocr_phases.report.jupyter_kernels import ReusedKernel, fresh_kernel
from ocr_phases.report.progress import following
from ocr_phases.show.document import document_html
from ocr_phases.show.figures import STILL

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.report.progress import Watch

#: Cells with this tag serve a person in JupyterLab: a report leaves them out, or shows their code alone.
NOTEBOOK_ONLY = "notebook-only"
_HEADING = re.compile(r'<h2 id="([\w-]+)">([\w ]+)</h2>')  # as this package writes it, in no escaped text


def report_page(
    output_dir: str | Path,
    parameters: Mapping[str, Any],
    *,
    show_code: bool = False,
    kernel: ReusedKernel | None = None,
    watch: Watch | None = None,
) -> dict[str, Path]:
    """Run ``page_report`` into ``output_dir``: what it wrote there, by file name, ``report.html`` among it.

    ``parameters`` are the notebook's; ``output_dir`` among them is set here. ``kernel`` is one to use again
    in place of a new one; ``watch`` shows how far a new one's measurement is. Raises `OcrPhasesError` where
    the folder cannot be written, another report is being written into it, or the notebook fails;
    ``report.ipynb`` then shows where.
    """
    folder = output_folder(output_dir).resolve()
    values = {**parameters, "output_dir": str(folder), "overwrite": True}
    page = values.get("page") or values.get("record") or "sample page"
    title = f"{Path(str(page)).name} – ocr_phases"
    with only_writer(folder):
        notebook = execute_notebook(
            "page_report", values, folder / "report.ipynb", kernel=kernel, watch=watch
        )
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
    return {name: folder / name for name in names if (folder / name).exists()}


def report_record(run: PhaseRun, output_dir: str | Path) -> Path:
    """`report_page` of a record in memory; the path of its ``report.html``.

    A folder with another record stays as it is: a number is added to the name.
    """
    with TemporaryFolder() as folder:
        record = run.save(Path(folder) / "run.json")
        return report_page(results_folder(output_dir, run), {"record": str(record)})["report.html"]


def verify_report(output_dir: str | Path, run: PhaseRun, references: pd.DataFrame | None = None) -> Path:
    """The verdicts of a run's checks as ``verify.html`` in ``output_dir``, beside its record and notebook.

    ``references`` is what `OCRSession.references` says of the model that was measured. Raises as
    `report_page` does.
    """
    folder = results_folder(output_dir, run).resolve()
    with only_writer(folder):
        record = save_or_rescue(run.save, folder / "run.json")
        parameters: dict[str, Any] = {"record": str(record), "output_dir": str(folder)}
        if references is not None:
            parameters["references"] = json.loads(references.to_json(orient="records"))
        notebook = execute_notebook("verify", parameters, folder / "verify.ipynb")
        title = f"Verification: {run.page['file']} – ocr_phases"
        return render_html(notebook, folder / "verify.html", title=title)


def execute_notebook(
    name: str,
    parameters: Mapping[str, Any],
    output_path: str | Path,
    *,
    timeout: float | None = None,
    kernel: ReusedKernel | None = None,
    watch: Watch | None = None,
) -> Path:
    """Run the shipped notebook ``name`` with ``parameters`` and keep it, executed, at ``output_path``.

    The kernel is this interpreter, in this working directory: a fresh one, or ``kernel`` with what it has
    imported and nothing else. ``timeout`` is in seconds, for each cell. ``watch`` shows how far a measurement
    in a fresh kernel is, and ends it.
    Raises `OcrPhasesError` for an unknown notebook or parameter, and `NotebookFailed` where a cell fails or
    the kernel dies: the notebook is then kept up to its error, which the message names.
    """
    import papermill
    from papermill.exceptions import PapermillExecutionError

    source = _notebook(name)
    _check_parameters(source, parameters)
    target = output_file(Path(output_path).resolve())
    failure = None
    with TemporaryFolder(None if kernel is None else kernel.scratch) as folder:
        executed = Path(folder, "executed.ipynb")  # written after every cell
        try:
            with (
                following(watch, Path(folder)) as environment,
                fresh_kernel(environment) if kernel is None else kernel.papermill_options() as options,
            ):
                papermill.execute_notebook(
                    literal_path(source),
                    literal_path(executed),
                    parameters=dict(parameters),
                    kernel_name="python3",
                    **options,
                    progress_bar=watch is None and sys.stderr.isatty(),
                    execution_timeout=timeout,
                )
        except PapermillExecutionError as error:
            failure = f"Cell {error.cell_index} of {name} failed ({error.ename}: {_one_line(error.evalue)})"
            cause = (error.ename, error.evalue)
        except (RuntimeError, TimeoutError, OSError) as error:  # the kernel died, or a cell took too long
            failure = f"{name} was not run to its end ({type(error).__name__}: {_one_line(str(error))})"
            cause = (type(error).__name__, str(error))
        if executed.exists():
            write_atomic(target, executed.read_bytes())
    if failure is not None:
        raise NotebookFailed(f"{failure}: see {target}.", *cause)
    return target


def literal_path(path: Path) -> str:
    """A path escaped for papermill, which treats paths as format strings."""
    return str(path).replace("{", "{{").replace("}", "}}")


def render_html(
    notebook: str | Path, html_path: str | Path, *, show_code: bool = False, title: str = "ocr_phases report"
) -> Path:
    """Render an executed notebook as one HTML file that makes no request; stderr and widgets are left out.

    Headings of the second level become the contents. ``show_code`` adds the code. Raises `OcrPhasesError`
    where the notebook cannot be read or the file cannot be written.
    """
    import nbformat
    from nbconvert import HTMLExporter

    path = Path(notebook)
    try:
        content = nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise OcrPhasesError(
            f"{path} is not a notebook that can be read ({_one_line(str(error))})."
        ) from error
    for cell in [cell for cell in content.cells if NOTEBOOK_ONLY in cell.metadata.get("tags", [])]:
        if show_code and cell.cell_type == "code":
            cell.outputs = []
        else:
            content.cells.remove(cell)
    for cell in content.cells:
        for output in cell.get("outputs", []):
            drawn, still, _ = output.get("data", {}).get("text/html", "").partition(STILL)
            if still:
                output.data = {"text/html": drawn}
    folder = Path(str(resources.files("ocr_phases.report").joinpath("template")))
    exporter = HTMLExporter(
        template_name=folder.name,
        extra_template_basedirs=[str(folder.parent)],
        exclude_input=not show_code,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        anchor_link_text="#",
    )
    body, _ = exporter.from_notebook_node(content)
    return write_atomic(html_path, plain(document_html(title, _contents(content), body)).encode())


def _notebook(name: str) -> Path:
    folder = asset("notebooks")
    path = folder / f"{name}.ipynb"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.ipynb")))
        raise OcrPhasesError(f"There is no notebook {name!r}: choose one of {known}.")
    return path


def _check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """papermill would only warn, and hand the unknown parameter to a notebook that ignores it."""
    import papermill

    known = papermill.inspect_notebook(literal_path(notebook))
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise OcrPhasesError(
            f"{notebook.stem} has no parameter {', '.join(unknown)}: it takes {', '.join(known)}."
        )
    try:
        json.dumps(dict(parameters), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        name = error.object[max(0, error.start - 40) : error.end + 40]
        raise OcrPhasesError(
            f"A notebook holds Unicode text alone, and {name!r} is none: rename the file or folder."
        ) from error


def _contents(notebook: Any) -> list[tuple[str, str]]:
    """Second-level headings, each with its id: of Markdown cells, and of outputs that not every run has."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            lines = [
                line.removeprefix("## ").strip() for line in cell.source.splitlines() if line[:3] == "## "
            ]
            found += [(line, line.replace(" ", "-")) for line in lines]
        for output in cell.get("outputs", []):
            for anchor, title in _HEADING.findall(output.get("data", {}).get("text/html", "")):
                found.append((title, anchor))
    return found


def _one_line(text: object) -> str:
    """The first line of a message, short enough for a sentence."""
    line = next((line.strip() for line in str(text).splitlines() if line.strip()), "no message")
    return (line if len(line) <= 200 else f"{line[:199]}…").rstrip(".")
