"""The report: fragments, the notebook run in this process, and the one HTML file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import papermill
import pytest
from approving import seen
from conftest import PAGES, RECORD
from elements import Elements
from example_run import SHAPES, make_run, report_of
from refusals import refused
from test_approved import RECORDS

from ocr_phases.cli import main
from ocr_phases.errors import CannotWrite, NotebookFailed
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.wiring import NATIVE_NEEDS
from ocr_phases.record import PhaseRun
from ocr_phases.report import render
from ocr_phases.report.render import execute_notebook, render_html
from ocr_phases.show import results
from ocr_phases.versions import asset

# -- fragments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RECORDS, *SHAPES])
def test_a_first_screen_is_short(name: str) -> None:
    """At most 120 words before anything is unfolded, a number with its unit counted as one."""
    run = PhaseRun.load(RECORDS[name]) if name in RECORDS else make_run(**SHAPES[name])
    screen = re.sub(r"<details.*?</details>|<img.*?>", "", results.overview(run).html(), flags=re.DOTALL)
    words = re.findall(r"\d[\d,.]* (?:ms|s|%|kB|MB|GB)(?!\w)|\S*\w\S*", seen(screen))
    assert len(words) <= 120


def test_control_characters_and_lone_surrogates_are_replaced() -> None:
    assert "\x00" not in results.text_html("a\x00b\ud800c\x1b[31m")
    assert "\n\tb" in results.text_html("a\n\tb")
    results.text_html("\ud800").encode()


# -- running a notebook -------------------------------------------------------------------------------


@pytest.fixture
def notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of notebooks in place of the shipped ones."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setattr(render, "asset", lambda *parts: tmp_path.joinpath(*parts))
    return folder


def write_notebook(path: Path, *sources: str) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def test_a_notebook_runs_here_and_leaves_only_itself(
    notebooks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_notebook(
        notebooks / "small.ipynb", "x = 1", "import os, sys, ocr_phases\n[x, os.getcwd(), sys.executable]"
    )
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    target = execute_notebook("small", {"x": 41}, tmp_path / "out" / "done.ipynb")
    output = nbformat.read(target, as_version=4).cells[-1].outputs[0]
    assert "41" in output.data["text/plain"]
    assert str(here) in output.data["text/plain"]
    assert list(here.iterdir()) == []
    assert {path.name for path in target.parent.iterdir()} == {MANIFEST_NAME, "done.ipynb"}


def test_an_unknown_parameter_or_notebook_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for name, parameters in (("page_report", {"paeg": "x.png"}), ("other", {})):
        with refused():
            execute_notebook(name, parameters, tmp_path / "out.ipynb")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_cell_leaves_the_notebook_with_its_error(notebooks: Path, tmp_path: Path) -> None:
    write_notebook(notebooks / "broken.ipynb", "x = 1", "raise ValueError('no such\\npage')", "y = 2")
    target = tmp_path / "out.ipynb"
    with refused(NotebookFailed) as caught:
        execute_notebook("broken", {}, target)
    assert "\n" not in str(caught.value)
    names = {output.get("ename") for output in outputs_of(target)}
    assert "ValueError" in names
    assert not list(tmp_path.glob(".out*"))


def test_an_error_of_the_package_in_a_cell_is_raised_as_it_is(notebooks: Path, tmp_path: Path) -> None:
    source = "from ocr_phases.errors import CannotWrite\nraise CannotWrite('x cannot be written.')"
    write_notebook(notebooks / "own.ipynb", "x = 1", source)
    with refused(CannotWrite):
        execute_notebook("own", {}, tmp_path / "out.ipynb")
    assert read_valid(tmp_path / "out.ipynb").cells[-1].outputs[0].ename == "CannotWrite"


def test_a_report_in_a_kernel_leaves_the_user_s_names_and_history(tmp_path: Path) -> None:
    """A real kernel: names, `_`, history and the count of cells are the user's own."""
    cells = [
        "from ocr_phases import PhaseRun\nrun, page = PhaseRun.load(record), 'mine'\n40 + 2",
        "written = run.report(out)",
        "[page, _, In[2][:5], get_ipython().execution_count, 'settings' in globals(), written.exists()]",
    ]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    values = {"record": str(RECORD), "out": str(tmp_path / "out")}
    nb.cells.insert(0, nbformat.v4.new_code_cell(f"globals().update({values!r})"))
    nbformat.write(nb, tmp_path / "user.ipynb")
    done = papermill.execute_notebook(tmp_path / "user.ipynb", tmp_path / "done.ipynb", kernel_name="python3")
    assert [len(cell.outputs) for cell in done.cells] == [0, 1, 0, 1]
    assert done.cells[-1].outputs[0].data["text/plain"] == "['mine', 42, 'from ', 5, False, True]"


