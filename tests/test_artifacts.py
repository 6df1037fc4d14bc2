"""The files that an output turns into, and the boxes drawn on its page."""

import re
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
from conftest import GOLDEN
from example_run import altered, make_run, two_page_run
from grounding_texts import CASE, fuzzed, marked
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageColor
from refusals import refused
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.analyse.grounding import Region, parse_grounding
from ocr_phases.errors import CannotWrite
from ocr_phases.files import MANIFEST_NAME, REPORT_FOLDER, check_names, folder_for, write_given
from ocr_phases.report import result_files
from ocr_phases.report.result_files import (
    EOS_TEXT,
    RESULTS,
    Geometry,
    GeometryLine,
    parse_geometry,
    result_markdown,
    row_images,
    write_artifacts,
    write_results,
)
from ocr_phases.show.boxes import LABEL_COLOURS, draw_marks, label_colour, place_tags, region_boxes
from ocr_phases.show.web import printable
from ocr_phases.versions import asset

#: A page's output as the vendor's code wrote it.
MODEL_TEXT = CASE["model_text"]
PAGE = GOLDEN / "pages" / CASE["page"]
CROP_LINK = re.compile(r"!\[\]\(images/(\d+)\.jpg\)")


def regions_of(text: str) -> tuple[Region, ...]:
    """The regions that a text marks."""
    return parse_grounding(text).regions


def small_page() -> Image.Image:
    """A white page of 60 x 60 pixels."""
    return Image.new("RGB", (60, 60), "white")


def names_in(folder: Path) -> set[str]:
    """The names of what lies in a folder."""
    return {path.name for path in folder.iterdir()}


def crops_in(folder: Path) -> list[Image.Image]:
    """The pictures of an output, in order; their numbers leave none out."""
    paths = sorted(folder.glob("images/*.jpg"), key=lambda path: int(path.stem))
    assert [path.stem for path in paths] == [str(number) for number in range(len(paths))]
    return [Image.open(path) for path in paths]


# -- the output of a page --------------------------------------------------------------------------


def mended_vendor_markdown() -> str:
    """The vendor's Markdown, with a link for each crop.

    The vendor writes one link for the first image's two crops: the next one points wrongly.
    """
    vendor = CASE["result_mmd"]
    later_link = vendor.replace("![](images/1.jpg)\n", "![](images/2.jpg)\n")
    mended = later_link.replace("![](images/0.jpg)\n", "![](images/0.jpg)\n![](images/1.jpg)\n")
    assert vendor.count("![](images/") == 2
    assert vendor != later_link
    assert later_link != mended
    return mended


