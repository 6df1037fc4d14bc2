"""Quality: each measure by hand and against jiwer, every form of a truth, where a text differs from
one.
"""

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jiwer
import msgspec
import numpy as np
import pytest
from elements import Elements
from example_run import ATTACK, REGIONS, altered, make_run, two_page_run
from grounding_texts import marked
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from benchmarks import quality_figures
from benchmarks.documents import with_parts
from ocr_phases import PhaseRun
from ocr_phases.analyse import grounding, quality
from ocr_phases.analyse.cards import key_metrics
from ocr_phases.analyse.grounding import grid_box, match_boxes
from ocr_phases.analyse.quality import check_for_pages, load_truth, quality_of
from ocr_phases.analyse.text import plain_text, text_measures, word_edits
from ocr_phases.cli import main
from ocr_phases.record.parts import to_plain
from ocr_phases.record.schema import TrueRegion, Truth
from ocr_phases.show.page_and_text import quality_section
from ocr_phases.show.text_quality import edits_html, outcome_boxes, quality_html
from ocr_phases.text import percent_text

WORDS = st.lists(st.text(alphabet="abcdeäß1", min_size=1, max_size=4), min_size=1, max_size=12).map(
    " ".join
)


@given(WORDS, WORDS)
def test_error_rates_are_jiwers(written: str, true: str) -> None:
    (edit, _), (cer, characters), (wer, words) = text_measures(written, true).values()
    assert (cer, wer) == (
        pytest.approx(jiwer.cer(true, written)),
        pytest.approx(jiwer.wer(true, written)),
    )
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


def measured(written: str, truth: Truth) -> dict[tuple[str, str], float]:
    found = quality.quality_table(make_run(text=written), truth)
    assert tuple(found.columns) == quality.QUALITY_COLUMNS
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
    assert measured(written, Truth(true))["table_similarity", ""] == pytest.approx(similarity)


COORDINATES = st.tuples(*[st.integers(0, 40)] * 2, *[st.integers(20, 60)] * 2)
SIDE = st.lists(st.lists(COORDINATES, max_size=2), max_size=8)


def overlap(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    return float(grounding.intersection_over_union(one, np.array([other]))[0])


@given(SIDE, SIDE)
def test_the_best_boxes_meet_first(ours: list[list[Any]], theirs: list[list[Any]]) -> None:
    ours, theirs = ([[grid_box(box) for box in boxes] for boxes in side] for side in (ours, theirs))
    left = {
        (mine, other): max(
            (overlap(*pair) for pair in product(ours[mine], theirs[other])), default=0.0
        )
        for mine, other in product(range(len(ours)), range(len(theirs)))
    }
    expected = []
    while left and max(left.values()) >= grounding.MATCHED_IOU:
        mine, other = max(left, key=lambda pair: left[pair])
        expected.append((mine, other, left[mine, other]))
        left = {
            pair: overlap for pair, overlap in left.items() if mine != pair[0] and other != pair[1]
        }
    assert match_boxes(ours, theirs) == expected


def test_regions_order_and_labels_are_measured(tmp_path: Path) -> None:
    boxes = {"title": (10, 10, 500, 60), "text": (10, 100, 500, 300), "image": (10, 400, 500, 600)}
    page = {
        "size": [999, 999],
        "regions": [{"label": k, "box": v, "text": k} for k, v in boxes.items()],
    }
    (tmp_path / "page.json").write_text(json.dumps(page))
    truth = load_truth(tmp_path, "page.png")
    written = "".join(marked(label, [list(boxes[label])]) + label for label in ("text", "title"))
    found = measured(written, truth)
    assert found["box_recall", ""] == pytest.approx(2 / 3)
    assert (found["box_recall", "image"], found["box_recall", "title"]) == (0.0, 1.0)
    assert (found["box_iou", ""], found["order_distance", ""]) == (1.0, 1.0)
    assert found["cer", ""] > 0
    every = (
        marked("text", [list(box) for box in boxes.values()]) + "a"
    )  # all boxes of a region count
    assert measured(every, truth)["box_recall", ""] == 1.0


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
SHAPES = [
    "[" * 100_000,
    json.dumps([ODD]),
    '{"regions": [{"label": "a", "box": [1, 2, 3, 4], "text": 5}]}',
]
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
        lambda: altered(run, results=[to_plain(run.result) | {"text": None}]).quality(Truth("a")),
        lambda: run.quality(tmp_path / "missing.md"),
        lambda: load_truth(tmp_path / "x.txt"),
        *(
            lambda suffix=suffix: check_for_pages(tmp_path / f"page.{suffix}", 2)
            for suffix in ("json", "md")
        ),
    ):
        with refused():
            asked()


