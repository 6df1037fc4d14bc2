"""Compiled steps and encoders on a CPU: made once, and equal to the eager ones."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from conftest import PAGES
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.checks import run_checks, with_verdict
from ocr_phases.analyse.sentences import verdict
from ocr_phases.show.results import cards
from ocr_phases.steps import execution as strategies
from ocr_phases.steps.compiled import compiled_apart, first_largest, fused_forms
from ocr_phases.text import bytes_text

RECEIPT = PAGES / "receipt.png"
QUICK = {"repeats": 1, "warmup": 0, "ceilings": False, "token_probabilities": False}


@pytest.fixture
def traced(monkeypatch):
    """torch.compile traces, but leaves the work to torch's own kernels: no minutes in a C++ compiler."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.mark.skipif(
    strategies._missing_compiler("cpu") is not None, reason="torch.compile finds no C++ compiler here"
)
def test_compiled_steps_equal_eager_and_are_made_once(golden_session, tmp_path):
    session = OCRSession(golden_session.checkpoint)
    options = {"preset": "tiny", "max_new_tokens": 40, **QUICK}
    eager = session.run_inference(RECEIPT, **options)
    run = session.run_inference(RECEIPT, strategy="compiled", verify=True, **options)
    assert run.results == eager.results
    setup = run.model["strategy_setup"]
    assert setup["compile_ms"] > 0
    assert (setup["max_cache_len"], setup["capture_ms"], setup["reused"]) == (8192, None, False)
    assert run.model["decode_experts"] == "batched_mm"
    assert run.cache["allocated_bytes"] == setup["allocated_bytes"] == 8192 * run.cache["bytes_per_token"]
    assert run.cache["lengths"] == eager.cache["lengths"]
    assert run.request["eos_check_every"] == 16
    stages = run.spans.groupby("phase")["stage"].unique()
    assert set(stages["decode"]) == {"decode", "decode_step", "sampling"}
    assert set(stages["prefill"]) == set(eager.spans.loc[eager.spans["phase"] == "prefill", "stage"].unique())

    loaded = PhaseRun.load(run.save(tmp_path / "run.json"))
    checks = {check.name: check for check in run_checks(loaded)}
    assert not with_verdict(checks.values(), "fail")
    for name in ("parity", "cache_growth", "cache_linear", "attention_mask"):
        assert checks[name].verdict == "pass"
    assert checks["mask_handed_over"].measured.startswith("compiled steps do not call the model")

    room = bytes_text(setup["allocated_bytes"]).replace(" ", "\xa0")
    assert f"room for {room}" in cards(loaded).html()
    assert "not included: compiling the decode step" in verdict(loaded)
    options |= {"infer": {"no_repeat_ngram_size": 3}}
    with torch._dynamo.config.patch(error_on_recompile=True):
        again = session.run_inference(PAGES / "slide.png", strategy="compiled", **options)
    assert again.results == session.run_inference(PAGES / "slide.png", **options).results
    assert again.model["strategy_setup"] == {**setup, "reused": True}


def test_compiled_vision_is_made_once_a_shape_and_gives_the_same(traced, golden_session):
    session = OCRSession(golden_session.checkpoint)
    options = {"max_new_tokens": 2, **QUICK}
    plain = session.run_inference(RECEIPT, preset="tiny", **options)
    told: list[str] = []
    with strategies.told_of_preparing(told.append):
        runs = [
            session.run_inference(RECEIPT, preset=preset, vision="compiled", **options)
            for preset in ("tiny", "small", "tiny")
        ]
    made = [" ".join((text.split()[1], text.split(" (")[1])) for text in told]
    assert made == ["SAM 1 of 2)", "CLIP 2 of 2)", "SAM 1)", "CLIP 2)"]
    assert runs[0].results == plain.results
    assert plain.model["vision_setup"] is None
    assert [run.model["vision"] for run in runs] == ["compiled"] * 3
    first, other, again = (run.model["vision_setup"]["compile_ms"] for run in runs)
    assert first == again != other
    # The stages are timed around the compiled encoders, and the encoders are themselves again afterwards.
    stages = session.family.stages(session.model)
    for stage in ("sam", "clip"):
        assert runs[0].stage_ms(stage).tolist()
        assert "forward" not in vars(stages[stage])
    inputs = session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)
    with session.vision.installed():
        compiled = session.run_prefill(inputs).logits
    torch.testing.assert_close(compiled, session.run_prefill(inputs).logits, atol=1e-4, rtol=0)


def test_what_cannot_be_compiled_is_one_sentence():
    def breaks(value):
        torch._dynamo.graph_break()
        return value + 1

    compiled = compiled_apart(breaks)
    with refused() as caught:
        strategies.first_call_ms("cpu", partial(compiled, torch.ones(1)))
    assert "\n" not in str(caught.value)


def test_many_shapes_do_not_crowd_each_other_out(traced):
    for size in range(1, 2 * torch._dynamo.config.recompile_limit):
        assert compiled_apart(lambda value: value * 2)(torch.ones(size)).sum() == 2 * size


# -- forms that the compiler fuses ---------------------------------------------------------------------


@given(rows=st.integers(1, 3), width=st.integers(1, 700), kinds=st.integers(1, 5), seed=st.integers(0, 99))
@settings(deadline=None)
def test_the_first_largest_is_argmax_also_where_values_are_equal(rows, width, kinds, seed):
    scores = torch.randint(kinds, (rows, width), generator=torch.Generator().manual_seed(seed)).float()
    torch.testing.assert_close(first_largest(scores), scores.argmax(dim=-1, keepdim=True))


def test_a_router_chooses_the_same_experts_with_the_same_weights(golden_session):
    language_model = golden_session.family.stages(golden_session.model)["language_model"]
    routers = [module for module in language_model.modules() if hasattr(module, "topk_method")]
    assert routers
    for router in routers:
        hidden = torch.randn(1, 5, router.hidden_dim, generator=torch.Generator().manual_seed(0))
        logits, weights, experts = router(hidden)
        with strategies.forwards(fused_forms(language_model)):
            other_logits, other_weights, other_experts = router(hidden)
        order, other = experts.argsort(), other_experts.argsort()
        assert experts.gather(1, order).equal(other_experts.gather(1, other))
        torch.testing.assert_close(weights.gather(1, order), other_weights.gather(1, other))
        torch.testing.assert_close(logits, other_logits)
