"""The report and the explorer's panel under axe-core, in light and in dark, in Chromium."""

import importlib.util
from pathlib import Path

import lab
import pytest
from conftest import RUNS

from ocr_phases.explorer import Explorer
from ocr_phases.view.widgets import TimelineView

AXE = importlib.util.find_spec("axe_playwright_python")
SCRIPT = (Path(__file__).parent / "widget.js").read_text(encoding="utf-8")
FINDINGS = """async (part) => {
  const { violations } = await axe.run(part ?? document, { resultTypes: ["violations"] });
  return violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html.slice(0, 120))]);
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(AXE is None, reason="axe-playwright-python is not installed"),
    pytest.mark.skipif(bool(lab.missing()), reason=str(lab.missing())),
]


@pytest.fixture(scope="module")
def window():
    """A window of Chromium, which shows one page after the other."""
    with lab.chromium() as browser:
        yield browser.new_page()


@pytest.fixture(params=["light", "dark"])
def page(window, request):
    """The window, empty, in these colours."""
    window.goto("about:blank")
    window.emulate_media(color_scheme=request.param)
    return window


@pytest.fixture(scope="module")
def explorer():
    """A panel with one record. A page gets a copy of its state, so all can show it."""
    return Explorer(record=RUNS / "tiny-receipt.json.gz", keep=None)


def findings(page, part=None):
    assert AXE is not None and AXE.origin is not None
    page.evaluate(Path(AXE.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    return page.evaluate(FINDINGS, part)


def show(page, widget, data):
    """A widget alone on a page, in the colours of the browser."""
    style = f":root {{ color-scheme: light dark; background: var(--op-page) }} {widget._css}"
    page.set_content(
        f"<html lang=en><title>Widget</title><style>{style}</style><main><h1>A widget</h1></main>"
    )
    state = {name: value for name, value in widget.get_state().items() if name != "layout"}
    page.evaluate(SCRIPT, [str(widget._esm), state, data])


def test_a_report_has_no_findings(page, plain_report):
    page.goto((plain_report / "report.html").as_uri())
    page.wait_for_selector(".opv-on .opv .opv-token", state="attached")
    assert findings(page) == []
    page.click(".opv label:text-is('Tokens')")
    page.select_option("[data-trait=color]", "time")
    assert findings(page, ".opv-report") == []


def test_the_panel_has_no_findings(page, explorer):
    show(page, explorer, {})
    page.click(".opx-more > summary")
    assert findings(page) == []
    page.evaluate("model.set('view', 'records')")
    assert findings(page, "[data-pane=records]") == []


def test_a_timeline_has_no_findings(page, explorer):
    widget = TimelineView(explorer.run)
    show(page, widget, widget.source.data)
    assert findings(page) == []
