"""The explorer as a person meets it: explore.ipynb in JupyterLab, in Chromium, with the built-in
model; and what other notebooks of the same JupyterLab show.
"""

import base64
import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import lab
import nbformat
import pytest
from conftest import GPU_RECORD, RECORD, RUNS
from nbformat.v4 import new_code_cell, new_notebook

from ocr_phases import PhaseRun

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab.missing()), reason=str(lab.missing())),
]

#: A page or a locator of playwright, which is not installed everywhere.
Page = Any
Locator = Any

LONG_RECORD = RUNS / "families" / "h100-unlimited-ocr-8000-cuda-graph.json.gz"
RUN_ENABLED = ".opx-run:enabled"
MORE = ".opx-more > summary"
TABS = ".opx-inside > .opx-tabs"
CELLS = """() => jupyterapp.shell.currentWidget.content.widgets
  .map((cell) => cell.model.id + cell.model.type)"""
#: Keys that choose from a list, or change a notebook in command mode: they change, insert, delete,
#: cut, copy, paste and merge cells, run them or go to another.
LETTERS = [*"mryabdd"]
SHORTCUTS = [
    *LETTERS,
    *"xcv00jk",
    "Shift+M",
    "ArrowDown",
    "Shift+Enter",
    "Control+Enter",
    "Control+x",
]
#: Controls of every kind, and the keys that are pressed in each.
KEYS_OF_CONTROLS = {
    "[data-name=page]": SHORTCUTS,
    MORE: SHORTCUTS,
    ".opv-scrubber": SHORTCUTS,
    ".opv-regions": LETTERS,
    ".opv-curve": LETTERS,
    "button.op-badge": LETTERS,
    f"{TABS} input:checked": LETTERS,
    ".opv-help summary": LETTERS,
}

#: Controls in sight to which neither a label, an attribute nor their own text gives a name.
NAMELESS = """() => [...document.querySelectorAll(
    '.opx :is(input, select, button, summary, a, img, svg[role=img], [tabindex="0"])')]
  .filter((node) => node.checkVisibility()
    && !['aria-label', 'title', 'alt'].some((name) => node.getAttribute(name))
    && ![...(node.labels ?? [])].some((label) => label.textContent.trim())
    && !node.textContent.trim())
  .map((node) => node.outerHTML.slice(0, 200))"""

#: What is wrong with how the elements below a selector are laid out.
WRONG = (Path(__file__).parent / "fragments.js").read_text(encoding="utf-8")

#: Token and region that each part of the view has lit, and what the readout says.
LIT = """() => {
  const view = document.querySelector('.opx');
  const lit = (list, name) =>
    [...view.querySelectorAll(list)].map((each) => Number(each.dataset[name]));
  return {
    scrubber: Number(view.querySelector('.opv-scrubber').value),
    token: lit('.opv-token.opv-now', 'index')[0],
    page: [...new Set(lit('.opv-page .opv-region.opv-now', 'region'))],
    text: lit('.opv-stretch.opv-now', 'region'),
    list: [view.querySelector('.opv-regions').selectedIndex],
    readout: view.querySelector('.opv-readout').textContent,
  };
}"""

#: A file comes in by an event of the browser or, by its path, of JupyterLab's file browser.
DROP = """([kind, name, data]) => {
  const file = new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name);
  const transfer = new DataTransfer();
  transfer.items.add(file);
  const root = document.querySelector('.opx');
  if (kind === 'paste') return root.querySelector('.opx-run').dispatchEvent(
    new ClipboardEvent('paste', { clipboardData: transfer, bubbles: true, cancelable: true }));
  const event = new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true });
  if (kind === 'lm-drop') event.mimeData = { hasData: () => true, getData: () => [name] };
  root.dispatchEvent(event);
}"""


