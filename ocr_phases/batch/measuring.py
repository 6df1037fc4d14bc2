"""One page in a worker: the notebook ``page_report`` measures it, or shows what was measured.

Papermill runs the notebook in the process that keeps the model, as in a loop over pages with
``papermill.execute_notebook``. The same notebook makes the report of a page that was measured
before: it then reads the record. A page of which no report is wanted is measured without the
notebook, so that this needs none of Jupyter's packages.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ocr_phases.batch.archive import NOTEBOOK, REPORT, TRUTH, attempt_folder, truth_hash
from ocr_phases.batch.jobs import Job, code_versions
from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.worker_process import WorkerRequest
from ocr_phases.errors import CannotWrite, NotebookFailed, OcrPhasesError, OutOfMemory
from ocr_phases.files import RECORD, each_page, write_into
from ocr_phases.settings import Settings, setting_names
from ocr_phases.versions import seldom_collected


class Refused(Exception):
    """A page that could not be done: the kind of its failure (a key of `outcome.FAILURES`), and the
    reason.
    """


def measure_page(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """Measure one page with the loaded model, and write its record and its figures.

    In mode ``notebook`` the notebook measures the page and shows it. If only its report fails, the
    page has been measured, and the outcome says why there is no report.
    """
    from ocr_phases.batch.figures import write_figures
    from ocr_phases.results.run import PhaseRun

    job = Job(**request["job"])
    if job.problem:
        raise Refused("page", job.problem)
    _check_versions(job)
    price = request["price_per_hour"]
    with refusing_as("request"):
        settings = Settings(**job.settings, price_per_hour=price)
    with refusing_as("model"):
        from ocr_phases.measure.busy import busy_warnings_to
        from ocr_phases.session.kept import kept_session

        session = kept_session(**settings.of_model())
    ready()
    with refusing_as("output"):
        place = attempt_folder(Path(request["folder"]))
    why_no_report = ""
    busy_warnings: list[str] = []
    with busy_warnings_to(busy_warnings.append):
        if request["mode"] == "notebook" and find_spec("papermill") is not None:
            why_no_report = _measure_in_notebook(place, job, price)
            with refusing_as("output"):
                run = PhaseRun.load(place / RECORD)
        else:
            if request["mode"] == "notebook":
                why_no_report = "This worker has no papermill."
            with refusing_as("request", job.source):
                run = session.run_inference(job.source, **settings.of_run())
            with refusing_as("output"):
                write_into(place, {RECORD: run.to_json()})
    with refusing_as("output"):
        if job.sha256 not in (None, run.page.sha256):
            raise Refused(
                "page",
                f"{job.name} was changed in the meantime: the same command takes it as it is.",
            )
        write_figures(place, run, job.id, job.name)
    return Outcome(place=place.name, report=why_no_report, busy="".join(busy_warnings))


@seldom_collected()
def render_page(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """Show a page that has been measured; its record stays as it is."""
    ready()
    folder = Path(request["folder"])
    price = request["price_per_hour"]
    parameters: dict[str, Any] = {"record": str(folder / RECORD), "price_per_hour": price}
    if truth_hash(folder) is not None:
        parameters["truth"] = str(folder / TRUTH)
    with refusing_as("output"):
        place = attempt_folder(folder)
        try:
            _show_page(place, request["job"], price, parameters)
        except Exception as error:  # noqa: BLE001 (whatever it was, the page has been measured)
            return Outcome("report", _reason(error, place), place=place.name)
        finally:
            # The notebook writes a copy with the price and the reference text.
            (place / RECORD).unlink(missing_ok=True)
    return Outcome(place=place.name)


def _measure_in_notebook(place: Path, job: Job, price: float | None) -> str:
    """Measure and show a page; why it has no report, if so.

    Raises the notebook's error if the page was not measured.
    """
    parameters = {**job.settings, "page": job.source, "price_per_hour": price}
    error: BaseException
    try:
        _show_page(place, vars(job), price, parameters)
    except Exception as failure:  # noqa: BLE001 (whatever failed, a page that was measured stays so)
        error = failure
    else:
        return ""
    if (place / RECORD).exists():
        return _reason(error, place)
    if isinstance(error, NotebookFailed) and error.__cause__ is not None:
        # The page failed, not its notebook: the reason is the cell's own error.
        error = error.__cause__
    with refusing_as("request", job.source):
        raise error


def _show_page(
    place: Path, job: Mapping[str, Any], price: float | None, parameters: Mapping[str, Any]
) -> None:
    """Run the notebook with its results in ``place``, an attempt's folder, and write its report.

    The notebook is kept with other parameters, by which it can be run again in the page's folder.
    """
    from ocr_phases.report.render import (
        keep_notebook,
        page_title,
        render_html,
        run_notebook,
        with_parameters,
    )

    name = "page_report"
    later = parameters_in_archive(job, place.parent, price)
    outcome = run_notebook(name, {**parameters, "output_dir": str(place)})
    outcome.notebook = with_parameters(name, outcome.notebook, later)
    for cell in outcome.notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                # What an attempt wrote is named as it will be called.
                output.text = output.text.replace(str(place), str(place.parent))
    notebook = keep_notebook(name, outcome, place / NOTEBOOK)
    page = job["name"].encode("utf-8", "replace").decode()
    render_html(notebook, place / REPORT, title=page_title(page))


def parameters_in_archive(
    job: Mapping[str, Any], folder: Path, price: float | None
) -> dict[str, Any]:
    """The parameters by which a page's notebook can be run again in the page's ``folder``.

    Their paths lead from the folder, so that an archive can be moved. The notebook then shows the
    record; without ``record`` it measures the page again, where that still is.
    """
    settings = job["settings"]
    known = setting_names(Settings)
    parameters = {name: value for name, value in settings.items() if name in known}
    model = settings["model"]
    if model.partition(":")[0] not in ("tiny", "dummy") and os.path.isdir(model):  # noqa: PTH112
        parameters["model"] = os.path.abspath(model)  # noqa: PTH100 (no link followed)
    parameters |= {"page": job["source"], "record": RECORD, "output_dir": "."}
    if truth_hash(folder) is not None:
        parameters["truth"] = TRUTH
    if price is not None:
        parameters["price_per_hour"] = price
    return parameters


def _reason(error: BaseException, place: Path) -> str:
    """Why there is no report; what an attempt wrote is named as it will be called."""
    return str(error).replace(f"{place}{os.sep}", "") or type(error).__name__


def _check_versions(job: Job) -> None:
    """Raise `Refused` if this worker has other versions than the driver."""
    own = code_versions()
    differing = sorted(job.versions.items() - own.items())
    if differing:
        listed = ", ".join(
            f"{name} {own.get(name)} instead of {asked}" for name, asked in differing
        )
        raise Refused(
            "versions", f"This worker has {listed}: start it in the driver's environment."
        )


@contextlib.contextmanager
def refusing_as(failure: str, page: str = "") -> Iterator[None]:
    """Raise an `OcrPhasesError` as a failure of this kind, or of the ``page`` where that cannot be
    read.
    """
    try:
        yield
    except OcrPhasesError as error:
        from ocr_phases.images import load_page

        if page:
            with refusing_as("page"):
                for each in each_page(page):
                    load_page(each)
        if isinstance(error, OutOfMemory):
            failure = "memory"
        elif isinstance(error, CannotWrite):
            failure = "output"
        raise Refused(failure, str(error)) from error
