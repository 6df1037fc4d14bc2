"""The cost model against the real class: parameters, FLOPs by torch's counter, memory; and what
pages cost.

docs/cost.md says what it computes.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd
import psutil
import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED, PAGES, RECORD, RUNS
from example_run import altered, make_run
from refusals import refused
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache
from wording import says

from benchmarks import cost_tables
from benchmarks.documents import with_parts
from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, Settings, SweepResult
from ocr_phases.analyse import cost
from ocr_phases.analyse.cards import key_metrics
from ocr_phases.cli import main
from ocr_phases.cli.options import BATCH, EVERY, SHARED
from ocr_phases.families import FAMILIES, ViewSizes
from ocr_phases.families.config import read_model_config
from ocr_phases.families.facts import FamilyFacts
from ocr_phases.measure.cells import Cell
from ocr_phases.measure.memory_fit import fit
from ocr_phases.models.dummies import dummy_config
from ocr_phases.models.wiring import interface_of, native_class, native_config, wired_interface
from ocr_phases.record.parts import to_plain
from ocr_phases.show.sweep_overview import end_to_end_html
from ocr_phases.text import bytes_text, percent_text
from ocr_phases.versions import asset

Config = dict[str, Any]
#: FLOPs by the name of a stage.
StageFlops = dict[str, int]


def short_config(facts: FamilyFacts) -> Config:
    """A family's published widths with two layers of a kind: more would only be counted again."""
    name = f"dummy:{facts.name},layers=2,sam_layers=2,{facts.second_encoder}_layers=2"
    config = dummy_config(name)
    config["vision_config"]["width"]["sam_vit_b"]["global_attn_indexes"] = [1]
    return config


#: The published configs, whose parameters are counted.
FULL = {f"full {name}": facts.config for name, facts in FAMILIES.items()}
#: Configs of small models, whose FLOPs are counted, too.
COUNTED = {f"short {name}": short_config(facts) for name, facts in FAMILIES.items()}
for golden in (GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED):
    COUNTED[f"golden {golden.name}"] = json.loads((golden / "checkpoint/config.json").read_text())


