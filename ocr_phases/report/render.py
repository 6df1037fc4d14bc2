"""Runs a shipped notebook with papermill and renders it as one HTML file without requests.

`ocr_phases.show.web` writes the file around the cells.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mistune

from ocr_phases.errors import NotebookFailed, OcrPhasesError
from ocr_phases.files import (
    check_names,
    folder_for,
    only_writer,
    output_folder,
    read_regular,
    write_into,
)
from ocr_phases.report.engine import ENGINE, InProcess, NotebookOutcome
from ocr_phases.report.live import LiveObjects
from ocr_phases.report.page_parameters import OPTIONS, check_given_names
from ocr_phases.report.result_files import RESULTS, VERIFICATION
from ocr_phases.settings import Settings, setting_names
from ocr_phases.show.shown_figure import STILL
from ocr_phases.show.web import Html, document_html, element, fill_template, notebook_style
from ocr_phases.versions import asset
from ocr_phases.view.embed import VIEW_TYPE, view_script, view_style

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.record import Record

#: Cells with this tag serve a person in JupyterLab: a report leaves them out, or shows their code
#: alone.
NOTEBOOK_ONLY = "notebook-only"
#: A heading as this package writes it; no escaped text looks like one.
_HEADING = re.compile(r'<h2 id="([\w-]+)">([^<]+)<')
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAG = re.compile(r"<[^>]*>")
#: What only a live notebook can run: such an output is left out, in its other forms, too.
_LIVE = ("application/vnd.jupyter.widget-view+json", "application/javascript")
#: The forms of an output that are shown, the best first.
_SHOWN = ("text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain")


@dataclass(frozen=True)
class ReportPart:
    """A piece of a report, as its template takes it.

    Attributes
    ----------
    kind : str
        ``prose``, ``code``, ``stream``, ``error``, ``view``, or the MIME type of an output.
    content : str
        What is shown; escaped unless it is `Html`.
    details : mapping
        What the notebook says of the output, such as the ``width`` of a picture.
    """

    kind: str
    content: str
    details: Mapping[str, Any] = field(default_factory=dict)


def page_report(
    run: Record,
    output_dir: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    show_code: bool = False,
    overwrite: bool = False,
) -> Path:
    """A record's report, its record, notebook and artifacts in ``output_dir``; the path of
    ``report.html``.

    ``parameters`` are those of ``page_report`` that would measure or read the record again. Raises
    `OcrPhasesError` where the folder cannot be written, has files in the way
    (`ocr_phases.files.folder_for`), another report is being written into it, or the notebook fails;
    ``report.ipynb`` then shows where.
    """
    values = dict(parameters or {})
    folder = folder_for(
        output_dir,
        "",
        RESULTS,
        arguments=[values.get("page"), values.get("truth")],
        record=values.get("record"),
        overwrite=overwrite,
    ).resolve()
    values["output_dir"] = str(folder)
    values["overwrite"] = overwrite
    return write_report(
        "page_report",
        folder,
        "report",
        values,
        objects=LiveObjects(run=run),
        title=page_title(run.page_name()),
        overwrite=overwrite,
        show_code=show_code,
    )


def page_title(page: str) -> str:
    """The title of a page's report."""
    return f"{Path(page).name} – ocr_phases"


def verify_report(
    run: Record,
    output_dir: str | Path,
    references: pd.DataFrame | None = None,
    *,
    record: str | None = None,
    overwrite: bool = False,
) -> Path:
    """The verdicts of a run's checks as ``verify.html`` in ``output_dir``, beside its record and
    notebook.

    ``references`` is what `OCRSession.references` says of the model that was measured, ``record``
    the file that ``run`` is from, if any. Raises as `page_report` does.
    """
    folder = folder_for(output_dir, "", VERIFICATION, record=record, overwrite=overwrite).resolve()
    return write_report(
        "verify",
        folder,
        "verify",
        {"record": record, "output_dir": str(folder), "overwrite": overwrite},
        objects=LiveObjects(run=run, references=references),
        title=f"Verification: {run.page_file} – ocr_phases",
        overwrite=overwrite,
    )


