"""What a measurement would need and take at least on GPUs that nobody has at hand.

All follows from a model's config and from the GPUs' datasheets: whether it fits, and the floors of
its prefill, of a token and of a page (`ocr_phases.analyse.floors` says what a floor is). A floor is
no forecast. An eager decode step takes many times its floor, because the GPU waits for the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.cost import (
    VisionCall,
    decode_cost,
    hours_per_1000_pages,
    masked_flops,
    prefill_cost,
    stage_cost,
)
from ocr_phases.analyse.datasheets import Datasheet
from ocr_phases.analyse.floors import Ceilings, sheet_ceilings
from ocr_phases.families import windowed_length
from ocr_phases.text import bytes_text, count_text, digits_text, ms_text

CARD_COLUMNS = (
    "card",
    "memory_bytes",
    "need_bytes",
    "fits",
    "dtype",
    "prefill_floor_ms",
    "token_floor_ms",
    "page_floor_ms",
    "price_per_1000_pages",
)


@dataclass(frozen=True)
class Work:
    """What a measurement computes, as far as its costs depend on it.

    Attributes
    ----------
    config
        The model's ``config.json``.
    views
        The calls of the vision stack for the whole batch (`ocr_phases.analyse.cost.vision_calls`).
    prompt_tokens
        How long the prompt of a row is.
    new_tokens
        How many tokens each row makes, the prefill's among them.
    batch
        How many rows there are.
    pages
        How many pages all rows have.
    window
        How many generated tokens a step sees; None for all.
    logits_for
        ``"last"`` or ``"all"``: the positions of which the prefill makes logits.
    dtype_bytes
        The size of a weight.
    """

    config: Mapping[str, Any]
    views: Sequence[VisionCall]
    prompt_tokens: int
    new_tokens: int
    batch: int = 1
    pages: int = 1
    window: int | None = None
    logits_for: str = "last"
    dtype_bytes: int = 2

    def prefill_floor_ms(self, ceilings: Ceilings) -> float:
        """The least time of the prefill in ms; causal attention counts visible pairs only."""
        cost = self._prefill_costs
        return float(ceilings.floors(cost["flops"], cost["bytes"])[0].sum())

    def step_floors_ms(self, ceilings: Ceilings) -> np.ndarray:
        """The least time of each decode step in ms, float64 [new_tokens - 1]."""
        flops, moved = self._step_costs
        return ceilings.floors(flops, moved)[0].sum(axis=0)

    @cached_property
    def _prefill_costs(self) -> pd.DataFrame:
        """FLOPs and bytes of each stage of the prefill."""
        config = dict(self.config)
        cost = stage_cost(
            prefill_cost(
                config,
                prompt_len=self.prompt_tokens,
                views=self.views,
                batch=self.batch,
                dtype_bytes=self.dtype_bytes,
                logits_for=self.logits_for,
            )
        )
        hidden = masked_flops(config, prompt_len=self.prompt_tokens, batch=self.batch)
        cost.loc[cost["stage"] == "language_model", "flops"] -= hidden
        return cost[cost["flops"] > 0]

    @cached_property
    def _step_costs(self) -> tuple[np.ndarray, np.ndarray]:
        """FLOPs and bytes of each stage of each decode step, each [stages, steps]."""
        lengths = [
            windowed_length(self.prompt_tokens + step, self.prompt_tokens, self.window)
            for step in range(1, self.new_tokens)
        ]
        seen = np.array(lengths, dtype=np.int64)[:, None, None]
        # FLOPs and bytes of each stage are linear in the cache's length.
        with_one = self._costs_of_step(1)
        with_two = self._costs_of_step(2)
        flops, moved = (with_one + (with_two - with_one) * (seen - 1)).T
        return flops, moved

    def _costs_of_step(self, cache_len: int) -> np.ndarray:
        """FLOPs and bytes of each stage of a step at a length of the cache, [stages, 2]."""
        cost = decode_cost(
            dict(self.config),
            cache_len=cache_len,
            batch=self.batch,
            dtype_bytes=self.dtype_bytes,
        )
        return stage_cost(cost)[["flops", "bytes"]].to_numpy()


@dataclass(frozen=True)
class CardChoice:
    """A GPU to be looked at, and what an hour of it costs; None for no price."""

    sheet: Datasheet
    price_per_hour: float | None = None


def card_table(
    work: Work,
    need: pd.DataFrame,
    cards: Sequence[CardChoice],
    *,
    dtype: str | None = None,
    product_dtype: str | None = None,
) -> pd.DataFrame:
    """Whether a measurement fits into each GPU, and how fast it could be there.

    Parameters
    ----------
    work : Work
        What is computed.
    need : DataFrame
        What it needs of the memory, as `ocr_phases.analyse.cost.memory_need` says.
    cards : sequence of CardChoice
        The GPUs.
    dtype : str, optional
        The dtype of the weights; by default bfloat16, and float16 on a GPU without bfloat16.
    product_dtype : str, optional
        The dtype that matrix products run in, by default that of the weights. Autocast makes it
        bfloat16.

    Returns
    -------
    DataFrame
        A row for each GPU, columns `CARD_COLUMNS`. ``memory_bytes`` is what a program can use of
        the GPU's memory, ``need_bytes`` the larger peak of the two phases. The floors are in ms:
        of the prefill, of the last token's step, and of a page with all its tokens.
        ``price_per_1000_pages`` is what 1,000 pages cost at the least, where the GPU has a price.
        Floors are missing where the GPU has no rate for the dtype.
    """
    peak = int(need["peak_bytes"].max())
    rows = []
    for card in cards:
        sheet = card.sheet
        weights = dtype or sheet.dtype
        ceilings = sheet_ceilings(sheet, product_dtype or weights)
        row = dict.fromkeys(CARD_COLUMNS)
        row["card"] = sheet.name
        row["memory_bytes"] = sheet.usable_bytes
        row["need_bytes"] = peak
        row["fits"] = peak <= sheet.usable_bytes
        row["dtype"] = weights
        if ceilings is not None:
            prefill = work.prefill_floor_ms(ceilings)
            steps = work.step_floors_ms(ceilings)
            row["prefill_floor_ms"] = prefill
            row["token_floor_ms"] = float(steps[-1]) if len(steps) else None
            row["page_floor_ms"] = (prefill + float(steps.sum())) / work.pages
        if card.price_per_hour is not None and row["page_floor_ms"] is not None:
            hours = hours_per_1000_pages(row["page_floor_ms"])
            row["price_per_1000_pages"] = card.price_per_hour * hours
        rows.append(row)
    table = pd.DataFrame(rows, columns=list(CARD_COLUMNS))
    floors = [name for name in CARD_COLUMNS if name.endswith("_ms") or name.startswith("price")]
    return table.astype(dict.fromkeys(floors, "float64"))


def card_sentence(row: pd.Series, new_tokens: int) -> str:
    """One row of `card_table` in words; a page has so many new tokens."""
    fits = "it fits" if row["fits"] else "it does not fit"
    text = f"The {row['card']} has {bytes_text(row['memory_bytes'])} for a program: {fits}."
    if pd.isna(row["prefill_floor_ms"]):
        return f"{text} It has no matrix products in {row['dtype']}, so there is no floor."
    text += f" Its floors: prefill {ms_text(row['prefill_floor_ms'])}"
    if not pd.isna(row["token_floor_ms"]):
        text += f", the last token {ms_text(row['token_floor_ms'])}"
    text += f", a page of {count_text(new_tokens, 'token')} {ms_text(row['page_floor_ms'])}"
    if not pd.isna(row["price_per_1000_pages"]):
        text += f", 1,000 pages cost at least {digits_text(row['price_per_1000_pages'])}"
    return f"{text}."


def fitting_sentence(table: pd.DataFrame) -> str:
    """How many GPUs of `card_table` the measurement fits into, in words."""
    fitting = int(table["fits"].sum())
    if fitting == len(table):
        return f"It fits into all {len(table)} cards."
    if fitting == 0:
        return f"It fits into none of the {len(table)} cards."
    without = ", ".join(table.loc[~table["fits"].astype(bool), "card"])
    return f"It fits into {fitting} of {len(table)} cards, not into {without}."
