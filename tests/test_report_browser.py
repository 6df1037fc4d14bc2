"""Every kind of report as a person meets it: a file in Chromium, wide, narrow, dark and printed."""

import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import lab
import pypdfium2
import pytest
from batch_example import html_of, make_batch
from conftest import GPU_RECORD
from example_run import make_run

from ocr_phases.batch.index import build_index
from ocr_phases.report.live import LiveObjects
from ocr_phases.report.render import execute_notebook, render_html

LARGEST_BYTES = 3_000_000
#: The smallest type of a text and of a figure, in CSS pixels.
SMALLEST_TYPE = 11.0
SMALLEST_FIGURE_TYPE = 9.0


@dataclass(frozen=True)
class ReportKind:
    """What differs between the kinds of report for a person who uses one."""

    name: str
    #: The column of the first table that is sorted here, and whether it holds words.
    sorted_column: int
    sorts_words: bool = False
    folds_parts: bool = True
    has_kernels: bool = False
    #: It must only look like a page's.
    is_only_looked_at: bool = False


KINDS = [
    ReportKind("page", sorted_column=4),
    ReportKind("attacked", sorted_column=4, is_only_looked_at=True),
    ReportKind("record", sorted_column=4, has_kernels=True),
    ReportKind("verify", sorted_column=1, sorts_words=True),
    ReportKind("sweep", sorted_column=7),
    ReportKind("compare", sorted_column=3, folds_parts=False),
    ReportKind("index", sorted_column=0, sorts_words=True, folds_parts=False),
]

pytestmark = pytest.mark.browser

#: A script that says how a page looks.
LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")
UNFOLD = "document.querySelectorAll('details').forEach((details) => { details.open = true; })"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    reason = lab.missing()
    if reason is not None:
        pytest.skip(reason)
    with lab.chromium() as browser:
        yield browser


def verify_report(folder: Path) -> Path:
    """A report of checks with a reference that has long names, and with its code."""
    parameters = {
        "record": str(make_run().save(folder / "measured.json")),
        "output_dir": str(folder / "verify"),
    }
    place = {
        "what": "fusion",
        "file": f"transformers/{'long_name/' * 6}a.py",
        "line": 1960,
        "version": "transformers 5.23.0",
        "symbol": f"Model.forward: {'embeds.masked_scatter' * 5}",
    }
    notebook = execute_notebook(
        "verify", parameters, folder / "verify.ipynb", objects=LiveObjects(references=[place])
    )
    return render_html(notebook, folder / "verify.html", show_code=True)


def sweep_report(folder: Path) -> Path:
    """A report of three cells."""
    cells = folder / "cells"
    cells.mkdir()
    for name in ("base", "gundam", "gundam-compiled"):
        shutil.copy(GPU_RECORD.with_name(f"h200-dummy-{name}.json.gz"), cells)
    notebook = execute_notebook(
        "sweep_report", {"records": str(cells)}, folder / "sweep.ipynb", objects=LiveObjects()
    )
    return render_html(notebook, folder / "sweep.html")


def compare_report(folder: Path) -> Path:
    """A report of the records that the notebook compares by itself."""
    notebook = execute_notebook("compare_runs", {}, folder / "compare.ipynb", objects=LiveObjects())
    return render_html(notebook, folder / "compare.html")


def batch_index(folder: Path) -> Path:
    """The index of a batch."""
    batch = folder / "batch"
    batch.mkdir()
    make_batch(batch)
    index = batch / "index.html"
    index.write_text(html_of(build_index(batch)), encoding="utf-8")
    return index


