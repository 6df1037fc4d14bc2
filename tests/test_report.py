"""The report: fragments, the notebook run in this process, and the one HTML file."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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

#: What is read in less than a minute.
MOST_WORDS_OF_A_SCREEN = 150


def example(name: str) -> PhaseRun:
    """A record by its name: one that is approved, or a synthetic one of this shape."""
    if name in RECORDS:
        return PhaseRun.load(RECORDS[name])
    return make_run(**SHAPES[name])


@pytest.mark.parametrize("name", [*RECORDS, *SHAPES])
def test_a_first_screen_is_short(name: str) -> None:
    """Few words stand before anything is unfolded; a number with its unit counts as one."""
    html = overview_section(example(name)).html()
    screen = re.sub(r"<details.*?</details>|<img.*?>", "", html, flags=re.DOTALL)
    words = re.findall(r"\d[\d,.]* (?:ms|s|%|kB|MB|GB)(?!\w)|\S*\w\S*", seen(screen))
    assert len(words) <= MOST_WORDS_OF_A_SCREEN


# -- notebooks run in this process -----------------------------------------------------------------


def read_valid(path: Path) -> nbformat.NotebookNode:
    """A notebook's file, which has the form that Jupyter asks for."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


class SmallNotebook:
    """A notebook of a few cells in place of the shipped ones, which is run into ``out``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"

    def write(self, *sources: str) -> None:
        """Write a notebook of these cells, behind one with the parameters ``x`` and ``name``."""
        parameters = nbformat.v4.new_code_cell("x = 1\nname = None")
        parameters.metadata["tags"] = ["parameters"]
        cells = [parameters, *(nbformat.v4.new_code_cell(source) for source in sources)]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        nbformat.write(notebook, self.folder / "notebooks" / "small.ipynb")

    def run(self, **parameters: Any) -> None:
        """Run it; a cell with the parameters that are given stands behind the first one."""
        execute_notebook("small", parameters, self.out / "done.ipynb")

    def cells(self) -> list[nbformat.NotebookNode]:
        """The cells that a run left."""
        return read_valid(self.out / "done.ipynb").cells

    def files(self) -> set[str]:
        """The names of the files that a run left."""
        return {path.name for path in self.out.iterdir()}


@pytest.fixture
def small_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallNotebook:
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(render, "asset", lambda *parts: tmp_path.joinpath(*parts))
    return SmallNotebook(tmp_path)


#: Cells that print, warn, define, show tables and fragments, show nothing, and look for what
#: another notebook may have left.
SHOWING_CELLS = (
    "from ocr_phases.show.section import Section\nimport sys\nprint(x, name)\nprint('more')\n"
    "print('a warning', file=sys.stderr)",
    "def doubled(number):\n    return number * 2\n\ndoubled(x)",
    "import pandas as pd\npd.DataFrame({'a': [x]})",
    "Section('<p>one</p>', '', '<p>two</p>')",
    "y = None\ny",
    "import os\nleft = [name for name in ('mark', 'x2') if name in globals()]\nmark = x2 = 1",
    "[left, os.getcwd()]",
)


def shown_by(cell: nbformat.NotebookNode) -> list[Any]:
    """What a cell printed, as text, or showed, by kind."""
    return [output.get("text") or output.data for output in cell.outputs]


def test_a_cell_shows_what_a_kernel_would_of_it_and_leaves_nothing(
    small_notebook: SmallNotebook,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    working_folder = tmp_path / "here"
    working_folder.mkdir()
    monkeypatch.chdir(working_folder)
    name = "it's \\ \u00e9\n\U0001f600"
    small_notebook.write(*SHOWING_CELLS)

    for _ in range(2):  # one notebook leaves the next nothing
        small_notebook.run(x=21, name=name)

        parameters, given, *cells = [shown_by(cell) for cell in small_notebook.cells()]
        printed, called, table, fragments, nothing, _, left = cells
        assert parameters == []
        assert given == []
        assert printed == [f"21 {name}\nmore\n"]
        assert "a warning" in capsys.readouterr().err  # whoever starts it sees that at once
        assert called == [{"text/plain": "42"}]
        assert "<td>21</td>" in table[0]["text/html"]
        assert [data["text/html"] for data in fragments] == ["<p>one</p>", "<p>two</p>"]
        assert nothing == []
        # A long folder's name is on a line of its own.
        assert list(left[0]) == ["text/plain"]
        assert " ".join(left[0]["text/plain"].split()) == f"[[], {str(Path.cwd())!r}]"

    assert list(working_folder.iterdir()) == []
    assert small_notebook.files() == {MANIFEST_NAME, "done.ipynb"}


def test_an_unknown_parameter_or_notebook_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with refused():
        execute_notebook("page_report", {"paeg": "x.png"}, tmp_path / "out.ipynb")
    with refused():
        execute_notebook("other", {}, tmp_path / "out.ipynb")
    assert list(tmp_path.iterdir()) == []


RAISES_OUR_ERROR = "from ocr_phases.errors import CannotWrite as E\nraise E('x cannot be written.')"


@pytest.mark.parametrize(
    ("source", "raised", "error_name"),
    [
        pytest.param("raise ValueError('no such\\npage')", NotebookFailed, "ValueError", id="any"),
        pytest.param(RAISES_OUR_ERROR, CannotWrite, "CannotWrite", id="own"),
    ],
)
def test_a_failing_cell_leaves_the_notebook_with_its_error(
    source: str, raised: type[Exception], error_name: str, small_notebook: SmallNotebook
) -> None:
    small_notebook.write(source, "y = 2")

    with refused(raised):
        small_notebook.run()

    first, failing, last = small_notebook.cells()
    assert first.outputs == []
    assert [output.ename for output in failing.outputs] == [error_name]
    assert last.outputs == []
    assert small_notebook.files() == {MANIFEST_NAME, "done.ipynb"}


# -- notebooks run by papermill --------------------------------------------------------------------


def assert_shows_a_figure(notebook: nbformat.NotebookNode) -> None:
    """A notebook that ran shows a figure and no error."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pages = [output.get("data", {}).get("text/html", "") for output in outputs]
    assert "error" not in {output.output_type for output in outputs}
    assert any("<svg" in page for page in pages)


