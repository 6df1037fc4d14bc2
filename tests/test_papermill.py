"""Papermill over page_report: what its parameters ask for, and one model for many pages."""

import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from conftest import PAGES, RECORD
from papermill.cli import papermill as papermill_command
from refusals import refused

from ocr_phases import PhaseRun
from ocr_phases.cli import main
from ocr_phases.measure import loaded_model
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.wiring import NATIVE_NEEDS
from ocr_phases.report.page_parameters import PAGE_REPORT_PARAMETERS, PageParameters
from ocr_phases.versions import asset

NOTEBOOK = asset("notebooks", "page_report.ipynb")
QUICK: dict[str, Any] = {"preset": "tiny", "max_new_tokens": 2, "repeats": 1}
NOTHING_AFTER: dict[str, Any] = {"warmup": 0, "ceilings": False, "token_probabilities": False}

needs_native = pytest.mark.skipif(
    transformers_version() < NATIVE_NEEDS, reason="the native class needs transformers >= 5.20"
)


def execute(notebook: Path, output: Path, **parameters: Any) -> nbformat.NotebookNode:
    """The notebook as papermill leaves it, run by the engine of this package."""
    return papermill.execute_notebook(
        str(notebook), str(output), parameters, engine_name="ocr_phases", progress_bar=False
    )


def new_notebook(*cells: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=list(cells))


@pytest.fixture(scope="module")
def short_notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """page_report up to the cell that measures and saves, without the pictures behind it."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    ids = [cell.id for cell in notebook.cells]
    del notebook.cells[ids.index("measure") + 1 :]
    path = tmp_path_factory.mktemp("notebooks") / NOTEBOOK.name
    nbformat.write(notebook, path)
    return path


# -- parameters ------------------------------------------------------------------------------------


@pytest.fixture
def kernel_names(tmp_path: Path) -> dict[str, Any]:
    """The names of page_report's parameters cell, as a kernel has them."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    (source,) = (cell.source for cell in cells if "parameters" in cell.metadata.get("tags", ()))
    names: dict[str, Any] = {"In": ["", source]}
    exec(source, names)
    names["output_dir"] = str(tmp_path / "out")
    return names


def test_options_and_names_without_a_line_of_their_own_count(kernel_names: dict[str, Any]) -> None:
    options = {"seed": 7, "preset": "tiny"}

    parameters = PageParameters({**kernel_names, "kernels": True, "options": options})

    settings = parameters.settings.of_run()
    assert settings["kernels"] is True
    assert settings["seed"] == 7
    assert settings["preset"] == "tiny"
    assert settings["repeats"] == 3
    assert parameters.page.name == "receipt.png"
    assert parameters.folder.is_dir()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"In": ["", "# Parameters\npage = None\nkernls = True\n"]}, id="injected"),
        pytest.param({"options": {"kernls": True}}, id="option"),
        pytest.param({"options": "kernels"}, id="no mapping"),
        pytest.param({"options": {"repeats": 0}}, id="value"),
    ],
)
def test_a_wrong_parameter_is_refused_with_the_nearest_name(
    kernel_names: dict[str, Any], wrong: dict[str, Any], tmp_path: Path
) -> None:
    with refused():
        PageParameters({**kernel_names, **wrong})
    assert not (tmp_path / "out").exists()


def test_papermill_s_unknown_parameter_fails_in_our_engine(tmp_path: Path) -> None:
    parameters = {"record": str(RECORD), "repeat": 2, "output_dir": str(tmp_path / "out")}
    with pytest.raises(papermill.PapermillExecutionError, match="Did you mean repeats"):
        execute(NOTEBOOK, tmp_path / "out.ipynb", **parameters)


def test_papermill_s_help_tells_type_default_and_meaning_of_each_parameter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        papermill_command(["--help-notebook", str(NOTEBOOK)])

    printed = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "max_new_tokens: int (default None) maximum number of new tokens" in printed
    assert "options: dict (default {}) any other keyword of load and run_inference" in printed
    assert "Unknown type" not in printed
    assert printed.count("(default ") == len(PAGE_REPORT_PARAMETERS)


def papermill_with_yaml(notebook: Path, folder: Path, options: str) -> None:
    """Papermill's command with options as YAML; a record is shown, so that no model runs."""
    parameters = f"{{options: {options}, record: '{RECORD}', output_dir: '{folder}/out'}}"
    command = [str(notebook), str(folder / "out.ipynb"), "-y", parameters]
    command += ["--no-progress-bar", "--engine", "ocr_phases"]
    papermill_command(command, standalone_mode=False)


