"""Measures what a batch costs and survives, and computes what a million pages need. Prints one JSON each.

python -m benchmarks.batch_evidence VERB ...

    pages PAGES --count 500                  draws pages; every 20th of PAGES-bad is damaged
    steady PAGES OUT                         a whole batch beside the bare measuring loop
    faults PAGES-bad OUT --compare STEADY    the same, with everything killed
    cold PAGES                               what a cold start costs, what a loaded model saves
    gpus PAGES OUT --workers 2 --options 'BATCH OPTIONS'    one against more
    report OUT                               what a report costs in a reused kernel
    scheduler                                what a waiting page costs a dask scheduler
    million EVIDENCE.json...                 what 1,000,000 pages need, from these figures
    write DOC.md EVIDENCE.json...            all of it into the document
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ocr_phases import PhaseRun
from ocr_phases.batch.pool import thread_share
from ocr_phases.batch.store import read_listing, read_status
from ocr_phases.text import bytes_text

SMALL = ["--max-new-tokens", "48", "--repeats", "1", "--warmup", "0"]
SETTINGS = {
    "model": "tiny",
    "device": "auto",
    "dtype": None,
    "max_new_tokens": 48,
    "repeats": 1,
    "warmup": 0,
}
TIMES = ("spans", "created", "memory", "checks", "live_checks", "versions", "device")
SUBSET = 100  # pages that the bare loop measures, before and after the batch


def draw_pages(folder: Path, count: int, bad_every: int) -> dict[str, Any]:
    """``count`` synthetic pages, and beside them the same with one in ``bad_every`` cut off in the middle."""
    from ocr_phases.files import output_folder

    sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "tiny" / "train"))
    from synth import PageSettings, matplotlib_families, random_page

    settings = PageSettings(
        width=768, height=1024, type_px=(14, 20), max_characters=900, fonts=tuple(matplotlib_families())
    )
    bad_folder = output_folder(folder.with_name(f"{folder.name}-bad"))
    output_folder(folder)
    for number in range(count):
        png = io.BytesIO()
        random_page(random.Random(number), settings).image.save(png, "PNG")
        name = f"page-{number:05}.png"
        data = png.getvalue()
        (folder / name).write_bytes(data)
        bad = number % bad_every == bad_every - 1
        (bad_folder / name).write_bytes(data[: len(data) // 2] if bad else data)
    return {"pages": count, "folders": [str(folder), str(bad_folder)]}


# -- running a batch --------------------------------------------------------------------------------


class Driver:
    """``ocr-phases batch`` in a process of its own, with the memory of driver and worker watched."""

    def __init__(
        self, pages: Path, out: Path, options: list[str], environment: dict[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "ocr_phases.cli", "batch", str(pages), "--out", str(out)]
        self.process = subprocess.Popen(
            [*command, "--render", "none", *options],
            stdout=sys.stderr,
            env={**os.environ, **(environment or {})},
        )
        self.memory: list[tuple[float, int]] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self.process.poll() is None:
            self.memory.append((time.time(), rss(self.process.pid)))
            time.sleep(1.0)

    def children(self) -> list[int]:
        """Its worker processes."""
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            try:
                found += [int(number) for number in task.read_text().split()]
            except OSError:
                continue
        return found


def rss(pid: int) -> int:
    """Resident bytes of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def all_statuses(out: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each listed page with its status, in order."""
    for entry in read_listing(out):
        status = read_status(out / entry["folder"])
        if status is not None:
            yield entry, status


def last_attempts(out: Path) -> list[dict[str, Any]]:
    """The attempt that counted of every measured page, by the time it started."""
    done = [status["attempts"][-1] for _, status in all_statuses(out) if status["state"] == "done"]
    return sorted(done, key=lambda attempt: attempt["started"])


def measured_with(out: Path) -> dict[str, list[Any]]:
    """The devices, versions and models in a batch's records."""
    devices, versions, models = set(), set(), set()
    for entry, status in all_statuses(out):
        if status["state"] == "done":
            record = PhaseRun.load(out / entry["folder"] / "run.json")
            devices.add(record.device["name"])
            versions.add(json.dumps(record.versions))
            models.add(f"{record.model['name']} in {record.model['dtype']}")
    return {
        "devices": sorted(devices),
        "versions": [json.loads(text) for text in sorted(versions)],
        "models": sorted(models),
    }


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares over the last four fifths: what the start allocates once is none of the run's growth."""
    late = points[len(points) // 5 :]
    x, y = (np.asarray(values, dtype=np.float64) for values in zip(*late, strict=True))
    return float(np.polyfit(x - x[0], y, 1)[0])


# -- the figures ------------------------------------------------------------------------------------


def steady(pages: Path, out: Path) -> dict[str, Any]:
    """A whole batch: rate, memory over the run, and its overhead over the bare loop on the same pages."""
    names = [str(path) for path in sorted(pages.glob("*.png"))][:SUBSET]
    before = bare(names)
    began = time.time()
    driver = Driver(pages, out, SMALL)
    code = driver.process.wait()
    whole = time.time() - began
    after = bare(names)
    attempts = last_attempts(out)
    starts = [attempt["started"] for attempt in attempts]
    measuring = starts[-1] + attempts[-1]["seconds"] - starts[0]
    subset = min(len(names), len(starts) - 1)
    batch_s = (starts[subset] - starts[0]) / subset
    bare_s = (before + after) / 2 / len(names)
    files = [path for path in out.rglob("*") if path.is_file()]
    tables = sum(path.stat().st_size for path in out.glob("*.*"))
    return {
        "what": "steady",
        "options": SMALL,
        "measured_with": measured_with(out),
        "exit_code": code,
        "pages": len(attempts),
        "pages_per_min": len(attempts) / measuring * 60,
        "whole_s": whole,
        "before_first_page_s": starts[0] - began,
        "index_s": began + whole - (starts[0] + measuring),
        "bare_s_a_page": bare_s,
        "bare_runs_s_a_page": [before / len(names), after / len(names)],
        "batch_s_a_page": batch_s,
        "overhead": batch_s / bare_s - 1,
        "idle_ms_between_pages": statistics.median(
            (later["started"] - earlier["started"] - earlier["seconds"]) * 1e3
            for earlier, later in itertools.pairwise(attempts)
        ),
        "worker_rss_bytes": [attempts[0]["rss_bytes"], attempts[-1]["rss_bytes"]],
        "worker_rss_slope_bytes_a_page": slope(
            [(number, attempt["rss_bytes"]) for number, attempt in enumerate(attempts)]
        ),
        "driver_rss_bytes": [driver.memory[min(5, len(driver.memory) - 1)][1], driver.memory[-1][1]],
        "driver_rss_slope_bytes_a_s": slope(
            [point for point in driver.memory if point[0] < starts[0] + measuring]
        ),
        "bytes_a_page": sum(path.stat().st_size for path in files) / len(attempts),
        "table_bytes_a_page": tables / len(attempts),
        "files_a_page": len(files) / len(attempts),
    }


def bare(names: list[str]) -> float:
    """Seconds that a plain loop over ``run_inference`` takes for these pages, in a fresh process."""
    program = (
        "import json, sys, time\n"
        "from ocr_phases import OCRSession\n"
        "session = OCRSession.load('tiny')\n"
        "options = {'max_new_tokens': 48, 'repeats': 1, 'warmup': 0}\n"
        "began = time.perf_counter()\n"
        "for page in sys.argv[1:]:\n"
        "    session.run_inference(page, **options)\n"
        "print(time.perf_counter() - began)"
    )
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True)
    return float(done.stdout)


def faults(pages: Path, out: Path, compare: Path, seed: int = 1) -> dict[str, Any]:
    """The batch with one bad file in twenty, its worker killed three times, its driver killed twice."""
    total = len(list(pages.glob("*.png")))
    chance = random.Random(seed)
    # Who is killed after about which share of the pages.
    killings = [
        (share + chance.uniform(-0.04, 0.04), victim)
        for share, victim in zip(
            (0.15, 0.3, 0.45, 0.6, 0.75), ("worker", "driver", "worker", "driver", "worker"), strict=True
        )
    ]
    done: list[str] = []
    starts = 1
    driver = Driver(pages, out, SMALL)
    for share, victim in killings:
        wait_for(lambda share=share: finished_pages(out) >= share * total, driver)
        time.sleep(chance.uniform(0.0, 0.3))
        if victim == "worker":
            worker = wait_for(driver.children, driver)[0]
            os.kill(worker, signal.SIGKILL)
        else:
            driver.process.kill()
            driver.process.wait()
            driver = Driver(pages, out, SMALL)
            starts += 1
        done.append(f"{victim} killed after {finished_pages(out)} pages")
    code = driver.process.wait()
    found = list(all_statuses(out))
    states = [status["state"] for _, status in found]
    failures: dict[str, int] = {}
    for _, status in found:
        if status["failure"]:
            failures[status["failure"]] = failures.get(status["failure"], 0) + 1
    return {
        "what": "faults",
        "exit_code": code,
        "killed": done,
        "driver_starts": starts,
        "pages": total,
        "accounted_for": len({entry["page"] for entry, _ in found}),
        "done": states.count("done"),
        "failed": states.count("failed"),
        "failures": failures,
        "attempts_lost_to_a_kill": sum(
            attempt["failure"] == "died" for _, status in found for attempt in status["attempts"]
        ),
        "half_written": sum(1 for path in out.rglob("*.json") if not readable(path)),
        **compared(out, compare),
    }


def wait_for(condition: Callable[[], Any], driver: Driver) -> Any:
    """The condition's first true value; an error where the driver ends before it."""
    while not (found := condition()):
        if driver.process.poll() is not None:
            raise SystemExit(
                f"The driver ended with {driver.process.returncode} before everything was killed."
            )
        time.sleep(0.05)
    return found


def finished_pages(out: Path) -> int:
    """Status files so far."""
    return sum(1 for _ in out.glob("pages/*/*/status.json"))


def readable(path: Path) -> bool:
    """Whether a file holds whole JSON."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def compared(out: Path, undisturbed: Path) -> dict[str, Any]:
    """How many pages measured in both batches have equal results, settings, page and model."""

    def results(folder: Path) -> dict[str, str]:
        found = {}
        for entry, status in all_statuses(folder):
            if status["state"] == "done":
                record = PhaseRun.load(folder / entry["folder"] / "run.json").to_dict()
                known = {name: value for name, value in record.items() if name not in TIMES}
                shape = [record["spans"][name] for name in ("repeat", "phase", "stage", "view", "step")]
                found[entry["page"]] = json.dumps([known, shape], sort_keys=True)
        return found

    ours, theirs = results(out), results(undisturbed)
    both = set(ours) & set(theirs)
    return {"compared": len(both), "different": sorted(name for name in both if ours[name] != theirs[name])}


def cold(pages: Path, rounds: int = 5) -> dict[str, Any]:
    """Seconds from nothing to a measured page: in a new process each, and in one that is warm."""
    from ocr_phases.batch.child import Child
    from ocr_phases.batch.job import make_jobs
    from ocr_phases.batch.manifest import find_pages

    jobs = list(make_jobs(find_pages([str(pages)], list(SETTINGS)), SETTINGS))[: rounds + 1]

    def one(child: Child, job: Any, folder: str) -> float:
        began = time.perf_counter()
        outcome = child.run({"mode": "measure", "job": job.as_dict(), "folder": folder})
        if outcome.failure:
            raise SystemExit(outcome.reason)
        return time.perf_counter() - began

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        new = []
        for job in jobs[:rounds]:
            child = Child()
            new.append(one(child, job, folder))
            child.stop()
        child = Child()
        one(child, jobs[0], folder)
        loaded = [one(child, job, folder) for job in jobs[1:]]
        child.stop()
    return {
        "what": "cold",
        "cold_s": statistics.median(new),
        "warm_s": statistics.median(loaded),
        "saved_s_a_page": statistics.median(new) - statistics.median(loaded),
    }


def gpus(pages: Path, out: Path, workers: int, options: list[str]) -> dict[str, Any]:
    """One device against several: pages a minute once all are warm, and a page's own decode step.

    Runs one, several, one again, so that a machine that drifts shows; each worker has the same share of the
    cores in all of them. `OUT` must be new: pages that are kept have no pace.
    """
    if out.exists():
        raise SystemExit(f"{out} is there already: name a new folder.")
    threads = thread_share(workers)
    runs = {"one": 1, "several": workers, "one again": 1}
    found: dict[str, Any] = {
        "what": "gpus",
        "workers": workers,
        "options": options,
        "threads_a_worker": int(threads["OMP_NUM_THREADS"]),
    }
    for name, count in runs.items():
        folder = out / name.replace(" ", "-")
        code = Driver(pages, folder, [*options, "--workers", str(count)], threads).process.wait()
        found[name] = {"exit_code": code, **one_run(folder, count)}
    found["measured_with"] = measured_with(out / "several")
    several, alone = found["several"], [found["one"], found["one again"]]
    rates = [run["pages_per_min"] for run in alone]
    steps = [run["decode_step_ms"]["median"] for run in alone]
    found["speedup"] = several["pages_per_min"] / statistics.mean(rates)
    found["speedup_range"] = [several["pages_per_min"] / rate for rate in (max(rates), min(rates))]
    found["pages_per_min_change_of_one_alone"] = rates[1] / rates[0] - 1
    found["step_change"] = several["decode_step_ms"]["median"] / statistics.mean(steps) - 1
    found["step_change_of_one_alone"] = steps[1] / steps[0] - 1
    return found


def one_run(folder: Path, workers: int) -> dict[str, Any]:
    """The pace of a batch of ``workers`` while all of them were at it, and its pages' own times there."""
    attempts = []
    for entry, status in all_statuses(folder):
        if status["state"] == "done":
            attempts.append({**status["attempts"][-1], "folder": folder / entry["folder"]})
    by_worker = pages_by_worker(attempts)
    if len(by_worker) != workers:
        raise SystemExit(
            f"{len(by_worker)} of {workers} workers measured pages in {folder}: give more pages."
        )
    begin, end = steady_window(by_worker)
    inside = [a for a in attempts if a["started"] >= begin and _end(a) <= end]
    records = {id(a): PhaseRun.load(a["folder"] / "run.json") for a in inside}
    paces = {worker: pace(own, begin, end) for worker, own in by_worker.items()}
    return {
        "pages": len(attempts),
        "window_s": end - begin,
        "pages_in_window": len(inside),
        "pages_per_min": sum(paces.values()) * 60,
        "workers": [
            {
                "device": sorted({records[id(a)].device["name"] for a in inside if a["worker"] == worker}),
                "pages": len(own),
                "load_s": own[0]["load_s"],
                "pages_per_min": paces[worker] * 60,
            }
            for worker, own in by_worker.items()
        ],
        "seconds_a_page": spread([a["seconds"] for a in inside]),
        "decode_step_ms": spread([record.summary()["inter_token_ms"] for record in records.values()]),
    }


def pages_by_worker(attempts: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Each worker's attempts in the order in which they ended."""
    found: dict[str, list[dict[str, Any]]] = {}
    for attempt in sorted(attempts, key=_end):
        found.setdefault(attempt["worker"], []).append(attempt)
    return found


def steady_window(by_worker: dict[str, list[dict[str, Any]]]) -> tuple[float, float]:
    """UNIX times between which every worker is at it: after each first page, before anyone's last is over."""
    return max(_end(own[0]) for own in by_worker.values()), min(_end(own[-1]) for own in by_worker.values())


def pace(own: list[dict[str, Any]], begin: float, end: float) -> float:
    """Pages a second of one worker, from its first page that ended in the window to its last there.

    From end to end, so that it counts whole pages with the waits between them: a rate over the window itself
    would err by up to a page a worker.
    """
    ends = [_end(attempt) for attempt in own if begin <= _end(attempt) <= end]
    if len(ends) < 2:
        raise SystemExit("A worker ended fewer than two pages while all were at it: give more pages.")
    return (len(ends) - 1) / (ends[-1] - ends[0])


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles, and how many there are."""
    low, median, high = (float(value) for value in np.percentile(values, (25, 50, 75)))
    return {"median": median, "q25": low, "q75": high, "count": len(values)}


def _end(attempt: dict[str, Any]) -> float:
    return attempt["started"] + attempt["seconds"]


def million(evidence: list[Path], pages: int = 1_000_000) -> dict[str, Any]:
    """What ``pages`` pages need, by the measured figures: nothing in it is assumed but that number."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in evidence]
    known = {entry["what"]: entry for entry in read}
    needs: dict[str, Any] = {"pages": pages}
    if run := known.get("steady"):
        needs["cpu_machine_days"] = pages / run["pages_per_min"] / 60 / 24
        needs["disk_bytes_without_reports"] = pages * run["bytes_a_page"]
        needs["files_without_reports"] = pages * run["files_a_page"]
        needs["index_hours"] = pages * run["index_s"] / run["pages"] / 3600
    if run := known.get("gpus"):
        needs["gpu_hours"] = pages / run["one"]["pages_per_min"] / 60
        needs["days_on_these_gpus"] = pages / run["several"]["pages_per_min"] / 60 / 24
    if run := known.get("cold"):
        needs["hours_saved_by_a_warm_model"] = pages * run["saved_s_a_page"] / 3600
    if run := known.get("report"):
        needs["rendering_core_hours"] = pages * run["seconds_a_report"] / 3600
        needs["report_bytes"] = pages * run["bytes_a_report"]
    if run := known.get("scheduler"):
        needs["scheduler_bytes"] = run["rss_bytes"]
        needs["scheduler_bytes_if_all_were_submitted"] = run["bytes_a_waiting_page"] * pages
    return needs


def as_markdown(evidence: list[Path]) -> str:
    """The evidence files that are there as a table, and what a million pages need by them."""
    known = {entry["what"]: entry for entry in (json.loads(path.read_text()) for path in evidence)}
    rows: list[tuple[str, str]] = []
    if run := known.get("cold"):
        rows.append(("first page in a new worker, with its imports and the model", f"{run['cold_s']:.1f} s"))
        rows.append(("page in a worker with its model loaded", f"{run['warm_s']:.2f} s"))
    if run := known.get("steady"):
        first, last = (f"{value / 1e6:.0f}" for value in run["worker_rss_bytes"])
        rows += [
            (f"{run['pages']} pages with `tiny`", f"{run['pages_per_min']:.0f} pages a minute"),
            ("overhead over the bare loop on the same pages", f"{run['overhead'] * 100:+.1f} %"),
            (
                "the bare loop before and after",
                " and ".join(f"{s:.3f}" for s in run["bare_runs_s_a_page"]) + " s a page",
            ),
            ("the worker waits between two pages", f"{run['idle_ms_between_pages']:.1f} ms"),
            ("worker's memory, first and last page", f"{first} and {last} MB"),
            ("its slope", f"{run['worker_rss_slope_bytes_a_page'] / 1e3:.2f} kB a page"),
            ("index and tables", f"{run['index_s'] / run['pages'] * 1e3:.0f} ms a page"),
            ("record, status and share of the tables", f"{run['bytes_a_page'] / 1e3:.0f} kB a page"),
        ]
    if run := known.get("faults"):
        rows += [
            ("killed on the way", "; ".join(run["killed"])),
            ("accounted for", f"{run['accounted_for']} of {run['pages']}"),
            ("measured, failed", f"{run['done']}, {run['failed']} ({', '.join(run['failures'])})"),
            ("records that differ in more than timings", f"{len(run['different'])} of {run['compared']}"),
        ]
    if run := known.get("report"):
        rows.append(("report", f"{run['seconds_a_report']:.2f} s"))
    if run := known.get("gpus"):
        one, several = run["one"]["pages_per_min"], run["several"]["pages_per_min"]
        again = run["one again"]["pages_per_min"]
        low, high = run["speedup_range"]
        rows += [
            ("one device, before and after", f"{one:.1f} and {again:.1f} pages a minute"),
            (f"{run['workers']} devices", f"{several:.1f} pages a minute"),
            *(
                [
                    (
                        "each of them",
                        " and ".join(f"{own['pages_per_min']:.1f}" for own in run["several"]["workers"]),
                    )
                ]
                if "workers" in run["several"]
                else []
            ),
            ("speed-up", f"{run['speedup']:.2f} ({low:.2f} to {high:.2f} by the one run or the other)"),
            ("seconds a page, one device", _quartiles(run["one"]["seconds_a_page"])),
            ("seconds a page beside a neighbour", _quartiles(run["several"]["seconds_a_page"])),
            ("median decode step beside a neighbour", f"{run['step_change'] * 100:+.1f} %"),
            ("the same, alone before and after", f"{run['step_change_of_one_alone'] * 100:+.1f} %"),
        ]
    lines = ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)]
    for run in known.values():
        if "measured_with" in run:
            lines += ["", _measured_how(run)]
        if "note" in run:
            lines += ["", textwrap.fill(run["note"], 120)]
    needs = million(evidence)
    lines += ["", f"{needs.pop('pages'):,} such pages need, by these figures:", "", "| | |", "| --- | --- |"]
    for name, value in needs.items():
        shown = bytes_text(value) if "bytes" in name else f"{value:,.0f}"
        lines.append(f"| {name.replace('_', ' ').replace(' bytes', ' size')} | {shown} |")
    return "\n".join(lines)


