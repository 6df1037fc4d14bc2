"""Shared fixtures: the recorded vendor data and loaded models, made once a session."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import hypothesis
import pytest
import refusals
from example_run import ATTACK, make_run

import ocr_phases
from ocr_phases.models.folders import transformers_version
from ocr_phases.report.render import page_report

if TYPE_CHECKING:
    from ocr_phases import OCRSession
    from ocr_phases.inputs.packing import DeviceInputs

# Fixtures import what needs torch: xdist reads this file before it starts the workers.
if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core; what it starts has no more
    import torch

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)

# Stands in for a package that parses web addresses, of which no notebook's schema has one, and
# which takes seconds to set up in each process.
LIGHT = str(Path(__file__).parent / "light")
sys.path.insert(0, LIGHT)
os.environ["PYTHONPATH"] = f"{LIGHT}:{Path(__file__).parents[1]}"

# Tests start many processes, and each would compile the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Drawing is slow on a busy machine, which is no fault of a test.
hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    max_examples=30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")

# A background job ignores Ctrl-C, nohup a hang-up, and so would the commands that the tests stop
# with them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

#: What the vendors' code gave for each family.
GOLDEN = Path(__file__).parent / "golden"
GOLDEN_2 = GOLDEN / "deepseek-ocr-2"
GOLDEN_UNLIMITED = GOLDEN / "unlimited-ocr"
RECORD = GOLDEN / "run.json"
PAGES = Path(__file__).parents[1] / "data" / "pages"
TINY_CONFIG = json.loads((PAGES.parent / "tiny" / "config.json").read_text())
RUNS = PAGES.parent / "runs"
GPU_RECORD = RUNS / "h200-dummy-gundam.json.gz"
#: Sizes of a dummy model that is quick to make and to run.
SMALL_SIZES = "layers=2,hidden=64,heads=2,experts=8,vocab=2304,sam_layers=1,clip_layers=1"
SMALL_DUMMY = f"dummy:{SMALL_SIZES}"
#: How a program begins that cannot import torch.
NO_TORCH = "import sys\nsys.modules.update(torch=None, transformers=None)\n"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """As many workers as there are cores: one more makes all of them together take a quarter more
    of the processor's time.
    """
    return os.cpu_count() or 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that accepts new sentences and outputs."""
    parser.addoption(
        "--approve", action="store_true", help="accept what users see now (tests/approved)"
    )


#: The files that take longest: begun first, they leave small ones for the end, where workers would
#: wait.
LONGEST = (
    "explorer_browser",
    "server_streams",
    "bad_inputs",
    "explorer",
    "report_browser",
    "approved",
    "phases",
    "batch_damage",
    "axe",
    "any_class",
    "more_any_classes",
    "session",
    "strategies",
    "generation",
    "report",
    "crash_points",
    "batch",
    "batch_model",
    "packaging",
    "notebook_look",
    "engines",
    "sweep",
    "cost",
    "faults",
    "unknown_family",
    "papermill",
    "families",
    "finite_logits",
    "shares",
    "published",
    "batch_dask",
    "docs",
    "page",
    "no_image",
)


def pytest_configure(config: pytest.Config) -> None:
    """Hand the option on, and leave the order of the files to `pytest_collection_modifyitems`."""
    refusals.approve = config.getoption("--approve")
    config.option.loadscopereorder = False  # xdist's own order begins with the files of most tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}

    def place_of(item: pytest.Item) -> int:
        return places.get(item.path.stem, len(places))

    items.sort(key=place_of)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without collections of garbage, and keep later ones from what stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def few_objects_to_look_through() -> None:
    """Collections of garbage look through what tests of this file made, not of those before it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def golden_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """A function that gives a recording's checkpoint as a folder to load.

    The repository holds the weights packed; they are unpacked once, into a temporary folder.
    """
    unpacked = tmp_path_factory.mktemp("golden")

    def checkpoint_of(recording: Path) -> Path:
        folder = unpacked / recording.name / "checkpoint"
        if not folder.exists():
            shutil.copytree(recording / "checkpoint", folder)
            packed = folder / "model.safetensors.xz"
            packed.with_suffix("").write_bytes(lzma.decompress(packed.read_bytes()))
            packed.unlink()
        return folder

    return checkpoint_of


def native_session(recording: Path) -> Callable[[], OCRSession]:
    """A fixture that gives the native model of a recorded checkpoint."""

    @pytest.fixture(scope="session")
    def session(golden_checkpoint: Callable[[Path], Path]) -> OCRSession:
        if transformers_version() < (5, 20):
            pytest.skip("the native classes need transformers 5.20")
        loaded = ocr_phases.OCRSession.from_local(
            golden_checkpoint(recording), device="cpu", dtype="float32"
        )
        gc.freeze()  # as for the built-in model
        return loaded

    return session


golden_session = native_session(GOLDEN)
ocr2_session = native_session(GOLDEN_2)
unlimited_session = native_session(GOLDEN_UNLIMITED)


@pytest.fixture(scope="session")
def vendor_session(standin: Path, remote_code: None) -> OCRSession:
    """The vendor's own class, played by `vendor_standin`."""
    from vendor_standin import RULES

    return ocr_phases.OCRSession.load(str(standin), device="cpu", **RULES)


