"""Shared fixtures: the recorded vendor data and loaded models, made once a session."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from example_run import ATTACK, make_run, report_of
from safetensors.torch import load_file

from ocr_phases import DeepSeekOCRSession

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core; what it starts has no more
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)

GOLDEN = Path(__file__).parent / "golden"
RECORD = GOLDEN / "run.json"
PAGES = Path(__file__).parents[1] / "data" / "pages"
TINY_CONFIG = json.loads((PAGES.parent / "tiny" / "config.json").read_text())
SMALL_DUMMY = "dummy:layers=2,hidden=64,heads=2,experts=6,vocab=2304,sam_layers=1,clip_layers=1"


@pytest.fixture(scope="session")
def golden_session() -> DeepSeekOCRSession:
    return DeepSeekOCRSession.from_local(GOLDEN / "checkpoint", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def tiny_session() -> DeepSeekOCRSession:
    return DeepSeekOCRSession.load("tiny", device="cpu")


@pytest.fixture(scope="session")
def golden_forward() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "forward.safetensors")


@pytest.fixture(scope="session")
def plain_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of a page report made from a synthetic record."""
    return report_of(make_run(), tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def attacked_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same of a record whose text and file name try to become elements."""
    run = make_run(text=ATTACK, page_name="<b>page</b>.png")
    return report_of(run, tmp_path_factory.mktemp("attacked"))


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
