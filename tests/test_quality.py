"""Quality: each measure by hand and against jiwer, and every form of a truth."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
from conftest import PAGES
from example_run import make_run
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from ocr_phases import PhaseRun
from ocr_phases.analyse.grounding import intersection_over_union, match_boxes, parse_grounding
from ocr_phases.analyse.quality import (
    QUALITY_COLUMNS,
    check_for_pages,
    find_truth,
    load_truth,
    quality_table,
    text_measures,
)
from ocr_phases.analyse.text import plain_text
from ocr_phases.schema import TrueRegion, Truth

WORDS = st.lists(st.text(alphabet="abcdeäß1", min_size=1, max_size=4), min_size=1, max_size=12).map(" ".join)


@given(WORDS, WORDS)
def test_error_rates_are_jiwers(written: str, true: str) -> None:
    measures = text_measures(written, true)
    assert measures["cer"][0] == pytest.approx(jiwer.cer(true, written))
    assert measures["wer"][0] == pytest.approx(jiwer.wer(true, written))
    assert 0.0 <= measures["edit_distance"][0] <= 1.0
    assert (measures["edit_distance"][0] == 0.0) == (written == true)


def test_text_measures_by_hand() -> None:
    assert text_measures("kitten", "sitting") == {
        "edit_distance": (3 / 7, 7),
        "cer": (3 / 7, 7),
        "wer": (1.0, 1),
    }
    assert text_measures("", "a b") == {"edit_distance": (1.0, 3), "cer": (1.0, 3), "wer": (1.0, 2)}
    assert text_measures("a b c d", "a b")["wer"] == (1.0, 2)


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("# Title\n\nSome *text* with **bo**ld and `code`.", "Title Some text with bold and code."),
        ("- one\n- two\n\n1. three\n2) four", "one two 1. three 2) four"),
        ("2024. In that year", "2024. In that year"),
        ("[1]: Smith 2020", "[1]: Smith 2020"),
        ("<table><tr><td>1. Apples</td><td>&lt;b&gt;</td></tr></table>", "1. Apples <b>"),
        ("x<sup>2</sup> is x²", "x2 is x2"),
        ("| a | b |\n| --- | --- |\n| 1 | 2 |", "a b 1 2"),
        ("<table><tr><td>a&amp;b</td><td>2</td></tr></table>", "a&b 2"),
        ("before <table><tr><td>a\n\nb</td></tr></table> after", "before a b after"),
        ("a [link](http://x.y) and ![picture](z.png)", "a link and"),
        ("\ufb01ne\u00a0 \uff21\n\nx", "fine A x"),
        (r"\(x^2\) and $y$ \[z\]", "x^2 and y z"),
        ("$$a+b$$ from $5 to $10", "a+b from $5 to $10"),
        ("a < b & c > d &amp; e", "a < b & c > d & e"),
        ("<sub>2</sub> H<b>2</b>O", "2 H2O"),
        ("```\ncode block\n```", "code block"),
        ("one\ntwo  \nthree", "one two three"),
        ("• one\n  ▪ two • three", "one two • three"),
        ("", ""),
    ],
)
def test_markup_white_space_and_unicode_do_not_count(markdown: str, text: str) -> None:
    assert plain_text(markdown) == text


@given(st.text(max_size=200))
def test_any_text_becomes_plain_text(text: str) -> None:
    plain = plain_text(text)
    assert plain == " ".join(plain.split())


def test_marks_of_regions_and_pages_do_not_count() -> None:
    box = "<|det|>[[1, 2, 3, 4]]<|/det|>"
    text = f"<|ref|>title<|/ref|>{box}\n# A b\n\n<|ref|>text<|/ref|>{box}\nc"
    assert plain_text(parse_grounding(text).without_marks(text)) == "A b c"
    short = "<PAGE><|det|>title [1, 2, 3, 4]<|/det|>A<PAGE><|det|>text [1, 2, 3, 4]<|/det|>b"
    assert plain_text(parse_grounding(short, "unlimited-ocr").without_marks(short)) == "A b"
    broken = "<|ref|>title<|/ref|>A"
    assert "A" in plain_text(parse_grounding(broken).without_marks(broken))


def table(*rows: str) -> str:
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


@pytest.mark.parametrize(
    ("written", "similarity"),
    [
        (table("ab", "cd"), 1.0),
        (table("ab", "cx"), 1 - 1 / 7),  # one cell's text of seven nodes
        (table("ab"), 1 - 3 / 7),  # a row of two cells is missing
        (table("ab", "cd").replace("<td>a", '<td colspan="2">a'), 1 - 1 / 7),
        ("no table", 0.0),
        ("| a | b |\n| --- | --- |\n| **c** | $d$ |", 1.0),
        ("<table></table>", 1 - 6 / 7),
    ],
)
def test_tables_are_compared_as_trees(written: str, similarity: float) -> None:
    found = quality_of(written, Truth(table("ab", "cd")))
    assert found["table_similarity", ""] == pytest.approx(similarity)


def test_a_large_table_is_compared_in_seconds() -> None:
    rows = [[f"cell {row} {column}" for column in range(20)] for row in range(70)]
    true = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    other = true.replace("cell 3 ", "c 3 ")
    found = quality_of(f"<table>{other}</table>", Truth(f"<table>{true}</table>"))
    assert found["table_similarity", ""] == pytest.approx(1 - 20 / 1471)
    endless = quality_of("<table>" * 8_000, Truth("a"))
    assert endless["edit_distance", ""] == 1.0


def test_every_box_of_a_region_counts() -> None:
    truth = Truth(
        "a", tuple(TrueRegion("text", box, "a") for box in ((0, 0, 100, 100), (500, 500, 600, 600)))
    )
    text = "<|ref|>text<|/ref|><|det|>[[0, 0, 100, 100], [500, 500, 600, 600]]<|/det|>a"
    assert quality_of(text, truth)["box_recall", ""] == 1.0


def quality_of(written: str, truth: Truth) -> dict[tuple[str, str], float]:
    found = quality_table(make_run(text=written), truth)
    assert tuple(found.columns) == QUALITY_COLUMNS
    return {(line.measure, line.label): line.value for line in found.itertuples()}


def test_boxes_by_hand() -> None:
    others = np.array([(5, 0, 15, 10), (20, 20, 30, 30)])
    assert intersection_over_union((0, 0, 10, 10), others).tolist() == [50 / 150, 0.0]
    assert intersection_over_union((1, 1, 1, 1), np.array([(1, 1, 1, 1)])).tolist() == [0.0]
    # The best pair first; a box is in one pair only.
    ours = [[(0, 0, 10, 10)], [(0, 0, 10, 9)], []]
    assert match_boxes(ours, [[(0, 0, 10, 10)], [(50, 50, 60, 60)]]) == [(0, 0, 1.0)]
    # Of a loop the first region is the page's.
    assert match_boxes([ours[0]] * 3, [ours[0]]) == [(0, 0, 1.0)]


def test_regions_order_and_labels_are_measured(tmp_path: Path) -> None:
    boxes = {"title": (10, 10, 500, 60), "text": (10, 100, 500, 300), "image": (10, 400, 500, 600)}
    page = {"size": [999, 999], "regions": [{"label": k, "box": v, "text": k} for k, v in boxes.items()]}
    (tmp_path / "page.json").write_text(json.dumps(page))
    truth = load_truth(tmp_path, "page.png")
    marks = "".join(
        f"<|ref|>{label}<|/ref|><|det|>[[{', '.join(map(str, boxes[label]))}]]<|/det|>{label}\n\n"
        for label in ("text", "title")
    )
    found = quality_of(marks, truth)
    assert found["box_recall", ""] == pytest.approx(2 / 3)
    assert (found["box_recall", "image"], found["box_recall", "title"], found["box_iou", ""]) == (
        0.0,
        1.0,
        1.0,
    )
    assert found["order_distance", ""] == 1.0
    assert found["cer", ""] > 0


def omnidocbench(**changes: Any) -> list[dict[str, Any]]:
    def block(category: str, order: int | None, **content: Any) -> dict[str, Any]:
        poly = [100, 100, 300, 100, 300, 200, 100, 200]
        return {"category_type": category, "poly": poly, "ignore": False, "order": order, **content}

    blocks = [
        block("text_block", 2, text="Second"),
        block("title", 1, text="First"),
        block("table", 3, html=table("ab"), latex="x"),
        block("abandon", None, text="never"),
        {**block("text_block", 4, text="ignored"), "ignore": True},
        block("equation_isolated", 5, latex="$$x^2$$"),
    ]
    info = {"image_path": "images/one.png", "width": 1000, "height": 2000, "page_no": 0}
    return [{"layout_dets": blocks, "page_info": info, **changes}]


def test_an_omnidocbench_file_is_read_by_page_and_order(tmp_path: Path) -> None:
    path = tmp_path / "OmniDocBench.json"
    path.write_text(json.dumps(omnidocbench()))
    truth = load_truth(path, "/elsewhere/one.png")
    assert [region.label for region in truth.regions] == ["title", "text", "table", "equation"]
    assert plain_text(truth.text) == "First Second a b x^2"
    header = "<|ref|>header<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>\nTop of the page\n\n"
    rest = "<|ref|>text<|/ref|><|det|>[[1, 20, 30, 40]]<|/det|>\nFirst Second a b x^2"
    assert make_run(text=header + rest).quality(truth)["value"].iloc[0] == 0.0
    assert truth.regions[0].box == (100, 50, 300, 100)
    with refused():
        load_truth(path, "two.png")
    assert make_run(text="First Second a b x^2").quality(load_truth(path)).iloc[0]["value"] == 0.0


ODD = json.dumps(
    [
        {
            "page_info": {"image_path": "page.png", "width": 9, "height": 0},
            "layout_dets": [{"category_type": "title", "poly": [1, 2, 3, 4], "text": "a"}],
        }
    ]
)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        ODD,
        '{"regions": [{"label": "a", "box": [1, 2, 3, 4], "text": 5}]}',
        "[1]",
        '{"size": 3}',
        "{",
        '[{"page_info": {}}]',
        '{"regions": [{"box": [1]}]}',
    ],
)
def test_a_truth_of_another_shape_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with refused():
        load_truth(tmp_path / "x.json", "page.png")


def test_what_has_no_quality_says_so(tmp_path: Path) -> None:
    with refused():
        make_run(text="a").quality(Truth("", file="page.txt"))
    with refused():
        run = make_run(text="a")
        without = dataclasses.replace(run, results=[{**run.results[0], "text": None}])
        without.quality(Truth("a"))
    with refused():
        make_run(text="a").quality(tmp_path / "missing.md")
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\x00")
    with refused():
        load_truth(tmp_path / "x.txt")


def test_a_truth_is_found_in_a_folder(tmp_path: Path) -> None:
    assert find_truth("a.png", tmp_path) is None
    for name in ("a.txt", "a.md", "scan-3.txt"):
        (tmp_path / name).write_text(f"# {name}")
    assert find_truth(tmp_path / "a.png", tmp_path) == tmp_path / "a.md"
    assert find_truth("scan.pdf#3", tmp_path) == tmp_path / "scan-3.txt"
    assert load_truth(tmp_path / "a.md").text == "# a.md"


def test_the_truth_of_one_page_is_for_one_page(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("a")
    (tmp_path / "page.json").write_text('{"regions": []}')
    (tmp_path / "pages.json").write_text(json.dumps(omnidocbench()))
    for name in ("a.md", "page.json"):
        check_for_pages(tmp_path / name, 1)
        with refused():
            check_for_pages(tmp_path / name, 2)
    check_for_pages(tmp_path / "pages.json", 2)
    check_for_pages(tmp_path, 2)


def test_the_built_in_model_reads_its_sample(tiny_session: Any) -> None:
    run: PhaseRun = tiny_session.run_inference(PAGES / "receipt.png", repeats=1, warmup=0, ceilings=False)
    found = run.quality(PAGES / "receipt.json").set_index(["measure", "label"])["value"]
    assert found["cer", ""] < 0.02
    assert found["table_similarity", ""] > 0.95
    assert found["box_recall", ""] == 1.0
    assert found["box_iou", ""] > 0.9


@pytest.mark.parametrize(
    ("written", "similarity"),
    [
        ("abc", 1.0),
        ("bc", 2 / 3),  # the first is missing
        ("ac", 2 / 3),
        ("xabc", 1.0),  # one too many
        ("xbc", 1 - 3.8 / 7 / 3),  # one in place of another: its rows and columns are right
        ("", 0.0),
    ],
)
def test_a_missing_table_spoils_no_other(written: str, similarity: float) -> None:
    tables = {
        name: table(f"{name}1", f"{name}2").replace("<td>", f"<td>{name * 9}")
        for name in ("a", "b", "c", "x")
    }
    found = quality_of("\n\n".join(map(tables.get, written)), Truth("\n\n".join(map(tables.get, "abc"))))
    assert found["table_similarity", ""] == pytest.approx(similarity)
