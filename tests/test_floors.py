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
from ocr_phases.analyse.datasheets import DATASHEETS, datasheet_named, find_datasheet
from ocr_phases.analyse.floors import (
    DECODE_FLOOR_COLUMNS,
    FLOOR_COLUMNS,
    decode_floor,
    floor_table,
    why_no_floor,
)
from ocr_phases.analyse.sentences import floor_sentence
from ocr_phases.measure.ceilings import measure_ceilings
from ocr_phases.measure.loaded_model import LoadedModel
from ocr_phases.record.parts import CeilingsPart, make_part
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.roofline_plot import plot_roofline
from ocr_phases.show.run_times import floors_section
from ocr_phases.show.shown_figure import figure_png

H200 = {"bandwidth_bytes_per_s": 4.3e12, "matmul_flops_per_s": 7.9e14, "matmul_dtype": "bfloat16"}


def recorded(ceilings: dict[str, Any] | None = None, name: str = "gundam") -> PhaseRun:
    run = PhaseRun.load(RUNS / f"h200-dummy-{name}.json.gz")
    return altered(run, device={"ceilings": ceilings})


def example(**options: Any) -> PhaseRun:
    """An invented record of the tiny model with ceilings of its own."""
    run = make_run(**options)
    ceilings = H200 | {"matmul_dtype": run.model.dtype, "launch_us": 2.5}
    return altered(run, device={"ceilings": ceilings}, model={"config": TINY_CONFIG})


def test_a_whole_is_the_sum_of_its_stages_and_a_step_its_bytes_over_the_bandwidth() -> None:
    table = floor_table(recorded(H200))
    assert list(table.columns) == list(FLOOR_COLUMNS)
    for phase, whole in (("prefill", "prefill"), ("decode", "decode_step")):
        rows = table[table["phase"] == phase]
        total, parts = rows[rows["stage"] == whole].iloc[0], rows[rows["stage"] != whole]
        assert total["floor_ms"] == pytest.approx(parts["floor_ms"].sum())
        assert total["flops"] == parts["flops"].sum() and total["bytes"] == parts["bytes"].sum()
    assert table["device_ms"].notna().all()
    assert ((table["mfu"] > 0) & (table["mfu"] < 1) & (table["mbu"] < 1)).all()
    step = table.set_index("stage").loc["decode_step"]
    assert step["bound_by"] == "bandwidth" and step["source"] == "measured"
    taken_for_another = floor_table(recorded(H200 | {"matmul_dtype": "float32"}))
    assert {*taken_for_another["source"]} == {"datasheet"}
    assert step["floor_ms"] == pytest.approx(step["bytes"] / 4.3e12 * 1e3)
    assert step["floor_ms"] == pytest.approx(0.27, abs=0.015)
    assert step["times_floor"] == pytest.approx(step["device_ms"] / step["floor_ms"])
    assert step["mbu"] == pytest.approx(1 / step["times_floor"])
    assert step["mfu"] == pytest.approx(step["flops"] / step["device_ms"] * 1e3 / 7.9e14)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_floor_has_only_the_pairs_that_the_causal_mask_lets_through(rows: int) -> None:
    run = example(crops=False, rows=rows)
    floors = floor_table(run).set_index(["phase", "stage", "view"])["flops"]
    cost = stage_cost(run_cost(run)).set_index(["phase", "stage", "view"])["flops"]
    length, text = run.request.prefill_len, TINY_CONFIG["text_config"]
    channels = rows * text["num_hidden_layers"] * text["hidden_size"]
    seen = sum(4 * keys * channels for keys in range(1, length + 1))
    spared = 4 * length * length * channels - seen
    assert spared == masked_flops(TINY_CONFIG, prompt_len=length, batch=rows) > 0
    assert cost["prefill", "language_model", ""] - floors["prefill", "language_model", ""] == spared
    others = [
        key
        for key in cost.index
        if key != ("prefill", "language_model", "") and key in floors.index
    ]
    assert (cost[others] == floors[others]).all() and len(others) > 3


