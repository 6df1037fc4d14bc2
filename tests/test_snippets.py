"""The Python that README and docs show runs as it stands, and so does the quickstart."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import RECORD

from ocr_phases import OCRSession
from ocr_phases.record import PhaseRun
from ocr_phases.report.render import execute_notebook
from ocr_phases.versions import asset

ROOT = Path(__file__).parents[1]
#: Snippets that need what is not here, by page and place in it.
SKIPPED = {
    ("engines.md", 0): "a server",
    ("models.md", 0): "a model of the family",
    ("models.md", 1): "the published weights",
}
FEW = {"repeats": 2, "warmup": 0, "ceilings": False}


def snippets(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if snippets(path)]


@pytest.fixture
def quick(tiny_session: OCRSession, monkeypatch: pytest.MonkeyPatch) -> OCRSession:
    """The built-in model's session, which `load` gives and whose every run is short."""
    short = partial(measure, tiny_session.run_inference)
    monkeypatch.setattr(OCRSession, "load", lambda *_, **__: tiny_session)
    monkeypatch.setattr(tiny_session, "run_inference", short)
    return tiny_session


def measure(run_inference: Any, *given: Any, max_new_tokens: int = 6, **asked: Any) -> PhaseRun:
    return run_inference(
        *given, **{"preset": "tiny", **asked, **FEW, "max_new_tokens": min(max_new_tokens, 8)}
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_snippets_run(path: Path, quick: OCRSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").symlink_to(asset("data"))
    (tmp_path / "page.png").symlink_to(asset("data", "pages", "slide.png"))
    run = PhaseRun.load(RECORD)
    run.save(tmp_path / "run.json")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"session": quick, "run": run}
    for place, snippet in enumerate(snippets(path)):
        if (path.name, place) not in SKIPPED:
            exec(compile(snippet, f"{path.name}, snippet {place}", "exec"), names)
    assert {place for name, place in SKIPPED if name == path.name} <= {*range(len(snippets(path)))}


def test_the_quickstart_runs_with_every_call_of_the_readme(quick: OCRSession, tmp_path: Path) -> None:
    parameters = {"preset": "tiny", "other_preset": "small", "max_new_tokens": 8, "output_dir": str(tmp_path)}
    notebook = nbformat.read(execute_notebook("quickstart", parameters, tmp_path / "q.ipynb"), as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in code]
    assert sum("text/html" in kinds for kinds in shown) == 12
    assert (tmp_path / "report.html").exists()
    assert PhaseRun.load(tmp_path / "quickstart.json").request["max_new_tokens"] == 8
    source, readme = "".join(cell.source for cell in code), "".join(snippets(ROOT / "README.md"))
    calls = re.findall(r"\b(?:session|run|OCRSession|PhaseRun)\.[\w.]+\(", readme)
    assert calls and not [call for call in calls if call not in source]