def _quartiles(values: dict[str, float]) -> str:
    median = f"{values['median']:.3f}"
    return f"{median} ({values['q25']:.3f} to {values['q75']:.3f})" if "q25" in values else median


def _measured_how(run: dict[str, Any]) -> str:
    """One paragraph: what a file of evidence was measured with, and how its paces were counted."""
    made = run["measured_with"]
    versions = " or ".join(
        ", ".join(f"{name} {value}" for name, value in each.items() if value is not None)
        for each in made["versions"]
    )
    where = f"{' and '.join(made['devices'])}, {versions}; {' and '.join(made['models'])}"
    options = f"`{shlex.join(run['options'])}`"
    if run["what"] != "gpus":
        return textwrap.fill(f"The {run['pages']} pages: {where}; {options}.", 120)
    counts = ", ".join(str(run[name]["pages"]) for name in ("one", "several", "one again"))
    both = run["several"]
    return textwrap.fill(
        f"One device and {run['workers']}: {where}; {options}; {counts} pages in the three runs; threads a "
        f"worker: {run['threads_a_worker']}. Paces are each worker's own, from page end to page end while "
        f"all were at it ({both['pages_in_window']} pages in {both['window_s']:.0f} s on {run['workers']}),"
        " so without the model and each first page; in brackets behind seconds are the quartiles over pages.",
        120,
        break_on_hyphens=False,
        break_long_words=False,
    )


