"""What a cell shows keeps its shape under JupyterLab's own rules, in nbconvert's HTML: a live
JupyterLab is looked at with the explorer.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import pandas as pd
import pytest
from conftest import GPU_RECORD, RECORD, RUNS
from example_run import ATTACK, make_run
from IPython.core.formatters import DisplayFormatter
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output
from surface import page_section, sections_of_a_record, tables_in

from ocr_phases import PhaseRun, SweepResult, compare
from ocr_phases.analyse.load import AskedPage
from ocr_phases.analyse.sweep_table import FAILURE_COLUMNS
from ocr_phases.results.load import LoadResult
from ocr_phases.show.checks_section import references_section, verification_section
from ocr_phases.show.comparison_overview import environment_html
from ocr_phases.show.run_overview import overview_section
from ocr_phases.show.section import Section, facts_bundle, style_section
from ocr_phases.show.shown_figure import ShownFigure
from ocr_phases.show.sweep_overview import cells_section
from ocr_phases.show.timeline_section import timeline_bundle

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab.missing()), reason=str(lab.missing())),
]

#: A script that finds what is out of shape in the outputs of a page.
FIND_FAULTS = (Path(__file__).parent / "fragments.js").read_text(encoding="utf-8")
UNFOLD = "document.querySelectorAll('details').forEach((details) => { details.open = true; })"
WIDTHS = (1280, 700)
OUTPUTS = ".jp-OutputArea-output"
SECTIONS = (*sections_of_a_record(), overview_section, page_section)


def fragments_of_a_record(run: PhaseRun) -> dict[str, Any]:
    """What cells show of one record: its face, tables, plots and every section of its report."""
    shown: dict[str, Any] = {"run": run, "page": run.page}
    shown |= tables_in(run)
    for name in ("latency", "vision", "timeline", "page", "regions"):
        shown[f"plot {name}"] = getattr(run.plot, name)()
    for section in SECTIONS:
        shown[f"section {section.__name__}"] = section(run)
    shown["verification"] = verification_section(run)
    return shown


class Shown:
    """A bundle as a result of a cell."""

    def __init__(self, bundle: dict[str, str]) -> None:
        self.bundle = bundle

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.bundle


def load_of_two_levels() -> LoadResult:
    """What a server's load test showed of one and of two pages at once."""
    pages = []
    for level in (1, 2):
        times = [0.5, 0.6, 0.7]
        page = AskedPage(level=f"{level} at once", begun=0.0, times=times, tokens=3, timed=True)
        pages.append(page)
    return LoadResult("http://localhost:8000", pages)


def fragments_of_others() -> dict[str, Any]:
    """What cells show of several records, of a server's load, of step-by-step work and of strange
    texts.
    """
    runs = [PhaseRun.load(path) for path in sorted(RUNS.glob("h200-dummy-*.json.gz"))[:3]]
    change = compare(*runs)
    no_failures = pd.DataFrame(columns=list(FAILURE_COLUMNS))
    sweep = SweepResult({"base": runs[0], "gundam": runs[1]}, no_failures)
    place = {
        "what": "fusion",
        "file": f"transformers/{'long_name/' * 6}a.py",
        "line": 1960,
        "version": "transformers 5.23.0",
        "symbol": f"Model.forward: {'embeds.masked_scatter' * 5}",
    }
    long_facts = {"parameters": {"SAM": "95 M", "CLIP": "303 M"}, "path": "long_name/" * 30}
    return {
        "comparison": change,
        "comparison table": change.table,
        "what differs": Section(environment_html(change.differs)),
        "sweep": sweep,
        "sweep table": sweep.table,
        "sweep cells": cells_section(sweep),
        "load": load_of_two_levels(),
        "batch": make_run(rows=3),
        "many words": make_run(text=ATTACK, page_name="a_long_name_" * 20 + ".png"),
        "timeline": Shown(timeline_bundle(runs[0].spans.query("repeat == 0"))),
        "facts": Shown(facts_bundle("Model tiny", long_facts)),
        "references": references_section([place]),
    }


def fragments_of_a_cpu() -> dict[str, Any]:
    return fragments_of_a_record(PhaseRun.load(RECORD))


def fragments_of_a_gpu() -> dict[str, Any]:
    return fragments_of_a_record(PhaseRun.load(GPU_RECORD))


def html_of(shown: Any) -> str:
    """The HTML of a result, as a cell gives it; a figure's still, which is hidden, is left out."""
    if isinstance(shown, ShownFigure):
        return shown.bundle(still=False)["text/html"]
    if isinstance(shown, Section):
        return "".join(style_section().parts[:1]) + shown.html()
    data, _ = DisplayFormatter().format(shown)
    return str(data["text/html"])


def export_notebook(fragments: dict[str, str], theme: str, file: Path) -> Path:
    """The fragments as outputs of a notebook in nbconvert's template of JupyterLab."""
    cells = []
    for name, html in fragments.items():
        output = new_output("execute_result", {"text/html": html})
        cells.append(new_code_cell(f"# {name}", outputs=[output]))
    exporter = HTMLExporter(template_name="lab", theme=theme)
    exporter.exclude_input = True
    document, _ = exporter.from_notebook_node(new_notebook(cells=cells))
    file.write_text(document, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A window of Chromium that reaches no other host: the template asks for MathJax and
    require.js.
    """
    with lab.chromium() as browser:
        page = browser.new_page(java_script_enabled=True)
        page.route("http*://**", lambda route: route.abort())
        yield page


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(fragments_of_a_cpu, id="cpu"),
        pytest.param(fragments_of_a_gpu, id="cuda"),
        pytest.param(fragments_of_others, id="others"),
    ],
)
def fragments(request: pytest.FixtureRequest) -> dict[str, str]:
    """What cells show, by name, as the HTML of their outputs."""
    return {name: html_of(shown) for name, shown in request.param().items()}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_fragments_keep_their_shape_in_nbconvert_s_html(
    theme: str, fragments: dict[str, str], page: Any, tmp_path: Path
) -> None:
    file = export_notebook(fragments, theme, tmp_path / "shown.html")
    page.goto(file.as_uri())
    page.evaluate(UNFOLD)

    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate(FIND_FAULTS, OUTPUTS)
        assert found["wrong"] == [], width
        assert found["page"] <= 0, width
