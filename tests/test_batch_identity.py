"""What a page of a batch is known by, beyond its file and its settings: source, revision, device."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from ocr_phases import versions
from ocr_phases.batch import jobs as batch_jobs
from ocr_phases.batch import worker
from ocr_phases.batch.child import Outcome
from ocr_phases.batch.driver import auto_device
from ocr_phases.batch.jobs import Job, Page, make_jobs
from ocr_phases.errors import OcrPhasesError
from ocr_phases.versions import code_hash

HUB = "some-org/some-model"
PACKAGE = Path(versions.__file__).parent

#: A change of an installed package's file, and whether its hash changes.
CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "compiled": (lambda package: (package / "inputs/packing.pyc").write_text("changed"), False),
    "changed": (lambda package: (package / "steps/phases.py").write_text("changed"), True),
    "a family": (lambda package: (package / "families.toml").write_text("changed"), True),
    "new": (lambda package: (package / "new.py").touch(), True),
    "removed": (lambda package: (package / "text.py").unlink(), True),
    "renamed": (lambda package: (package / "text.py").rename(package / "text2.py"), True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_of_an_installed_package_changes_its_hash(tmp_path, change):
    package = shutil.copytree(PACKAGE, tmp_path / "ocr_phases")
    before = code_hash.__wrapped__(package)
    assert before == code_hash() == batch_jobs.code_versions()["code"]
    make, counts = CHANGES[change]
    make(package)
    assert (code_hash.__wrapped__(package) != before) == counts


def test_a_page_is_done_again_after_a_change_of_the_code_or_of_the_built_in_model(tmp_path, monkeypatch):
    before = one_job()
    monkeypatch.setattr(batch_jobs, "code_hash", lambda: "another")
    batch_jobs.code_versions.cache_clear()
    changed = one_job()
    monkeypatch.undo()
    batch_jobs.code_versions.cache_clear()
    assert changed.id != before.id
    checkout = shutil.copytree(
        versions.asset("data", "tiny"), tmp_path / "tiny", copy_function=shutil.copyfile
    )
    monkeypatch.setattr(batch_jobs, "asset", lambda *parts: checkout)
    assert one_job().id == before.id  # its files have other times
    (checkout / "tokenizer.json").write_text("{}")
    retrained = one_job()
    assert retrained.id not in (before.id, changed.id)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache of its own, empty, and no hub."""
    import huggingface_hub

    def unreachable(*args: Any, **options: Any) -> str:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put_in_cache(cache: Path, commit: str) -> Path:
    """``main`` of `HUB` is ``commit``."""
    folder = cache / f"models--{HUB.replace('/', '--')}"
    for path, text in ((folder / "refs/main", commit), (folder / f"snapshots/{commit}/config.json", "{}")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def one_job(**settings: Any) -> Job:
    (job,) = make_jobs([Page("a.png", "/none/a.png")], {"model": "tiny", **settings})
    return job


def test_a_hub_model_is_known_by_the_commit_in_the_cache(cache, monkeypatch):
    unknown = one_job(model=HUB)
    assert "revision" not in unknown.settings
    put_in_cache(cache, "a" * 40)
    first = one_job(model=HUB)
    put_in_cache(cache, "b" * 40)
    second = one_job(model=HUB)
    assert (first.settings["revision"], second.settings["revision"]) == ("a" * 40, "b" * 40)
    assert len({unknown.id, first.id, second.id}) == 3
    assert "revision" not in one_job(model="tiny").settings

    # What is not in the cache is settled there, once.
    fetched: list[tuple[str, ...]] = []
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: None)
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download",
        lambda *names: fetched.append(names) or str(put_in_cache(cache, "c" * 40)),
    )
    assert one_job(model=HUB).settings["revision"] == "b" * 40
    assert not fetched
    (cache / f"models--{HUB.replace('/', '--')}" / "refs/main").unlink()
    assert [one_job(model=HUB).settings["revision"] for _ in range(2)] == ["c" * 40] * 2
    assert fetched == [(HUB, "config.json")]


def test_a_worker_loads_the_revision_that_its_page_is_known_by(cache, monkeypatch, tmp_path):
    def load(model: str, **options: Any) -> object:
        raise OcrPhasesError(f"Not here: {model} {options['device']} {options['revision']}.")

    put_in_cache(cache, "a" * 40)
    monkeypatch.setattr("ocr_phases.session.OCRSession.load", load)
    job = one_job(model=HUB, device="cpu", dtype=None)
    with refused(worker.Refused):
        worker.measure_page({"job": dict(vars(job)), "folder": str(tmp_path)}, lambda: None)


class Workers:
    """A pool whose workers, from the second time they are asked on, have these devices (None: they die)."""

    def __init__(self, *devices: str | None) -> None:
        self.devices = devices
        self.asked = 0

    def ask(self, request: Any) -> list[Future[Outcome]]:
        self.asked += 1
        if self.asked == 1:
            return []
        futures: list[Future[Outcome]] = [Future() for _ in self.devices]
        for future, device in zip(futures, self.devices, strict=True):
            future.set_result(Outcome(device=device) if device else Outcome("died", "It has no torch."))
        return futures


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(["cuda", "cuda"], "cuda"), (["cpu", None], "cpu"), (["cuda", "cpu"], None), ([None], None)],
)
def test_the_device_of_all_workers_is_one(devices, expected, monkeypatch):
    monkeypatch.setattr("ocr_phases.batch.driver.WAIT_SECONDS", 0.01)
    waited: list[int] = []
    pool: Any = Workers(*devices)
    if expected is None:
        with refused():
            auto_device(pool, lambda: waited.append(1))
    else:
        assert auto_device(pool, lambda: waited.append(1)) == expected
    assert waited
