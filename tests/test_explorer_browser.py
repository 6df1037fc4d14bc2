"""The explorer as a person meets it: explore.ipynb in JupyterLab, in Chromium, with the built-in model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import pytest

from ocr_phases import PhaseRun

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(lab.missing()), reason=str(lab.missing()))]

GPU_RECORD = lab.REPOSITORY / "data" / "runs" / "h200-dummy-gundam.json"
NO_RUN = ".opx-run:enabled"

# Notes every change of the streamed text and the growing curve, with whether the run was still going.
WATCH = """() => {
  window.seen = [];
  const note = () => window.seen.push({
    going: document.querySelector('.opx-run').disabled,
    text: document.querySelector('.opx-stream pre')?.textContent ?? '',
    points: document.querySelector('.opv-mode-live .opv-line:not(.opv-faint)')?.points.length ?? 0,
    boxes: document.querySelectorAll('.opv-mode-live .opv-box').length,
  });
  const panel = document.querySelector('.opx');
  new MutationObserver(note).observe(panel, {childList: true, subtree: true, characterData: true});
}"""

TOO_WIDE = """() => [...document.querySelectorAll('.opx, .opx-pane, .opx-pane > *')]
  .filter((part) => part.scrollWidth > part.clientWidth && part.clientWidth)
  .map((part) => part.className)"""

VIEW = ".opv-mode-page"
# Token and region that each part of the view has lit, and what the readout says.
LIT = f"""() => {{
  const view = document.querySelector('{VIEW}');
  const lit = (list, name) => [...view.querySelectorAll(list)].map((each) => Number(each.dataset[name]));
  return {{
    scrubber: Number(view.querySelector('.opv-scrubber').value),
    token: lit('.opv-token.opv-now', 'token')[0],
    page: [...new Set(lit('.opv-region.opv-now', 'region'))],
    text: lit('.opv-stretch.opv-now', 'region'),
    list: lit('.opv-regions [aria-selected=true]', 'place'),
    readout: view.querySelector('.opv-readout').textContent,
  }};
}}"""


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """explore.ipynb with all cells run: one server and one page for this module."""
    folder = tmp_path_factory.mktemp("lab")
    with lab.jupyter_lab(folder) as address, lab.chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1600})
        page.set_default_timeout(60_000)
        page.asked_for = []
        page.on("request", lambda request: page.asked_for.append(request.url))
        lab.open_notebook(page, address)
        lab.run_all(page)
        page.wait_for_selector(NO_RUN)
        yield page
        assert all(url.startswith((address, "data:", "blob:")) for url in page.asked_for)


def fill(page: Any, name: str, value: str) -> None:
    page.fill(f".opx-{name} input", value)
    page.press(f".opx-{name} input", "Enter")


def measured(page: Any, repeats: int = 1) -> None:
    """Press Run with a single unrecorded warm-up."""
    lab.show_settings(page)
    fill(page, "repeats", str(repeats))
    page.click(".opx-run")


def test_tabs_are_changed_by_keyboard(panel: Any) -> None:
    panel.locator(".opx-tabs .lm-TabBar-tab.lm-mod-current").focus()
    for key in ("End", "Enter"):
        panel.keyboard.press(key)
    panel.wait_for_selector(".opx-pane-record", state="visible")
    for key in ("Home", "Enter"):
        panel.keyboard.press(key)
    panel.wait_for_selector(".opx-pane-latency", state="visible")


@pytest.fixture(scope="module")
def ran(panel: Any) -> list[dict]:
    """What was seen while one page ran to its end."""
    panel.evaluate(WATCH)
    measured(panel)
    panel.wait_for_selector(".opx-verdict p")
    panel.wait_for_selector(NO_RUN)
    return panel.evaluate("window.seen")


def test_text_and_curve_grow_while_the_page_is_read(panel: Any, ran: list[dict]) -> None:
    going = [entry for entry in ran if entry["going"] and entry["text"]]
    texts = list(dict.fromkeys(entry["text"] for entry in going))
    assert len(texts) > 3
    assert texts[1].startswith(texts[0])
    assert len(texts[1]) > len(texts[0])
    assert "CORNER CAFE" in texts[-1] + texts[-2] + texts[len(texts) // 2]
    assert len({entry["points"] for entry in going}) > 3
    assert len({entry["boxes"] for entry in going}) > 2
    assert " of the prefill." in panel.inner_text(".opx-verdict")
    assert not panel.locator(".opx-form").is_visible()  # until Settings shows it again
    assert panel.inner_text(".opx-messages").strip() == ""


def lit(page: Any, token: int, region: int | None = None) -> None:
    """Everything shows this token; and this region, which the receipt's numbers have in their order."""
    page.wait_for_function(f"({LIT})().token === {token}")
    found = page.evaluate(LIT)
    assert found["scrubber"] == token
    assert found["readout"].startswith(f"Token {token + 1} of ")
    if region is not None:
        assert (found["page"], found["text"], found["list"]) == ([region], [region], [region])


