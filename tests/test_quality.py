"""Quality: each measure by hand and against jiwer, every form of a reference text, and where a
text differs from one.
"""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
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
    measures = text_measures(written, true)
    edit_distance, _ = measures["edit_distance"]
    cer, characters = measures["cer"]
    wer, words = measures["wer"]
    assert cer == pytest.approx(jiwer.cer(true, written))
    assert wer == pytest.approx(jiwer.wer(true, written))
    assert edit_distance == pytest.approx(cer * len(true) / max(len(written), len(true)))
    assert characters == len(true)
    assert words == len(true.split())


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
    """The value of each measure of a text, by its name and label."""
    found = quality.quality_table(make_run(text=written), truth)
    assert tuple(found.columns) == quality.QUALITY_COLUMNS
    return {(line.measure, line.label): line.value for line in found.itertuples()}


def table(*rows: Sequence[str]) -> str:
    """A table in HTML; of a row that is a text each character is a cell."""
    html = ""
    for row in rows:
        cells = "".join(f"<td>{cell}</td>" for cell in row)
        html += f"<tr>{cells}</tr>"
    return f"<table>{html}</table>"


def wordy_table(letter: str) -> str:
    """A table of two rows and two columns whose first cells have long texts of one letter."""
    long = letter * 9
    return table([long + letter, long + "1"], [long + letter, long + "2"])


A = wordy_table("a")
B = wordy_table("b")
C = wordy_table("c")
X = wordy_table("x")
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


LOWER = st.integers(0, 40)
UPPER = st.integers(20, 60)
BOXES = st.tuples(LOWER, LOWER, UPPER, UPPER).map(grid_box)
#: The regions of a page: the boxes of each.
REGION_BOXES = st.lists(st.lists(BOXES, max_size=2), max_size=8)


def best_overlap(ours: list[Any], theirs: list[Any]) -> float:
    """The largest overlap of a box of one region with one of another; 0 without boxes."""
    overlaps = [
        float(grounding.intersection_over_union(mine, np.array([other]))[0])
        for mine in ours
        for other in theirs
    ]
    return max(overlaps, default=0.0)


@given(REGION_BOXES, REGION_BOXES)
def test_the_best_boxes_meet_first(ours: list[list[Any]], theirs: list[list[Any]]) -> None:
    left = {}
    for mine, other in product(range(len(ours)), range(len(theirs))):
        left[mine, other] = best_overlap(ours[mine], theirs[other])
    expected = []
    while left and max(left.values()) >= grounding.MATCHED_IOU:
        best = max(left, key=lambda pair: left[pair])
        expected.append((*best, left[best]))
        mine, other = best
        left = {pair: share for pair, share in left.items() if mine != pair[0] and other != pair[1]}
    assert match_boxes(ours, theirs) == expected


THREE_BOXES = {
    "title": (10, 10, 500, 60),
    "text": (10, 100, 500, 300),
    "image": (10, 400, 500, 600),
}


@pytest.fixture
def truth_of_three_regions(tmp_path: Path) -> Truth:
    """A page with `THREE_BOXES`, whose texts are their labels."""
    regions = [{"label": label, "box": box, "text": label} for label, box in THREE_BOXES.items()]
    page = {"size": [999, 999], "regions": regions}
    (tmp_path / "page.json").write_text(json.dumps(page))
    return load_truth(tmp_path, "page.png")


def test_a_missing_region_lowers_recall_and_a_wrong_order_counts(
    truth_of_three_regions: Truth,
) -> None:
    written = ""
    for label in ("text", "title"):
        written += marked(label, [list(THREE_BOXES[label])]) + label
    found = measured(written, truth_of_three_regions)
    assert found["box_recall", ""] == pytest.approx(2 / 3)
    assert found["box_recall", "image"] == 0.0
    assert found["box_recall", "title"] == 1.0
    assert found["box_iou", ""] == 1.0
    assert found["order_distance", ""] == 1.0
    assert found["cer", ""] > 0


def test_all_boxes_of_a_region_count(truth_of_three_regions: Truth) -> None:
    written = marked("text", [list(box) for box in THREE_BOXES.values()]) + "a"
    assert measured(written, truth_of_three_regions)["box_recall", ""] == 1.0


def omnidocbench() -> list[dict[str, Any]]:
    """One page in the form of OmniDocBench's file."""
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


@pytest.fixture
def omnidocbench_file(tmp_path: Path) -> Path:
    path = tmp_path / "OmniDocBench.json"
    path.write_text(json.dumps(omnidocbench()))
    return path


