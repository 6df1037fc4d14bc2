"""Names, records and model output are text and nothing else: on a terminal, in a figure, in a
path.
"""

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
from conftest import PAGES, RECORD
from example_run import altered, failed_cells, make_run
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from ocr_phases import PhaseRun
from ocr_phases.cli import main
from ocr_phases.record.parts import to_plain
from ocr_phases.report.engine import NotebookOutcome
from ocr_phases.report.render import render_html
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.sweep import SweepResult
from ocr_phases.show.shown_figure import figure_svg
from ocr_phases.show.web import element
from ocr_phases.text import plain, plain_streams

HOSTILE = "$\\frac{$ $x$ \x1b[31m\x00\x9b2J\r\u202e\uffff</text>{prompt}"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: What stands for a control character.
SIGN = "\N{REPLACEMENT CHARACTER}"


@given(st.text(st.characters(codec=None)))
def test_any_text_is_sound_in_xml_and_obeyed_by_no_terminal(text: str) -> None:
    shown = plain(text)
    parsed = ElementTree.fromstring(element("a", text))
    assert (parsed.text or "") == shown
    assert not CONTROL.search(shown)
    assert len(shown.encode().decode()) == len(text)


def test_only_a_progress_bar_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_streams():
        print("a\x1b[31mb\rc")
        print("\r\x1b[Kdone: a\x1b[31mb\rc", file=sys.stderr)
        print("\x1b[31mx", file=sys.stderr)
        assert sys.stdout.isatty() is False

    printed = capsys.readouterr()
    assert printed.out == f"a{SIGN}[31mb{SIGN}c\n"
    assert printed.err == f"\r\x1b[Kdone: a{SIGN}[31mb{SIGN}c\n{SIGN}[31mx\n"


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No notebook is run, and nothing is measured: every page has the recorded run."""

    def recorded_run(*_: object, **__: object) -> PhaseRun:
        return PhaseRun.load(RECORD)

    def accept(*_: object, **__: object) -> None:
        pass

    session = SimpleNamespace(run_inference=recorded_run, check_request=accept, device="cpu")
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)

    def leave(notebook: Any, kernel: str, outcome: NotebookOutcome, **_: object) -> Any:
        outcome.notebook = notebook
        return notebook

    monkeypatch.setattr("ocr_phases.report.engine.InProcess.execute_notebook", leave)


def save_hostile_record(path: Path) -> Path:
    """Save a record that says hostile things wherever it has words of its own."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    record["pages"][0]["file"] = HOSTILE
    record["model"]["name"] = HOSTILE
    record["device"]["name"] = HOSTILE
    result = record["results"][0]
    result["text"] = HOSTILE + result["text"]
    result["token_texts"][0] = HOSTILE + result["token_texts"][0]
    for check in record["live_checks"]:
        check["measured"] = HOSTILE
        check["expected"] = HOSTILE

    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


@dataclass
class HostileFolder:
    """A record, a page and a folder for results whose names hold braces and escape sequences."""

    root: Path
    record: Path
    page: Path
    out: Path

    def run(self, *command: object) -> int:
        """The exit code of a command that writes into the folder for results."""
        return main([*map(str, command), "--out", str(self.out)])


@pytest.fixture
def hostile(nothing_runs: None, tmp_path: Path) -> HostileFolder:
    return HostileFolder(
        root=tmp_path,
        record=save_hostile_record(tmp_path / "arch{1}" / "inv{oice}\x1b[31m$x$.json"),
        page=Path(shutil.copy(PAGES / "slide.png", tmp_path / "{prompt}.png")),
        out=tmp_path / "deep" / "er" / "out{x}\x1b[2J",
    )


def assert_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    """What was printed names the folder for results, without the control character in its name."""
    printed = "".join(capsys.readouterr())
    assert f"{SIGN}[2J" in printed
    assert not CONTROL.search(printed)


def test_no_verb_sends_an_escape_sequence_and_braces_are_part_of_a_name(
    hostile: HostileFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    record = hostile.record
    commands = {
        "report.html": ["report", "--record", record],
        "{prompt}/report.html": ["report", hostile.page, "--prompt", "../../../escaped"],
        "verify.html": ["verify", "--record", record],
        "compare.html": ["compare", RECORD, record],
        "sweep.html": ["sweep", "--records", record.parent],
        "result.mmd": ["artifacts", record],
    }
    for result, command in commands.items():
        assert hostile.run(*command) in (0, 1), result
        assert (hostile.out / result).exists()
        assert_no_escape_sequence(capsys)

    # Nothing was written beside the folder that was asked for.
    in_root = sorted(path.name for path in hostile.root.iterdir())
    assert in_root == ["arch{1}", "deep", "{prompt}.png"]
    assert list(hostile.out.parent.iterdir()) == [hostile.out]


def test_a_file_that_is_not_there_is_named_without_its_escape_sequence(
    hostile: HostileFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hostile.run("artifacts", f"{hostile.record}\x1b[2J\x07") == 2
    assert_no_escape_sequence(capsys)


def hostile_run(seed: int) -> PhaseRun:
    """A record whose model, page, preset and text have hostile names."""
    region = f"<|ref|>{HOSTILE}<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>\nsome words {HOSTILE} "
    run = make_run(seed=seed, text=region * 3, page_name=HOSTILE)
    page = to_plain(run.page) | {"preset": HOSTILE}
    return altered(run, model={"name": HOSTILE}, pages=[page])


def test_figures_draw_names_letter_by_letter() -> None:
    """Every plot of a record, a comparison and a sweep."""
    first = hostile_run(seed=0)
    second = hostile_run(seed=1)
    cells = {HOSTILE: first, "b": altered(second, model={"name": "b"})}
    results = (
        first,
        Comparison([first, second], [HOSTILE, "b"]),
        SweepResult(cells, failed_cells()),
    )

    plots_with_a_dollar = []
    for result in results:
        plot_names = [name for name in dir(result.plot) if not name.startswith("_")]
        for name in plot_names:
            figure = getattr(result.plot, name)()
            assert ElementTree.fromstring(figure_svg(figure)).attrib["aria-label"], name
            texts = [text for text in figure.findobj(Text) if "$" in text.get_text()]
            assert not any(text.get_parse_math() for text in texts), name
            if texts:
                plots_with_a_dollar.append(name)
    assert len(plots_with_a_dollar) > 5, plots_with_a_dollar


def test_a_report_holds_no_control_character(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("x")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{HOSTILE}\ud800")]
    notebook = nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))
    source = tmp_path / "n.ipynb"
    # As ASCII, because a file cannot hold half a pair of surrogates.
    source.write_text(json.dumps(json.loads(notebook)), encoding="ascii")

    report = render_html(source, tmp_path / "n.html", title=HOSTILE)

    document = report.read_text(encoding="utf-8")
    assert plain(document) == document
