"""Reading regions out of model text, what each one cost, and how that is drawn."""

import time
from collections.abc import Iterable
from itertools import pairwise

import pandas as pd
import pytest
from conftest import GOLDEN
from grounding_texts import fuzzed, marked
from hypothesis import given, settings
from hypothesis import strategies as st

from ocr_phases.analyse.grounding import PREAMBLE, parse_grounding, token_regions
from ocr_phases.analyse.regions import REGION_COLUMNS, TYPE_COLUMNS, region_table, type_table

Box = tuple[int, int, int, int]

#: The corners of the whole page.
WHOLE_PAGE = (0, 0, 999, 999)
MANY_NINES = "9" * 9_000
MANY_ZEROS = "0" * 9_000


def token_table(texts: list[str], ms: list[float], regions: list[int]) -> pd.DataFrame:
    """The columns of a record's token table that the costs of regions are made of."""
    return pd.DataFrame({"region": regions, "text": texts, "device_ms": ms})


def test_the_regions_of_a_real_page_are_read() -> None:
    text = (GOLDEN / "real_model_output.txt").read_text(encoding="utf-8")
    grounding = parse_grounding(text)
    found = [(region.label, *region.boxes) for region in grounding.regions]
    assert found == [
        ("text", (55, 43, 130, 60)),
        ("image", (70, 93, 450, 360)),
        ("text", (460, 95, 896, 132)),
        ("equation", (460, 217, 550, 256)),
        ("table", (57, 450, 360, 500)),
        ("text", (55, 515, 110, 534)),
        ("text", (230, 515, 293, 534)),
    ]
    texts = [region.text for region in grounding.regions]
    assert texts[0] == "2. način:"
    assert texts[1] == ""
    assert texts[2] == "Prvi dan trčanja Tomislav može izabrati na 7 različitih načina."
    assert texts[3] == r"\[ \frac{7 \cdot 4}{2} = 14. \]"
    assert texts[6] == "B) 108"
    assert grounding.dropped == 0
    assert not any(region.repaired for region in grounding.regions)


@pytest.mark.parametrize(
    ("listing", "boxes"),
    [
        ("[[1, 2, 3, 4]]", [(1, 2, 3, 4)]),
        (" [ [1,2,3,4] ,[ 005 ,6,7,8 ] ] ", [(1, 2, 3, 4), (5, 6, 7, 8)]),
        ("[[-0, 0, 0, 0]]", [(0, 0, 0, 0)]),
        ("[[0, 1, 1, 1]]", [(0, 1, 1, 1)]),
        ("[[0, 0, 1, 1]]", [(0, 0, 1, 1)]),
    ],
)
def test_a_list_of_boxes_as_the_model_was_taught_it_is_read_as_it_stands(
    listing: str, boxes: list[Box]
) -> None:
    assert read_boxes(listing) == (boxes, 0)
    assert not is_repaired(listing)


@pytest.mark.parametrize(
    ("listing", "boxes"),
    [
        # Corners beyond the page, and in the wrong order.
        ("[[-3, 2, 1000, 4]]", [(0, 2, 999, 4)]),
        ("[[30, 40, 10, 20]]", [(10, 20, 30, 40)]),
        (f"[[-{MANY_NINES}, 0, {MANY_NINES}, 999]]", [WHOLE_PAGE]),
        # Whole numbers that are written as decimals.
        ("[[120.0, 250.0, 500.0, 310.0]]", [(120, 250, 500, 310)]),
        ("[[120, 250.000, 500, 310]]", [(120, 250, 500, 310)]),
        ("[[500.0, -1.0, 120.0, 2000.0]]", [(120, 0, 500, 999)]),
        (f"[[-{MANY_NINES}.0, 0, {MANY_NINES}.0, 999]]", [WHOLE_PAGE]),
        ("[[0.0, 0.0, 1.0, 1.0]]", [(0, 0, 1, 1)]),
        # Without the outer brackets.
        ("[10, 20, 30, 40]", [(10, 20, 30, 40)]),
        (" [10,20 , 30,40] ", [(10, 20, 30, 40)]),
        ("[1, 2, 3, 4], [5, 6, 7, 8]", [(1, 2, 3, 4), (5, 6, 7, 8)]),
        ("[10.0, 20.0, 30.0, 40.0]", [(10, 20, 30, 40)]),
        # Shares of the page instead of thousandths.
        ("[0.1, 0.2, 0.5, 0.25]", [(100, 200, 500, 250)]),
        ("[[0.1, 0.2, 0.5, 0.25]]", [(100, 200, 500, 250)]),
        ("[[0, 0.0, 1, 0.5]]", [(0, 0, 999, 500)]),
        ("[[0.75, 1.0, 0.25, 0.0]]", [(250, 0, 749, 999)]),
        (f"[[0.{MANY_ZEROS}1, 0, 0.{MANY_NINES}, 1]]", [WHOLE_PAGE]),
        ("[[0.0, 0.0, 1.0, 1.0], [0.5, 0, 1, 1]]", [WHOLE_PAGE, (500, 0, 999, 999)]),
        ("[[0, 0, 1, 1], [0.5, 0, 1, 1]]", [(0, 0, 1, 1), (500, 0, 999, 999)]),
    ],
)
def test_a_list_of_boxes_in_another_form_is_repaired_and_says_so(
    listing: str, boxes: list[Box]
) -> None:
    assert read_boxes(listing) == (boxes, 0)
    assert is_repaired(listing)


