"""Everything right of the record works without torch, without a GPU and without a model."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import ocr_phases

#: Modules at the top that need torch.
SESSION = {"session", "recorder", "rerun", "setup", "sweep_models"}
ROOMS = (
    "ocr_phases.engines",
    "ocr_phases.analyse",
    "ocr_phases.show",
    "ocr_phases.report",
    "ocr_phases.batch",
)


def modules() -> list[str]:
    measuring = ("inputs.images", "inputs.views")
    ground = [
        path.stem
        for path in sorted(Path(ocr_phases.__path__[0]).glob("[!_]*.py"))
        if path.stem not in SESSION
    ]
    names = ["ocr_phases", *(f"ocr_phases.{name}" for name in (*ground, *measuring)), *ROOMS]
    for room in ROOMS:
        paths = importlib.import_module(room).__path__
        names += [module.name for module in pkgutil.walk_packages(paths, prefix=f"{room}.")]
    return names


IMPORTED_APART = """
import importlib, json, os, sys
import matplotlib.pyplot, numpy, pandas, PIL.Image
import IPython.display, ipywidgets
heavy = {"torch", "transformers"}
assert not heavy & set(sys.modules), "a library brings them"
for module in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        try:
            importlib.import_module(module)
            found = sorted(heavy & set(sys.modules))
        except BaseException as error:
            found = [f"{type(error).__name__}: {error}"]
        print(json.dumps([module, found]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """For each module, imported where none of the others is, what it brought or what went wrong."""
    command = [sys.executable, "-c", IMPORTED_APART, json.dumps(modules())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("module", modules())
def test_import_leaves_torch_alone(module: str, imported: dict[str, list[str]]) -> None:
    assert imported[module] == []


def test_a_record_is_read_and_shown_without_torch(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["torch"] = None  # an import of it would now fail
sys.path.insert(0, sys.argv[2])
from example_run import make_run
from ocr_phases import PhaseRun
from ocr_phases.analyse.sentences import verdict
from ocr_phases.show import figures, plots, results
run = PhaseRun.load(make_run().save(sys.argv[1]))
assert verdict(run) and results.head_html(run) and figures.figure_png(plots.plot_phase_timeline(run))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "run.json"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_gpu_record_becomes_a_report_where_torch_cannot_be_imported(gpu_report: dict[str, Path]) -> None:
    report = gpu_report["report.html"].read_text()
    assert "NVIDIA H200" in report
    assert "SAM" in report