#: Cells of a user behind those of a report: they take names that the report uses, too, ask for
#: another report, and say what became of names, ``_``, history and the count of cells.
CELLS_OF_THE_USER = (
    "# Parameters\nown_parameter = 5",
    "page, options, names, count = 'mine', 1, {*globals()}, get_ipython().execution_count\n40 + 2",
    "written = run.report('again')",
    "new = {name for name in {*globals()} - names if name[0] != '_'}\n"
    "[page, options, _, In[-2][:7], get_ipython().execution_count - count, new, written.exists()]",
)


def test_the_papermill_command_runs_in_a_kernel_whose_names_stay_the_user_s(tmp_path: Path) -> None:
    """Parameters of the user's notebook are none of the report that a cell makes."""
    notebook = nbformat.read(asset("notebooks", "page_report.ipynb"), as_version=4)
    ids = [cell.id for cell in notebook.cells]
    behind_the_first_figure = ids.index("latency-figure") + 1
    own_cells = [nbformat.v4.new_code_cell(source) for source in CELLS_OF_THE_USER]
    notebook.cells[behind_the_first_figure:] = own_cells
    nbformat.write(notebook, tmp_path / "mine.ipynb")
    command = [sys.executable, "-m", "papermill", "mine.ipynb", "out.ipynb"]
    command += ["-p", "record", str(RECORD), "-k", "python3"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert "Executing" in done.stderr  # papermill's bar
    shown = read_valid(tmp_path / "out.ipynb")
    assert_shows_a_figure(shown)
    (last_output,) = shown.cells[-1].outputs
    new_names = "{'count', 'names', 'written'}"
    assert last_output.data["text/plain"] == f"['mine', 1, 42, 'written', 2, {new_names}, True]"


def test_papermill_runs_any_notebook_by_our_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one measures, as it does in any kernel."""
    if transformers_version() < NATIVE_NEEDS:
        pytest.skip("the native class needs transformers >= 5.20")
    monkeypatch.chdir(tmp_path)
    parameters = {
        "page": str(PAGES / "slide.png"),
        "preset": "tiny",
        "max_new_tokens": 4,
        "repeats": 1,
        "warmup": 0,
        "ceilings": False,
        "token_probabilities": False,
        "output_dir": "out",
    }
    source = str(asset("notebooks", "page_report.ipynb"))

    papermill.execute_notebook(
        source, "out.ipynb", parameters, engine_name="ocr_phases", progress_bar=False
    )

    assert_shows_a_figure(read_valid(tmp_path / "out.ipynb"))
    measured = PhaseRun.load(tmp_path / "out" / "run.json")
    assert measured["tokens"] == 4
    assert measured.repeats == [0]
    assert measured.page.file == "slide.png"


# -- the one HTML file -----------------------------------------------------------------------------


def test_a_report_that_is_stopped_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped in its first cell."""

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sections, "style", interrupt)

    assert main(["report", "--record", str(RECORD), "--out", str(tmp_path / "out")]) == 130

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "ocr-phases: stopped.\n"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_report_is_complete_and_well_formed(plain_report: Path) -> None:
    document = (plain_report / "report.html").read_text(encoding="utf-8")
    elements = Elements(document)
    assert {path.name for path in plain_report.iterdir()} >= {
        "run.json",
        "result.mmd",
        "images",
        "result_with_boxes.jpg",
        "report.ipynb",
        "report.html",
    }
    # The stills of drawings stay out of the notebook.
    assert "image/png" not in (plain_report / "report.ipynb").read_text("utf-8")
    assert not elements.open
    assert not elements.stray
    assert len(document) < 3_000_000


