"""Writes the tables and pictures of docs/quality.md: ``python -m benchmarks.quality_figures``.

The ``*.csv.gz`` in data/runs/quality are columns of the pages.csv of batches at every preset.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks import uncertain_regions
from benchmarks.documents import markdown, rewrite, with_parts
from benchmarks.gallery import drawn
from ocr_phases.analyse.scaling import cost_quality_sentence, preset_points, preset_table
from ocr_phases.show.plots_many import plot_compression, plot_cost_quality
from ocr_phases.text import ms_text, percent_text

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "data" / "runs" / "quality"
DOCUMENT = ROOT / "docs" / "quality.md"
SHARES = {
    "edit distance": "edit_distance",
    "CER": "cer",
    "tables (TEDS)": "table_similarity",
    "boxes found": "box_recall",
}


def load(name: str) -> pd.DataFrame:
    """The pages of a set."""
    pages = pd.read_csv(RUNS / f"{name}.csv.gz")
    return pages.assign(page_id=pages["page"], reference=None)  # no two of them share a name


def table_of(pages: pd.DataFrame) -> str:
    """A row a preset in Markdown."""
    rows = []
    for row in preset_table(pages).itertuples():
        cost = (ms_text(row.page_ms), f"{row.image_tokens:,.0f}", f"{row.compression:.2f}")
        rows.append((row.preset, *cost, *(percent_text(getattr(row, name)) for name in SHARES.values())))
    return markdown(("preset", "time per page", "image tokens", "compression", *SHARES), rows)


def sentence_of(pages: pd.DataFrame) -> str:
    """Cost against quality in one sentence."""
    return f"> {cost_quality_sentence(preset_points(pages))}"


def tables() -> dict[str, str]:
    """The document's tables and sentences by their marks."""
    pages = load("generated")
    return {
        "generated": f"{table_of(pages)}\n\n{sentence_of(pages)}",
        "browser": sentence_of(load("browser")),
        "uncertain": uncertain_regions.threshold_table(pd.read_csv(uncertain_regions.RESULT)),
    }


def with_tables(text: str) -> str:
    """``text`` with the tables between their marks."""
    return with_parts(text, tables())


if __name__ == "__main__":
    rewrite(DOCUMENT, tables())
    generated = load("generated")
    drawings = {
        "cost-quality": plot_cost_quality(preset_points(generated)),
        "compression": plot_compression(generated),
    }
    for file, figure in drawings.items():
        drawn(figure, dpi=130).quantize(64).save(ROOT / "docs" / "gallery" / f"{file}.png", optimize=True)
