"""The report: fragments, the notebook run through papermill, and the one HTML file."""

from __future__ import annotations

import itertools
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from elements import Elements
from example_run import ATTACK, SHAPES, make_run, page_image, report_of

from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.grounding import parse_grounding, region_table
from ocr_phases.errors import NotebookFailed, OcrPhasesError
from ocr_phases.record import PhaseRun
from ocr_phases.report import render
from ocr_phases.report.jupyter_kernels import ReusedKernel
from ocr_phases.report.render import execute_notebook, render_html
from ocr_phases.show import html


def fragments(run: PhaseRun) -> str:
    grounding = parse_grounding("".join(run.result["token_texts"]))
    parts = [
        html.header_html(run),
        html.cards_html(run),
        html.stages_html(run),
        html.repeats_html(run),
        html.regions_html(region_table(grounding, run.token_table)),
        html.text_html(run.text or ""),
        html.checks_html(run_checks(run)),
        html.measured_html(run),
    ]
    return "".join(parts)


# -- fragments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_shape_has_sound_fragments(shape: str) -> None:
    document = fragments(make_run(**SHAPES[shape]))
    elements = Elements(document)
    assert not elements.open
    assert not elements.stray
    assert "nan" not in elements.said


def test_no_fragment_lets_text_become_an_element() -> None:
    run = make_run(text=ATTACK, page_name="<img src=x onerror=alert(4)>.png")
    plain = Elements(fragments(make_run()))
    attacked = Elements(fragments(run))
    assert attacked.tags() <= plain.tags()
    assert not attacked.stray
    for _, attributes in attacked.found:
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("src") or "data:").startswith("data:")


def test_control_characters_and_lone_surrogates_are_replaced() -> None:
    assert "\x00" not in html.text_html("a\x00b\ud800c\x1b[31m")
    assert "\n\tb" in html.text_html("a\n\tb")
    html.text_html("\ud800").encode()


def test_short_text_is_open_and_long_text_is_folded() -> None:
    assert " open>" in html.text_html("short")
    assert " open>" not in html.text_html("long " * 1_000)


def test_table_rounds_aligns_and_keeps_the_values_for_sorting() -> None:
    table = pd.DataFrame(
        {"name": ["a<b", "c"], "device_ms": [1234.5678, float("nan")], "share": [0.5, 0.0421]}
    )
    document = html.table_html(table, strong=[True, False])
    for piece in ("a&lt;b", ">1,235<", ">–<", ">50<", ">4.2<", 'data-value="1234.5678"', "op-strong"):
        assert piece in document
    assert document.count('class="op-num"') == 6


def test_figures_are_inline_and_have_words(tmp_path: Path) -> None:
    document = html.image_html(page_image(3000, 4000), 'A "page"', width=520)
    ((tag, attributes),) = Elements(document).found
    assert (tag, attributes["alt"], attributes["width"]) == ("img", 'A "page"', "520")
    assert len(document) < 400_000


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
    assert [path.name for path in target.parent.iterdir()] == ["done.ipynb"]


def test_an_unknown_parameter_or_notebook_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(OcrPhasesError, match=r"no parameter paeg: it takes page, model"):
        execute_notebook("page_report", {"paeg": "x.png"}, tmp_path / "out.ipynb")
    with pytest.raises(OcrPhasesError, match=r"no notebook 'other': choose one of .*page_report"):
        execute_notebook("other", {}, tmp_path / "out.ipynb")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_cell_leaves_the_notebook_with_its_error(notebooks: Path, tmp_path: Path) -> None:
    write_notebook(notebooks / "broken.ipynb", "x = 1", "raise ValueError('no such\\npage')", "y = 2")
    target = tmp_path / "out.ipynb"
    with pytest.raises(
        OcrPhasesError, match=r"^Cell \d of broken failed \(ValueError: no such\): see "
    ) as caught:
        execute_notebook("broken", {}, target)
    assert "\n" not in str(caught.value)
    outputs = itertools.chain(
        *(cell.get("outputs", []) for cell in nbformat.read(target, as_version=4).cells)
    )
    assert "ValueError" in {output.get("ename") for output in outputs}
    assert not list(tmp_path.glob(".out*"))


