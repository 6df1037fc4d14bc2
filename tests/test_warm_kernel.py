"""One warm kernel for many notebooks: what one leaves behind, the next does not see."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from ocr_phases.errors import OcrPhasesError
from ocr_phases.report import render
from ocr_phases.report.jupyter_kernels import KernelLost, WarmKernel
from ocr_phases.report.render import execute_notebook

NOTEBOOK = """\
leftover = [name for name in ("mark", "json") if name in globals()]
print("left", leftover, "history", len(Out) if "Out" in globals() else 0)
mark, text = "x", word
import json, os
if word == "fail": raise ValueError("as asked")
if word == "die": os._exit(3)
if word == "hang":
    while True: pass
os.getpid()
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmKernel]:
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernelspec})
    notebook.cells = [
        nbformat.v4.new_code_cell('word = ""', metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(NOTEBOOK),
    ]
    nbformat.write(notebook, tmp_path / "probe.ipynb")
    monkeypatch.setattr(render, "_notebook", lambda name: tmp_path / f"{name}.ipynb")
    kernel = WarmKernel(pages_a_kernel=4)
    yield kernel
    kernel.stop()


def run(kernel: WarmKernel, folder: Path, word: str, **options: float) -> tuple[str, int]:
    """What the notebook printed, and its kernel's process."""
    target = execute_notebook("probe", {"word": word}, folder / f"{word}.ipynb", kernel=kernel, **options)
    outputs = nbformat.read(target, as_version=4).cells[-1].outputs
    return outputs[0].text.strip(), int(outputs[1].data["text/plain"])


def test_a_warm_kernel_forgets_all_names_and_survives_what_fails(kernel, tmp_path):
    said, first = run(kernel, tmp_path, "one")
    assert said == "left [] history 0"
    files = len(list(Path("/proc/self/fd").iterdir()))
    assert run(kernel, tmp_path, "two") == (said, first)
    assert len(list(Path("/proc/self/fd").iterdir())) <= files  # the clients' sockets are closed
    with pytest.raises(OcrPhasesError, match="ValueError: as asked"):
        run(kernel, tmp_path, "fail")
    assert run(kernel, tmp_path, "four") == (said, first)
    said, fresh = run(kernel, tmp_path, "five")  # as many as one kernel does have run
    assert said == "left [] history 0"
    assert fresh != first
    with pytest.raises(OcrPhasesError, match="not run to its end"):
        run(kernel, tmp_path, "die")
    said, third = run(kernel, tmp_path, "seven")
    assert third not in (first, fresh)
    os.kill(third, signal.SIGKILL)  # between two notebooks
    assert run(kernel, tmp_path, "eight")[1] != third


def test_a_notebook_that_hangs_costs_its_kernel(kernel, tmp_path):
    _, first = run(kernel, tmp_path, "one")
    with pytest.raises(OcrPhasesError, match="not run to its end"):
        run(kernel, tmp_path, "hang", timeout=1.0)
    assert run(kernel, tmp_path, "two")[1] != first


def test_code_that_fails_beside_a_notebook_says_so(kernel):
    with pytest.raises(OcrPhasesError, match="no such thing"):
        kernel.run("raise LookupError('no such thing')")
    with pytest.raises(KernelLost, match="it died"):
        kernel.run("import os; os._exit(3)")