@pytest.mark.parametrize(
    ("listing", "boxes", "dropped", "repaired"),
    [
        (
            "[[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2.5, 3, 4], []]",
            [(1, 2, 3, 4)],
            4,
            False,
        ),
        ("[1, 2, 3, 4], [5, 6, 7]", [(1, 2, 3, 4)], 1, True),
        ("[[0.5, 0, 1, 1], [0.5, 0, 1, 7]]", [(500, 0, 999, 999)], 1, True),
        ("[[10.0, 20, 30, 40], [10.5, 20, 30, 40]]", [(10, 20, 30, 40)], 1, True),
        ("[1, 2, 3]", [], 1, False),
    ],
)
def test_a_box_that_cannot_be_read_is_counted_and_spoils_no_other(
    listing: str, boxes: list[Box], dropped: int, repaired: bool
) -> None:
    assert read_boxes(listing) == (boxes, dropped)
    assert is_repaired(listing) == repaired


def read_boxes(listing: str) -> tuple[list[Box], int]:
    """The boxes of a region with this list, and how many were dropped."""
    grounding = parse_grounding(marked("text", listing))
    (region,) = grounding.regions
    return list(region.boxes), grounding.dropped


def is_repaired(listing: str) -> bool:
    """Whether a region with this list says that its boxes were repaired."""
    (region,) = parse_grounding(marked("text", listing)).regions
    return region.repaired


#: What stands where a list of boxes should.
NO_LISTS = [
    "[[1, 2, 3, x]]",
    "[[1, 2, 3, ٤]]",
    "[[1_0, 2, 3, 4]]",
    "[[1, 2, 3",
    "1, 2, 3, 4",
    "[[1, 2, 3, 4],]",
    "[1, 2, 3, 4],",
    "[1, 2, 3, 4, 5, 6, 7, 8]",
    "[1, 2, 3, 4]]",
    "[1, 2, [3, 4]]",
    "[[0.5, 0.6, 0.7, 1.5]]",
    "[[0.5, 0.6, 70, 80]]",
    "[[-0.5, 0, 0.7, 0.8]]",
    "[[10.5, 20, 30, 40]]",
    "[[1e2, 2, 3, 4]]",
    "[[.5, 0, 1, 1]]",
    "[[1., 2, 3, 4]]",
    "[[1.0.0, 2, 3, 4]]",
    "[[nan, 0, 0, 0]]",
    "[[inf, 0, 0, 0]]",
    "[[0x1, 2, 3, 4]]",
    "[[٠.٥, 0, 1, 1]]",
    "[[1, 2, 3, 4] [5, 6, 7, 8]]",
    "[[[1, 2, 3, 4]]]",
    "[]",
    "[",
    "",
    "__import__('os').system('true')",
]


@pytest.mark.parametrize("listing", NO_LISTS)
def test_what_is_no_list_of_boxes_gives_a_region_without_one(listing: str) -> None:
    assert read_boxes(listing) == ([], 1)
    assert not is_repaired(listing)