@pytest.fixture(scope="module")
def reports(
    chromium: Any,
    plain_report: Path,
    attacked_report: Path,
    gpu_report: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """The HTML file of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    return {
        "page": plain_report / "report.html",
        "attacked": attacked_report / "report.html",
        "record": gpu_report / "report.html",
        "verify": verify_report(folder),
        "sweep": sweep_report(folder),
        "compare": compare_report(folder),
        "index": batch_index(folder),
    }


OpenReport = Callable[[Path], Any]


class Window:
    """A window that shows one report after the other: it takes longer to open one than to load a
    report. It notes what a report requests and complains of.
    """

    def __init__(self, chromium: Any) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page = chromium.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Any) -> None:
        self.complaints.append("dialog")
        dialog.dismiss()

    def open(self, file: Path) -> Any:
        """Load a report in a window of usual size, in the light."""
        self.page.set_viewport_size({"width": 1400, "height": 900})
        self.page.emulate_media(media="screen", color_scheme="light")
        self.page.goto(file.as_uri())
        self.page.wait_for_load_state()
        return self.page

    def clear(self) -> None:
        """Show nothing, and forget what was noted."""
        self.page.goto("about:blank")
        self.requests.clear()
        self.complaints.clear()


@pytest.fixture(scope="module")
def window(chromium: Any) -> Window:
    return Window(chromium)


@pytest.fixture
def open_report(window: Window) -> Iterator[OpenReport]:
    """A function that opens a report; at the end nothing was requested and nothing complained."""
    window.clear()
    yield window.open
    assert window.complaints == []
    assert [url for url in window.requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in window.requests) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_report_is_used_by_keyboard_printed_and_legible_in_any_window(
    kind: ReportKind, open_report: OpenReport, reports: dict[str, Path]
) -> None:
    """One after the other in one window: to open a report takes longer than to look at it."""
    file = reports[kind.name]
    assert file.stat().st_size < LARGEST_BYTES

    page = open_report(file)
    if not kind.is_only_looked_at:
        assert_keyboard_gets_past_the_contents_and_to_each_section(page, kind)
        assert_table_is_sorted_by_click_and_by_keyboard(page, kind)
        assert_prints_dark_on_white_and_unfolded(page, kind)

    page.evaluate(UNFOLD)
    for width, scheme in ((1400, "dark"), (400, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(media="screen", color_scheme=scheme)
        assert_legible_and_accessible(page, width)


def test_no_table_of_checks_is_cut_in_a_window_of_usual_width(
    open_report: OpenReport, reports: dict[str, Path]
) -> None:
    page = open_report(reports["verify"])
    page.evaluate(UNFOLD)
    page.set_viewport_size({"width": 948, "height": 900})
    cut = page.evaluate(
        """[...document.querySelectorAll('.op-scroll')]
        .filter((table) => table.scrollWidth > table.clientWidth)
        .map((table) => table.ariaLabel)"""
    )
    assert cut == []


def assert_keyboard_gets_past_the_contents_and_to_each_section(page: Any, kind: ReportKind) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "report"

    sections = page.locator("nav a")
    assert sections.count() >= 4
    if kind.has_kernels:
        assert "Kernels" in sections.all_inner_texts()
    sections.last.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector(':target').getBoundingClientRect().top") < 900
    assert page.evaluate("window.scrollY") > 0


def assert_table_is_sorted_by_click_and_by_keyboard(page: Any, kind: ReportKind) -> None:
    table = page.locator("table:has(thead button)").first
    heading = table.locator("th").nth(kind.sorted_column)
    button = table.locator("thead button").nth(kind.sorted_column)

    def values() -> list[str]:
        return table.evaluate(
            """(table, column) => [...table.tBodies[0].rows]
            .map((row) => row.cells[column])
            .map((cell) => cell.dataset.value ?? cell.textContent)""",
            kind.sorted_column,
        )

    before = values()
    ordered = sorted(before) if kind.sorts_words else sorted(before, key=float)
    assert ordered != before

    button.click()
    assert values() == ordered
    assert heading.get_attribute("aria-sort") == "ascending"
    button.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert values() != ordered
    button.press("Space")
    assert heading.get_attribute("aria-sort") == "none"
    assert values() == before


def assert_prints_dark_on_white_and_unfolded(page: Any, kind: ReportKind) -> None:
    page.set_viewport_size({"width": 690, "height": 900})
    page.emulate_media(media="print", color_scheme="dark")

    look = page.evaluate(LOOK)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert look["faint"] == []
    assert look["width"] <= 690
    assert look["contrast"]["ink"] >= 4.5

    printed = pdf_text(page.pdf(format="A4"))
    if kind.folds_parts:
        # The name of the class stands in a part that a screen shows folded.
        assert "UnlimitedOcrForConditionalGeneration" in printed
    assert "Skip to the" not in printed


def pdf_text(data: bytes) -> str:
    """The text of all pages of a PDF."""
    document = pypdfium2.PdfDocument(io.BytesIO(data))
    return "".join(page.get_textpage().get_text_range() for page in document)


def assert_legible_and_accessible(page: Any, width: int) -> None:
    look = page.evaluate(LOOK)
    assert look["width"] <= width
    assert look["texts"] > 100
    assert look["faint"] == []
    assert look["smallest"] >= SMALLEST_TYPE
    # Type in figures has 9 points or more; a point is a unit of the drawing.
    assert look["figures"]
    assert min(look["figures"]) * 9 >= SMALLEST_FIGURE_TYPE
    assert min(look["contrast"].values()) >= 4.5

    levels = look["headings"]
    assert levels[0] == 1
    assert levels.count(1) == 1
    for before, after in pairwise(levels):
        assert after - before <= 1

    assert look["mute"] == 0
    assert look["tables"] == 0
    assert look["repeatedIds"] == 0
    assert look["language"] == "en"
    assert look["mains"] == 1


def test_a_report_of_a_prompt_without_an_image_has_its_tokens_and_no_sheet(
    open_report: OpenReport, tmp_path: Path
) -> None:
    page = open_report(make_run(image=False).report(tmp_path / "report"))
    scrubber = page.locator(".opv-scrubber")

    scrubber.focus()
    scrubber.press("ArrowRight")

    assert page.locator(".opv-readout").inner_text().startswith("Token 2 of")
    assert not page.locator(".opv-page").is_visible()


@pytest.fixture(scope="module")
def cells() -> str:
    """What two cells of a notebook show: a record and a figure."""
    run = make_run()
    shown = [part._repr_mimebundle_()["text/html"] for part in (run, run.plot.latency())]
    return "".join(shown)


@pytest.mark.parametrize(
    ("is_light", "ink", "grid"),
    [
        pytest.param("true", "rgb(10, 20, 30)", "rgb(227, 231, 235)", id="light"),
        pytest.param("false", "rgb(230, 220, 210)", "rgb(58, 63, 69)", id="dark"),
    ],
)
def test_a_cell_takes_the_notebook_s_colours_and_a_viewer_that_drops_the_drawing_its_still(
    is_light: str, ink: str, grid: str, cells: str, chromium: Any
) -> None:
    styles = "[...document.querySelectorAll('svg *')].map(part => getComputedStyle(part))"
    theme = f"<style>:root{{--jp-content-font-color1:{ink}}}</style>"
    page = chromium.new_page()

    page.set_content(f'<body data-jp-theme-light="{is_light}">{theme}{cells}')

    assert ink in page.evaluate(f"{styles}.map(style => style.fill)")
    assert grid in page.evaluate(f"{styles}.map(style => style.stroke)")
    assert not page.locator(".op-still").is_visible()

    page.evaluate("document.querySelectorAll('style, svg').forEach(part => part.remove())")
    assert page.locator(".op-still").is_visible()
    page.close()