@pytest.fixture
def view(panel: Any, ran: list[dict]) -> Any:
    """The view of the tab Page, at its first token."""
    lab.open_tab(panel, "Page")
    panel.wait_for_selector(f"{VIEW} .opv-scrubber")
    panel.focus(f"{VIEW} .opv-scrubber")
    panel.keyboard.press("Home")
    panel.mouse.move(0, 0)
    lit(panel, 0, 0)
    return panel.locator(VIEW)


def token_of(page: Any, region: int, last: bool = False) -> int:
    tokens = page.locator(f"{VIEW} .opv-stretch[data-region='{region}'] .opv-token")
    return int((tokens.last if last else tokens.first).get_attribute("data-token"))


def test_keys_move_through_tokens_and_regions(panel: Any, view: Any) -> None:
    cells = panel.locator(".jp-Cell").count()
    last = view.locator(".opv-token").count() - 1
    regions = view.locator(".opv-regions [role=option]").count()
    moves = {"ArrowRight": 1, "Shift+ArrowRight": 11, "ArrowLeft": 10, "End": last, "Home": 0}
    for key, token in moves.items():
        panel.keyboard.press(key)
        lit(panel, token)
    for key, region in (("n", 1), ("n", 2), ("p", 1)):
        panel.keyboard.press(key)
        lit(panel, token_of(panel, region), region)
    panel.keyboard.press("s")
    slowest = view.locator(".opv-slowest [aria-selected=true]")
    assert slowest.get_attribute("data-place") == "0"
    view.locator(".opv-regions").focus()
    panel.keyboard.press("End")
    lit(panel, last, regions - 1)
    panel.keyboard.press("ArrowUp")
    lit(panel, token_of(panel, regions - 2), regions - 2)
    for key in ("m", "b", "a", "d", "d", "x"):  # which JupyterLab would take
        panel.keyboard.press(key)
    assert panel.locator(".jp-Cell").count() == cells


def test_a_click_anywhere_moves_the_scrubber(panel: Any, view: Any) -> None:
    view.locator(".opv-region[data-region='2'] .opv-box").click(position={"x": 5, "y": 5})
    lit(panel, token_of(panel, 2), 2)
    view.locator(".opv-regions [role=option]").nth(1).click()
    lit(panel, token_of(panel, 1), 1)
    view.locator(".opv-stretch[data-region='0'] .opv-token").nth(3).click()
    lit(panel, 3, 0)
    view.locator(".opv-slowest [role=option]").nth(1).click()
    assert view.locator(".opv-slowest [role=option]").nth(1).get_attribute("aria-selected") == "true"
    box = view.locator(".opv-curve").bounding_box()
    panel.mouse.click(box["x"] + 0.99 * box["width"], box["y"] + 0.5 * box["height"])
    lit(panel, view.locator(".opv-token").count() - 1)


def test_hovering_lights_up_and_shows_values_and_leaves_the_scrubber_s_place(panel: Any, view: Any) -> None:
    tip = view.locator(".opv-tip")
    view.locator(".opv-region[data-region='2'] .opv-box").hover(position={"x": 5, "y": 5})
    lit(panel, token_of(panel, 2), 2)
    assert "region 2 table" in tip.inner_text()
    view.locator(".opv-curve").hover()
    hovered = panel.evaluate(LIT)["token"]
    assert hovered > 5
    said = tip.inner_text()
    assert said.startswith(f"Token {hovered + 1} of ")
    assert all(part in said for part in (" ms", "decode step", "cache length", "region "))
    panel.mouse.move(0, 0)
    lit(panel, 0, 0)
    assert tip.is_hidden()


