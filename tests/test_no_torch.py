"""Everything right of the record works without torch, without a GPU and without a model."""

import json
import subprocess
import sys
from pathlib import Path

from test_rooms import FRONT_DOOR, ROOT, modules, room_of

#: The rooms that need torch.
WITH_TORCH = ("inputs", "models", "collectors", "steps", "measure", "session")
#: What does not, of those rooms: a server is measured without torch.
WITHOUT_TORCH = (
    "ocr_phases.collectors.nvml",
    "ocr_phases.inputs.rows",
    "ocr_phases.inputs.views",
    "ocr_phases.measure.memory_fit",
    "ocr_phases.measure.progress",
    "ocr_phases.measure.record_parts",
    "ocr_phases.measure.request",
    "ocr_phases.measure.runs",
    "ocr_phases.measure.verdicts",
    "ocr_phases.models.dummies",
    "ocr_phases.models.folders",
    "ocr_phases.steps.capacity",
)
IMPORTED = """
import importlib, json, sys
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
    assert not {"torch", "transformers", "matplotlib.pyplot"} & set(sys.modules), module
"""


def test_no_import_brings_torch_or_pyplot() -> None:
    """Nor do the libraries of notebooks that are imported."""
    names = ["IPython.display", "ipywidgets", *WITHOUT_TORCH]
    for module in sorted(modules(ROOT)):
        if module != FRONT_DOOR and room_of(module) not in WITH_TORCH:
            names.append(module)
    names.remove("ocr_phases.__main__")
    names.remove("ocr_phases.cli.__main__")
    assert len(names) > 70
    command = [sys.executable, "-c", IMPORTED, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


WITHOUT_TEXT_LIBRARIES = """
import sys
sys.modules["rapidfuzz"] = sys.modules["apted"] = None
from ocr_phases import PhaseRun, compare
first, second = map(PhaseRun.load, sys.argv[1:])
assert first._repr_mimebundle_()["text/html"] and first.explore() is not None
equal, differing = compare(first, first), compare(first, second)
for comparison in (equal, differing):
    assert comparison._repr_mimebundle_()["text/html"]
verdicts = [each.table.set_index("metric").verdict["agreement"] for each in (equal, differing)]
assert verdicts == ["equal", "n/a"], verdicts
told = " ".join(differing.findings)
assert "agreement is n/a: rapidfuzz is not installed (pip install rapidfuzz apted)" in told, told
"""


def test_records_show_explore_and_compare_without_rapidfuzz_and_apted() -> None:
    names = ("h200-invoice-eager", "h200-invoice-cuda_graph")
    records = [str(ROOT / "data" / "runs" / f"{name}.json.gz") for name in names]
    command = [sys.executable, "-c", WITHOUT_TEXT_LIBRARIES, *records]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_gpu_record_becomes_a_report_where_torch_cannot_be_imported(gpu_report: Path) -> None:
    report = (gpu_report / "report.html").read_text()
    assert "NVIDIA H200" in report and "SAM" in report