def test_an_omnidocbench_file_is_read_by_page_and_order(omnidocbench_file: Path) -> None:
    truth = load_truth(omnidocbench_file, "/elsewhere/one.png")
    assert [region.label for region in truth.regions] == ["title", "text", "table", "equation"]
    assert plain_text(truth.text) == "First Second a b x^2"
    assert truth.regions[0].box == (100, 50, 300, 100)
    with refused():
        load_truth(omnidocbench_file, "two.png")


def test_an_omnidocbench_file_of_one_page_needs_no_name_of_a_page(omnidocbench_file: Path) -> None:
    check_for_pages(omnidocbench_file, 2)
    quality_table = make_run(text="First Second a b x^2").quality(load_truth(omnidocbench_file))
    assert quality_table["value"].iloc[0] == 0.0


def test_a_page_header_does_not_count_where_the_truth_leaves_it_out(
    omnidocbench_file: Path,
) -> None:
    header = marked("header", "[[1, 2, 3, 4]]") + "\nTop of the page\n\n"
    rest = marked("text", "[[1, 20, 30, 40]]") + "\nFirst Second a b x^2"
    truth = load_truth(omnidocbench_file, "one.png")
    assert make_run(text=header + rest).quality(truth)["value"].iloc[0] == 0.0


#: A page of OmniDocBench without a height, whose block has no polygon.
ODD_PAGE = {
    "page_info": {"image_path": "page.png", "width": 9, "height": 0},
    "layout_dets": [{"category_type": "title", "poly": [1, 2, 3, 4], "text": "a"}],
}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[" * 100_000, id="nested too deeply"),
        pytest.param(json.dumps([ODD_PAGE]), id="a page without a height"),
        '{"regions": [{"label": "a", "box": [1, 2, 3, 4], "text": 5}]}',
        "[1]",
        '{"size": 3}',
        "{",
        '[{"page_info": {}}]',
        '{"regions": [{"box": [1]}]}',
    ],
)
def test_a_file_that_is_no_truth_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    with refused():
        load_truth(tmp_path / "x.json", "page.png")


def test_a_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\x00")
    with refused():
        load_truth(tmp_path / "x.txt")


def test_there_is_no_quality_without_a_text_on_both_sides(tmp_path: Path) -> None:
    run = make_run(text="a")
    with refused():
        run.quality(Truth("", file="page.txt"))
    without_text = altered(run, results=[to_plain(run.result) | {"text": None}])
    with refused():
        without_text.quality(Truth("a"))
    with refused():
        run.quality(tmp_path / "missing.md")


def test_the_truth_of_one_page_is_none_of_two(tmp_path: Path) -> None:
    (tmp_path / "page.json").write_text('{"regions": []}')
    for name in ("page.json", "page.md"):
        with refused():
            check_for_pages(tmp_path / name, 2)


TRUTH = Truth(
    "\n\n".join(text for _, _, text in REGIONS),
    tuple(TrueRegion(label, box, text) for label, box, text in REGIONS),
    "page.json",
)


def truth_with(**entries: Any) -> Truth:
    """The example's truth with other entries, such as ``regions``."""
    return msgspec.structs.replace(TRUTH, **entries)


def outcomes(run: PhaseRun, truth: Truth) -> list[str]:
    """What became of each region, in the order of the page."""
    table = quality.region_differences(run, truth)
    assert tuple(table.columns) == quality.DIFFERENCE_COLUMNS
    return table["outcome"].tolist()


def test_a_text_that_is_right_has_no_differences() -> None:
    run = make_run()
    assert set(outcomes(run, TRUTH)) == {"equal"}
    assert set(outcomes(run, truth_with(regions=()))) == {"equal"}
    assert quality_of(run.with_truth(TRUTH))["cer"] == 0.0


def truth_of_other_regions() -> Truth:
    """The example's truth with a longer text and a region more, and without the table."""
    title, text, picture, _, last = TRUTH.regions
    longer_text = msgspec.structs.replace(text, text=f"{text.text} more")
    lost = TrueRegion("text", (60, 910, 930, 990), "Only on the page")
    return truth_with(regions=(title, longer_text, lost, picture, last))


def test_regions_are_paired_by_their_boxes() -> None:
    found = quality.region_differences(make_run(), truth_of_other_regions())
    assert found["outcome"].tolist() == ["equal", "different", "missing", "equal", "extra", "equal"]
    assert found["label"].tolist() == ["title", "text", "text", "image", "table", "text"]

    missing = found.iloc[2]
    assert missing["true"] == "Only on the page"
    assert missing["written"] == ""
    assert missing["cer"] == 1.0

    extra = found.iloc[4]
    assert extra["true"] == ""
    assert np.isnan(extra["cer"])