def test_page_and_curve_zoom_and_pan(panel: Any, view: Any) -> None:
    svg = view.locator(".opv-page")
    whole = svg.get_attribute("viewBox")
    width = lambda: float(svg.get_attribute("viewBox").split()[2])  # noqa: E731
    view.locator("button[aria-label='Zoom in on the page']").click()
    assert width() < float(whole.split()[2])
    before = svg.get_attribute("viewBox")
    svg.focus()
    panel.keyboard.press("Control+ArrowDown")
    assert svg.get_attribute("viewBox") != before
    zoomed = width()
    svg.hover()
    panel.mouse.wheel(0, -100)
    panel.wait_for_function(f"document.querySelector('{VIEW} .opv-page').viewBox.baseVal.width < {zoomed}")
    svg.dblclick(position={"x": 3, "y": 3})
    assert svg.get_attribute("viewBox") == whole
    line = lambda: view.locator(".opv-line").get_attribute("points")  # noqa: E731
    curve, before = view.locator(".opv-curve"), line()
    curve.focus()
    panel.keyboard.press("+")
    zoomed = line()
    assert zoomed != before
    box = curve.bounding_box()
    panel.mouse.move(box["x"] + 300, box["y"] + 60)
    panel.mouse.down()
    panel.mouse.move(box["x"] + 200, box["y"] + 60)
    panel.mouse.up()
    assert line() != zoomed
    panel.keyboard.press("0")
    assert line() == before


def test_playing_goes_on_to_the_end_and_tells_the_kernel(panel: Any, view: Any) -> None:
    panel.keyboard.press("End")
    for _ in range(3):
        panel.keyboard.press("Shift+ArrowLeft")
    view.locator("button:has-text('Play')").focus()
    panel.keyboard.press("k")
    last = view.locator(".opv-token").count() - 1
    lit(panel, last)
    view.locator("button:has-text('Play')").wait_for()  # it has stopped
    lab.open_tab(panel, "Text")  # which asks the kernel for the token
    panel.wait_for_function(
        f"Number(document.querySelector('.opv-mode-text .opv-scrubber').value) === {last}"
    )


def test_a_type_of_region_can_be_hidden_and_time_has_a_scale(panel: Any, view: Any) -> None:
    box = view.locator("label:has-text('title (1)') input")
    box.focus()
    panel.keyboard.press("Space")
    panel.wait_for_selector(f"{VIEW} .opv-region[data-region='0']", state="hidden")
    assert view.locator(".opv-region[data-region='1']").is_visible()
    panel.keyboard.press("Space")
    panel.wait_for_selector(f"{VIEW} .opv-region[data-region='0']", state="visible")
    colour = view.locator("label:has-text('Colour by') select")
    assert view.locator(".opv-legend").count() == 0
    colour.select_option("time")
    scales = view.locator(".opv-legend").all_inner_texts()
    assert [len(re.findall(r"[0-9] m?s\b", scale)) for scale in scales] == [2, 2]
    colour.select_option("type")


def test_the_timeline_zooms_and_leads_to_tokens(panel: Any, view: Any) -> None:
    lab.open_tab(panel, "Timeline")
    line = panel.locator(".opv-mode-timeline")
    line.locator(".opv-span").first.wait_for()
    bars = line.locator(".opv-span").count()
    line.locator(".opv-timeline").focus()
    panel.keyboard.press("+")
    panel.keyboard.press("+")
    assert line.locator(".opv-span").count() != bars
    panel.keyboard.press("0")
    assert line.locator(".opv-span").count() == bars
    step = line.locator(".opv-span").last  # of the last lane, a stage of the decode steps
    step.scroll_into_view_if_needed()
    box = step.bounding_box()
    place = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    panel.mouse.move(*place)
    assert " ms, from " in line.locator(".opv-tip").inner_text()
    panel.mouse.click(*place)
    token = panel.evaluate("Number(document.querySelector('.opv-mode-timeline .opv-scrubber').value)")
    assert token > 0
    lab.open_tab(panel, "Page")
    lit(panel, token)


