"""The cost model against the real class: parameters, FLOPs by torch's counter, memory; and what
pages cost.

docs/cost.md says what it computes.
"""

import json
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import psutil
import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED, PAGES, RUNS
from example_run import altered, make_run
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache
from wording import says

from benchmarks import cost_tables
from benchmarks.documents import with_parts
from ocr_phases import OcrPhasesError, PhaseRun, Settings, SweepResult
from ocr_phases.analyse import cost
from ocr_phases.analyse.cards import key_metrics
from ocr_phases.cli import main
from ocr_phases.cli.options import BATCH, EVERY, SHARED
from ocr_phases.families import FAMILIES, ViewSizes
from ocr_phases.families.config import read_model_config
from ocr_phases.measure.cells import Cell
from ocr_phases.measure.memory_fit import fit
from ocr_phases.models.dummies import dummy_config
from ocr_phases.models.wiring import interface_of, native_class, native_config, wired_interface
from ocr_phases.record.parts import to_plain
from ocr_phases.show.sweep_overview import end_to_end_html
from ocr_phases.text import bytes_text, percent_text
from ocr_phases.versions import asset

ROOT = Path(__file__).parents[1]
FULL = {f"full {name}": facts.config for name, facts in FAMILIES.items()}
#: FLOPs are counted of the published widths with two layers of a kind: more would only be counted
#: again.
COUNTED = {
    f"short {name}": dummy_config(
        f"dummy:{name},layers=2,sam_layers=2,{facts.second_encoder}_layers=2"
    )
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
    name: [
        (preset.name, grid)
        for preset in facts.presets.values()
        for grid in GRIDS[: 1 + preset.crops]
    ]
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
        model_class = native_class(read_model_config(config).family)
        model = model_class._from_config(
            native_config(config), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    # The one implementation that runs without looking at the routing, which the meta device has
    # none of.
    model.set_experts_implementation("batched_mm")
    return config, model.eval()


def counted(run: Any, *modules: str) -> list[int]:
    """FLOPs of modules, and of ``Global``, which is all together, while ``run()`` runs."""
    with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
        run()
    found = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    return [found.get(name, 0) for name in modules]


def count_vision(model: Any, call: cost.VisionCall) -> Counts:
    """FLOPs of the vision stages, called as the model calls them; the whole would look at ids."""
    stages, flops = interface_of(model).modules(model), Counts()

    def through(stage: str, *inputs: torch.Tensor, **named: Any) -> Any:
        outputs: list[Any] = []
        (flops[stage],) = counted(lambda: outputs.append(stages[stage](*inputs, **named)), "Global")
        return outputs[0]

    pixels = torch.empty(
        (call.images, 3, call.side, call.side), dtype=torch.bfloat16, device="meta"
    )
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
    return {
        str(stage): int(flops) for stage, flops in table.groupby("stage")["flops"].sum().items()
    }


def agree(expected: Counts, table: pd.DataFrame) -> None:
    for stage, flops in expected.items():
        assert ours(table).get(stage, 0) == pytest.approx(flops, rel=0.01), stage


def language_forward(model: Any, batch: int, length: int, cached: int = 0, **options: Any) -> None:
    text = model.config.get_text_config()
    cache = DynamicCache(config=text)
    ready = interface_of(model).ready_mask(None)
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
    interface = interface_of(model)
    by_stage, held = table.groupby("stage")["parameters"].sum(), interface.parameters(model)
    assert by_stage.sum() == held["total"] == sum(p.numel() for p in model.parameters())
    assert all(stage == "total" or by_stage[stage] == count for stage, count in held.items())
    if config in FULL.values():
        positions = model.config.text_config.max_position_embeddings
        assert (held["total"], interface.window(model), positions) == SIZES[
            read_model_config(config).family.name
        ]


@pytest.mark.parametrize("built", COUNTED, indirect=True)
def test_vision_flops_are_those_torch_counts(built: Any) -> None:
    config, model = built
    name = read_model_config(config).family.name
    calls = {
        call for preset, grid in CALLS[name] for call in cost.vision_calls(preset, [grid], name)
    }
    if not FAMILIES[name].view_sides:  # any other size will do, too
        calls.update(cost.vision_calls("gundam", [(2, 1)], name, ViewSizes(1536, 320)))
        calls.update(cost.vision_calls("base", [(1, 1)], name, ViewSizes(image_size=64)))
    for call in calls:
        agree(count_vision(model, call), cost.prefill_cost(config, prompt_len=1, views=[call]))


@pytest.mark.parametrize("built", COUNTED, indirect=True)
def test_language_flops_are_those_torch_counts(built: Any) -> None:
    """Of a prefill with the logits of one position and of all, and of a decode step."""
    config, model = built
    stages, top = ("language_model", "lm_head"), type(model).__name__
    modules = [f"{top}.{wired_interface(model).wiring.modules[stage]}" for stage in stages]
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
def test_several_pages_cost_what_their_cache_holds(
    pages, prompt, distinct, golden_session, pixels_seen_once
):
    """A batch of two rows, which read the experts of one where they are equal, and one row of two
    pages.
    """
    once = {"preset": "tiny", "max_new_tokens": 3, "repeats": 1, "warmup": 0, "ceilings": False}
    once |= {"ignore_eos": True, "token_probabilities": False}
    paths = [PAGES / f"{page}.png" for page in pages.split()]
    run = golden_session.run_inference(paths, prompt, **once)
    table = cost.run_cost(run)
    prefill, step = (table[table["phase"] == phase] for phase in ("prefill", "decode"))
    assert prefill["kv_bytes"].sum() == run.cache.bytes[0]
    assert prefill["parameters"].sum() == run.model.parameters["total"]
    assert step["kv_bytes"].sum() == run.cache.bytes[2]  # in the middle of the run, rounded up
    view = cost.VisionCall("global", 512)
    one = cost.prefill_cost(run.model.config, prompt_len=1, views=[view], dtype_bytes=4)
    assert ours(prefill)["sam"] == 2 * ours(one)["sam"]
    text, experts = (
        cost.read_architecture(run.model.config).text,
        step[step["part"] == "experts"].iloc[0],
    )
    missed = (
        1 - text.num_experts_per_tok / text.n_routed_experts
    )  # by one row, with routing uniform
    assert experts["weight_bytes"] / experts["parameters"] / 4 == pytest.approx(
        1 - missed**distinct
    )


def test_the_vendors_head_runs_over_every_position() -> None:
    run = PhaseRun.load(ROOT / "tests/golden/run.json")
    vendor = altered(run, model={"implementation": "vendor"})
    heads = [
        ours(cost.run_cost(each).query("phase == 'prefill'"))["lm_head"] for each in (run, vendor)
    ]
    assert heads[1] == heads[0] * run.request.prefill_len


def test_the_tables_are_up_to_date() -> None:
    page = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    assert with_parts(page, cost_tables.tables()) == page, "run: python -m benchmarks.cost_tables"


# -- what a measurement needs of a device's memory -------------------------------------------------

PAGE = PAGES / "receipt.png"
#: The shipped records of GPUs, of all three families.
CUDA = [
    path
    for made in ("h*-dummy-*", "families/h*00-[!b]*", "h*-invoice-*")
    for path in RUNS.glob(made)
]


def needed(run: PhaseRun) -> dict[str, int]:
    """The peak of each phase by the cost model, of the cache that the record says."""
    views = cost.vision_calls(
        run.request.preset, [page.grid for page in run.pages], run.model.family
    )
    shape = {name: value for name, value in cost.run_shape(run).items() if name != "distinct_rows"}
    held = run.cache.max_cache_len or max(run.cache.entries or run.cache.lengths)
    how = {**to_plain(run.request), "attention": run.model.attention}
    table = cost.memory_need(run.model.config, views, how, cache_len=held, **shape).set_index(
        "phase"
    )
    assert set(table["weight_bytes"]) == {run.memory.weights_bytes}
    return table["peak_bytes"].to_dict()


def test_the_need_is_within_a_tenth_of_every_measured_peak() -> None:
    runs = {path.name: PhaseRun.load(path) for path in CUDA}
    away = {
        (name, phase): peak / max(run.memory.peak_bytes[phase]) - 1.0
        for name, run in runs.items()
        for phase, peak in needed(run).items()
    }
    assert len(away) == 2 * len(CUDA) >= 32
    assert {key: off for key, off in away.items() if abs(off) >= 0.1} == {}
    # Allocations in a graph's own memory are in no peak.
    eager = [
        name for name, run in runs.items() if run.model.strategy == run.request.vision == "eager"
    ]
    assert max(abs(off) for (name, _), off in away.items() if name in eager) < 0.01


@pytest.mark.parametrize(("dtype_bytes", "times"), [(2, 4), (4, 1)])
def test_attention_that_is_not_fused_holds_its_scores(dtype_bytes: int, times: int) -> None:
    """So often, as was counted of the class's tensors: 12 heads of 64 x 64 places that see each
    other.
    """
    peaks = []
    for attention in ("eager", "sdpa"):
        how = {"strategy": "eager", "vision": "eager", "attention": attention}
        shape = {"batch": 1, "dtype_bytes": dtype_bytes, "cache_len": 1}
        need = cost.memory_need(
            dummy_config("dummy"), [cost.VisionCall("global", 1024)], how, **shape
        )
        peaks.append(need["peak_bytes"][0])
    assert peaks[0] - peaks[1] == pytest.approx(times * 12 * 4096**2 * dtype_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "cache"),
    [
        (
            {"model": "dummy", "dtype": "bfloat16", "max_new_tokens": 256},
            [0, 61440 * (273 + 48 + 256)],
        ),
        ({"model": "dummy", "dtype": "bfloat16", "strategy": "cuda_graph"}, [61440 * 8192] * 2),
        ({"model": "dummy:unlimited-ocr", "dtype": "bfloat16"}, [0, 61440 * (273 + 20 + 128)]),
    ],
    ids=["grows", "static", "window"],
)
def test_the_cache_is_as_large_as_the_run_makes_it(
    settings: dict[str, Any], cache: list[int]
) -> None:
    found = fit(PAGE, Settings(preset="base", **settings))
    need, said = found.need, found.sentence
    assert need["kv_bytes"].tolist() == pytest.approx(cache, rel=0.1)
    assert said.startswith(f"{settings['model']} at base needs ") and said.endswith(": it fits.")
    assert f"KV cache takes {bytes_text(need['kv_bytes'].iloc[-1])} at the last token" in said
    for twice in (
        fit([PAGE, PAGE], Settings(preset="base", **settings)).need,
        fit(PAGE, Settings(preset="base", **settings), batch=2).need,
    ):
        assert (twice["kv_bytes"] == 2 * need["kv_bytes"]).all()
        assert (twice["weight_bytes"] == need["weight_bytes"]).all()


def test_the_verb_needs_a_config_and_nothing_else(tmp_path, capsys, monkeypatch):
    shutil.copy(asset("data", "tiny") / "config.json", tmp_path)
    command = ["profile", str(PAGE), "--dry-run", "--model", str(tmp_path), "--preset", "small"]
    assert main([*command, "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["need"] == fit(PAGE, Settings(preset="small")).need.to_dict("records")
    assert told["sentence"] in printed.err and "it fits" in told["sentence"]
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**8))
    small = fit(PAGE, Settings())
    assert "100 MB free: it does not fit." in small.sentence and small.fits is False
    assert main([*command, "--device", "cpu", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["exit_reason"], told["fits"]) == ("it does not fit", False)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for wrong in ({"preset": "crop"}, {"model": "nowhere"}, {"device": "gpu"}):
        with refused():
            fit(PAGE, Settings(**wrong))
    with refused():
        fit("no.png", Settings())


# -- what pages cost -------------------------------------------------------------------------------


def with_energy(run: PhaseRun, joules: float) -> PhaseRun:
    meter = {"seconds": 2.0, "run_joules": joules, "idle_w": 1.0}
    return altered(run, device={"conditions": {"repeats": [], "gpu": None, "energy": meter}})


@pytest.mark.parametrize("rows", [1, 3])
def test_a_thousand_pages_by_hand(rows: int) -> None:
    run = make_run(rows=rows)
    assert run["price_per_1000_pages"] is run["wh_per_1000_pages"] is None
    known = cost.priced(with_energy(run, 36.0), 4.5)
    seconds = 1000 * run["page_ms"] / 1000 / rows  # rows side by side share their time
    assert (
        run["pages_per_hour"] == known["pages_per_hour"] == pytest.approx(1000 / (seconds / 3600))
    )
    assert known["price_per_1000_pages"] == pytest.approx(4.5 * seconds / 3600)
    assert known["wh_per_1000_pages"] == pytest.approx(36.0 / rows * 1000 / 3600)
    told = {label: (value, note) for label, value, note in key_metrics(known)}
    pages = "1 page" if rows == 1 else f"{rows} pages"
    assert says(
        told["Price of 1,000 pages"][1], "4.5 an hour", f"{pages} at a time", "gundam", "eager"
    )
    idle = 1.0 * 2.0 / len(run.repeats) / known["energy_j"]
    assert says(told["Energy"][1], "Wh for 1,000 pages", f"idle alone takes {percent_text(idle)}")
    assert (
        cost.priced(known, None) is known
        and PhaseRun.from_json(known.to_json()).summary() == known.summary()
    )


@pytest.mark.parametrize("price", [0, -3.5, float("nan"), float("inf"), "cheap", True])
def test_what_is_no_price_is_refused(price: Any) -> None:
    with refused():
        Settings(price_per_hour=price)
    with pytest.raises(OcrPhasesError):
        cost.priced(make_run(), price)


def test_a_price_is_no_part_of_what_was_asked() -> None:
    assert "price_per_hour" in EVERY and "price_per_hour" not in (*BATCH, *SHARED)
    assert Cell(price_per_hour=2.0).name == Cell().name


def test_a_sweep_has_the_price_of_every_cell() -> None:
    sweep = SweepResult({"a": with_energy(make_run(), 36.0), "b": make_run(rows=2)}, pd.DataFrame())
    table = sweep.with_price(3.6).table.set_index("cell")
    for cell, pages in (("a", 1), ("b", 2)):
        hand = table.loc[cell, "page_ms"] / 1000 / pages
        assert table.loc[cell, "price_per_1000_pages"] == pytest.approx(hand)
    assert sweep.table["price_per_1000_pages"].isna().all()
    shown = end_to_end_html(table.reset_index())
    assert says(shown, "one measurement after another", "Wh", "price")
    assert "1,000 pages" in end_to_end_html(sweep.table) and "price" not in end_to_end_html(
        sweep.table
    )


def test_a_record_is_shown_at_another_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = cost.priced(make_run(), 1.0).save(tmp_path / "run.json")
    shown = ["verify", "--record", str(record), "--price-per-hour"]
    assert main([*shown, "7", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["price_per_1000_pages"] == pytest.approx(7000 / metrics["pages_per_hour"])
