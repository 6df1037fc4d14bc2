"""The cost model against the real class: parameters exactly, FLOPs by torch's counter on the meta device.

docs/cost.md and the example of docs/how-it-works.md say what it computes.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED, PAGES, TINY_CONFIG
from example_run import altered
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import cost_tables
from benchmarks.documents import with_parts
from ocr_phases.analyse.cost import (
    VisionCall,
    decode_cost,
    expected_experts,
    prefill_cost,
    read_architecture,
    run_cost,
    stage_cost,
    vision_calls,
)
from ocr_phases.config import read_model_config
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.models.wiring import NATIVES, family_of, native_config
from ocr_phases.record import PhaseRun

ROOT = Path(__file__).parents[1]
PUBLISHED = FAMILIES[DEEPSEEK_OCR].config
CONFIGS = {f"full {name}": facts.config for name, facts in FAMILIES.items()} | {"tiny": TINY_CONFIG}
CONFIGS |= {
    f"golden {folder.name}": json.loads((folder / "checkpoint/config.json").read_text())
    for folder in (GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED)
}
GRIDS = ((1, 1), (2, 1), (2, 3))
CALLS = {
    name: [(preset.name, grid) for preset in facts.presets.values() for grid in GRIDS[: 1 + 2 * preset.crops]]
    for name, facts in FAMILIES.items()
}
ONCE = {"preset": "tiny", "max_new_tokens": 3, "repeats": 1, "warmup": 0, "ceilings": False}

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "UnlimitedOcrForConditionalGeneration"):
    pytest.skip("needs the native class of transformers >= 5.20", allow_module_level=True)

Counts = dict[str, int]


@pytest.fixture(scope="module", params=CONFIGS)
def built(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Any]:
    """A config and the class it makes, without weights."""
    config = CONFIGS[request.param]
    with torch.device("meta"):
        model_class = NATIVES[read_model_config(config).family.name].model_class()
        model = model_class._from_config(
            native_config(config), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    # The one implementation that runs without looking at the routing, which the meta device has none of.
    model.set_experts_implementation("batched_mm")
    return config, model.eval()


def counted(run: Any, *modules: str) -> list[int]:
    """FLOPs of modules, by default of all together, while ``run()`` runs."""
    with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
        run()
    found = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    return [found.get(name, 0) for name in modules or ("Global",)]


def count_vision(model: Any, call: VisionCall) -> Counts:
    """FLOPs of the vision stages, called as the model calls them: the whole would look at the ids."""
    stages, flops = family_of(model).stages(model), Counts()

    def through(stage: str, *inputs: torch.Tensor, **named: Any) -> Any:
        outputs: list[Any] = []
        (flops[stage],) = counted(lambda: outputs.append(stages[stage](*inputs, **named)))
        return outputs[0]

    pixels = torch.empty((call.images, 3, call.side, call.side), dtype=torch.bfloat16, device="meta")
    seen = through("sam", pixels).last_hidden_state
    patches = seen.flatten(2).transpose(1, 2)
    if "clip" in stages:
        read = through("clip", seen).last_hidden_state
        through("projector", torch.cat([read[:, 1:], patches], dim=-1))
    else:
        count = patches.shape[1]
        both = torch.cat([patches, patches], dim=1)
        read = through("encoder", inputs_embeds=both, num_patches=count).last_hidden_state
        through("projector", read[:, count:])
    return flops


def ours(table: pd.DataFrame) -> Counts:
    return {str(stage): int(flops) for stage, flops in table.groupby("stage")["flops"].sum().items()}


def agree(expected: Counts, table: pd.DataFrame) -> None:
    for stage, flops in expected.items():
        assert ours(table).get(stage, 0) == pytest.approx(flops, rel=0.01), stage


def language_forward(model: Any, batch: int, length: int, cached: int = 0, **options: Any) -> None:
    text = model.config.get_text_config()
    cache = transformers.DynamicCache(config=text)
    ready = family_of(model).ready_mask(None)
    if cached:
        shape = (batch, text.num_key_value_heads, cached, text.head_dim)
        for layer in range(text.num_hidden_layers):
            kept = torch.empty(shape, dtype=torch.bfloat16)
            cache.update(kept, kept, layer)
    ids = torch.zeros((batch, length), dtype=torch.int64)
    model(input_ids=ids, attention_mask=ready, past_key_values=cache, use_cache=True, **options)


def test_parameters_are_exactly_the_models(built: tuple[dict[str, Any], Any]) -> None:
    config, model = built
    table = prefill_cost(config, prompt_len=1, views=[VisionCall("global", 1024)])
    assert int(table["parameters"].sum()) == sum(p.numel() for p in model.parameters())
    by_stage = table.groupby("stage")["parameters"].sum()
    for stage, held in family_of(model).parameters(model).items():
        assert stage == "total" or by_stage[stage] == held


def test_vision_flops_are_those_torch_counts(built: Any) -> None:
    config, model = built
    family = family_of(model).facts.name
    seen = set()
    full = config == FAMILIES[family].config  # in a small model every side is computed alike
    for preset, grid in CALLS[family][-len(GRIDS) if full else 0 :]:
        calls = vision_calls(preset, [grid], family)
        for call in {*calls} - seen:
            table = prefill_cost(config, prompt_len=1, views=[call])
            agree(count_vision(model, call), table)
        seen |= {*calls}
        whole = ours(prefill_cost(config, prompt_len=1, views=calls))
        each = [ours(prefill_cost(config, prompt_len=1, views=[call])) for call in calls]
        assert whole["sam"] == sum(part["sam"] for part in each)


@pytest.mark.parametrize(
    ("batch", "length", "cached"),
    [(1, 91, 0), (1, 912, 0), (3, 282, 0), (1, 1, 1), (1, 1, 999), (4, 1, 999), (1, 1, 8191)],
)
def test_language_flops_are_those_torch_counts(built: Any, batch: int, length: int, cached: int) -> None:
    """Of a prefill with the logits of one position and of all, and of a decode step."""
    config, model = built
    stages, top = ("language_model", "lm_head"), type(model).__name__
    modules = [f"{top}.{family_of(model).wiring.modules[stage]}" for stage in stages]
    for kept, logits_for in ((1, "last"), (0, "all")):
        flops = counted(
            lambda kept=kept: language_forward(model, batch, length, cached, logits_to_keep=kept), *modules
        )
        if cached:
            table = decode_cost(config, cache_len=cached + 1, batch=batch)
        else:
            table = prefill_cost(config, prompt_len=length, batch=batch, logits_for=logits_for)
        agree(dict(zip(stages, flops, strict=True)), table)


@given(st.integers(1, 128), st.floats(0.01, 1.0), st.integers(1, 4096), st.integers(0, 64))
def test_expected_experts_grow_from_top_k_to_all(experts: int, share: float, tokens: int, more: int) -> None:
    top_k = max(1, int(share * experts))
    reached = expected_experts(experts, top_k, tokens)
    assert top_k - 1e-9 <= reached <= min(experts, top_k * tokens) + 1e-9
    assert expected_experts(experts, top_k, tokens + more) >= reached - 1e-9
    assert expected_experts(experts, top_k, 1) == pytest.approx(top_k)


@pytest.mark.parametrize("prompt", ["markdown", "<image>\n<image>\nBoth pages."])
def test_several_pages_cost_what_their_cache_holds(tiny_session: Any, prompt: str) -> None:
    """A batch of two rows, which being equal read the experts of one, and one row of two pages."""
    run = tiny_session.run_inference([PAGES / "receipt.png"] * 2, prompt, **ONCE, ignore_eos=True)
    table = run_cost(run)
    prefill, step = (table[table["phase"] == phase] for phase in ("prefill", "decode"))
    assert prefill["kv_bytes"].sum() == run.cache["bytes"][0]
    assert prefill["parameters"].sum() == run.model["parameters"]["total"]
    assert step["kv_bytes"].sum() == run.cache["bytes"][2]  # in the middle of the run, rounded up
    one = prefill_cost(run.model["config"], prompt_len=1, views=[VisionCall("global", 512)], dtype_bytes=4)
    assert ours(prefill)["sam"] == 2 * ours(one)["sam"]
    text = read_architecture(run.model["config"]).text
    assert experts_read(run) == pytest.approx(text.num_experts_per_tok / text.n_routed_experts)


def experts_read(run: PhaseRun) -> float:
    """The share of the experts' float32 weights that a decode step reads."""
    table = run_cost(run)
    of_step = table[(table["phase"] == "decode") & (table["part"] == "experts")]
    return of_step["weight_bytes"].item() / of_step["parameters"].item() / 4


