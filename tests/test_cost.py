"""The cost model against the real class: parameters exactly, FLOPs by torch's counter on the meta device.

docs/cost.md says what it computes.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED, PAGES
from example_run import altered
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from benchmarks import cost_tables
from benchmarks.documents import with_parts
from ocr_phases.analyse import cost
from ocr_phases.config import read_model_config
from ocr_phases.families import FAMILIES
from ocr_phases.models.weights import dummy_config
from ocr_phases.models.wiring import NATIVES, family_of, native_config
from ocr_phases.record import PhaseRun

ROOT = Path(__file__).parents[1]
FULL = {f"full {name}": facts.config for name, facts in FAMILIES.items()}
#: FLOPs are counted of the published widths with two layers of a kind: more would only be counted again.
COUNTED = {
    f"short {name}": dummy_config(f"dummy:{name},layers=2,sam_layers=2,{facts.encoders[1]}_layers=2")
    for name, facts in FAMILIES.items()
}
for short in COUNTED.values():
    short["vision_config"]["width"]["sam_vit_b"]["global_attn_indexes"] = [1]
COUNTED |= {
    f"golden {folder.name}": json.loads((folder / "checkpoint/config.json").read_text())
    for folder in (GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED)
}
GRIDS = ((1, 1), (2, 3))
CALLS = {
    name: [(preset.name, grid) for preset in facts.presets.values() for grid in GRIDS[: 1 + preset.crops]]
    for name, facts in FAMILIES.items()
}

#: Of the published models: all parameters, the window and the positions.
SIZES = {
    "deepseek-ocr": (3_335_504_128, None, 8192),
    "deepseek-ocr-2": (3_389_119_360, None, 8192),
    "unlimited-ocr": (3_335_504_128, 128, 32768),
}
#: Pages, their prompt, and how many of the rows differ.
SEVERAL = [("receipt receipt", "markdown", 1), ("form paper", "markdown", 2)]
SEVERAL += [("receipt receipt", "<image>\n<image>\nBoth pages.", 1)]
Counts = dict[str, int]


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Any]:
    """A config and the class it makes, without weights."""
    config = (FULL | COUNTED)[request.param]
    with torch.device("meta"):
        model_class = NATIVES[read_model_config(config).family.name].model_class()
        model = model_class._from_config(
            native_config(config), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    # The one implementation that runs without looking at the routing, which the meta device has none of.
    model.set_experts_implementation("batched_mm")
    return config, model.eval()


def counted(run: Any, *modules: str) -> list[int]:
    """FLOPs of modules, and of ``Global``, which is all together, while ``run()`` runs."""
    with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
        run()
    found = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    return [found.get(name, 0) for name in modules]


def count_vision(model: Any, call: cost.VisionCall) -> Counts:
    """FLOPs of the vision stages, called as the model calls them: the whole would look at the ids."""
    stages, flops = family_of(model).stages(model), Counts()

    def through(stage: str, *inputs: torch.Tensor, **named: Any) -> Any:
        outputs: list[Any] = []
        (flops[stage],) = counted(lambda: outputs.append(stages[stage](*inputs, **named)), "Global")
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
    cache = DynamicCache(config=text)
    ready = family_of(model).ready_mask(None)
    if cached:
        shape = (batch, text.num_key_value_heads, cached, text.head_dim)
        for layer in range(text.num_hidden_layers):
            kept = torch.empty(shape, dtype=torch.bfloat16)
            cache.update(kept, kept, layer)
    ids = torch.zeros((batch, length), dtype=torch.int64)
    model(input_ids=ids, attention_mask=ready, past_key_values=cache, use_cache=True, **options)


@pytest.mark.parametrize("built", [*FULL, *COUNTED], indirect=True)
def test_parameters_are_exactly_the_models(built: tuple[dict[str, Any], Any]) -> None:
    config, model = built
    table = cost.prefill_cost(config, prompt_len=1, views=[cost.VisionCall("global", 1024)])
    family = family_of(model)
    assert [other for other in NATIVES.values() if other.drives(model)] == [family]
    by_stage, held = table.groupby("stage")["parameters"].sum(), family.parameters(model)
    assert by_stage.sum() == held["total"] == sum(p.numel() for p in model.parameters())
    assert all(stage == "total" or by_stage[stage] == count for stage, count in held.items())
    if config in FULL.values():
        positions = model.config.text_config.max_position_embeddings
        assert (held["total"], family.window(model), positions) == SIZES[family.facts.name]


@pytest.mark.parametrize("built", COUNTED, indirect=True)
def test_vision_flops_are_those_torch_counts(built: Any) -> None:
    config, model = built
    name = family_of(model).facts.name
    for call in {call for preset, grid in CALLS[name] for call in cost.vision_calls(preset, [grid], name)}:
        agree(count_vision(model, call), cost.prefill_cost(config, prompt_len=1, views=[call]))


@pytest.mark.parametrize("built", COUNTED, indirect=True)
def test_language_flops_are_those_torch_counts(built: Any) -> None:
    """Of a prefill with the logits of one position and of all, and of a decode step."""
    config, model = built
    stages, top = ("language_model", "lm_head"), type(model).__name__
    modules = [f"{top}.{family_of(model).wiring.modules[stage]}" for stage in stages]
    rows, length = 3, 282
    for kept, logits_for in ((1, "last"), (0, "all")):
        run = partial(language_forward, model, rows, length, logits_to_keep=kept)
        table = cost.prefill_cost(config, prompt_len=length, batch=rows, logits_for=logits_for)
        agree(dict(zip(stages, counted(run, *modules), strict=True)), table)
    for rows, cached in ((1, 1), (4, 999), (1, 8191)):
        run = partial(language_forward, model, rows, 1, cached)
        table = cost.decode_cost(config, cache_len=cached + 1, batch=rows)
        agree(dict(zip(stages, counted(run, *modules), strict=True)), table)


@pytest.mark.parametrize(("pages", "prompt", "distinct"), SEVERAL)
def test_several_pages_cost_what_their_cache_holds(pages, prompt, distinct, golden_session, pixels_seen_once):
    """A batch of two rows, which read the experts of one where they are equal, and one row of two pages."""
    once = {"preset": "tiny", "max_new_tokens": 3, "repeats": 1, "warmup": 0, "ceilings": False}
    once |= {"ignore_eos": True, "token_probabilities": False}
    paths = [PAGES / f"{page}.png" for page in pages.split()]
    run = golden_session.run_inference(paths, prompt, **once)
    table = cost.run_cost(run)
    prefill, step = (table[table["phase"] == phase] for phase in ("prefill", "decode"))
    assert prefill["kv_bytes"].sum() == run.cache["bytes"][0]
    assert prefill["parameters"].sum() == run.model["parameters"]["total"]
    assert step["kv_bytes"].sum() == run.cache["bytes"][2]  # in the middle of the run, rounded up
    view = cost.VisionCall("global", 512)
    one = cost.prefill_cost(run.model["config"], prompt_len=1, views=[view], dtype_bytes=4)
    assert ours(prefill)["sam"] == 2 * ours(one)["sam"]
    text, experts = cost.read_architecture(run.model["config"]).text, step[step["part"] == "experts"].iloc[0]
    missed = 1 - text.num_experts_per_tok / text.n_routed_experts  # by one row, with routing uniform
    assert experts["weight_bytes"] / experts["parameters"] / 4 == pytest.approx(1 - missed**distinct)


def test_the_vendors_head_runs_over_every_position() -> None:
    run = PhaseRun.load(ROOT / "tests/golden/run.json")
    vendor = altered(run, model={"implementation": "vendor"})
    heads = [ours(cost.run_cost(each).query("phase == 'prefill'"))["lm_head"] for each in (run, vendor)]
    assert heads[1] == heads[0] * run.request["prefill_len"]


def test_the_tables_are_up_to_date() -> None:
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    assert with_parts(page, cost_tables.tables()) == page, "run: python -m benchmarks.cost_tables"
