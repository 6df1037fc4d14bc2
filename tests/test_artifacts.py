"""The files that an output turns into, and the boxes drawn on its page."""

import re
from pathlib import Path

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
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.errors import CannotWrite
from ocr_phases.files import MANIFEST_NAME, REPORT_FOLDER, check_names, folder_for, write_given
from ocr_phases.record.parts import to_plain
from ocr_phases.report import result_files as artifacts
from ocr_phases.report.result_files import (
    EOS_TEXT,
    RESULTS,
    parse_geometry,
    result_markdown,
    write_artifacts,
)
from ocr_phases.show.boxes import LABEL_COLOURS, draw_marks, label_colour, place_tags, region_boxes
from ocr_phases.show.web import printable
from ocr_phases.versions import asset

LINK = re.compile(r"!\[\]\(images/(\d+)\.jpg\)")
LIMIT = "an output has at most 500 crops, and together they cover the page at most 20 times.*"
FIGURE = {
    "Line": {
        "line": ["(-5, 0) -- (5, 0)", "(0,-8.5) -- (-5,0)"],
        "line_type": ["-", "--"],
        "line_endpoint": ["A: (-5, 0)", "$B_1$: (0, -8.5)"],
    }
}


def test_pages_without_marks_give_the_first_alone():
    marked = two_page_run()
    plain = altered(marked, model={**to_plain(marked.model), "family": "deepseek-ocr"})
    assert [len(artifacts.row_images(run, 0)) for run in (marked, plain)] == [2, 1]


def crops_in(folder):
    """The pictures of an output, in order."""
    paths = sorted(folder.glob("images/*.jpg"), key=lambda path: int(path.stem))
    assert [path.stem for path in paths] == [str(number) for number in range(len(paths))]
    return [Image.open(path) for path in paths]


def test_circles_of_a_figure_are_drawn(tmp_path):
    page = Image.new("RGB", (60, 60), "white")
    circles = {"circle_center": ["O: (0, 0)", "P: (3, -2)"], "radius": [5, 2.5]}
    text = str({**FIGURE, "Circle": circles})
    parsed = parse_geometry(text)
    assert [(each.center, each.radius) for each in parsed.circles] == [((0, 0), 5), ((3, -2), 2.5)]
    dark = []
    for name, written in (("lines", str(FIGURE)), ("circles", text)):
        write_artifacts(tmp_path / name, page, written)
        drawn = Image.open(tmp_path / name / "geo.jpg").convert("L")
        dark.append(sum(drawn.histogram()[:64]))
    assert dark[1] > 1.2 * dark[0]
    for wrong in ({**circles, "radius": [5]}, {**circles, "radius": [5, -1]}):
        kept = parse_geometry(str({**FIGURE, "Circle": wrong}))
        assert (len(kept.lines), kept.circles) == (2, ())


def figure(**changes):
    return str({"Line": {**FIGURE["Line"], **changes}})


def test_golden_files_with_the_drifting_links_mended(tmp_path):
    """The vendor writes one link for the first image's two crops: the next one points wrongly."""
    vendor = CASE["result_mmd"]
    later = vendor.replace("![](images/1.jpg)\n", "![](images/2.jpg)\n")
    mended = later.replace("![](images/0.jpg)\n", "![](images/0.jpg)\n![](images/1.jpg)\n")
    assert vendor.count("![](images/") == 2 and vendor != later != mended
    page, folder = Image.open(GOLDEN / "pages" / CASE["page"]), tmp_path / "new" / "run"
    paths = write_artifacts(folder, page, CASE["model_text"])
    names = ["result.mmd", "result_ori.mmd"]
    names += ["images/0.jpg", "images/1.jpg", "images/2.jpg", "result_with_boxes.jpg"]
    assert paths == [folder / name for name in names]
    assert {path for path in folder.rglob("*") if path.is_file()} == {
        *paths,
        folder / MANIFEST_NAME,
    }
    assert paths[0].read_bytes().decode() == result_markdown(CASE["model_text"]) == mended
    assert paths[1].read_bytes().decode() == CASE["model_text"]
    crops = crops_in(folder)
    assert [list(crop.size) for crop in crops] == list(CASE["crops"].values())
    expected = page.convert("RGB").crop(CASE["boxes_px"][2])
    assert np.abs(np.asarray(crops[0], float) - np.asarray(expected)).mean() < 3  # of JPEG
    assert Image.open(folder / "result_with_boxes.jpg").size == page.size == (1240, 1754)
    texts = ["result.mmd", "result_ori.mmd"]
    written = write_artifacts(tmp_path / "text", None, CASE["model_text"])
    assert written == [tmp_path / "text" / name for name in texts]
    assert {path.name for path in (tmp_path / "text").iterdir()} == {MANIFEST_NAME, *texts}


