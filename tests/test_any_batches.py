"""Batches of a class of no known family: each row gives what its page gives alone, or is
refused.
"""

import shutil

import pytest
import torch
from any_classes import FOLDERS
from batch_example import QUICK, measured_here, statuses
from conftest import PAGES
from PIL import Image
from wording import says

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.batch.archive import read_listing
from ocr_phases.cli import main

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = {"max_new_tokens": 4, "repeats": 1, "warmup": 0, "ignore_eos": True, "ceilings": False}
#: Classes that treat the padding of prompts and of pages in different ways.
KINDS = ("idefics3", "internvl", "lighton_ocr", "llava_onevision")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two pages that most processors turn into different numbers of tokens."""
    folder = tmp_path_factory.mktemp("pages")
    with Image.open(PAGES / "slide.png") as page:
        page.resize((400, 400)).save(folder / "square.png")
        page.crop((0, 0, 900, 300)).resize((360, 120)).save(folder / "wide.png")
    return [folder / "square.png", folder / "wide.png"]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """A model whose processor pads, loaded once for all faults."""
    return OCRSession.load(FOLDERS["qwen2_5_vl"]().save(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("name", KINDS)
def test_rows_of_unequal_length_give_what_each_page_gives_alone(name, pages, tmp_path):
    session = OCRSession.load(FOLDERS[name]().save(tmp_path))
    assert session.prepare(pages).padded
    alone = [session.run_inference(page, **ASKED).result.ids for page in pages]
    together = session.run_inference(pages, verify=True, **ASKED)
    assert [result.ids for result in together.results] == alone
    verdicts = dict(zip(together.checks["name"], together.checks["verdict"], strict=True))
    assert verdicts["parity"] == "pass"
    assert verdicts["rows_alone"] == "pass"


class ChangedBatches:
    """A processor that treats batches in another way than single pages."""

    def __init__(self, processor, change):
        self._processor = processor
        self._change = change

    def __getattr__(self, name):
        return getattr(self._processor, name)

    def __call__(self, images, text, **options):
        if len(text) == 1:
            return self._processor(images=images, text=text, **options)
        return self._change(self._processor, images, text, options)


def padded_on_the_right(processor, images, text, options):
    return processor(images=images, text=text, **{**options, "padding_side": "right"})


def without_a_mask(processor, images, text, options):
    made = processor(images=images, text=text, **options)
    made["attention_mask"] = torch.ones_like(made["attention_mask"])
    return made


def with_the_last_page_twice(processor, images, text, options):
    return processor(images=[images[-1]] * len(images), text=text, **options)


def with_dark_pixels(processor, images, text, options):
    made = processor(images=images, text=text, **options)
    made["pixel_values"] = made["pixel_values"] - 1
    return made


FAULTS = (
    padded_on_the_right,
    without_a_mask,
    with_the_last_page_twice,
    with_dark_pixels,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_batch_that_changes_its_rows_is_refused_in_a_sentence(fault, session, pages):
    processor = ChangedBatches(session.checkpoint.packer.processor, fault)
    wrong = OCRSession.from_model(session.model, processor)
    with pytest.raises(OcrPhasesError, match="row . does not give what its page gives alone") as no:
        wrong.run_inference(pages, **ASKED)
    assert "measure these pages one at a time" in str(no.value)


def test_the_verb_batch_measures_pages_of_such_a_model_resumes_and_lists_them(
    pages, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", measured_here)
    folder = tmp_path / "in"
    folder.mkdir()
    for page in pages:
        shutil.copy(page, folder)
    model = FOLDERS["qwen2_5_vl"]().save(tmp_path / "model")
    out = tmp_path / "out"
    command = ["batch", str(folder), "--out", str(out), "--model", str(model), *QUICK]
    command += ["--no-ceilings"]

    assert main(command) == 0
    assert says(capsys.readouterr().out, "2 pages", "2 measured", "0 failed")
    assert list(statuses(out)) == ["square.png", "wide.png"]
    index = (out / "index.html").read_text(encoding="utf-8")
    for entry in read_listing(out):
        run = PhaseRun.load(out / entry["folder"] / "run.json")
        assert run.model.family == "qwen2_5_vl"
        assert run.pages[0].preset == "processor"
        assert run.pages[0].image_tokens > 0
        assert f"{entry['folder']}/report.html" in index
    assert "deepseek" not in index.lower()

    assert main(command) == 0
    assert says(capsys.readouterr().out, "2 finished", "measures 0 pages", "2 kept")


def test_a_page_alone_and_copies_of_a_page_need_no_proof(session, pages):
    for batch in (pages[0], [pages[0]] * 2):
        run = session.run_inference(batch, **ASKED)
        assert "rows_alone" not in set(run.checks["name"])
