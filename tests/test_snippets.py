"""The Python that README and docs show runs as it stands, and so does the quickstart."""

from __future__ import annotations

import re
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


def snippets(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if snippets(path)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_snippets_run(
    path: Path, tiny_session: OCRSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").symlink_to(asset("data"))
    (tmp_path / "page.png").symlink_to(asset("data", "pages", "slide.png"))
    run = PhaseRun.load(RECORD)
    run.save(tmp_path / "run.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(OCRSession, "load", lambda *_, **__: tiny_session)
    measure = tiny_session.run_inference

    def quickly(*given: Any, **asked: Any) -> PhaseRun:
        few = {"preset": "tiny", "max_new_tokens": 6, "repeats": 2, "warmup": 0, "ceilings": False}
        return measure(*given, **{**asked, **few})

    monkeypatch.setattr(tiny_session, "run_inference", quickly)
    names: dict[str, Any] = {"session": tiny_session, "run": run}
    for place, snippet in enumerate(snippets(path)):
        if (path.name, place) not in SKIPPED:
            exec(compile(snippet, f"{path.name}, snippet {place}", "exec"), names)


def test_what_is_skipped_is_there() -> None:
    assert {key for key in SKIPPED if key[1] >= len(snippets(ROOT / "docs" / key[0]))} == set()


def test_the_quickstart_runs(tmp_path: Path) -> None:
    parameters = {"preset": "tiny", "other_preset": "small", "max_new_tokens": 8, "output_dir": str(tmp_path)}
    executed = execute_notebook("quickstart", parameters, tmp_path / "q.ipynb")
    code = [cell for cell in nbformat.read(executed, as_version=4).cells if cell.cell_type == "code"]
    shown = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in code]
    assert sum("text/html" in kinds for kinds in shown) == 12
    assert (tmp_path / "report.html").exists()
    assert PhaseRun.load(tmp_path / "quickstart.json").request["max_new_tokens"] == 8


def test_readme_s_python_is_the_quickstart_s() -> None:
    """Every call that README shows of a session or a run is one of the quickstart's."""
    quickstart = (ROOT / "notebooks" / "quickstart.ipynb").read_text(encoding="utf-8")
    calls = re.findall(
        r"\b(?:session|run|OCRSession|PhaseRun)\.[\w.]+\(", "".join(snippets(ROOT / "README.md"))
    )
    assert calls
    assert [call for call in calls if call not in quickstart] == []
