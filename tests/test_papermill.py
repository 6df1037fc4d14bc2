"""Papermill over page_report: what its parameters ask for, and one model for many pages."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

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


def count_loads(monkeypatch):
    """A list that gets an entry whenever a model is loaded; none is kept at first."""
    loads = []
    load = loaded_model.load_checkpoint

    def counted(*arguments, **keywords):
        loads.append(arguments)
        return load(*arguments, **keywords)

    monkeypatch.setattr(loaded_model, "load_checkpoint", counted)
    loaded_model.forget_kept_model()
    return loads


def test_a_loop_over_pages_loads_the_model_once(tmp_path, monkeypatch):
    if transformers_version() < NATIVE_NEEDS:
        pytest.skip("the native class needs transformers >= 5.20")
    loads = count_loads(monkeypatch)
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
    assert len(loads) == 1


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


def test_what_is_no_notebook_is_refused_and_leaves_no_file(tmp_path):
    (tmp_path / "page.ipynb").write_text("no notebook")
    assert main(["html", str(tmp_path / "page.ipynb")]) == 2
    assert not (tmp_path / "page.html").exists()


def test_a_file_in_the_way_of_a_notebook_s_html_stays_and_an_earlier_output_is_replaced(tmp_path):
    notebook, page = tmp_path / "page.ipynb", tmp_path / "page.html"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("Old")]), notebook)
    page.write_text("mine")
    assert main(["html", str(notebook)]) == 2
    assert page.read_text() == "mine"
    assert main(["html", str(notebook), "--overwrite"]) == 0
    assert "Old" in page.read_text()
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("New")]), notebook)
    assert main(["html", str(notebook)]) == 0
    assert "New" in page.read_text()
    assert main(["html", str(notebook), "--out", str(notebook), "--overwrite"]) == 2
    assert nbformat.read(notebook, as_version=4).cells[0].source == "New"


def test_papermill_s_help_tells_type_default_and_meaning_of_each_parameter(capsys):
    with pytest.raises(SystemExit) as ended:
        papermill_command(["--help-notebook", str(NOTEBOOK)])
    assert ended.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "max_new_tokens: int (default None) maximum number of new tokens" in told
    assert "options: dict (default {}) any other keyword of load and run_inference" in told
    assert "Unknown type" not in told
    assert told.count("(default ") == len(PAGE_REPORT_PARAMETERS)


def test_papermill_s_command_takes_options_as_yaml(tmp_path):
    """A record is shown, so that no model runs; a wrong name would end the notebook."""
    given = (
        f"{{options: {{kernels: true, seed: 7}}, record: '{RECORD}', output_dir: '{tmp_path}/o'}}"
    )
    command = [str(NOTEBOOK), str(tmp_path / "out.ipynb"), "-y", given, "--no-progress-bar"]
    papermill_command([*command, "--engine", "ocr_phases"], standalone_mode=False)
    assert (tmp_path / "o" / "run.json").exists()
    with pytest.raises(papermill.PapermillExecutionError, match="Did you mean kernels"):
        papermill_command(
            [*command[:3], given.replace("kernels", "kernls"), "--engine", "ocr_phases"],
            standalone_mode=False,
        )


def guide_script(name: str) -> str:
    """The guide's script that has this name in it."""
    text = (Path(__file__).parents[1] / "docs" / "guide.md").read_text("utf-8")
    (script,) = (
        part for part in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if name in part
    )
    return script


@pytest.fixture
def scans(tmp_path):
    """A folder with two pages to scan, the notebooks, and a record."""
    (tmp_path / "notebooks").symlink_to(asset("notebooks"))
    (tmp_path / "record.json").symlink_to(RECORD)
    (tmp_path / "scans").mkdir()
    (tmp_path / "out").mkdir()
    for page in sorted(PAGES.glob("*.png"))[:2]:
        shutil.copy(page, tmp_path / "scans")
    return tmp_path


def test_the_guide_s_processes_run_a_notebook_for_each_page(scans):
    """They show a record: that the model is kept in a process is tested above."""
    script = guide_script("ProcessPoolExecutor")
    # One process is enough, and loads its libraries once.
    script = script.replace("PROCESSES = 2", "PROCESSES = 1")
    (scans / "measure.py").write_text(script.replace('"model": "tiny"', '"record": "record.json"'))
    done = subprocess.run(
        [sys.executable, "measure.py"], cwd=scans, capture_output=True, text=True, check=True
    )
    names = sorted(path.stem for path in (scans / "scans").iterdir())
    assert done.stdout.split() == names
    assert sorted(path.parent.name for path in scans.glob("out/*/run.json")) == names


def test_the_guide_s_dask_workers_measure_each_page_with_one_model(scans, monkeypatch, capsys):
    """The worker is a thread of this process, where the model's loads are counted."""
    distributed = pytest.importorskip("distributed")
    if transformers_version() < NATIVE_NEEDS:
        pytest.skip("the native class needs transformers >= 5.20")
    loads = count_loads(monkeypatch)
    quick = {**QUICK, "options": NOTHING_AFTER}
    script = guide_script("as_completed").replace('"model": "tiny"', f"**{quick!r}")
    own = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "silence_logs": 50}
    addresses = dict.fromkeys(("dashboard_address", "worker_dashboard_address"), "127.0.0.1:0")
    with distributed.LocalCluster(
        host="127.0.0.1", protocol="tcp://", memory_limit=0, **own, **addresses
    ) as cluster:
        monkeypatch.setattr(sys, "argv", ["measure.py", cluster.scheduler_address, str(scans)])
        exec(compile(script, "measure.py", "exec"), {"__name__": "__main__"})
    names = sorted(path.stem for path in (scans / "scans").iterdir())
    assert sorted(capsys.readouterr().out.split()) == names
    for name in names:
        assert PhaseRun.load(scans / "out" / name / "run.json").page.file == f"{name}.png"
    assert len(loads) == 1


@pytest.mark.parametrize(
    "notebook", sorted(asset("notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_every_parameter_of_every_notebook_has_a_type_and_a_meaning(notebook):
    parameters = papermill.inspect_notebook(str(notebook))
    assert parameters
    for parameter in parameters.values():
        assert parameter["inferred_type_name"] != "None", parameter
        assert parameter["help"], parameter