class BuiltModel(NamedTuple):
    """A config, and the model of its class without weights."""

    config: Config
    model: Any

    @property
    def family(self) -> FamilyFacts:
        """The facts of the family that the config is of."""
        return read_model_config(self.config).family


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest) -> BuiltModel:
    """The model of a config that is named in `FULL` or `COUNTED`."""
    config = (FULL | COUNTED)[request.param]
    model_class = native_class(read_model_config(config).family)
    with torch.device("meta"):
        model = model_class._from_config(
            native_config(config), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    # The one implementation that runs without looking at the routing, which the meta device has
    # none of.
    model.set_experts_implementation("batched_mm")
    return BuiltModel(config, model.eval())


# -- parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("built", [*FULL, *COUNTED], indirect=True)
def test_parameters_are_exactly_the_models(built: BuiltModel) -> None:
    view = cost.VisionCall("global", 1024)

    table = cost.prefill_cost(built.config, prompt_len=1, views=[view])

    by_stage = table.groupby("stage")["parameters"].sum()
    held = interface_of(built.model).parameters(built.model)
    total = held.pop("total")
    assert by_stage.sum() == total
    assert by_stage.sum() == sum(parameter.numel() for parameter in built.model.parameters())
    assert by_stage[list(held)].to_dict() == held


class PublishedSizes(NamedTuple):
    """What a published model has of parameters, of positions, and of these in its window."""

    parameters: int
    window: int | None
    positions: int


PUBLISHED = {
    "deepseek-ocr": PublishedSizes(3_335_504_128, None, 8192),
    "deepseek-ocr-2": PublishedSizes(3_389_119_360, None, 8192),
    "unlimited-ocr": PublishedSizes(3_335_504_128, 128, 32768),
}


@pytest.mark.parametrize("built", FULL, indirect=True)
def test_the_model_of_a_published_config_has_the_published_sizes(built: BuiltModel) -> None:
    interface = interface_of(built.model)

    sizes = PublishedSizes(
        parameters=interface.parameters(built.model)["total"],
        window=interface.window(built.model),
        positions=built.model.config.text_config.max_position_embeddings,
    )

    assert sizes == PUBLISHED[built.family.name]


# -- FLOPs -----------------------------------------------------------------------------------------


def count_flops(forward: Callable[[], object]) -> StageFlops:
    """FLOPs of each module by its path, and of ``Global``, which is all, in one forward."""
    with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
        forward()
    return {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}


class CountedStages:
    """The vision stages of a model, called one by one, with the FLOPs that each took."""

    def __init__(self, model: Any) -> None:
        self.stages = interface_of(model).modules(model)
        self.flops: StageFlops = {}

    def call(self, stage: str, *inputs: torch.Tensor, **named: Any) -> Any:
        """What a stage makes of its inputs."""
        outputs = []

        def forward() -> None:
            outputs.append(self.stages[stage](*inputs, **named))

        self.flops[stage] = count_flops(forward)["Global"]
        return outputs[0]


def count_vision_flops(model: Any, call: cost.VisionCall) -> StageFlops:
    """FLOPs of the vision stages, called as the model calls them; the whole would look at ids."""
    counted = CountedStages(model)
    shape = (call.images, 3, call.side, call.side)
    pixels = torch.empty(shape, dtype=torch.bfloat16, device="meta")

    sam_map = counted.call("sam", pixels).last_hidden_state
    patches = sam_map.flatten(2).transpose(1, 2)
    if "clip" in counted.stages:
        clip_states = counted.call("clip", sam_map).last_hidden_state
        counted.call("projector", torch.cat([clip_states[:, 1:], patches], dim=-1))
    else:
        count = patches.shape[1]
        patches_and_queries = torch.cat([patches, patches], dim=1)
        states = counted.call("encoder", inputs_embeds=patches_and_queries, num_patches=count)
        counted.call("projector", states.last_hidden_state[:, count:])
    return counted.flops


def stage_flops(table: pd.DataFrame) -> StageFlops:
    """The FLOPs of each stage in a cost table."""
    sums = table.groupby("stage")["flops"].sum()
    return {str(stage): int(flops) for stage, flops in sums.items()}


def assert_flops_agree(expected: StageFlops, table: pd.DataFrame) -> None:
    """Within a hundredth, the table has the FLOPs of each stage that was counted."""
    computed = stage_flops(table)
    for stage, flops in expected.items():
        assert computed.get(stage, 0) == pytest.approx(flops, rel=0.01), stage


def all_vision_calls(facts: FamilyFacts) -> Iterator[cost.VisionCall]:
    """The vision calls of every preset of a family, with and without crops, and of other sizes."""
    for preset in facts.presets.values():
        yield from cost.vision_calls(preset.name, [(1, 1)], facts.name)
        if preset.crops:
            yield from cost.vision_calls(preset.name, [(2, 3)], facts.name)
    if not facts.view_sides:  # any other size will do, too
        yield from cost.vision_calls("gundam", [(2, 1)], facts.name, ViewSizes(1536, 320))
        yield from cost.vision_calls("base", [(1, 1)], facts.name, ViewSizes(image_size=64))


@pytest.mark.parametrize("built", COUNTED, indirect=True)
def test_vision_flops_are_those_torch_counts(built: BuiltModel) -> None:
    for call in set(all_vision_calls(built.family)):
        table = cost.prefill_cost(built.config, prompt_len=1, views=[call])
        assert_flops_agree(count_vision_flops(built.model, call), table)


def language_forward(model: Any, batch: int, length: int, cached: int = 0, **options: Any) -> None:
    """A forward of the language model over ``length`` ids a row, after ``cached`` earlier ones."""
    text = model.config.get_text_config()
    cache = DynamicCache(config=text)
    if cached:
        shape = (batch, text.num_key_value_heads, cached, text.head_dim)
        for layer in range(text.num_hidden_layers):
            states = torch.empty(shape, dtype=torch.bfloat16)
            cache.update(states, states, layer)
    model(
        input_ids=torch.zeros((batch, length), dtype=torch.int64),
        attention_mask=interface_of(model).ready_mask(None),
        past_key_values=cache,
        use_cache=True,
        **options,
    )


def count_language_flops(model: Any, forward: Callable[[], object]) -> StageFlops:
    """FLOPs of the stages ``language_model`` and ``lm_head`` in one forward."""
    modules = wired_interface(model).wiring.modules
    model_name = type(model).__name__
    counts = count_flops(forward)
    return {
        stage: counts.get(f"{model_name}.{modules[stage]}", 0)
        for stage in ("language_model", "lm_head")
    }


@pytest.mark.parametrize("built", COUNTED, indirect=True)
def test_flops_of_a_prefill_are_those_torch_counts(built: BuiltModel) -> None:
    """With the logits of one position, and with those of all."""
    rows = 3
    length = 282
    for logits_to_keep, logits_for in ((1, "last"), (0, "all")):
        forward = partial(
            language_forward, built.model, rows, length, logits_to_keep=logits_to_keep
        )
        table = cost.prefill_cost(
            built.config, prompt_len=length, batch=rows, logits_for=logits_for
        )
        assert_flops_agree(count_language_flops(built.model, forward), table)


@pytest.mark.parametrize("built", COUNTED, indirect=True)
def test_flops_of_a_decode_step_are_those_torch_counts(built: BuiltModel) -> None:
    for rows, cached in ((1, 1), (4, 999), (1, 8191)):
        forward = partial(language_forward, built.model, rows, 1, cached)
        table = cost.decode_cost(built.config, cache_len=cached + 1, batch=rows)
        assert_flops_agree(count_language_flops(built.model, forward), table)


# -- the cost of a record --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "prompt", "distinct_rows"),
    [
        pytest.param(["receipt", "receipt"], "markdown", 1, id="two equal rows"),
        pytest.param(["form", "paper"], "markdown", 2, id="two rows that differ"),
        pytest.param(
            ["receipt", "receipt"], "<image>\n<image>\nBoth pages.", 1, id="one row of two pages"
        ),
    ],
)
@pytest.mark.usefixtures("pixels_seen_once")
def test_several_pages_cost_what_their_cache_holds(
    pages: list[str], prompt: str, distinct_rows: int, golden_session: OCRSession
) -> None:
    """Rows that are equal read the experts of one."""
    run = golden_session.run_inference(
        [PAGES / f"{page}.png" for page in pages],
        prompt,
        preset="tiny",
        max_new_tokens=3,
        repeats=1,
        warmup=0,
        ceilings=False,
        ignore_eos=True,
        token_probabilities=False,
    )

    table = cost.run_cost(run)

    prefill = table[table["phase"] == "prefill"]
    assert prefill["kv_bytes"].sum() == run.cache.bytes[0]
    assert prefill["parameters"].sum() == run.model.parameters["total"]
    one_page = cost.prefill_cost(
        run.model.config, prompt_len=1, views=[cost.VisionCall("global", 512)], dtype_bytes=4
    )
    assert stage_flops(prefill)["sam"] == 2 * stage_flops(one_page)["sam"]

    step = table[table["phase"] == "decode"]
    assert step["kv_bytes"].sum() == run.cache.bytes[2]  # in the middle of the run, rounded up
    text = cost.read_architecture(run.model.config).text
    missed_by_a_row = 1 - text.num_experts_per_tok / text.n_routed_experts  # if routing is uniform
    experts = step[step["part"] == "experts"].iloc[0]
    share_read = experts["weight_bytes"] / experts["parameters"] / 4
    assert share_read == pytest.approx(1 - missed_by_a_row**distinct_rows)


