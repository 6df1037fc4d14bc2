"""Who measures a batch: the workers' devices, and a dask scheduler's workers."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_example import QUICK, STUB, Here, jobs, make_pages, run_jobs, start_driver, statuses, wait_for
from conftest import PAGES
from refusals import refused
from wording import says

from ocr_phases.batch import driver
from ocr_phases.batch.child import DaskPool, stop_children, worker_environments
from ocr_phases.batch.driver import Counts
from ocr_phases.batch.store import LISTING
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError

TWO_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
DASHBOARDS = dict.fromkeys(("dashboard_address", "worker_dashboard_address"), "127.0.0.1:0")
PLAIN = {"processes": False, "host": "127.0.0.1", "protocol": "tcp://", **DASHBOARDS}
QUIET = {"silence_logs": 50, "memory_limit": 0}


@pytest.mark.parametrize(
    ("gpus", "workers", "device", "expected"),
    [
        ("", None, "auto", [{}]),
        ("", 3, "auto", [TWO_THREADS] * 3),  # of six cores
        ("0,1,3", None, "auto", [{"CUDA_VISIBLE_DEVICES": gpu, **TWO_THREADS} for gpu in "013"]),
        ("0,1", 1, "cuda", [{"CUDA_VISIBLE_DEVICES": "0"}]),
        ("0,1", None, "cuda:1", [{}]),
        ("0,1", None, "cpu", [{}]),
        ("0,1", 3, "auto", None),
        ("0,1", 2, "cuda:1", None),
        ("0", 0, "auto", None),
        ("", 99999, "auto", None),
        (None, None, "auto", None),  # nvidia-smi is no program that could run
    ],
)
def test_each_worker_has_a_device_and_cores_of_its_own(
    gpus, workers, device, expected, tmp_path, monkeypatch
):
    (tmp_path / "nvidia-smi").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if gpus is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr("ocr_phases.batch.child.cores", lambda: 6)
    if expected is None:
        with refused():
            worker_environments(workers, device)
    else:
        assert worker_environments(workers, device) == expected


@contextlib.contextmanager
def dask_cluster(workers: int = 1, **options: Any) -> Iterator[Any]:
    """A dask cluster that listens on loopback alone, its workers in this process unless asked otherwise."""
    distributed = pytest.importorskip("distributed")
    import dask

    own = {"n_workers": workers, "threads_per_worker": 1, **PLAIN, **QUIET, **options}
    timeouts = {"distributed.comm.timeouts.connect": "1s"}  # closing waits so long for who is gone
    with dask.config.set(timeouts), distributed.LocalCluster(**own) as cluster:
        yield cluster
    stop_children()


def test_a_dask_worker_that_is_lost_costs_no_page_and_doubles_none(tmp_path):
    pages, out = make_pages(tmp_path / "in", *["ok"] * 20, "bad", "kill 1"), tmp_path / "out"
    out.mkdir()
    lost: list[int] = []

    def lose_one(counts: Counts) -> None:
        if counts.done >= 3 and not lost:
            lost.append(next(iter(pool.client.run(os.getpid).values())))
            os.kill(lost[0], signal.SIGKILL)

    with (
        dask_cluster(2, processes=True) as cluster,
        contextlib.closing(DaskPool(cluster.scheduler_address, command=STUB)) as pool,
    ):
        counts = run_jobs(jobs(pages), out, pool, progress=lose_one)
    assert lost
    assert (counts.done, counts.failed, counts.pages) == (21, 1, 22)
    assert len(statuses(out)) == 22
    assert len((out / LISTING).read_text().splitlines()) == 22


def test_a_scheduler_that_is_lost_is_one_sentence_and_keeps_what_is_finished(tmp_path, monkeypatch):
    pages, out = make_pages(tmp_path / "in", *["ok"] * 40), tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr("ocr_phases.batch.child.CONNECT_SECONDS", 1)  # so long it waits for a new one

    def lose_scheduler(counts: Counts) -> None:
        if counts.done >= 3 and cluster.scheduler.status.name == "running":
            cluster.sync(cluster.scheduler.close)

    with (
        dask_cluster() as cluster,
        contextlib.closing(DaskPool(cluster.scheduler_address, command=STUB)) as pool,
        pytest.raises(OcrPhasesError, match="scheduler was lost"),
    ):
        run_jobs(jobs(pages), out, pool, progress=lose_scheduler)
    assert 3 <= len(statuses(out)) < 40


def test_pages_that_were_with_a_lost_scheduler_are_cancelled(tmp_path):
    (tmp_path / "out").mkdir()
    pages = jobs(make_pages(tmp_path / "in", "ok"))
    with pytest.raises(OcrPhasesError, match="scheduler was lost"):
        run_jobs(pages, tmp_path / "out", Here(lambda request: None))


def test_the_workers_of_a_scheduler_with_tls_let_go_of_their_model_at_the_end(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    distributed = pytest.importorskip("distributed")
    import dask

    security = distributed.Security.temporary()
    files = {"ca-file": "tls_ca_file", "client.cert": "tls_client_cert", "client.key": "tls_client_key"}
    tls = {f"distributed.comm.tls.{name}": str(tmp_path / name) for name in files}
    for name, attribute in files.items():
        (tmp_path / name).write_text(getattr(security, attribute))
    pages, out = make_pages(tmp_path / "in", "ok"), tmp_path / "out"
    out.mkdir()
    with dask_cluster(protocol="tls://", security=security) as cluster, dask.config.set(tls):
        address = cluster.scheduler_address
        with contextlib.closing(DaskPool(address, STUB)) as pool:
            assert not pool.plain
            assert driver.auto_device(pool) == "cpu"
            assert run_jobs(jobs(pages), out, pool).done == 1
            (status,) = statuses(out).values()
            child = Path("/proc", status["attempts"][0].worker.rpartition(":")[2])
            assert child.exists()
        wait_for(lambda: not child.exists() or "\nState:\tZ" in (child / "status").read_text())
        monkeypatch.setattr("ocr_phases.batch.child.CONNECT_SECONDS", 0.5)
        other = {name: str(tmp_path / "none.pem") for name in tls}
        for wrong, config in (
            (address, dict.fromkeys(tls)),
            (address.replace("tls", "tcp"), {}),
            (address, other),
            ("tcp://127.0.0.1:1", {}),  # nobody is there
        ):
            with dask.config.set(config), pytest.raises(OcrPhasesError, match="does not answer"):
                DaskPool(wrong)
            # distributed deadlocks where the collector finds a client that failed while the next one starts.
            gc.collect()


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_batch_without_workers_waits_as_long_as_it_was_told(device, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ocr_phases.batch.child.COUNT_SECONDS", 0.0)
    with dask_cluster(0) as cluster:
        options = ["--scheduler", cluster.scheduler_address, "--wait-workers", "0.5", "--device", device]
        assert main(["batch", str(PAGES / "slide.png"), "--out", str(tmp_path), *QUICK, *options]) == 2
    said = capsys.readouterr().err
    assert says(said, "no worker", "0.5 s")
    assert said.count("has no TLS") == 1
    assert not list(tmp_path.rglob("status.json"))


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a scheduler that is a process of its own, with one worker, and that worker's log."""
    pytest.importorskip("distributed")
    file, log = tmp_path / "scheduler.json", tmp_path / "worker.log"
    where = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    commands = [
        ["dask_scheduler", "--port", "0", "--no-dashboard"],
        ["dask_worker", "--nthreads", "1", "--memory-limit", "0", "--no-nanny", "--no-dashboard"],
    ]
    with log.open("w") as output, contextlib.ExitStack() as ends:
        for name, *options in commands:
            program = [sys.executable, "-c", f"from distributed.cli.{name} import main; main()"]
            process = subprocess.Popen(
                [*program, *options, *where], stdout=output, stderr=output, cwd=tmp_path
            )
            ends.callback(process.wait)
            ends.callback(process.kill)
        wait_for(lambda: file.exists() and file.stat().st_size)
        yield json.loads(file.read_text())["address"], log


def test_a_driver_killed_at_a_scheduler_leaves_nobody_at_its_page(scheduler, tmp_path):
    address, log = scheduler
    pages, out = make_pages(tmp_path / "in", "wait", "ok", "ok"), tmp_path / "out"
    process = start_driver(tmp_path, address)
    wait_for((pages / "page-0.began").exists)
    process.kill()
    process.wait()
    end = time.monotonic() + 60.0

    def in_time(counts: Counts) -> None:
        assert time.monotonic() < end, log.read_text()

    with contextlib.closing(DaskPool(address, command=STUB)) as pool:
        # Its child waits for ever: were it not killed, no page would be done.
        counts = run_jobs(jobs(pages), out, pool, progress=in_time)
    assert (counts.done, counts.kept, counts.failed) == (3, 0, 0)
    assert not list(out.glob("pages/*/*/.*"))
