"""What a batch read as files of their own: a PDF as one document, predictions for OmniDocBench."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pypdfium2
import pytest
from batch_example import a_job, put_page
from example_run import make_run
from grounding_texts import marked
from PIL import Image

from ocr_phases.batch.archive import list_pages
from ocr_phases.batch.jobs import Job
from ocr_phases.cli import main
from ocr_phases.report.document_files import (
    PAGE_SPLIT,
    DocumentPage,
    document_files,
    prediction_text,
)

RENDERED = {"state": "done", "reason": ""}
TWO_PICTURES = marked("image", "[[0, 0, 500, 500], [500, 500, 999, 999]]")


def text_of(job: Job) -> str:
    """What the model wrote of a job's page: two pictures and a line."""
    return f"{TWO_PICTURES}{marked('text', '[[0, 0, 99, 99]]')}Page {job.name}"


def put_batch(out: Path, *jobs: Job, failed: tuple[str, ...] = ()) -> None:
    """A finished batch of these jobs, each with the record of a page of its own text."""
    out.mkdir()
    list_pages(jobs, out)
    for number, job in enumerate(jobs):
        if job.name in failed:
            put_page(out, job, None, failure="timeout", reason="More than 3 s.")
        else:
            run = make_run(text=text_of(job), page_name=job.name, seed=number, repeats=1)
            put_page(out, job, run.to_json(), report=RENDERED)


def export(out: Path, *options: object) -> int:
    """The exit code of the verb that makes files of a finished batch."""
    command = ["batch", "--render", "only", "--out", str(out), *map(str, options)]
    return main([*command, "--json"])


def pages_of(text: str) -> list[str]:
    """The pages of a document's text."""
    return re.split(rf"\n\n{PAGE_SPLIT}\n", text)[:-1]


# -- documents -------------------------------------------------------------------------------------


def test_a_pdf_is_one_document_in_which_a_failed_page_keeps_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [a_job(f"scan.pdf#{number}") for number in (1, 2, 3)]
    put_batch(tmp_path / "out", *jobs, a_job("photo.png"), failed=("scan.pdf#2",))

    assert export(tmp_path / "out", "--documents", tmp_path / "docs") == 1

    folder = tmp_path / "docs" / "scan"
    assert json.loads(capsys.readouterr().out)["documents"] == [str(folder)]
    images = sorted(path.name for path in (folder / "images").iterdir())
    assert images == ["0_0.jpg", "0_1.jpg", "2_0.jpg", "2_1.jpg"]

    first, second, third = pages_of((folder / "scan.mmd").read_text())
    assert re.findall(r"!\[\]\((.*?)\)", first) == ["images/0_0.jpg", "images/0_1.jpg"]
    assert second == ""
    assert "Page scan.pdf#3" in third
    assert "<|ref|>" not in third

    originals = pages_of((folder / "scan_det.mmd").read_text())
    assert originals == [text_of(jobs[0]), "", text_of(jobs[2])]
    assert len(pypdfium2.PdfDocument(folder / "scan_layouts.pdf")) == 2


def test_a_document_of_several_presets_is_one_of_each(tmp_path: Path) -> None:
    jobs = [a_job("scan.pdf#1", preset=preset) for preset in ("tiny", "base")]
    put_batch(tmp_path / "out", *jobs)

    assert export(tmp_path / "out", "--documents", tmp_path, "--predictions", tmp_path / "p") == 0

    assert (tmp_path / "scan-tiny" / "scan.mmd").is_file()
    assert (tmp_path / "scan-base" / "scan.mmd").is_file()
    assert (tmp_path / "p" / "base" / "scan-1.md").is_file()


def test_two_files_of_one_name_are_two_documents(tmp_path: Path) -> None:
    job = a_job("scan.pdf#1")
    of_another_folder = replace(job, name="sub/scan.pdf#1", source="/in/sub/scan.pdf#1", id="")
    put_batch(tmp_path / "out", job, of_another_folder)

    assert export(tmp_path / "out", "--documents", tmp_path / "docs") == 0

    names = [path.name for path in (tmp_path / "docs").iterdir()]
    assert sorted(names) == ["scan", "scan-2"]


