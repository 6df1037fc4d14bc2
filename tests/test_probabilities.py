"""How sure the model was of its tokens: equal to the logits of ``generate()``, kept, and told by
region.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import PAGES
from example_run import EOS, altered, make_run
from golden_cases import Driven, captured
from grounding_texts import marked
from hypothesis import given, settings
from hypothesis import strategies as st
from surface import page_section
from torch import Tensor, nn

from benchmarks import uncertain_regions
from benchmarks.quality_figures import DOCUMENT
from ocr_phases import OCRSession, PhaseRun, decode_step, prefill
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.regions import UNCERTAIN_BELOW
from ocr_phases.analyse.sentences import uncertain_sentence, verdict
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.measure.probabilities import token_probabilities
from ocr_phases.models.wiring import interface_of
from ocr_phases.record.parts import ProbabilitiesPart, to_plain
from ocr_phases.show.boxes import region_boxes
from ocr_phases.show.page_and_text import text_notes_section

pytestmark = pytest.mark.usefixtures("pixels_seen_once")
#: Of logits that reach 20 and are kept to three decimals.
TOLERANCE = 1e-3
#: How many tokens are generated.
COUNT = 24
RECEIPT = PAGES / "receipt.png"
QUICK: dict[str, Any] = {
    "preset": "tiny",
    "max_new_tokens": 8,
    "repeats": 1,
    "warmup": 0,
    "ceilings": False,
}


def margin_of(logits: Tensor, token: int) -> float:
    """How far the logit of a token, of all [vocab], lies above the largest other one."""
    others = torch.cat([logits[:token], logits[token + 1 :]])
    return float(logits[token] - others.max())


def assert_probabilities_follow(
    found: Sequence[ProbabilitiesPart], ids: list[list[int]], logits: Sequence[Tensor]
) -> None:
    """Each row's probabilities are those that the logits [B, vocab] of each step give its ids."""
    assert len(found) == len(ids)
    for row, tokens in enumerate(ids):
        logprobs = []
        margins = []
        for step, token in zip(logits, tokens, strict=False):
            logprobs.append(float(step[row].log_softmax(-1)[token]))
            margins.append(margin_of(step[row], token))
        assert found[row].logprobs == pytest.approx(logprobs, abs=TOLERANCE)
        assert found[row].margins == pytest.approx(margins, abs=TOLERANCE)


def step_logits(model: Any, inputs: DeviceInputs, ids: list[list[int]]) -> list[Tensor]:
    """The logits [B, vocab] of the prefill and of each decode step over the rows' tokens."""
    state = prefill(model, inputs)
    logits = [state.logits]
    for token in torch.tensor(ids).T[:-1]:
        state.token = token
        decode_step(model, state)
        logits.append(state.logits)
    return logits


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("deepseek-ocr", "small"),
        ("deepseek-ocr", "batch"),
        ("deepseek-ocr-2", "page768"),
        ("unlimited-ocr", "base"),
        ("unlimited-ocr", "multi"),
    ],
)
def test_probabilities_equal_those_of_the_logits_of_generate(
    name: str, case: str, driven: Driven
) -> None:
    session, inputs = driven(name, case)
    arguments = interface_of(session.model).prefill_arguments(inputs)
    arguments |= {"attention_mask": inputs.attention_mask, "position_ids": None}
    generated = session.model.generate(
        **arguments,
        max_new_tokens=COUNT,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=2,
        no_repeat_ngram_size=1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    ids = generated.sequences[:, inputs.input_ids.shape[1] :].tolist()

    found = token_probabilities(session.model, inputs, ids)

    assert_probabilities_follow(found, ids, generated.logits)
    # Somewhere the rule against repetition took another token than the likeliest.
    smallest_margins = [min(row.margins) for row in found]
    assert min(smallest_margins) < 0


@pytest.mark.parametrize(("name", "case"), [("unlimited-ocr", "padded"), ("vendor", "crops")])
def test_probabilities_equal_those_of_the_logits_of_decode_steps(
    name: str, case: str, driven: Driven
) -> None:
    """generate() mistakes the padding of rows beyond a window; any tokens will do."""
    session, inputs = driven(name, case)
    rows = len(inputs.input_ids)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 250, (rows, COUNT), generator=generator).tolist()

    found = token_probabilities(session.model, inputs, ids)

    assert_probabilities_follow(found, ids, step_logits(session.model, inputs, ids))