def test_golden_boxes_are_outlined_at_their_pixels():
    page = Image.open(GOLDEN / "pages" / CASE["page"])
    regions = parse_grounding(CASE["model_text"]).regions
    drawn = draw_marks(page, [box._replace(text="") for box in region_boxes(regions, page.size)])
    colours = [label_colour(region.label) for region in regions for _ in region.boxes]
    outside = np.ones((page.height, page.width), dtype=bool)
    for (x1, y1, x2, y2), colour in zip(CASE["boxes_px"], colours, strict=True):
        outside[y1 : y2 + 1, x1 : x2 + 1] = False
        for corner in [(x1, y1), (min(x2, page.width - 1), min(y2, page.height - 1))]:
            assert drawn.getpixel(corner) == ImageColor.getrgb(colour)
    assert (np.asarray(drawn)[outside] == np.asarray(page.convert("RGB"))[outside]).all()
    (whole,) = region_boxes(
        parse_grounding(marked("text", "[[0, 0, 999, 999]]")).regions, (200, 100)
    )
    assert whole.box == (0, 0, 199, 99)  # its last pixels are on the page, and so is its tag
    assert place_tags([whole], (200, 100))[0].ground[3] <= 100


def test_tags_are_drawn_beside_each_other():
    """Two tiny boxes at the same place: the second tag must not cover the first."""
    white, drawn = Image.new("RGB", (800, 800), "white"), []
    for labels in (["title"], ["title", "table"]):
        text = "".join(marked(label, "[[400, 400, 410, 410]]") for label in labels)
        drawn.append(
            np.asarray(draw_marks(white, region_boxes(parse_grounding(text).regions, white.size)))
        )
    title, other = (ImageColor.getrgb(LABEL_COLOURS[label]) for label in ("title", "table"))
    solid = (drawn[0] == title).all(axis=2)
    solid[318:332, 318:332] = False  # the boxes themselves
    assert solid.sum() > 100 and (drawn[1][solid] == title).all()
    assert (drawn[1] == other).all(axis=2).sum() > 100


def test_labels_have_the_same_colour_in_every_process_and_fit_a_tag():
    spare = {"stamp": "#cc6677", "seal": "#19823c", "chart": "#8f8f2f", "\ud800": "#cc6677"}
    assert {label: label_colour(label) for label in spare} == spare
    assert label_colour("title") == LABEL_COLOURS["title"]
    assert printable(" a\n\tb\x00\ud800 c ") == "a b c"
    assert printable("x" * 100, longest=5) == "xxxx…"
    assert len(printable("\u202e" * 10**6 + "x")) <= 24


MARKDOWN = {
    "plain": "plain",
    f" a {EOS_TEXT} \n": "a",
    f"a {EOS_TEXT} b": f"a {EOS_TEXT} b",
    r"a \coloneqq b \eqqcolon c": "a := b =: c",
    marked("image", "[[1, 2"): "",
    marked("image", "[[5, 0, 5, 9], [0, 0, 9, 9]]"): "![](images/0.jpg)\n",
    marked("images", "[[0, 0, 9, 9]]") + "x": "x",
    "<|ref|>a phrase<|/ref|>": "<|ref|>a phrase<|/ref|>",
    2 * marked("image", "[[0, 0, 9, 9]]"): "![](images/0.jpg)\n![](images/1.jpg)\n",
}


@pytest.mark.parametrize("text", MARKDOWN)
def test_markdown(text):
    assert result_markdown(text) == MARKDOWN[text]


