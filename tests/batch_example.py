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
from ocr_phases.batch.driver import PageCounts, Workers, measure_pages
from ocr_phases.batch.index import BatchIndex
from ocr_phases.batch.jobs import Job, make_jobs
from ocr_phases.batch.local_workers import LocalWorkers
from ocr_phases.batch.measuring import Refused
from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.pages import find_pages
from ocr_phases.batch.worker import HANDLERS
from ocr_phases.cli.options import BATCH
from ocr_phases.record.store import file_hash, write_status
from ocr_phases.settings import Settings
from ocr_phases.show.batch_page import index_html

STUB = [sys.executable, str(Path(__file__).with_name("batch_stub_process.py"))]
#: What the verb sets where its settings differ from those of one page.
BATCH_DEFAULTS = {"token_probabilities": False, "warm_once": True}
#: The settings of a batch on a CPU, as its jobs have them.
SETTINGS = {name: vars(Settings(device="cpu", **BATCH_DEFAULTS))[name] for name in BATCH}
#: The options of a command that measures little.
QUICK = ["--max-new-tokens", "3", "--repeats", "1", "--warmup", "0", "--device", "cpu"]
#: A page's name that tries to become an element of a web page.
EVIL = "<script>alert(1)</script> & 'quoted'.png"


def make_pages(folder: Path, *words: str) -> Path:
    """Page files for the stub, page-0 and so on, each of its own content."""
    folder.mkdir(exist_ok=True)
    for number, word in enumerate(words):
        (folder / f"page-{number}.png").write_text(f"{word}\n{' ' * number}")
    return folder


def jobs(folder: Path, **settings: Any) -> list[Job]:
    """The jobs of all pages of a folder, with these settings beside the usual ones."""
    pages = find_pages([str(folder)], BATCH)
    return list(make_jobs(pages, {**SETTINGS, **settings}))


def measure(folder: Path, out: Path, **options: Any) -> PageCounts:
    """Measure the pages of a folder with the stub as the only worker."""
    with contextlib.closing(LocalWorkers(command=STUB)) as workers:
        return run_jobs(jobs(folder), out, workers, **options)


def run_jobs(listed: Iterable[Job], out: Path, workers: Workers, **options: Any) -> PageCounts:
    """Measure jobs with these workers."""
    out.mkdir(exist_ok=True)
    list_pages(listed, out, {})
    return measure_pages(out, workers, **options)


def statuses(out: Path) -> dict[str, dict[str, Any]]:
    """Status by page; a page without one is missing."""
    known = {}
    for entry in read_listing(out):
        status = page_status(out, entry)
        if status is not None:
            known[entry["page"]] = status
    return known


#: A program that runs the verb with two cores and workers by another command, its first argument.
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
    program = [sys.executable, "-c", DRIVER, json.dumps(STUB)]
    command = ["batch", str(folder / "in"), "--out", str(folder / "out"), "--device", "cpu"]
    command += [*options, "--render", "none"]
    return subprocess.Popen([*program, *command], stderr=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What a condition gives once that is true; a test fails that waits for so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def listening(pid: int | None = None) -> dict[str, list[str]]:
    """The commands of all processes below ``pid`` (None: this one), and where each listens."""
    addresses = {}
    for process in psutil.Process(pid).children(recursive=True):
        sockets = listening_sockets(process)
        with contextlib.suppress(psutil.ZombieProcess):  # it has ended
            addresses[" ".join(process.cmdline())] = sockets
    return addresses


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, also where nobody has asked yet how it did."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def listening_sockets(process: psutil.Process) -> list[str]:
    """The addresses and ports at which a process waits for others."""
    # Before psutil 6 the method had its older name only.
    connections = getattr(process, "net_connections", None) or process.connections
    sockets = []
    for connection in connections("inet"):
        if not connection.raddr:
            sockets.append(f"{connection.laddr.ip}:{connection.laddr.port}")
    return sockets


def a_job(name: str, sha256: str | None = "ab", preset: str | None = None) -> Job:
    """The job of a page of the built-in model that lies nowhere."""
    settings = {"model": "tiny", "preset": preset}
    return Job(name, f"/in/{name}", sha256, settings, versions={}, model_hash=None)


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
        "attempts": [{"seconds": 1.5, "failure": None}],
    }
    if record is not None:
        (folder / "run.json").write_bytes(record)
        known |= {"state": "done", "record": file_hash(folder / "run.json")}
    write_status(folder / "status.json", {**vars(job), **known, **status})
    return folder


def put_example(out: Path, job: Job, number: int, **status: Any) -> Path:
    """The folder of a page that was measured; another number has other times and more tokens."""
    run = make_run(page_name=job.name, seed=number, repeats=2, max_tokens=30 + 10 * number)
    return put_page(out, job, run.to_json(), **status)


def make_batch(out: Path) -> None:
    """Pages with a record, one of them with a report and listed twice, and one each of the other
    ends.
    """
    names = (EVIL, "b.png", "c.pdf#2", "failed.png", "waiting.png", "damaged.png")
    listed = [a_job(name) for name in names]
    evil, with_report, of_pdf, failed, _waiting, damaged = listed
    list_pages([*listed, with_report], out, {".txt": 2})

    put_example(out, evil, 0)
    put_example(out, with_report, 1, report={"state": "done", "reason": ""})
    put_example(out, of_pdf, 2)
    attempts = [{"seconds": 1.5, "failure": "timeout"}] * 2
    put_page(out, failed, None, failure="timeout", reason="More than 3 s.", attempts=attempts)
    (put_example(out, damaged, 5) / "run.json").write_text("{")


def html_of(index: BatchIndex) -> str:
    """The page of a batch's index."""
    return index_html(index.pages, index.regions, title="A batch", facts={"": "tiny"}, left_out={})


class Here:
    """Workers of this process alone: ``answer`` gives what becomes of a request."""

    def __init__(self, answer: Callable[[Any], Outcome]) -> None:
        self.answer = answer

    def submit(self, request: Any, timeout: float | None) -> Future[Outcome]:
        """A future that is done at once."""
        future: Future[Outcome] = Future()
        future.set_result(self.answer(request))
        return future

    def ask(self, request: Any) -> list[Future[Outcome]]:
        """The answer of the one worker."""
        return [self.submit(request, None)]

    def count(self) -> int:
        """One worker."""
        return 1

    def close(self) -> None:
        """There is nothing to close."""


def measured_here(*_: object) -> Here:
    """A worker that does in this process what the real one does, made as `LocalWorkers` is."""

    def measure_request(request: Any) -> Outcome:
        try:
            return HANDLERS[request["mode"]](request, lambda: None)
        except Refused as refusal:
            return Outcome(*refusal.args)

    return Here(measure_request)


def renderer(*_: object) -> Here:
    """A worker that renders nothing: the second try of every page goes well, save c.pdf's."""
    tried: set[str] = set()

    def render(request: Any) -> Outcome:
        assert request["mode"] == "render"
        folder = request["folder"]
        is_first_try = folder not in tried
        tried.add(folder)
        if is_first_try or "c-2-" in folder:
            return Outcome("report", "The notebook failed.")
        return Outcome()

    return Here(render)
