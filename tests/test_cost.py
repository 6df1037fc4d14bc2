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


def count(model: Any, run: Any) -> Counts:
    """FLOPs of each stage while ``run()`` runs, by module."""
    with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
        run()
    top = type(model).__name__
    found = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    return {stage: found.get(f"{top}.{path}", 0) for stage, path in family_of(model).wiring.modules.items()}


def count_vision(model: Any, call: VisionCall) -> Counts:
    """The same for the vision stages, called as the model calls them: the whole would look at the ids."""
    family = family_of(model)
    stages = family.stages(model)
    counted = {}

    def through(stage: str, *inputs: torch.Tensor, **named: Any) -> Any:
        with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
            output = stages[stage](*inputs, **named)
        counted[stage] = counter.get_total_flops()
        return output

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
    return counted


def ours(table: pd.DataFrame) -> Counts:
    return {str(stage): int(flops) for stage, flops in table.groupby("stage")["flops"].sum().items()}


def agree(expected: Counts, computed: Counts) -> None:
    for stage, flops in expected.items():
        assert computed.get(stage, 0) == pytest.approx(flops, rel=0.01), stage


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
    for preset, grid in CALLS[family]:
        calls = vision_calls(preset, [grid], family)
        for call in {*calls} - seen:
            table = prefill_cost(config, prompt_len=1, views=[call])
            agree(count_vision(model, call), ours(table))
        seen |= {*calls}
        whole = ours(prefill_cost(config, prompt_len=1, views=calls))
        each = [ours(prefill_cost(config, prompt_len=1, views=[call])) for call in calls]
        assert whole["sam"] == sum(part["sam"] for part in each)


@pytest.mark.parametrize(("batch", "length"), [(1, 91), (1, 912), (3, 282)])
def test_prefill_flops_are_those_torch_counts(built: Any, batch: int, length: int) -> None:
    config, model = built
    for kept, logits_for in ((1, "last"), (0, "all")):
        counted = count(model, lambda kept=kept: language_forward(model, batch, length, logits_to_keep=kept))
        table = prefill_cost(config, prompt_len=length, batch=batch, logits_for=logits_for)
        agree({stage: counted[stage] for stage in ("language_model", "lm_head")}, ours(table))


@pytest.mark.parametrize(("batch", "cache_len"), [(1, 2), (1, 1000), (4, 1000), (1, 8192)])
def test_decode_flops_are_those_torch_counts(built: Any, batch: int, cache_len: int) -> None:
    config, model = built
    counted = count(model, lambda: language_forward(model, batch, 1, cached=cache_len - 1))
    table = decode_cost(config, cache_len=cache_len, batch=batch)
    agree({stage: counted[stage] for stage in ("language_model", "lm_head")}, ours(table))


@given(st.integers(1, 128), st.floats(0.01, 1.0), st.integers(1, 4096), st.integers(0, 64))
def test_expected_experts_grow_from_top_k_to_all(experts: int, share: float, tokens: int, more: int) -> None:
    top_k = max(1, int(share * experts))
    reached = expected_experts(experts, top_k, tokens)
    assert top_k - 1e-9 <= reached <= min(experts, top_k * tokens) + 1e-9
    assert expected_experts(experts, top_k, tokens + more) >= reached - 1e-9
    assert expected_experts(experts, top_k, 1) == pytest.approx(top_k)


@pytest.mark.parametrize("path", ["data/runs/h200-dummy-gundam.json", "tests/golden/run.json"])
def test_a_record_says_what_it_cost(path: str) -> None:
    run = PhaseRun.load(ROOT / path)
    table = run_cost(run)
    assert int(table[table["phase"] == "prefill"]["parameters"].sum()) == run.model["parameters"]["total"]
    assert set(table["phase"]) == {"prefill", "decode"}
    step = table[table["phase"] == "decode"]
    middle = run.cache["lengths"][1 + (len(run.cache["lengths"]) - 1) // 2]
    assert step["kv_bytes"].sum() == middle * run.cache["bytes_per_token"]
    assert ("local" in set(table["view"])) == (run.request["preset"] == "gundam")


@pytest.mark.parametrize("prompt", ["markdown", "<image>\n<image>\nBoth pages."])
def test_several_pages_cost_what_their_cache_holds(tiny_session: Any, prompt: str) -> None:
    """A batch of two rows, and one row of two pages."""
    options = {"preset": "tiny", "max_new_tokens": 3, "repeats": 1, "warmup": 0, "ceilings": False}
    run = tiny_session.run_inference([PAGES / "receipt.png"] * 2, prompt, **options)
    table = run_cost(run)
    prefill, step = (table[table["phase"] == phase] for phase in ("prefill", "decode"))
    assert prefill["kv_bytes"].sum() == run.cache["bytes"][0]
    assert step["kv_bytes"].sum() in run.cache["bytes"][1:]
    one = prefill_cost(run.model["config"], prompt_len=1, views=[VisionCall("global", 512)], dtype_bytes=4)
    assert ours(prefill)["sam"] == 2 * ours(one)["sam"]


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


def test_equal_rows_read_the_experts_of_one(tiny_session: Any) -> None:
    options = {"max_new_tokens": 3, "repeats": 1, "warmup": 0, "ignore_eos": True, "ceilings": False}
    equal = tiny_session.run_inference([PAGES / "form.png"] * 2, **options)
    other = tiny_session.run_inference([PAGES / "form.png", PAGES / "paper.png"], **options)
    text = read_architecture(equal.model["config"]).text

    def experts(run: PhaseRun) -> float:
        table = run_cost(run)
        of_step = table[(table["phase"] == "decode") & (table["part"] == "experts")]
        return of_step["weight_bytes"].item() / of_step["parameters"].item()

    share = 4 / text.n_routed_experts
    assert experts(equal) == pytest.approx(share * text.num_experts_per_tok)
    assert experts(other) == pytest.approx(
        share * expected_experts(text.n_routed_experts, text.num_experts_per_tok, 2)
    )


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
    prefill = int(table["flops"].sum())
    ends = [decode_cost(config, cache_len=length + step) for step in (1, tokens - 1)]
    steps = (tokens - 1) * sum(int(end["flops"].sum()) for end in ends) // 2  # linear in the cache's length
    one = int(decode_cost(config, cache_len=1)["kv_bytes"].sum())
    expected = [
        *(f"| {flops / 1e9:,.1f} |" for flops in (prefill, steps, prefill + steps)),
        *(
            f"| {table['flops'][stage] / 1e9:.1f} | {run[f'{stage}_ms']:.1f} ms |"
            for stage in ("sam", "clip")
        ),
        " to ".join(f"{end['flops'].sum() / 1e9:.3f}" for end in ends),
        f"| {ends[0]['weight_bytes'].sum():,} |",
        f"| {one:,} |",
        f"| {length * one:,} |",
        f"x [1, 10, {length + tokens - 1}, 128] | {int(run['kv_cache_bytes']):,} |",
        f"| {run['prefill_ms']:.1f} ms |",
        f"| {run['inter_token_ms']:.1f} ms |",
        f"| {run['decode_ms']:,.0f} ms |",
    ]
    assert [text for text in expected if text not in page] == []
