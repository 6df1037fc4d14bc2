"""The panel in JupyterLab: its keys stay in it, its records outlive the kernel, a picture stands for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import lab
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(lab.missing()), reason=str(lab.missing()))]

RECORD = lab.REPOSITORY / "tests" / "golden" / "run.json"
CELLS = "() => jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model.id + cell.model.type)"
#: Shortcuts of a notebook in command mode: change, insert, delete, cut, copy, paste, merge, run, go to.
PRESSED = (
    *("m", "r", "y", "a", "b", "d", "d", "x", "c", "v", "0", "0", "Shift+M"),
    *(
        "ArrowDown",
        "ArrowUp",
        "j",
        "k",
        "Shift+Enter",
        "Control+Enter",
        "Control+a",
        "Control+x",
        "Control+Shift+ArrowDown",
    ),
)
CONTROLS = {
    "slider": ".opv-mode-page .opv-scrubber",
    "checkbox": ".opx-keep-on input",
    "dropdown": ".opx-shown select",
    "text": ".opx-keep-folder input",
    "number": ".opx-repeats input",
    "button": ".opx-stop",
    "fold": ".opx-fold >> nth=0",
    "toggle": ".opx-source button >> nth=0",
    "tab": ".opx-tabs .lm-TabBar-tab.lm-mod-current",
    "list": ".opv-mode-page .opv-regions",
    "upload": ".opx-pane-record button:has-text('Upload')",
    "heading of a table": ".opx-pane-vision .op-table thead button >> nth=0",
}
TAB_OF = {"slider": "Page", "list": "Page", "upload": "Record", "heading of a table": "Vision"}

CONTRASTS = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const ground = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return (numbers(colour)[3] ?? 1) === 0 ? ground(node.parentElement) : colour;
  };
  return [...document.querySelectorAll('.op-badge.op-pass')].map((badge) => {
    const both = [light(getComputedStyle(badge).color), light(ground(badge))];
    return Math.max(...both) / Math.min(...both);
  });
}"""
#: Controls in sight to which neither a label, an attribute nor their own text gives a name.
NAMELESS = """() => [...document.querySelectorAll(
    '.opx :is(input, select, button, summary, a, img, svg[role=img], [tabindex="0"])')]
  .filter((node) => node.checkVisibility()
    && !['aria-label', 'title', 'alt'].some((name) => node.getAttribute(name))
    && ![...(node.labels ?? [])].some((label) => label.textContent.trim()) && !node.textContent.trim())
  .map((node) => node.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """explore.ipynb with a record shown and another one kept: one server and one page for this module."""
    folder = tmp_path_factory.mktemp("keys")
    with lab.jupyter_lab(folder) as address, lab.chromium() as browser:
        root = folder / "root"
        kept = root / "ocr_phases_records"
        kept.mkdir()
        (kept / "2026-11-21T11-45-39_page.png_tiny_base_eager.json").write_bytes(RECORD.read_bytes())
        notebook = json.loads((root / "explore.ipynb").read_text())
        cell = next(cell for cell in notebook["cells"] if cell["id"] == "parameters")
        cell["source"] = [re.sub("^record = None", f"record = '{RECORD}'", line) for line in cell["source"]]
        (root / "explore.ipynb").write_text(json.dumps(notebook))
        page = browser.new_page(viewport={"width": 1400, "height": 1600})
        page.set_default_timeout(60_000)
        page.address, page.root = address, root
        lab.open_notebook(page, address)
        lab.run_all(page)
        page.wait_for_selector(".opx-verdict .op-headline")
        yield page


def focus(page: Any, control: str) -> Any:
    if control in TAB_OF:
        lab.open_tab(page, TAB_OF[control])
    found = page.locator(CONTROLS[control])
    found.wait_for()  # what is hidden takes no focus
    found.focus()
    return found


@pytest.mark.parametrize("control", CONTROLS)
def test_no_key_leaves_the_panel(panel: Any, control: str) -> None:
    panel.evaluate("document.querySelector('.opx-stop').disabled = false")
    before = panel.evaluate(CELLS)
    for key in PRESSED:
        focus(panel, control)
        panel.keyboard.press(key)
    assert panel.evaluate(CELLS) == before
    assert panel.evaluate("document.activeElement.closest('.opx') !== null")
    assert panel.locator(".opx").count() == 1


def test_a_control_made_anew_keeps_its_keys(panel: Any) -> None:
    lab.open_tab(panel, "Page")
    before = panel.evaluate(CELLS)
    panel.locator(".opx-shown select").select_option(index=1)
    panel.wait_for_function("document.querySelector('.opx-shown select').selectedIndex === 1")
    focus(panel, "slider")
    for key in ("m", "d", "d", "b"):
        panel.keyboard.press(key)
    assert panel.evaluate(CELLS) == before


def test_escape_gives_the_keys_back_to_the_notebook(panel: Any) -> None:
    focus(panel, "text")
    panel.keyboard.press("Escape")
    panel.wait_for_function("document.activeElement.matches('.jp-Cell')")
    before = len(panel.evaluate(CELLS))
    panel.keyboard.press("b")
    panel.wait_for_function(f"({CELLS})().length === {before + 1}")
    panel.keyboard.press("Escape")
    panel.keyboard.press("d")
    panel.keyboard.press("d")
    panel.wait_for_function(f"({CELLS})().length === {before}")


def test_every_control_has_a_name(panel: Any) -> None:
    for fold in panel.locator(".opx-fold").all():
        if "Show" in fold.get_attribute("title"):
            fold.click()
    for name in ("Latency", "Vision", "Page", "Text", "Checks", "Compare", "Record"):
        lab.open_tab(panel, name)
        assert panel.evaluate(NAMELESS) == [], name


def test_tables_sort_by_their_headings(panel: Any) -> None:
    lab.open_tab(panel, "Vision")
    heading = panel.locator(".opx-pane-vision th:has(button):has-text('share')").first
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    column = panel.locator(".opx-pane-vision table >> nth=0").locator("tbody td:last-child")
    values = [float(cell.get_attribute("data-value") or "inf") for cell in column.all()]
    assert values == sorted(values)


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_passed_checks_are_readable(panel: Any, theme: str) -> None:
    lab.open_tab(panel, "Checks")
    lab.set_theme(panel, theme)
    panel.wait_for_selector(".opx-pane-checks .op-badge.op-pass >> nth=10")
    panel.wait_for_function(f"Math.min(...({CONTRASTS})()) >= 4.5")  # colours change gradually


def test_nothing_is_clipped_beside_the_file_browser(panel: Any) -> None:
    panel.set_viewport_size({"width": 900, "height": 1200})
    panel.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")
    panel.wait_for_selector(".jp-DirListing", state="visible")
    inside = """() => {
      const panel = document.querySelector('.opx').getBoundingClientRect();
      return [...document.querySelectorAll('.opx-tabs > .lm-TabBar .lm-TabBar-tab')].every((tab) => {
        const label = tab.querySelector('.lm-TabBar-tabLabel');
        return tab.getBoundingClientRect().right <= panel.right && label.scrollWidth <= tab.clientWidth;
      });
    }"""
    panel.wait_for_function(inside)
    for name in ("Latency", "Vision", "Checks"):  # wide tables scroll in their frames
        lab.open_tab(panel, name)
        panel.wait_for_selector(f".opx-pane-{name.lower()} table")
        content = f"document.querySelector('.opx-pane-{name.lower()} > .widget-html')"
        panel.wait_for_function(f"{content}.scrollWidth <= {content}.clientWidth")
    panel.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")
    panel.set_viewport_size({"width": 1400, "height": 1600})


def test_kept_records_are_listed_after_a_restart_and_loaded_when_chosen(panel: Any) -> None:
    panel.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    panel.wait_for_function(lab.READY)
    lab.run_all(panel)
    panel.wait_for_selector(".opx-verdict .op-headline")
    names = panel.locator(".opx-shown option").all_text_contents()
    assert [name.replace("\N{NO-BREAK SPACE}", " ") for name in names[1:3]] == [
        "page.png, tiny, base, eager, 2026-11-21T11-45-39",
        "with the package: h200-dummy-base-compiled",
    ]
    panel.locator(".opx-shown select").select_option(index=2)
    panel.wait_for_function("document.querySelector('.opx-verdict').textContent.includes('NVIDIA H200')")


def test_a_picture_stands_for_the_panel_where_no_kernel_runs(panel: Any) -> None:
    picture = ".jp-OutputArea-child:has(.opx-still)"
    assert not panel.locator(picture).is_visible()
    saved = panel.root / "explore.ipynb"
    panel.wait_for_function("document.querySelector('.opx-still img')?.alt.includes('NVIDIA H200')")
    panel.evaluate("jupyterapp.commands.execute('docmanager:save')")
    outputs = [
        output for cell in json.loads(saved.read_text())["cells"] for output in cell.get("outputs", [])
    ]
    (still,) = [output["data"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(json.dumps(still)) < 300_000
    panel.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
    panel.goto(f"{panel.address}/doc/tree/explore.ipynb?token={lab.TOKEN}&reset")
    panel.wait_for_selector(".opx-still img", state="visible")
    panel.wait_for_selector("text=model not found", state="hidden")
    assert panel.locator(".opx").count() == 0
    panel.wait_for_function(lab.READY)  # a server does not end while it starts a kernel
