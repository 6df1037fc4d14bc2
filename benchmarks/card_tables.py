"""Writes the tables of docs/cards.md from the datasheets: ``python -m benchmarks.card_tables``.

`tests/test_other_cards.py` fails where the page differs from what this makes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.documents import markdown, rewrite
from ocr_phases.analyse.datasheets import DATASHEETS, Datasheet
from ocr_phases.analyse.other_cards import CardChoice
from ocr_phases.families import FAMILIES, FamilyFacts
from ocr_phases.measure.memory_fit import MemoryFit, fit_cards
from ocr_phases.settings import Settings
from ocr_phases.text import bytes_text, digits_text

PAGE = Path(__file__).parents[1] / "docs" / "cards.md"
NEW_TOKENS = 512
CARDS = [CardChoice(sheet) for sheet in DATASHEETS]


def card_rows() -> list[tuple[str, ...]]:
    """What the table of cards says of each."""
    rows = []
    for sheet in DATASHEETS:
        rates = (sheet.float16, sheet.bfloat16, sheet.tf32, sheet.float32)
        shown = ["none" if rate is None else f"{rate:,.4g}" for rate in rates]
        rows.append(
            (sheet.name, f"{sheet.memory} GB", f"{sheet.bandwidth:,} GB/s", *shown, sheet.source)
        )
    return rows


@cache
def planned(family: str, preset: str, batch: int = 1) -> MemoryFit:
    """An A4 page in a family's preset, on all cards."""
    settings = Settings(model=f"dummy:{family}", preset=preset, max_new_tokens=NEW_TOKENS)
    # Floors are shown of one row only.
    return fit_cards(None, settings, CARDS if batch == 1 else CARDS[:1], batch=batch)


def need_rows() -> list[tuple[str, ...]]:
    """What each family needs in each preset, and the KV cache of a row."""
    rows = []
    for family in FAMILIES.values():
        for preset in family.presets:
            one = planned(family.name, preset).need
            many = planned(family.name, preset, 16).need
            cells = [bytes_text(table["peak_bytes"].max()) for table in (one, many)]
            cache_bytes = bytes_text(one["kv_bytes"].max())
            rows.append((family.title, preset, *cells, cache_bytes))
    return rows


def largest_batch(family: str, preset: str, sheet: Datasheet) -> int:
    """How many rows of a page fit into a card: what a phase needs grows by the same for each."""
    one = planned(family, preset).need["peak_bytes"].to_numpy()
    two = planned(family, preset, 2).need["peak_bytes"].to_numpy()
    room = sheet.usable_bytes - one
    return max(0, int(np.floor(1 + (room / (two - one)).min())))


def floor_rows(family: FamilyFacts) -> list[tuple[str, ...]]:
    """The floors of a page on each card, a column for each preset, and the largest batch."""
    rows = []
    last = [*family.presets][-1]
    for number, sheet in enumerate(DATASHEETS):
        cells = []
        for preset in family.presets:
            table = planned(family.name, preset).cards
            assert table is not None
            floors = table.iloc[number]
            prefill = digits_text(floors["prefill_floor_ms"])
            cells.append(f"{prefill} / {digits_text(floors['page_floor_ms'])}")
        token = digits_text(floors["token_floor_ms"])
        rows.append((sheet.name, token, *cells, f"{largest_batch(family.name, last, sheet):,}"))
    return rows


def tables() -> dict[str, str]:
    """The page's tables in Markdown, by the name of their marks."""
    rates = ("float16", "bfloat16", "TF32", "float32")
    head = ("family", "preset", "memory for one page", "memory for 16 pages", "KV cache per page")
    parts = {
        "cards": markdown(("card", "memory", "bandwidth", *rates, "source"), card_rows()),
        "needs": markdown(head, need_rows()),
    }
    for family in FAMILIES.values():
        largest = f"largest batch at {[*family.presets][-1]}, pages"
        columns = ("card", "token, ms", *family.presets, largest)
        parts[family.name] = markdown(columns, floor_rows(family))
    return parts


if __name__ == "__main__":
    rewrite(PAGE, tables())