def write(document: Path, evidence: list[Path]) -> dict[str, Any]:
    """Put `as_markdown` between the document's evidence marks."""
    text = document.read_text(encoding="utf-8")
    head, mark, rest = text.partition("<!-- evidence: written by benchmarks.batch_evidence write -->\n")
    _, end, tail = rest.partition("<!-- /evidence -->")
    if not (mark and end):
        raise SystemExit(f"{document} has no evidence marks.")
    document.write_text(f"{head}{mark}{as_markdown(evidence)}\n{end}{tail}", encoding="utf-8")
    return {"wrote": str(document)}


def report(out: Path, count: int = 20) -> dict[str, Any]:
    """What rendering a report takes in a worker that has made one, and its size."""
    import tempfile

    from ocr_phases.report.render import page_report

    records = [
        out / entry["folder"] / "run.json" for entry, status in all_statuses(out) if status["state"] == "done"
    ]
    took_s, sizes = [], []
    with tempfile.TemporaryDirectory() as folder:
        page_report(PhaseRun.load(records[0]), folder)
        for record in records[:count]:
            began = time.perf_counter()
            page_report(PhaseRun.load(record), folder)
            took_s.append(time.perf_counter() - began)
            sizes.append(
                sum(path.stat().st_size for path in Path(folder).glob("*") if path.name != "run.json")
            )
    return {
        "what": "report",
        "seconds_a_report": statistics.median(took_s),
        "bytes_a_report": statistics.mean(sizes),
    }


