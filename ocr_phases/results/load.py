"""LoadResult: what a server did under load, by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.analyse.load import AskedPage, asked_table, knee_of, load_table, load_verdict
from ocr_phases.errors import Hinted, explain_wrong_calls
from ocr_phases.files import write_into
from ocr_phases.results.plots import Plots
from ocr_phases.results.tables import Table
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class LoadPlots(Plots):
    """The plots of a load. Each is a matplotlib figure, drawn on ``ax`` if that is given."""

    def __init__(self, load: LoadResult) -> None:
        self._load = load

    def throughput(self, *, ax: Axes | None = None) -> Figure:
        """Time to first token and inter-token latency in ms over pages per minute, by level.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on.

        Examples
        --------
        >>> result.plot.throughput()  # doctest: +SKIP
        """
        from ocr_phases.show.load_overview import plot_load_throughput

        return plot_load_throughput(self._load.table, ax=ax)

    def stalls(self, *, ax: Axes | None = None) -> Figure:
        """The times between the tokens of the page that waited longest for one.

        Behind them stands when other pages were waiting for their first token.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on.

        Examples
        --------
        >>> result.plot.stalls()  # doctest: +SKIP
        """
        from ocr_phases.show.load_overview import plot_load_stalls

        return plot_load_stalls(self._load.asked, ax=ax)


class LoadResult(Hinted):
    """What a server did at each level of a load; a cell of a notebook shows it.

    ``table`` has a row per level, ``verdict`` is the result in words, ``knee`` is the level after
    which more pages at once brought little, ``asked`` has every page that was asked for, and
    ``plot`` has its plots.

    Parameters
    ----------
    server : str
        The server's address.
    pages : sequence of AskedPage
        Every page that was asked for.
    price_per_hour : float, optional
        Price of an hour of the server's machine.
    slo : mapping of str to float, optional
        The objective that a page has to meet, in ms: `ocr_phases.analyse.load.read_slo`.
    engine : str, optional
        The server's engine with its version.
    model : str, optional
        The served model's name.
    page : str, optional
        What was read: the name of the page, or of the first one and how many more there were.
    created : str, optional
        When the load ended, as ISO 8601; by default now.
    """

    def __init__(
        self,
        server: str,
        pages: Sequence[AskedPage],
        price_per_hour: float | None = None,
        *,
        slo: Mapping[str, float] | None = None,
        engine: str = "",
        model: str = "",
        page: str = "",
        created: str = "",
    ) -> None:
        self.server = server
        self.price_per_hour = price_per_hour
        self.slo = dict(slo or {})
        self.engine = engine
        self.model = model
        self.page = page
        self.created = created or datetime.now(UTC).isoformat(timespec="seconds")
        self.pages = list(pages)

    @cached_property
    def asked(self) -> Table:
        """One row per page that was asked for: `ocr_phases.analyse.load.asked_table`."""
        return Table(asked_table(self.pages))

    @cached_property
    def table(self) -> Table:
        """One row per level, ``4 at once`` or ``30/min``: `ocr_phases.analyse.load.load_table`."""
        return Table(load_table(self.asked, self.price_per_hour, self.slo))

    @property
    def knee(self) -> str:
        """The level after which asking for more pages at once brought little; empty without one.

        It is the last level that brought at least a tenth more pages per minute than any lower one,
        and only where a higher level was tried and brought less than that.
        """
        return knee_of(self.table)

    @property
    def verdict(self) -> str:
        """The knee, or why there is none, in one sentence; the best goodput, where an objective was
        given; and how many requests failed.
        """
        return load_verdict(self.table)

    @property
    def plot(self) -> LoadPlots:
        """The plots of this load, such as ``result.plot.throughput()``."""
        return LoadPlots(self)

    @explain_wrong_calls
    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``load.html`` and ``load.json``, which is `asked`.

        Parameters
        ----------
        folder : str or Path
            The folder for both files; it is made where it is missing.
        overwrite : bool, default False
            Also overwrite existing files that ocr_phases did not create.

        Returns
        -------
        Path
            The path of ``load.html``.

        Raises
        ------
        CannotWrite
            Where other files are in the way, unless ``overwrite``.

        Examples
        --------
        >>> result.save("load")  # doctest: +SKIP
        """
        from ocr_phases.show.load_overview import load_document

        files = {
            "load.html": load_document(
                self.server,
                self.table,
                self.asked,
                engine=self.engine,
                model=self.model,
                page=self.page,
                created=self.created,
                slo=self.slo,
            ).encode(),
            "load.json": self.asked.to_json(orient="records").encode(),
        }
        return write_into(Path(folder), files, overwrite=overwrite)[0]

    def __repr__(self) -> str:
        return f"<LoadResult of {self.server}: {count_text(len(self.table), 'level')}>"

    def __str__(self) -> str:
        from ocr_phases.show.load_overview import load_text

        return load_text(self.table)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.load_overview import load_bundle

        return load_bundle(self.server, self.table, self.asked)
