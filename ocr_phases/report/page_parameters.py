"""The parameters of the notebooks ``page_report``, ``verify`` and ``sweep_report``: what they ask
for, checked before anything runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocr_phases.analyse.cost import priced
from ocr_phases.analyse.quality import Truth, load_truth, with_truth
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.files import REPORT_FOLDER, TRACE_NAME, VERIFY_FOLDER, folder_for
from ocr_phases.images import sample_page
from ocr_phases.record import Record, RecordType
from ocr_phases.report.live import live_objects
from ocr_phases.report.result_files import (
    VERIFICATION,
    WRITTEN_RESULTS,
    write_record,
    write_results,
)
from ocr_phases.settings import SIZE_SETTINGS, Settings, is_address, setting_names
from ocr_phases.text import nearest

#: The parameter that takes settings without a line of their own, by their names.
OPTIONS = "options"
#: The parameters of the cell, in its order; every other setting is taken, too. The cell is written
#: from this list.
PAGE_REPORT_PARAMETERS = (
    "page",
    "model",
    "preset",
    "prompt",
    "max_new_tokens",
    "repeats",
    "device",
    "strategy",
    OPTIONS,
    "record",
    "truth",
    "trace",
    "output_dir",
    "overwrite",
)
#: The parameters of ``sweep_report`` that are keywords of `sweep` by the same name.
_OF_SWEEP = (
    "presets",
    "strategies",
    "visions",
    "attentions",
    "dtypes",
    "batches",
    "lengths",
    "prompt",
    *SIZE_SETTINGS,
    "infer",
    "threads",
    "repeats",
    "warmup",
    "seed",
    "ignore_eos",
    "truth",
    "retry_failed",
)
#: How the cell begins that papermill adds behind the parameters.
_INJECTED = "# Parameters\n"


class PageParameters:
    """What the parameters of ``page_report`` ask for, and the folder of its results.

    Parameters
    ----------
    names : mapping
        The notebook's ``globals()``. Every name of `Settings` in it counts, also one that only
        papermill's ``-p`` gives; an entry of ``options`` counts before a name.

    Attributes
    ----------
    settings : Settings
        The keywords of `OCRSession.load` and ``run_inference``.
    page : str or Path
        The page; a sample page where the parameter is None.
    measured : Record, optional
        A record that the command which runs the notebook has just measured or read.
    folder : Path
        Where the results go; it is there.

    Raises
    ------
    OcrPhasesError
        For a parameter or an option of an unknown name, a wrong value, a reference text that cannot
        be read, and a folder that cannot be written or has other files in the way.

    Examples
    --------
    >>> asked = PageParameters(globals())  # doctest: +SKIP
    >>> asked.settings.of_run()["repeats"]  # doctest: +SKIP
    3
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        options = names[OPTIONS] or {}
        if not isinstance(options, Mapping):
            raise OcrPhasesError(
                f'options is {options!r}: give names and values, such as {{"kernels": True}}.'
            )
        check_given_names(
            "page_report", _injected_names(names), PAGE_REPORT_PARAMETERS, setting_names(Settings)
        )
        for name in options:
            check_known("entry", name, setting_names(Settings), OPTIONS)
        self.measured = live_objects().run
        self.page = names["page"] or sample_page()
        self._record: str | None = names["record"]
        self._overwrite: bool = names["overwrite"]
        self._truth: Truth | str | None = names["truth"]
        settings = Settings.among({**names, **options})
        self.folder: Path = folder_for(
            names["output_dir"],
            REPORT_FOLDER,
            WRITTEN_RESULTS,
            arguments=[names["page"], names["truth"]],
            record=self._record,
            overwrite=self._overwrite,
        )
        if self._truth and self.measured is None and not self._record:
            self._truth = load_truth(self._truth, str(self.page))
        if names["trace"]:
            trace = self.folder / TRACE_NAME
            settings = replace(settings, kernels=True, kernel_trace=trace)
        self.settings = settings

    @property
    def is_server(self) -> bool:
        """Whether the model is a server's address: it has no steps that can be called one by
        one.
        """
        return is_address(self.settings.model)

    def save(self, run: RecordType) -> RecordType:
        """Write the record, its text and its pictures into the folder, and say where.

        Returns the record with the reference text and the price that the parameters give.
        """
        if self._truth:
            run = with_truth(run, self._truth)
        run = priced(run, self.settings.price_per_hour)
        write_results(self.folder, run, self._record, overwrite=self._overwrite)
        print(f"Results are in {self.folder.resolve()}")
        return run