@pytest.mark.parametrize(
    ("listing", "boxes", "repaired", "dropped"),
    [
        ("[1, 2, 30, 40]", [(1, 2, 30, 40)], False, 0),
        ("[[1, 2, 30, 40]]", [(1, 2, 30, 40)], False, 0),
        ("[ [1, 2, 30, 40] ]", [(1, 2, 30, 40)], False, 0),
        ("[1, 2, 30, 40], [5, 6, 7, 8]", [(1, 2, 30, 40), (5, 6, 7, 8)], False, 0),
        ("[120.0, 250.0, 500.0, 310.0]", [(120, 250, 500, 310)], True, 0),
        ("[0.1, 0.2, 0.5, 0.25]", [(100, 200, 500, 250)], True, 0),
        (
            "[[0.1, 0.2, 0.5, 0.25], [0.0, 0.0, 1.0, 1.0]]",
            [(100, 200, 500, 250), WHOLE_PAGE],
            True,
            0,
        ),
        ("[10.5, 20, 30, 40]", [], False, 1),
        ("[]", [], False, 1),
        ("", [], False, 1),
    ],
)
def test_a_list_in_unlimited_ocrs_short_marks_needs_no_outer_brackets(
    listing: str, boxes: list[Box], repaired: bool, dropped: int
) -> None:
    grounding = parse_grounding(f"<PAGE><|det|>image {listing}<|/det|>", "unlimited-ocr")
    (region,) = grounding.regions
    assert region.label == "image"
    assert list(region.boxes) == boxes
    assert region.repaired == repaired
    assert grounding.dropped == dropped


numbers = st.sampled_from(
    ["0", "1", "0.0", "1.0", "0.5", "-3", "-0.2", "120.0", "500", "1000", "7.25", "x", ""]
)
listings = st.lists(st.lists(numbers, max_size=5).map(", ".join), max_size=4)


@settings(deadline=None, max_examples=100)
@given(listings, st.booleans())
def test_every_box_of_a_list_is_read_or_counted_and_lies_on_the_grid(
    listing: list[str], nested: bool
) -> None:
    written = ", ".join(f"[{item}]" for item in listing)
    if nested:
        written = f"[{written}]"
    grounding = parse_grounding(marked("text", written))
    (region,) = grounding.regions
    assert len(region.boxes) + grounding.dropped == max(len(listing), 1)
    assert_inside(region.boxes, 999, 999)
    if any("." in item for item in listing) and len(region.boxes) == len(listing):
        assert region.repaired


def assert_inside(boxes: Iterable[Box], right: int, bottom: int) -> None:
    """No box reaches beyond these sides, and its corners are in order."""
    for x1, y1, x2, y2 in boxes:
        assert 0 <= x1 <= x2 <= right
        assert 0 <= y1 <= y2 <= bottom


ODD_LABEL = 'the <b>red</b> car\'s "{0}"\n价格 [[1, 2, 3, 4]]'


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("<|ref|>text<|/ref|><|det|>[[1, 2, 3, 4]]", []),
        ("text<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>", []),
        ("<|ref|>text<|/ref|> <|det|>[[1, 2, 3, 4]]<|/det|>", []),
        ("<|ref|>just a phrase<|/ref|>", []),
        ("", []),
        ("<|ref|>a<|/ref|><|det|>[[1, 2" + marked("b", "[[1, 2, 3, 4]]"), ["b"]),
        (marked(ODD_LABEL, "[[1, 2, 3, 4]]"), [ODD_LABEL]),
    ],
)
def test_marks_that_make_no_region_are_text(text: str, labels: list[str]) -> None:
    assert [region.label for region in parse_grounding(text).regions] == labels


@pytest.mark.parametrize(
    "text",
    [
        "<|ref|>" * 29_000,
        "<|ref|>" + "<" * 200_000,
        "<|ref|>" + "<|/ref" * 34_000,
        "<|ref|>a<|/ref|><|det|>" * 9_000,
        marked("a", "[" * 200_000),
        marked("a", "[" + " " * 200_000 + "]"),
        marked("a", "[[" + "0" * 200_000 + "x, 1, 2, 3]]"),
        marked("a", "[[1, 2, 3, 4]" + " " * 200_000 + "x]"),
        marked("a", "[[" + "," * 200_000 + "]]"),
        marked("a", "[" + "[1, 2, 3, 4], " * 14_000 + "[1, 2, 3, 4]]"),
        marked("a", "[[1, 2, 3, 4]]") * 4_800,
        marked("a", "[0.5, 0, 1, 1], " * 12_000),
        marked("a", "[[0." + "0" * 200_000 + "x, 1, 2, 3]]"),
    ],
)
def test_long_garbage_is_read_in_linear_time(text: str) -> None:
    began = time.process_time()
    parse_grounding(text)
    assert time.process_time() - began < 0.8


