"""``python -m benchmarks.waits``: how long people wait for this tool, one JSON line a thing.

Processor seconds (user and system, with child processes) hold on a busy machine, wall seconds do
not. Each thing is done twice before it counts, so that its files are in the system's cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from ocr_phases import PhaseRun
from ocr_phases.batch.measuring import render_page
from ocr_phases.explorer import Explorer
from ocr_phases.versions import asset

RECORD, OTHER = (asset("data", "runs", f"h200-dummy-{name}.json.gz") for name in ("gundam", "base"))
PAGE = asset("data", "pages", "receipt.png")


def wait(what: str, *steps: Callable[[], object]) -> None:
    """Print the seconds of the last of ``steps``, at its second go; the others make it ready."""
    for _ in range(2):
        for step in steps:
            wall, cpu = time.perf_counter(), _cpu()
            step()
        row = {
            "what": what,
            "cpu_s": round(_cpu() - cpu, 2),
            "wall_s": round(time.perf_counter() - wall, 2),
        }
    print(json.dumps(row, ensure_ascii=False), flush=True)


def _cpu() -> float:
    """Seconds of this process and of the children it waited for."""
    return sum(psutil.Process().cpu_times()[:4])


def commands(out: Path) -> None:
    """The command line, from bytecode, as pip installs it."""
    for what, *words in (
        ("`--help`", "--help"),
        ("`report --record`, H200", "report", "--record", RECORD, "--out", out),
        ("`compare`, two of the H200", "compare", RECORD, OTHER, "--out", out),
        ("`profile`, tiny model, receipt", "profile", PAGE, "--save", out / "profile.json"),
        ("`report`, tiny model, receipt", "report", PAGE, "--out", out),
    ):
        command = [sys.executable, "-m", "ocr_phases.cli", *map(str, words)]
        compiled = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
        wait(
            what,
            lambda c=command, e=compiled: subprocess.run(c, check=True, capture_output=True, env=e),
        )


def in_process(out: Path) -> None:
    """One report in a batch's worker; a new panel, and each view of a record after another
    record.
    """
    PhaseRun.load(RECORD).save(out / "run.json")
    job = {"name": RECORD.name, "source": RECORD.name, "settings": {"model": "dummy"}}
    request = {"folder": str(out), "price_per_hour": None, "job": job}
    wait("a report in a batch's worker, H200", lambda: render_page(request, lambda: None))
    wait("explorer: a new panel", lambda: Explorer(keep=None))
    panel = Explorer(keep=None)

    def show(path: Path, view: str) -> None:
        panel.view = "page"
        panel.add(PhaseRun.load(path))
        panel.view = view

    for view in ("page", "latency", "stages", "checks", "records"):
        wait(
            f"explorer: {view}, H200", lambda v=view: show(OTHER, v), lambda v=view: show(RECORD, v)
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        commands(Path(folder))
        in_process(Path(folder))
