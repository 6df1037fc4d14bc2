"""What a compiled decode step does in other forms gives what the plain forms give."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.runtime.benchmarking import InductorBenchmarker, benchmarker

from ocr_phases.steps.compiled import FusedForms, first_largest, tuned_steadily


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
        with FusedForms(language_model).installed():
            other_logits, other_weights, other_experts = router(hidden)
        order, other = experts.argsort(), other_experts.argsort()
        assert experts.gather(1, order).equal(other_experts.gather(1, other))
        torch.testing.assert_close(weights.gather(1, order), other_weights.gather(1, other))
        torch.testing.assert_close(logits, other_logits)


def test_the_other_forms_are_gone_behind_the_block(golden_session):
    language_model = golden_session.family.stages(golden_session.model)["language_model"]
    with FusedForms(language_model).installed():
        changed = [module for module in language_model.modules() if "forward" in vars(module)]
    kinds = {type(module).__name__.removeprefix("UnlimitedOcrText") for module in changed}
    assert kinds == {"RMSNorm", "TopkRouter", "SiLUActivation"}
    assert not [module for module in language_model.modules() if "forward" in vars(module)]


def test_the_compiler_s_timer_writes_more_within_the_block_only():
    """It reads this entry before it asks for the device's cache."""
    assert isinstance(benchmarker, InductorBenchmarker)
    with tuned_steadily():
        assert benchmarker.L2_cache_size == 256 * 2**20
    assert "L2_cache_size" not in vars(benchmarker)