def test_the_text_is_rendered_searched_and_copied(panel: Any, view: Any) -> None:
    lab.open_tab(panel, "Text")
    text = panel.locator(".opv-mode-text")
    assert text.locator(".opv-rendered h1").inner_text() == "CORNER CAFE"
    assert text.locator(".opv-rendered td").first.inner_text() == "Espresso"
    text.locator("input[type=search]").fill("juice")
    assert text.locator(".opv-count").inner_text() == "1 match"
    panel.keyboard.press("Enter")
    assert text.locator(".opv-count").inner_text() == "1 of 1"
    hit = text.locator(".opv-token.opv-now")
    assert hit.inner_text().lower() in "juice"
    assert "table" in text.locator(".opv-readout").inner_text()
    assert text.locator(".opv-token", has_text="↵").count() > 3
    panel.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text.locator("button:has-text('Copy text')").click()
    text.locator("button:has-text('Copied')").wait_for()
    copied = panel.evaluate("navigator.clipboard.readText()")
    assert "# CORNER CAFE\n" in copied
    assert "↵" not in copied
    text.locator(".opv-rendered section").first.click()
    assert text.locator(".opv-readout").inner_text().startswith("Token 1 of ")


def test_every_control_of_the_view_has_a_name_and_keeps_its_keys(panel: Any, view: Any) -> None:
    left_out = view.evaluate("""(view) =>
      [...view.querySelectorAll('button, input, select, summary, [tabindex]')]
      .filter((each) => each.dataset.lmSuppressShortcuts !== 'true'
        || !(each.ariaLabel || each.labels?.[0]?.textContent || each.textContent).trim())
      .map((each) => each.outerHTML)""")
    assert left_out == []
    first = view.evaluate("(view) => view.querySelector('button, input, select, [tabindex]').className")
    assert first == "opv-scrubber"


def test_stop_stops_and_keeps_what_was_there(panel: Any, ran: list[dict]) -> None:
    before = panel.inner_text(".opx-verdict")
    measured(panel, repeats=200)
    panel.wait_for_selector(".opx-stream pre")
    panel.click(".opx-stop")
    panel.wait_for_selector(NO_RUN)
    assert "Stopped" in panel.inner_text(".opx-messages")
    assert panel.locator(".opx-stop:disabled").count() == 1
    if "no record" in panel.inner_text(".opx-messages"):
        assert panel.inner_text(".opx-verdict") == before


def test_an_error_is_one_sentence_and_the_kernel_goes_on(panel: Any, ran: list[dict]) -> None:
    lab.show_settings(panel)
    panel.click(".opx-source button:has-text('File')")
    path = panel.locator(".opx-path input")
    path.fill("missing.png")
    path.press("Enter")
    panel.wait_for_selector(".opx-error")
    assert "missing.png" in panel.inner_text(".opx-error > p")
    assert not panel.locator(".opx-error pre").is_visible()
    panel.click(".opx-source button:has-text('Sample')")


def test_a_record_is_loaded_compared_and_downloaded(panel: Any, ran: list[dict], tmp_path: Path) -> None:
    lab.open_tab(panel, "Record")
    panel.fill(".opx-load-path input", str(GPU_RECORD))
    panel.press(".opx-load-path input", "Tab")
    panel.press(".opx-load", "Enter")
    panel.wait_for_function("document.querySelector('.opx-verdict').textContent.includes('NVIDIA H200')")
    with panel.expect_download() as download:
        panel.click(".opx-download a")
    download.value.save_as(tmp_path / "run.json")
    assert PhaseRun.load(tmp_path / "run.json").to_dict() == PhaseRun.load(GPU_RECORD).to_dict()
    lab.open_tab(panel, "Compare")
    panel.wait_for_selector(".opx-pane-compare :text('What differs')")  # the last part drawn
    compared = panel.inner_text(".opx-pane-compare")
    assert "NVIDIA H200" in compared
    assert "time to first token" in compared


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_nothing_is_wider_than_the_panel(panel: Any, ran: list[dict], theme: str) -> None:
    lab.set_theme(panel, theme)
    panel.set_viewport_size({"width": 900, "height": 1600})
    for name in ("Latency", "Vision", "Timeline", "Kernels", "Page", "Text", "Checks", "Compare", "Record"):
        lab.open_tab(panel, name)
        panel.wait_for_function("document.querySelector('.opx-tabs .lm-mod-current')")
        assert panel.evaluate(TOO_WIDE) == [], name
