"""Writes the sentences and pictures of docs/quality.md: ``python -m benchmarks.quality_figures``.

The ``*.csv.gz`` in data/runs/quality are columns of the pages.csv of batches at every preset.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks import uncertain_regions
from benchmarks.documents import rewrite
from benchmarks.gallery import drawn, save
from ocr_phases.analyse.cost_quality import cost_quality_sentence, preset_points
from ocr_phases.show.quality_plots import plot_compression, plot_cost_quality

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "data" / "runs" / "quality"
DOCUMENT = ROOT / "docs" / "quality.md"


def load(name: str) -> pd.DataFrame:
    """The pages of a set."""
    pages = pd.read_csv(RUNS / f"{name}.csv.gz")
    return pages.assign(page_id=pages["page"], reference=None)  # no two of them share a name


def tables() -> dict[str, str]:
    """The document's sentences by their marks."""
    sets = {
        name: cost_quality_sentence(preset_points(load(name))) for name in ("generated", "browser")
    }
    uncertain = uncertain_regions.found(pd.read_csv(uncertain_regions.RESULT))
    return {**{name: f"> {sentence}" for name, sentence in sets.items()}, "uncertain": uncertain}


if __name__ == "__main__":
    rewrite(DOCUMENT, tables())
    generated = load("generated")
    drawings = {
        "cost-quality": plot_cost_quality(preset_points(generated)),
        "compression": plot_compression(generated),
    }
    for file, figure in drawings.items():
        save(f"gallery/{file}", drawn(figure, dpi=130))
