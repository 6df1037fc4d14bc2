"""The tables that ``ocr-phases profile`` prints below its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ocr_phases.record import PhaseRun


def print_kernels(run: PhaseRun) -> None:
    """The kernel view: a verdict per stage, and where the host waits."""
    from ocr_phases.analyse.floors import floor_table
    from ocr_phases.analyse.kernels import host_syncs, stage_verdict

    for table in (stage_verdict(run, floor_table(run)).drop(columns="reason"), host_syncs(run)):
        table = table.dropna(axis="columns", how="all")
        print(f"\n{table.to_string(index=False, float_format='{:.3f}'.format, na_rep='')}")


def print_then_and_now(then: PhaseRun, now: PhaseRun) -> None:
    """A record beside its repetition."""
    from ocr_phases.analyse.compare import (
        compare_runs,
        few_repeats,
        headline_metrics,
        in_units,
        same_tokens,
        what_differs,
    )
    from ocr_phases.analyse.steps import first_other_token

    table = in_units(headline_metrics(compare_runs([then, now]))).rename(
        columns={"base": "then", "other": "now"}
    )
    print(table.to_string(index=False, float_format="{:,.3f}".format, na_rep=""))
    few = few_repeats([then, now], ["then", "now"])
    if few:
        print(f"\n{few}")
    differ = first_other_token(then, now)
    tokens = "equal" if same_tokens(then, now) else f"different{differ and '; the first is '}{differ}"
    print(f"\nTokens: {tokens}")
    for line in what_differs(then, now):
        print(f"Differs: {line}")
    print()