def test_nothing_is_known_behind_an_image_token(driven: Driven) -> None:
    session, inputs = driven("deepseek-ocr", "small")
    image_token = int(inputs.input_ids[inputs.images_seq_mask][0])

    (of_text,) = token_probabilities(session.model, inputs, [[5, 6, 7, 8]])
    (with_image,) = token_probabilities(session.model, inputs, [[5, 6, image_token, 8]])

    assert with_image.logprobs[:2] == pytest.approx(of_text.logprobs[:2], abs=TOLERANCE)
    assert [margin is None for margin in with_image.margins] == [False, False, False, True]


def test_nothing_is_known_where_the_logits_are_no_numbers(driven: Driven) -> None:
    session, inputs = driven("deepseek-ocr", "small")

    def without_numbers(_head: nn.Module, _inputs: object, logits: Tensor) -> Tensor:
        return logits.fill_(math.nan)

    with session.model.lm_head.register_forward_hook(without_numbers):
        (found,) = token_probabilities(session.model, inputs, [[5, 6]])

    assert found == ProbabilitiesPart(logprobs=[None, None], margins=[None, None])


@pytest.fixture(scope="module")
def run(golden_session: OCRSession) -> PhaseRun:
    """A page that was read greedily, without a rule."""
    return golden_session.run_inference(RECEIPT, **QUICK)


def test_a_record_keeps_the_probabilities_of_its_tokens(
    golden_session: OCRSession, run: PhaseRun
) -> None:
    inputs = golden_session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)

    (expected,) = token_probabilities(golden_session.model, inputs, [run.result.ids])

    (row,) = run.probabilities
    assert row.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)
    assert row.margins == pytest.approx(expected.margins, abs=TOLERANCE)
    assert max(row.logprobs) <= 0
    assert min(row.margins) >= 0
    assert PhaseRun.from_dict(run.to_dict()).probabilities == run.probabilities


def test_a_record_with_probabilities_is_of_the_same_request_as_an_older_one(run: PhaseRun) -> None:
    assert "token_probabilities" not in to_plain(run.request)


@pytest.mark.parametrize(
    "way",
    [
        pytest.param({"first_token": "redecode"}, id="the first token by a step"),
        pytest.param({"return_text": False, "generate": True}, id="generate() without a text"),
    ],
)
def test_each_row_has_probabilities_whichever_way_it_ran(
    way: dict[str, Any], golden_session: OCRSession
) -> None:
    pages = [RECEIPT, PAGES / "slide.png"]

    run = golden_session.run_inference(pages, **QUICK, infer={"temperature": 2.0}, **way)

    counts = [len(row.logprobs) for row in run.probabilities]
    assert counts == [len(row.ids) for row in run.results]
    assert run.tokens_of(1)["probability"].notna().all()
    assert min(run.probabilities[0].margins) < 0  # sampled tokens are others than the likeliest


def test_without_probabilities_nothing_more_runs(golden_session: OCRSession, run: PhaseRun) -> None:
    with captured(golden_session.model.lm_head, "output") as outputs_of_head:
        plain = golden_session.run_inference(RECEIPT, **QUICK, token_probabilities=False)

    assert len(outputs_of_head) == len(plain.result.ids)
    assert set(run.to_dict()) - set(plain.to_dict()) == {"probabilities"}


# -- how sure the model was of a region ------------------------------------------------------------

EXAMPLE = make_run()