class VerifyParameters:
    """What the parameters of ``verify`` ask for, and the folder of its record.

    Parameters
    ----------
    names : mapping
        The notebook's ``globals()``.

    Attributes
    ----------
    settings : Settings
        The keywords of `OCRSession.load` and ``run_inference``, with ``verify``.
    page : str or Path
        The page; a sample page where the parameter is None.
    measured : Record, optional
        A record that the command which runs the notebook has just measured or read.
    references : pandas.DataFrame, optional
        The source lines of the code that the command has measured.
    folder : Path
        Where the record goes; it is there.

    Raises
    ------
    OcrPhasesError
        For a wrong value, and a folder that cannot be written or has other files in the way.

    Examples
    --------
    >>> asked = VerifyParameters(globals())  # doctest: +SKIP
    >>> asked.settings.verify  # doctest: +SKIP
    True
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.measured = live_objects().run
        self.references = live_objects().references
        self.page = names["page"] or sample_page()
        self.settings = Settings.among({**names, "verify": True})
        self._record: str | None = names["record"]
        self._overwrite: bool = names["overwrite"]
        self.folder: Path = folder_for(
            names["output_dir"],
            VERIFY_FOLDER,
            VERIFICATION,
            arguments=[names["page"]],
            record=self._record,
            overwrite=self._overwrite,
        )

    def save(self, run: Record) -> None:
        """Write the record into the folder, and say where."""
        write_record(self.folder, run, self._record, overwrite=self._overwrite)
        print(f"The record is {self.folder.resolve() / 'run.json'}")


class SweepParameters:
    """What the parameters of ``sweep_report`` ask for.

    Parameters
    ----------
    names : mapping
        The notebook's ``globals()``.

    Attributes
    ----------
    page : str or Path
        The page; a sample page where the parameter is None.
    models : list of str
        The models: those of the parameter ``models``, else ``model`` alone.
    load : dict
        The other keywords of `OCRSession.load`.
    plan : dict
        The other keywords of `sweep`, with the folder of the records.
    measured : SweptRecords, optional
        What the command that runs the notebook has just measured or read.

    Raises
    ------
    OcrPhasesError
        For a wrong value.

    Examples
    --------
    >>> asked = SweepParameters(globals())  # doctest: +SKIP
    >>> asked.plan["presets"]  # doctest: +SKIP
    ['tiny', 'small']
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.measured = live_objects().sweep
        self.page = names["page"] or sample_page()
        self.load = Settings.among(names).of_model()
        model = self.load.pop("model")
        self.models: list[str] = names["models"] or [model]
        self.plan = {name: names[name] for name in _OF_SWEEP}
        self.plan["folder"] = names["output_dir"]


def check_given_names(
    notebook: str, names: Iterable[str], own: Sequence[str], settings: Sequence[str] = ()
) -> None:
    """Raise `OcrPhasesError` for a parameter that a notebook does not have; papermill only warns.

    ``own`` are those of its parameters cell, ``settings`` those that it takes besides.
    """
    unknown = sorted(set(names) - set(own) - set(settings))
    if unknown:
        more = ", and any other setting by its name" if settings else ""
        raise OcrPhasesError(
            f"{notebook} has no parameter {', '.join(unknown)}: it takes {', '.join(own)}{more}."
            f"{nearest(unknown[0], [*own, *settings])}"
        )


def _injected_names(names: Mapping[str, Any]) -> set[str]:
    """The names that papermill gave values: by our engine, or as a cell that this kernel ran."""
    injected = set(live_objects().parameters)
    for source in names.get("In", ()):
        if source.startswith(_INJECTED):
            injected |= _assigned_names(source)
    return injected


def _assigned_names(source: str) -> set[str]:
    """The names that the statements of a cell assign to."""
    assigned = set()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            assigned |= {each.id for each in statement.targets if isinstance(each, ast.Name)}
    return assigned
