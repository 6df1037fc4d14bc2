"""Quality: each measure by hand and against jiwer, and every form of a truth."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
from example_run import altered, make_run
from grounding_texts import marked
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from ocr_phases.analyse import grounding
from ocr_phases.analyse.grounding import grid_box, match_boxes, parse_grounding
from ocr_phases.analyse.quality import QUALITY_COLUMNS, check_for_pages, load_truth, quality_table
from ocr_phases.analyse.text import plain_text, text_measures
from ocr_phases.schema import Truth

WORDS = st.lists(st.text(alphabet="abcdeäß1", min_size=1, max_size=4), min_size=1, max_size=12).map(" ".join)


@given(WORDS, WORDS)
def test_error_rates_are_jiwers(written: str, true: str) -> None:
    (edit, _), (cer, characters), (wer, words) = text_measures(written, true).values()
    assert (cer, wer) == (pytest.approx(jiwer.cer(true, written)), pytest.approx(jiwer.wer(true, written)))
    assert edit == pytest.approx(cer * len(true) / max(len(written), len(true)))
    assert (characters, words) == (len(true), len(true.split()))


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


def test_marks_of_regions_and_pages_do_not_count() -> None:
    box = "<|det|>[[1, 2, 3, 4]]<|/det|>"
    text = f"<|ref|>title<|/ref|>{box}\n# A b\n\n<|ref|>text<|/ref|>{box}\nc"
    assert plain_text(parse_grounding(text).without_marks(text)) == "A b c"
    short = "<PAGE><|det|>title [1, 2, 3, 4]<|/det|>A<PAGE><|det|>text [1, 2, 3, 4]<|/det|>b"
    assert plain_text(parse_grounding(short, "unlimited-ocr").without_marks(short)) == "A b"
    broken = "<|ref|>title<|/ref|>A"
    assert "A" in plain_text(parse_grounding(broken).without_marks(broken))


def quality_of(written: str, truth: Truth) -> dict[tuple[str, str], float]:
    found = quality_table(make_run(text=written), truth)
    assert tuple(found.columns) == QUALITY_COLUMNS
    return {(line.measure, line.label): line.value for line in found.itertuples()}


def table(*rows: str) -> str:
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


A, B, C, X = (table(f"{name}1", f"{name}2").replace("<td>", f"<td>{name * 9}") for name in "abcx")

MANY = [table(f"{number}", f"{number + 1}") for number in range(150)]


@pytest.mark.parametrize(
    ("true", "written", "similarity"),
    [
        (table("ab", "cd"), table("ab", "cd"), 1.0),
        (table("ab", "cd"), table("ab", "cx"), 1 - 1 / 7),  # one cell's text of seven nodes
        (table("ab", "cd"), table("ab"), 1 - 3 / 7),  # a row of two cells is missing
        (table("ab", "cd"), table("ab", "cd").replace("<td>a", '<td colspan="2">a'), 1 - 1 / 7),
        (table("ab", "cd"), "no table", 0.0),
        (table("ab", "cd"), "| a | b |\n| --- | --- |\n| **c** | $d$ |", 1.0),
        (table("ab", "cd"), "<table></table>", 1 - 6 / 7),
        (table(["a b", "c"]), "<TABLE><TH>a<br>b<th>c", 0.0),  # it does not end
        (table(["a b", "c"]), "<TABLE><TH>a<br>b<th>c</TABLE>", 1.0),
        # One that is missing or too many spoils no other.
        (A + B + C, B + C, 2 / 3),
        (A + B + C, A + C, 2 / 3),
        (A + B + C, X + A + B + C, 1.0),
        (A + B + C, X + B + C, 1 - 3.8 / 7 / 3),  # its rows and columns are right
        (A * 200, A * 150, 3 / 4),
        ("".join(MANY), "".join(MANY[:3] + MANY[4:]), 149 / 150),
    ],
)
def test_tables_are_compared_as_trees(true: str, written: str, similarity: float) -> None:
    assert quality_of(written, Truth(true))["table_similarity", ""] == pytest.approx(similarity)


COORDINATES = st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(20, 60)] * 2)
SIDE = st.lists(st.lists(COORDINATES, max_size=2), max_size=8)


def overlap(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    return float(grounding.intersection_over_union(one, np.array([other]))[0])


@given(SIDE, SIDE)
def test_the_best_boxes_meet_first(ours: list[list[Any]], theirs: list[list[Any]]) -> None:
    ours, theirs = ([[grid_box(box) for box in boxes] for boxes in side] for side in (ours, theirs))
    left = {
        (mine, other): max((overlap(*pair) for pair in product(ours[mine], theirs[other])), default=0.0)
        for mine, other in product(range(len(ours)), range(len(theirs)))
    }
    expected = []
    while left and max(left.values()) >= grounding.MATCHED_IOU:
        mine, other = max(left, key=lambda pair: left[pair])
        expected.append((mine, other, left[mine, other]))
        left = {pair: overlap for pair, overlap in left.items() if mine != pair[0] and other != pair[1]}
    assert match_boxes(ours, theirs) == expected


def test_regions_order_and_labels_are_measured(tmp_path: Path) -> None:
    boxes = {"title": (10, 10, 500, 60), "text": (10, 100, 500, 300), "image": (10, 400, 500, 600)}
    page = {"size": [999, 999], "regions": [{"label": k, "box": v, "text": k} for k, v in boxes.items()]}
    (tmp_path / "page.json").write_text(json.dumps(page))
    truth = load_truth(tmp_path, "page.png")
    written = "".join(marked(label, [list(boxes[label])]) + label for label in ("text", "title"))
    found = quality_of(written, truth)
    assert found["box_recall", ""] == pytest.approx(2 / 3)
    assert (found["box_recall", "image"], found["box_recall", "title"]) == (0.0, 1.0)
    assert (found["box_iou", ""], found["order_distance", ""]) == (1.0, 1.0)
    assert found["cer", ""] > 0
    every = marked("text", [list(box) for box in boxes.values()]) + "a"  # all boxes of a region count
    assert quality_of(every, truth)["box_recall", ""] == 1.0


def omnidocbench() -> list[dict[str, Any]]:
    blocks = [
        {"category_type": "text_block", "order": 2, "text": "Second"},
        {"category_type": "title", "order": 1, "text": "First"},
        {"category_type": "table", "order": 3, "html": table("ab"), "latex": "x"},
        {"category_type": "abandon", "order": None, "text": "never"},
        {"category_type": "text_block", "order": 4, "text": "ignored", "ignore": True},
        {"category_type": "equation_isolated", "order": 5, "latex": "$$x^2$$"},
    ]
    usual = {"poly": [100, 100, 300, 100, 300, 200, 100, 200], "ignore": False}
    info = {"image_path": "images/one.png", "width": 1000, "height": 2000, "page_no": 0}
    return [{"layout_dets": [usual | block for block in blocks], "page_info": info}]


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
    check_for_pages(path, 2)
    assert make_run(text="First Second a b x^2").quality(load_truth(path)).iloc[0]["value"] == 0.0


ODD = {"page_info": {"image_path": "page.png", "width": 9, "height": 0}, "layout_dets": []}
ODD["layout_dets"] = [{"category_type": "title", "poly": [1, 2, 3, 4], "text": "a"}]
SHAPES = ["[" * 100_000, json.dumps([ODD]), '{"regions": [{"label": "a", "box": [1, 2, 3, 4], "text": 5}]}']
SHAPES += ["[1]", '{"size": 3}', "{", '[{"page_info": {}}]', '{"regions": [{"box": [1]}]}']


def test_what_is_no_truth_or_has_no_quality_is_one_sentence(tmp_path: Path) -> None:
    for content in SHAPES:
        (tmp_path / "x.json").write_text(content)
        with refused():
            load_truth(tmp_path / "x.json", "page.png")
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "page.json").write_text('{"regions": []}')
    run = make_run(text="a")
    for asked in (
        lambda: run.quality(Truth("", file="page.txt")),
        lambda: altered(run, results=[run.result | {"text": None}]).quality(Truth("a")),
        lambda: run.quality(tmp_path / "missing.md"),
        lambda: load_truth(tmp_path / "x.txt"),
        *(lambda suffix=suffix: check_for_pages(tmp_path / f"page.{suffix}", 2) for suffix in ("json", "md")),
    ):
        with refused():
            asked()
