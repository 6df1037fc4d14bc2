"""Where a text differs from its truth: the table, the words, the page, the report, the record."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from elements import Elements
from example_run import ATTACK, REGIONS, make_run, two_page_run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from benchmarks import quality_figures
from benchmarks.documents import with_parts
from ocr_phases import PhaseRun
from ocr_phases.analyse.quality import (
    DIFFERENCE_COLUMNS,
    load_truth,
    page_truth,
    quality_of,
    reference_of,
    region_differences,
)
from ocr_phases.analyse.sentences import key_metrics
from ocr_phases.analyse.text import plain_text, word_edits
from ocr_phases.cli import main
from ocr_phases.schema import TrueRegion, Truth
from ocr_phases.show import results
from ocr_phases.show.quality import edits_html, quality_html

ROOT = Path(__file__).parents[1]
TRUTH = Truth(
    "\n\n".join(text for _, _, text in REGIONS),
    tuple(TrueRegion(label, box, text) for label, box, text in REGIONS),
    "page.json",
)


def changed(**regions: Any) -> Truth:
    """The example's truth with other regions."""
    return msgspec.structs.replace(TRUTH, **regions)


def outcomes(run: PhaseRun, truth: Truth) -> list[str]:
    table = region_differences(run, truth)
    assert tuple(table.columns) == DIFFERENCE_COLUMNS
    return table["outcome"].tolist()


def test_regions_are_paired_by_their_boxes() -> None:
    run = make_run()
    assert {*outcomes(run, TRUTH), *outcomes(run, changed(regions=()))} == {"equal"}
    assert quality_of(run.with_truth(TRUTH))["cer"] == 0.0
    first, second, picture, table, last = TRUTH.regions
    lost = TrueRegion("text", (60, 910, 930, 990), "Only on the page")
    more = msgspec.structs.replace(second, text=f"{second.text} more")
    found = region_differences(run, changed(regions=(first, more, lost, picture, last)))
    assert found["outcome"].tolist() == ["equal", "different", "missing", "equal", "extra", "equal"]
    assert found["label"].tolist() == ["title", "text", "text", "image", table.label, "text"]
    missing, extra = found.iloc[2], found.iloc[4]
    assert (missing["true"], missing["written"], missing["cer"]) == ("Only on the page", "", 1.0)
    assert extra["true"] == "" and extra["cer"] != extra["cer"]


def test_without_boxes_words_go_to_the_regions_they_meet() -> None:
    text = plain_text(TRUTH.text).replace("Where the", "Where all the").replace("light but", "heavy and")
    found = region_differences(make_run(), Truth(text))
    assert found["outcome"].tolist() == ["different", "equal", "equal", "equal", "different"]
    assert found["true"].iloc[0] == "Where all the time goes"
    # Nothing is lost and nothing is counted twice.
    assert " ".join(filter(None, found["true"])) == text
    # A text without boxes: its words go to the truth's regions.
    plain = make_run(text="\n\n".join(words for _, _, words in REGIONS[:-1]))
    told = region_differences(plain, TRUTH)
    assert told["outcome"].tolist() == ["equal"] * 4 + ["missing"]
    assert told["box"].notna().all() and told["true"].iloc[-1] == plain_text(REGIONS[-1][2])
    assert outcomes(two_page_run(), changed(text="one a b")) == ["equal", "equal", "equal"]


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
    assert again.truths is not None and [again.truth_of(row) for row in range(3)] == [None, TRUTH, None]
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
    assert 0.0 < quality_of(run)["agreement"] < 1.0 == quality_of(base.with_truth(truth))["agreement"]
    shown = quality_html(run)
    assert "agreement with it, not accuracy" in shown and "error rate" not in shown
    assert key_metrics(base.with_truth(truth))[-1][:2] == ("Agreement", "100 %")
    with refused():
        reference_of(make_run(return_text=False), name="x.json")


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
        assert page_truth(tmp_path, page) == Truth(name, file=Path(name).name)
    assert page_truth(tmp_path, "doc.pdf#4") is None
    with refused():
        load_truth(tmp_path, "doc.pdf#4")
    texts = {"blank.md": " \n", "picture.md": "![a](b.png)", "long.txt": "a " * 600_000}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        with refused():
            load_truth(tmp_path / name)


def test_each_row_has_its_measures_and_differences() -> None:
    run = make_run(rows=2)
    assert not results.quality(run).parts
    for row in range(2):
        run = run.with_truth(changed(regions=(TRUTH.regions[0],)), row)
    (section,) = results.quality(run).parts
    assert section.count("1 equal, 4 extra") == 2 and section.count("Row 1") == section.count("<h2") == 1
    blank = make_run().with_truth(Truth("", file="blank.md"))  # which judges nothing
    assert quality_of(blank) == {} and "has no text to compare with" in quality_html(blank)


def test_an_attack_in_truth_or_text_stays_text() -> None:
    truth = Truth(ATTACK, (TrueRegion("<b>", (1, 1, 500, 500), ATTACK),), "<i>.md")
    for run in (make_run(text=ATTACK), make_run()):
        shown = Elements(str(quality_html(run.with_truth(truth))))
        assert not {"script", "iframe", "svg", "b", "i"} & shown.tags()
        assert sum(tag == "img" for tag, _ in shown.found) == 1  # the page


@pytest.mark.parametrize("verb", ["report", "verify", "profile"])
def test_a_verb_compares_with_a_truth(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, page, out = make_run(), tmp_path / "example.png", tmp_path / "out"
    (tmp_path / "example.md").write_text(TRUTH.text.replace("light", "heavy"))
    Image.new("RGB", (9, 9)).save(page)
    measured: list[Path] = []
    session = SimpleNamespace(run_inference=lambda page, **_: (measured.append(page), run)[1])
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **_: session)
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
        assert "Compared with the truth example.md" in html and "<del>heavy</del>" in html
    kept = {"report": out / "run.json", "profile": out}.get(verb)
    assert kept is None or PhaseRun.load(kept).truth_of() is not None


def test_the_tables_of_the_docs_are_of_the_shipped_results() -> None:
    text = quality_figures.DOCUMENT.read_text(encoding="utf-8")
    assert with_parts(text, quality_figures.tables()) == text, "run: python -m benchmarks.quality_figures"
    pages = quality_figures.load("generated")
    assert pages["page"].nunique() == 200 and pages.groupby("preset").size().tolist() == [200] * 5