def write_report(
    name: str,
    folder: Path,
    stem: str,
    parameters: Mapping[str, Any],
    *,
    objects: LiveObjects,
    title: str,
    overwrite: bool = False,
    show_code: bool = False,
) -> Path:
    """Run the notebook ``name`` and write it into ``folder`` as ``STEM.ipynb`` and ``STEM.html``.

    Returns the path of the HTML file, whose title is ``title``.

    Raises as `execute_notebook` and `render_html` do, and where another report is being written
    there.
    """
    with only_writer(folder):
        notebook = folder / f"{stem}.ipynb"
        page = folder / f"{stem}.html"
        execute_notebook(name, parameters, notebook, objects=objects, overwrite=overwrite)
        return render_html(notebook, page, show_code=show_code, title=title, overwrite=overwrite)


def execute_notebook(
    name: str,
    parameters: Mapping[str, Any],
    output_path: str | Path,
    *,
    objects: LiveObjects | None = None,
    overwrite: bool = False,
) -> Path:
    """Run the shipped notebook ``name`` by papermill and keep it, executed, at ``output_path``.

    Its cells find ``objects`` by `ocr_phases.report.live.live_objects`. Raises as `run_notebook`
    and `keep_notebook` do, and `OcrPhasesError` for a file in the way that is not this package's
    unless ``overwrite``.
    """
    target = Path(output_path).absolute()
    check_names(output_folder(target.parent), re.escape(target.name), overwrite=overwrite)
    outcome = run_notebook(name, parameters, objects=objects)
    return keep_notebook(name, outcome, target, overwrite=overwrite)


def run_notebook(
    name: str, parameters: Mapping[str, Any], *, objects: LiveObjects | None = None
) -> NotebookOutcome:
    """Run the shipped notebook ``name`` by papermill, in this process and working directory.

    Its cells have a namespace of their own. The outcome has the notebook up to the first cell that
    failed. Raises `OcrPhasesError` for an unknown notebook or parameter.
    """
    from papermill.engines import papermill_engines
    from papermill.exceptions import PapermillExecutionError
    from papermill.execute import execute_notebook as run_by_papermill
    from papermill.execute import remove_error_markers

    source = _notebook(name)
    # A checkout that is not installed has no entry point by which papermill finds the engine.
    papermill_engines.register(ENGINE, InProcess)
    outcome = NotebookOutcome()
    # Papermill would write the notebook after every cell, and not as a whole or not at all. The
    # error of a cell is in the outcome as the object that it was.
    with contextlib.suppress(PapermillExecutionError):
        run_by_papermill(
            _as_papermill_names(source),
            None,
            _cell_parameters(name, source, parameters),
            engine_name=ENGINE,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            objects=objects,
            outcome=outcome,
            stills=False,
            interactive=False,
        )
    # Papermill puts a red sentence before the cell that failed: the caller says what failed.
    outcome.notebook = remove_error_markers(outcome.notebook)
    return outcome


def with_parameters(name: str, notebook: Any, parameters: Mapping[str, Any]) -> Any:
    """An executed notebook with these parameters instead of those that it was run with.

    They are for the next time that somebody runs it. Raises `OcrPhasesError` for an unknown one.
    """
    from papermill.parameterize import parameterize_notebook

    values = _cell_parameters(name, _notebook(name), parameters)
    return parameterize_notebook(notebook, values, kernel_name="python3", language="python")


def keep_notebook(
    name: str, outcome: NotebookOutcome, target: Path, *, overwrite: bool = False
) -> Path:
    """Write a notebook that was run; its path.

    Raises the error of a cell that failed, after writing: an error of this package as it was, any
    other as `NotebookFailed`.
    """
    from nbformat import writes

    data = writes(outcome.notebook).encode("utf-8", "replace")
    write_into(target.parent, {target.name: data}, overwrite=overwrite)
    error = outcome.error
    if error is None:
        return target
    if isinstance(error, OcrPhasesError):
        raise error
    first_line = next(iter(str(error).splitlines()), "")
    raise NotebookFailed(
        f"{name} failed, which is a bug of ocr_phases ({type(error).__name__}: {first_line}): "
        f"see {target}."
    ) from error


