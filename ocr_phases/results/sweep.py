"""SweepResult: the measurements of a sweep, by cell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from ocr_phases.analyse.cost import priced
from ocr_phases.analyse.sweep_table import FAILURE_COLUMNS
from ocr_phases.analyse.swept_records import SweptRecords
from ocr_phases.errors import OcrPhasesError, explain_wrong_calls
from ocr_phases.record.store import CELL_STATUS, CellStatus, read_status
from ocr_phases.results.plots import Plots
from ocr_phases.results.run import PhaseRun
from ocr_phases.results.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class SweepPlots(Plots):
    """The plots of a sweep. Each is a matplotlib figure that shows itself in a notebook.

    A plot with a single axes takes ``ax``: it then draws there and returns the figure of that axes.
    """

    def __init__(self, sweep: SweepResult) -> None:
        self._sweep = sweep

    def prefill(self, *, ax: Axes | None = None) -> Figure:
        """Prefill in ms over the tokens of the prompt."""
        from ocr_phases.show.sweep_plots import plot_prefill

        return plot_prefill(self._sweep.table, ax=ax)

    def vision(self, *, ax: Axes | None = None) -> Figure:
        """The prefill of each cell as a bar in ms, stage after stage."""
        from ocr_phases.show.sweep_plots import plot_vision_share

        return plot_vision_share(self._sweep.table, self._sweep.runs, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of a decode step in ms over the length of the KV cache, a line per cell."""
        from ocr_phases.show.sweep_plots import plot_cells_decode

        return plot_cells_decode(self._sweep.curves, ax=ax)

    def throughput(self, *, ax: Axes | None = None) -> Figure:
        """Tokens per second of all rows over the batch size."""
        from ocr_phases.show.sweep_plots import plot_throughput

        return plot_throughput(self._sweep.table, ax=ax)

    def floors(self) -> Figure:
        """Prefill and decode step of each cell in ms, beside their floors."""
        from ocr_phases.show.sweep_plots import plot_floors

        return plot_floors(self._sweep.table)

    def cost_quality(self) -> Figure:
        """What each cell loses, in per cent, over what it costs."""
        from ocr_phases.show.quality_plots import plot_cost_quality

        return plot_cost_quality(self._sweep.cost_quality)


@dataclass(frozen=True, repr=False)
class SweepResult(SweptRecords[PhaseRun]):
    """The measurements of a sweep by cell in ``runs``; a cell of a notebook shows it.

    ``table`` has a row per cell, ``verdict`` is the result in words, ``failures`` are the cells
    that could not be measured, and ``plot`` has its plots.
    """

    @classmethod
    @explain_wrong_calls
    def load(cls, folder: str | Path) -> Self:
        """Read the records that a sweep wrote.

        Parameters
        ----------
        folder : str or Path
            The folder that the sweep wrote to, or the ``runs`` in it. For a sweep of several
            models it has one folder for each of them.

        Raises
        ------
        OcrPhasesError
            Where the folder has no record, or one is damaged.
        """
        runs: dict[str, PhaseRun] = {}
        failures: list[dict[str, Any]] = []
        for name, file in _cell_files(Path(folder)).items():
            if not name.endswith(CELL_STATUS):
                cell, _, _ = name.rpartition(".json")  # it may end in .json.gz
                runs[cell] = PhaseRun.load(file)
                continue
            status = read_status(file, CellStatus)
            if status is not None and status["state"] != "done":
                failure = dict(status["asked"]["cell"])
                failure["cell"] = name.removesuffix(CELL_STATUS)
                failure["reason"] = status["reason"]
                failures.append(failure)
        failure_table = pd.DataFrame(failures, columns=list(FAILURE_COLUMNS))
        return cls(dict(sorted(runs.items())), failure_table)

    @explain_wrong_calls
    def with_truth(self, truth: str | Path) -> Self:
        """The same sweep with the reference text of its page (`PhaseRun.with_truth`).

        Parameters
        ----------
        truth : str or Path
            The file of the reference text, or a folder that has it by the page's name.

        Raises
        ------
        OcrPhasesError
            Where every record ignored the end token, so that no text has an end to compare.
        """
        if all(run.request.ignore_eos for run in self.runs.values()):
            raise OcrPhasesError(
                "These records ignored the end token, so their texts have no end to compare: sweep "
                "again with --truth."
            )
        runs = {cell: run.with_truth(truth) for cell, run in self.runs.items()}
        return replace(self, runs=runs)

    @explain_wrong_calls
    def with_price(self, price_per_hour: float | None) -> Self:
        """The same sweep at another price.

        Parameters
        ----------
        price_per_hour : float or None
            Price of an hour of the machine; None keeps each record's own.
        """
        runs = {cell: priced(run, price_per_hour) for cell, run in self.runs.items()}
        return replace(self, runs=runs)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per cell: `ocr_phases.analyse.sweep_table.sweep_table`."""
        return Table(super().table)

    @property
    def plot(self) -> SweepPlots:
        """The plots of this sweep, such as ``sweep.plot.prefill()``."""
        return SweepPlots(self)

    def __repr__(self) -> str:
        return f"<SweepResult of {len(self.runs)} measured cells, {len(self.failures)} failed>"

    def __str__(self) -> str:
        from ocr_phases.show.sweep_overview import sweep_text

        return sweep_text(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.sweep_overview import sweep_bundle

        return sweep_bundle(self)


def _cell_files(root: Path) -> dict[str, Path]:
    """The records and status files of the cells, by their names.

    Of several models a name begins with the model's folder: ``base/gundam.json``. Raises
    `OcrPhasesError` where there is none.
    """
    for below in ("runs/", "", "*/runs/"):
        files = sorted([*root.glob(f"{below}*.json"), *root.glob(f"{below}*.json.gz")])
        if not files:
            continue
        named: dict[str, Path] = {}
        for file in files:
            model_folders = file.relative_to(root).parts[:-2]
            named["/".join((*model_folders, file.name))] = file
        return named
    raise OcrPhasesError(f"{root} holds no records: name the folder that a sweep wrote.")
