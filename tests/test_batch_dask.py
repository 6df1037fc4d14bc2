"""Who measures a batch: the workers' devices, and a dask scheduler's workers."""

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_example import (
    QUICK,
    STUB,
    Here,
    jobs,
    make_pages,
    run_jobs,
    start_driver,
    statuses,
    wait_for,
)
from conftest import PAGES
from refusals import refused
from wording import says

from ocr_phases.batch import dask_workers, driver, local_workers
from ocr_phases.batch.archive import LISTING
from ocr_phases.batch.dask_workers import DaskWorkers, stop_processes
from ocr_phases.batch.driver import PageCounts, auto_device
from ocr_phases.batch.local_workers import worker_environments
from ocr_phases.batch.outcome import Outcome
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError

TWO_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
ADDRESSES = dict.fromkeys(("dashboard_address", "worker_dashboard_address"), "127.0.0.1:0")
PLAIN = {
    "host": "127.0.0.1",
    "protocol": "tcp://",
    "silence_logs": 50,
    "memory_limit": 0,
    **ADDRESSES,
}


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
        (None, None, "auto", [{}]),  # NVML finds no driver
    ],
)
def test_each_worker_has_its_device_and_cores(gpus, workers, device, expected, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if gpus is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr(local_workers, "cores", lambda: 6)
    with refused() if expected is None else contextlib.nullcontext():
        assert worker_environments(workers, device) == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(["cuda", "cuda"], "cuda"), (["cpu", None], "cpu"), (["cuda", "cpu"], None), ([None], None)],
)
def test_the_device_of_all_workers_is_one(devices, expected, monkeypatch):
    """The workers come when they were waited for; one without a device (None) dies over the
    question.
    """
    monkeypatch.setattr(driver, "WAIT_SECONDS", 0.01)
    here = Here(
        lambda device: Outcome(device=device) if device else Outcome("died", "It has no torch.")
    )
    answers = [[], devices, devices]
    pool: Any = SimpleNamespace(
        ask=lambda _: [here.submit(device, None) for device in answers.pop(0)]
    )
    with refused() if expected is None else contextlib.nullcontext():
        assert auto_device(pool, lambda: None) == expected
    assert len(answers) < 2


@contextlib.contextmanager
def dask_cluster(workers: int = 1, processes: bool = False, **options: Any) -> Iterator[Any]:
    """A dask cluster that listens on loopback alone, its workers in this process unless asked
    otherwise.
    """
    distributed = pytest.importorskip("distributed")
    import dask

    own = {
        "n_workers": workers,
        "threads_per_worker": 1,
        "processes": processes,
        **PLAIN,
        **options,
    }
    timeouts = {"distributed.comm.timeouts.connect": "1s"}  # closing waits so long for who is gone
    with dask.config.set(timeouts), distributed.LocalCluster(**own) as cluster:
        yield cluster
    stop_processes()


@pytest.fixture(scope="module")
def processes() -> Iterator[str]:
    """The address of a scheduler with two workers that are processes, and start again when they are
    lost.
    """
    with dask_cluster(2, processes=True) as cluster:
        yield cluster.scheduler_address


def test_a_dask_worker_that_is_lost_costs_no_page_and_doubles_none(processes, tmp_path):
    pages, out = make_pages(tmp_path / "in", *["ok"] * 20, "bad", "kill 1"), tmp_path / "out"
    lost: list[int] = []

    def lose_one(counts: PageCounts) -> None:
        if counts.done >= 3 and not lost:
            lost.append(next(iter(pool.client.run(os.getpid).values())))
            os.kill(lost[0], signal.SIGKILL)

    with contextlib.closing(DaskWorkers(processes, command=STUB)) as pool:
        counts = run_jobs(jobs(pages), out, pool, progress=lose_one)
    assert lost
    assert (counts.done, counts.failed, counts.pages) == (21, 1, 22)
    assert len(statuses(out)) == len((out / LISTING).read_text().splitlines()) == 22


