"""What a batch read as files of their own: a PDF as one document, predictions for OmniDocBench."""

import json
import re
from dataclasses import replace

import pypdfium2
import pytest
from batch_example import a_job, put_page
from example_run import make_run
from grounding_texts import marked
from PIL import Image

from ocr_phases.batch.archive import list_pages
from ocr_phases.cli import main
from ocr_phases.report.document_files import (
    PAGE_SPLIT,
    DocumentPage,
    document_files,
    prediction_text,
)

RENDERED = {"state": "done", "reason": ""}
PICTURE = marked("image", "[[0, 0, 500, 500], [500, 500, 999, 999]]")


def put_batch(out, *jobs, failed=()):
    """A batch of these jobs, each with the record of a page of its own text; the texts by name."""
    out.mkdir()
    list_pages(jobs, out)
    texts = {}
    for number, job in enumerate(jobs):
        if job.name in failed:
            put_page(out, job, None, failure="timeout", reason="More than 3 s.")
            continue
        text = f"{PICTURE}{marked('text', '[[0, 0, 99, 99]]')}Page {job.name}"
        run = make_run(text=text, page_name=job.name, seed=number, repeats=1)
        put_page(out, job, run.to_json(), report=RENDERED)
        texts[job.name] = text
    return texts


def export(out, *options):
    return main(["batch", "--render", "only", "--out", str(out), *map(str, options), "--json"])


def pages_of(text):
    return re.split(rf"\n\n{PAGE_SPLIT}\n", text)[:-1]


def test_a_pdf_is_one_document_in_which_a_failed_page_keeps_its_place(tmp_path, capsys):
    jobs = [a_job(f"scan.pdf#{number}") for number in (1, 2, 3)]
    texts = put_batch(tmp_path / "out", *jobs, a_job("photo.png"), failed=["scan.pdf#2"])
    assert export(tmp_path / "out", "--documents", tmp_path / "docs") == 1
    folder = tmp_path / "docs" / "scan"
    told = json.loads(capsys.readouterr().out)
    assert told["documents"] == [str(folder)]
    assert sorted(path.name for path in (folder / "images").iterdir()) == [
        "0_0.jpg",
        "0_1.jpg",
        "2_0.jpg",
        "2_1.jpg",
    ]
    first, second, third = pages_of((folder / "scan.mmd").read_text())
    assert re.findall(r"!\[\]\((.*?)\)", first) == ["images/0_0.jpg", "images/0_1.jpg"]
    assert "Page scan.pdf#3" in third and "<|ref|>" not in third
    assert second == ""
    originals = pages_of((folder / "scan_det.mmd").read_text())
    assert originals == [texts["scan.pdf#1"], "", texts["scan.pdf#3"]]
    assert len(pypdfium2.PdfDocument(folder / "scan_layouts.pdf")) == 2


def test_a_document_of_several_presets_is_one_of_each(tmp_path):
    jobs = [a_job("scan.pdf#1", preset=preset) for preset in ("tiny", "base")]
    put_batch(tmp_path / "out", *jobs)
    assert export(tmp_path / "out", "--documents", tmp_path, "--predictions", tmp_path / "p") == 0
    assert (tmp_path / "scan-tiny" / "scan.mmd").is_file()
    assert (tmp_path / "scan-base" / "scan.mmd").is_file()
    assert (tmp_path / "p" / "base" / "scan-1.md").is_file()


def test_two_files_of_one_name_are_two_documents(tmp_path):
    one = a_job("scan.pdf#1")
    other = replace(one, name="sub/scan.pdf#1", source="/in/sub/scan.pdf#1", id="")
    put_batch(tmp_path / "out", one, other)
    assert export(tmp_path / "out", "--documents", tmp_path / "docs") == 0
    names = [path.name for path in (tmp_path / "docs").iterdir()]
    assert sorted(names) == ["scan", "scan-2"]


def test_a_long_document_has_all_its_pages_in_their_order():
    pages = [
        DocumentPage(number, f"Page {number}", Image.new("RGB", (10 + number, 20), "white"))
        for number in range(1, 36)
    ]
    files = document_files("long", iter(pages))
    assert pages_of(files["long.mmd"].decode()) == [f"Page {number}" for number in range(1, 36)]
    document = pypdfium2.PdfDocument(files["long_layouts.pdf"])
    widths = [round(page.get_width() * 144 / 72) for page in document]
    assert widths == [10 + number for number in range(1, 36)]


def test_a_document_without_pictures_has_its_texts_alone():
    files = document_files("plain", [DocumentPage(1, "Text"), DocumentPage(2)])
    assert list(files) == ["plain.mmd", "plain_det.mmd"]


def test_predictions_are_named_like_their_images(tmp_path, capsys):
    out, folder = tmp_path / "out", tmp_path / "predictions"
    jobs = [a_job("a.jpg"), a_job("b.v2.png"), a_job("sub/a.jpg"), a_job("failed.png")]
    put_batch(out, *jobs, failed=["failed.png"])
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    assert export(out, "--predictions", folder) == 1
    told = json.loads(capsys.readouterr().out)["predictions"]
    assert told["written"] == 2
    assert told["left_out"] == {
        "sub/a.jpg": "another page is called a.md, too",
        "failed.png": "it was not measured",
    }
    assert {path.name for path in folder.glob("*.*") if path.name[0] != "."} == {
        "a.md",
        "b.v2.md",
        "notes.txt",
    }
    assert (folder / "a.md").read_text() == "Page a.jpg\n"


def test_a_file_of_somebody_else_is_not_replaced_by_a_prediction(tmp_path, capsys):
    out, folder = tmp_path / "out", tmp_path / "predictions"
    put_batch(out, a_job("a.jpg"))
    folder.mkdir()
    (folder / "a.md").write_text("mine")
    assert export(out, "--predictions", folder) == 2
    assert (folder / "a.md").read_text() == "mine"
    assert export(out, "--predictions", folder, "--overwrite") == 0
    assert (folder / "a.md").read_text() == "Page a.jpg\n"


@pytest.mark.parametrize(
    ("text", "family", "prediction"),
    [
        ("Text<｜end▁of▁sentence｜>", "deepseek-ocr", "Text\n"),
        (marked("title", "[[1, 2, 3, 4]]") + "# T", "deepseek-ocr", "# T\n"),
        (f"One\n\n{PICTURE}\n\nTwo", "deepseek-ocr", "One\n\nTwo\n"),
        (r"\[ x = 1 \quad (3) \] and \(y\)", "deepseek-ocr", "\\[x = 1\\] and \\(y\\)\n"),
        ("<center>Figure 1</center>", "deepseek-ocr", "Figure 1\n"),
        (
            "<table><tr><td>1</td></tr></table>",
            "deepseek-ocr",
            "<table><tr><td>1</td></tr></table>\n",
        ),
        ("<PAGE><|det|>text [1, 2, 3, 4]<|/det|>A", "unlimited-ocr", "A\n"),
        ("plain", "got_ocr2", "plain\n"),
        ("", "deepseek-ocr", "\n"),
    ],
)
def test_a_prediction_is_the_text_without_marks(text, family, prediction):
    assert prediction_text(text, family) == prediction


def test_exports_of_texts_that_are_not_kept_are_refused(tmp_path, capsys):
    command = ["batch", "page.png", "--no-return-text", "--predictions", str(tmp_path)]
    assert main([*command, "--json"]) == 2
    assert "--predictions" in json.loads(capsys.readouterr().out)["exit_reason"]