def test_a_long_document_has_all_its_pages_in_their_order() -> None:
    numbers = range(1, 36)
    pages = [
        DocumentPage(number, f"Page {number}", Image.new("RGB", (10 + number, 20), "white"))
        for number in numbers
    ]

    files = document_files("long", iter(pages))

    assert pages_of(files["long.mmd"].decode()) == [f"Page {number}" for number in numbers]
    layouts = pypdfium2.PdfDocument(files["long_layouts.pdf"])
    widths = [round(page.get_width() * 144 / 72) for page in layouts]
    assert widths == [10 + number for number in numbers]


def test_a_document_without_pictures_has_its_texts_alone() -> None:
    files = document_files("plain", [DocumentPage(1, "Text"), DocumentPage(2)])
    assert list(files) == ["plain.mmd", "plain_det.mmd"]


# -- predictions -----------------------------------------------------------------------------------


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    """An empty folder for predictions."""
    folder = tmp_path / "predictions"
    folder.mkdir()
    return folder


def test_predictions_are_named_like_their_images(
    predictions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [a_job("a.jpg"), a_job("b.v2.png"), a_job("sub/a.jpg"), a_job("failed.png")]
    put_batch(tmp_path / "out", *jobs, failed=("failed.png",))
    (predictions / "notes.txt").write_text("mine")

    assert export(tmp_path / "out", "--predictions", predictions) == 1

    told = json.loads(capsys.readouterr().out)["predictions"]
    assert told["written"] == 2
    assert told["left_out"] == {
        "sub/a.jpg": "another page is called a.md, too",
        "failed.png": "it was not measured",
    }
    files = {path.name for path in predictions.glob("*.*") if not path.name.startswith(".")}
    assert files == {"a.md", "b.v2.md", "notes.txt"}
    assert (predictions / "a.md").read_text() == "Page a.jpg\n"


def test_a_file_of_somebody_else_is_not_replaced_by_a_prediction(
    predictions: Path, tmp_path: Path
) -> None:
    put_batch(tmp_path / "out", a_job("a.jpg"))
    prediction = predictions / "a.md"
    prediction.write_text("mine")

    assert export(tmp_path / "out", "--predictions", predictions) == 2
    assert prediction.read_text() == "mine"
    assert export(tmp_path / "out", "--predictions", predictions, "--overwrite") == 0
    assert prediction.read_text() == "Page a.jpg\n"


TABLE = "<table><tr><td>1</td></tr></table>"


@pytest.mark.parametrize(
    ("text", "family", "prediction"),
    [
        pytest.param("Text<｜end▁of▁sentence｜>", "deepseek-ocr", "Text\n", id="the end token"),
        pytest.param(
            marked("title", "[[1, 2, 3, 4]]") + "# T", "deepseek-ocr", "# T\n", id="a title"
        ),
        pytest.param(
            f"One\n\n{TWO_PICTURES}\n\nTwo", "deepseek-ocr", "One\n\nTwo\n", id="pictures"
        ),
        pytest.param(
            r"\[ x = 1 \quad (3) \] and \(y\)",
            "deepseek-ocr",
            "\\[x = 1\\] and \\(y\\)\n",
            id="formulas",
        ),
        pytest.param(
            "<center>Figure 1</center>", "deepseek-ocr", "Figure 1\n", id="a centred line"
        ),
        pytest.param(TABLE, "deepseek-ocr", f"{TABLE}\n", id="a table"),
        pytest.param(
            "<PAGE><|det|>text [1, 2, 3, 4]<|/det|>A", "unlimited-ocr", "A\n", id="a page mark"
        ),
        pytest.param("plain", "got_ocr2", "plain\n", id="another family"),
        pytest.param("", "deepseek-ocr", "\n", id="no text"),
    ],
)
def test_a_prediction_is_the_text_without_marks(text: str, family: str, prediction: str) -> None:
    assert prediction_text(text, family) == prediction


def test_exports_of_texts_that_are_not_kept_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["batch", "page.png", "--no-return-text", "--predictions", str(tmp_path)]
    assert main([*command, "--json"]) == 2
    assert "--predictions" in json.loads(capsys.readouterr().out)["exit_reason"]