def test_different_rows_read_more_experts(tiny_session: Any) -> None:
    pages = [PAGES / "form.png", PAGES / "paper.png"]
    run = tiny_session.run_inference(pages, **ONCE, ignore_eos=True)
    text = read_architecture(run.model["config"]).text
    reached = expected_experts(text.n_routed_experts, text.num_experts_per_tok, 2)
    assert experts_read(run) == pytest.approx(reached / text.n_routed_experts)


def test_the_vendors_head_runs_over_every_position() -> None:
    run = PhaseRun.load(ROOT / "tests/golden/run.json")
    vendor = altered(run, model={"implementation": "vendor"})
    heads = [ours(run_cost(each).query("phase == 'prefill'"))["lm_head"] for each in (run, vendor)]
    assert heads[1] == heads[0] * run.request["prefill_len"]


def test_what_is_unknown_is_said() -> None:
    cut = copy.deepcopy(PUBLISHED)
    del cut["language_config"]["hidden_size"]
    for asked in (
        lambda: prefill_cost({"model_type": "llama"}, prompt_len=1),
        lambda: decode_cost(cut, cache_len=10),
        lambda: decode_cost(PUBLISHED, cache_len=0),
        lambda: prefill_cost(PUBLISHED, prompt_len=1, logits_for="some"),
        lambda: vision_calls("huge", [(1, 1)]),
        lambda: vision_calls("base", [(1, 1)], "other"),
    ):
        with refused():
            asked()


