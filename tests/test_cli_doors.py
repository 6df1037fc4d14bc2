"""The ways into the command line: ``python -m ocr_phases``, and what a shell completes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocr_phases.versions import __version__


def started(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``python -m ocr_phases`` with these words, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ocr_phases", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )


def test_the_package_runs_as_the_command() -> None:
    done = started("--version")
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


def test_the_package_ends_with_the_exit_code_of_the_command(tmp_path: Path) -> None:
    done = started("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == 2
    assert done.stderr.startswith("ocr-phases: ")


@pytest.mark.parametrize(
    ("line", "completion"),
    [
        ("ocr-phases comp", "compare"),
        ("ocr-phases compare --fail", "--fail-above"),
        ("ocr-phases profile --max-new", "--max-new-tokens"),
    ],
)
def test_a_shell_completes_verbs_and_options(line: str, completion: str, tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    answer = tmp_path / "completions"
    done = started(
        _ARGCOMPLETE="1",
        _ARGCOMPLETE_STDOUT_FILENAME=str(answer),
        COMP_LINE=line,
        COMP_POINT=str(len(line)),
    )
    assert done.returncode == 0, done.stderr
    assert answer.read_text().strip() == completion