def test_papermill_s_command_takes_options_as_yaml(short_notebook: Path, tmp_path: Path) -> None:
    papermill_with_yaml(short_notebook, tmp_path, "{kernels: true, seed: 7}")
    assert (tmp_path / "out" / "run.json").exists()


def test_a_wrong_option_as_yaml_ends_papermill_s_command(
    short_notebook: Path, tmp_path: Path
) -> None:
    with pytest.raises(papermill.PapermillExecutionError, match="Did you mean kernels"):
        papermill_with_yaml(short_notebook, tmp_path, "{kernls: true, seed: 7}")


@pytest.mark.parametrize(
    "notebook", sorted(asset("notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_every_parameter_of_every_notebook_has_a_type_and_a_meaning(notebook: Path) -> None:
    parameters = papermill.inspect_notebook(str(notebook))
    assert parameters
    for parameter in parameters.values():
        assert parameter["inferred_type_name"] != "None", parameter
        assert parameter["help"], parameter


# -- what is run and what is shown -----------------------------------------------------------------


@pytest.fixture
def model_loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that gets an entry whenever a model is loaded; none is kept at first."""
    loads: list[Any] = []
    load_checkpoint = loaded_model.load_checkpoint

    def load_counted(*arguments: Any, **keywords: Any) -> Any:
        loads.append(arguments)
        return load_checkpoint(*arguments, **keywords)

    monkeypatch.setattr(loaded_model, "load_checkpoint", load_counted)
    loaded_model.forget_kept_model()
    return loads


@needs_native
def test_a_loop_over_pages_loads_the_model_once(
    short_notebook: Path, tmp_path: Path, model_loads: list[Any]
) -> None:
    for page in sorted(PAGES.glob("*.png"))[:2]:
        folder = tmp_path / page.stem
        parameters = {"page": str(page), "output_dir": str(folder), "options": NOTHING_AFTER}
        execute(short_notebook, tmp_path / f"{page.stem}.ipynb", **parameters, **QUICK)
        assert PhaseRun.load(folder / "run.json").page.file == page.name
    assert len(model_loads) == 1


def test_a_record_skips_what_needs_a_model_and_says_so(tmp_path: Path) -> None:
    parameters = {"record": str(RECORD), "output_dir": str(tmp_path / "out")}

    notebook = execute(NOTEBOOK, tmp_path / "out.ipynb", **parameters)

    outputs = {cell.id: cell.get("outputs") for cell in notebook.cells}
    assert "skipped" in outputs["load"][0].text
    assert not outputs["prefill-step"]
    assert not outputs["decode-steps"]
    assert outputs["summary"]
    assert (tmp_path / "out" / "run.json").exists()


@pytest.fixture
def own_notebook(tmp_path: Path) -> Path:
    """A notebook of the user's own, run, that shows the linked view of a record."""
    source = "\n".join(
        [
            "from ocr_phases import PhaseRun",
            "from ocr_phases.report import sections",
            f"run = PhaseRun.load({str(RECORD)!r})",
            "sections.linked_page(run)",
        ]
    )
    heading = nbformat.v4.new_markdown_cell("## Mine")
    notebook = new_notebook(heading, nbformat.v4.new_code_cell(source))
    nbformat.write(notebook, tmp_path / "own.ipynb")
    papermill.execute_notebook(
        str(tmp_path / "own.ipynb"),
        str(tmp_path / "run.ipynb"),
        engine_name="ocr_phases",
        kernel_name="python3",
        progress_bar=False,
    )
    return tmp_path / "run.ipynb"


def test_a_notebook_of_one_s_own_becomes_one_file_with_the_linked_view(
    own_notebook: Path, tmp_path: Path
) -> None:
    assert main(["html", str(own_notebook)]) == 0
    document = own_notebook.with_suffix(".html").read_text("utf-8")
    assert "opv-report" in document
    assert "Mine" in document
    assert "PhaseRun.load" not in document
    assert "https://" not in document.partition("<main")[0]

    with_code = tmp_path / "code.html"
    assert main(["html", str(own_notebook), "--show-code", "--out", str(with_code)]) == 0
    assert "PhaseRun.load" in with_code.read_text("utf-8")


def test_what_is_no_notebook_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "page.ipynb").write_text("no notebook")
    assert main(["html", str(tmp_path / "page.ipynb")]) == 2
    assert not (tmp_path / "page.html").exists()


def write_text_notebook(path: Path, text: str) -> None:
    """Write a notebook with one cell of text."""
    nbformat.write(new_notebook(nbformat.v4.new_markdown_cell(text)), path)


def test_a_file_in_the_way_of_a_notebook_s_html_stays_and_an_earlier_output_is_replaced(
    tmp_path: Path,
) -> None:
    notebook = tmp_path / "page.ipynb"
    page = tmp_path / "page.html"
    write_text_notebook(notebook, "Old")
    page.write_text("mine")

    assert main(["html", str(notebook)]) == 2
    assert page.read_text() == "mine"
    assert main(["html", str(notebook), "--overwrite"]) == 0
    assert "Old" in page.read_text()

    write_text_notebook(notebook, "New")
    assert main(["html", str(notebook)]) == 0
    assert "New" in page.read_text()


def test_a_file_of_another_name_is_not_in_the_way_of_a_notebook_s_html(tmp_path: Path) -> None:
    notebook = tmp_path / "page.ipynb"
    other = tmp_path / "page-html"
    write_text_notebook(notebook, "New")
    other.write_text("mine")

    assert main(["html", str(notebook)]) == 0
    assert other.read_text() == "mine"


def test_a_notebook_s_html_never_replaces_the_notebook(tmp_path: Path) -> None:
    notebook = tmp_path / "page.ipynb"
    write_text_notebook(notebook, "New")
    assert main(["html", str(notebook), "--out", str(notebook), "--overwrite"]) == 2
    assert nbformat.read(notebook, as_version=4).cells[0].source == "New"


# -- the guide's scripts for many pages ------------------------------------------------------------


def guide_script(name: str) -> str:
    """The guide's script that has this name in it."""
    text = (Path(__file__).parents[1] / "docs" / "guide.md").read_text("utf-8")
    scripts = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (script,) = (script for script in scripts if name in script)
    return script


@pytest.fixture
def scans(short_notebook: Path, tmp_path: Path) -> Path:
    """A folder with two pages to scan, the notebook, and a record."""
    (tmp_path / "notebooks").symlink_to(short_notebook.parent)
    (tmp_path / "record.json").symlink_to(RECORD)
    (tmp_path / "scans").mkdir()
    (tmp_path / "out").mkdir()
    for page in sorted(PAGES.glob("*.png"))[:2]:
        shutil.copy(page, tmp_path / "scans")
    return tmp_path


@pytest.fixture
def scan_names(scans: Path) -> list[str]:
    """The names of these pages."""
    return sorted(path.stem for path in (scans / "scans").iterdir())


def test_the_guide_s_processes_run_a_notebook_for_each_page(
    scans: Path,
    scan_names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They show a record: that the model is kept in a process is tested above."""
    script = guide_script("ProcessPoolExecutor")
    # One process is enough, and loads its libraries once.
    script = script.replace("PROCESSES = 2", "PROCESSES = 1")
    script = script.replace('"model": "tiny"', '"record": "record.json"')
    (scans / "measure.py").write_text(script)
    monkeypatch.chdir(scans)

    runpy.run_path(str(scans / "measure.py"), run_name="__main__")

    assert capsys.readouterr().out.split() == scan_names
    assert sorted(path.parent.name for path in scans.glob("out/*/run.json")) == scan_names


@needs_native
def test_the_guide_s_dask_workers_measure_each_page_with_one_model(
    scans: Path,
    scan_names: list[str],
    model_loads: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker is a thread of this process, where the model's loads are counted.

    While it runs a notebook, this process's output is the notebook's: what the script prints
    meanwhile is kept in a list.
    """
    distributed = pytest.importorskip("distributed")
    quick = {**QUICK, "options": NOTHING_AFTER}
    script = guide_script("as_completed").replace('"model": "tiny"', f"**{quick!r}")
    printed: list[str] = []

    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        memory_limit=0,
        silence_logs=50,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
    ) as cluster:
        monkeypatch.setattr(sys, "argv", ["measure.py", cluster.scheduler_address, str(scans)])
        names = {"__name__": "__main__", "print": printed.append}
        exec(compile(script, "measure.py", "exec"), names)

    assert sorted(printed) == scan_names
    for name in scan_names:
        assert PhaseRun.load(scans / "out" / name / "run.json").page.file == f"{name}.png"
    assert len(model_loads) == 1