def test_tokens_go_where_their_first_character_stands() -> None:
    markup = ["<|ref|>", "text", "<|/ref|>", "<|det|>", "[[1, 2, 3, 4]]", "<|/det|>"]
    preamble = ["", "Sure", ":\n"]
    first = [*markup, "", "A", "b\n"]
    second = [*markup, "C", ""]
    grounding = parse_grounding("".join([*preamble, *first, *second]))
    texts = [*preamble, *first, *second, "<end>"]
    assert token_regions(grounding, texts) == [-1] * 3 + [0] * 9 + [1] * 9
    assert token_regions(grounding, []) == []


def test_the_tokens_of_a_text_without_regions_belong_to_none() -> None:
    assert token_regions(parse_grounding("plain"), ["pl", "ain"]) == [-1, -1]


def test_the_cost_of_a_region_and_of_a_type_is_that_of_its_tokens() -> None:
    title = marked("title", "[[1, 2, 3, 4]]")
    image = marked("image", "[[9, 2, 3, 4], [1, 2, 3, 4]]")
    texts = ["Sure", " ", title, "Tit", "le\n", image, "\n", title]
    ms = [float("nan"), 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 20.0]
    grounding = parse_grounding("".join(texts))
    tokens = token_table(texts, ms, token_regions(grounding, texts))

    regions = region_table(grounding, tokens)
    assert tuple(regions.columns) == REGION_COLUMNS
    assert regions.fillna(-1.0).to_numpy().tolist() == [
        [PREAMBLE, "preamble", 0, False, 2, 4, 1.0, 0.25, 1 / 40, "Sure"],
        [0, "title", 1, False, 3, 5, 9.0, 1.8, 9 / 40, "Title"],
        [1, "image", 2, True, 2, 0, 10.0, -1.0, 10 / 40, ""],
        [2, "title", 1, False, 1, 0, 20.0, -1.0, 20 / 40, ""],
    ]

    types = type_table(regions)
    assert tuple(types.columns) == TYPE_COLUMNS
    assert types.fillna(-1.0).to_numpy().tolist() == [
        ["title", 2, 4, 5, 29.0, 5.8, 29 / 40],
        ["image", 1, 2, 0, 10.0, -1.0, 10 / 40],
        ["preamble", 1, 2, 4, 1.0, 0.25, 1 / 40],
    ]


@settings(deadline=None, max_examples=30)
@given(fuzzed)
def test_the_regions_of_any_text_follow_one_another_to_its_end(text: str) -> None:
    position = 0
    for index, region in enumerate(parse_grounding(text).regions):
        assert region.index == index
        assert position <= region.start < region.content_start <= region.end <= len(text)
        assert region.text == text[region.content_start : region.end].strip()
        assert_inside(region.boxes, 999, 999)
        assert_inside(region.pixel_boxes(37, 1001), 37, 1001)
        position = region.end
    assert position in (0, len(text))


#: Times as a record's token table has them, which a sum of floats adds up exactly.
TOKEN_MS = st.just(float("nan")) | st.integers(0, 2**40).map(lambda units: units / 2**20)


@settings(deadline=None, max_examples=30)
@given(fuzzed, st.data())
def test_the_costs_of_regions_and_of_types_add_up_to_those_of_all_tokens(
    text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    texts = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    ms = data.draw(st.lists(TOKEN_MS, min_size=len(texts), max_size=len(texts)))
    grounding = parse_grounding(text)

    regions = token_regions(grounding, texts)
    tokens = token_table(texts, ms, regions)
    of_regions = region_table(grounding, tokens)
    of_types = type_table(of_regions)

    assert regions == sorted(regions)
    for table in (of_regions, of_types):
        assert table["decode_ms"].sum() == tokens["device_ms"].sum()
        assert table["tokens"].sum() == len(tokens)