def test_a_driver_killed_at_a_scheduler_leaves_nobody_at_its_page(processes, tmp_path):
    pages, out = make_pages(tmp_path / "in", *["wait"] * 2, "ok", "ok"), tmp_path / "out"
    process = start_driver(tmp_path, "--scheduler", processes)
    for number in range(2):  # both workers are at a page
        wait_for((pages / f"page-{number}.began").exists)
    process.kill()
    process.communicate()
    end = time.monotonic() + 60.0

    def in_time(counts: PageCounts) -> None:
        assert time.monotonic() < end

    with contextlib.closing(DaskWorkers(processes, command=STUB)) as pool:
        # Their children wait for ever: were they not killed, no page would be done.
        counts = run_jobs(jobs(pages), out, pool, progress=in_time)
    assert (counts.done, counts.kept, counts.failed) == (4, 0, 0)
    assert not list(out.glob("pages/*/*/.*"))


def test_a_scheduler_that_is_lost_is_one_sentence_and_keeps_what_is_finished(tmp_path, monkeypatch):
    pages, out = make_pages(tmp_path / "in", *["ok"] * 40), tmp_path / "out"
    monkeypatch.setattr(dask_workers, "CONNECT_SECONDS", 1)  # so long it waits for a new one

    def lose_scheduler(counts: PageCounts) -> None:
        if counts.done >= 3 and cluster.scheduler.status.name == "running":
            cluster.sync(cluster.scheduler.close)

    with (
        dask_cluster() as cluster,
        contextlib.closing(DaskWorkers(cluster.scheduler_address, command=STUB)) as pool,
        pytest.raises(OcrPhasesError, match="scheduler was lost"),
    ):
        run_jobs(jobs(pages), out, pool, progress=lose_scheduler)
    assert 3 <= len(statuses(out)) < 40


def test_the_workers_of_a_scheduler_with_tls_let_go_of_their_model_at_the_end(
    tmp_path, monkeypatch
):
    pytest.importorskip("cryptography")
    distributed = pytest.importorskip("distributed")
    import dask

    security = distributed.Security.temporary()
    files = {
        "ca-file": "tls_ca_file",
        "client.cert": "tls_client_cert",
        "client.key": "tls_client_key",
    }
    tls = {f"distributed.comm.tls.{name}": str(tmp_path / name) for name in files}
    for name, attribute in files.items():
        (tmp_path / name).write_text(getattr(security, attribute))
    pages, out = make_pages(tmp_path / "in", "ok"), tmp_path / "out"
    with dask_cluster(protocol="tls://", security=security) as cluster, dask.config.set(tls):
        address = cluster.scheduler_address
        with contextlib.closing(DaskWorkers(address, STUB)) as pool:
            assert not pool.is_plain and auto_device(pool) == "cpu"
            assert run_jobs(jobs(pages), out, pool).done == 1
            (status,) = statuses(out).values()
            process = Path("/proc", status["attempts"][0].worker.rpartition(":")[2])
            assert process.exists()
        wait_for(lambda: not process.exists() or "\nState:\tZ" in (process / "status").read_text())
        monkeypatch.setattr(dask_workers, "CONNECT_SECONDS", 0.5)
        # With no certificate, with a wrong one, without TLS, and where nobody is.
        wrong = [
            (address, dict.fromkeys(tls)),
            (address, dict.fromkeys(tls, str(tmp_path / "none.pem"))),
        ]
        for place, config in (
            *wrong,
            (address.replace("tls", "tcp"), {}),
            ("tcp://127.0.0.1:1", {}),
        ):
            with dask.config.set(config), pytest.raises(OcrPhasesError, match="does not answer"):
                DaskWorkers(place)
            # distributed deadlocks where the collector finds a client that failed while the next
            # one starts.
            gc.collect()


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_batch_without_workers_waits_as_long_as_it_was_told(
    device, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(dask_workers, "COUNT_SECONDS", 0.0)
    with dask_cluster(0) as cluster:
        options = [
            "--scheduler",
            cluster.scheduler_address,
            "--wait-workers",
            "0.5",
            "--device",
            device,
        ]
        assert (
            main(["batch", str(PAGES / "slide.png"), "--out", str(tmp_path), *QUICK, *options]) == 2
        )
    said = capsys.readouterr().err
    assert says(said, "no worker", "0.5 s")
    assert said.count("has no TLS") == 1
    assert not list(tmp_path.rglob("status.json"))
