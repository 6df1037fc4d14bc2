"""The report: fragments, the notebook run in this process, and the one HTML file."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from conftest import PAGES, RECORD
from elements import Elements, seen
from example_run import SHAPES, make_run
from refusals import refused
from test_approved import RECORDS

from ocr_phases import PhaseRun
from ocr_phases.cli import main
from ocr_phases.errors import CannotWrite, NotebookFailed
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.wiring import NATIVE_NEEDS
from ocr_phases.report import render, sections
from ocr_phases.report.render import execute_notebook, page_report, render_html
from ocr_phases.show.run_overview import overview_section
from ocr_phases.versions import asset


@pytest.mark.parametrize("name", [*RECORDS, *SHAPES])
def test_a_first_screen_is_short(name):
    """At most 130 words before anything is unfolded, a number with its unit counted as one."""
    run = PhaseRun.load(RECORDS[name]) if name in RECORDS else make_run(**SHAPES[name])
    screen = re.sub(
        r"<details.*?</details>|<img.*?>", "", overview_section(run).html(), flags=re.DOTALL
    )
    words = re.findall(r"\d[\d,.]* (?:ms|s|%|kB|MB|GB)(?!\w)|\S*\w\S*", seen(screen))
    assert len(words) <= 130


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """A folder of notebooks in place of the shipped ones."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setattr(render, "asset", lambda *parts: tmp_path.joinpath(*parts))
    return folder


def run(folder, *sources, **parameters):
    """The cells of a notebook with these after the first, that of parameters, and one of those
    given; run.
    """
    cells = [nbformat.v4.new_code_cell(source) for source in ("x = 1\nname = None", *sources)]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, folder / "notebooks" / "small.ipynb")
    return read_valid(execute_notebook("small", parameters, folder / "out" / "done.ipynb")).cells