TRUTH = Truth(
    "\n\n".join(text for _, _, text in REGIONS),
    tuple(TrueRegion(label, box, text) for label, box, text in REGIONS),
    "page.json",
)


def changed(**regions: Any) -> Truth:
    """The example's truth with other regions."""
    return msgspec.structs.replace(TRUTH, **regions)


def outcomes(run: PhaseRun, truth: Truth) -> list[str]:
    table = quality.region_differences(run, truth)
    assert tuple(table.columns) == quality.DIFFERENCE_COLUMNS
    return table["outcome"].tolist()


def test_regions_are_paired_by_their_boxes() -> None:
    run = make_run()
    assert {*outcomes(run, TRUTH), *outcomes(run, changed(regions=()))} == {"equal"}
    assert quality_of(run.with_truth(TRUTH))["cer"] == 0.0
    first, second, picture, table, last = TRUTH.regions
    lost = TrueRegion("text", (60, 910, 930, 990), "Only on the page")
    more = msgspec.structs.replace(second, text=f"{second.text} more")
    found = quality.region_differences(run, changed(regions=(first, more, lost, picture, last)))
    assert found["outcome"].tolist() == ["equal", "different", "missing", "equal", "extra", "equal"]
    assert found["label"].tolist() == ["title", "text", "text", "image", table.label, "text"]
    missing, extra = found.iloc[2], found.iloc[4]
    assert (missing["true"], missing["written"], missing["cer"]) == ("Only on the page", "", 1.0)
    assert extra["true"] == "" and extra["cer"] != extra["cer"]


def test_a_tag_on_the_page_says_what_became_of_a_region() -> None:
    first, second, picture, _, last = TRUTH.regions
    lost = TrueRegion("text", (60, 910, 930, 990), "Only on the page")
    more = msgspec.structs.replace(second, text=f"{second.text} more")
    truth = changed(regions=(first, more, lost, picture, last))
    boxes = outcome_boxes(quality.region_differences(make_run(), truth), (1000, 1000))
    error_rate = percent_text(len(" more") / len(plain_text(more.text)))
    tags = [box.text for box in boxes]
    assert tags == ["0", f"1 {error_rate}", "missing", "2", "3 extra", "4"]


def test_without_boxes_words_go_to_the_regions_they_meet() -> None:
    text = (
        plain_text(TRUTH.text)
        .replace("Where the", "Where all the")
        .replace("light but", "heavy and")
    )
    found = quality.region_differences(make_run(), Truth(text))
    assert found["outcome"].tolist() == ["different", "equal", "equal", "equal", "different"]
    assert found["true"].iloc[0] == "Where all the time goes"
    # Nothing is lost and nothing is counted twice.
    assert " ".join(filter(None, found["true"])) == text
    # A text without boxes: its words go to the truth's regions.
    plain = make_run(text="\n\n".join(words for _, _, words in REGIONS[:-1]))
    told = quality.region_differences(plain, TRUTH)
    assert told["outcome"].tolist() == ["equal"] * 4 + ["missing"]
    assert told["box"].notna().all() and told["true"].iloc[-1] == plain_text(REGIONS[-1][2])
    pages, said = two_page_run(), changed(text="one a b")
    assert outcomes(pages, said) == ["equal", "equal", "equal"]
    assert quality_of(pages.with_truth(said))["cer"] == 0.0  # its marks do not count


@given(st.lists(st.sampled_from("abcd"), max_size=8), st.lists(st.sampled_from("abcd"), max_size=8))
def test_word_edits_hold_both_texts(mine: list[str], theirs: list[str]) -> None:
    edits = word_edits(" ".join(mine), " ".join(theirs))
    assert " ".join(part for _, part, _ in edits if part) == " ".join(mine)
    assert " ".join(part for *_, part in edits if part) == " ".join(theirs)
    assert all((kind == "equal") == (one == other) for kind, one, other in edits)
    assert Elements(edits_html(" ".join(mine), " ".join(theirs))).tags() <= {"ins", "del"}


def test_a_record_keeps_the_truth_of_each_row(tmp_path: Path) -> None:
    run = make_run(rows=3).with_truth(TRUTH, row=1)
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert again.truths is not None and [again.truth_of(row) for row in range(3)] == [
        None,
        TRUTH,
        None,
    ]
    assert again.quality(row=1).set_index("measure")["value"]["cer"] == 0.0
    assert set(again.quality()["measure"]) == {"repetition"}
    partial = json.loads(run.to_json())
    del partial["truths"][1]["category"]
    for damaged in ({**run.to_dict(), "truths": [None]}, partial):
        with refused():
            PhaseRun.from_dict(damaged)
    with refused():
        make_run(return_text=False).with_truth(TRUTH)