def test_a_tag_on_the_page_says_what_became_of_a_region() -> None:
    truth = truth_of_other_regions()
    boxes = outcome_boxes(quality.region_differences(make_run(), truth), (1000, 1000))
    longer_text = truth.regions[1].text
    error_rate = percent_text(len(" more") / len(plain_text(longer_text)))
    tags = [box.text for box in boxes]
    assert tags == ["0", f"1 {error_rate}", "missing", "2", "3 extra", "4"]


def test_words_of_a_truth_without_boxes_go_to_the_regions_they_meet() -> None:
    text = plain_text(TRUTH.text)
    text = text.replace("Where the", "Where all the")
    text = text.replace("light but", "heavy and")
    found = quality.region_differences(make_run(), Truth(text))
    assert found["outcome"].tolist() == ["different", "equal", "equal", "equal", "different"]
    assert found["true"].iloc[0] == "Where all the time goes"
    # Nothing is lost and nothing is counted twice.
    assert " ".join(filter(None, found["true"])) == text


def test_words_that_were_written_without_boxes_go_to_the_regions_of_the_truth() -> None:
    run = make_run(text="\n\n".join(words for _, _, words in REGIONS[:-1]))
    found = quality.region_differences(run, TRUTH)
    assert found["outcome"].tolist() == ["equal"] * 4 + ["missing"]
    assert found["box"].notna().all()
    assert found["true"].iloc[-1] == plain_text(REGIONS[-1][2])


def test_the_marks_between_two_pages_do_not_count() -> None:
    run = two_page_run()
    truth = truth_with(text="one a b")
    assert outcomes(run, truth) == ["equal", "equal", "equal"]
    assert quality_of(run.with_truth(truth))["cer"] == 0.0


FEW_WORDS = st.lists(st.sampled_from("abcd"), max_size=8).map(" ".join)


@given(FEW_WORDS, FEW_WORDS)
def test_word_edits_hold_both_texts(written: str, true: str) -> None:
    edits = word_edits(written, true)
    assert " ".join(part for _, part, _ in edits if part) == written
    assert " ".join(part for _, _, part in edits if part) == true
    for kind, part_written, part_true in edits:
        assert (kind == "equal") == (part_written == part_true)
    assert Elements(edits_html(written, true)).tags() <= {"ins", "del"}


def test_a_record_keeps_the_truth_of_each_row(tmp_path: Path) -> None:
    run = make_run(rows=3).with_truth(TRUTH, row=1)
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert again.truths is not None
    assert [again.truth_of(row) for row in range(3)] == [None, TRUTH, None]
    assert again.quality(row=1).set_index("measure")["value"]["cer"] == 0.0
    assert set(again.quality()["measure"]) == {"repetition"}


def test_a_record_with_too_few_truths_or_with_half_of_one_is_refused() -> None:
    run = make_run(rows=3).with_truth(TRUTH, row=1)
    too_few = {**run.to_dict(), "truths": [None]}
    incomplete = json.loads(run.to_json())
    del incomplete["truths"][1]["category"]
    for damaged in (too_few, incomplete):
        with refused():
            PhaseRun.from_dict(damaged)


def test_a_record_without_text_keeps_no_truth() -> None:
    with refused():
        make_run(return_text=False).with_truth(TRUTH)


@pytest.mark.parametrize("name", ["base.json", "base.json.gz"])
def test_a_record_may_be_the_truth(name: str, tmp_path: Path) -> None:
    truth = load_truth(make_run().save(tmp_path / name))
    assert truth.reference
    assert truth.file == name
    assert truth.text.startswith("\n\n\n# Where")


def test_what_is_measured_against_a_record_is_called_agreement(tmp_path: Path) -> None:
    base = make_run()
    truth = load_truth(base.save(tmp_path / "base.json"))
    equal = base.with_truth(truth)
    cut = make_run(max_tokens=20).with_truth(truth)

    measures = set(cut.quality()["measure"])
    assert measures == {"agreement", "table_agreement", "box_agreement", "repetition"}
    assert quality_of(equal)["agreement"] == 1.0
    assert 0.0 < quality_of(cut)["agreement"] < 1.0
    assert "agreement with it, not accuracy" in quality_html(cut)
    assert "error rate" not in quality_html(cut)
    assert key_metrics(equal)[-1][:2] == ("Agreement", "100 %")


def test_a_record_without_text_is_no_truth() -> None:
    with refused():
        quality.reference_of(make_run(return_text=False), name="x.json")


