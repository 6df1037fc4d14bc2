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
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from batch_example import (
    QUICK,
    STUB,
    jobs,
    make_pages,
    run_jobs,
    start_driver,
    statuses,
    wait_for,
)
from conftest import PAGES
from wording import says

from ocr_phases.batch import driver
from ocr_phases.batch.child import DaskPool, Outcome, worker_environments
from ocr_phases.batch.driver import Counts
from ocr_phases.batch.store import LISTING
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError

TWO_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")


@pytest.mark.parametrize(
    ("gpus", "workers", "device", "expected"),
    [
        ("", None, "auto", [{}]),
        ("0,1,3", None, "auto", [{"CUDA_VISIBLE_DEVICES": gpu, **TWO_THREADS} for gpu in "013"]),
        ("0,1", 1, "cuda", [{"CUDA_VISIBLE_DEVICES": "0"}]),
        ("0,1", None, "cuda:1", [{}]),
        ("0,1", None, "cpu", [{}]),
        ("0,1", 3, "auto", "3 workers on 2 GPUs"),
        ("0,1", 2, "cuda:1", "2 workers on cuda:1"),
        ("0", 0, "auto", "workers is 0: give 1 to 6"),
        ("", 99999, "auto", "workers is 99999: give 1 to 6"),
    ],
)
def test_each_worker_has_a_device_of_its_own(gpus, workers, device, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr("ocr_phases.batch.child.cores", lambda: 6)
    if isinstance(expected, str):
        with pytest.raises(OcrPhasesError, match=expected):
            worker_environments(workers, device)
    else:
        assert worker_environments(workers, device) == expected


def test_workers_on_a_cpu_share_its_cores(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("ocr_phases.batch.child.cores", lambda: 9)
    assert worker_environments(4, "auto") == [TWO_THREADS] * 4


def test_a_machine_that_does_not_say_which_gpus_it_has_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").touch(0o755)  # no program that could run
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OcrPhasesError, match="set CUDA_VISIBLE_DEVICES"):
        worker_environments(None, "auto")


@contextlib.contextmanager
def dask_cluster(workers: int = 1, **options: Any) -> Iterator[Any]:
    """A dask cluster that listens on loopback alone, its workers in this process unless asked otherwise."""
    distributed = pytest.importorskip("distributed")
    import dask

    from ocr_phases.batch.child import stop_children

    options = {"processes": False, "protocol": "tcp://", "silence_logs": 50, **options}
    # Closing waits so long for who is gone.
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            memory_limit=0,
            **options,
        ) as cluster,
    ):
        yield cluster
    stop_children()


def test_a_dask_worker_that_is_lost_costs_no_page_and_doubles_none(tmp_path):
    pages, out = make_pages(tmp_path / "in", *["ok"] * 40, "bad", "kill 1"), tmp_path / "out"
    out.mkdir()
    lost: list[int] = []

    def lose_one(counts: Counts) -> None:
        if counts.done >= 5 and not lost:
            lost.append(next(iter(pool.client.run(os.getpid).values())))
            os.kill(lost[0], signal.SIGKILL)

    with dask_cluster(2, processes=True) as cluster:
        pool = DaskPool(cluster.scheduler_address, command=STUB)
        try:
            counts = run_jobs(jobs(pages), out, pool, progress=lose_one)
        finally:
            pool.close()
    assert lost
    assert (counts.done, counts.failed, counts.pages) == (41, 1, 42)
    assert len(statuses(out)) == 42
    assert len((out / LISTING).read_text().splitlines()) == 42