def test_the_vendors_head_runs_over_every_position() -> None:
    run = PhaseRun.load(RECORD)
    vendor = altered(run, model={"implementation": "vendor"})

    assert head_flops(vendor) == head_flops(run) * run.request.prefill_len


def head_flops(run: PhaseRun) -> int:
    """FLOPs of the head in a record's prefill."""
    return stage_flops(cost.run_cost(run).query("phase == 'prefill'"))["lm_head"]


def test_the_tables_are_up_to_date() -> None:
    page = cost_tables.PAGE.read_text(encoding="utf-8")

    assert with_parts(page, cost_tables.tables()) == page, "run: python -m benchmarks.cost_tables"


# -- what a measurement needs of a device's memory -------------------------------------------------

PAGE = PAGES / "receipt.png"
#: The shipped records of GPUs, of all three families.
GPU_RECORDS = [
    *RUNS.glob("h*-dummy-*"),
    *RUNS.glob("families/h*00-[!b]*"),
    *RUNS.glob("h*-invoice-*"),
]


def computed_peaks(run: PhaseRun) -> dict[str, int]:
    """The peak of each phase by the cost model, of the cache that the record says."""
    grids = [page.grid for page in run.pages]
    shape = cost.run_shape(run)
    table = cost.memory_need(
        run.model.config,
        cost.vision_calls(run.request.preset, grids, run.model.family),
        {**to_plain(run.request), "attention": run.model.attention},
        cache_len=run.cache.max_cache_len or max(run.cache.entries or run.cache.lengths),
        batch=shape["batch"],
        dtype_bytes=shape["dtype_bytes"],
    )
    assert set(table["weight_bytes"]) == {run.memory.weights_bytes}
    return table.set_index("phase")["peak_bytes"].to_dict()