@pytest.mark.parametrize("size", [(1, 1), (20, 20), (2000, 3), (70_000, 2)])
def test_small_boxes_on_small_pages_still_have_their_crop(size, tmp_path):
    text = marked("image", "[[998, 998, 999, 999], [3, 3, 4, 4], [7, 7, 7, 9], [0, 0, 999, 999]]")
    write_artifacts(tmp_path, Image.new("RGBA", size), text)
    crops = crops_in(tmp_path)
    assert len(crops) == len(LINK.findall(result_markdown(text))) == 3
    assert all(min(crop.size) >= 1 for crop in crops)
    assert crops[2].width == min(size[0], 65_500)  # the longest of a JPEG
    assert size[0] > 65_500 or crops[2].size == size


@pytest.mark.parametrize("regions", [1, 50])
def test_crops_are_limited_and_the_markdown_says_so(regions, tmp_path, monkeypatch):
    assert artifacts.MAX_CROPS == 500
    monkeypatch.setattr(artifacts, "MAX_CROPS", 20)
    boxes = [f"[{index}, 10, {index + 90}, 60]" for index in range(50)]
    lists = [", ".join(boxes)] if regions == 1 else boxes
    text = "".join(marked("image", f"[{boxes}]") for boxes in lists) + "end"
    paths = write_artifacts(tmp_path, Image.new("RGB", (40, 40)), text)
    assert len(list(tmp_path.glob("images/*.jpg"))) == 20
    written = paths[0].read_text()
    assert LINK.findall(written) == [str(number) for number in range(20)]
    assert written.endswith(f"end\n\n*30 more pictures have no file: {LIMIT.replace('500', '20')}")


def test_geometry_is_read_and_drawn_on_its_axes(tmp_path):
    solid = artifacts.GeometryLine((-5.0, 0.0), (5.0, 0.0), dashed=False)
    dashed = artifacts.GeometryLine((0.0, -8.5), (-5.0, 0.0), dashed=True)
    endpoints = (("A", (-5.0, 0.0)), ("$B_1$", (0.0, -8.5)))
    geometry = artifacts.Geometry(lines=(solid, dashed), endpoints=endpoints)
    assert parse_geometry(f"{FIGURE}{EOS_TEXT}") == geometry
    paths = write_artifacts(tmp_path, Image.new("RGB", (60, 60), "white"), str(FIGURE))
    names = ["result.mmd", "result_ori.mmd", "result_with_boxes.jpg", "geo.jpg"]
    assert [path.name for path in paths] == names
    drawn = Image.open(paths[-1])
    assert drawn.width == drawn.height


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a page about line_type",
            "{'line_type': []}",
            "{'Line': ['line_type']}",
            "['line_type']",
        ),
        *(
            f"print({FIGURE})",
            f"{FIGURE} # " + "x" * 20_000,
            "{[]: 'line_type'}",
            "'line_type' \x00",
        ),
        *("[" * 5_000 + "'line_type'", "-" * 15_000 + "1 # line_type"),
        *("1" + "+1" * 9_000 + " # line_type", "1" * 10_000 + " # line_type"),
        *(
            figure(line_type=["--", 1]),
            figure(line_endpoint=["A (0, 0)"]),
            figure(line_endpoint=None),
        ),
        *(figure(line="(0, 0) -- (1, 1)"), figure(line=["(0, 0) -- (1, 1)"])),
        figure(line=["(0, 0)", "(0, 0) -- (1, 1)"]),
        figure(line=["(0, 0) -- (1, 1, 1)", "(0, 0) -- (1, 1)"]),
        figure(line=["(0, 0) -- (1e999, 1)", "(0, 0) -- (1, 1)"]),
        figure(line=["(0, 0) -- (99999999, 1)", "(0, 0) -- (1, 1)"]),
        figure(line=["(0, 0) -- (__import__('os'), 1)", "(0, 0) -- (1, 1)"]),
    ],
)
def test_anything_else_is_no_geometry(text):
    assert parse_geometry(text) is None


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fuzzed,
    st.sampled_from([(1, 1), (20, 20), (211, 97)]),
    st.sampled_from(["RGB", "L", "RGBA", "1", "P"]),
)
@example("\ud800", (20, 20), "RGB")
@example(CASE["model_text"], (50, 4000), "RGBA")
@example(CASE["model_text"], (20000, 50), "1")
@example(CASE["model_text"], (300, 400), "P")
def test_any_text_can_be_drawn_and_written(tmp_path, text, size, mode):
    page, regions = Image.new(mode, size, 1), parse_grounding(text).regions
    paths = write_artifacts(tmp_path, page, text)
    assert all(path.stat().st_size > 0 for path in paths[2:])  # behind the texts
    links = [int(number) for number in LINK.findall(result_markdown(text))]
    assert links == list(range(len(crops_in(tmp_path))))
    times = pd.DataFrame({"region": [region.index for region in regions], "decode_ms": 1.0})
    drawn = draw_marks(page, region_boxes(regions, size, times, by_time=True))
    assert (drawn.size, drawn.mode) == (size, "RGB")


