"""Classes that differ in one way from the others: tokens, caches, counts, probabilities."""

import pytest
import torch
import transformers
from conftest import PAGES
from more_any_classes import MORE_FOLDERS
from PIL import Image

from ocr_phases import OCRSession

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = PAGES / "receipt.png"
ASKED = {"max_new_tokens": 8, "repeats": 1, "warmup": 0, "ignore_eos": True, "ceilings": False}


@pytest.fixture(scope="module", autouse=True)
def few_patches():
    """The processor of Kosmos-2.5 makes 4,096 patches of any page, for which no file of a model has
    an entry: attention over them would take most of the time.
    """
    options = {**transformers.Kosmos2_5Processor.images_kwargs, "max_patches": 256}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.Kosmos2_5Processor, "images_kwargs", options)
        yield


@pytest.fixture(scope="module", params=sorted(MORE_FOLDERS))
def loaded(request, tmp_path_factory):
    """The name of a class, and a session of a model of it."""
    folder = MORE_FOLDERS[request.param]().save(tmp_path_factory.mktemp("models") / "model")
    return request.param, OCRSession.load(folder)


def generated(session, page):
    """The class's own tokens of a page and their logits, [tokens, vocab]."""
    inputs = session.prepare(page).to("cpu", torch.float32)
    out = session.model.generate(
        **inputs.arguments,
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return out.sequences[0, inputs.input_ids.shape[1] :], torch.cat(out.logits)


def test_tokens_stages_and_probabilities_are_those_of_the_class(loaded):
    _, session = loaded
    run = session.run_inference(PAGE, verify=True, **ASKED)
    tokens, logits = generated(session, PAGE)

    assert run.result.ids == tokens.tolist()
    verdicts = dict(zip(run.checks["name"], run.checks["verdict"], strict=True))
    assert verdicts["parity"] == "pass"
    assert "fail" not in verdicts.values()
    lengths = run.cache.lengths
    assert [after - before for before, after in zip(lengths, lengths[1:], strict=False)] == [1] * 7
    roles = {stage.role for stage in run.model.stages}
    assert roles >= {"vision", "projector", "language", "head"}
    assert "layers" in str(session)

    expected = logits.log_softmax(dim=-1).gather(1, tokens[:, None])[:, 0].tolist()
    assert run.probabilities[0].logprobs == pytest.approx(expected, abs=0.01)


def test_the_record_has_the_image_tokens_of_each_page(loaded, tmp_path):
    name, session = loaded
    wide = tmp_path / "wide.png"
    with Image.open(PAGES / "slide.png") as page:
        page.crop((0, 0, 900, 300)).save(wide)
    run = session.run_inference([PAGE, wide], verify=True, **ASKED)

    parity = run.checks[run.checks["name"] == "parity"]
    assert parity["verdict"].tolist() == ["pass"]
    rows = session.prepare([PAGE, wide]).input_ids
    for page, row in zip(run.pages, rows, strict=True):
        if name == "kosmos-2.5":
            assert page.image_tokens is None
        else:
            assert page.image_tokens == int((row == session.checkpoint.image_token_id).sum())
            assert page.image_tokens > 0