def test_the_floor_rises_with_the_cache_by_its_bytes() -> None:
    run = recorded(H200)
    floors = decode_floor(run)
    assert list(floors.columns) == list(DECODE_FLOOR_COLUMNS)
    assert floors["cache_len"].tolist() == run.cache.lengths[1:]
    rise = np.diff(floors["floor_ms"])
    assert rise == pytest.approx(np.full(len(rise), 61_440 / 4.3e12 * 1e3))
    middle = floors.iloc[(len(floors) - 1) // 2 + 1]
    table = floor_table(run).set_index("stage")
    assert abs(middle["floor_ms"] - table.loc["decode_step", "floor_ms"]) < 1e-4


NO_FLOOR = [
    (example(generate=True), "one-shot generate()"),
    (make_run(cuda=True), "model is unknown"),
]


@pytest.mark.parametrize(("run", "reason"), NO_FLOOR)
def test_where_there_is_no_floor_it_is_said(run: PhaseRun, reason: str) -> None:
    assert reason in (why_no_floor(run) or "")
    assert floor_table(run).empty and list(floor_table(run).columns) == list(FLOOR_COLUMNS)
    assert decode_floor(run).empty and floor_sentence(run) == ""
    assert reason in floors_section(run).html()
    assert figure_png(plot_roofline(run))
    assert not any(
        "floor" in label for label in plot_latency(run).axes[0].get_legend_handles_labels()[1]
    )


def test_a_record_without_steps_has_the_floors_of_its_prefill() -> None:
    run = example(max_tokens=1)
    assert {*floor_table(run)["phase"]} == {"prefill"} and decode_floor(run).empty
    assert floor_sentence(run) == "" and figure_png(figure := plot_roofline(run))
    assert max(line.get_linewidth() for line in figure.axes[0].lines) < 5


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
#: Devices of which the table says more than they have, or nothing.
LESS = (
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "NVIDIA A10G",
    "NVIDIA H200NVL2",
)


def test_a_datasheet_is_found_by_the_devices_name_and_gives_dense_rates() -> None:
    assert [find_datasheet(device) for device in DEVICES] == [*DATASHEETS]
    assert not any(find_datasheet(device) for device in (*LESS, "AMD EPYC", None))
    for sheet in DATASHEETS:
        assert sheet.source and 100 < sheet.bandwidth < 10_000
        assert 16 <= sheet.memory <= 288
        assert sheet.float32 < sheet.float16 <= 2500
        assert sheet.bfloat16 in (None, sheet.float16)
        if sheet.tf32 is not None:
            assert sheet.float16 / sheet.tf32 == pytest.approx(2.0, rel=0.02)
    without_bfloat16 = {sheet.name for sheet in DATASHEETS if sheet.bfloat16 is None}
    assert without_bfloat16 == {"T4", "V100 SXM", "V100 SXM 32 GB"}
    assert all(
        "no bfloat16" in sheet.source for sheet in DATASHEETS if sheet.name in without_bfloat16
    )


def test_a_person_names_a_card_as_they_please() -> None:
    for name in ("RTX 4090", "rtx  4090", "NVIDIA GeForce RTX 4090"):
        assert datasheet_named(name).name == "RTX 4090"
    assert datasheet_named("H200").name == "H200 SXM"
    for wrong, reason in {
        "H100": "choose H100 NVL, H100 PCIe, H100 SXM",
        "RTX 4080": "Did you mean",
        "": "There is no datasheet",
    }.items():
        with pytest.raises(OcrPhasesError, match=reason):
            datasheet_named(wrong)


#: What a rented card shows in all, in MiB, before anything runs.
SHOWN_MIB = {
    "H100 SXM": 81559,
    "A100 SXM 80 GB": 81920,
    "A10": 23028,
    "L40S": 46068,
    "L4": 23034,
    "T4": 15360,
}


def test_no_more_memory_is_counted_on_than_drivers_show() -> None:
    for name, shown in SHOWN_MIB.items():
        usable = datasheet_named(name).usable_bytes / 2**20
        assert 0.89 * shown < usable < shown - 300, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ceilings_of_this_machine(dtype: torch.dtype) -> None:
    before = torch.get_rng_state()
    found = measure_ceilings("cpu", dtype)
    assert found is not None and torch.equal(before, torch.get_rng_state())
    for name in ("bandwidth_bytes_per_s", "matmul_flops_per_s", "launch_us"):
        assert np.isfinite(found[name]) and found[name] > 0
    assert found["matmul_dtype"] == str(dtype).removeprefix("torch.")
    assert found["taken"]["copied_bytes"] and found["taken"]["matmul_size"] >= 512
    assert json.loads(json.dumps(found)) == found


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_ceilings_of_a_gpu_stay_below_its_datasheet() -> None:
    found, name = measure_ceilings("cuda", torch.bfloat16), torch.cuda.get_device_name()
    sheet = find_datasheet(name) or pytest.skip(f"no datasheet of {name}")
    assert found is not None and found["bandwidth_bytes_per_s"] < 1.05e9 * sheet.bandwidth
    assert found["matmul_flops_per_s"] < 1.05e12 * (sheet.bfloat16 or 0)


def test_a_session_takes_them_once_and_after_its_runs(
    golden_session, pixels_seen_once, monkeypatch
):
    done: list[Any] = []
    monkeypatch.setattr(
        "ocr_phases.measure.loaded_model.measure_ceilings",
        lambda *given: done.append(given) or H200,
    )
    session = OCRSession(LoadedModel(golden_session.checkpoint))
    options = {
        "preset": "tiny",
        "max_new_tokens": 2,
        "repeats": 1,
        "warmup": 0,
        "token_probabilities": False,
    }
    options["progress"] = lambda finished, total: done.append(finished)
    page, asked = PAGES / "receipt.png", (False, True, True)
    runs = [session.run_inference(page, **options, ceilings=ceilings) for ceilings in asked]
    assert done == [0, 1, 0, 1, ("cpu", torch.float32), 0, 1]
    ceilings = make_part(CeilingsPart, H200)
    assert [run.device.ceilings for run in runs] == [None, ceilings, ceilings]