# -- the docs -----------------------------------------------------------------------------------------


def test_the_tables_are_up_to_date() -> None:
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    assert with_parts(page, cost_tables.tables()) == page, "run: python -m benchmarks.cost_tables"


def test_the_worked_example_is_computed_and_measured() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    run = PhaseRun.load(ROOT / "data/runs/h200-dummy-base.json")
    config, length, tokens = run.model["config"], int(run["prefill_len"]), int(run["tokens"])
    views = vision_calls("base", [(1, 1)])
    table = stage_cost(prefill_cost(config, prompt_len=length, views=views)).set_index("stage")
    prefill, sam, clip = int(table["flops"].sum()), table["flops"]["sam"], table["flops"]["clip"]
    ends = [decode_cost(config, cache_len=length + step).sum() for step in (1, tokens - 1)]
    steps = (tokens - 1) * sum(int(end["flops"]) for end in ends) // 2  # linear in the cache's length
    one = int(decode_cost(config, cache_len=1)["kv_bytes"].sum())
    expected = [
        *(f"| {flops / 1e9:,.1f} |" for flops in (prefill, steps, prefill + steps)),
        *(f"| {sam / 1e9:.1f} | {run['sam_ms']:.1f} ms |", f"| {clip / 1e9:.1f} | {run['clip_ms']:.1f} ms |"),
        " to ".join(f"{end['flops'] / 1e9:.3f}" for end in ends),
        *(f"| {count:,} |" for count in (int(ends[0]["weight_bytes"]), one, length * one)),
        f"x [1, 10, {length + tokens - 1}, 128] | {int(run['kv_cache_bytes']):,} |",
        *(f"| {run[name]:.1f} ms |" for name in ("prefill_ms", "inter_token_ms")),
        f"| {run['decode_ms']:,.0f} ms |",
    ]
    assert [text for text in expected if text not in page] == []