def with_regions(
    contents: list[str], logprobs: list[float | None] | None, token_length: int = 3
) -> PhaseRun:
    """A record of regions with these contents, cut into tokens of so many characters at most.

    The tokens have the log probabilities in turn.
    """
    text = ""
    for number, content in enumerate(contents):
        top = 10 + 240 * number
        text += marked("text", [[10, top, 900, top + 190]]) + content
    starts = range(0, len(text), token_length)
    texts = [text[start : start + token_length] for start in starts] + [EOS]
    result = to_plain(EXAMPLE.result)
    result |= {"text": text, "ids": list(range(len(texts))), "token_texts": texts}
    probabilities = None
    if logprobs:
        values = list(islice(cycle(logprobs), len(texts)))
        probabilities = [{"logprobs": values, "margins": values}]
    return altered(EXAMPLE, results=[result], probabilities=probabilities)


@settings(deadline=None, max_examples=15)
@given(
    contents=st.lists(st.text("ab \n", max_size=9), max_size=4),
    logprobs=st.none() | st.lists(st.none() | st.floats(-0.5, 0), min_size=1, max_size=40),
    token_length=st.integers(1, 5),
)
def test_a_region_is_as_sure_as_the_mean_of_the_tokens_of_its_text(
    contents: list[str], logprobs: list[float | None] | None, token_length: int
) -> None:
    run = with_regions(contents, logprobs, token_length)

    regions = run.regions.query("region >= 0")

    means = region_means(run, contents)
    assert regions["probability"].tolist() == pytest.approx(means, nan_ok=True)
    is_below = regions["probability"] < UNCERTAIN_BELOW
    assert regions["uncertain"].tolist() == is_below.tolist()
    sentence = uncertain_sentence(run)
    if is_below.any():
        assert sentence.startswith(f"{is_below.sum()} of {len(contents)} regions ")
    else:
        assert sentence == ""


def region_means(run: PhaseRun, contents: list[str]) -> list[float]:
    """The mean probability of the tokens that have a character of each region's stripped text."""
    probabilities = run.tokens["probability"]
    ends = run.tokens["text"].str.len().cumsum()
    starts = ends.shift(fill_value=0)
    means = []
    place = 0
    for content in contents:
        begin = run.text.index("<|/det|>", place) + len("<|/det|>")
        place = begin + len(content)
        first = begin + len(content) - len(content.lstrip())
        last = begin + len(content.rstrip())
        within = (starts < last) & (ends > first) & (first < last)
        means.append(probabilities[within].mean(skipna=False))
    return means


#: A record of two regions, of the second of which the model was not sure.
UNSURE = with_regions(["\ngood", "\nbad one"], [0.0] * 22 + [-2.0] * 22)
#: The same regions, of both of which it was sure.
SURE = with_regions(["\ngood", "\nbad one"], [0.0])


def test_an_uncertain_region_is_told_in_the_verdict_and_in_the_report() -> None:
    sentence = "1 of 2 regions is uncertain: its text has a mean token probability below 90 %."
    assert sentence in verdict(UNSURE)
    assert sentence in text_notes_section(UNSURE).html()


def test_the_tag_of_an_uncertain_region_has_a_question_mark() -> None:
    first, second = region_tags(SURE)

    assert region_tags(UNSURE) == [first, f"{second}?"]
    assert "? is uncertain: mean token probability below 90 %" in page_section(UNSURE).html()


def region_tags(run: PhaseRun) -> list[str]:
    """What stands on the tag of each region of a record's page."""
    regions = parse_grounding(run.text).regions
    return [box.text for box in region_boxes(regions, (400, 300), run.regions)]


def test_without_probabilities_nothing_is_said_of_certainty() -> None:
    run = replace(UNSURE, probabilities=None)

    for text in (page_section(run).html(), text_notes_section(run).html(), verdict(run)):
        assert "probability" not in text
        assert "uncertain" not in text


def test_the_docs_have_the_figures_of_the_file() -> None:
    regions = pd.read_csv(uncertain_regions.RESULT)

    assert uncertain_regions.found(regions) in DOCUMENT.read_text("utf-8")
