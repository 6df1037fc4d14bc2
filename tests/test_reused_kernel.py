"""One reused kernel for many notebooks: what one leaves behind, the next does not see."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from conftest import GOLDEN

from ocr_phases.errors import OcrPhasesError
from ocr_phases.report import render
from ocr_phases.report.jupyter_kernels import KernelLost, ReusedKernel
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
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReusedKernel]:
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernelspec})
    notebook.cells = [
        nbformat.v4.new_code_cell('word = ""', metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(NOTEBOOK),
    ]
    nbformat.write(notebook, tmp_path / "probe.ipynb")
    monkeypatch.setattr(render, "_notebook", lambda name: tmp_path / f"{name}.ipynb")
    kernel = ReusedKernel(pages_a_kernel=4)
    yield kernel
    kernel.stop()


def run(kernel: ReusedKernel, folder: Path, word: str, **options: float) -> tuple[str, int]:
    """What the notebook printed, and its kernel's process."""
    target = execute_notebook("probe", {"word": word}, folder / f"{word}.ipynb", kernel=kernel, **options)
    outputs = nbformat.read(target, as_version=4).cells[-1].outputs
    return outputs[0].text.strip(), int(outputs[1].data["text/plain"])


def test_a_reused_kernel_forgets_all_names_and_survives_what_fails(kernel, tmp_path):
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


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_kernel_is_reached_by_its_user_alone(transport, tmp_path):
    # A UNIX socket's path may have 107 characters.
    with tempfile.TemporaryDirectory() as short:
        scratch = tmp_path / ("long" * 25) if transport == "tcp" else Path(short)
        scratch.mkdir(exist_ok=True)
        kernel = ReusedKernel(scratch=str(scratch))
        try:
            kernel.run("pass")
            connection = json.loads(Path(kernel.manager.connection_file).read_text())
            assert (connection["transport"], bool(connection["key"])) == (transport, True)
            if hasattr(kernel.manager, "transport_encryption"):
                assert ("curve_secretkey" in connection) is (transport == "tcp")
            process = kernel.manager.provisioner.pid
            found = psutil.net_connections("inet")
            listening = [each for each in found if (each.pid, each.status) == (process, "LISTEN")]
            assert {each.laddr.ip for each in listening} <= {"127.0.0.1"}
            folder = Path(kernel.folder.name)
            for path in (folder, folder / "kernel.json"):
                assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        finally:
            kernel.stop()


def test_a_report_that_is_stopped_says_so_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "ocr_phases.cli", "report", "--record", str(GOLDEN / "run.json")]
    with tempfile.TemporaryDirectory() as short:
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "out")],
            env={**os.environ, "TMPDIR": short},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not list(Path(short).rglob("executed.ipynb")):  # the kernel runs its first cell
            assert process.poll() is None
            time.sleep(0.02)
        kernels = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, ("", "ocr-phases: stopped.\n"))
        assert not any(kernel.is_running() for kernel in kernels)
        assert not [path for path in Path(short).rglob("*") if path.is_file()]
        assert not list((tmp_path / "out").glob(".*"))


def test_code_that_fails_beside_a_notebook_says_so(kernel):
    with pytest.raises(OcrPhasesError, match="no such thing"):
        kernel.run("raise LookupError('no such thing')")
    with pytest.raises(KernelLost, match="it died"):
        kernel.run("import os; os._exit(3)")
