"""PhaseRun: one measurement, with its figures, tables, plots and report.

What draws is imported where it draws: matplotlib takes longer to import than a record to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
import pandas as pd

from ocr_phases.analyse import quality
from ocr_phases.analyse.checks import checks_table
from ocr_phases.analyse.energy import phase_energy_table
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import floor_table
from ocr_phases.analyse.regions import regions_of
from ocr_phases.analyse.repetition import repetition_table
from ocr_phases.analyse.sentences import tokens_text
from ocr_phases.analyse.speculation import speculation
from ocr_phases.analyse.stages import stage_table, tokens_of
from ocr_phases.errors import UnknownName, explain_wrong_calls
from ocr_phases.files import SavedPath
from ocr_phases.record import Record
from ocr_phases.record.schema import Truth
from ocr_phases.results.plots import Plots
from ocr_phases.results.tables import RecordedPage, Table
from ocr_phases.text import nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ocr_phases.view.widgets import RecordView


class RunPlots(Plots):
    """The plots of a measurement. Each is a matplotlib figure that shows itself in a notebook.

    A plot with a single axes takes ``ax``: it then draws there and returns the figure of that axes.
    """

    def __init__(self, run: Record) -> None:
        self._run = run

    def latency(self, *, ax: Axes | None = None) -> Figure:
        """Time of each decode step in ms.

        The median over the repeats is a line with its spread, above the hardware floor. Outliers
        are named.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default a figure of its own.

        Examples
        --------
        >>> run.plot.latency().savefig("latency.pdf")  # doctest: +SKIP
        """
        from ocr_phases.show.latency_plot import plot_latency

        return plot_latency(self._run, ax=ax)

    def vision(self, *, ax: Axes | None = None) -> Figure:
        """The stages of the prefill as bars in ms, with their share of it.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default a figure of its own.
        """
        from ocr_phases.show.vision_plot import plot_vision_stages

        return plot_vision_stages(self._run, ax=ax)

    def timeline(self) -> Figure:
        """The typical repeat from its start, in ms, by stage and by phase."""
        from ocr_phases.show.timeline_plot import plot_phase_timeline

        return plot_phase_timeline(self._run)

    def memory(self) -> Figure:
        """Peak memory of each phase in bytes, and how the KV cache grows with every step."""
        from ocr_phases.show.memory_plot import plot_memory

        return plot_memory(self._run)

    def roofline(self, *, ax: Axes | None = None) -> Figure:
        """FLOP/s over FLOPs per byte: the device's ceilings as lines, each stage as a point.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default a figure of its own.
        """
        from ocr_phases.show.roofline_plot import plot_roofline

        return plot_roofline(self._run, ax=ax)

    @explain_wrong_calls
    def energy(self, *, ax: Axes | None = None) -> Figure:
        """The energy of vision, prefill and decode in J; needs ``phase_energy=True``.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on.
        """
        from ocr_phases.show.energy_plot import plot_phase_energy

        return plot_phase_energy(self._run, ax=ax)

    def kernels(self) -> Figure:
        """Each stage's time in ms and how much of it the GPU was busy; needs ``kernels=True``."""
        from ocr_phases.show.kernel_plot import plot_kernels

        return plot_kernels(self._run)

    @explain_wrong_calls
    def page(
        self,
        page: int = 0,
        color: Literal["type", "time"] = "type",
        row: int = 0,
        *,
        ax: Axes | None = None,
    ) -> Figure:
        """A page under the boxes that the model wrote.

        Parameters
        ----------
        page : int, default 0
            Which page of the row's prompt, counted from 0.
        color : {"type", "time"}, default "type"
            Colour the boxes by the type of region, or by the decode time spent on writing each
            region.
        row : int, default 0
            Which row of a batch, counted from 0.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default a figure of its own.

        Raises
        ------
        OcrPhasesError
            For another ``color``, and for a page or row that the record does not have.

        Examples
        --------
        >>> run.plot.page(color="time")  # doctest: +SKIP
        """
        from ocr_phases.show.page import plot_page

        return plot_page(self._run, page, color, row, ax=ax)

    @explain_wrong_calls
    def regions(self, row: int = 0, *, ax: Axes | None = None) -> Figure:
        """Decode time in ms by type of region, with its share and the time per character.

        Parameters
        ----------
        row : int, default 0
            Which row of a batch, counted from 0.
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default a figure of its own.
        """
        from ocr_phases.show.page import plot_region_types

        return plot_region_types(self._run, row, ax=ax)