def test_a_report_is_one_file_that_asks_for_no_other(plain_report: Path) -> None:
    document = (plain_report / "report.html").read_text(encoding="utf-8")
    elements = Elements(document)
    data_of_the_view = {"type": "application/json"}
    all_that_runs: dict[str, str] = {}
    assert elements.attributes_of("script") == [data_of_the_view, all_that_runs]
    assert [link["href"] for link in elements.attributes_of("link")] == ["data:,"]
    for name in ("@import", "MathJax", "require.js"):
        assert name not in document
    for _, attributes in elements.found:
        assert (attributes.get("src") or "data:").startswith("data:")
    for image in elements.attributes_of("img"):
        assert image["alt"]


def test_links_of_a_report_lead_to_its_own_sections(plain_report: Path) -> None:
    elements = Elements((plain_report / "report.html").read_text(encoding="utf-8"))
    headings = elements.attributes_of("h2")
    sections_of_the_report = [f"#{heading['id']}" for heading in headings if "id" in heading]
    assert len(set(sections_of_the_report)) == len(sections_of_the_report)
    for link in elements.attributes_of("a"):
        assert link["href"] in (*sections_of_the_report, "#report")


def test_a_report_holds_no_code_unless_asked(plain_report: Path, tmp_path: Path) -> None:
    body = (plain_report / "report.html").read_text(encoding="utf-8").partition("<main")[2]
    assert "PhaseRun.load" not in body
    assert "JupyterLab" not in body

    with_code = render_html(
        plain_report / "report.ipynb", tmp_path / "code.html", show_code=True, title="<i>"
    )

    document = with_code.read_text(encoding="utf-8")
    assert "PhaseRun.load" in document
    assert "<title>&lt;i&gt;</title>" in document
    assert str(plain_report) not in document.partition("PhaseRun.load")[2]


def test_warnings_and_widgets_stay_out(tmp_path: Path) -> None:
    script = {"application/javascript": "alert(1)", "text/plain": "a script"}
    widget = {
        "application/vnd.jupyter.widget-view+json": {"model_id": "1"},
        "text/plain": "a widget",
    }
    markdown = {"text/markdown": "<b onclick='x'>bold</b>"}
    cell = nbformat.v4.new_code_cell("x")
    for data in (script, widget, markdown):
        cell.outputs.append(nbformat.v4.new_output("display_data", data=data))
    cell.outputs.append(nbformat.v4.new_output("stream", name="stderr", text="a warning 10%|###"))
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "n.ipynb")

    document = render_html(tmp_path / "n.ipynb", tmp_path / "n.html").read_text(encoding="utf-8")

    for word in ("warning", "alert", "a widget", "a script"):
        assert word not in document
    assert "<b" not in document.partition("<main")[2]


def test_something_else_than_a_notebook_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text("{}")
    with refused():
        render_html(tmp_path / "n.ipynb", tmp_path / "n.html")


def test_what_the_model_wrote_stays_text(plain_report: Path, attacked_report: Path) -> None:
    plain = Elements((plain_report / "report.html").read_text("utf-8"))
    attacked = Elements((attacked_report / "report.html").read_text("utf-8"))
    assert attacked.tags() <= plain.tags()
    assert not attacked.stray
    assert len(attacked.attributes_of("script")) == 2  # data and code
    for _, attributes in attacked.found:
        assert not any(name.startswith("on") for name in attributes)


@pytest.mark.parametrize("shape", ["one token", "no text", "generate"])
def test_odd_records_have_a_report_too(shape: str, tmp_path: Path) -> None:
    report = page_report(make_run(**SHAPES[shape]), tmp_path / "out")

    text = Elements(report.read_text("utf-8")).said
    without_text = shape == "no text"
    assert "Error" not in text
    assert "nan" not in text
    assert ("This record has no text" in text) == without_text
    assert ("The page is not in this record" in text) == without_text
    assert (tmp_path / "out" / "result.mmd").exists() == (not without_text)
