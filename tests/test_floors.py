"""Ceilings, datasheets, floors and how they are shown."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PAGES, RUNS, TINY_CONFIG
from example_run import altered, make_run

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.analyse.cost import masked_flops, run_cost, stage_cost
from ocr_phases.analyse.datasheets import (
    DATASHEETS,
    Datasheet,
    datasheet_named,
    find_datasheet,
)
from ocr_phases.analyse.floors import (
    DECODE_FLOOR_COLUMNS,
    FLOOR_COLUMNS,
    decode_floor,
    floor_table,
    why_no_floor,
)
from ocr_phases.analyse.sentences import floor_sentence, read_rate_sentence
from ocr_phases.measure.ceilings import measure_ceilings
from ocr_phases.measure.loaded_model import LoadedModel
from ocr_phases.record.parts import CeilingsPart, make_part
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.roofline_plot import plot_roofline
from ocr_phases.show.run_times import floors_section
from ocr_phases.show.shown_figure import figure_png

H200 = {"bandwidth_bytes_per_s": 4.3e12, "matmul_flops_per_s": 7.9e14, "matmul_dtype": "bfloat16"}


def measured_run(ceilings: dict[str, Any]) -> PhaseRun:
    """A record of a GPU, with these ceilings."""
    run = PhaseRun.load(RUNS / "h200-dummy-gundam.json.gz")
    return altered(run, device={"ceilings": ceilings})


def example_run(**options: Any) -> PhaseRun:
    """An invented record of the tiny model with ceilings of its own."""
    run = make_run(**options)
    ceilings = H200 | {"matmul_dtype": run.model.dtype, "launch_us": 2.5}
    return altered(run, device={"ceilings": ceilings}, model={"config": TINY_CONFIG})


# -- floors of a record ----------------------------------------------------------------------------


@pytest.mark.parametrize(("phase", "whole"), [("prefill", "prefill"), ("decode", "decode_step")])
def test_the_floor_of_a_whole_is_the_sum_of_its_stages(phase: str, whole: str) -> None:
    table = floor_table(measured_run(H200))

    rows = table[table["phase"] == phase].set_index("stage")
    total = rows.loc[whole]
    stages = rows.drop(index=whole)
    assert total["floor_ms"] == pytest.approx(stages["floor_ms"].sum())
    assert total["flops"] == stages["flops"].sum()
    assert total["bytes"] == stages["bytes"].sum()


def test_every_stage_with_a_floor_was_measured_and_stays_above_it() -> None:
    table = floor_table(measured_run(H200))
    assert list(table.columns) == list(FLOOR_COLUMNS)
    assert table["device_ms"].notna().all()
    assert table["mfu"].between(0, 1, inclusive="neither").all()
    assert (table["mbu"] < 1).all()


def test_the_floor_of_a_step_is_its_bytes_over_the_bandwidth() -> None:
    step = floor_table(measured_run(H200)).set_index("stage").loc["decode_step"]
    assert step["bound_by"] == "bandwidth"
    assert step["source"] == "measured"
    assert step["floor_ms"] == pytest.approx(step["bytes"] / 4.3e12 * 1e3)
    assert step["floor_ms"] == pytest.approx(0.27, abs=0.015)
    assert step["times_floor"] == pytest.approx(step["device_ms"] / step["floor_ms"])
    assert step["mbu"] == pytest.approx(1 / step["times_floor"])
    assert step["mfu"] == pytest.approx(step["flops"] / step["device_ms"] * 1e3 / 7.9e14)


def test_the_rate_of_reading_is_beside_the_measured_one_and_the_datasheets() -> None:
    run = measured_run({**H200, "bandwidth_bytes_per_s": 4.0e12})
    step = floor_table(run).set_index("stage").loc["decode_step"]

    sentence = read_rate_sentence(run)

    gigabytes_per_s = step["bytes"] / step["device_ms"] / 1e6
    assert f"at {gigabytes_per_s:.0f} GB/s" in sentence
    assert f"{100 * gigabytes_per_s / 4000:.1f} % of the bandwidth measured" in sentence
    assert f"{100 * gigabytes_per_s / 4800:.1f} % of the 4.8 TB/s on its datasheet" in sentence


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"device": {"ceilings": None}}, id="nothing measured"),
        pytest.param({"device": {"name": "a card of its own"}}, id="no datasheet"),
        pytest.param({"model": {"config": {}}}, id="unknown cost"),
    ],
)
def test_without_one_of_the_rates_there_is_no_such_sentence(changes: dict[str, Any]) -> None:
    assert read_rate_sentence(measured_run(H200))
    assert read_rate_sentence(altered(measured_run(H200), **changes)) == ""


def test_ceilings_of_another_dtype_give_way_to_the_datasheet() -> None:
    of_another_dtype = H200 | {"matmul_dtype": "float32"}
    table = floor_table(measured_run(of_another_dtype))
    assert set(table["source"]) == {"datasheet"}


@pytest.mark.parametrize("rows", [1, 4])
def test_a_floor_has_only_the_pairs_that_the_causal_mask_lets_through(rows: int) -> None:
    run = example_run(crops=False, rows=rows)
    place = ["phase", "stage", "view"]

    floors = floor_table(run).set_index(place)["flops"]
    costs = stage_cost(run_cost(run)).set_index(place)["flops"]

    length = run.request.prefill_len
    text_config = TINY_CONFIG["text_config"]
    channels = rows * text_config["num_hidden_layers"] * text_config["hidden_size"]
    all_pairs = 4 * length * length * channels
    seen_pairs = sum(4 * keys * channels for keys in range(1, length + 1))
    masked = all_pairs - seen_pairs
    assert masked > 0
    assert masked_flops(TINY_CONFIG, prompt_len=length, batch=rows) == masked

    spared = costs.sub(floors).dropna()
    attention = ("prefill", "language_model", "")
    assert spared[attention] == masked
    others = spared.drop(index=[attention])
    assert len(others) > 3
    assert (others == 0).all()


def test_the_floor_rises_with_the_cache_by_its_bytes() -> None:
    run = measured_run(H200)

    floors = decode_floor(run)

    assert list(floors.columns) == list(DECODE_FLOOR_COLUMNS)
    assert floors["cache_len"].tolist() == run.cache.lengths[1:]
    rises = np.diff(floors["floor_ms"])
    assert rises == pytest.approx(np.full(len(rises), 61_440 / 4.3e12 * 1e3))
    middle = floors.iloc[(len(floors) - 1) // 2 + 1]
    of_a_step = floor_table(run).set_index("stage").loc["decode_step", "floor_ms"]
    assert middle["floor_ms"] == pytest.approx(of_a_step, abs=1e-4)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        pytest.param(example_run(generate=True), "one-shot generate()", id="generate"),
        pytest.param(make_run(cuda=True), "model is unknown", id="unknown model"),
    ],
)
def test_where_there_is_no_floor_it_is_said(run: PhaseRun, reason: str) -> None:
    assert reason in (why_no_floor(run) or "")
    assert floor_table(run).empty
    assert list(floor_table(run).columns) == list(FLOOR_COLUMNS)
    assert decode_floor(run).empty
    assert floor_sentence(run) == ""
    assert reason in floors_section(run).html()
    assert figure_png(plot_roofline(run))
    _, labels = plot_latency(run).axes[0].get_legend_handles_labels()
    assert not any("floor" in label for label in labels)


def test_a_record_without_steps_has_the_floors_of_its_prefill() -> None:
    run = example_run(max_tokens=1)
    assert set(floor_table(run)["phase"]) == {"prefill"}
    assert decode_floor(run).empty
    assert floor_sentence(run) == ""

    figure = plot_roofline(run)

    assert figure_png(figure)
    assert max(line.get_linewidth() for line in figure.axes[0].lines) < 5


# -- datasheets ------------------------------------------------------------------------------------


#: A device of each datasheet, in their order.
DEVICES = (
    "NVIDIA B300 SXM6 AC",
    "NVIDIA B200",
    "NVIDIA GH200 144G HBM3e",
    "NVIDIA GH200 480GB",
    "NVIDIA H200 NVL",
    "NVIDIA H200",
    "NVIDIA H100 NVL",
    "NVIDIA H100 PCIe",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H800 PCIe",
    "NVIDIA H800",
    "NVIDIA H20",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA A800 80GB PCIe",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "NVIDIA L40S",
    "NVIDIA L40",
    "NVIDIA L4",
    "NVIDIA A40",
    "NVIDIA RTX A6000",
    "NVIDIA A10",
    "NVIDIA GeForce RTX 5090",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 3090",
    "Tesla T4",
    "Tesla V100-SXM2-32GB",
    "Tesla V100-SXM2-16GB",
    "AMD Instinct MI300X",
)
#: Devices that are named like one of a datasheet and have less than it says.
LESSER_DEVICES = (
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "NVIDIA A10G",
    "NVIDIA H200NVL2",
)


def test_a_datasheet_is_found_by_the_devices_name() -> None:
    assert [find_datasheet(device) for device in DEVICES] == list(DATASHEETS)


@pytest.mark.parametrize("device", [*LESSER_DEVICES, "AMD EPYC", None])
def test_a_device_without_a_datasheet_gets_none(device: str | None) -> None:
    assert find_datasheet(device) is None


@pytest.mark.parametrize("sheet", DATASHEETS, ids=lambda sheet: sheet.name)
def test_a_datasheet_gives_dense_rates(sheet: Datasheet) -> None:
    assert sheet.source
    assert 100 < sheet.bandwidth < 10_000
    assert 16 <= sheet.memory <= 288
    assert sheet.float32 < sheet.float16 <= 2500
    assert sheet.bfloat16 in (None, sheet.float16)
    if sheet.tf32 is not None:
        assert sheet.float16 / sheet.tf32 == pytest.approx(2.0, rel=0.02)


def test_a_datasheet_without_bfloat16_says_so() -> None:
    without_bfloat16 = [sheet for sheet in DATASHEETS if sheet.bfloat16 is None]
    assert {sheet.name for sheet in without_bfloat16} == {"T4", "V100 SXM", "V100 SXM 32 GB"}
    for sheet in without_bfloat16:
        assert "no bfloat16" in sheet.source


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("RTX 4090", "RTX 4090"),
        ("rtx  4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("H200", "H200 SXM"),
    ],
)
def test_a_person_names_a_card_as_they_please(name: str, card: str) -> None:
    assert datasheet_named(name).name == card


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("H100", "choose H100 NVL, H100 PCIe, H100 SXM"),
        ("RTX4090", "Did you mean"),
        ("", "There is no datasheet"),
    ],
)
def test_a_card_that_is_several_or_none_is_refused(name: str, reason: str) -> None:
    with pytest.raises(OcrPhasesError, match=reason):
        datasheet_named(name)


@pytest.mark.parametrize(
    ("card", "shown_mib"),
    [
        ("H100 SXM", 81559),
        ("A100 SXM 80 GB", 81920),
        ("A10", 23028),
        ("L40S", 46068),
        ("L4", 23034),
        ("T4", 15360),
    ],
)
def test_no_more_memory_is_counted_on_than_drivers_show(card: str, shown_mib: int) -> None:
    """What a rented card shows in all, before anything runs."""
    usable_mib = datasheet_named(card).usable_bytes / 2**20
    assert 0.89 * shown_mib < usable_mib < shown_mib - 300


# -- measured ceilings -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ceilings_of_this_machine(dtype: torch.dtype) -> None:
    random_state = torch.get_rng_state()

    ceilings = measure_ceilings("cpu", dtype)

    assert ceilings is not None
    assert torch.equal(random_state, torch.get_rng_state())
    for name in ("bandwidth_bytes_per_s", "matmul_flops_per_s", "launch_us"):
        assert np.isfinite(ceilings[name])
        assert ceilings[name] > 0
    assert ceilings["matmul_dtype"] == str(dtype).removeprefix("torch.")
    assert ceilings["taken"]["copied_bytes"]
    assert ceilings["taken"]["matmul_size"] >= 512
    assert json.loads(json.dumps(ceilings)) == ceilings


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_ceilings_of_a_gpu_stay_below_its_datasheet() -> None:
    name = torch.cuda.get_device_name()
    sheet = find_datasheet(name)
    if sheet is None:
        pytest.skip(f"no datasheet of {name}")

    ceilings = measure_ceilings("cuda", torch.bfloat16)

    assert ceilings is not None
    assert ceilings["bandwidth_bytes_per_s"] < 1.05e9 * sheet.bandwidth
    assert ceilings["matmul_flops_per_s"] < 1.05e12 * (sheet.bfloat16 or 0)


def test_a_session_takes_them_once_and_after_its_runs(
    golden_session: OCRSession, pixels_seen_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []

    def measure(*arguments: Any) -> dict[str, Any]:
        events.append(arguments)
        return H200

    def on_progress(finished: int, total: int) -> None:
        events.append(finished)

    monkeypatch.setattr("ocr_phases.measure.loaded_model.measure_ceilings", measure)
    session = OCRSession(LoadedModel(golden_session.checkpoint))

    runs = [
        session.run_inference(
            PAGES / "receipt.png",
            preset="tiny",
            max_new_tokens=2,
            repeats=1,
            warmup=0,
            token_probabilities=False,
            progress=on_progress,
            ceilings=ceilings,
        )
        for ceilings in (False, True, True)
    ]

    assert events == [0, 1, 0, 1, ("cpu", torch.float32), 0, 1]
    measured = make_part(CeilingsPart, H200)
    assert [run.device.ceilings for run in runs] == [None, measured, measured]