@pytest.fixture
def driven(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[str, str], tuple[OCRSession, DeviceInputs]]]:
    """A function that gives the session and the inputs of a family's recorded case.

    For the vendor's class, which has no recording, the inputs are those of a page.
    """
    from golden_cases import RECORDINGS, recorded_inputs, seen_once, vendor_inputs

    with contextlib.ExitStack() as stack:

        def session_and_inputs(name: str, case: str) -> tuple[OCRSession, DeviceInputs]:
            recording = RECORDINGS.get(name)
            if recording is None:
                session = request.getfixturevalue("vendor_session")
                inputs = vendor_inputs(session, case)
            else:
                session = request.getfixturevalue(recording.session)
                inputs = recorded_inputs(name, case)
            stack.enter_context(seen_once(session))
            return session, inputs

        yield session_and_inputs


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """More threads than cores that are free would wait for each other in models of a few layers."""
    from ocr_phases.models.devices import cpu_threads

    with cpu_threads(1):
        yield


@pytest.fixture(scope="module")
def pixels_seen_once(golden_session: OCRSession) -> Iterator[None]:
    """SAM of the recorded model encodes each page once for all tests of a file."""
    from golden_cases import seen_once

    with seen_once(golden_session):
        yield


@pytest.fixture(scope="session")
def tiny_session() -> OCRSession:
    """The built-in model."""
    session = ocr_phases.OCRSession.load("tiny", device="cpu")
    gc.freeze()  # what was imported with it stays, as it does
    return session


@pytest.fixture(scope="module")
def quick_tiny_session(tiny_session: OCRSession) -> Iterator[OCRSession]:
    """The built-in model, whose SAM encodes each page once for all tests of a file."""
    from golden_cases import seen_once

    with seen_once(tiny_session):
        yield tiny_session


def report_fixture(name: str, make: Callable[[Path], object]) -> Callable[..., Path]:
    """A fixture that gives the folder of a report, which ``make`` writes.

    It is written once for all workers of this run of the tests.
    """

    @pytest.fixture(scope="session")
    def report_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        shared = tmp_path_factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:  # above the folders of the workers
            shared = shared.parent
        folder = shared / name
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "report.html").exists():
                make(folder)
        return folder

    return report_folder


def write_plain_report(folder: Path) -> None:
    """The report of a synthetic record."""
    page_report(make_run(), folder)


def write_attacked_report(folder: Path) -> None:
    """The report of a record whose text and file name try to become elements."""
    page_report(make_run(text=ATTACK, page_name="<b>page</b>.png"), folder)


def write_gpu_report(folder: Path) -> None:
    """The report of a record from a GPU, by the command, where torch cannot be imported."""
    program = f"{NO_TORCH}from ocr_phases.cli import main\nsys.exit(main())"
    arguments = ["report", "--record", str(GPU_RECORD), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=PAGES.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


plain_report = report_fixture("plain", write_plain_report)
attacked_report = report_fixture("attacked", write_attacked_report)
gpu_report = report_fixture("gpu", write_gpu_report)


@pytest.fixture
def no_comparison_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verb ``compare`` writes no page, which takes long to draw."""

    def path_of_no_page(*_: object, **__: object) -> Path:
        return tmp_path / "compare.html"

    monkeypatch.setattr("ocr_phases.report.render.write_report", path_of_no_page)


@pytest.fixture(scope="session")
def remote_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copies of a checkpoint's own code go to a folder of this test run."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", folder)
        yield


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with the vendor's class played by `vendor_standin`."""
    from vendor_standin import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "standin")


@pytest.fixture(scope="module")
def interpreted() -> Iterator[None]:
    """Triton interprets kernels instead of compiling them.

    It decides that when it is imported, for the rest of the process. So it must not have been
    imported before as a compiler, nor is there any interpreting where ``test_cuda.py`` has to
    compile.
    """
    import torch

    if torch.cuda.is_available():
        pytest.skip("test_cuda.py runs these kernels")
    with patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
        language = pytest.importorskip("triton.language")
        if type(language.sum).__name__ != "InterpretedFunction":
            pytest.skip("Triton was imported before, as a compiler")
        yield