def test_only_what_the_package_wrote_is_replaced_or_goes(tmp_path, capsys):
    crops = marked("image", "[[0, 0, 500, 500], [500, 500, 999, 999]]")
    page, run, out = Image.new("RGB", (40, 40)), make_run(), tmp_path / "out"
    images = out / "images"
    images.mkdir(parents=True)
    (images / "photo.jpg").write_text("mine")
    write_artifacts(out, page, crops)
    (images / "1.jpg").write_text("edited")
    write_artifacts(out, page, marked("text", "[[0, 0, 9, 9]]"))
    assert {path.name for path in images.iterdir()} == {"photo.jpg", "1.jpg"}
    with refused(CannotWrite):
        folder_for(out, "", RESULTS)
    with refused(CannotWrite):
        write_artifacts(out, page, crops)
    (images / "1.jpg").unlink()
    assert folder_for(out, "", RESULTS) == out
    assert says(capsys.readouterr().err, "Replacing", "result.mmd")
    with refused(CannotWrite):
        folder_for(out, "", RESULTS, arguments=[out / "result.mmd"], overwrite=True)
    images.rename(tmp_path / "elsewhere")
    images.symlink_to(tmp_path / "elsewhere")
    with refused(CannotWrite):
        folder_for(out, "", RESULTS, overwrite=True)
    with refused(CannotWrite):
        write_artifacts(out, page, crops)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["photo.jpg"]
    (tmp_path / "report.html").mkdir()
    with refused(CannotWrite):
        check_names(tmp_path, RESULTS)
    (tmp_path / "report.html").rmdir()
    record = write_given(tmp_path / "run.json", run.to_json() + b"\n")
    artifacts.write_results(folder_for(tmp_path, "", RESULTS, record=record), run, record)
    assert record.read_bytes() == run.to_json() + b"\n"  # what is shown stays as it is


def test_each_row_of_a_batch_has_its_own_files(tmp_path):
    run = PhaseRun.load(Path(__file__).parent / "approved" / "records" / "rows.json.gz")
    artifacts.write_results(tmp_path, run)
    assert {path.name for path in tmp_path.iterdir()} == {
        MANIFEST_NAME,
        "run.json",
        *(f"row-{row}" for row in range(len(run.results))),
    }
    for row, result in enumerate(run.results):
        folder = tmp_path / f"row-{row}"
        assert (folder / "result_ori.mmd").read_text() == result.text
        assert (folder / "result.mmd").read_text() == result_markdown(result.text)
        assert (folder / "result_with_boxes.jpg").is_file()


def test_the_page_report_by_hand_never_replaces_a_record(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(asset("notebooks", "page_report.ipynb"), as_version=4)
    cells = {cell.id: cell.source for cell in notebook.cells}
    runs = [make_run(), make_run(seed=1)]
    paths = [run.save(tmp_path / f"{number}.json") for number, run in enumerate(runs)]
    for path in paths:
        sources = [cells["parameters"], f"record = {str(path)!r}"]
        sources += [cells[name] for name in ("setup", "load", "measure")]
        exec("\n".join(sources), {})
    kept = [
        PhaseRun.load(Path(folder, "run.json")) for folder in (REPORT_FOLDER, f"{REPORT_FOLDER}-2")
    ]
    assert [run.to_dict() for run in kept] == [run.to_dict() for run in runs]