@pytest.fixture(scope="module")
def golden_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recorded output."""
    folder = tmp_path_factory.mktemp("output") / "new" / "run"
    write_artifacts(folder, Image.open(PAGE), MODEL_TEXT)
    return folder


def test_an_output_has_its_texts_crops_and_page_and_nothing_else(tmp_path: Path) -> None:
    paths = write_artifacts(tmp_path, Image.open(PAGE), MODEL_TEXT)

    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "result.mmd",
        "result_ori.mmd",
        "images/0.jpg",
        "images/1.jpg",
        "images/2.jpg",
        "result_with_boxes.jpg",
    ]
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {*paths, tmp_path / MANIFEST_NAME}


def test_the_texts_of_an_output_are_the_vendors_with_the_drifting_links_mended(
    golden_output: Path,
) -> None:
    mended = mended_vendor_markdown()

    assert result_markdown(MODEL_TEXT) == mended
    assert (golden_output / "result.mmd").read_bytes().decode() == mended
    assert (golden_output / "result_ori.mmd").read_bytes().decode() == MODEL_TEXT


def test_the_crops_of_an_output_are_the_vendors(golden_output: Path) -> None:
    page = Image.open(PAGE)
    expected = page.convert("RGB").crop(CASE["boxes_px"][2])

    crops = crops_in(golden_output)

    assert [list(crop.size) for crop in crops] == list(CASE["crops"].values())
    difference = np.abs(np.asarray(crops[0], float) - np.asarray(expected))
    assert difference.mean() < 3  # of JPEG
    with_boxes = Image.open(golden_output / "result_with_boxes.jpg")
    assert page.size == (1240, 1754)
    assert with_boxes.size == page.size


def test_an_output_without_a_page_has_its_texts_alone(tmp_path: Path) -> None:
    paths = write_artifacts(tmp_path, None, MODEL_TEXT)

    assert paths == [tmp_path / "result.mmd", tmp_path / "result_ori.mmd"]
    assert names_in(tmp_path) == {MANIFEST_NAME, "result.mmd", "result_ori.mmd"}


def test_pages_with_marks_give_a_picture_each() -> None:
    assert len(row_images(two_page_run(), 0)) == 2


def test_pages_without_marks_give_the_first_alone() -> None:
    run_without_marks = altered(two_page_run(), model={"family": "deepseek-ocr"})

    assert len(row_images(run_without_marks, 0)) == 1


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param(f" a {EOS_TEXT} \n", "a", id="the end token goes"),
        pytest.param(f"a {EOS_TEXT} b", f"a {EOS_TEXT} b", id="but not within the text"),
        pytest.param(r"a \coloneqq b \eqqcolon c", "a := b =: c", id="equals with a colon"),
        pytest.param(marked("image", "[[1, 2"), "", id="a list without an end"),
        pytest.param(
            marked("image", "[[5, 0, 5, 9], [0, 0, 9, 9]]"),
            "![](images/0.jpg)\n",
            id="a box without a width has no crop",
        ),
        pytest.param(marked("images", "[[0, 0, 9, 9]]") + "x", "x", id="another label"),
        pytest.param(
            "<|ref|>a phrase<|/ref|>", "<|ref|>a phrase<|/ref|>", id="marks that make no region"
        ),
        pytest.param(
            2 * marked("image", "[[0, 0, 9, 9]]"),
            "![](images/0.jpg)\n![](images/1.jpg)\n",
            id="two images",
        ),
    ],
)
def test_marks_become_links_or_go(text: str, markdown: str) -> None:
    assert result_markdown(text) == markdown


@pytest.mark.parametrize("size", [(1, 1), (20, 20), (2000, 3), (70_000, 2)])
def test_small_boxes_on_small_pages_still_have_their_crop(
    size: tuple[int, int], tmp_path: Path
) -> None:
    text = marked("image", "[[998, 998, 999, 999], [3, 3, 4, 4], [7, 7, 7, 9], [0, 0, 999, 999]]")

    write_artifacts(tmp_path, Image.new("RGBA", size), text)

    crops = crops_in(tmp_path)
    assert len(crops) == 3
    assert len(CROP_LINK.findall(result_markdown(text))) == 3
    assert all(min(crop.size) >= 1 for crop in crops)
    longest_of_a_jpeg = 65_500
    whole_page = crops[2]
    assert whole_page.width == min(size[0], longest_of_a_jpeg)
    if size[0] <= longest_of_a_jpeg:
        assert whole_page.size == size


FIFTY_BOXES = [f"[{left}, 10, {left + 90}, 60]" for left in range(50)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(marked("image", f"[{', '.join(FIFTY_BOXES)}]"), id="in one region"),
        pytest.param(
            "".join(marked("image", f"[{box}]") for box in FIFTY_BOXES), id="in a region each"
        ),
    ],
)
def test_crops_are_limited_and_the_markdown_says_so(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_files, "MAX_CROPS", 20)

    write_artifacts(tmp_path, Image.new("RGB", (40, 40)), text + "end")

    assert len(list(tmp_path.glob("images/*.jpg"))) == 20
    markdown = (tmp_path / "result.mmd").read_text()
    assert CROP_LINK.findall(markdown) == [str(number) for number in range(20)]
    assert markdown.endswith(
        "end\n\n*30 more pictures have no file: an output has at most 20 crops, and together they "
        "cover the page at most 20 times.*"
    )


def test_an_output_has_at_most_500_crops() -> None:
    assert result_files.MAX_CROPS == 500


# -- boxes drawn on the page -----------------------------------------------------------------------


def test_golden_boxes_are_outlined_at_their_pixels() -> None:
    page = Image.open(PAGE)
    regions = regions_of(MODEL_TEXT)
    colours = []
    for region in regions:
        colours += [label_colour(region.label)] * len(region.boxes)
    untagged = [box._replace(text="") for box in region_boxes(regions, page.size)]

    drawn = draw_marks(page, untagged)

    is_outside = np.ones((page.height, page.width), dtype=bool)
    for (x1, y1, x2, y2), colour in zip(CASE["boxes_px"], colours, strict=True):
        is_outside[y1 : y2 + 1, x1 : x2 + 1] = False
        last_on_page = (min(x2, page.width - 1), min(y2, page.height - 1))
        assert drawn.getpixel((x1, y1)) == ImageColor.getrgb(colour)
        assert drawn.getpixel(last_on_page) == ImageColor.getrgb(colour)
    original = np.asarray(page.convert("RGB"))
    assert (np.asarray(drawn)[is_outside] == original[is_outside]).all()


def test_a_box_of_the_whole_page_and_its_tag_lie_on_the_page() -> None:
    (whole,) = region_boxes(regions_of(marked("text", "[[0, 0, 999, 999]]")), (200, 100))

    (tag,) = place_tags([whole], (200, 100))

    assert whole.box == (0, 0, 199, 99)
    assert tag.ground[3] <= 100


def drawn_labels(*labels: str) -> np.ndarray:
    """The pixels of a page with a tiny box of each label at the same place."""
    page = Image.new("RGB", (800, 800), "white")
    text = "".join(marked(label, "[[400, 400, 410, 410]]") for label in labels)
    return np.asarray(draw_marks(page, region_boxes(regions_of(text), page.size)))


def test_tags_are_drawn_beside_each_other() -> None:
    """Two tiny boxes at the same place: the second tag must not cover the first."""
    title_colour = ImageColor.getrgb(LABEL_COLOURS["title"])
    table_colour = ImageColor.getrgb(LABEL_COLOURS["table"])
    title_alone = drawn_labels("title")

    both = drawn_labels("title", "table")

    is_title_tag = (title_alone == title_colour).all(axis=2)
    is_title_tag[318:332, 318:332] = False  # the boxes themselves
    assert is_title_tag.sum() > 100
    assert (both[is_title_tag] == title_colour).all()
    assert (both == table_colour).all(axis=2).sum() > 100


@pytest.mark.parametrize(
    ("label", "colour"),
    [
        ("stamp", "#cc6677"),
        ("seal", "#19823c"),
        ("chart", "#8f8f2f"),
        ("\ud800", "#cc6677"),
        ("title", LABEL_COLOURS["title"]),
    ],
)
def test_a_label_has_the_same_colour_in_every_process(label: str, colour: str) -> None:
    assert label_colour(label) == colour


def test_a_label_is_made_to_fit_a_tag() -> None:
    assert printable(" a\n\tb\x00\ud800 c ") == "a b c"
    assert printable("x" * 100, longest=5) == "xxxx…"
    assert len(printable("\u202e" * 10**6 + "x")) <= 24


# -- geometry --------------------------------------------------------------------------------------

#: The lines of a figure, as the model writes them.
LINES = {
    "line": ["(-5, 0) -- (5, 0)", "(0,-8.5) -- (-5,0)"],
    "line_type": ["-", "--"],
    "line_endpoint": ["A: (-5, 0)", "$B_1$: (0, -8.5)"],
}
#: Its circles.
CIRCLES = {"circle_center": ["O: (0, 0)", "P: (3, -2)"], "radius": [5, 2.5]}
FIGURE = str({"Line": LINES})
FIGURE_WITH_CIRCLES = str({"Line": LINES, "Circle": CIRCLES})


def figure_with(**entries: Any) -> str:
    """The figure with other entries of its lines."""
    return str({"Line": {**LINES, **entries}})


def test_lines_and_their_endpoints_are_read() -> None:
    solid = GeometryLine((-5.0, 0.0), (5.0, 0.0), dashed=False)
    dashed = GeometryLine((0.0, -8.5), (-5.0, 0.0), dashed=True)
    endpoints = (("A", (-5.0, 0.0)), ("$B_1$", (0.0, -8.5)))

    geometry = parse_geometry(f"{FIGURE}{EOS_TEXT}")

    assert geometry == Geometry(lines=(solid, dashed), endpoints=endpoints)


def test_circles_of_a_figure_are_read() -> None:
    geometry = parse_geometry(FIGURE_WITH_CIRCLES)

    assert geometry is not None
    assert [circle.center for circle in geometry.circles] == [(0, 0), (3, -2)]
    assert [circle.radius for circle in geometry.circles] == [5, 2.5]


@pytest.mark.parametrize(
    "radius", [pytest.param([5], id="too few"), pytest.param([5, -1], id="a negative one")]
)
def test_circles_with_wrong_radii_leave_the_lines(radius: list[float]) -> None:
    circles = {**CIRCLES, "radius": radius}

    geometry = parse_geometry(str({"Line": LINES, "Circle": circles}))

    assert geometry is not None
    assert len(geometry.lines) == 2
    assert geometry.circles == ()


def test_a_figure_is_drawn_on_its_axes(tmp_path: Path) -> None:
    paths = write_artifacts(tmp_path, small_page(), FIGURE)

    names = ["result.mmd", "result_ori.mmd", "result_with_boxes.jpg", "geo.jpg"]
    assert [path.name for path in paths] == names
    drawn = Image.open(tmp_path / "geo.jpg")
    assert drawn.width == drawn.height


def dark_pixels(path: Path) -> int:
    """How many pixels of a picture are darker than a quarter of white."""
    return sum(Image.open(path).convert("L").histogram()[:64])


def test_circles_of_a_figure_are_drawn(tmp_path: Path) -> None:
    write_artifacts(tmp_path / "lines", small_page(), FIGURE)
    write_artifacts(tmp_path / "circles", small_page(), FIGURE_WITH_CIRCLES)

    dark_with_lines = dark_pixels(tmp_path / "lines" / "geo.jpg")
    dark_with_circles = dark_pixels(tmp_path / "circles" / "geo.jpg")
    assert dark_with_circles > 1.2 * dark_with_lines


#: What has the words of a figure and is none.
NO_FIGURES = [
    "",
    "a page about line_type",
    "{'line_type': []}",
    "{'Line': ['line_type']}",
    "['line_type']",
    f"print({FIGURE})",
    f"{FIGURE} # " + "x" * 20_000,
    "{[]: 'line_type'}",
    "'line_type' \x00",
    "[" * 5_000 + "'line_type'",
    "-" * 15_000 + "1 # line_type",
    "1" + "+1" * 9_000 + " # line_type",
    "1" * 10_000 + " # line_type",
]
#: Figures with something wrong in their lines.
WRONG_FIGURES = [
    figure_with(line_type=["--", 1]),
    figure_with(line_endpoint=["A (0, 0)"]),
    figure_with(line_endpoint=None),
    figure_with(line="(0, 0) -- (1, 1)"),
    figure_with(line=["(0, 0) -- (1, 1)"]),
    figure_with(line=["(0, 0)", "(0, 0) -- (1, 1)"]),
    figure_with(line=["(0, 0) -- (1, 1, 1)", "(0, 0) -- (1, 1)"]),
    figure_with(line=["(0, 0) -- (1e999, 1)", "(0, 0) -- (1, 1)"]),
    figure_with(line=["(0, 0) -- (99999999, 1)", "(0, 0) -- (1, 1)"]),
    figure_with(line=["(0, 0) -- (__import__('os'), 1)", "(0, 0) -- (1, 1)"]),
]


@pytest.mark.parametrize("text", [*NO_FIGURES, *WRONG_FIGURES])
def test_anything_else_is_no_geometry(text: str) -> None:
    assert parse_geometry(text) is None


# -- any text --------------------------------------------------------------------------------------


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fuzzed,
    st.sampled_from([(1, 1), (20, 20), (211, 97)]),
    st.sampled_from(["RGB", "L", "RGBA", "1", "P"]),
)
@example("\ud800", (20, 20), "RGB")
@example(MODEL_TEXT, (50, 4000), "RGBA")
@example(MODEL_TEXT, (20000, 50), "1")
@example(MODEL_TEXT, (300, 400), "P")
def test_any_text_can_be_drawn_and_written(
    tmp_path: Path, text: str, size: tuple[int, int], mode: str
) -> None:
    page = Image.new(mode, size, 1)
    regions = regions_of(text)
    times = pd.DataFrame({"region": [region.index for region in regions], "decode_ms": 1.0})

    paths = write_artifacts(tmp_path, page, text)
    drawn = draw_marks(page, region_boxes(regions, size, times, by_time=True))

    pictures = paths[2:]  # behind the texts
    assert all(path.stat().st_size > 0 for path in pictures)
    links = [int(number) for number in CROP_LINK.findall(result_markdown(text))]
    assert links == list(range(len(crops_in(tmp_path))))
    assert drawn.size == size
    assert drawn.mode == "RGB"


# -- what is already in a folder -------------------------------------------------------------------

TWO_CROPS = marked("image", "[[0, 0, 500, 500], [500, 500, 999, 999]]")


@pytest.fixture
def edited_output(tmp_path: Path) -> Path:
    """The folder of an output with two crops, the second of which the user changed, and with a
    picture of the user's.
    """
    folder = tmp_path / "out"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "photo.jpg").write_text("mine")
    write_artifacts(folder, small_page(), TWO_CROPS)
    (folder / "images" / "1.jpg").write_text("edited")
    return folder


def test_an_output_without_crops_takes_away_those_of_the_package_alone(edited_output: Path) -> None:
    write_artifacts(edited_output, small_page(), marked("text", "[[0, 0, 9, 9]]"))

    assert names_in(edited_output / "images") == {"photo.jpg", "1.jpg"}


def test_a_file_that_the_user_changed_is_not_replaced(edited_output: Path) -> None:
    with refused(CannotWrite):
        folder_for(edited_output, "", RESULTS)
    with refused(CannotWrite):
        write_artifacts(edited_output, small_page(), TWO_CROPS)


def test_files_that_the_package_wrote_are_replaced_with_a_word(
    edited_output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (edited_output / "images" / "1.jpg").unlink()

    assert folder_for(edited_output, "", RESULTS) == edited_output

    assert says(capsys.readouterr().err, "Replacing", "result.mmd")


def test_an_argument_of_the_command_is_not_replaced(edited_output: Path) -> None:
    argument = edited_output / "result.mmd"

    with refused(CannotWrite):
        folder_for(edited_output, "", RESULTS, arguments=[argument], overwrite=True)


def test_nothing_is_written_behind_a_link(edited_output: Path, tmp_path: Path) -> None:
    images = edited_output / "images"
    elsewhere = images.rename(tmp_path / "elsewhere")
    images.symlink_to(elsewhere)

    with refused(CannotWrite):
        folder_for(edited_output, "", RESULTS, overwrite=True)
    with refused(CannotWrite):
        write_artifacts(edited_output, small_page(), TWO_CROPS)

    assert names_in(elsewhere) == {"photo.jpg", "0.jpg", "1.jpg"}


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()

    with refused(CannotWrite):
        check_names(tmp_path, RESULTS)


def test_the_record_that_is_shown_stays_as_it_is(tmp_path: Path) -> None:
    run = make_run()
    content = run.to_json() + b"\n"
    record = write_given(tmp_path / "run.json", content)

    write_results(folder_for(tmp_path, "", RESULTS, record=record), run, record)

    assert record.read_bytes() == content


# -- the output of a record ------------------------------------------------------------------------


def test_each_row_of_a_batch_has_its_own_files(tmp_path: Path) -> None:
    run = PhaseRun.load(Path(__file__).parent / "approved" / "records" / "rows.json.gz")
    rows = [f"row-{row}" for row in range(len(run.results))]

    write_results(tmp_path, run)

    assert names_in(tmp_path) == {MANIFEST_NAME, "run.json", *rows}
    for row, result in zip(rows, run.results, strict=True):
        assert (tmp_path / row / "result_ori.mmd").read_text() == result.text
        assert (tmp_path / row / "result.mmd").read_text() == result_markdown(result.text)
        assert (tmp_path / row / "result_with_boxes.jpg").is_file()


def test_the_page_report_by_hand_never_replaces_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(asset("notebooks", "page_report.ipynb"), as_version=4)
    cells = {cell.id: cell.source for cell in notebook.cells}
    first = make_run()
    second = make_run(seed=1)

    for name, run in (("first.json", first), ("second.json", second)):
        path = run.save(tmp_path / name)
        sources = [
            cells["parameters"],
            f"record = {str(path)!r}",
            cells["setup"],
            cells["load"],
            cells["measure"],
        ]
        exec("\n".join(sources), {})

    first_record = PhaseRun.load(tmp_path / REPORT_FOLDER / "run.json")
    second_record = PhaseRun.load(tmp_path / f"{REPORT_FOLDER}-2" / "run.json")
    assert first_record.to_dict() == first.to_dict()
    assert second_record.to_dict() == second.to_dict()
