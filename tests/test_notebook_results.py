"""What a cell shows: every result as HTML and as text, its tables and plots; needs no model."""

import inspect
import json

import nbformat
import pandas as pd
import pytest
from conftest import GPU_RECORD, RECORD
from elements import Elements
from example_run import ATTACK, SHAPES, make_run
from matplotlib.figure import Figure
from refusals import refused
from surface import plots_of, plots_on_axes, tables_in, tables_of

from ocr_phases import PhaseRun, SweepResult, compare
from ocr_phases.analyse.sweep_table import FAILURE_COLUMNS
from ocr_phases.cli import main
from ocr_phases.results.comparison import ComparePlots
from ocr_phases.results.run import RunPlots
from ocr_phases.results.sweep import SweepPlots
from ocr_phases.show.shown_figure import alt_text
from ocr_phases.text import ms_text
from ocr_phases.versions import asset

PLOTS = plots_of(RunPlots)
TABLES = tables_of(PhaseRun)
ON_AXES = [
    (kind, name) for kind in (RunPlots, ComparePlots, SweepPlots) for name in plots_on_axes(kind)
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_record_shows_itself_its_tables_and_its_plots(shape):
    run = make_run(**SHAPES[shape])
    shown = run._repr_mimebundle_()
    elements = Elements(shown["text/html"])
    assert not elements.open
    assert not elements.stray
    assert "nan" not in elements.said
    prefill = "" if run["prefill_ms"] is None else ms_text(run["prefill_ms"])
    assert prefill in elements.said.replace("\N{NO-BREAK SPACE}", " ")
    assert shown["text/plain"].startswith(run.page.file)
    if len(run.pages) > 1:
        rows = [f"row {row + 1}: {page.file}" for row, page in enumerate(run.pages)]
        assert all(row in shown["text/plain"] for row in rows)
        assert sum(tag == "tr" for tag, _ in elements.found) == len(run.pages) + 1
    assert all(attributes.get("alt") for tag, attributes in elements.found if tag == "img")
    tables = tables_in(run)
    assert {"stages", "tokens", "regions", "floors", "checks"} <= set(tables)
    assert [name for name, table in tables.items() if len(table.columns) < 2] == []
    assert [name for name in PLOTS if not alt_text(getattr(run.plot, name)())] == []


def test_figures_tables_pages_and_paths_show_themselves(tmp_path):
    run = make_run()
    data = run.plot.vision()._repr_mimebundle_()
    (still,) = (attributes for tag, attributes in Elements(data["text/html"]).found if tag == "img")
    assert still["alt"] == data["text/plain"]
    assert "<svg" in data["text/html"] and "var(--op-ink" in data["text/html"]
    for table in (*tables_in(run).values(), compare(run, run).table):
        elements = Elements(table._repr_html_())
        assert not elements.stray and "table" in elements.tags()
        assert Elements(table.head(1)._repr_html_()).tags() >= {"table"}
    verdict_first = Elements(run.checks._repr_html_()).said
    assert verdict_first.index("verdict") < verdict_first.index("measured")
    assert run.page.file in run.page._repr_mimebundle_()["text/plain"]
    assert "img" in Elements(run.page._repr_mimebundle_()["text/html"]).tags()
    assert "run.json" in run.save(tmp_path / "run.json")._repr_html_()
    found = {name for name in dir(run.plot) if not name.startswith("_")}
    assert found == set(PLOTS) and all(f"plot.{name}()" in repr(run.plot) for name in found)
    assert all(getattr(run.plot, name).__doc__ for name in PLOTS)
    assert all(getattr(PhaseRun, name).__doc__ for name in TABLES)
    assert list(inspect.signature(run.plot.page).parameters) == ["page", "color", "row", "ax"]


@pytest.mark.parametrize(("kind", "name"), ON_AXES)
def test_a_plot_draws_on_the_caller_s_axes(kind, name):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    run = make_run()
    failures = pd.DataFrame(columns=list(FAILURE_COLUMNS))
    results = (run, compare(run, run), SweepResult({"a": run, "b": run}, failures))
    (plot,) = (result.plot for result in results if isinstance(result.plot, kind))
    assert getattr(plot, name)(ax=left) is figure
    assert [bool(axes.get_title("left") or axes.texts) for axes in (left, right)] == [True, False]


def test_colours_and_labels_that_there_cannot_be_are_refused():
    run = make_run()
    with refused():
        run.plot.page(color="label")
    change = compare(run, run, labels=["a", "b"])
    assert change.verdict.startswith("b against a")
    assert change.verdict in change._repr_mimebundle_()["text/plain"]
    for labels in (["a"], ["a", "a"], ["a", "b", "c"]):
        with refused():
            compare(run, run, labels=labels)


def test_what_a_model_wrote_stays_text():
    name = "<b onclick=alert(1)>$x$</b>.png"
    run = make_run(text=ATTACK, page_name=name)
    other = make_run(text=ATTACK.replace("2", "3"), page_name=name)
    for result in (run, make_run(rows=2, page_name=name), compare(run, other)):
        elements = Elements(result._repr_mimebundle_()["text/html"])
        assert elements.tags().isdisjoint({"script", "b", "iframe"})
        assert not any(
            name.startswith("on") for _, attributes in elements.found for name in attributes
        )


def test_a_folder_of_records_shows_itself(tmp_path):
    for rows in (1, 2):
        make_run(rows=rows).save(tmp_path / f"small-eager-b{rows}-n8.json")
    sweep = SweepResult.load(tmp_path)
    assert list(sweep.table["batch"]) == [1, 2]
    shown = sweep._repr_mimebundle_()
    assert sweep.verdict in shown["text/plain"] and not Elements(shown["text/html"]).stray
    plots = ("prefill", "vision", "decode", "throughput", "floors")
    assert all(alt_text(getattr(sweep.plot, name)()) for name in plots)


@pytest.mark.parametrize("path", [RECORD, GPU_RECORD], ids=["cpu", "cuda"])
def test_a_trace_has_every_span_of_every_clock_and_they_nest(path, tmp_path, capsys):
    assert main(["artifacts", "--chrome-trace", str(path), "--out", str(tmp_path)]) == 0
    assert str(trace := tmp_path / "trace.json") in capsys.readouterr().out
    events = json.loads(trace.read_text(), parse_constant=pytest.fail)["traceEvents"]
    run = PhaseRun.load(path)
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    cache = [event for event in events if event["name"] == "KV cache"]
    assert [event["args"]["bytes"] for event in cache] == run.cache.bytes * len(run.repeats)
    assert all(event["ts"] > 0 for event in cache)
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == (2 if run.device.kind == "cuda" else 1) * len(run.spans)
    host = sum(event["dur"] for event in complete if event["tid"] == 1)
    assert host == pytest.approx(1e3 * run.spans["host_ms"].sum())
    lanes = {}
    for event in complete:
        assert {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"} == set(event)
        lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"]))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert named == set(lanes)
    names = {
        (event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"
    }
    assert names == {(number, f"repeat {number}: {run.page.file}") for number, _ in lanes}
    for lane in lanes.values():
        # Within a lane a span lies in the one before it or behind it, as a viewer draws them.
        open_until = []
        for start, length in sorted(lane):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or start - length <= open_until[-1]
            open_until.append(start - length)


NOTEBOOKS = sorted(asset("notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_shipped_notebook_is_clean(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert len({cell["id"] for cell in notebook.cells}) == len(notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [cell for cell in code if cell.outputs or cell.execution_count is not None]
    assert notebook.cells[0].cell_type == "markdown" and not {"widgets", "papermill"} & set(
        notebook.metadata
    )
    (parameters,) = (cell for cell in code if "parameters" in cell.metadata.get("tags", []))
    for line in parameters.source.splitlines():
        name, equals, _ = line.partition(" = ")
        name = name.partition(":")[0]  # papermill reads a type behind it
        assert equals and name.isidentifier(), f"no parameter of its own: {line}"
