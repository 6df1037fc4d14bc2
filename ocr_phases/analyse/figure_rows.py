"""Every figure as one row: its name, heading and unit, whether more is better, and what shows it.

`ocr_phases.analyse.figures.summary` computes most of the figures, `ocr_phases.analyse.quality` the
measures of a text, and `ocr_phases.analyse.sweep_table` those of a whole cell. Whatever shows a
figure finds it here: cards, comparisons, sweeps, the index of a batch, and the explorer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

#: The unit of a share of one, which is shown in per cent.
SHARE = "share"


class Place(Enum):
    """Where figures are shown, each place in an order of its own."""

    #: The cards of a report and the lines of ``profile``; the first four are on the first screen.
    CARD = auto()
    #: The metrics of a comparison.
    COMPARE = auto()
    #: Those of them that are left out unless they are judged or asked for.
    COMPARE_ANSWER = auto()
    #: The columns of a sweep's table, which is also in the JSON of ``sweep``.
    SWEEP = auto()
    #: The table of a sweep's cells, phase by phase, in a report and in a notebook.
    SWEEP_STEPS = auto()
    #: The table of a sweep's cells from the page's file to the last token, and memory.
    SWEEP_PAGES = auto()
    #: More columns of that table, each where any cell has a value above zero.
    SWEEP_COSTS = auto()
    #: What ``sweep`` prints of each cell.
    SWEEP_VERB = auto()
    #: What a sweep prints of each cell in a terminal.
    SWEEP_TEXT = auto()
    #: The columns of a batch's ``pages.csv``.
    PAGES = auto()
    #: The table of pages in the index of a batch.
    INDEX = auto()
    #: The explorer's table of records.
    EXPLORER = auto()


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    """One figure.

    ``heading`` is what a column of it is called and ``unit`` what it is measured in; a unit that is
    the heading itself is not repeated. ``places`` has where it is shown, with its rank there: a
    smaller one comes first. ``phase`` is the phase that it belongs to, empty for a figure of the
    whole run.

    ``is_exact`` says that it follows from the tokens and from no clock: two records have the same
    of it, more or less, without an interval.

    ``card`` is its name on a card, ``metric`` its name in a picture of a comparison, where the
    heading says too little, ``words`` its name in a sentence, and ``page_column`` its column in
    ``pages.csv``, where that has another name.
    """

    name: str
    heading: str
    unit: str = ""
    higher_is_better: bool = False
    is_exact: bool = False
    phase: str = ""
    card: str = ""
    metric: str = ""
    words: str = ""
    page_column: str = ""
    places: Mapping[Place, int] = field(default_factory=dict)


FIGURES = (
    # The phases.
    FigureRow(
        name="prepare_ms",
        heading="prepare",
        unit="ms",
        phase="prepare",
        places={Place.COMPARE: 10},
    ),
    FigureRow(
        name="prefill_ms",
        heading="prefill",
        unit="ms",
        phase="prefill",
        card="Prefill",
        words="the prefill",
        places={
            Place.CARD: 90,
            Place.COMPARE: 20,
            Place.SWEEP: 10,
            Place.SWEEP_VERB: 20,
            Place.SWEEP_TEXT: 20,
            Place.PAGES: 20,
            Place.EXPLORER: 10,
            Place.SWEEP_STEPS: 30,
        },
    ),
    FigureRow(
        name="decode_ms",
        heading="decode",
        unit="ms",
        phase="decode",
        card="Decode",
        places={Place.CARD: 110, Place.COMPARE: 50, Place.SWEEP: 70, Place.PAGES: 40},
    ),
    FigureRow(
        name="generate_ms",
        heading="generate",
        unit="ms",
        phase="generate",
        card="generate()",
        words="generate()",
        places={Place.CARD: 10, Place.COMPARE: 60},
    ),
    # The whole page and its first token.
    FigureRow(
        name="page_ms",
        heading="page",
        unit="ms",
        words="the whole answer",
        places={
            Place.COMPARE: 102,
            Place.COMPARE_ANSWER: 20,
            Place.SWEEP: 80,
            Place.SWEEP_VERB: 60,
            Place.PAGES: 50,
            Place.INDEX: 10,
            Place.SWEEP_PAGES: 10,
        },
    ),
    FigureRow(
        name="page_ms_p90",
        heading="p90",
        unit="ms",
        places={Place.SWEEP: 90, Place.SWEEP_PAGES: 20},
    ),
    FigureRow(
        name="page_ms_p99",
        heading="p99",
        unit="ms",
        places={Place.SWEEP: 100, Place.SWEEP_PAGES: 30},
    ),
    FigureRow(
        name="pages_per_min",
        heading="pages/min",
        unit="pages/min",
        higher_is_better=True,
        places={Place.SWEEP: 110, Place.SWEEP_VERB: 70, Place.SWEEP_PAGES: 40},
    ),
    FigureRow(
        name="ttft_ms",
        heading="first token",
        unit="ms",
        card="Time to first token",
        metric="time to first token",
        words="the wait for the first token",
        places={
            Place.CARD: 20,
            Place.COMPARE: 30,
            Place.SWEEP: 40,
            Place.PAGES: 10,
            Place.INDEX: 20,
        },
    ),
    FigureRow(
        name="ntpot_ms",
        heading="ntpot",
        unit="ms",
        card="Normalized time per output token",
        words="the mean time per token over the whole answer",
        places={Place.CARD: 40, Place.COMPARE: 101, Place.COMPARE_ANSWER: 10},
    ),
    # Stages of the prefill.
    FigureRow(
        name="vision_ms",
        heading="vision",
        unit="ms",
        phase="prefill",
        places={Place.COMPARE: 40, Place.SWEEP: 20},
    ),
    FigureRow(
        name="vision_share",
        heading="vision",
        unit=SHARE,
        card="Vision share",
        places={
            Place.CARD: 100,
            Place.SWEEP: 30,
            Place.SWEEP_VERB: 30,
            Place.SWEEP_TEXT: 30,
            Place.PAGES: 70,
            Place.INDEX: 50,
            Place.SWEEP_STEPS: 40,
        },
    ),
    FigureRow(name="sam_ms", heading="sam", unit="ms", phase="prefill"),
    FigureRow(name="clip_ms", heading="clip", unit="ms", phase="prefill"),
    FigureRow(name="encoder_ms", heading="encoder", unit="ms", phase="prefill"),
    FigureRow(name="projector_ms", heading="projector", unit="ms", phase="prefill"),
    FigureRow(name="vision_fusion_ms", heading="vision fusion", unit="ms", phase="prefill"),
    FigureRow(
        name="prefill_language_model_ms",
        heading="prefill language model",
        unit="ms",
        phase="prefill",
    ),
    FigureRow(name="stage_coverage", heading="stage coverage", unit=SHARE),
    FigureRow(
        name="prefill_floor_ms", heading="prefill floor", unit="ms", places={Place.SWEEP: 120}
    ),
    # Decode.
    FigureRow(
        name="inter_token_ms",
        heading="step",
        unit="ms",
        phase="decode",
        card="Inter-token latency",
        metric="decode step, median",
        words="a decode step",
        places={
            Place.CARD: 30,
            Place.COMPARE: 70,
            Place.SWEEP: 50,
            Place.SWEEP_VERB: 40,
            Place.SWEEP_TEXT: 40,
            Place.PAGES: 30,
            Place.INDEX: 30,
            Place.EXPLORER: 20,
            Place.SWEEP_STEPS: 50,
        },
    ),
    FigureRow(
        name="inter_token_ms_p90",
        heading="step, p90",
        unit="ms",
        phase="decode",
        metric="decode step, p90",
        places={Place.COMPARE: 80, Place.SWEEP: 60},
    ),
    FigureRow(
        name="inter_token_ms_p99",
        heading="step, p99",
        unit="ms",
        phase="decode",
        metric="decode step, p99",
        places={Place.COMPARE: 90},
    ),
    FigureRow(name="step_floor_ms", heading="step floor", unit="ms", places={Place.SWEEP: 130}),
    FigureRow(name="times_floor", heading="time / floor", places={Place.SWEEP_STEPS: 60}),
    FigureRow(name="decode_steps", heading="decode steps"),
    FigureRow(
        name="tokens_per_s",
        heading="tokens/s",
        unit="tokens/s",
        higher_is_better=True,
        phase="decode",
        card="Tokens per second",
        places={
            Place.CARD: 50,
            Place.COMPARE: 110,
            Place.SWEEP: 140,
            Place.SWEEP_VERB: 50,
            Place.SWEEP_TEXT: 50,
            Place.EXPLORER: 30,
            Place.SWEEP_STEPS: 70,
        },
    ),
    # Tokens and text.
    FigureRow(
        name="tokens",
        heading="tokens",
        places={Place.PAGES: 60, Place.INDEX: 40, Place.SWEEP_STEPS: 20},
    ),
    FigureRow(
        name="prefill_len",
        heading="prompt",
        page_column="prompt_tokens",
        places={Place.SWEEP_VERB: 10, Place.SWEEP_TEXT: 10, Place.PAGES: 80, Place.SWEEP_STEPS: 10},
    ),
    FigureRow(name="text", heading="begins with"),
    FigureRow(name="text_tokens", heading="text tokens"),
    FigureRow(
        name="valid_image_tokens",
        heading="valid image tokens",
        page_column="image_tokens",
        places={Place.PAGES: 90},
    ),
    FigureRow(
        name="generated_compression_ratio",
        heading="generated compression ratio",
        page_column="compression",
        places={Place.PAGES: 140},
    ),
    FigureRow(
        name="compression_ratio",
        heading="compression ratio",
        page_column="vendor_compression",
        places={Place.PAGES: 150},
    ),
    # Memory.
    FigureRow(
        name="prefill_peak_bytes", heading="prefill peak memory", unit="bytes", phase="prefill"
    ),
    FigureRow(name="decode_peak_bytes", heading="decode peak memory", unit="bytes", phase="decode"),
    FigureRow(
        name="peak_bytes",
        heading="peak memory",
        unit="bytes",
        card="Peak memory",
        places={Place.CARD: 60, Place.SWEEP: 160, Place.PAGES: 100, Place.SWEEP_PAGES: 60},
    ),
    FigureRow(
        name="kv_cache_bytes",
        heading="KV cache",
        unit="bytes",
        is_exact=True,
        card="KV cache",
        places={Place.CARD: 120, Place.COMPARE: 120, Place.SWEEP: 150, Place.SWEEP_PAGES: 50},
    ),
    # What pages cost.
    FigureRow(
        name="pages_per_hour",
        heading="pages/h",
        unit="pages/h",
        higher_is_better=True,
        card="Pages per hour",
        places={Place.CARD: 70},
    ),
    FigureRow(
        name="price_per_1000_pages",
        heading="1,000 pages",
        unit="price",
        card="Price of 1,000 pages",
        places={
            Place.CARD: 80,
            Place.SWEEP: 190,
            Place.SWEEP_VERB: 80,
            Place.PAGES: 130,
            Place.INDEX: 70,
            Place.SWEEP_COSTS: 30,
        },
    ),
    FigureRow(
        name="energy_j",
        heading="energy",
        unit="J",
        card="Energy",
        places={
            Place.CARD: 130,
            Place.COMPARE: 130,
            Place.SWEEP: 170,
            Place.PAGES: 110,
            Place.INDEX: 60,
            Place.EXPLORER: 50,
            Place.SWEEP_COSTS: 10,
        },
    ),
    FigureRow(
        name="wh_per_1000_pages",
        heading="1,000 pages",
        unit="Wh",
        places={Place.SWEEP: 180, Place.PAGES: 120, Place.SWEEP_COSTS: 20},
    ),
    FigureRow(name="thousand_tokens_j", heading="1,000 tokens", unit="J"),
    FigureRow(name="idle_energy_share", heading="idle share of energy", unit=SHARE),
    # Measures of the text.
    FigureRow(
        name="edit_distance",
        heading="edit distance",
        unit=SHARE,
        places={Place.SWEEP: 210, Place.SWEEP_VERB: 90, Place.PAGES: 160},
    ),
    FigureRow(
        name="cer",
        heading="CER",
        unit=SHARE,
        card="Character error rate",
        places={
            Place.CARD: 140,
            Place.SWEEP: 211,
            Place.SWEEP_VERB: 100,
            Place.PAGES: 170,
            Place.EXPLORER: 40,
        },
    ),
    FigureRow(name="wer", heading="wer", unit=SHARE),
    FigureRow(
        name="table_similarity",
        heading="tables (TEDS)",
        unit=SHARE,
        higher_is_better=True,
        places={Place.PAGES: 180},
    ),
    FigureRow(
        name="box_recall",
        heading="boxes found",
        unit=SHARE,
        higher_is_better=True,
        places={Place.PAGES: 190},
    ),
    FigureRow(name="box_iou", heading="box iou", unit=SHARE, higher_is_better=True),
    FigureRow(name="order_distance", heading="order distance", unit=SHARE),
    FigureRow(name="repetition", heading="repeated", unit=SHARE, places={Place.PAGES: 200}),
    FigureRow(
        name="repeated_share",
        heading="repeated share",
        unit=SHARE,
        places={Place.SWEEP: 200, Place.PAGES: 210, Place.INDEX: 80, Place.SWEEP_COSTS: 40},
    ),
    FigureRow(
        name="agreement",
        heading="agreement",
        unit=SHARE,
        higher_is_better=True,
        card="Agreement",
        metric="agreement with the baseline's text",
        places={Place.CARD: 150, Place.SWEEP: 220, Place.PAGES: 220},
    ),
    FigureRow(name="table_agreement", heading="table agreement", unit=SHARE, higher_is_better=True),
    FigureRow(name="box_agreement", heading="box agreement", unit=SHARE, higher_is_better=True),
)

#: The rows by the names of their figures.
FIGURE_ROWS = {row.name: row for row in FIGURES}

#: The names of the figures of which more is better; of all others less is.
HIGHER_IS_BETTER = frozenset(row.name for row in FIGURES if row.higher_is_better)

#: The names of the figures that follow from no clock.
EXACT = frozenset(row.name for row in FIGURES if row.is_exact)


def figures_in(place: Place) -> list[FigureRow]:
    """The rows of the figures that a place shows, in the order in which it shows them."""
    shown = [row for row in FIGURES if place in row.places]
    return sorted(shown, key=lambda row: row.places[place])


def names_in(place: Place) -> list[str]:
    """The names of the figures that a place shows, in the order in which it shows them."""
    return [row.name for row in figures_in(place)]
