"""Who measures a batch: the workers' devices, and a dask scheduler's workers."""

import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from batch_example import (
    QUICK,
    STUB,
    Here,
    has_ended,
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

TWO_THREADS = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}


@dataclass(frozen=True)
class Machine:
    """A machine of six cores, what is asked of it, and the environment of each worker.

    ``gpus`` is what CUDA_VISIBLE_DEVICES says; with None it says nothing, and NVML finds no driver.
    """

    gpus: str | None
    workers: int | None
    device: str = "auto"
    environments: list[dict[str, str]] = field(default_factory=lambda: [{}])


MACHINES = {
    "one-worker-without-gpu": Machine("", None),
    "three-workers-without-gpu": Machine("", 3, environments=[TWO_THREADS] * 3),
    "a-worker-for-each-gpu": Machine(
        "0,1,3",
        None,
        environments=[
            {"CUDA_VISIBLE_DEVICES": "0", **TWO_THREADS},
            {"CUDA_VISIBLE_DEVICES": "1", **TWO_THREADS},
            {"CUDA_VISIBLE_DEVICES": "3", **TWO_THREADS},
        ],
    ),
    "fewer-workers-than-gpus": Machine(
        "0,1", 1, "cuda", environments=[{"CUDA_VISIBLE_DEVICES": "0"}]
    ),
    "one-worker-for-a-named-gpu": Machine("0,1", None, "cuda:1"),
    "one-worker-for-the-cpu": Machine("0,1", None, "cpu"),
    "no-driver": Machine(None, None),
}
#: Machines that cannot have so many workers.
TOO_SMALL = {
    "more-workers-than-gpus": Machine("0,1", 3),
    "two-workers-for-a-named-gpu": Machine("0,1", 2, "cuda:1"),
    "no-worker": Machine("0", 0),
    "far-too-many-workers": Machine("", 99999),
}


def environments_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments of the workers on such a machine."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if machine.gpus is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", machine.gpus)
    monkeypatch.setattr(local_workers, "cores", lambda: 6)
    return worker_environments(machine.workers, machine.device)


@pytest.mark.parametrize("name", MACHINES)
def test_each_worker_has_its_device_and_cores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MACHINES[name]
    assert environments_on(machine, monkeypatch) == machine.environments


@pytest.mark.parametrize("name", TOO_SMALL)
def test_more_workers_than_a_machine_has_room_for_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused():
        environments_on(TOO_SMALL[name], monkeypatch)


class LateWorkers:
    """A pool whose workers come after the first question; one without a device (None) dies over
    it.
    """

    def __init__(self, devices: list[str | None]) -> None:
        self.devices = devices
        self.questions = 0

    def ask(self, _: object) -> list[Future[Outcome]]:
        self.questions += 1
        if self.questions == 1:
            return []
        pool = Here(self._answer)
        return [pool.submit(device, None) for device in self.devices]

    def _answer(self, device: str | None) -> Outcome:
        if device is None:
            return Outcome("died", "It has no torch.")
        return Outcome(device=device)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        pytest.param(["cuda", "cuda"], "cuda", id="equal"),
        pytest.param(["cpu", None], "cpu", id="one-died"),
    ],
)
def test_the_device_of_all_workers_is_the_one_that_they_say(
    devices: list[str | None], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "WAIT_SECONDS", 0.01)
    pool: Any = LateWorkers(devices)

    assert auto_device(pool, lambda: None) == expected

    assert pool.questions >= 2


@pytest.mark.parametrize(
    "devices",
    [pytest.param(["cuda", "cpu"], id="different"), pytest.param([None], id="all-died")],
)
def test_workers_without_a_common_device_are_refused(
    devices: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "WAIT_SECONDS", 0.01)
    pool: Any = LateWorkers(devices)

    with refused():
        auto_device(pool, lambda: None)

    assert pool.questions >= 2


# -- a scheduler -----------------------------------------------------------------------------------

#: A cluster without TLS that listens on loopback alone, and stays silent.
PLAIN_CLUSTER = {
    "host": "127.0.0.1",
    "protocol": "tcp://",
    "silence_logs": 50,
    "memory_limit": 0,
    "dashboard_address": "127.0.0.1:0",
    "worker_dashboard_address": "127.0.0.1:0",
}


@contextlib.contextmanager
def dask_cluster(workers: int = 1, processes: bool = False, **options: Any) -> Iterator[Any]:
    """A dask cluster that listens on loopback alone, its workers in this process unless asked
    otherwise.
    """
    distributed = pytest.importorskip("distributed")
    import dask

    timeouts = {"distributed.comm.timeouts.connect": "1s"}  # closing waits so long for who is gone
    with (
        dask.config.set(timeouts),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=processes,
            **{**PLAIN_CLUSTER, **options},
        ) as cluster,
    ):
        yield cluster
    stop_processes()


def stub_workers(address: str) -> contextlib.closing[DaskWorkers]:
    """The workers of a scheduler, which run the stub."""
    return contextlib.closing(DaskWorkers(address, command=STUB))


@pytest.fixture(scope="module")
def scheduler_of_two() -> Iterator[str]:
    """The address of a scheduler with two workers that are processes, and start again when they are
    lost.
    """
    with dask_cluster(2, processes=True) as cluster:
        yield cluster.scheduler_address