def test_a_dead_kernel_and_a_slow_cell_are_errors_too(notebooks: Path, tmp_path: Path) -> None:
    write_notebook(notebooks / "dead.ipynb", "x = 1", "import os\nos._exit(3)")
    with pytest.raises(NotebookFailed, match="dead was not run to its end") as caught:
        execute_notebook("dead", {}, tmp_path / "dead.ipynb")
    assert caught.value.ename == "DeadKernelError"
    write_notebook(notebooks / "slow.ipynb", "x = 1", "import time\ntime.sleep(60)")
    with pytest.raises(OcrPhasesError, match="slow was not run to its end"):
        execute_notebook("slow", {}, tmp_path / "slow.ipynb", timeout=2)


# -- the HTML file ------------------------------------------------------------------------------------


def test_a_report_is_complete_and_one_file(plain_report: dict[str, Path]) -> None:
    assert {
        "run.json",
        "result.mmd",
        "images",
        "result_with_boxes.jpg",
        "report.ipynb",
        "report.html",
    } <= set(plain_report)
    document = plain_report["report.html"].read_text(encoding="utf-8")
    elements = Elements(document)
    assert not elements.open
    assert not elements.stray
    assert len(document) < 3_000_000
    assert [attributes for tag, attributes in elements.found if tag == "script"] == [{}]
    assert [attributes["href"] for tag, attributes in elements.found if tag == "link"] == ["data:,"]
    assert "@import" not in document
    assert "MathJax" not in document
    assert "require.js" not in document
    for tag, attributes in elements.found:
        assert (attributes.get("src") or "data:").startswith("data:")
        if tag == "img":
            assert attributes["alt"]
        if tag == "a":
            assert (attributes["href"] or "").startswith("#")


def test_headings_are_in_order_and_the_contents_lead_to_them(plain_report: dict[str, Path]) -> None:
    elements = Elements(plain_report["report.html"].read_text(encoding="utf-8"))
    levels = [int(tag[1]) for tag, _ in elements.found if tag in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = {attributes["id"] for _, attributes in elements.found if "id" in attributes}
    links = {attributes["href"] or "" for tag, attributes in elements.found if tag == "a"}
    notebook = nbformat.read(plain_report["report.ipynb"], as_version=4)
    sections = [cell for cell in notebook.cells if cell.source.startswith("## ")]
    assert len(links) == len(sections) + 1 >= 10  # and the way past the contents
    assert {link.removeprefix("#") for link in links} <= ids


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
    with pytest.raises(OcrPhasesError, match="not a notebook that can be read"):
        render_html(tmp_path / "n.ipynb", tmp_path / "n.html")


def test_what_the_model_wrote_stays_text(
    plain_report: dict[str, Path], attacked_report: dict[str, Path]
) -> None:
    first, second = (
        Elements(paths["report.html"].read_text(encoding="utf-8"))
        for paths in (plain_report, attacked_report)
    )
    assert second.tags() <= first.tags()
    assert not second.stray
    assert sum(tag == "script" for tag, _ in second.found) == 1
    assert not any(name.startswith("on") for _, attributes in second.found for name in attributes)


@pytest.mark.parametrize("shape", ["one token", "no text", "generate", "batch"])
def test_odd_records_have_a_report_too(shape: str, tmp_path: Path, reused_kernel: ReusedKernel) -> None:
    made = report_of(make_run(**SHAPES[shape]), tmp_path, reused_kernel)
    document = Elements(made["report.html"].read_text(encoding="utf-8")).said
    assert "Error" not in document
    assert "nan" not in document
    if shape == "no text":
        assert "This record has no text" in document
        assert "The page is not in this record" in document
        assert "result.mmd" not in made