def scheduler(waiting: int = 20_000) -> dict[str, Any]:
    """A dask scheduler's memory with the pages that a batch hands out, and with many more."""
    from distributed import Client, Scheduler, SpecCluster

    from ocr_phases.batch.cluster import run_on_worker
    from ocr_phases.batch.job import make_jobs
    from ocr_phases.batch.manifest import Page

    cluster = SpecCluster(
        scheduler={"cls": Scheduler, "options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}},
        silence_logs=40,
    )
    client = Client(cluster)
    pages = (Page(f"page-{number}.png", f"/none/page-{number}.png") for number in range(waiting))
    requests = [
        {"mode": "measure", "job": job.as_dict(), "folder": "/none"} for job in make_jobs(pages, SETTINGS)
    ]
    before = rss(os.getpid())  # the scheduler runs in this process, without a worker
    futures = [client.submit(run_on_worker, request, 60.0, ["none"], pure=False) for request in requests]
    wait_until_known(client, waiting)
    grown = rss(os.getpid()) - before
    del futures
    client.close()
    cluster.close()
    return {"what": "scheduler", "rss_bytes": before, "bytes_a_waiting_page": grown / waiting}


def wait_until_known(client: Any, tasks: int) -> None:
    """Until the scheduler has taken in all tasks."""
    while len(client.cluster.scheduler.tasks) < tasks:
        time.sleep(0.1)


def main() -> None:
    """Run one of the measurements above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    command = verbs.add_parser("pages")
    command.add_argument("folder", type=Path)
    command.add_argument("--count", type=int, default=500)
    command.add_argument("--bad-every", type=int, default=20)
    command.set_defaults(run=lambda a: draw_pages(a.folder, a.count, a.bad_every))
    for verb, run in (
        ("steady", lambda a: steady(a.pages, a.out)),
        ("faults", lambda a: faults(a.pages, a.out, a.compare)),
        ("gpus", lambda a: gpus(a.pages, a.out, a.workers, shlex.split(a.options))),
    ):
        command = verbs.add_parser(verb)
        command.add_argument("pages", type=Path)
        command.add_argument("out", type=Path)
        command.set_defaults(run=run)
        if verb == "faults":
            command.add_argument("--compare", type=Path, required=True, help="the steady batch's folder")
        if verb == "gpus":
            command.add_argument("--workers", type=int, default=2)
            command.add_argument("--options", default="", help="of batch, as one string")
    command = verbs.add_parser("cold")
    command.add_argument("pages", type=Path)
    command.set_defaults(run=lambda a: cold(a.pages))
    command = verbs.add_parser("report")
    command.add_argument("out", type=Path)
    command.set_defaults(run=lambda a: report(a.out))
    command = verbs.add_parser("scheduler")
    command.set_defaults(run=lambda a: scheduler())
    command = verbs.add_parser("write")
    command.add_argument("document", type=Path)
    command.add_argument("evidence", type=Path, nargs="+")
    command.set_defaults(run=lambda a: write(a.document, a.evidence))
    command = verbs.add_parser("million")
    command.add_argument("evidence", type=Path, nargs="+")
    command.set_defaults(run=lambda a: million(a.evidence))
    arguments = parser.parse_args()
    print(json.dumps(arguments.run(arguments), indent=1))


if __name__ == "__main__":
    main()
