"""Names, records and model output are text and nothing else: on a terminal, in a figure, in a
path.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import matplotlib.text
import nbformat
import pytest
from conftest import RECORD
from example_run import altered, failed_cells, make_run
from hypothesis import given
from hypothesis import strategies as st

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


@given(st.text(st.characters(codec=None)))
def test_any_text_is_sound_in_xml_and_obeyed_by_no_terminal(text: str) -> None:
    shown = plain(text)
    assert (ElementTree.fromstring(element("a", text)).text or "") == shown
    assert not CONTROL.search(shown)
    assert len(shown.encode().decode()) == len(text)


def test_only_a_progress_bar_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_streams():
        print("a\x1b[31mb\rc")
        print("\r\x1b[Kdone: a\x1b[31mb\rc", file=sys.stderr)
        print("\x1b[31mx", file=sys.stderr)
        assert sys.stdout.isatty() is False
    sign = "\N{REPLACEMENT CHARACTER}"
    out, err = capsys.readouterr()
    assert out == f"a{sign}[31mb{sign}c\n"
    assert err == f"\r\x1b[Kdone: a{sign}[31mb{sign}c\n{sign}[31mx\n"


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No notebook is run, and nothing measured."""
    session = SimpleNamespace(
        run_inference=lambda *_, **__: PhaseRun.load(RECORD), check_request=lambda *_, **__: None
    )
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)

    def leave(notebook: Any, kernel: str, outcome: NotebookOutcome, **_: Any) -> Any:
        outcome.notebook = notebook
        return notebook

    monkeypatch.setattr("ocr_phases.report.engine.InProcess.execute_notebook", leave)


def hostile_record(path: Path) -> str:
    """A record that says hostile things wherever it has words of its own."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    record["pages"][0]["file"] = record["model"]["name"] = record["device"]["name"] = HOSTILE
    result = record["results"][0]
    result["text"] = HOSTILE + result["text"]
    result["token_texts"][0] = HOSTILE + result["token_texts"][0]
    for check in record["live_checks"]:
        check["measured"] = check["expected"] = HOSTILE
    path.parent.mkdir()
    path.write_text(json.dumps(record), encoding="utf-8")
    return str(path)


def test_no_verb_sends_an_escape_sequence_and_braces_are_part_of_a_name(not_run, tmp_path, capsys):
    records, end = tmp_path / "arch{1}", "{x}\x1b[2J"
    record = hostile_record(records / "inv{oice}\x1b[31m$x$.json")
    out = tmp_path / "deep" / "er" / f"out{end}"
    page = shutil.copy(RECORD.parents[2] / "data/pages/slide.png", tmp_path / "{prompt}.png")
    for name, arguments in {
        "report.html": ["report", "--record", record],
        "{prompt}/report.html": ["report", str(page), "--prompt", "../../../escaped"],
        "verify.html": ["verify", "--record", record],
        "compare.html": ["compare", str(RECORD), record],
        "sweep.html": ["sweep", "--records", str(records)],
        "result.mmd": ["artifacts", record],
        "": ["artifacts", f"{record}\x1b[2J\x07"],  # there is none
    }.items():
        assert main([*arguments, "--out", str(out)]) in ((0, 1) if name else (2,)), name
        assert (out / name).exists()
        said = "".join(capsys.readouterr())
        assert "\N{REPLACEMENT CHARACTER}[2J" in said and not CONTROL.search(said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arch{1}", "deep", "{prompt}.png"]
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == [f"out{end}"]


def test_figures_draw_names_letter_by_letter() -> None:
    """Every plot of a record, a comparison and a sweep."""
    region = f"<|ref|>{HOSTILE}<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>\nsome words {HOSTILE} "
    runs = [make_run(seed=seed, text=region * 3, page_name=HOSTILE) for seed in (0, 1)]
    runs = [
        altered(run, model={"name": HOSTILE}, pages=[to_plain(run.page) | {"preset": HOSTILE}])
        for run in runs
    ]
    sweep = SweepResult(
        {HOSTILE: runs[0], "b": altered(runs[1], model={"name": "b"})}, failed_cells()
    )
    drawn = ""
    for each in (runs[0], Comparison(runs, [HOSTILE, "b"]), sweep):
        for name in (name for name in dir(each.plot) if name[0] != "_"):
            figure = getattr(each.plot, name)()
            assert ElementTree.fromstring(figure_svg(figure)).attrib["aria-label"], name
            texts = [
                text for text in figure.findobj(matplotlib.text.Text) if "$" in text.get_text()
            ]
            assert not any(text.get_parse_math() for text in texts), name
            drawn += f" {name}" * bool(texts)
    assert len(drawn.split()) > 5, drawn


def test_a_report_holds_no_control_character(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("x")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{HOSTILE}\ud800")]
    source = tmp_path / "n.ipynb"
    content = nbformat.writes(nbformat.v4.new_notebook(cells=[cell]))
    source.write_text(json.dumps(json.loads(content)), encoding="ascii")
    document = render_html(source, tmp_path / "n.html", title=HOSTILE).read_text(encoding="utf-8")
    assert plain(document) == document
