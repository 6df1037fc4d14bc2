"""A comparison as it shows itself: its HTML and text, and its plots."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.comparison import Comparison, in_units
from ocr_phases.errors import public
from ocr_phases.show import compare as drawing
from ocr_phases.show import html
from ocr_phases.show.blocks import fold, fragment, preformatted
from ocr_phases.show.faces import Bundle, bundle


def comparison_bundle(comparison: Comparison) -> Bundle:
    """What a notebook shows of a comparison."""
    baseline = comparison.labels[0]
    parts = [
        html.header_html(comparison.runs[0], comparison.title, lead=comparison.verdict),
        drawing.compare_html(comparison.headline, baseline),
        drawing.environment_html(comparison.differs),
    ]
    if comparison.text_diff:
        parts.append(fold("How the text differs", preformatted(comparison.text_diff)))
    readable = in_units(comparison.headline, baseline)
    table = readable.to_string(index=False, float_format="{:,.3f}".format, na_rep="")
    return bundle(fragment(*parts), f"{comparison.verdict}\n{table}")


@public
class ComparePlots:
    """The plots of a comparison: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def stages(self, *, share: bool = False, ax: Axes | None = None) -> Figure:
        """Each record's prefill, stage by stage: `ocr_phases.show.runs.plot_prefill_stages`."""
        comparison = self._comparison
        return drawing.plot_prefill_stages(comparison.runs, comparison.labels, share=share, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of each decode step over the cache: `ocr_phases.show.compare.plot_decode`."""
        return drawing.plot_decode(self._comparison.runs, self._comparison.labels, ax=ax)

    def ratios(self, *, ax: Axes | None = None) -> Figure:
        """Ratio of each figure to the baseline's: `ocr_phases.show.compare.plot_ratios`."""
        return drawing.plot_ratios(self._comparison.headline, ax=ax)
