"""The explorer as a person meets it: explore.ipynb in JupyterLab, in Chromium, with the built-in model."""

from __future__ import annotations

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
    points: document.querySelector('.opx-live-curve .opx-line:not(.opx-faint)')?.points.length ?? 0,
  });
  const panel = document.querySelector('.opx');
  new MutationObserver(note).observe(panel, {childList: true, subtree: true, characterData: true});
}"""

TOO_WIDE = "(panel => panel.scrollWidth - panel.clientWidth)(document.querySelector('.opx'))"

MARKED = """() => [...document.querySelectorAll('.opx-region')]
  .filter((group) => getComputedStyle(group.querySelector('.opx-box')).strokeWidth === '5px')
  .map((group) => Number([...group.classList].find((name) => /^opx-r[0-9]+$/.test(name)).slice(5)))"""


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
    assert " of the prefill." in panel.inner_text(".opx-verdict")
    assert not panel.locator(".opx-form").is_visible()  # until Settings shows it again
    assert panel.inner_text(".opx-messages").strip() == ""


def test_the_scrubber_moves_the_highlight_by_keyboard(panel: Any, ran: list[dict]) -> None:
    lab.open_tab(panel, "Page")
    panel.wait_for_selector(".opx-page")
    handle = panel.locator(".opx-scrubber .noUi-handle")
    handle.focus()
    panel.keyboard.press("Home")
    panel.wait_for_function("document.querySelector('.opx-token-text').textContent.includes('Token 1 ')")
    panel.wait_for_function(f"({MARKED})().join() === '0'")
    panel.keyboard.press("ArrowRight")
    panel.wait_for_function("document.querySelector('.opx-token-text').textContent.includes('Token 2 ')")
    place = "getComputedStyle(document.querySelector('.opx-pane-page .opx-cursor')).transform"
    before = panel.evaluate(place)
    panel.keyboard.press("End")
    last = panel.locator(".opx-region").count() - 1
    panel.wait_for_function(f"({MARKED})().join() === '{last}'")
    assert panel.evaluate(place) != before
    assert panel.locator(".opx-regions select").input_value().startswith(f"{last} ")
    # And the other way round: a region of the list.
    panel.focus(".opx-regions select")
    panel.keyboard.press("Home")
    panel.wait_for_function(f"({MARKED})().join() === '0'")
    assert "0 title" in panel.locator(".opx-r0 title").text_content()


def test_a_type_of_region_can_be_hidden(panel: Any, ran: list[dict]) -> None:
    lab.open_tab(panel, "Page")
    panel.locator(".opx-type-0 input").focus()
    panel.keyboard.press("Space")
    panel.wait_for_selector(".opx-k0", state="hidden")
    assert panel.locator(".opx-k1").first.is_visible()
    panel.keyboard.press("Space")
    panel.wait_for_selector(".opx-k0", state="visible")


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
    panel.keyboard.press("Enter")  # on Load, which comes next
    panel.wait_for_function("document.querySelector('.opx-verdict').textContent.includes('NVIDIA H200')")
    with panel.expect_download() as download:
        panel.click(".opx-download a")
    download.value.save_as(tmp_path / "run.json")
    assert PhaseRun.load(tmp_path / "run.json").to_dict() == PhaseRun.load(GPU_RECORD).to_dict()
    lab.open_tab(panel, "Compare")
    panel.wait_for_selector(".opx-sides svg >> nth=3")
    compared = panel.inner_text(".opx-pane-compare")
    assert "NVIDIA H200" in compared
    assert "time to first token" in compared


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_nothing_is_wider_than_the_panel(panel: Any, ran: list[dict], theme: str) -> None:
    lab.set_theme(panel, theme)
    panel.set_viewport_size({"width": 1000, "height": 1600})
    for name in ("Latency", "Vision", "Timeline", "Page", "Text", "Checks", "Compare", "Record"):
        lab.open_tab(panel, name)
        panel.wait_for_function("document.querySelector('.opx-tabs .lm-mod-current')")
        assert panel.evaluate(TOO_WIDE) <= 0, name
