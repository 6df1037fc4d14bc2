"""A table of a result as a notebook and a terminal show it."""

from __future__ import annotations

import pandas as pd

from ocr_phases.analyse.checks import CHECK_COLUMNS, check_title
from ocr_phases.analyse.floors import FLOOR_COLUMNS
from ocr_phases.analyse.noise import Verdict
from ocr_phases.show.checks_section import checks_html
from ocr_phases.show.html_table import table_html
from ocr_phases.show.run_times import floor_table_html, floor_table_text
from ocr_phases.show.terminal_table import table_text
from ocr_phases.show.web import Html, notebook_style

_MOST_ROWS = 60
_END = 10  # rows at each end of a longer table


def frame_html(table: pd.DataFrame) -> str:
    """A table of a result in a notebook.

    A table that a report shows in a way of its own looks the same here, told by its columns. Of any
    other one that is long its ends are shown.
    """
    return str(notebook_style() + _table_html(table))


def _table_html(table: pd.DataFrame) -> Html:
    """The table in the form that a report has of it, which its columns tell."""
    columns = tuple(table.columns)
    if columns == CHECK_COLUMNS:
        return _checks_html(table)
    if columns == FLOOR_COLUMNS:
        return floor_table_html(table)
    if "metric" in columns or "cell" in columns:
        return _table_of_records_html(table)
    return _ends_html(table)


def _table_of_records_html(table: pd.DataFrame) -> Html:
    """A table of several records; what it is made with is imported for it alone."""
    from ocr_phases.analyse.compared_metrics import COMPARE_COLUMNS
    from ocr_phases.analyse.sweep_table import SWEEP_COLUMNS
    from ocr_phases.show.comparison_overview import compare_html
    from ocr_phases.show.sweep_overview import cells_html

    columns = tuple(table.columns)
    if columns == COMPARE_COLUMNS:
        return compare_html(table)
    if columns == SWEEP_COLUMNS:
        return cells_html(table)
    return _ends_html(table)


def _checks_html(table: pd.DataFrame) -> Html:
    """`ocr_phases.analyse.checks.checks_table` as a report shows it."""
    checks = []
    for row in table.to_numpy():
        check = Verdict(**dict(zip(CHECK_COLUMNS, row, strict=True)))
        checks.append(check._replace(title=check_title(check.name)))
    return checks_html(checks)


def _ends_html(table: pd.DataFrame) -> Html:
    if len(table) <= _MOST_ROWS:
        return table_html(table, missing="none")
    return table_html(_ends(table), caption=_ends_sentence(table), missing="none")


def _ends(table: pd.DataFrame) -> pd.DataFrame:
    """The first and the last rows of a long table."""
    return pd.concat([table.head(_END), table.tail(_END)])


def _ends_sentence(table: pd.DataFrame) -> str:
    return f"{len(table):,} rows, the first and the last {_END}"


def frame_text(table: pd.DataFrame) -> str:
    """A table of a result for a terminal: whole, or the ends of a long one."""
    if tuple(table.columns) == FLOOR_COLUMNS:
        return floor_table_text(table)
    if len(table) <= _MOST_ROWS:
        return table_text(table)
    return f"{_ends_sentence(table)}\n{table_text(_ends(table))}"
