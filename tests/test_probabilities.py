"""How sure the model was of its tokens: equal to the logits of ``generate()``, kept, and told by
region.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import PAGES
from example_run import EOS, altered, make_run
from golden_cases import captured
from hypothesis import given, settings
from hypothesis import strategies as st
from surface import page_section
from torch import Tensor

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
TOLERANCE = 1e-3  # of logits that reach 20, kept to three decimals
NEW = 24
Driven = Callable[[str, str], tuple[OCRSession, DeviceInputs]]
ASKED: dict[str, Any] = {
    "preset": "tiny",
    "max_new_tokens": 8,
    "repeats": 1,
    "warmup": 0,
    "ceilings": False,
}


def assert_known(
    model: Any, inputs: DeviceInputs, ids: list[list[int]], logits: Any
) -> list[ProbabilitiesPart]:
    """The probabilities of ``ids`` are those that logits [B, vocab] of each step give."""
    found = token_probabilities(model, inputs, ids)
    for row, (tokens, mine) in enumerate(zip(ids, found, strict=True)):
        logprobs, margins = [], []
        for step, token in zip(logits, tokens, strict=False):
            logprobs.append(float(step[row].log_softmax(-1)[token]))
            others = torch.cat([step[row, :token], step[row, token + 1 :]])
            margins.append(float(step[row, token] - others.max()))
        assert mine.logprobs == pytest.approx(logprobs, abs=TOLERANCE)
        assert mine.margins == pytest.approx(margins, abs=TOLERANCE)
    return found


def replayed(model: Any, inputs: DeviceInputs, ids: list[list[int]]) -> list[Tensor]:
    """The logits of decode steps over given tokens."""
    state = prefill(model, inputs)
    logits = [state.logits]
    for tokens in zip(*(row[:-1] for row in ids), strict=True):
        state.token = torch.tensor(tokens)
        decode_step(model, state)
        logits.append(state.logits)
    return logits


GENERATED = {"deepseek-ocr": ("small", "batch"), "deepseek-ocr-2": ("page768",)}
GENERATED["unlimited-ocr"] = ("base", "multi")


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name in GENERATED for case in GENERATED[name]]
)
def test_equal_to_the_logits_of_generate(name: str, case: str, driven: Driven) -> None:
    session, inputs = driven(name, case)
    model = session.model
    arguments = interface_of(model).prefill_arguments(inputs)
    arguments |= {"attention_mask": inputs.attention_mask, "position_ids": None}
    rules = {"do_sample": False, "eos_token_id": None, "pad_token_id": 2, "no_repeat_ngram_size": 1}
    told = {"output_logits": True, "return_dict_in_generate": True}
    whole = model.generate(**arguments, max_new_tokens=NEW, **rules, **told)
    ids = whole.sequences[:, inputs.input_ids.shape[1] :].tolist()
    found = assert_known(model, inputs, ids, whole.logits)
    assert (
        min(value for row in found for value in row.margins) < 0
    )  # where the rule took another token


@pytest.mark.parametrize(("name", "case"), [("unlimited-ocr", "padded"), ("vendor", "crops")])
def test_equal_to_the_logits_of_decode_steps(name: str, case: str, driven: Driven) -> None:
    """generate() mistakes the padding of rows beyond a window; any tokens will do."""
    session, inputs = driven(name, case)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 250, (len(inputs.input_ids), NEW), generator=generator).tolist()
    assert_known(session.model, inputs, ids, replayed(session.model, inputs, ids))


def test_nothing_is_known_behind_an_image_token_or_of_what_is_no_number(driven: Driven) -> None:
    session, inputs = driven("deepseek-ocr", "small")
    model = session.model
    image = int(inputs.input_ids[inputs.images_seq_mask][0])
    (whole,) = token_probabilities(model, inputs, [[5, 6, 7, 8]])
    (cut,) = token_probabilities(model, inputs, [[5, 6, image, 8]])
    assert cut.logprobs[:2] == pytest.approx(whole.logprobs[:2], abs=TOLERANCE)
    assert [value is None for value in cut.margins] == [False, False, False, True]
    with model.lm_head.register_forward_hook(lambda head, given, out: out.fill_(math.nan)):
        assert token_probabilities(model, inputs, [[5, 6]]) == [
            ProbabilitiesPart(logprobs=[None] * 2, margins=[None] * 2)
        ]


@pytest.fixture(scope="module")
def run(golden_session: OCRSession) -> PhaseRun:
    return golden_session.run_inference(PAGES / "receipt.png", **ASKED)


def test_a_record_keeps_them(golden_session: OCRSession, run: PhaseRun) -> None:
    (row,) = run.probabilities
    assert max(row.logprobs) <= 0 and min(row.margins) >= 0  # greedy, without a rule
    assert PhaseRun.from_dict(run.to_dict()).probabilities == run.probabilities
    # Older records, which have no such setting, are of the same request.
    assert "token_probabilities" not in to_plain(run.request)
    inputs = golden_session.prepare(PAGES / "receipt.png", preset="tiny").to("cpu", torch.float32)
    (wanted,) = token_probabilities(golden_session.model, inputs, [run.result.ids])
    assert row.logprobs == pytest.approx(wanted.logprobs, abs=TOLERANCE)
    assert row.margins == pytest.approx(wanted.margins, abs=TOLERANCE)


@pytest.mark.parametrize(
    "extra", [{"first_token": "redecode"}, {"return_text": False, "generate": True}]
)
def test_they_follow_every_way_to_run(extra: dict[str, Any], golden_session: OCRSession) -> None:
    pages, asked = (
        [PAGES / "receipt.png", PAGES / "slide.png"],
        {**ASKED, "infer": {"temperature": 2.0}},
    )
    made = golden_session.run_inference(pages, **asked, **extra)
    assert [len(row.logprobs) for row in made.probabilities] == [
        len(row.ids) for row in made.results
    ]
    assert made.tokens_of(1)["probability"].notna().all()
    assert min(made.probabilities[0].margins) < 0  # sampled tokens are others than the likeliest


def test_without_them_nothing_more_runs(golden_session: OCRSession, run: PhaseRun) -> None:
    with captured(golden_session.model.lm_head, "output") as heads:
        plain = golden_session.run_inference(
            PAGES / "receipt.png", **ASKED, token_probabilities=False
        )
    assert len(heads) == len(plain.result.ids)
    assert set(run.to_dict()) - set(plain.to_dict()) == {"probabilities"}


EXAMPLE = make_run()


def with_texts(
    contents: list[str], logprobs: list[float | None] | None, split: int = 3
) -> PhaseRun:
    """A record of regions with these contents, cut into tokens of ``split`` characters at most."""
    text = "".join(
        f"<|ref|>text<|/ref|><|det|>[[10, {10 + 240 * number}, 900, "
        f"{200 + 240 * number}]]<|/det|>{content}"
        for number, content in enumerate(contents)
    )
    texts = [text[start : start + split] for start in range(0, len(text), split)] + [EOS]
    result = to_plain(EXAMPLE.result) | {
        "text": text,
        "ids": list(range(len(texts))),
        "token_texts": texts,
    }
    values = (
        [logprobs[number % len(logprobs)] for number in range(len(texts))] if logprobs else None
    )
    known = values and [{"logprobs": values, "margins": values}]
    return altered(EXAMPLE, results=[result], probabilities=known)


@settings(deadline=None, max_examples=15)
@given(
    contents=st.lists(st.text("ab \n", max_size=9), max_size=4),
    logprobs=st.none() | st.lists(st.none() | st.floats(-0.5, 0), min_size=1, max_size=40),
    split=st.integers(1, 5),
)
def test_marking_agrees_with_a_plain_computation(contents, logprobs, split):
    run = with_texts(contents, logprobs, split)
    regions, known = run.regions.query("region >= 0"), run.tokens["probability"]
    ends = run.tokens["text"].str.len().cumsum()
    starts, place, means = ends.shift(fill_value=0), 0, list[float]()
    for content in contents:
        begin = run.text.index("<|/det|>", place) + len("<|/det|>")
        place = begin + len(content)
        first, last = begin + len(content) - len(content.lstrip()), begin + len(content.rstrip())
        means.append(known[(starts < last) & (ends > first) & (first < last)].mean(skipna=False))
    assert regions["probability"].tolist() == pytest.approx(means, nan_ok=True)
    marked = regions["uncertain"].sum()
    assert regions["uncertain"].tolist() == (regions["probability"] < UNCERTAIN_BELOW).tolist()
    said = uncertain_sentence(run)
    assert said.startswith(f"{marked} of {len(contents)} regions ") if marked else said == ""


UNSURE = with_texts(["\ngood", "\nbad one"], [0.0] * 22 + [-2.0] * 22, split=3)
SURE = with_texts(["\ngood", "\nbad one"], [0.0])


def test_a_report_tells_which_regions_are_uncertain() -> None:
    said = "1 of 2 regions is uncertain: its text has a mean token probability below 90 %."
    assert said in verdict(UNSURE) and said in text_notes_section(UNSURE).html()
    regions = parse_grounding(SURE.text).regions
    tags = [
        [box.text for box in region_boxes(regions, (400, 300), run.regions)]
        for run in (SURE, UNSURE)
    ]
    assert tags == [tags[0], [tags[0][0], f"{tags[0][1]}?"]]
    assert "? is uncertain: mean token probability below 90 %" in page_section(UNSURE).html()
    unknown = replace(UNSURE, probabilities=None)
    whole = page_section(unknown).html() + text_notes_section(unknown).html() + verdict(unknown)
    assert "probability" not in whole and "uncertain" not in whole


def test_the_docs_have_the_figures_of_the_file() -> None:
    regions = pd.read_csv(uncertain_regions.RESULT)
    assert uncertain_regions.found(regions) in DOCUMENT.read_text("utf-8")