def test_a_scheduler_that_does_not_answer_is_one_sentence(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("ocr_phases.batch.child._CONNECT_SECONDS", 0.5)
    with pytest.raises(OcrPhasesError, match="does not answer"):
        DaskPool("tcp://127.0.0.1:1")


def test_a_scheduler_that_is_lost_is_one_sentence_and_keeps_what_is_finished(tmp_path, monkeypatch):
    pages, out = make_pages(tmp_path / "in", *["ok"] * 60), tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr("ocr_phases.batch.child._CONNECT_SECONDS", 2)  # so long it waits for a new one

    def lose_scheduler(counts: Counts) -> None:
        if counts.done >= 3 and cluster.scheduler.status.name == "running":
            cluster.sync(cluster.scheduler.close)

    with dask_cluster() as cluster:
        pool = DaskPool(cluster.scheduler_address, command=STUB)
        try:
            with pytest.raises(OcrPhasesError, match="scheduler was lost"):
                run_jobs(jobs(pages), out, pool, progress=lose_scheduler)
        finally:
            pool.close()
    assert 3 <= len(statuses(out)) < 60
    cancelled: Future[Outcome] = Future()  # as dask leaves the pages that were with it
    cancelled.cancel()
    with pytest.raises(OcrPhasesError, match="scheduler was lost"):
        driver._result(cancelled)


def test_the_workers_of_a_scheduler_with_tls_let_go_of_their_model_at_the_end(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    import dask
    from distributed import Security

    security = Security.temporary()
    files = {"ca-file": "tls_ca_file", "client.cert": "tls_client_cert", "client.key": "tls_client_key"}
    tls = {f"distributed.comm.tls.{name}": str(tmp_path / name) for name in files}
    for name, attribute in files.items():
        (tmp_path / name).write_text(getattr(security, attribute))
    pages, out = make_pages(tmp_path / "in", "ok"), tmp_path / "out"
    out.mkdir()
    with dask_cluster(protocol="tls://", security=security) as cluster, dask.config.set(tls):
        address = cluster.scheduler_address
        pool = DaskPool(address, STUB)
        try:
            assert not pool.plain
            assert driver.auto_device(pool) == "cpu"
            assert run_jobs(jobs(pages), out, pool).done == 1
            (status,) = statuses(out).values()
            host, _, child = status["attempts"][0].worker.rpartition(":")
            assert Path(f"/proc/{child}").exists()
        finally:
            pool.close()
        wait_for(lambda: not Path(f"/proc/{child}").exists() or "\nState:\tZ" in status_of(child))
        monkeypatch.setattr("ocr_phases.batch.child._CONNECT_SECONDS", 0.5)
        other = {name: str(tmp_path / "none.pem") for name in tls}
        for wrong, config in (
            (address, dict.fromkeys(tls)),
            (address.replace("tls", "tcp"), {}),
            (address, other),
        ):
            with dask.config.set(config), pytest.raises(OcrPhasesError, match="does not answer"):
                DaskPool(wrong)
            # distributed deadlocks where the collector finds a client that failed while the next one starts.
            gc.collect()


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_batch_without_workers_waits_as_long_as_it_was_told(device, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ocr_phases.batch.child._COUNT_SECONDS", 0.0)
    with dask_cluster(0) as cluster:
        options = ["--scheduler", cluster.scheduler_address, "--wait-workers", "0.5"]
        page = str(PAGES / "slide.png")
        command = ["batch", page, "--out", str(tmp_path), *QUICK, "--device", device, *options]
        assert main(command) == 2
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
        ["dask_scheduler", "--port", "0", "--no-dashboard", *where],
        ["dask_worker", "--nthreads", "1", "--memory-limit", "0", "--no-nanny", "--no-dashboard", *where],
    ]
    with log.open("w") as output:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", f"from distributed.cli.{name} import main; main()", *options],
                stdout=output,
                stderr=output,
                cwd=tmp_path,
            )
            for name, *options in commands
        ]
    try:
        wait_for(lambda: file.exists() and file.stat().st_size)
        yield json.loads(file.read_text())["address"], log
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_driver_killed_at_a_scheduler_leaves_nobody_at_its_page(scheduler, tmp_path):
    address, log = scheduler
    pages, out = make_pages(tmp_path / "in", "wait", "ok", "ok"), tmp_path / "out"
    process = start_driver(tmp_path, address)
    wait_for((pages / "page-0.began").exists)
    process.kill()
    process.wait()
    pool = DaskPool(address, command=STUB)
    end = time.monotonic() + 60.0

    def in_time(counts: Counts) -> None:
        assert time.monotonic() < end, log.read_text()

    try:
        # Its child waits for ever: were it not killed, no page would be done.
        counts = run_jobs(jobs(pages), out, pool, progress=in_time)
    finally:
        pool.close()
    assert (counts.done, counts.kept, counts.failed) == (3, 0, 0)
    assert not list(out.glob("pages/*/*/.*"))


def status_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
