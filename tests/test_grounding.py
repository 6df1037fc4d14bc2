"""Reading regions out of model text, what each one cost, and how that is drawn."""

import time

import pandas as pd
import pytest
from conftest import GOLDEN
from grounding_texts import fuzzed, marked
from hypothesis import given, settings
from hypothesis import strategies as st

from ocr_phases.analyse.grounding import PREAMBLE, parse_grounding, token_regions
from ocr_phases.analyse.regions import REGION_COLUMNS, TYPE_COLUMNS, region_table, type_table


def tokens_of(texts: list[str], ms: list[float], regions: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"region": regions, "text": texts, "device_ms": ms})


def test_real_model_output() -> None:
    grounding = parse_grounding((GOLDEN / "real_model_output.txt").read_text(encoding="utf-8"))
    told = [(region.label, *region.boxes, region.text) for region in grounding.regions]
    first = "Prvi dan trčanja Tomislav može izabrati na 7 različitih načina."
    assert told == [
        ("text", (55, 43, 130, 60), "2. način:"),
        ("image", (70, 93, 450, 360), ""),
        ("text", (460, 95, 896, 132), first),
        ("equation", (460, 217, 550, 256), r"\[ \frac{7 \cdot 4}{2} = 14. \]"),
        ("table", (57, 450, 360, 500), told[4][2]),
        ("text", (55, 515, 110, 534), told[5][2]),
        ("text", (230, 515, 293, 534), "B) 108"),
    ]
    assert (grounding.dropped, any(region.repaired for region in grounding.regions)) == (0, False)


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


@pytest.mark.parametrize(
    ("listing", "boxes", "repaired", "dropped"),
    [
        ("[[1, 2, 3, 4]]", ((1, 2, 3, 4),), False, 0),
        (" [ [1,2,3,4] ,[ 005 ,6,7,8 ] ] ", ((1, 2, 3, 4), (5, 6, 7, 8)), False, 0),
        ("[[-3, 2, 1000, 4]]", ((0, 2, 999, 4),), True, 0),
        ("[[30, 40, 10, 20]]", ((10, 20, 30, 40),), True, 0),
        (f"[[-{'9' * 9000}, 0, {'9' * 9000}, 999]]", ((0, 0, 999, 999),), True, 0),
        ("[[-0, 0, 0, 0]]", ((0, 0, 0, 0),), False, 0),
        (
            "[[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2.5, 3, 4], []]",
            ((1, 2, 3, 4),),
            False,
            4,
        ),
        ("[[120.0, 250.0, 500.0, 310.0]]", ((120, 250, 500, 310),), True, 0),
        ("[[120, 250.000, 500, 310]]", ((120, 250, 500, 310),), True, 0),
        ("[[500.0, -1.0, 120.0, 2000.0]]", ((120, 0, 500, 999),), True, 0),
        (f"[[-{'9' * 9000}.0, 0, {'9' * 9000}.0, 999]]", ((0, 0, 999, 999),), True, 0),
        ("[10, 20, 30, 40]", ((10, 20, 30, 40),), True, 0),
        (" [10,20 , 30,40] ", ((10, 20, 30, 40),), True, 0),
        ("[1, 2, 3, 4], [5, 6, 7, 8]", ((1, 2, 3, 4), (5, 6, 7, 8)), True, 0),
        ("[1, 2, 3, 4], [5, 6, 7]", ((1, 2, 3, 4),), True, 1),
        ("[1, 2, 3]", (), False, 1),
        ("[10.0, 20.0, 30.0, 40.0]", ((10, 20, 30, 40),), True, 0),
        ("[0.1, 0.2, 0.5, 0.25]", ((100, 200, 500, 250),), True, 0),
        ("[[0.1, 0.2, 0.5, 0.25]]", ((100, 200, 500, 250),), True, 0),
        ("[[0, 0.0, 1, 0.5]]", ((0, 0, 999, 500),), True, 0),
        ("[[0.75, 1.0, 0.25, 0.0]]", ((250, 0, 749, 999),), True, 0),
        (f"[[0.{'0' * 9000}1, 0, 0.{'9' * 9000}, 1]]", ((0, 0, 999, 999),), True, 0),
        ("[[0, 1, 1, 1]]", ((0, 1, 1, 1),), False, 0),
        ("[[0, 0, 1, 1]]", ((0, 0, 1, 1),), False, 0),
        ("[[0.0, 0.0, 1.0, 1.0]]", ((0, 0, 1, 1),), True, 0),
        ("[[0.0, 0.0, 1.0, 1.0], [0.5, 0, 1, 1]]", ((0, 0, 999, 999), (500, 0, 999, 999)), True, 0),
        ("[[0, 0, 1, 1], [0.5, 0, 1, 1]]", ((0, 0, 1, 1), (500, 0, 999, 999)), True, 0),
        ("[[0.5, 0, 1, 1], [0.5, 0, 1, 7]]", ((500, 0, 999, 999),), True, 1),
        ("[[10.0, 20, 30, 40], [10.5, 20, 30, 40]]", ((10, 20, 30, 40),), True, 1),
        *((listing, (), False, 1) for listing in NO_LISTS),
    ],
)
def test_box_lists(listing: str, boxes: object, repaired: bool, dropped: int) -> None:
    grounding = parse_grounding(marked("text", listing))
    (region,) = grounding.regions
    assert (region.boxes, region.repaired, grounding.dropped) == (boxes, repaired, dropped)