def test_a_dask_worker_that_is_lost_costs_no_page_and_doubles_none(
    scheduler_of_two: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    pages = make_pages(tmp_path / "in", *["ok"] * 20, "bad", "kill 1")
    lost: list[int] = []

    def lose_one(counts: PageCounts) -> None:
        if counts.done >= 3 and not lost:
            process_ids = pool.client.run(os.getpid)
            lost.append(next(iter(process_ids.values())))
            os.kill(lost[0], signal.SIGKILL)

    with stub_workers(scheduler_of_two) as pool:
        workers_at_first = pool.count()
        counts = run_jobs(jobs(pages), out, pool, progress=lose_one)

    assert workers_at_first == 2
    assert lost
    assert counts.done == 21
    assert counts.failed == 1
    assert counts.pages == 22
    assert len(statuses(out)) == 22
    assert len((out / LISTING).read_text().splitlines()) == 22


def test_a_driver_killed_at_a_scheduler_leaves_nobody_at_its_page(
    scheduler_of_two: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    pages = make_pages(tmp_path / "in", "wait", "wait", "ok", "ok")
    process = start_driver(tmp_path, "--scheduler", scheduler_of_two)
    wait_for((pages / "page-0.began").exists)
    wait_for((pages / "page-1.began").exists)  # both workers are at a page
    process.kill()
    process.communicate()
    end = time.monotonic() + 60.0

    def assert_in_time(counts: PageCounts) -> None:
        assert time.monotonic() < end

    with stub_workers(scheduler_of_two) as pool:
        # Their children wait for ever: were they not killed, no page would be done.
        counts = run_jobs(jobs(pages), out, pool, progress=assert_in_time)

    assert counts.done == 4
    assert counts.kept == 0
    assert counts.failed == 0
    assert not list(out.glob("pages/*/*/.*"))


def test_a_scheduler_that_is_lost_is_one_sentence_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT_SECONDS", 1)  # so long it waits for a new one
    out = tmp_path / "out"
    pages = make_pages(tmp_path / "in", *["ok"] * 40)

    def lose_scheduler(counts: PageCounts) -> None:
        if counts.done >= 3 and cluster.scheduler.status.name == "running":
            cluster.sync(cluster.scheduler.close)

    with (
        dask_cluster() as cluster,
        stub_workers(cluster.scheduler_address) as pool,
        pytest.raises(OcrPhasesError, match="scheduler was lost"),
    ):
        run_jobs(jobs(pages), out, pool, progress=lose_scheduler)

    assert 3 <= len(statuses(out)) < 40


CERTIFICATE_SETTINGS = (
    "distributed.comm.tls.ca-file",
    "distributed.comm.tls.client.cert",
    "distributed.comm.tls.client.key",
)


@pytest.fixture
def tls_cluster(tmp_path: Path) -> Iterator[Any]:
    """A cluster with TLS, and dask's configuration with the certificates for it."""
    pytest.importorskip("cryptography")
    distributed = pytest.importorskip("distributed")
    import dask

    security = distributed.Security.temporary()
    contents = (security.tls_ca_file, security.tls_client_cert, security.tls_client_key)
    config = {}
    for setting, content in zip(CERTIFICATE_SETTINGS, contents, strict=True):
        file = tmp_path / setting
        file.write_text(content)
        config[setting] = str(file)
    with (
        dask_cluster(protocol="tls://", security=security) as cluster,
        dask.config.set(config),
    ):
        yield cluster


def test_the_workers_of_a_scheduler_with_tls_let_go_of_their_model_at_the_end(
    tls_cluster: Any, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    pages = make_pages(tmp_path / "in", "ok")

    with stub_workers(tls_cluster.scheduler_address) as pool:
        assert not pool.is_plain
        assert auto_device(pool) == "cpu"
        assert run_jobs(jobs(pages), out, pool).done == 1
        (status,) = statuses(out).values()
        _, _, process_id = status["attempts"][0].worker.rpartition(":")
        process = psutil.Process(int(process_id))
        assert not has_ended(process)

    wait_for(lambda: has_ended(process))


def test_a_scheduler_that_does_not_answer_is_one_sentence(
    tls_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask

    monkeypatch.setattr(dask_workers, "CONNECT_SECONDS", 0.2)
    address = tls_cluster.scheduler_address
    no_certificate = dict.fromkeys(CERTIFICATE_SETTINGS)
    wrong_certificate = dict.fromkeys(CERTIFICATE_SETTINGS, str(tmp_path / "none.pem"))
    without_tls = address.replace("tls", "tcp")
    nobody = "tcp://127.0.0.1:1"

    for place, config in (
        (address, no_certificate),
        (address, wrong_certificate),
        (without_tls, {}),
        (nobody, {}),
    ):
        with dask.config.set(config), pytest.raises(OcrPhasesError, match="does not answer"):
            DaskWorkers(place)
        # distributed deadlocks where the collector finds a client that failed while the next one
        # starts.
        gc.collect()


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_batch_without_workers_waits_as_long_as_it_was_told(
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(dask_workers, "COUNT_SECONDS", 0.0)
    monkeypatch.setattr(driver, "WAIT_SECONDS", 0.05)
    command = ["batch", str(PAGES / "slide.png"), "--out", str(tmp_path), *QUICK]
    command += ["--device", device, "--wait-workers", "0.2"]

    with dask_cluster(0) as cluster:
        code = main([*command, "--scheduler", cluster.scheduler_address])

    assert code == 2
    said = capsys.readouterr().err
    assert says(said, "no worker", "0.2 s")
    assert said.count("has no TLS") == 1
    assert not list(tmp_path.rglob("status.json"))
