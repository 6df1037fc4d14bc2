"""Writes the tables and pictures of docs/quality.md: ``python -m benchmarks.quality_figures``.

The ``*.csv.gz`` in data/runs/quality are columns of the pages.csv of batches at every preset.
"""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
from PIL import Image

from benchmarks import uncertain_regions
from ocr_phases.analyse.scaling import cost_quality_sentence, preset_points, preset_table
from ocr_phases.files import write_atomic
from ocr_phases.show.plots_many import plot_compression, plot_cost_quality
from ocr_phases.text import ms_text, percent_text

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "data" / "runs" / "quality"
DOCUMENT = ROOT / "docs" / "quality.md"
PICTURES = ROOT / "docs" / "gallery"
HEAD = (
    "preset",
    "time per page",
    "image tokens",
    "compression",
    "edit distance",
    "CER",
    "tables (TEDS)",
    "boxes found",
)


def load(name: str) -> pd.DataFrame:
    """The pages of a set."""
    pages = pd.read_csv(RUNS / f"{name}.csv.gz")
    return pages.assign(page_id=pages["page"], reference=None)  # no two of them share a name


def table_of(pages: pd.DataFrame) -> str:
    """A row a preset in Markdown."""
    rows = [
        [
            row.preset,
            ms_text(row.page_ms),
            f"{row.image_tokens:,.0f}",
            f"{row.compression:.2f}",
            *map(percent_text, (row.edit_distance, row.cer, row.table_similarity, row.box_recall)),
        ]
        for row in preset_table(pages).itertuples()
    ]
    lines = [list(HEAD), ["---"] * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sentence_of(pages: pd.DataFrame) -> str:
    """Cost against quality in one sentence."""
    return f"> {cost_quality_sentence(preset_points(pages))}"


def with_tables(text: str) -> str:
    """``text`` with the tables between their markers."""
    pages = load("generated")
    tables = {
        "generated": f"{table_of(pages)}\n\n{sentence_of(pages)}",
        "browser": sentence_of(load("browser")),
        "uncertain": uncertain_regions.threshold_table(pd.read_csv(uncertain_regions.RESULT)),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the document's tables and the two pictures."""
    write_atomic(DOCUMENT, with_tables(DOCUMENT.read_text(encoding="utf-8")).encode())
    pages = load("generated")
    figures = {
        "cost-quality": plot_cost_quality(preset_points(pages)),
        "compression": plot_compression(pages),
    }
    for name, figure in figures.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, dpi=130)
        picture = Image.open(buffer).convert("RGB").quantize(64)
        picture.save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
