"""Every kind of report as a person meets it: a file in Chromium, wide, narrow, dark and printed."""

import io
import shutil
from pathlib import Path

import lab
import pypdfium2
import pytest
from batch_example import html_of, make_batch
from conftest import GPU_RECORD
from example_run import make_run

from ocr_phases.batch.index import build_index
from ocr_phases.report.live import LiveObjects
from ocr_phases.report.render import execute_notebook, render_html

LARGEST = 3_000_000  # bytes
SMALLEST_TYPE = 11.0  # CSS pixels, in text
SMALLEST_FIGURE_TYPE = 9.0  # CSS pixels, in figures
#: The kinds of report, and the column of the first table that is sorted.
KINDS = {"page": 4, "attacked": 4, "record": 4, "verify": 1, "sweep": 7, "compare": 3, "index": 0}

pytestmark = pytest.mark.browser

LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def chromium():
    if reason := lab.missing():
        pytest.skip(reason)
    with lab.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def reports(chromium, plain_report, attacked_report, gpu_report, tmp_path_factory):
    """The HTML file of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    place = {"what": "fusion", "file": f"transformers/{'long_name/' * 6}a.py", "line": 1960}
    place |= {
        "version": "transformers 5.23.0",
        "symbol": f"Model.forward: {'embeds.masked_scatter' * 5}",
    }
    verified = {
        "record": str(make_run().save(folder / "measured.json")),
        "output_dir": str(folder / "verify"),
    }
    cells, index = folder / "cells", folder / "batch" / "index.html"
    cells.mkdir()
    for name in ("base", "gundam", "gundam-compiled"):
        shutil.copy(GPU_RECORD.with_name(f"h200-dummy-{name}.json.gz"), cells)
    index.parent.mkdir()
    make_batch(index.parent)
    index.write_text(html_of(build_index(index.parent)), encoding="utf-8")

    def made(name, parameters, show_code=False, **objects):
        notebook = execute_notebook(
            name, parameters, folder / f"{name}.ipynb", objects=LiveObjects(**objects)
        )
        return render_html(notebook, folder / f"{name}.html", show_code=show_code)

    return {
        "page": plain_report / "report.html",
        "attacked": attacked_report / "report.html",
        "record": gpu_report / "report.html",
        "verify": made("verify", verified, show_code=True, references=[place]),
        "sweep": made("sweep_report", {"records": str(cells)}),
        "compare": made("compare_runs", {}),
        "index": index,
    }


@pytest.fixture
def opened(chromium):
    """Opens a report; at the end nothing was requested and nothing complained."""
    requests, complaints = [], []
    page = chromium.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))

    def open_report(file):
        page.goto(file.as_uri())
        page.wait_for_load_state()
        return page

    yield open_report
    page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in requests) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_is_used_by_keyboard_printed_and_legible_in_any_window(kind, opened, reports):
    """One after the other in one window: to open a report takes longer than to look at it."""
    page = opened(reports[kind])
    assert reports[kind].stat().st_size < LARGEST
    if kind != "attacked":  # which only must look like a page's
        a_keyboard_gets_past_the_contents_and_to_each_section(page, kind)
        a_table_is_sorted_by_click_and_by_keyboard(page, kind)
        it_prints_dark_on_white_and_unfolded(page, kind)
    page.evaluate(
        "document.querySelectorAll('details').forEach((details) => { details.open = true; })"
    )
    for width, scheme in ((1400, "dark"), (400, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media="screen", color_scheme=scheme)
        it_is_legible_and_accessible(page, width)
    if kind == "verify":
        page.set_viewport_size({"width": 948, "height": 900})
        wide = "[...document.querySelectorAll('.op-scroll')]"
        cut = f"{wide}.filter((one) => one.scrollWidth > one.clientWidth)"
        assert page.evaluate(f"{cut}.map((one) => one.ariaLabel)") == []


def a_keyboard_gets_past_the_contents_and_to_each_section(page, kind):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "report"
    sections = page.locator("nav a")
    assert sections.count() >= 4
    assert kind != "record" or "Kernels" in sections.all_inner_texts()
    sections.last.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector(':target').getBoundingClientRect().top") < 900
    assert page.evaluate("window.scrollY") > 0


def a_table_is_sorted_by_click_and_by_keyboard(page, kind):
    table = page.locator("table:has(thead button)").first
    place = KINDS[kind]
    cells = f"[...table.tBodies[0].rows].map((row) => row.cells[{place}])"
    column = f"(table) => {cells}.map((cell) => cell.dataset.value ?? cell.textContent)"
    before = table.evaluate(column)
    ordered = sorted(before) if kind in ("verify", "index") else sorted(before, key=float)
    assert ordered != before
    heading, button = table.locator("th").nth(place), table.locator("thead button").nth(place)
    button.click()
    assert table.evaluate(column) == ordered
    assert heading.get_attribute("aria-sort") == "ascending"
    button.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert table.evaluate(column) != ordered
    button.press("Space")
    assert heading.get_attribute("aria-sort") == "none"
    assert table.evaluate(column) == before


def it_prints_dark_on_white_and_unfolded(page, kind):
    page.set_viewport_size({"width": 690, "height": 900})
    page.emulate_media(media="print", color_scheme="dark")
    seen = page.evaluate(LOOK)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert (seen["faint"], seen["width"] <= 690, seen["contrast"]["ink"] >= 4.5) == ([], True, True)
    document = pypdfium2.PdfDocument(io.BytesIO(page.pdf(format="A4")))
    said = "".join(
        document[number].get_textpage().get_text_range() for number in range(len(document))
    )
    if kind not in ("compare", "index"):  # which fold nothing
        assert (
            "UnlimitedOcrForConditionalGeneration" in said
        )  # stands in a part that a screen shows folded
    assert "Skip to the" not in said


def it_is_legible_and_accessible(page, width):
    seen = page.evaluate(LOOK)
    assert seen["width"] <= width
    assert seen["texts"] > 100
    assert seen["faint"] == []
    assert seen["smallest"] >= SMALLEST_TYPE
    # Type in figures has 9 points or more; a point is a unit of the drawing.
    assert seen["figures"] and min(seen["figures"]) * 9 >= SMALLEST_FIGURE_TYPE
    assert min(seen["contrast"].values()) >= 4.5
    assert seen["headings"][0] == 1 and seen["headings"].count(1) == 1
    steps = zip(seen["headings"], seen["headings"][1:], strict=False)
    assert all(after - before <= 1 for before, after in steps)
    assert (seen["mute"], seen["tables"], seen["repeatedIds"]) == (0, 0, 0)
    assert (seen["language"], seen["mains"]) == ("en", 1)


def test_a_report_of_a_prompt_without_an_image_has_its_tokens_and_no_sheet(opened, tmp_path):
    page = opened(make_run(image=False).report(tmp_path / "report"))
    scrubber = page.locator(".opv-scrubber")
    scrubber.focus()
    scrubber.press("ArrowRight")
    assert page.locator(".opv-readout").inner_text().startswith("Token 2 of")
    assert not page.locator(".opv-page").is_visible()


def test_a_cell_takes_the_notebook_s_colours_and_a_viewer_that_drops_the_drawing_its_still(
    chromium,
):
    run = make_run()
    cells = "".join(part._repr_mimebundle_()["text/html"] for part in (run, run.plot.latency()))
    fills = "[...document.querySelectorAll('svg *')].map(part => getComputedStyle(part))"
    for light, ink, grid in (
        ("true", "rgb(10, 20, 30)", "rgb(227, 231, 235)"),
        ("false", "rgb(230, 220, 210)", "rgb(58, 63, 69)"),
    ):
        page = chromium.new_page()
        theme = f"<style>:root{{--jp-content-font-color1:{ink}}}</style>"
        page.set_content(f'<body data-jp-theme-light="{light}">{theme}{cells}')
        assert ink in page.evaluate(f"{fills}.map(style => style.fill)")
        assert grid in page.evaluate(f"{fills}.map(style => style.stroke)")
        assert not page.locator(".op-still").is_visible()
        page.evaluate("document.querySelectorAll('style, svg').forEach(part => part.remove())")
        assert page.locator(".op-still").is_visible()
        page.close()
