"""`compare`: two or more records side by side, as a result that shows itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.compare import MARGIN, Compared, in_units
from ocr_phases.errors import checked, hinted, public
from ocr_phases.record import PhaseRun
from ocr_phases.show import compare as drawing
from ocr_phases.show import html
from ocr_phases.show.blocks import fold, fragment, preformatted
from ocr_phases.show.faces import Bundle, bundle


@checked()
def compare(
    *runs: PhaseRun | str | Path, labels: Sequence[str] | None = None, margin: float = MARGIN
) -> Comparison:
    """Compare each record, or file of a record, with the first: changes, their intervals and verdicts.

    ``labels`` name the records, by default `ocr_phases.analyse.environments.run_labels`; ``margin`` is per
    cent within which two are equivalent. Raises `OcrPhasesError` for fewer than two records, labels
    that are not one a record, and a margin that is no percentage.
    """
    records = [run if isinstance(run, PhaseRun) else PhaseRun.load(run) for run in runs]
    comparison = Comparison(records, labels, margin=margin)
    _ = comparison.table  # what cannot be compared is refused here, not where it is shown
    return comparison


@hinted
class Comparison(Compared):
    """What `compare` gives: ``verdict``, ``table``, ``headline``, ``differs``, ``text_diff`` and ``plot``."""

    @property
    def plot(self) -> ComparePlots:
        """The plots of this comparison."""
        return ComparePlots(self)

    @property
    def title(self) -> str:
        """The labels compared."""
        return f"{' and '.join(self.labels[1:])} against {self.labels[0]}"

    def _repr_mimebundle_(self, **_: Any) -> Bundle:
        parts = [
            html.header_html(self.runs[0], self.title, lead=self.verdict),
            drawing.compare_html(self.headline),
            drawing.environment_html(self.differs),
        ]
        if self.text_diff:
            parts.append(fold("How the text differs", preformatted(self.text_diff)))
        table = in_units(self.headline).to_string(index=False, float_format="{:,.3f}".format, na_rep="")
        return bundle(fragment(*parts), f"{self.verdict}\n{table}")


@public
class ComparePlots:
    """The plots of a comparison: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, compared: Compared) -> None:
        self._compared = compared

    def stages(self, *, share: bool = False, ax: Axes | None = None) -> Figure:
        """Each record's prefill, stage by stage: `ocr_phases.show.runs.plot_prefill_stages`."""
        compared = self._compared
        return drawing.plot_prefill_stages(compared.runs, compared.labels, share=share, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of each decode step over the cache: `ocr_phases.show.compare.plot_decode`."""
        return drawing.plot_decode(self._compared.runs, self._compared.labels, ax=ax)

    def ratios(self, *, ax: Axes | None = None) -> Figure:
        """Ratio of each figure to the base, with its interval: `ocr_phases.show.compare.plot_ratios`."""
        return drawing.plot_ratios(self._compared.headline, ax=ax)