@dataclass(frozen=True, eq=False, repr=False)
class PhaseRun(Record):
    """One measurement: ``repeats`` runs of prepare, prefill and decode over the same inputs.

    A cell of a notebook shows it. It reads like a mapping of its headline figures
    (``run["prefill_ms"]``, see `summary`); its tables are properties (`stages`, `tokens`,
    `regions`, `floors`, `checks`), its figures are methods of `plot`, and its raw times are in
    `spans`.
    """

    def __repr__(self) -> str:
        facts = [tokens_text(self)]
        if self.waits_for_first_token:
            facts.append(f"first token {self['ttft_ms']:.1f} ms")
        names = {
            "prefill_ms": "prefill",
            "decode_ms": "decode",
            "generate_ms": "whole answer" if self.is_server else "generate",
        }
        for figure, name in names.items():
            ms = self[figure]
            if ms is not None:
                facts.append(f"{name} {ms:.1f} ms")
        return f"<PhaseRun {self.page_file} on {self.model.name}: {', '.join(facts)}>"

    def __str__(self) -> str:
        from ocr_phases.show.run_overview import run_text

        return run_text(self)

    # -- headline figures -------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The headline figures by name, times in ms: `ocr_phases.analyse.figures.summary`.

        Examples
        --------
        >>> run.summary()["inter_token_ms"]  # doctest: +SKIP
        """
        return summary(self)

    def __getitem__(self, key: str) -> Any:
        figures = summary(self)
        if key not in figures:
            raise UnknownName(f"A record has no {key!r}.{nearest(str(key), figures)}")
        return figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(summary(self))

    def keys(self) -> list[str]:
        """The names that `summary` gives."""
        return list(summary(self))

    def _ipython_key_completions_(self) -> list[str]:
        return self.keys()

    # -- tables -----------------------------------------------------------------------------------

    @property
    def stages(self) -> pd.DataFrame:
        """Time of each phase and its stages: `ocr_phases.analyse.stages.stage_table`."""
        return Table(stage_table(self))

    @property
    def tokens(self) -> pd.DataFrame:
        """One row per generated token of the first row: `tokens_of`."""
        return self.tokens_of(0)

    @property
    def token_table(self) -> pd.DataFrame:
        """The same as `tokens`."""
        return self.tokens

    @explain_wrong_calls
    def tokens_of(self, row: int) -> pd.DataFrame:
        """One row per generated token of a batch's row: `ocr_phases.analyse.stages.tokens_of`.

        Parameters
        ----------
        row : int
            Which row of the batch, counted from 0.

        Raises
        ------
        UnknownName
            Where the record has no such row.
        """
        return Table(tokens_of(self, row))

    @property
    def regions(self) -> pd.DataFrame:
        """What each region of the first row cost: `ocr_phases.analyse.regions.regions_of`."""
        return Table(regions_of(self))

    @property
    def floors(self) -> pd.DataFrame:
        """Each stage beside its floor: `ocr_phases.analyse.floors.floor_table`."""
        return Table(floor_table(self))

    @property
    def energy(self) -> pd.DataFrame:
        """The energy of each phase in J: `ocr_phases.analyse.energy.phase_energy_table`."""
        return Table(phase_energy_table(self))

    @property
    def checks(self) -> pd.DataFrame:
        """Every check, live and of the record: `ocr_phases.analyse.checks.checks_table`."""
        return Table(checks_table(self))

    @property
    def repetitions(self) -> pd.DataFrame:
        """Text that is repeated, and its time: `ocr_phases.analyse.repetition.repetition_table`."""
        return Table(repetition_table(self))

    @explain_wrong_calls
    def speculation(
        self, draft: int = 10, longest: int = 3, row: int = 0, *, verified_by: Record | None = None
    ) -> pd.DataFrame:
        """Whether guessing tokens by n-gram lookup would pay for this text.

        `ocr_phases.analyse.speculation.speculation` says what each column means.

        Parameters
        ----------
        draft : int, default 10
            The maximum number of tokens that are guessed for a step.
        longest : int, default 3
            The maximum number of last tokens that are looked up in the text before them.
        row : int, default 0
            Which row of a batch, counted from 0.
        verified_by : Record, optional
            A record of ``draft + 1`` rows of the same model on the same device, whose step costs
            as much as one that checks ``draft`` guesses. By default that cost is estimated.

        Returns
        -------
        DataFrame
            A row for each region of the text, and a last one for all of it, with the share of
            guesses that were right, the cost of a step at which guessing breaks even, and the
            speed-up.

        Raises
        ------
        OcrPhasesError
            Where the record has no ids of tokens, for a number below 1, and for a ``verified_by``
            with another number of rows.

        Examples
        --------
        >>> run.speculation(draft=5)  # doctest: +SKIP
        """
        table = speculation(self, draft, longest, row, verified_by=verified_by)
        return Table(table)

    # -- its text against a reference text --------------------------------------------------------

    @explain_wrong_calls
    def quality(self, truth: Truth | str | Path | None = None, row: int = 0) -> pd.DataFrame:
        """A row's text against a reference text: `ocr_phases.analyse.quality.quality_table`.

        Parameters
        ----------
        truth : Truth, str or Path, optional
            The reference text, as `with_truth` takes it; by default the record's own.
        row : int, default 0
            Which row of a batch, counted from 0.

        Raises
        ------
        OcrPhasesError
            Where the reference text cannot be read, and `UnknownName` for a row that the record
            does not have.

        Examples
        --------
        >>> run.quality("page.md")  # doctest: +SKIP
        """
        run = self if truth is None else self.with_truth(truth, row)
        return Table(quality.quality_table(run, run.truth_of(row), row))

    @explain_wrong_calls
    def with_truth(self, truth: Truth | str | Path, row: int = 0) -> Self:
        """The same measurement with the reference text of a row's page.

        Parameters
        ----------
        truth : Truth, str or Path
            The reference text, or a path for `ocr_phases.analyse.quality.load_truth`.
        row : int, default 0
            Which row of a batch, counted from 0.

        Raises
        ------
        OcrPhasesError
            Where the record has no text, and where the reference text cannot be read.

        Examples
        --------
        >>> run.with_truth("page.md").report("out")  # doctest: +SKIP
        """
        return quality.with_truth(self, truth, row)

    # -- what it shows ----------------------------------------------------------------------------

    @property
    def plot(self) -> RunPlots:
        """The plots of this measurement, such as ``run.plot.latency()``."""
        return RunPlots(self)

    @property
    def page(self) -> RecordedPage:
        """The first page, which shows itself in a notebook.

        Raises `OcrPhasesError` for a prompt without an image: `has_page` tells.
        """
        return RecordedPage(**msgspec.structs.asdict(super().page))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.run_overview import run_bundle

        return run_bundle(self)

    @explain_wrong_calls
    def report(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write this measurement's report into a folder.

        Parameters
        ----------
        folder : str or Path
            Where to write; an earlier report there is replaced.
        overwrite : bool, default False
            Also replace files that ocr_phases did not write.

        Returns
        -------
        Path
            The HTML file.

        Raises
        ------
        OcrPhasesError
            Where the folder cannot be written, or has other files in the way.

        Examples
        --------
        >>> run.report("out")  # doctest: +SKIP
        """
        from ocr_phases.report.render import page_report

        return SavedPath(page_report(self, folder, overwrite=overwrite))

    @explain_wrong_calls
    def explore(self, *, others: Sequence[Record] = ()) -> RecordView:
        """A widget of this measurement: page, latency curve, tokens and text, linked.

        Parameters
        ----------
        others : list of Record, optional
            At most five other measurements. Their latency curves are drawn over one another with
            its own; page, tokens and text stay those of this one.

        Returns
        -------
        RecordView
            Its traits `token`, `row`, `sheet`, `selection` and `color` may be set, observed and
            linked; `selected` has the brushed tokens.

        Raises
        ------
        OcrPhasesError
            If there are more than five others, or one is no record.

        Examples
        --------
        >>> view = run.explore()  # doctest: +SKIP
        >>> view.token = 41  # doctest: +SKIP
        >>> eager.explore(others=[captured, compiled])  # doctest: +SKIP
        """
        from ocr_phases.view.widgets import RecordView

        return RecordView(self, others=others)

    @explain_wrong_calls
    def chrome_trace(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the spans of all repeats as a trace that ui.perfetto.dev opens.

        Parameters
        ----------
        path : str or Path
            The JSON file; an earlier trace or record of that name is replaced.
        overwrite : bool, default False
            Also replace a file that ocr_phases did not write.

        Returns
        -------
        Path
            The file that was written.

        Raises
        ------
        CannotWrite
            Where the file cannot be written, and where another one is in the way.

        Examples
        --------
        >>> run.chrome_trace("trace.json")  # doctest: +SKIP
        """
        from ocr_phases.report.result_files import write_chrome_trace

        return SavedPath(write_chrome_trace(self, path, overwrite=overwrite))
