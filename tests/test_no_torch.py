"""Everything right of the record works without torch, without a GPU and without a model."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import ocr_phases

#: Modules at the top that need torch.
SESSION = {"session", "recorder", "rerun", "setup", "sweep_models"}
ROOMS = ("engines", "analyse", "show", "report", "batch")
IMPORTED = """
import importlib, json, sys
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
    assert not {"torch", "transformers"} & set(sys.modules), module
"""


def modules() -> list[str]:
    names = ["inputs.images", "inputs.views", *ROOMS]
    names += [path.stem for path in sorted(Path(ocr_phases.__path__[0]).glob("[!_]*.py"))]
    found = [f"ocr_phases.{name}" for name in names if name not in SESSION]
    for room in ROOMS:
        path = importlib.import_module(f"ocr_phases.{room}").__path__
        found += [module.name for module in pkgutil.walk_packages(path, prefix=f"ocr_phases.{room}.")]
    return found


def test_no_import_brings_torch() -> None:
    """Nor do the libraries of notebooks that are imported."""
    names = ["IPython.display", "ipywidgets", "ocr_phases", *modules()]
    assert len(names) > 50
    command = [sys.executable, "-c", IMPORTED, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_gpu_record_becomes_a_report_where_torch_cannot_be_imported(gpu_report: dict[str, Path]) -> None:
    report = gpu_report["report.html"].read_text()
    assert "NVIDIA H200" in report
    assert "SAM" in report
