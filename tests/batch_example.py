"""Batches for tests: pages for the stub worker, a driver as a process, a folder with every
outcome.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
from example_run import make_run

from ocr_phases.batch.archive import list_pages, page_status, read_listing
from ocr_phases.batch.driver import PageCounts, measure_pages
from ocr_phases.batch.index import BatchIndex
from ocr_phases.batch.jobs import Job, make_jobs
from ocr_phases.batch.local_workers import LocalWorkers
from ocr_phases.batch.measuring import Refused, measure_page
from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.pages import find_pages
from ocr_phases.cli.options import BATCH
from ocr_phases.record.store import file_hash, write_status
from ocr_phases.settings import Settings
from ocr_phases.show.batch_page import index_html

STUB = [sys.executable, str(Path(__file__).with_name("batch_stub.py"))]
#: What the verb sets where its settings differ from those of one page.
OWN_DEFAULTS = {"token_probabilities": False, "warm_once": True}
SETTINGS = {name: vars(Settings(device="cpu", **OWN_DEFAULTS))[name] for name in BATCH}
QUICK = ["--max-new-tokens", "3", "--repeats", "1", "--warmup", "0", "--device", "cpu"]
EVIL = "<script>alert(1)</script> & 'quoted'.png"


def make_pages(folder: Path, *words: str) -> Path:
    """Page files for the stub, page-0 and so on, each of its own content."""
    folder.mkdir(exist_ok=True)
    for number, word in enumerate(words):
        (folder / f"page-{number}.png").write_text(f"{word}\n{' ' * number}")
    return folder


def jobs(folder: Path, **more: Any) -> list[Job]:
    """The jobs of all pages of a folder, with these settings beside the usual ones."""
    return list(make_jobs(find_pages([str(folder)], BATCH), {**SETTINGS, **more}))


def measure(folder: Path, out: Path, **options: Any) -> PageCounts:
    """Measure the pages of a folder with the stub as the only worker."""
    with contextlib.closing(LocalWorkers(command=STUB)) as pool:
        return run_jobs(jobs(folder), out, pool, **options)


def run_jobs(given: Iterable[Job], out: Path, pool: Any, **options: Any) -> PageCounts:
    """Measure jobs with the workers of a pool."""
    out.mkdir(exist_ok=True)
    list_pages(given, out, {})
    return measure_pages(out, pool, **options)


def statuses(out: Path) -> dict[str, dict[str, Any]]:
    """Status by page; a page without one is missing."""
    found = {entry["page"]: page_status(out, entry) for entry in read_listing(out)}
    return {page: status for page, status in found.items() if status is not None}


DRIVER = """
import functools, json, sys
from ocr_phases.batch import dask_workers, local_workers
from ocr_phases.cli import main
local_workers.cores = lambda: 2
for module, name in ((local_workers, "LocalWorkers"), (dask_workers, "DaskWorkers")):
    workers = functools.partial(getattr(module, name), command=json.loads(sys.argv[1]))
    setattr(module, name, workers)
sys.exit(main(sys.argv[2:]))
"""


def start_driver(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The command as a process, for the pages in ``folder/in`` with the stub as its workers."""
    command = ["batch", str(folder / "in"), "--out", str(folder / "out"), "--device", "cpu"]
    program = [sys.executable, "-c", DRIVER, json.dumps(STUB)]
    return subprocess.Popen(
        [*program, *command, *options, "--render", "none"], stderr=subprocess.PIPE, text=True
    )


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What a condition gives once that is true; a test fails that waits for so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def listening(pid: int | None = None) -> dict[str, list[str]]:
    """The commands of all processes below ``pid`` (None: this one), and where each listens."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        # Before psutil 6 the method had its older name only.
        connections = getattr(process, "net_connections", None) or process.connections
        sockets = []
        for connection in connections("inet"):
            if not connection.raddr:
                sockets.append(f"{connection.laddr.ip}:{connection.laddr.port}")
        with contextlib.suppress(psutil.ZombieProcess):  # it has ended
            found[" ".join(process.cmdline())] = sockets
    return found


def a_job(name: str, sha256: str | None = "ab", preset: str | None = None) -> Job:
    return Job(name, f"/in/{name}", sha256, {"model": "tiny", "preset": preset}, {}, None)


def put_page(out: Path, job: Job, record: bytes | None, **status: Any) -> Path:
    """The folder of a page as a driver leaves it, with this record; without one it failed."""
    folder = out / job.folder
    folder.mkdir(parents=True)
    known: dict[str, Any] = {
        "state": "failed",
        "failure": None,
        "reason": "",
        "report": None,
        "record": None,
    }
    known["attempts"] = [{"seconds": 1.5, "failure": None}]
    if record is not None:
        (folder / "run.json").write_bytes(record)
        known |= {"state": "done", "record": file_hash(folder / "run.json")}
    write_status(folder / "status.json", {**vars(job), **known, **status})
    return folder


def make_batch(out: Path) -> None:
    """Pages with a record, one of them with a report and listed twice, and one each of the other
    ends.
    """
    listed = [
        a_job(name)
        for name in (EVIL, "b.png", "c.pdf#2", "failed.png", "waiting.png", "damaged.png")
    ]
    list_pages([*listed, listed[1]], out, {".txt": 2})
    for number, job in enumerate(listed):
        if job.name == "failed.png":
            tries = [{"seconds": 1.5, "failure": "timeout"}] * 2
            put_page(out, job, None, failure="timeout", reason="More than 3 s.", attempts=tries)
        elif job.name != "waiting.png":
            run = make_run(page_name=job.name, seed=number, repeats=2, max_tokens=30 + 10 * number)
            report = {"state": "done", "reason": ""} if job.name == "b.png" else None
            folder = put_page(out, job, run.to_json(), report=report)
            if job.name == "damaged.png":
                (folder / "run.json").write_text("{")


def html_of(index: BatchIndex) -> str:
    """The page of a batch's index."""
    return index_html(index.pages, index.regions, title="A batch", facts={"": "tiny"}, left_out={})


class Here:
    """A pool of this process alone: ``answer`` gives what becomes of a request."""

    def __init__(self, answer: Callable[[Any], Outcome]) -> None:
        self.answer = answer

    def submit(self, request: Any, timeout: float | None) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        future.set_result(self.answer(request))
        return future

    def count(self) -> int:
        return 1

    def close(self) -> None:
        pass


def measured_here(*_: object) -> Here:
    """A pool that measures in this process."""

    def measured(request: Any) -> Outcome:
        try:
            return measure_page(request, lambda: None)
        except Refused as refusal:
            return Outcome(*refusal.args)

    return Here(measured)


def renderer(*_: object) -> Here:
    """A pool that renders nothing: the second try of every page goes well, save c.pdf's."""
    tried: set[str] = set()

    def render(request: Any) -> Outcome:
        assert request["mode"] == "render"
        failed = request["folder"] not in tried or "c-2-" in request["folder"]
        tried.add(request["folder"])
        return Outcome("report", "The notebook failed.") if failed else Outcome()

    return Here(render)
