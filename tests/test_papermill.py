"""Papermill over page_report: what its parameters ask for, and one model for many pages."""

from pathlib import Path

import nbformat
import papermill
import pytest
from conftest import PAGES, RECORD
from refusals import refused

from ocr_phases import PhaseRun
from ocr_phases.cli import main
from ocr_phases.measure import loaded_model
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.wiring import NATIVE_NEEDS
from ocr_phases.report.page_parameters import PageParameters
from ocr_phases.versions import asset

NOTEBOOK = asset("notebooks", "page_report.ipynb")
QUICK = {"preset": "tiny", "max_new_tokens": 2, "repeats": 1}
NOTHING_AFTER = {"warmup": 0, "ceilings": False, "token_probabilities": False}


@pytest.fixture
def names(tmp_path):
    """The names of page_report's parameters cell, as a kernel has them."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (source,) = (cell.source for cell in cells if "parameters" in cell.metadata.get("tags", ()))
    names = {"In": ["", source]}
    exec(source, names)
    return names | {"output_dir": str(tmp_path / "out")}


def test_options_and_names_without_a_line_of_their_own_count(names):
    asked = PageParameters({**names, "kernels": True, "options": {"seed": 7, "preset": "tiny"}})
    run = asked.settings.of_run()
    assert (run["kernels"], run["seed"], run["preset"], run["repeats"]) == (True, 7, "tiny", 3)
    assert asked.page.name == "receipt.png" and asked.folder.is_dir()


@pytest.mark.parametrize(
    "wrong",
    [
        {"In": ["", "# Parameters\npage = None\nkernls = True\n"]},
        {"options": {"kernls": True}},
        {"options": "kernels"},
        {"options": {"repeats": 0}},
    ],
    ids=["injected", "option", "no mapping", "value"],
)
def test_a_wrong_parameter_is_refused_with_the_nearest_name(names, wrong, tmp_path):
    with refused():
        PageParameters({**names, **wrong})
    assert not (tmp_path / "out").exists()


def test_papermill_s_unknown_parameter_fails_in_our_engine(tmp_path):
    with pytest.raises(papermill.PapermillExecutionError, match="Did you mean repeats"):
        papermill.execute_notebook(
            str(NOTEBOOK),
            str(tmp_path / "out.ipynb"),
            {"record": str(RECORD), "repeat": 2, "output_dir": str(tmp_path / "out")},
            engine_name="ocr_phases",
            progress_bar=False,
        )


def test_a_loop_over_pages_loads_the_model_once(tmp_path, monkeypatch):
    if transformers_version() < NATIVE_NEEDS:
        pytest.skip("the native class needs transformers >= 5.20")
    loaded = []
    load = loaded_model.load_checkpoint

    def counted(*arguments, **keywords):
        loaded.append(arguments)
        return load(*arguments, **keywords)

    monkeypatch.setattr(loaded_model, "load_checkpoint", counted)
    loaded_model.forget_kept_model()
    for page in sorted(PAGES.glob("*.png"))[:2]:
        folder = tmp_path / page.stem
        papermill.execute_notebook(
            str(NOTEBOOK),
            str(tmp_path / f"{page.stem}.ipynb"),
            {"page": str(page), "output_dir": str(folder), "options": NOTHING_AFTER, **QUICK},
            engine_name="ocr_phases",
            progress_bar=False,
        )
        assert PhaseRun.load(folder / "run.json").page.file == page.name
    assert len(loaded) == 1


def test_a_record_skips_what_needs_a_model_and_says_so(tmp_path):
    done = papermill.execute_notebook(
        str(NOTEBOOK),
        str(tmp_path / "out.ipynb"),
        {"record": str(RECORD), "output_dir": str(tmp_path / "out")},
        engine_name="ocr_phases",
        progress_bar=False,
    )
    cells = {cell.id: cell for cell in done.cells}
    assert "skipped" in cells["load"].outputs[0].text
    assert not cells["prefill-step"].outputs and not cells["decode-steps"].outputs
    assert cells["summary"].outputs and Path(tmp_path / "out" / "run.json").exists()


def test_a_notebook_of_one_s_own_becomes_one_file_with_the_linked_view(tmp_path, capsys):
    source = "from ocr_phases import PhaseRun\nfrom ocr_phases.report import sections\n"
    source += f"run = PhaseRun.load({str(RECORD)!r})\nsections.linked_page(run)"
    own = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("## Mine"), nbformat.v4.new_code_cell(source)]
    )
    nbformat.write(own, tmp_path / "own.ipynb")
    papermill.execute_notebook(
        str(tmp_path / "own.ipynb"),
        str(tmp_path / "run.ipynb"),
        engine_name="ocr_phases",
        kernel_name="python3",
        progress_bar=False,
    )
    assert main(["html", str(tmp_path / "run.ipynb")]) == 0
    document = (tmp_path / "run.html").read_text("utf-8")
    assert "opv-report" in document and "Mine" in document
    assert "PhaseRun.load" not in document and "https://" not in document.partition("<main")[0]
    code = tmp_path / "code.html"
    assert main(["html", str(tmp_path / "run.ipynb"), "--show-code", "--out", str(code)]) == 0
    assert "PhaseRun.load" in code.read_text("utf-8")


def test_what_is_no_notebook_and_a_file_in_the_way_are_refused(tmp_path):
    (tmp_path / "page.html").write_text("mine")
    (tmp_path / "page.ipynb").write_text("no notebook")
    assert main(["html", str(tmp_path / "page.ipynb")]) == 2
    assert (tmp_path / "page.html").read_text() == "mine"