def test_a_cell_shows_what_a_kernel_would_of_it_and_leaves_nothing(
    notebooks, tmp_path, monkeypatch, capsys
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cells = (
        "from ocr_phases.show.section import Section\nimport sys\nprint(x, name)\nprint('more')\n"
        "print('a warning', file=sys.stderr)",
        "def doubled(number):\n    return number * 2\n\ndoubled(x)",
        "import pandas as pd\npd.DataFrame({'a': [x]})",
        "Section('<p>one</p>', '', '<p>two</p>')",
        "y = None\ny",
        "import os\nleft = [name for name in ('mark', 'x2') if name in globals()]\nmark = x2 = 1",
        "[left, os.getcwd()]",
    )
    name = "it's \\ \u00e9\n\U0001f600"
    for _ in range(2):  # one notebook leaves the next nothing
        outputs = [cell.outputs for cell in run(tmp_path, *cells, x=21, name=name)]
        shown = [[output.get("text") or output.data for output in each] for each in outputs]
        assert shown[:2] == [[], []]
        assert shown[2] == [f"21 {name}\nmore\n"]
        assert "a warning" in capsys.readouterr().err  # whoever starts it sees that at once
        assert shown[3] == [{"text/plain": "42"}]
        assert "<td>21</td>" in shown[4][0]["text/html"]
        assert [data["text/html"] for data in shown[5]] == ["<p>one</p>", "<p>two</p>"]
        assert shown[6] == []
        ((_, text),) = shown[8][0].items()  # a long folder's name is on a line of its own
        assert " ".join(text.split()) == f"[[], {str(Path.cwd())!r}]"
    assert list(Path.cwd().iterdir()) == []
    assert {path.name for path in (tmp_path / "out").iterdir()} == {MANIFEST_NAME, "done.ipynb"}


def test_an_unknown_parameter_or_notebook_is_refused_before_anything_runs(tmp_path):
    for name, parameters in (("page_report", {"paeg": "x.png"}), ("other", {})):
        with refused():
            execute_notebook(name, parameters, tmp_path / "out.ipynb")
    assert list(tmp_path.iterdir()) == []


OWN = "from ocr_phases.errors import CannotWrite as E\nraise E('x cannot be written.')"


@pytest.mark.parametrize(
    ("source", "raised", "named"),
    [
        ("raise ValueError('no such\\npage')", NotebookFailed, "ValueError"),
        (OWN, CannotWrite, "CannotWrite"),
    ],
    ids=["any", "own"],
)
def test_a_failing_cell_leaves_the_notebook_with_its_error(
    source, raised, named, notebooks, tmp_path
):
    with refused(raised):
        run(tmp_path, source, "y = 2")
    cells = read_valid(tmp_path / "out" / "done.ipynb").cells
    assert [[output.ename for output in cell.outputs] for cell in cells] == [[], [named], []]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {MANIFEST_NAME, "done.ipynb"}


def test_the_papermill_command_runs_in_a_kernel_whose_names_stay_the_user_s(tmp_path):
    """With cells of the user behind the report: names, `_`, history and the count of cells are
    their own. Parameters of the user's notebook are none of the report that a cell makes.
    """
    notebook = nbformat.read(asset("notebooks", "page_report.ipynb"), as_version=4)
    cells = (
        "# Parameters\nown_parameter = 5",
        "page, options, names, count = 'mine', 1, {*globals()}, get_ipython().execution_count\n40 "
        "+ 2",
        "written = run.report('again')",
        "new = {name for name in {*globals()} - names if name[0] != '_'}\n"
        "[page, options, _, In[-2][:7], get_ipython().execution_count - count, new, "
        "written.exists()]",
    )
    ids = [cell.id for cell in notebook.cells]
    first_figure = ids.index("latency-figure") + 1
    notebook.cells[first_figure:] = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(notebook, tmp_path / "mine.ipynb")
    command = [
        sys.executable,
        "-m",
        "papermill",
        "mine.ipynb",
        "out.ipynb",
        "-p",
        "record",
        str(RECORD),
    ]
    done = subprocess.run(
        [*command, "-k", "python3"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Executing" in done.stderr  # papermill's bar
    (own,) = check_shown(tmp_path / "out.ipynb").cells[-1].outputs
    new = "{'count', 'names', 'written'}"
    assert own.data["text/plain"] == f"['mine', 1, 42, 'written', 2, {new}, True]"


def test_papermill_runs_any_notebook_by_our_engine(tmp_path, monkeypatch):
    """This one measures, as it does in any kernel."""
    if transformers_version() < NATIVE_NEEDS:
        pytest.skip("the native class needs transformers >= 5.20")
    monkeypatch.chdir(tmp_path)
    asked = {"page": str(PAGES / "slide.png"), "preset": "tiny", "max_new_tokens": 4, "repeats": 1}
    asked |= {"warmup": 0, "ceilings": False, "token_probabilities": False, "output_dir": "out"}
    source = str(asset("notebooks", "page_report.ipynb"))
    papermill.execute_notebook(
        source, "out.ipynb", asked, engine_name="ocr_phases", progress_bar=False
    )
    check_shown(tmp_path / "out.ipynb")
    measured = PhaseRun.load(tmp_path / "out" / "run.json")
    assert (measured["tokens"], measured.repeats, measured.page.file) == (4, [0], "slide.png")


def check_shown(path):
    """A figure and no error."""
    notebook = read_valid(path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("<svg" in output.get("data", {}).get("text/html", "") for output in outputs)
    return notebook


def read_valid(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_a_report_that_is_stopped_says_so_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    """Stopped in its first cell."""
    monkeypatch.setattr(sections, "style", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert main(["report", "--record", str(RECORD), "--out", str(tmp_path / "out")]) == 130
    assert tuple(capsys.readouterr()) == ("", "ocr-phases: stopped.\n")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_report_is_complete_and_one_file(plain_report):
    names = {
        "run.json",
        "result.mmd",
        "images",
        "result_with_boxes.jpg",
        "report.ipynb",
        "report.html",
    }
    assert names <= {path.name for path in plain_report.iterdir()}
    assert "image/png" not in (plain_report / "report.ipynb").read_text(
        "utf-8"
    )  # the drawings' stills
    document = (plain_report / "report.html").read_text(encoding="utf-8")
    elements = Elements(document)
    assert not elements.open and not elements.stray
    assert len(document) < 3_000_000
    scripts = [attributes for tag, attributes in elements.found if tag == "script"]
    assert scripts == [
        {"type": "application/json"},
        {},
    ]  # the linked view's data, and all that runs
    assert [attributes["href"] for tag, attributes in elements.found if tag == "link"] == ["data:,"]
    assert not [name for name in ("@import", "MathJax", "require.js") if name in document]
    ids = [
        f"#{attributes['id']}"
        for tag, attributes in elements.found
        if tag == "h2" and "id" in attributes
    ]
    assert len({*ids}) == len(ids)
    for tag, attributes in elements.found:
        assert (attributes.get("src") or "data:").startswith("data:")
        assert tag != "img" or attributes["alt"]
        assert tag != "a" or attributes["href"] in (*ids, "#report")


def test_a_report_holds_no_code_unless_asked(plain_report, tmp_path):
    body = (plain_report / "report.html").read_text(encoding="utf-8").partition("<main")[2]
    assert "PhaseRun.load" not in body and "JupyterLab" not in body
    shown = render_html(
        plain_report / "report.ipynb", tmp_path / "code.html", show_code=True, title="<i>"
    )
    document = shown.read_text(encoding="utf-8")
    assert "PhaseRun.load" in document and "<title>&lt;i&gt;</title>" in document
    assert str(plain_report) not in document.partition("PhaseRun.load")[2]


def test_warnings_and_widgets_stay_out(tmp_path):
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "a widget"}
    script = {"application/javascript": "alert(1)", "text/plain": "a script"}
    data = [script, view, {"text/markdown": "<b onclick='x'>bold</b>"}]
    cell = nbformat.v4.new_code_cell("x")
    cell.outputs = [nbformat.v4.new_output("display_data", data=each) for each in data]
    cell.outputs.append(nbformat.v4.new_output("stream", name="stderr", text="a warning 10%|###"))
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "n.ipynb")
    document = render_html(tmp_path / "n.ipynb", tmp_path / "n.html").read_text(encoding="utf-8")
    assert not [word for word in ("warning", "alert", "a widget", "a script") if word in document]
    assert "<b" not in document.partition("<main")[2]


def test_something_else_than_a_notebook_is_refused(tmp_path):
    (tmp_path / "n.ipynb").write_text("{}")
    with refused():
        render_html(tmp_path / "n.ipynb", tmp_path / "n.html")


def test_what_the_model_wrote_stays_text(plain_report, attacked_report):
    documents = (
        (folder / "report.html").read_text("utf-8") for folder in (plain_report, attacked_report)
    )
    first, second = map(Elements, documents)
    assert second.tags() <= first.tags()
    assert not second.stray
    assert sum(tag == "script" for tag, _ in second.found) == 2  # data and code
    assert not any(name.startswith("on") for _, attributes in second.found for name in attributes)


@pytest.mark.parametrize("shape", ["one token", "no text", "generate"])
def test_odd_records_have_a_report_too(shape, tmp_path):
    document = Elements(
        page_report(make_run(**SHAPES[shape]), tmp_path / "out").read_text("utf-8")
    ).said
    assert "Error" not in document and "nan" not in document
    assert ("This record has no text" in document) == (shape == "no text")
    assert ("The page is not in this record" in document) == (shape == "no text")
    assert (tmp_path / "out" / "result.mmd").exists() == (shape != "no text")