def test_the_need_is_within_a_tenth_of_every_measured_peak() -> None:
    errors = {}
    eager_errors = []
    for path in GPU_RECORDS:
        run = PhaseRun.load(path)
        for phase, peak in computed_peaks(run).items():
            error = abs(peak / max(run.memory.peak_bytes[phase]) - 1.0)
            errors[path.name, phase] = error
            if run.model.strategy == run.request.vision == "eager":
                eager_errors.append(error)

    assert len(errors) == 2 * len(GPU_RECORDS)
    assert len(errors) >= 32
    assert {place: error for place, error in errors.items() if error >= 0.1} == {}
    # Allocations in a graph's own memory are in no peak.
    assert max(eager_errors) < 0.01


def peak_of_attention(attention: str, dtype_bytes: int) -> int:
    """The peak of a prefill of one view of 1024 pixels with this attention."""
    need = cost.memory_need(
        dummy_config("dummy"),
        [cost.VisionCall("global", 1024)],
        {"strategy": "eager", "vision": "eager", "attention": attention},
        cache_len=1,
        batch=1,
        dtype_bytes=dtype_bytes,
    )
    return need["peak_bytes"][0]


@pytest.mark.parametrize(("dtype_bytes", "copies"), [(2, 4), (4, 1)])
def test_attention_that_is_not_fused_holds_its_scores(dtype_bytes: int, copies: int) -> None:
    """As many copies more as were counted of the class's tensors: 12 heads of 64 x 64 places that
    see each other.
    """
    scores = 12 * 4096**2 * dtype_bytes

    more = peak_of_attention("eager", dtype_bytes) - peak_of_attention("sdpa", dtype_bytes)

    assert more == pytest.approx(copies * scores, rel=0.01)


#: What an entry of the published models' cache takes in bfloat16.
ENTRY_BYTES = 61_440
CACHE_CASES = [
    pytest.param(
        {"model": "dummy", "dtype": "bfloat16", "max_new_tokens": 256},
        [0, ENTRY_BYTES * (273 + 48 + 256)],
        id="grows",
    ),
    pytest.param(
        {"model": "dummy", "dtype": "bfloat16", "strategy": "cuda_graph"},
        [ENTRY_BYTES * 8192, ENTRY_BYTES * 8192],
        id="static",
    ),
    pytest.param(
        {"model": "dummy:unlimited-ocr", "dtype": "bfloat16"},
        [0, ENTRY_BYTES * (273 + 20 + 128)],
        id="window",
    ),
]


