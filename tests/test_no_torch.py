"""Everything right of the record works without torch, without a GPU and without a model."""

import json
import subprocess
import sys
from pathlib import Path

from test_rooms import ROOMS, ROOT, modules, room

#: Of the rooms up to `session`, which need torch, what does not.
WITHOUT_TORCH = ("ocr_phases.images", "ocr_phases.inputs.views")
IMPORTED = """
import importlib, json, sys
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
    assert not {"torch", "transformers", "matplotlib.pyplot"} & set(sys.modules), module
"""


def test_no_import_brings_torch_or_pyplot() -> None:
    """Nor do the libraries of notebooks that are imported."""
    above = {name for name in modules(ROOT) if room(name) > ROOMS.index("session")}
    ground = {name for name in modules(ROOT) if room(name) < 0}
    names = ["IPython.display", "ipywidgets", *WITHOUT_TORCH, *sorted(ground), *sorted(above)]
    names.remove("ocr_phases.cli.__main__")
    assert len(names) > 70
    command = [sys.executable, "-c", IMPORTED, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_gpu_record_becomes_a_report_where_torch_cannot_be_imported(gpu_report: Path) -> None:
    report = (gpu_report / "report.html").read_text()
    assert "NVIDIA H200" in report and "SAM" in report