def test_a_folder_holds_truths_by_the_pages_names(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("scan.txt", "scan.md", "sub/scan.md", "doc-3.txt", "doc-3-4.md"):
        (tmp_path / name).write_text(name)
    page_in_another_folder = str(tmp_path / "elsewhere" / "scan.png")
    expected = {
        "sub/scan.png": "sub/scan.md",
        "other/scan.png": "scan.md",
        page_in_another_folder: "scan.md",
        "doc.pdf#3": "doc-3.txt",
        "doc.pdf#3-4": "doc-3-4.md",
    }
    for page, name in expected.items():
        assert quality.page_truth(tmp_path, page) == Truth(name, file=Path(name).name)
    assert quality.page_truth(tmp_path, "doc.pdf#4") is None
    with refused():
        load_truth(tmp_path, "doc.pdf#4")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blank.md", " \n"),
        ("picture.md", "![a](b.png)"),
        pytest.param("long.txt", "a " * 600_000, id="long.txt"),
    ],
)
def test_a_truth_without_text_or_with_too_much_is_refused(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with refused():
        load_truth(tmp_path / name)


def test_each_row_has_its_measures_and_differences() -> None:
    run = make_run(rows=2)
    assert not quality_section(run).parts
    for row in range(2):
        run = run.with_truth(truth_with(regions=(TRUTH.regions[0],)), row)
    (section,) = quality_section(run).parts
    assert section.count("1 equal, 4 extra") == 2
    assert section.count("Row 1") == 1
    assert section.count("<h2") == 1


def test_an_empty_truth_judges_nothing_and_says_so() -> None:
    run = make_run().with_truth(Truth("", file="blank.md"))
    assert quality_of(run) == {}
    assert "has no text to compare with" in quality_html(run)


def test_an_attack_in_truth_or_text_stays_text() -> None:
    truth = Truth(ATTACK, (TrueRegion("<b>", (1, 1, 500, 500), ATTACK),), "<i>.md")
    for run in (make_run(text=ATTACK), make_run()):
        shown = Elements(str(quality_html(run.with_truth(truth))))
        assert not {"script", "iframe", "svg", "b", "i"} & shown.tags()
        assert len(shown.attributes_of("img")) == 1  # the page


class FakeSession:
    """A session that measures nothing: each page has the record of the example."""

    device = "cpu"

    def __init__(self, run: PhaseRun) -> None:
        self.run = run
        self.measured: list[Path] = []

    def run_inference(self, page: Path, **_: object) -> PhaseRun:
        self.measured.append(page)
        return self.run


@pytest.fixture
def fake_session(monkeypatch):
    session = FakeSession(make_run())
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)
    return session


def command_with_truth(verb, run, folder):
    """A command on the example's page or record, up to the value of ``--truth``."""
    (folder / "example.md").write_text(TRUTH.text.replace("light", "heavy"))
    if verb == "profile":
        page = folder / "example.png"
        Image.new("RGB", (9, 9)).save(page)
        source = [str(page), "--save"]
    else:
        source = ["--record", str(run.save(folder / "measured.json")), "--out"]
    return [verb, *source, str(folder / "out"), "--json", "--truth"]


@pytest.mark.parametrize("verb", ["report", "verify", "profile"])
def test_a_wrong_truth_is_refused_before_anything_slow(verb, fake_session, tmp_path, capsys):
    command = command_with_truth(verb, fake_session.run, tmp_path)
    for wrong in ([str(tmp_path / "no.md")], [str(tmp_path), "--no-return-text"]):
        assert main([*command, *wrong]) == 2
        assert json.loads(capsys.readouterr().out)["exit_reason"].endswith(".")
    assert not fake_session.measured


def test_verify_compares_with_a_truth(fake_session, tmp_path, capsys):
    command = command_with_truth("verify", fake_session.run, tmp_path)
    assert main([*command, str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["quality"] == quality_of(fake_session.run.with_truth(tmp_path))


def test_profile_compares_with_a_truth_and_keeps_it(fake_session, tmp_path, capsys):
    command = command_with_truth("profile", fake_session.run, tmp_path)
    assert main([*command, str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["quality"] == quality_of(fake_session.run.with_truth(tmp_path))
    assert PhaseRun.load(tmp_path / "out").truth_of() is not None


def test_report_compares_with_a_truth_shows_it_and_keeps_it(fake_session, tmp_path, capsys):
    command = command_with_truth("report", fake_session.run, tmp_path)
    assert main([*command, str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["reports"][0]["quality"] == quality_of(fake_session.run.with_truth(tmp_path))
    html = (tmp_path / "out" / "report.html").read_text()
    assert "Compared with the reference text example.md" in html
    assert "<del>heavy</del>" in html
    assert PhaseRun.load(tmp_path / "out" / "run.json").truth_of() is not None


def test_the_tables_of_the_docs_are_of_the_shipped_results() -> None:
    text = quality_figures.DOCUMENT.read_text(encoding="utf-8")
    with_tables = with_parts(text, quality_figures.tables())
    assert with_tables == text, "run: python -m benchmarks.quality_figures"
    pages = quality_figures.load("generated")
    assert pages["page"].nunique() == 200
    assert pages.groupby("preset").size().tolist() == [200] * 5