def test_a_record_as_truth_is_a_reference_and_called_agreement(tmp_path: Path) -> None:
    base = make_run()
    for name in ("base.json", "base.json.gz"):
        truth = load_truth(base.save(tmp_path / name))
        assert truth.reference and truth.file == name and truth.text.startswith("\n\n\n# Where")
    run = make_run(max_tokens=20).with_truth(truth)
    measures = set(run.quality()["measure"])
    assert measures == {"agreement", "table_agreement", "box_agreement", "repetition"}
    assert (
        0.0 < quality_of(run)["agreement"] < 1.0 == quality_of(base.with_truth(truth))["agreement"]
    )
    shown = quality_html(run)
    assert "agreement with it, not accuracy" in shown and "error rate" not in shown
    assert key_metrics(base.with_truth(truth))[-1][:2] == ("Agreement", "100 %")
    with refused():
        quality.reference_of(make_run(return_text=False), name="x.json")


def test_a_folder_holds_truths_by_the_pages_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("scan.txt", "scan.md", "sub/scan.md", "doc-3.txt", "doc-3-4.md"):
        (tmp_path / name).write_text(name)
    away = str(tmp_path / "elsewhere" / "scan.png")
    found = {
        "sub/scan.png": "sub/scan.md",
        "other/scan.png": "scan.md",
        away: "scan.md",
        "doc.pdf#3": "doc-3.txt",
        "doc.pdf#3-4": "doc-3-4.md",
    }
    for page, name in found.items():
        assert quality.page_truth(tmp_path, page) == Truth(name, file=Path(name).name)
    assert quality.page_truth(tmp_path, "doc.pdf#4") is None
    with refused():
        load_truth(tmp_path, "doc.pdf#4")
    texts = {"blank.md": " \n", "picture.md": "![a](b.png)", "long.txt": "a " * 600_000}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        with refused():
            load_truth(tmp_path / name)


def test_each_row_has_its_measures_and_differences() -> None:
    run = make_run(rows=2)
    assert not quality_section(run).parts
    for row in range(2):
        run = run.with_truth(changed(regions=(TRUTH.regions[0],)), row)
    (section,) = quality_section(run).parts
    assert (
        section.count("1 equal, 4 extra") == 2
        and section.count("Row 1") == section.count("<h2") == 1
    )
    blank = make_run().with_truth(Truth("", file="blank.md"))  # which judges nothing
    assert quality_of(blank) == {} and "has no text to compare with" in quality_html(blank)


def test_an_attack_in_truth_or_text_stays_text() -> None:
    truth = Truth(ATTACK, (TrueRegion("<b>", (1, 1, 500, 500), ATTACK),), "<i>.md")
    for run in (make_run(text=ATTACK), make_run()):
        shown = Elements(str(quality_html(run.with_truth(truth))))
        assert not {"script", "iframe", "svg", "b", "i"} & shown.tags()
        assert sum(tag == "img" for tag, _ in shown.found) == 1  # the page


@pytest.mark.parametrize("verb", ["report", "verify", "profile"])
def test_a_verb_compares_with_a_truth(verb, tmp_path, capsys, monkeypatch):
    run, page, out = make_run(), tmp_path / "example.png", tmp_path / "out"
    (tmp_path / "example.md").write_text(TRUTH.text.replace("light", "heavy"))
    Image.new("RGB", (9, 9)).save(page)
    measured: list[Path] = []
    session = SimpleNamespace(run_inference=lambda page, **_: (measured.append(page), run)[1])
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)
    record = ["--record", str(run.save(tmp_path / "measured.json")), "--out"]
    asked = [str(page), "--save"] if verb == "profile" else record
    command = [verb, *asked, str(out), "--json", "--truth"]
    for wrong in ([str(tmp_path / "no.md")], [str(tmp_path), "--no-return-text"]):
        assert main([*command, *wrong]) == 2
        assert json.loads(capsys.readouterr().out)["exit_reason"].endswith(".")
    assert not measured  # refused before anything slow
    assert not main([*command, str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    quality = (told["reports"][0] if verb == "report" else told)["quality"]
    assert quality == quality_of(run.with_truth(tmp_path))
    if verb == "report":
        html = (out / "report.html").read_text()
        assert "Compared with the reference text example.md" in html and "<del>heavy</del>" in html
    kept = {"report": out / "run.json", "profile": out}.get(verb)
    assert kept is None or PhaseRun.load(kept).truth_of() is not None


def test_the_tables_of_the_docs_are_of_the_shipped_results() -> None:
    text = quality_figures.DOCUMENT.read_text(encoding="utf-8")
    assert with_parts(text, quality_figures.tables()) == text, (
        "run: python -m benchmarks.quality_figures"
    )
    pages = quality_figures.load("generated")
    assert pages["page"].nunique() == 200 and pages.groupby("preset").size().tolist() == [200] * 5
