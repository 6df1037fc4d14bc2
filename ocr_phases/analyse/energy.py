"""The energy of each phase of a page, from phases that were repeated alone."""

from __future__ import annotations

import pandas as pd

from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import Record
from ocr_phases.record.parts import PhaseEnergyPart

PHASE_ENERGY_COLUMNS = (
    "phase",
    "calls",
    "call_ms",
    "watts",
    "joules",
    "of_page",
    "idle_joules",
    "thousand_tokens_j",
)


def phase_energy_table(run: Record) -> pd.DataFrame:
    """The energy that a page took in each phase, columns `PHASE_ENERGY_COLUMNS`.

    Rows are ``vision``, which is a part of the prefill, ``prefill``, ``decode`` and ``page``, the
    sum of the last two. ``calls`` is how often the phase was repeated alone, ``call_ms`` the time
    of one of them, ``watts`` the power meanwhile. ``joules`` is what the phase takes of one page,
    ``of_page`` its share, and ``idle_joules`` what the idle device would have taken in that time.
    ``thousand_tokens_j`` is the energy of 1,000 decoded tokens of each row.

    Raises `OcrPhasesError` for a record without these figures, with the reason.
    """
    energy = run.phase_energy
    if energy is None:
        raise OcrPhasesError(
            "This record has no energy by phase: measure with phase_energy=True (--phase-energy)."
        )
    if energy.missing is not None:
        raise OcrPhasesError(f"This record has no energy by phase: {energy.missing}.")
    table = pd.DataFrame(
        {
            "phase": energy.phase,
            "calls": energy.calls,
            "seconds": energy.seconds,
            "counted_joules": energy.joules,
        }
    )
    table["call_ms"] = table["seconds"] / table["calls"] * 1e3
    table["watts"] = table["counted_joules"] / table["seconds"]
    table["joules"] = table["counted_joules"] / table["calls"]
    table["idle_joules"] = table["call_ms"] / 1e3 * _idle_watts(energy)
    table = pd.concat([table, _whole_page(table)], ignore_index=True)
    page_joules = table.loc[table["phase"] == "page", "joules"].sum()
    table["of_page"] = table["joules"] / page_joules
    table["thousand_tokens_j"] = float("nan")
    is_decode = table["phase"] == "decode"
    if energy.decode_steps:
        per_token = table.loc[is_decode, "joules"] / energy.decode_steps
        table.loc[is_decode, "thousand_tokens_j"] = per_token * 1000
    return table[list(PHASE_ENERGY_COLUMNS)]


def _idle_watts(energy: PhaseEnergyPart) -> float:
    return float("nan") if energy.idle_w is None else energy.idle_w


def _whole_page(table: pd.DataFrame) -> pd.DataFrame:
    """The row of the whole page: prefill and decode, of which vision is a part already."""
    phases = table[table["phase"].isin(["prefill", "decode"])]
    sums = phases[["call_ms", "joules", "idle_joules"]].sum(min_count=1)
    row = {
        "phase": "page",
        "call_ms": sums["call_ms"],
        "joules": sums["joules"],
        "idle_joules": sums["idle_joules"],
        "watts": sums["joules"] / sums["call_ms"] * 1e3,
    }
    return pd.DataFrame([row])


def phase_energy_sentence(run: Record) -> str:
    """What the phases of a page take, in one sentence; why that is unknown, if so."""
    try:
        table = phase_energy_table(run)
    except OcrPhasesError as error:
        return str(error)
    joules = table.set_index("phase")["joules"]
    shares = table.set_index("phase")["of_page"]
    parts = [f"the prefill {joules['prefill']:.3g} J ({shares['prefill']:.0%})"]
    if "decode" in joules:
        parts.append(f"the decode {joules['decode']:.3g} J ({shares['decode']:.0%})")
    vision = ""
    if "vision" in joules:
        vision = f" Vision is {joules['vision']:.3g} J of the prefill."
    return f"A page takes {joules['page']:.3g} J: {' and '.join(parts)}.{vision}"