def _cell_parameters(name: str, source: Path, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as a notebook's cell has them: a setting without a line goes into ``options``.

    Raises `OcrPhasesError` for a parameter that the notebook does not have.
    """
    from papermill.inspection import inspect_notebook

    known = list(inspect_notebook(_as_papermill_names(source)))
    settings = setting_names(Settings) if OPTIONS in known else []
    check_given_names(name, parameters, known, settings)
    values = {key: value for key, value in parameters.items() if key in known}
    others = {key: value for key, value in parameters.items() if key not in known}
    if others:
        values[OPTIONS] = {**(parameters.get(OPTIONS) or {}), **others}
    return values


def _as_papermill_names(path: Path) -> str:
    """A path in which papermill fills in no parameters, whatever braces it has."""
    return str(path).replace("{", "{{").replace("}", "}}")


def render_html(
    notebook: str | Path,
    html_path: str | Path,
    *,
    show_code: bool = False,
    title: str = "ocr_phases report",
    overwrite: bool = False,
) -> Path:
    """Render an executed notebook as one HTML file that makes no request; stderr and widgets are
    left out.

    Headings of the second level become the contents. ``show_code`` adds the code. Raises
    `OcrPhasesError` where the notebook cannot be read or the file cannot be written, and for a file
    in its way that is not this package's unless ``overwrite``.
    """
    import nbformat

    try:
        content = nbformat.reads(read_regular(notebook).decode(), as_version=4)
    except (OSError, ValueError, nbformat.ValidationError, AttributeError, RecursionError) as error:
        raise OcrPhasesError(f"{notebook} is not a notebook that can be read ({error}).") from error
    path = Path(html_path)
    body = _cells_html(content, show_code=show_code)
    headings = [(html.unescape(text), name) for name, text in _HEADING.findall(body)]
    if any(_has_view(output) for cell in content.cells for output in cell.get("outputs", ())):
        document = document_html(title, headings, body, css=view_style(), script=view_script())
    else:
        document = document_html(title, headings, body)
    return write_into(path.parent, {path.name: document.encode()}, overwrite=overwrite)[0]


def _notebook(name: str) -> Path:
    folder = asset("notebooks")
    path = folder / f"{name}.ipynb"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.ipynb")))
        raise OcrPhasesError(f"There is no notebook {name!r}: choose one of {known}.")
    return path


class _Prose(mistune.HTMLRenderer):
    """Headings get an id, to which the contents link."""

    def heading(self, text: str, level: int, **_: Any) -> str:
        name = html.unescape(_TAG.sub("", text)).strip().replace(" ", "-")
        return element(f"h{level}", Html(text), id=name) + "\n"


_PROSE = mistune.create_markdown(renderer=_Prose(escape=False), plugins=["table", "strikethrough"])


def _cells_html(notebook: Any, *, show_code: bool) -> Html:
    """Prose and outputs, without stderr and widgets; ``show_code`` adds the code."""
    parts: list[ReportPart] = []
    for cell in notebook.cells:
        is_hidden = NOTEBOOK_ONLY in cell.metadata.get("tags", [])
        if cell.cell_type == "markdown" and not is_hidden:
            parts.append(ReportPart("prose", Html(_PROSE(cell.source))))
        if cell.cell_type == "code" and show_code:
            parts.append(ReportPart("code", cell.source))
        if cell.cell_type == "code" and not is_hidden:
            parts += _output_parts(cell)
    return fill_template("cells", parts=parts)


def _has_view(output: Any) -> bool:
    return VIEW_TYPE in output.get("data", {})


def _output_parts(cell: Any) -> Iterator[ReportPart]:
    """What a report shows of the outputs of a cell."""
    for output in cell.outputs:
        if output.output_type == "error":
            yield ReportPart("error", _TERMINAL.sub("", f"{output.ename}: {output.evalue}"))
        elif output.output_type == "stream":
            if output.name == "stdout":
                yield ReportPart("stream", _TERMINAL.sub("", output.text))
        elif _has_view(output):
            yield ReportPart("view", Html(output.data[VIEW_TYPE]))
        else:
            kind = _best_form(output.data)
            if kind is not None:
                details = output.metadata.get(kind, {})
                yield ReportPart(kind, _content_of(kind, output.data[kind]), details)


def _best_form(data: Mapping[str, Any]) -> str | None:
    """The best of the forms of an output; None for what only a live notebook can run."""
    if any(kind in data for kind in _LIVE):
        return None
    # What is no text, in a notebook that something else wrote, is no form that could be shown.
    return next((kind for kind in _SHOWN if isinstance(data.get(kind), str)), None)


def _content_of(kind: str, data: str) -> str:
    """An output of this form as a report has it: markup as `Html`, everything else as text."""
    # A report has the style sheet once, in its head.
    content = data.removeprefix(str(notebook_style()))
    if kind == "text/html":
        # The bitmap behind the drawing is for viewers that take no SVG.
        return Html(content.partition(STILL)[0])
    if kind == "image/svg+xml":
        return Html(content)
    return content
