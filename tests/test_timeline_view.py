"""The timeline of one repeat as a widget: its data, and what mouse and keys do with it in
Chromium.
"""

from pathlib import Path

import lab
import pytest
from conftest import RUNS
from example_run import make_run

from ocr_phases import PhaseRun
from ocr_phases.view.timeline import timeline_data
from ocr_phases.view.widgets import TimelineView

SCRIPT = (Path(__file__).parent / "widget.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run():
    return PhaseRun.load(RUNS / "tiny-receipt.json.gz")


def lane(data, name):
    (found,) = [each for each in data["lanes"] if each["name"] == name]
    return found


def test_each_phase_and_stage_has_a_lane_in_the_order_in_which_they_begin(run):
    data = timeline_data(run)
    names = [each["name"] for each in data["lanes"]]
    assert names[:2] == ["prepare", "load image"]
    assert names.index("whole prefill") < names.index("SAM global") < names.index("decode")
    assert [each["name"] for each in data["lanes"] if each["whole"]] == [
        "prepare",
        "whole prefill",
        "decode",
    ]
    assert lane(data, "decode step")["step"] == list(range(197))
    assert lane(data, "SAM global")["step"] == [None]


def test_pauses_between_phases_are_left_out(run):
    data = timeline_data(run)
    length = sum(sum(each["ms"]) for each in data["lanes"] if each["whole"])
    assert data["total"] == pytest.approx(length, abs=0.01)
    first, end = data["prefill"]
    assert end - first == pytest.approx(lane(data, "whole prefill")["ms"][0], abs=0.01)


def test_the_still_of_a_timeline_is_its_figure(run):
    picture = TimelineView(run).picture()
    assert "opx-still" in picture["text/html"]
    assert picture["image/jpeg"]


@pytest.fixture(scope="module")
def page():
    """A window of Chromium, which shows one widget after the other."""
    if reason := lab.missing():
        pytest.skip(reason)
    with lab.chromium() as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 500})
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        assert errors == []


def show(page, widget):
    state = {name: value for name, value in widget.get_state().items() if name != "layout"}
    page.set_content(f"<style>{widget._css}</style>")
    page.evaluate(SCRIPT, [str(widget._esm), state, widget.source.data])


def ticks(page):
    return [
        float(text.split()[0].replace(",", ""))
        for text in page.locator(".opv-marks span").all_inner_texts()
    ]


@pytest.mark.browser
def test_mouse_and_keys_zoom_move_and_choose_a_step(page, run):
    show(page, TimelineView(run))
    _, end = timeline_data(run)["prefill"]
    assert max(ticks(page)) < end + 10  # it opens at the prefill
    page.click(".opv-all")
    assert max(ticks(page)) == 800
    place = page.locator(".opv-bars").bounding_box()
    middle = (place["x"] + place["width"] / 2, place["y"] + place["height"] - 9)
    page.mouse.click(*middle)
    chosen = page.evaluate("model.get('token')")
    assert 0 < chosen < 197
    assert f"token {chosen + 1} " in page.inner_text(".opv-moment")
    page.focus(".opv-lanes")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("model.get('token')") == chosen + 1
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function(
        "![...document.querySelectorAll('.opv-marks span')].some((one) => one.textContent === '0')"
    )
    before = ticks(page)
    page.mouse.down()
    page.mouse.move(middle[0] + 300, middle[1], steps=3)
    page.mouse.up()
    assert min(ticks(page)) < min(before)
    assert page.evaluate("model.get('token')") == chosen + 1  # a drag chooses nothing
    page.keyboard.press("d")
    page.keyboard.press("+")
    page.keyboard.press("0")
    assert max(ticks(page)) == 800
    page.evaluate("model.set('selection', [10, 40])")
    assert page.locator(".opv-chosen").get_attribute("d") != ""


@pytest.mark.browser
def test_other_kinds_of_record_are_drawn(page):
    server = PhaseRun.load(RUNS / "cpu-vllm-gundam.json.gz")
    for run in (make_run(generate=True), make_run(rows=2), server):
        show(page, TimelineView(run))
        assert page.locator(".opv-names > div").count() >= 2