@pytest.mark.parametrize(("settings", "cache_bytes"), CACHE_CASES)
def test_the_cache_is_as_large_as_the_run_makes_it(
    settings: dict[str, Any], cache_bytes: list[int]
) -> None:
    found = fit(PAGE, Settings(preset="base", **settings))

    assert found.need["kv_bytes"].tolist() == pytest.approx(cache_bytes, rel=0.1)
    at_last_token = bytes_text(found.need["kv_bytes"].iloc[-1])
    assert found.sentence.startswith(f"{settings['model']} at base needs ")
    assert f"KV cache takes {at_last_token} at the last token" in found.sentence
    assert found.sentence.endswith(": it fits.")


@pytest.mark.parametrize(("settings", "cache_bytes"), CACHE_CASES)
def test_two_rows_need_two_caches_and_the_weights_once(
    settings: dict[str, Any], cache_bytes: list[int]
) -> None:
    run_settings = Settings(preset="base", **settings)
    once = fit(PAGE, run_settings).need

    two_pages = fit([PAGE, PAGE], run_settings).need
    batch_of_two = fit(PAGE, run_settings, batch=2).need

    for twice in (two_pages, batch_of_two):
        assert (twice["kv_bytes"] == 2 * once["kv_bytes"]).all()
        assert (twice["weight_bytes"] == once["weight_bytes"]).all()


@pytest.fixture
def folder_of_a_config(tmp_path: Path) -> Path:
    """A model's folder with nothing but its ``config.json``."""
    shutil.copy(asset("data", "tiny") / "config.json", tmp_path)
    return tmp_path


def dry_run(model: Path) -> int:
    """The exit code of the verb that says what a page needs of this model on a CPU."""
    options = ["--preset", "small", "--device", "cpu", "--json"]
    return main(["profile", str(PAGE), "--dry-run", "--model", str(model), *options])


def test_the_verb_needs_a_config_and_nothing_else(
    folder_of_a_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry_run(folder_of_a_config) == 0

    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["need"] == fit(PAGE, Settings(preset="small")).need.to_dict("records")
    assert result["sentence"] in printed.err
    assert "it fits" in result["sentence"]
    assert [path.name for path in folder_of_a_config.iterdir()] == ["config.json"]


def test_what_is_larger_than_the_free_memory_does_not_fit(
    folder_of_a_config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**8))

    found = fit(PAGE, Settings())
    exit_code = dry_run(folder_of_a_config)

    assert "100 MB free: it does not fit." in found.sentence
    assert found.fits is False
    assert exit_code == 1
    result = json.loads(capsys.readouterr().out)
    assert result["exit_reason"] == "it does not fit"
    assert result["fits"] is False