@pytest.mark.parametrize(
    ("listing", "boxes", "repaired", "dropped"),
    [
        ("[1, 2, 30, 40]", ((1, 2, 30, 40),), False, 0),
        ("[[1, 2, 30, 40]]", ((1, 2, 30, 40),), False, 0),
        ("[ [1, 2, 30, 40] ]", ((1, 2, 30, 40),), False, 0),
        ("[1, 2, 30, 40], [5, 6, 7, 8]", ((1, 2, 30, 40), (5, 6, 7, 8)), False, 0),
        ("[120.0, 250.0, 500.0, 310.0]", ((120, 250, 500, 310),), True, 0),
        ("[0.1, 0.2, 0.5, 0.25]", ((100, 200, 500, 250),), True, 0),
        (
            "[[0.1, 0.2, 0.5, 0.25], [0.0, 0.0, 1.0, 1.0]]",
            ((100, 200, 500, 250), (0, 0, 999, 999)),
            True,
            0,
        ),
        ("[10.5, 20, 30, 40]", (), False, 1),
        ("[]", (), False, 1),
        ("", (), False, 1),
    ],
)
def test_box_lists_of_the_short_marks(
    listing: str, boxes: object, repaired: bool, dropped: int
) -> None:
    grounding = parse_grounding(f"<PAGE><|det|>image {listing}<|/det|>", "unlimited-ocr")
    (region,) = grounding.regions
    assert (region.label, region.boxes, region.repaired) == ("image", boxes, repaired)
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
    grounding = parse_grounding(marked("text", f"[{written}]" if nested else written))
    (region,) = grounding.regions
    assert len(region.boxes) + grounding.dropped == max(len(listing), 1)
    for x1, y1, x2, y2 in region.boxes:
        assert 0 <= x1 <= x2 <= 999 and 0 <= y1 <= y2 <= 999
    if any("." in item for item in listing) and len(region.boxes) == len(listing):
        assert region.repaired


ODD_LABEL = 'the <b>red</b> car\'s "{0}"\n价格 [[1, 2, 3, 4]]'


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        *(
            (marked("text", "[[1, 2, 3, 4]]").replace(mark, ""), [])
            for mark in ("<|/det|>", "<|ref|>")
        ),
        (marked("text", "[[1, 2, 3, 4]]").replace("<|det|>", " <|det|>"), []),
        ("<|ref|>just a phrase<|/ref|>", []),
        ("", []),
        ("<|ref|>a<|/ref|><|det|>[[1, 2" + marked("b", "[[1, 2, 3, 4]]"), ["b"]),
        (marked(ODD_LABEL, "[[1, 2, 3, 4]]"), [ODD_LABEL]),
    ],
)
def test_what_is_no_markup_is_text(text: str, labels: list[str]) -> None:
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
    texts = ["", "Sure", ":\n", *markup, "", "A", "b\n", *markup, "C", "", "<end>"]
    grounding = parse_grounding("".join(texts[:-1]))
    assert token_regions(grounding, texts) == [-1] * 3 + [0] * 9 + [1] * 9
    assert token_regions(parse_grounding("plain"), ["pl", "ain"]) == [-1, -1]
    assert token_regions(grounding, []) == []


def test_what_regions_and_types_of_them_cost() -> None:
    head, body = marked("title", "[[1, 2, 3, 4]]"), marked("image", "[[9, 2, 3, 4], [1, 2, 3, 4]]")
    texts = ["Sure", " ", head, "Tit", "le\n", body, "\n", head]
    grounding = parse_grounding("".join(texts))
    ms = [float("nan"), 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 20.0]
    table = region_table(grounding, tokens_of(texts, ms, token_regions(grounding, texts)))
    assert tuple(table.columns) == REGION_COLUMNS
    assert table.fillna(-1.0).to_numpy().tolist() == [
        [PREAMBLE, "preamble", 0, False, 2, 4, 1.0, 0.25, 1 / 40, "Sure"],
        [0, "title", 1, False, 3, 5, 9.0, 1.8, 9 / 40, "Title"],
        [1, "image", 2, True, 2, 0, 10.0, -1.0, 10 / 40, ""],
        [2, "title", 1, False, 1, 0, 20.0, -1.0, 20 / 40, ""],
    ]
    types = type_table(table)
    assert tuple(types.columns) == TYPE_COLUMNS
    assert types.fillna(-1.0).to_numpy().tolist() == [
        ["title", 2, 4, 5, 29.0, 5.8, 29 / 40],
        ["image", 1, 2, 0, 10.0, -1.0, 10 / 40],
        ["preamble", 1, 2, 4, 1.0, 0.25, 1 / 40],
    ]


@settings(deadline=None, max_examples=30)
@given(fuzzed, st.data())
def test_any_text_in_any_tokens_gives_ordered_regions_that_add_up(
    text: str, data: st.DataObject
) -> None:
    grounding = parse_grounding(text)
    position = 0
    for index, region in enumerate(grounding.regions):
        assert region.index == index
        assert position <= region.start < region.content_start <= region.end <= len(text)
        assert region.text == text[region.content_start : region.end].strip()
        position = region.end
        for boxes, right, bottom in (
            (region.boxes, 999, 999),
            (region.pixel_boxes(37, 1001), 37, 1001),
        ):
            for x1, y1, x2, y2 in boxes:
                assert 0 <= x1 <= x2 <= right and 0 <= y1 <= y2 <= bottom
    assert not grounding.regions or position == len(text)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    texts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    # The grid that a record's token table puts its times on.
    times = st.just(float("nan")) | st.integers(0, 2**40).map(lambda units: units / 2**20)
    ms = data.draw(st.lists(times, min_size=len(texts), max_size=len(texts)))
    regions = token_regions(grounding, texts)
    assert regions == sorted(regions)
    tokens = tokens_of(texts, ms, regions)
    table, types = (table := region_table(grounding, tokens)), type_table(table)
    assert table["decode_ms"].sum() == tokens["device_ms"].sum() == types["decode_ms"].sum()
    assert table["tokens"].sum() == len(tokens) == types["tokens"].sum()
