"""What each region of a record's output cost to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import PREAMBLE, Grounding
from ocr_phases.analyse.stages import cached, grounding_of, text_tokens, tokens_of
from ocr_phases.record import Record

TYPE_COLUMNS = ("label", "regions", "tokens", "characters", "decode_ms", "ms_per_char", "share")
REGION_COLUMNS = ("region", "label", "boxes", "repaired", *TYPE_COLUMNS[2:], "text")
#: A region is uncertain where the mean probability of its text's tokens is below this
#: (docs/quality.md).
UNCERTAIN_BELOW = 0.9

_COUNTS = dict.fromkeys(["region", "boxes", "tokens", "characters"], "int64")


def region_table(grounding: Grounding, token_table: pd.DataFrame) -> pd.DataFrame:
    """What each region cost to write: one row a region, and a first row `preamble` when it holds
    tokens.

    `token_table` has a row a token with `region` (see `token_regions`), `text` and `device_ms`, NaN
    for the token that came from the prefill. `decode_ms` is the sum over a region's tokens, markup
    included, so the column sums to the sum of `device_ms` (to the last bit for the token table of a
    record, whose times lie on a grid that sums exactly); `share` is the part of that sum (NaN when
    it is 0). `characters` counts the stripped content, and `ms_per_char` is NaN where there is
    none. Where the output marks several pages, a column ``page`` says which one of the prompt a
    region is on.
    """
    regions = token_table["region"]
    rows: list[dict[str, Any]] = []
    before = token_table.loc[regions == PREAMBLE, "text"]
    if len(before):
        rows.append(
            {
                "region": PREAMBLE,
                "page": pd.NA,
                "label": "preamble",
                "boxes": 0,
                "repaired": False,
                "text": "".join(before).strip(),
            }
        )
    for region in grounding.regions:
        rows.append(
            {
                "region": region.index,
                "page": region.page,
                "label": region.label,
                "boxes": len(region.boxes),
                "repaired": region.repaired,
                "text": region.text,
            }
        )
    # Objects: what a model wrote need not be text that pyarrow, where pandas has it, would take.
    columns = ["region", "page", "label", "boxes", "repaired", "text"]
    table = pd.DataFrame(rows, columns=columns, dtype=object)
    cost = token_table["device_ms"].astype("float64").groupby(regions)
    table["tokens"] = table["region"].map(cost.size()).fillna(0)
    table["characters"] = table["text"].map(len)
    table["decode_ms"] = table["region"].map(cost.sum()).fillna(0.0)
    table = table.astype({"decode_ms": "float64", "page": "Int64", "repaired": "bool"} | _COUNTS)
    table["ms_per_char"] = table["decode_ms"] / table["characters"].replace(0, np.nan)
    total_ms = table["decode_ms"].sum()
    table["share"] = table["decode_ms"] / (total_ms if total_ms > 0 else np.nan)
    if len(grounding.page_starts) > 1:
        return table[["region", "page", *REGION_COLUMNS[1:]]]
    return table[list(REGION_COLUMNS)]


def type_table(table: pd.DataFrame) -> pd.DataFrame:
    """`region_table`'s rows added up by type of region (label), the costliest first; columns
    `TYPE_COLUMNS`.

    `ms_per_char` is over the characters of all regions of the type, markup's time included; NaN
    where there are none. The preamble, where there is one, is a type of its own.
    """
    added = ["regions", "tokens", "characters", "decode_ms", "share"]
    of_label = table.assign(regions=1).groupby("label", sort=False)
    sums = of_label[added].sum(min_count=1).reset_index()
    sums["ms_per_char"] = sums["decode_ms"] / sums["characters"].where(sums["characters"] > 0)
    sums = sums[list(TYPE_COLUMNS)].astype({"ms_per_char": "float64"})
    return sums.sort_values("decode_ms", ascending=False, kind="stable", ignore_index=True)


@cached
def regions_of(run: Record, row: int = 0) -> pd.DataFrame:
    """`region_table` of batch row ``row``: a region's time is the sum of its tokens' medians over
    repeats.

    There are two more columns before ``text``. ``probability`` is the mean over the tokens of the
    region's text (`text_tokens`), 0 to 1; it is NaN for a region without text or with an unknown
    token. ``uncertain`` is whether it is below `UNCERTAIN_BELOW`. Without a text all tokens belong
    to the first row, ``preamble``.
    """
    tokens = tokens_of(run, row)
    table = region_table(grounding_of(run, row), tokens)
    probabilities = tokens["probability"].to_numpy(dtype="float64")
    means = {}
    for region, own_tokens in text_tokens(run, row).items():
        if len(own_tokens):
            means[region] = probabilities[own_tokens].mean()
    table["probability"] = table["region"].map(means).astype("float64")
    table["uncertain"] = table["probability"] < UNCERTAIN_BELOW
    columns = [name for name in table if name != "text"]
    return table[[*columns, "text"]]
