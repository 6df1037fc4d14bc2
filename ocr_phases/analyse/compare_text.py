"""What two records of a page wrote: their quality by a truth that both have, and their agreement."""

from __future__ import annotations

import pandas as pd

from ocr_phases.analyse.quality import QUALITY_HIGHER, quality_of, quality_table
from ocr_phases.analyse.read_text import plain_text
from ocr_phases.analyse.stages import cached
from ocr_phases.analyse.truth_files import reference_of
from ocr_phases.record import PhaseRun
from ocr_phases.text import percent_text

EQUIVALENT = "equivalent"
"""The verdict of figures that are equal, or so near that their difference does not count."""

SHARE = "share"
"""The unit of these figures: a share of one."""


@cached
def text_changes(base: PhaseRun, other: PhaseRun) -> pd.DataFrame:
    """Measures of the first row's text: columns ``metric``, ``base``, ``other`` and ``verdict``.

    Those of `ocr_phases.analyse.quality` where both records have the same truth; and ``agreement``, of
    ``other`` with the text of ``base``, where both have read the same page. Verdicts are equivalent (equal),
    better, worse, and for agreement different. Empty where the pages differ or a text is missing.
    """
    rows: list[tuple[str, float, float, str]] = []
    same_page = base.page["sha256"] == other.page["sha256"]
    if same_page and base.text is not None and other.text is not None:
        reference = reference_of(base)
        if plain_text(reference.text):
            found = quality_table(other, reference).set_index("measure")["value"]
            agreement = float(found["agreement"])
            rows.append(("agreement", 1.0, agreement, EQUIVALENT if agreement == 1.0 else "different"))
        truths = [truth and truth.says() for truth in (base.truth_of(), other.truth_of())]
        if truths[0] == truths[1]:
            before, after = quality_of(base), quality_of(other)
            rows += [
                (name, value, after[name], _verdict(name, value, after[name]))
                for name, value in before.items()
                if name in after and name not in ("agreement", "repetition")
            ]
    return pd.DataFrame(rows, columns=["metric", "base", "other", "verdict"])


def text_sentence(changes: pd.DataFrame) -> str:
    """The agreement and the edit distances in words; empty for equal texts."""
    base, other = (dict(zip(changes["metric"], changes[side], strict=True)) for side in ("base", "other"))
    if other.get("agreement", 1.0) == 1.0:
        return ""
    sentence = f"Its text agrees with the base's to {percent_text(other['agreement'])}"
    if "edit_distance" in base:
        then, now = (percent_text(side["edit_distance"]) for side in (base, other))
        sentence += f"; its edit distance to the truth is {now}, not {then}"
    return f"{sentence}."


def _verdict(name: str, base: float, other: float) -> str:
    if base == other:
        return EQUIVALENT
    return "better" if (other > base) == (name in QUALITY_HIGHER) else "worse"
