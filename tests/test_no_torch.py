"""Everything right of the record works without torch, without a GPU and without a model."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("ocr_phases.analyse", "ocr_phases.show", "ocr_phases.report", "ocr_phases.batch")


def modules() -> list[str]:
    measuring = ("measure.inputs.images", "measure.inputs.request", "measure.inputs.type_size")
    both = ("presets", "record", "strategies", "type_fit", *measuring)
    names = ["ocr_phases", *(f"ocr_phases.{name}" for name in both), *ROOMS]
    for room in ROOMS:
        paths = importlib.import_module(room).__path__
        names += [module.name for module in pkgutil.walk_packages(paths, prefix=f"{room}.")]
    return names


@pytest.mark.parametrize("module", modules())
def test_import_leaves_torch_alone(module: str) -> None:
    program = f"import sys, {module}; print({{'torch', 'transformers'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stderr


def test_a_record_is_read_and_shown_without_torch(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["torch"] = None  # an import of it would now fail
sys.path.insert(0, sys.argv[2])
from example_run import make_run
from ocr_phases import PhaseRun
from ocr_phases.analyse.headline import verdict
from ocr_phases.show import figures, html, plots
run = PhaseRun.load(make_run().save(sys.argv[1]))
assert verdict(run) and html.header_html(run) and figures.figure_png(plots.plot_phase_timeline(run))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "run.json"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_gpu_record_becomes_a_report_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    for name in ("torch", "transformers"):
        blocked = tmp_path / "blocked" / name
        blocked.mkdir(parents=True)
        (blocked / "__init__.py").write_text(f"raise ImportError('{name} is not here')")
    record = Path(__file__).parents[1] / "data" / "runs" / "h200-dummy-gundam.json"
    command = [sys.executable, "-m", "ocr_phases.cli", "report", "--record", str(record)]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "blocked")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "out" / "report.html").read_text()
    assert "NVIDIA H200" in report
    assert "SAM" in report
