"""The tables and plots of the public results, read from their classes, and the sections of a
report: a new one is tested without a list of names.
"""

import contextlib
import inspect
from collections.abc import Callable

import pandas as pd

from ocr_phases import OcrPhasesError
from ocr_phases.record import Record
from ocr_phases.report import sections
from ocr_phases.show.page import picture_parts, region_parts
from ocr_phases.show.section import Section


def plots_of(kind: type) -> list[str]:
    """The names of all plots of a class of plots."""
    return [
        name
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]


def plots_on_axes(kind: type) -> list[str]:
    """The names of the plots that draw on a caller's axes."""
    return [
        name for name in plots_of(kind) if "ax" in inspect.signature(vars(kind)[name]).parameters
    ]


def tables_of(kind: type) -> list[str]:
    """The names of a result's properties that are tables."""
    return [
        name
        for name, member in inspect.getmembers_static(kind)
        if isinstance(member, property)
        and inspect.signature(member.fget).return_annotation == "pd.DataFrame"
    ]


def tables_in(result: object) -> dict[str, pd.DataFrame]:
    """The tables of a result by name, without those whose sentence says that it has none."""
    tables = {}
    for name in tables_of(type(result)):
        with contextlib.suppress(OcrPhasesError):
            tables[name] = getattr(result, name)
    return tables


def sections_of_a_record() -> list[Callable[[Record], Section]]:
    """The sections of `ocr_phases.report.sections` that take a record and nothing else."""
    found = []
    for name in sections.__all__:
        section = getattr(sections, name)
        taken = inspect.signature(section).parameters.values()
        if inspect.isfunction(section) and [each.annotation for each in taken] == ["Record"]:
            found.append(section)
    return found


def page_section(run: Record) -> Section:
    """The pictures of a record's page and what each region took, which `LinkedPage` shows in a
    notebook one after the other.
    """
    return Section(*picture_parts(run), *region_parts(run))