@pytest.mark.parametrize(
    ("page", "settings"),
    [
        pytest.param(PAGE, {"preset": "crop"}, id="a preset of another family"),
        pytest.param(PAGE, {"model": "nowhere"}, id="no such model"),
        pytest.param(PAGE, {"device": "gpu"}, id="no such device"),
        pytest.param("no.png", {}, id="no such page"),
    ],
)
def test_the_need_of_what_cannot_be_is_refused(
    page: str | Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with refused():
        fit(page, Settings(**settings))


# -- what pages cost -------------------------------------------------------------------------------


def with_energy(run: PhaseRun, joules: float) -> PhaseRun:
    """The record with a meter that says so many joules for a repeat."""
    meter = {"seconds": 2.0, "run_joules": joules, "idle_w": 1.0}
    return altered(run, device={"conditions": {"repeats": [], "gpu": None, "energy": meter}})


def test_without_price_and_meter_pages_have_no_price_and_no_energy() -> None:
    run = make_run()

    assert run["price_per_1000_pages"] is None
    assert run["wh_per_1000_pages"] is None


@pytest.mark.parametrize("rows", [1, 3])
def test_a_thousand_pages_by_hand(rows: int) -> None:
    run = make_run(rows=rows)
    seconds = 1000 * run["page_ms"] / 1000 / rows  # rows side by side share their time

    known = cost.priced(with_energy(run, 36.0), 4.5)

    assert run["pages_per_hour"] == pytest.approx(1000 / (seconds / 3600))
    assert known["pages_per_hour"] == run["pages_per_hour"]
    assert known["price_per_1000_pages"] == pytest.approx(4.5 * seconds / 3600)
    assert known["wh_per_1000_pages"] == pytest.approx(36.0 / rows * 1000 / 3600)


@pytest.mark.parametrize(("rows", "pages"), [(1, "1 page"), (3, "3 pages")])
def test_the_cards_say_at_which_price_and_with_which_idle_power(rows: int, pages: str) -> None:
    run = cost.priced(with_energy(make_run(rows=rows), 36.0), 4.5)

    notes = {label: note for label, _, note in key_metrics(run)}

    price = notes["Price of 1,000 pages"]
    assert says(price, "4.5 per hour", f"{pages} at a time", "gundam", "eager")
    idle_joules = 1.0 * 2.0 / len(run.repeats)
    idle = percent_text(idle_joules / run["energy_j"])
    assert says(notes["Energy"], "Wh for 1,000 pages", f"idle alone takes {idle}")


def test_a_price_and_energy_are_kept_in_the_record() -> None:
    run = cost.priced(with_energy(make_run(), 36.0), 4.5)

    assert cost.priced(run, None) is run
    assert PhaseRun.from_json(run.to_json()).summary() == run.summary()


@pytest.mark.parametrize("price", [0, -3.5, math.nan, math.inf, "cheap", True])
def test_what_is_no_price_is_refused(price: Any) -> None:
    with refused():
        Settings(price_per_hour=price)
    with pytest.raises(OcrPhasesError):
        cost.priced(make_run(), price)


def test_a_price_is_no_part_of_what_was_asked() -> None:
    assert "price_per_hour" in EVERY
    assert "price_per_hour" not in BATCH
    assert "price_per_hour" not in SHARED
    assert Cell(price_per_hour=2.0).name == Cell().name


@pytest.fixture
def sweep_without_a_price() -> SweepResult:
    """Two cells: ``a`` with a meter, and ``b`` of two pages."""
    runs = {"a": with_energy(make_run(), 36.0), "b": make_run(rows=2)}
    return SweepResult(runs, pd.DataFrame())


def test_a_sweep_has_the_price_of_every_cell(sweep_without_a_price: SweepResult) -> None:
    table = sweep_without_a_price.with_price(3.6).table.set_index("cell")

    for cell, pages in (("a", 1), ("b", 2)):
        # At 3.6 an hour 1,000 pages cost as much as one of them takes seconds.
        seconds_of_a_page = table.loc[cell, "page_ms"] / 1000 / pages
        assert table.loc[cell, "price_per_1000_pages"] == pytest.approx(seconds_of_a_page)
    shown = end_to_end_html(table.reset_index())
    assert says(shown, "one measurement after another", "Wh", "price")


def test_a_sweep_without_a_price_shows_none(sweep_without_a_price: SweepResult) -> None:
    table = sweep_without_a_price.table

    assert table["price_per_1000_pages"].isna().all()
    shown = end_to_end_html(table)
    assert "1,000 pages" in shown
    assert "price" not in shown


def test_a_record_is_shown_at_another_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = cost.priced(make_run(), 1.0).save(tmp_path / "run.json")

    assert main(["verify", "--record", str(record), "--price-per-hour", "7", "--json"]) == 0

    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["price_per_1000_pages"] == pytest.approx(7000 / metrics["pages_per_hour"])
