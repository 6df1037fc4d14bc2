"""``python -m benchmarks.waits``: how long people wait for this tool, as a table.

Processor seconds (user and system, with child processes) hold on a busy machine, wall seconds do not. Each
thing is done twice before it counts, so that its files are in the system's cache.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from ocr_phases import PhaseRun
from ocr_phases.versions import asset

RECORD = asset("data", "runs", "h200-dummy-gundam.json")
TINY = Path(__file__).parents[1] / "tests" / "golden" / "run.json"
OTHER = asset("data", "runs", "h200-dummy-base.json")
PAGE = asset("data", "pages", "receipt.png")
COMMAND = ("-m", "ocr_phases.cli")
VIEWS = ("page", "latency", "stages", "checks", "records")
LARGEST = 12

Row = dict[str, Any]


class Clock:
    """Wall and processor seconds of a ``with`` block."""

    def __enter__(self) -> Clock:
        self.wall, self.cpu = time.perf_counter(), _cpu()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, _cpu() - self.cpu

    def row(self, what: str, **more: Any) -> Row:
        """The line of the table."""
        return {"what": what, "cpu_s": round(self.cpu, 2), "wall_s": round(self.wall, 2), **more}


def _cpu() -> float:
    """Seconds of this process, the children it waited for and those that live."""
    own = psutil.Process()
    alive = sum(sum(child.cpu_times()[:2]) for child in own.children(recursive=True))
    return sum(own.cpu_times()[:4]) + alive


def command(what: str, *arguments: str, times: int = 2) -> Row:
    """One command: seconds, and its own imports by ``-X importtime``; from bytecode, as pip installs it."""
    compiled = dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(times):
        with Clock() as clock:
            subprocess.run(
                [sys.executable, *COMMAND, *arguments], check=True, capture_output=True, env=compiled
            )
    told = [sys.executable, "-X", "importtime", *COMMAND, *arguments]
    done = subprocess.run(told, check=True, capture_output=True, text=True, env=compiled)
    took = sum(map(int, re.findall(r"import time: +(\d+) \|", done.stderr)))
    return clock.row(what, imports_s=round(took / 1e6, 2))


def commands(folder: Path) -> Iterator[Row]:
    """The command line."""
    out = ["--out", str(folder / "out")]
    yield command("`--help`", "--help")
    yield command("`report --record`, H200", "report", "--record", str(RECORD), *out)
    yield command("`compare`, two of the H200", "compare", str(RECORD), str(OTHER), *out)
    measured = ["--save", str(folder / "profile.json")]
    yield command("`profile`, tiny model, receipt", "profile", str(PAGE), *measured)
    yield command("`report`, tiny model, receipt", "report", str(PAGE), *out)


def batch_report(folder: Path) -> Iterator[Row]:
    """One report in a batch's worker that has made some."""
    from ocr_phases.batch.worker import render

    for name, record in (("H200", RECORD), ("tiny", TINY)):
        PhaseRun.load(record).save(folder / "run.json")
        for _ in range(3):
            with Clock() as clock:
                render({"folder": str(folder)}, lambda: None)
        yield clock.row(f"a report in a batch's worker, {name}")


def explorer(folder: Path) -> Iterator[Row]:
    """A new panel, and each view of a record of which nothing was drawn, after another record."""
    from ocr_phases.explorer import Explorer

    for _ in range(2):
        with Clock() as clock:
            panel = Explorer(keep=None)
    yield clock.row("explorer: a new panel")
    for view in VIEWS:
        for record in (OTHER, RECORD):
            panel.view = "page"
            with Clock() as shown:
                panel.add(PhaseRun.load(record))
            with Clock() as clock:
                panel.view = view
        yield (shown if view == "page" else clock).row(f"explorer: {view}, H200")
    with Clock() as clock:
        panel.ticked = [record.key for record in panel.rows[:2]]
    yield clock.row("explorer: two of the H200 compared")


def loading(folder: Path) -> Iterator[Row]:
    """Reading a long record, and its headline figures."""
    run = stretched(PhaseRun.load(RECORD), 8_000)
    for name in ("long.json", "long.json.gz"):
        path = run.save(folder / name)
        for _ in range(3):
            with Clock() as clock:
                PhaseRun.load(path).summary()
        yield clock.row(
            f"load and summary of {len(run.spans):,} spans, `{''.join(path.suffixes)}`",
            megabytes=round(path.stat().st_size / 1e6, 1),
        )


def largest(folder: Path) -> Iterator[Row]:
    """The report of a million spans."""
    path = stretched(PhaseRun.load(RECORD), 50_000).save(folder / "million.json.gz")
    out = ["--out", str(folder / "million")]
    row = command("`report --record`, 1,000,000 spans", "report", "--record", str(path), *out, times=1)
    yield row | {"peak_MB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1000}


def stretched(run: PhaseRun, tokens: int) -> PhaseRun:
    """A record whose decode goes on until it has ``tokens``: its own steps, each a little different."""
    noise = np.random.default_rng(0)
    own = run["decode_steps"]
    again = -(-(tokens - 1) // own)
    stepped = run.spans["step"].notna()
    rounds = [run.spans[~stepped]]
    took = run.spans.loc[run.spans["stage"] == "decode", "device_ms"].median()
    for place in range(again):
        spans = run.spans[stepped].copy()
        spans["step"] += place * own
        spans[["device_start_ms", "host_start_ms"]] += place * took
        rounds.append(spans[spans["step"] < tokens - 1])
    spans = pd.concat(rounds).sort_values(["repeat", "host_start_ms"], ignore_index=True)
    spans.loc[spans["stage"] == "decode", ["device_ms", "host_ms"]] *= again
    for name in (name for name in spans if name.endswith("_ms")):
        about = noise.normal(0, 0.01, len(spans))
        spans[name] = (spans[name] + (about if "start" in name else about * spans[name])).round(6).abs()
    first = run.results[0]
    texts = (first["token_texts"][:own] * (again + 1))[:tokens]
    ids = (first["ids"][:own] * (again + 1))[:tokens]
    result = first | {"ids": ids, "token_texts": texts, "text": "".join(texts).rstrip("\ufffd")}
    lengths = [run.request["prefill_len"] + step for step in range(tokens)]
    sizes = [length * run.cache["bytes_per_token"] for length in lengths]
    return replace(
        run,
        spans=spans,
        results=[result],
        cache=run.cache | {"lengths": lengths, "bytes": sizes},
        request=run.request | {"max_new_tokens": tokens},
    )


PARTS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "commands": commands,
    "batch": batch_report,
    "explorer": explorer,
    "loading": loading,
    "largest": largest,
}


def main() -> None:
    """Print the rows of the parts asked for, or with ``--profile`` what takes longest in them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waits", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--profile", action="store_true", help="what takes longest, by cProfile")
    parser.add_argument("--save", type=Path, help="the rows as JSON")
    asked = parser.parse_args()
    rows = []
    for name in asked.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            profile = cProfile.Profile()
            if asked.profile:
                profile.enable()
            for row in PARTS[name](Path(folder)):
                rows.append(row)
                print(json.dumps(row, ensure_ascii=False), flush=True)
            if asked.profile:
                profile.disable()
                pstats.Stats(profile).sort_stats("cumtime").print_stats(LARGEST)
    if asked.save:
        asked.save.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