def write_cells(
    page: Page, name: str, without: Collection[str] = (), only: Collection[str] = ()
) -> None:
    """Write the cells of explore.ipynb into a notebook of the server: all but some, or some."""
    notebook = nbformat.read(lab.REPOSITORY / "notebooks" / "explore.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.id not in without]
    if only:
        cells = [cell for cell in cells if cell.id in only]
    notebook.cells = cells
    nbformat.write(notebook, page.root / name)


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """explore.ipynb with all cells run: one server and one page for this module."""
    folder = tmp_path_factory.mktemp("lab")
    with lab.jupyter_lab(folder) as address, lab.chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(60_000)
        page.address = address
        page.root = folder / "root"
        page.asked_for = []
        page.errors = []
        page.on("request", lambda request: page.asked_for.append(request.url))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        # The parts of a further cell have the panel's selectors; they have a test of their own.
        write_cells(page, "explore.ipynb", without={"parts"})
        lab.open_notebook(page, address)
        lab.run_all(page)
        page.wait_for_selector(".opx-headline")
        yield page
        assert page.errors == []
        for url in page.asked_for:
            assert url.startswith((address, "data:", "blob:"))


# -- a finished record -----------------------------------------------------------------------------


def test_a_finished_record_is_in_sight_at_once(panel: Page) -> None:
    phase_bar = panel.locator(".opx .op-bar").first.bounding_box()
    page = panel.locator(".opv-page").first.bounding_box()
    curve = panel.locator(".opv-curve").bounding_box()
    screen = panel.locator(lab.FRONT).bounding_box()

    assert phase_bar["y"] < page["y"] < curve["y"]
    assert page["height"] >= 300
    for part in (page, curve):  # the whole of it, without scrolling
        assert part["y"] + part["height"] <= screen["y"] + screen["height"]
    for part in (".opv-page .opv-box >> nth=4", ".opv .opv-line", ".opx-headline", ".opx-stop"):
        assert panel.locator(part).is_visible(), part


def test_the_first_screen_has_few_controls_and_few_words(panel: Page) -> None:
    controls = panel.locator(".opx-bar :is(button, select, summary):visible").count()
    assert controls + panel.locator(TABS).count() <= 8

    chosen = panel.locator(".opx-quick select").evaluate_all(
        "(all) => all.map((one) => one.selectedOptions[0].text).join(' ')"
    )
    texts = [chosen, *panel.locator(".opx-quick .opx-field > span").all_inner_texts()]
    for part in (".opx-about", ".opx-headline", ".op-status", TABS, ".opx-bar > button", MORE):
        texts += panel.locator(part).all_inner_texts()
    assert len(re.findall(r"[\w.]+", " ".join(texts))) <= 90


# -- a run -----------------------------------------------------------------------------------------


def fill_in(page: Page, **fields: int) -> None:
    """Write numbers into fields of the form, and leave each."""
    for name, value in fields.items():
        page.fill(f"[data-name={name}]", str(value))
        page.press(f"[data-name={name}]", "Tab")


@pytest.fixture(scope="module")
def states_of_run(panel: Page) -> list[dict[str, Any]]:
    """What was seen while one page ran to its end."""
    panel.evaluate("""() => {
      window.seen = [];
      const root = document.querySelector('.opx');
      new MutationObserver(() => window.seen.push({
        text: root.querySelector('.opv-text').textContent,
        points: root.querySelector('.opv-live .opv-line')?.points.length ?? 0,
        boxes: root.querySelectorAll('.opv-live .opv-box').length,
        said: root.querySelector('.opx-progress').textContent,
      })).observe(root, {childList: true, subtree: true, characterData: true});
    }""")
    panel.click(MORE)
    fill_in(panel, repeats=1, warmup=0, max_new_tokens=198)
    panel.uncheck("[data-name=ceilings]")
    panel.click(".opx-run")
    panel.wait_for_selector(".opx-stop:enabled")
    assert not panel.locator(".opx-form").is_visible()
    panel.wait_for_selector(RUN_ENABLED, timeout=200_000)
    return panel.evaluate("window.seen")


def test_text_curve_and_boxes_grow_while_the_page_is_read(
    states_of_run: list[dict[str, Any]],
) -> None:
    texts = list(dict.fromkeys(state["text"] for state in states_of_run if state["text"]))
    assert len(texts) > 3
    assert texts[1].startswith(texts[0])
    assert len(texts[1]) > len(texts[0])
    assert len({state["points"] for state in states_of_run}) > 3
    assert len({state["boxes"] for state in states_of_run}) > 2
    assert any("token" in state["said"] for state in states_of_run)


@pytest.mark.usefixtures("states_of_run")
def test_a_finished_run_is_shown_in_few_words(panel: Page) -> None:
    assert " of the prefill." in panel.inner_text(".opx-headline")
    assert panel.inner_text(".opx-message").strip() == ""
    assert panel.locator(".opx-run").bounding_box()["y"] >= 0
    first_view = panel.inner_text(".opx-head") + panel.inner_text("[data-pane=page]")
    assert len(first_view.split()) <= 260


# -- the view Page ---------------------------------------------------------------------------------


def assert_lit(page: Page, token: int, region: int | None = None) -> None:
    """Everything shows this token, and this region: the receipt's regions are numbered in order."""
    page.wait_for_function(f"({LIT})().token === {token}")
    if region is not None:  # its box is drawn once the page is
        page.wait_for_function(f"({LIT})().page.join() === '{region}'")
    lit = page.evaluate(LIT)
    assert lit["scrubber"] == token
    assert lit["readout"].startswith(f"Token {token + 1} of ")
    if region is not None:
        assert lit["page"] == [region]
        assert lit["text"] == [region]
        assert lit["list"] == [region]


@pytest.fixture
def view(panel: Page, states_of_run: list[dict[str, Any]]) -> Locator:
    """The view Page of the record, at its first token."""
    if panel.locator(".opx-stale").count():  # a test chose a page that nobody has measured
        panel.locator("[data-name=page]").select_option("receipt")
        panel.wait_for_selector(".opx:not(.opx-stale)")
    lab.open_view(panel, "Page")
    panel.focus(".opv-scrubber")
    panel.keyboard.press("Home")
    panel.mouse.move(0, 0)
    assert_lit(panel, 0, 0)
    return panel.locator("[data-pane=page]")


def first_token(page: Page, region: int) -> int:
    """The first token of a region."""
    tokens = page.locator(f".opv-stretch[data-region='{region}'] .opv-token")
    return int(tokens.first.get_attribute("data-index"))


def test_keys_move_through_tokens_and_regions(panel: Page, view: Locator) -> None:
    last = view.locator(".opv-token").count() - 1
    moves = {"ArrowRight": 1, "Shift+ArrowRight": 11, "ArrowLeft": 10, "End": last, "Home": 0}
    for key, token in moves.items():
        panel.keyboard.press(key)
        assert_lit(panel, token)

    for key, region in (("n", 1), ("n", 2), ("p", 1)):
        panel.keyboard.press(key)
        assert_lit(panel, first_token(panel, region), region)

    panel.keyboard.press("s")
    assert view.locator(".opv-slowest").evaluate("(list) => list.selectedIndex") == 0

    view.locator(".opv-regions").focus()
    panel.keyboard.press("End")
    panel.keyboard.press("ArrowUp")
    last_region = view.locator(".opv-regions option").count() - 1
    assert panel.evaluate(LIT)["list"] == [last_region - 1]


def test_a_click_or_the_pointer_lights_up_everything(panel: Page, view: Locator) -> None:
    box = view.locator(".opv-region[data-region='2'] .opv-box")
    corner = {"x": 5, "y": 5}

    box.hover(position=corner)
    assert_lit(panel, first_token(panel, 2), 2)
    assert "region 2 table" in panel.inner_text(".opv-readout")

    panel.mouse.move(0, 0)
    assert_lit(panel, 0, 0)

    box.click(position=corner)
    assert_lit(panel, first_token(panel, 2), 2)

    view.locator(".opv-regions option").nth(1).click()
    assert_lit(panel, first_token(panel, 1), 1)

    panel.mouse.click(*curve_point(view, 0.998, 0.5))
    assert_lit(panel, view.locator(".opv-token").count() - 1)


def curve_point(view: Locator, across: float, down: float) -> tuple[float, float]:
    """A place on the screen, by its shares of the curve's width and height."""
    box = view.locator(".opv-curve").bounding_box()
    return box["x"] + across * box["width"], box["y"] + down * box["height"]


def test_a_brush_over_the_curve_selects_tokens_and_escape_clears_it(
    panel: Page, view: Locator
) -> None:
    panel.mouse.move(*curve_point(view, 0.3, 0.5))
    panel.mouse.down()
    panel.mouse.move(*curve_point(view, 0.6, 0.5), steps=5)
    panel.mouse.up()
    readout = panel.inner_text(".opv-readout")
    assert re.match(r"Tokens .* (ms|s), .* % of the time of all tokens", readout)
    assert view.locator(".opv-token.opv-also").count() > 30
    assert view.locator(".opv-region.opv-also").count() >= 1

    panel.focus(".opv-scrubber")
    panel.keyboard.press("Escape")
    assert view.locator(".opv-token.opv-also").count() == 0
    assert panel.inner_text(".opv-readout").startswith("Token ")


#: How large the tags of the regions are on the screen, in pixels.
TYPE_OF_TAGS = """() => {
  const tags = [...document.querySelectorAll('.opv-left .opv-tag')];
  const shown = (tag) => parseFloat(getComputedStyle(tag).fontSize) * tag.getScreenCTM().a;
  return [...new Set(tags.map((tag) => Math.round(shown(tag))))];
}"""


def test_tags_of_regions_are_as_large_however_the_page_is_shown(panel: Page, view: Locator) -> None:
    view.locator(".opv-page").focus()
    panel.keyboard.press("0")
    assert panel.evaluate(TYPE_OF_TAGS) == [11]
    panel.keyboard.press("+")
    assert panel.evaluate(TYPE_OF_TAGS) == [11]
    panel.set_viewport_size({"width": 1000, "height": 1000})
    panel.wait_for_function(f"({TYPE_OF_TAGS})().join() === '11'")
    panel.set_viewport_size({"width": 1280, "height": 800})
    panel.keyboard.press("0")


def test_the_page_zooms_and_moves(panel: Page, view: Locator) -> None:
    page = view.locator(".opv-page")
    picture = view.locator(".opv-page svg")
    whole = picture.bounding_box()

    page.focus()
    panel.keyboard.press("+")
    zoomed = picture.bounding_box()
    assert zoomed["width"] == pytest.approx(1.5 * whole["width"], rel=0.02)

    page.hover()
    panel.keyboard.down("Control")
    panel.mouse.wheel(0, -100)
    panel.keyboard.up("Control")
    panel.wait_for_function(
        f"document.querySelector('.opv-page svg').clientWidth > {1.2 * zoomed['width']}"
    )
    wheeled = picture.bounding_box()
    assert wheeled["width"] == pytest.approx(1.25 * zoomed["width"], rel=0.02)

    panel.mouse.down()
    panel.mouse.move(wheeled["x"] + 120, wheeled["y"] + 150, steps=4)
    panel.mouse.up()
    assert picture.bounding_box()["x"] != pytest.approx(wheeled["x"], abs=2)
    assert panel.inner_text(".opv-readout").startswith("Token ")

    panel.keyboard.press("0")
    again = picture.bounding_box()
    assert again["x"] == whole["x"]
    assert again["width"] == whole["width"]


def test_markdown_is_rendered_and_time_is_a_colour(view: Locator) -> None:
    view.locator("label:text-is('Markdown')").click()
    assert view.locator(".opv-rendered h3").inner_text() == "CORNER CAFE"

    view.locator("label:text-is('Curve')").click()
    view.locator("[data-trait=color]").select_option("time")
    assert view.locator(".opv-legend:visible").count() == 2
    view.locator("[data-trait=color]").select_option("type")


@pytest.mark.usefixtures("view")
@pytest.mark.parametrize("control", KEYS_OF_CONTROLS)
def test_no_key_leaves_the_panel_until_escape(control: str, panel: Page) -> None:
    before = panel.evaluate(CELLS)

    for key in KEYS_OF_CONTROLS[control]:
        panel.locator(control).first.focus()
        panel.keyboard.press(key)
    assert panel.evaluate(CELLS) == before

    panel.locator(control).first.focus()
    panel.keyboard.press("Escape")
    panel.wait_for_function("document.activeElement.matches('.jp-Cell')")
    if control == "[data-name=page]":  # letters choose pages, which the kernel shows a little later
        panel.locator(control).select_option("invoice")
        panel.wait_for_selector(".opx-chosen:has-text('invoice has not been measured yet')")


# -- files and saves -------------------------------------------------------------------------------


def saved_picture(page: Page) -> str:
    """The panel's JPEG in the notebook's file; empty before the first save."""
    notebook = json.loads((page.root / "explore.ipynb").read_text())
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "opx-still" in str(data):
                return "".join(data["image/jpeg"])
    return ""


def is_checkpoint(response: Any) -> bool:
    """JupyterLab makes a checkpoint after it saved: a save pressed before that is lost."""
    path, _, _ = response.url.partition("?")
    return response.request.method == "POST" and path.endswith("/checkpoints")


@pytest.mark.usefixtures("view")
def test_a_save_has_the_picture_of_what_is_on_screen(panel: Page) -> None:
    for _ in range(3):
        before = saved_picture(panel)

        for key in ("Shift+ArrowRight", "ArrowRight", "ArrowRight"):  # these wait for the first
            panel.keyboard.press(key)
        with panel.expect_response(is_checkpoint):
            panel.keyboard.press("Control+s")  # at once: this token's picture is not drawn yet

        picture = saved_picture(panel)
        assert picture != before
        notebook = panel.evaluate(
            "JSON.stringify(jupyterapp.shell.currentWidget.content.model.toJSON())"
        )
        assert json.dumps(picture)[1:-1] in notebook


def drop(page: Page, name: str, content: bytes, kind: str = "drop") -> None:
    """Bring a file to the panel, by this kind of event."""
    page.evaluate(DROP, [kind, name, base64.b64encode(content).decode()])


@pytest.mark.usefixtures("view")
def test_pages_come_in_by_drop_paste_and_the_file_browser(panel: Page) -> None:
    form = (lab.REPOSITORY / "data" / "pages" / "form.png").read_bytes()
    for kind, path in (
        ("drop", "dropped.png"),
        ("paste", "pasted.png"),
        ("lm-drop", "pages/slide.png"),
    ):
        drop(panel, path, form, kind)

        name = Path(path).name
        panel.wait_for_function(f"document.querySelector('[data-name=page]').value === '{name}'")
        panel.wait_for_selector(f".opx-chosen:has-text('{name} has not been measured yet')")
        assert panel.locator(".opv-page .opv-box").count() == 0


@pytest.mark.usefixtures("view")
def test_a_file_that_is_no_page_is_refused_until_a_page_is_chosen(panel: Page) -> None:
    drop(panel, "notes.md", b"no image")
    panel.wait_for_selector(".opx-error")
    assert "notes.md" in panel.inner_text(".opx-error > p")
    assert not panel.locator(".opx-error pre").is_visible()

    panel.locator("[data-name=page]").select_option("invoice")
    panel.locator("[data-name=page]").select_option("receipt")
    panel.wait_for_selector(".opx-error", state="detached")
    panel.wait_for_selector(".opx:not(.opx-stale)")
    panel.wait_for_function("document.querySelectorAll('.opv-page .opv-box').length > 4")
    assert "notes.md" not in panel.locator("[data-name=page]").inner_text()


# -- how a run is ended ----------------------------------------------------------------------------


def press_stop(page: Page) -> None:
    page.click(".opx-stop")


def interrupt_kernel(page: Page) -> None:
    page.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt()")


@pytest.mark.usefixtures("view")
@pytest.mark.parametrize("end_run", [press_stop, interrupt_kernel])
def test_stop_and_interrupt_end_a_run(end_run: Callable[[Page], None], panel: Page) -> None:
    if not panel.locator(".opx-form").is_visible():
        panel.click(MORE)
    fill_in(panel, repeats=200)
    panel.click(".opx-run")
    panel.wait_for_selector(".opx-stop:enabled")
    panel.wait_for_function("document.querySelector('.opv-live .opv-text')?.textContent.length > 5")

    end_run(panel)

    panel.wait_for_selector(".opx-message:has-text('Stopped')")
    # The next run counts as begun by its own text, so this one's has to be gone.
    panel.wait_for_selector(".opv-live", state="detached")
    panel.wait_for_selector(RUN_ENABLED)


# -- the view Records ------------------------------------------------------------------------------


#: Rows of records that are the user's: of the run, and those that were dropped.
OWN_ROWS = ".opx-table tbody tr:has(button[title=Delete])"


def wait_for_shown(page: Page, words: str) -> None:
    """Wait until the line about the record that is shown has these words."""
    page.wait_for_function(f"document.querySelector('.opx-about').textContent.includes('{words}')")


@pytest.fixture
def table(panel: Page, view: Locator) -> Iterator[Locator]:
    """The table of the view Records, once its curves are drawn; in the end the record of the run is
    shown again.
    """
    lab.open_view(panel, "Records")
    table = panel.locator(".opx-table")
    table.locator(".opx-spark").nth(5).wait_for()
    yield table
    panel.locator(OWN_ROWS).filter(has_text="receipt.png").locator(".opx-name").first.click()
    wait_for_shown(panel, "receipt.png")


def test_a_dropped_record_is_shown_and_downloaded_as_it_is(
    panel: Page, table: Locator, tmp_path: Path
) -> None:
    drop(panel, "h200.json.gz", GPU_RECORD.read_bytes())
    wait_for_shown(panel, "NVIDIA H200")

    with panel.expect_download() as download:
        table.locator("tbody tr").first.locator("button[title=Download]").click()

    download.value.save_as(tmp_path / "run.json")
    assert PhaseRun.load(tmp_path / "run.json").to_dict() == PhaseRun.load(GPU_RECORD).to_dict()


def test_ticked_records_are_compared_in_a_sorted_table(panel: Page, table: Locator) -> None:
    table.locator("th:has-text('prefill') button").click()
    assert table.locator("th:has-text('prefill')").get_attribute("aria-sort") == "ascending"

    ticks = table.locator("tbody tr input[type=checkbox]")
    ticks.nth(0).check()
    ticks.nth(1).check()
    panel.wait_for_selector(".opx-compared :text('What differs')")
    assert panel.locator(".opv-key li").count() == 2  # their curves, in the view Page

    ticks.nth(0).uncheck()
    ticks.nth(1).uncheck()


def test_columns_and_rows_of_the_table_can_be_left_out(panel: Page, table: Locator) -> None:
    preset = table.locator("th:has-text('preset')")
    panel.click(".opx-which summary")
    panel.uncheck("[data-column=preset]")
    assert not preset.is_visible()
    panel.check("[data-column=preset]")
    assert preset.is_visible()
    panel.click(".opx-which summary")

    panel.fill("input[aria-label='Filter the records']", "h200-dummy-gundam-compiled")
    assert table.locator("tbody tr:visible").count() == 1
    panel.fill("input[aria-label='Filter the records']", "")


def test_a_record_is_renamed_and_deleted_when_that_is_confirmed(
    panel: Page, table: Locator
) -> None:
    drop(panel, "other.json.gz", GPU_RECORD.read_bytes())
    wait_for_shown(panel, "NVIDIA H200")
    rows = table.locator("tbody tr")
    count = rows.count()

    panel.once("dialog", lambda dialog: dialog.accept("my run"))
    dropped = panel.locator(OWN_ROWS).filter(has_not_text="receipt.png")
    dropped.first.locator("button[title=Rename]").click()
    renamed = table.locator("tbody tr:has(td:text-is('my run'))")
    renamed.wait_for()

    panel.once("dialog", lambda dialog: dialog.dismiss())
    renamed.locator("button[title=Delete]").click()
    assert rows.count() == count

    panel.once("dialog", lambda dialog: dialog.accept())
    renamed.locator("button[title=Delete]").click()
    panel.wait_for_function(
        f"document.querySelectorAll('.opx-table tbody tr').length === {count - 1}"
    )


# -- the whole panel -------------------------------------------------------------------------------


@pytest.mark.usefixtures("view")
@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_nothing_is_nameless_or_wider_than_the_panel(theme: str, panel: Page) -> None:
    lab.set_theme(panel, theme)
    panel.set_viewport_size({"width": 1000, "height": 800})
    panel.click(MORE)

    for name in ("Page", "Latency", "Stages", "Records"):
        lab.open_view(panel, name)
        assert panel.evaluate(NAMELESS) == [], name
        assert panel.evaluate(WRONG, ".opx")["wrong"] == [], name
        inside = panel.locator(".opx-inside")
        assert inside.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0, name

    panel.click(MORE)
    panel.set_viewport_size({"width": 1280, "height": 800})


@pytest.mark.usefixtures("view")
def test_8000_tokens_follow_the_keys_and_are_there_when_the_notebook_is_opened_again(
    panel: Page,
) -> None:
    drop(panel, "long.json.gz", LONG_RECORD.read_bytes())
    panel.wait_for_function("document.querySelectorAll('.opv-token').length === 8000")

    panel.focus(".opv-scrubber")
    for key, token in (("End", "7999"), ("ArrowLeft", "7998"), ("Home", "0"), ("ArrowRight", "1")):
        panel.keyboard.press(key)
        assert panel.input_value(".opv-scrubber") == token
        assert panel.get_attribute(".opv-token.opv-now", "data-index") == token

    panel.evaluate("document.querySelector('.opx').classList.add('before')")
    lab.reopen(panel)
    panel.wait_for_selector(".opx:not(.before) .opv-token >> nth=7999", state="attached")


@pytest.mark.usefixtures("states_of_run")
def test_a_restart_is_told_over_the_picture_and_records_are_listed_again(panel: Page) -> None:
    panel.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    panel.wait_for_selector("text=Kernel restarted: run this cell", state="visible")
    panel.wait_for_selector(".opx-still img", state="visible")
    panel.wait_for_function(lab.READY)

    lab.reopen(panel)  # where no kernel has the panel
    panel.wait_for_selector(".opx-still img", state="visible")
    assert panel.locator(".opx").count() == 0

    lab.run_all(panel)
    panel.wait_for_selector(".opx-headline")
    assert "receipt.png" in panel.inner_text(".opx-about")
    kept = list((panel.root / "ocr_phases_records").glob("*.json"))
    assert panel.locator(".opx-table button[title=Delete]").count() == len(kept)


#: What stands before the further cell of explore.ipynb, so that it has a record and no panel.
RECORD_FOR_PARTS = f"""from types import SimpleNamespace

from ocr_phases import PhaseRun

explorer = SimpleNamespace(run=PhaseRun.load({str(GPU_RECORD)!r}))
"""


def test_parts_in_boxes_of_ipywidgets_follow_one_another(panel: Page) -> None:
    write_cells(panel, "parts.ipynb", only={"parts"})
    notebook = nbformat.read(panel.root / "parts.ipynb", as_version=4)
    notebook.cells[0].source = RECORD_FOR_PARTS + notebook.cells[0].source
    nbformat.write(notebook, panel.root / "parts.ipynb")

    with lab.notebook_beside(panel, "parts.ipynb") as beside:
        lab.run_all(panel)

        beside.locator(".opv-token >> nth=7").click()
        beside.locator(".widget-readout:text-is('7')").wait_for()

        slider = beside.locator(".widget-slider [role=slider], .widget-slider .noUi-handle").first
        slider.focus()
        panel.keyboard.press("ArrowRight")
        beside.locator(".opv-token.opv-now[data-index='8']").wait_for()


# -- what other cells show -------------------------------------------------------------------------


#: Cells of a notebook that measures nothing: it shows what records say.
SHOWING_CELLS = (
    f"from ocr_phases import PhaseRun, compare\nrun = PhaseRun.load({str(RECORD)!r})\nrun",
    "run.checks",
    "run.plot.timeline()",
    f"compare(run, {str(GPU_RECORD)!r})",
)
UNFOLD = "document.querySelectorAll('details').forEach((details) => { details.open = true; })"
OUTPUTS = f"{lab.FRONT} .jp-OutputArea-output"


def test_fragments_keep_their_shape_in_a_live_jupyterlab(panel: Page) -> None:
    kernel = {"name": "python3", "display_name": "Python 3"}  # else JupyterLab asks which
    cells = [new_code_cell(source) for source in SHOWING_CELLS]
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, panel.root / "shown.ipynb")

    with lab.notebook_beside(panel, "shown.ipynb"):
        lab.run_all(panel)
        panel.wait_for_function(f"document.querySelectorAll('{OUTPUTS} .op').length > 10")
        for theme in ("JupyterLab Light", "JupyterLab Dark"):
            lab.set_theme(panel, theme)
            for width in (1280, 700):
                panel.set_viewport_size({"width": width, "height": 4000})
                panel.evaluate(UNFOLD)

                shown = panel.locator(OUTPUTS).count()
                assert shown == len(SHOWING_CELLS), (theme, width)
                assert panel.evaluate(WRONG, OUTPUTS)["wrong"] == [], (theme, width)
        panel.set_viewport_size({"width": 1280, "height": 800})
