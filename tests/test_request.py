"""What is asked for is refused before anything is measured, or is measured and can be saved."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refused

from ocr_phases.errors import OcrPhasesError
from ocr_phases.settings import RunSettings, SamplingSettings
from ocr_phases.steps.sampling import Sampler

NUMBERS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([10**400, 2**63, -(2**64), math.inf, -math.inf, math.nan, 5e-324]),
)
VALUES = st.one_of(
    NUMBERS,
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.lists(NUMBERS, max_size=2),
    st.binary(max_size=3),
)
SETTINGS = (
    *("prompt", "preset", "max_new_tokens", "eos_check_every", "repeats", "warmup", "seed"),
    *("first_token", "strategy", "vision", "generate", "verify", "grounding", "return_text", "ignore_eos"),
    *("autocast", "embed_page", "ceilings"),
)


@example({"seed": 2**63})
@example({"seed": math.nan})
@example({"repeats": True})
@example({"preset": ["tiny"]})
@example({"prompt": "caf\udce9"})
@example({"embed_page": "false"})
@given(st.dictionaries(st.sampled_from(SETTINGS), VALUES, max_size=3))
def test_a_setting_that_is_accepted_can_be_saved(settings: dict[str, Any]) -> None:
    try:
        RunSettings(**settings)
    except OcrPhasesError as error:
        assert str(error).count("\n") == 0
    else:
        saved = json.dumps(settings, allow_nan=False, ensure_ascii=False).encode()
        assert json.loads(saved) == settings


@example({"temperature": math.inf})
@example({"temperature": 5e-324})
@example({"temperature": 2})
@example({"top_k": 10**400})
@example({"do_sample": "no"})
@given(
    st.dictionaries(
        st.sampled_from(["do_sample", "temperature", "top_p", "top_k", "no_repeat_ngram_size", "heat", 5]),
        VALUES,
        max_size=3,
    )
)
def test_sampling_that_is_accepted_runs_and_can_be_saved(infer: dict[Any, Any]) -> None:
    import torch

    try:
        settings = SamplingSettings.from_infer(infer)
    except OcrPhasesError as error:
        assert str(error).count("\n") == 0
    else:
        json.dumps(asdict(settings), allow_nan=False)
        logits = torch.tensor([[-30.0, 0.0, 30.0]])
        assert 0 <= Sampler(settings)(logits, torch.tensor([[0, 1]])).item() <= 2


@pytest.mark.parametrize("infer", [5, "hot", "a=b", "a\nb=1", [("temperature", 1.0)]])
def test_an_infer_that_is_no_mapping_is_refused(infer: Any) -> None:
    with refused():
        SamplingSettings.from_infer(infer)


@pytest.mark.parametrize("prompt", [5, None, ["markdown", 5], b"markdown", "\ud800"])
def test_a_prompt_that_is_no_text_is_refused(prompt: Any) -> None:
    with refused():
        RunSettings(prompt=prompt)
