"""Comparison: two or more measurements side by side, and `compare`, which makes one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ocr_phases.analyse.compared_metrics import MARGIN
from ocr_phases.analyse.comparison import ComparedRecords
from ocr_phases.analyse.kernels import compared_kernels
from ocr_phases.errors import explain_wrong_calls
from ocr_phases.results.plots import Plots
from ocr_phases.results.run import PhaseRun
from ocr_phases.results.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class ComparePlots(Plots):
    """The plots of a comparison. Each is a matplotlib figure, drawn on ``ax`` if that is given."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def stages(self, *, ax: Axes | None = None) -> Figure:
        """The prefill of each measurement as a bar in ms, stage after stage."""
        from ocr_phases.show.comparison_plots import plot_prefill_stages

        return plot_prefill_stages(self._comparison.runs, self._comparison.labels, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of each decode step in ms over the length of the KV cache, by measurement."""
        from ocr_phases.show.comparison_plots import plot_decode

        return plot_decode(self._comparison.runs, self._comparison.labels, ax=ax)

    def ratios(self, *, ax: Axes | None = None) -> Figure:
        """Ratio of each headline figure to the baseline's, with its interval.

        A ratio of 1 is no difference.
        """
        from ocr_phases.show.comparison_plots import plot_ratios

        return plot_ratios(self._comparison.headline, ax=ax)


class Comparison(ComparedRecords):
    """Measurements against the first of them, the baseline; a cell of a notebook shows it.

    ``table`` has every metric, ``verdict`` is the result in words, ``differs`` lists what differs
    in how they were measured, ``text_diff`` how their texts differ, and ``plot`` has its plots.
    Made by `compare`.
    """

    runs: tuple[PhaseRun, ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Each measurement against the baseline: `ComparedRecords.table`."""
        return Table(super().table)

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernel tables side by side: `ocr_phases.analyse.kernels.compared_kernels`."""
        return Table(compared_kernels(self.runs, self.labels))

    @property
    def plot(self) -> ComparePlots:
        """The plots of this comparison, such as ``comparison.plot.stages()``."""
        return ComparePlots(self)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.runs)} measurements: {', '.join(self.labels)}>"

    def __str__(self) -> str:
        from ocr_phases.show.comparison_overview import comparison_text

        return comparison_text(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.comparison_overview import comparison_bundle

        return comparison_bundle(self)


@explain_wrong_calls
def compare(
    *runs: PhaseRun | str | Path, labels: Sequence[str] | None = None, margin: float = MARGIN
) -> Comparison:
    """Compare measurements with the first of them, the baseline.

    Parameters
    ----------
    *runs : PhaseRun, str or Path
        Two or more measurements, or the files of their records; the baseline first.
    labels : sequence of str, optional
        A name for each; by default the settings that differ.
    margin : float, default 2.0
        Two figures are equivalent where the whole interval of their ratio lies within this many per
        cent of 1.

    Returns
    -------
    Comparison
        It shows itself in a notebook.

    Raises
    ------
    OcrPhasesError
        For fewer than two measurements, labels that are not one per measurement and all different,
        a margin outside 0 to 100, and a file that is no record.

    Examples
    --------
    >>> compare("eager.json", "compiled.json").verdict  # doctest: +SKIP
    """
    records = [run if isinstance(run, PhaseRun) else PhaseRun.load(run) for run in runs]
    return Comparison(records, labels, margin=margin)