def test_the_papermill_command_measures_in_a_kernel(tmp_path: Path) -> None:
    if transformers_version() < NATIVE_NEEDS:
        pytest.skip("the native class needs transformers >= 5.20")
    source = str(asset("notebooks", "page_report.ipynb"))
    asked = {
        "page": PAGES / "slide.png",
        "preset": "tiny",
        "max_new_tokens": 6,
        "repeats": 1,
        "ceilings": False,
    }
    given = [word for item in asked.items() for word in ("-p", *map(str, item))]
    command = [sys.executable, "-m", "papermill", source, "out.ipynb", *given, "-k", "python3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Executing" in done.stderr  # papermill's bar
    check_shown(tmp_path / "out.ipynb")


@pytest.mark.parametrize(("name", "asked"), [("compare_runs", {}), ("verify", {"record": str(RECORD)})])
def test_papermill_runs_other_notebooks_by_our_engine(
    name: str, asked: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = str(asset("notebooks", f"{name}.ipynb"))
    papermill.execute_notebook(source, "out.ipynb", asked, engine_name="ocr_phases", progress_bar=False)
    check_shown(tmp_path / "out.ipynb")


def check_shown(path: Path) -> None:
    """A figure and no error."""
    outputs = list(outputs_of(path))
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("<svg" in output.get("data", {}).get("text/html", "") for output in outputs)


def outputs_of(path: Path) -> Iterator[nbformat.NotebookNode]:
    for cell in read_valid(path).cells:
        yield from cell.get("outputs", [])


def read_valid(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_a_cell_shows_what_a_kernel_would_show_of_it(notebooks: Path, tmp_path: Path) -> None:
    write_notebook(
        notebooks / "probe.ipynb",
        "x = 1\nname = None",
        "from ocr_phases.show.results import Section\nprint(x, name)\nprint('more')",
        "def doubled(number):\n    return number * 2\n\ndoubled(x)",
        "import pandas as pd\npd.DataFrame({'a': [x]})",
        "Section('<p>one</p>', '', '<p>two</p>')",
        "y = None\ny",
    )
    values = {"x": 21, "name": "it's \\ \u00e9\n\U0001f600"}
    cells = read_valid(execute_notebook("probe", values, tmp_path / "probe.ipynb")).cells
    shown = [[output.get("text") or output.data for output in cell.outputs] for cell in cells]
    assert shown[:2] == [[], []]
    assert shown[2] == [f"21 {values['name']}\nmore\n"]
    assert shown[3] == [{"text/plain": "42"}]
    assert "<td>21</td>" in shown[4][0]["text/html"]
    assert [data["text/html"] for data in shown[5]] == ["<p>one</p>", "<p>two</p>"]
    assert shown[6] == []


def test_one_notebook_leaves_the_next_nothing(notebooks: Path, tmp_path: Path) -> None:
    source = "left = [name for name in ('mark', 'x2') if name in globals()]\nmark = x2 = 1\nleft"
    write_notebook(notebooks / "probe.ipynb", "x = 1", source)
    for name in ("one", "two"):
        done = execute_notebook("probe", {}, tmp_path / f"{name}.ipynb")
        assert read_valid(done).cells[-1].outputs[0].data["text/plain"] == "[]"


def test_a_report_that_is_stopped_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped in its first cell."""
    monkeypatch.setattr(results, "style", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert main(["report", "--record", str(RECORD), "--out", str(tmp_path / "out")]) == 130
    assert tuple(capsys.readouterr()) == ("", "ocr-phases: stopped.\n")
    assert list((tmp_path / "out").iterdir()) == []


# -- the HTML file ------------------------------------------------------------------------------------


def test_a_report_is_complete_and_one_file(plain_report: dict[str, Path]) -> None:
    names = {"run.json", "result.mmd", "images", "result_with_boxes.jpg", "report.ipynb", "report.html"}
    assert names <= set(plain_report)
    document = plain_report["report.html"].read_text(encoding="utf-8")
    elements = Elements(document)
    assert not elements.open
    assert not elements.stray
    assert len(document) < 3_000_000
    assert [attributes for tag, attributes in elements.found if tag == "script"] == [{}]
    assert [attributes["href"] for tag, attributes in elements.found if tag == "link"] == ["data:,"]
    assert not [name for name in ("@import", "MathJax", "require.js") if name in document]
    for tag, attributes in elements.found:
        assert (attributes.get("src") or "data:").startswith("data:")
        if tag == "img":
            assert attributes["alt"]
        if tag == "a":
            assert (attributes["href"] or "").startswith("#")


def test_a_report_holds_no_code_unless_asked(plain_report: dict[str, Path], tmp_path: Path) -> None:
    body = plain_report["report.html"].read_text(encoding="utf-8").partition("<main>")[2]
    assert "PhaseRun.load" not in body
    assert "JupyterLab" not in body
    shown = render_html(plain_report["report.ipynb"], tmp_path / "code.html", show_code=True, title="<i>")
    document = shown.read_text(encoding="utf-8")
    assert "PhaseRun.load" in document
    assert "<title>&lt;i&gt;</title>" in document
    assert str(plain_report["run.json"].parent) not in document.partition("PhaseRun.load")[2]


def test_warnings_and_widgets_stay_out(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("x")
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "a widget"}
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="a warning 10%|###"),
        nbformat.v4.new_output("display_data", data={"application/javascript": "alert(1)"}),
        nbformat.v4.new_output("display_data", data=view),
        nbformat.v4.new_output("display_data", data={"text/markdown": "<b onclick='x'>bold</b>"}),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "n.ipynb")
    document = render_html(tmp_path / "n.ipynb", tmp_path / "n.html").read_text(encoding="utf-8")
    assert "warning" not in document
    assert "alert" not in document
    assert "<b" not in document.partition("<main>")[2]


def test_something_else_than_a_notebook_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text("{}")
    with refused():
        render_html(tmp_path / "n.ipynb", tmp_path / "n.html")


def test_what_the_model_wrote_stays_text(
    plain_report: dict[str, Path], attacked_report: dict[str, Path]
) -> None:
    documents = (paths["report.html"].read_text("utf-8") for paths in (plain_report, attacked_report))
    first, second = map(Elements, documents)
    assert second.tags() <= first.tags()
    assert not second.stray
    assert sum(tag == "script" for tag, _ in second.found) == 1
    assert not any(name.startswith("on") for _, attributes in second.found for name in attributes)


@pytest.mark.parametrize("shape", ["one token", "no text", "generate", "batch"])
def test_odd_records_have_a_report_too(shape: str, tmp_path: Path) -> None:
    made = report_of(make_run(**SHAPES[shape]), tmp_path)
    document = Elements(made["report.html"].read_text(encoding="utf-8")).said
    assert "Error" not in document
    assert "nan" not in document
    if shape == "no text":
        assert "This record has no text" in document
        assert "The page is not in this record" in document
        assert "result.mmd" not in made
