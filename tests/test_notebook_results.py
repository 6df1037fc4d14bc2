"""What a cell shows: every result as HTML and as text, its tables and plots; needs no model."""

import inspect
import json
from collections import defaultdict

import nbformat
import pandas as pd
import pytest
from conftest import GPU_RECORD, RECORD
from elements import Elements
from example_run import ATTACK, SHAPES, example
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
NOTEBOOKS = sorted(asset("notebooks").glob("*.ipynb"))


def html_of(result: object) -> Elements:
    """What a notebook shows of a result."""
    return Elements(result._repr_mimebundle_()["text/html"])


def text_of(result: object) -> str:
    """What a notebook shows of a result where it shows no HTML."""
    return result._repr_mimebundle_()["text/plain"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_record_shows_itself(shape):
    run = example(**SHAPES[shape])
    elements = html_of(run)
    assert not elements.open
    assert not elements.stray
    assert "nan" not in elements.said
    if run["prefill_ms"] is not None:
        said = elements.said.replace("\N{NO-BREAK SPACE}", " ")
        assert ms_text(run["prefill_ms"]) in said
    assert all(image["alt"] for image in elements.attributes_of("img"))
    assert text_of(run).startswith(run.page_file)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_record_has_its_tables_and_plots(shape):
    run = example(**SHAPES[shape])
    tables = tables_in(run)
    assert {"stages", "tokens", "regions", "floors", "checks"} <= set(tables)
    for name, table in tables.items():
        assert len(table.columns) >= 2, name
    for name in PLOTS:
        if name != "page" or run.has_page:
            assert alt_text(getattr(run.plot, name)()), name


def test_a_batch_shows_each_of_its_pages():
    run = example(rows=3)
    for row, page in enumerate(run.pages):
        assert f"row {row + 1}: {page.file}" in text_of(run)
    heading = 1
    assert len(html_of(run).attributes_of("tr")) == heading + len(run.pages)


def test_a_figure_is_drawn_in_a_theme_s_ink_with_a_still_that_has_words():
    shown = example().plot.vision()._repr_mimebundle_()
    html = shown["text/html"]
    (still,) = Elements(html).attributes_of("img")
    assert still["alt"] == shown["text/plain"]
    assert "<svg" in html
    assert "var(--op-ink" in html


def test_a_table_is_html_and_so_is_a_part_of_it():
    run = example()
    for table in (*tables_in(run).values(), compare(run, run).table):
        elements = Elements(table._repr_html_())
        assert not elements.stray
        assert "table" in elements.tags()
        assert "table" in Elements(table.head(1)._repr_html_()).tags()


def test_the_table_of_checks_has_the_verdict_before_what_was_measured():
    said = Elements(example().checks._repr_html_()).said
    assert said.index("verdict") < said.index("measured")


def test_a_page_and_a_path_show_themselves(tmp_path):
    run = example()
    assert run.page.file in text_of(run.page)
    assert "img" in html_of(run.page).tags()
    assert "run.json" in run.save(tmp_path / "run.json")._repr_html_()


def test_every_table_and_plot_is_listed_and_described():
    run = example()
    listed = {name for name in dir(run.plot) if not name.startswith("_")}
    assert listed == set(PLOTS)
    for name in PLOTS:
        assert f"plot.{name}()" in repr(run.plot)
        assert getattr(run.plot, name).__doc__, name
    for name in TABLES:
        assert getattr(PhaseRun, name).__doc__, name
    assert list(inspect.signature(run.plot.page).parameters) == ["page", "color", "row", "ax"]


@pytest.mark.parametrize(("kind", "name"), ON_AXES)
def test_a_plot_draws_on_the_caller_s_axes(kind, name):
    run = example()
    failures = pd.DataFrame(columns=list(FAILURE_COLUMNS))
    results = (run, compare(run, run), SweepResult({"a": run, "b": run}, failures))
    (plot,) = (result.plot for result in results if isinstance(result.plot, kind))
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert getattr(plot, name)(ax=left) is figure
    assert left.get_title("left") or left.texts
    assert not right.get_title("left")
    assert not right.texts


def test_a_comparison_is_told_in_the_caller_s_labels():
    run = example()
    change = compare(run, run, labels=["a", "b"])
    assert change.verdict.startswith("b against a")
    assert change.verdict in text_of(change)


def test_colours_and_labels_that_there_cannot_be_are_refused():
    run = example()
    with refused():
        run.plot.page(color="label")
    for labels in (["a"], ["a", "a"], ["a", "b", "c"]):
        with refused():
            compare(run, run, labels=labels)


def test_what_a_model_wrote_stays_text():
    name = "<b onclick=alert(1)>$x$</b>.png"
    run = example(text=ATTACK, page_name=name)
    batch = example(rows=2, page_name=name)
    other = example(text=ATTACK.replace("2", "3"), page_name=name)
    for result in (run, batch, compare(run, other)):
        elements = html_of(result)
        assert elements.tags().isdisjoint({"script", "b", "iframe"})
        for _, attributes in elements.found:
            assert not any(attribute.startswith("on") for attribute in attributes)


def test_a_folder_of_records_shows_itself(tmp_path):
    for rows in (1, 2):
        example(rows=rows).save(tmp_path / f"small-eager-b{rows}-n8.json")
    sweep = SweepResult.load(tmp_path)
    assert list(sweep.table["batch"]) == [1, 2]
    assert sweep.verdict in text_of(sweep)
    assert not html_of(sweep).stray
    for name in ("prefill", "vision", "decode", "throughput", "floors"):
        assert alt_text(getattr(sweep.plot, name)()), name


@pytest.fixture(scope="module", params=[RECORD, GPU_RECORD], ids=["cpu", "cuda"])
def traced_run(request, tmp_path_factory):
    """A record and the events of its trace, as the command writes it."""
    folder = tmp_path_factory.mktemp("trace")
    assert main(["artifacts", "--chrome-trace", str(request.param), "--out", str(folder)]) == 0
    text = (folder / "trace.json").read_text()
    events = json.loads(text, parse_constant=pytest.fail)["traceEvents"]
    return PhaseRun.load(request.param), events


def test_the_command_names_the_trace_that_it_wrote(tmp_path, capsys):
    assert main(["artifacts", "--chrome-trace", str(RECORD), "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "trace.json") in capsys.readouterr().out


def test_a_trace_has_every_span_of_every_clock(traced_run):
    run, events = traced_run
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    spans = [event for event in events if event["ph"] == "X"]
    clocks = 2 if run.device.kind == "cuda" else 1
    assert len(spans) == clocks * len(run.spans)
    for event in spans:
        assert set(event) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
    host_us = sum(event["dur"] for event in spans if event["tid"] == 1)
    assert host_us == pytest.approx(1e3 * run.spans["host_ms"].sum())


def test_a_trace_has_the_cache_s_bytes(traced_run):
    run, events = traced_run
    cache = [event for event in events if event["name"] == "KV cache"]
    assert [event["args"]["bytes"] for event in cache] == run.cache.bytes * len(run.repeats)
    assert all(event["ts"] > 0 for event in cache)


def test_every_lane_of_a_trace_has_a_name(traced_run):
    run, events = traced_run
    lanes = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert threads == lanes
    processes = {
        (event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"
    }
    assert processes == {(repeat, f"repeat {repeat}: {run.page.file}") for repeat, _ in lanes}


def test_the_spans_of_a_lane_nest(traced_run):
    """A span lies in the one before it or behind it, as a viewer draws them."""
    _, events = traced_run
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for lane in lanes.values():
        open_until = []
        for start, negative_length in sorted(lane):
            end = start - negative_length
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_shipped_notebook_is_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert len({cell["id"] for cell in notebook.cells}) == len(notebook.cells)
    assert notebook.cells[0].cell_type == "markdown"
    assert not {"widgets", "papermill"} & set(notebook.metadata)
    for cell in code_cells(notebook):
        assert not cell.outputs
        assert cell.execution_count is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_line_of_a_notebook_s_parameters_is_one_parameter(path):
    cells = code_cells(nbformat.read(path, as_version=nbformat.NO_CONVERT))
    (parameters,) = (cell for cell in cells if "parameters" in cell.metadata.get("tags", []))
    for line in parameters.source.splitlines():
        name, equals, _ = line.partition(" = ")
        name = name.partition(":")[0]  # papermill reads a type behind it
        assert equals, line
        assert name.isidentifier(), line


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
