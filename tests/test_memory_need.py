"""What a measurement needs of a device's memory: against measured peaks and what the class holds at once."""

import json
import shutil
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from conftest import PAGES, RUNS
from refusals import refused

from ocr_phases import PhaseRun, Settings
from ocr_phases.analyse.cost import VisionCall, memory_need, run_shape, vision_calls
from ocr_phases.cli import main
from ocr_phases.models.weights import dummy_config
from ocr_phases.session import fit
from ocr_phases.versions import asset

PAGE = PAGES / "receipt.png"
#: The shipped records of GPUs, of all three families.
CUDA = [*RUNS.glob("h200-dummy-*"), *RUNS.glob("families/h200-[!b]*"), *RUNS.glob("h200-invoice-*")]


def needed(run: PhaseRun) -> dict[str, int]:
    """The peak of each phase by the cost model, of the cache that the record says."""
    views = vision_calls(run.request["preset"], [page["grid"] for page in run.pages], run.model["family"])
    shape = {name: value for name, value in run_shape(run).items() if name != "distinct_rows"}
    held = run.cache.get("max_cache_len") or max(run.cache.get("entries") or run.cache["lengths"])
    how = {**run.request, "attention": run.model["attention"]}
    table = memory_need(run.model["config"], views, how, cache_len=held, **shape).set_index("phase")
    assert set(table["weight_bytes"]) == {run.memory["weights_bytes"]}
    return table["peak_bytes"].to_dict()


def test_the_need_is_within_a_tenth_of_every_measured_peak() -> None:
    runs = {path.name: PhaseRun.load(path) for path in CUDA}
    away = {
        (name, phase): peak / max(run.memory["peak_bytes"][phase]) - 1.0
        for name, run in runs.items()
        for phase, peak in needed(run).items()
    }
    assert len(away) == 2 * len(CUDA) >= 32
    assert {key: off for key, off in away.items() if abs(off) >= 0.1} == {}
    # Allocations in a graph's own memory are in no peak.
    eager = [name for name, run in runs.items() if run.model["strategy"] == run.request["vision"] == "eager"]
    assert max(abs(off) for (name, _), off in away.items() if name in eager) < 0.01


@pytest.mark.parametrize(("dtype_bytes", "times"), [(2, 4), (4, 1)])
def test_attention_that_is_not_fused_holds_its_scores(dtype_bytes: int, times: int) -> None:
    """So often, as was counted of the class's tensors: 12 heads of 64 x 64 places that see each other."""
    peaks = []
    for attention in ("eager", "sdpa"):
        how = {"strategy": "eager", "vision": "eager", "attention": attention}
        shape = {"batch": 1, "dtype_bytes": dtype_bytes, "cache_len": 1}
        need = memory_need(dummy_config("dummy"), [VisionCall("global", 1024)], how, **shape)
        peaks.append(need["peak_bytes"][0])
    assert peaks[0] - peaks[1] == pytest.approx(times * 12 * 4096**2 * dtype_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "cache"),
    [
        ({"model": "dummy", "dtype": "bfloat16", "max_new_tokens": 256}, [0, 61440 * (273 + 48 + 256)]),
        ({"model": "dummy", "dtype": "bfloat16", "strategy": "cuda_graph"}, [61440 * 8192] * 2),
        ({"model": "dummy:unlimited-ocr", "dtype": "bfloat16"}, [0, 61440 * (273 + 20 + 128)]),
    ],
    ids=["grows", "static", "window"],
)
def test_the_cache_is_as_large_as_the_run_makes_it(settings: dict[str, Any], cache: list[int]) -> None:
    need, said = fit(PAGE, Settings(preset="base", **settings))
    assert need["kv_bytes"].tolist() == pytest.approx(cache, rel=0.1)
    assert said.startswith(f"{settings['model']} at base needs ") and said.endswith(": it fits.")
    twice, _ = fit([PAGE, PAGE], Settings(preset="base", **settings))
    assert (twice["kv_bytes"] == 2 * need["kv_bytes"]).all()
    assert (twice["weight_bytes"] == need["weight_bytes"]).all()


def test_the_verb_needs_a_config_and_nothing_else(tmp_path, capsys, monkeypatch):
    shutil.copy(asset("data", "tiny") / "config.json", tmp_path)
    command = ["profile", str(PAGE), "--dry-run", "--model", str(tmp_path), "--preset", "small"]
    assert main([*command, "--device", "cpu", "--json"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["need"] == fit(PAGE, Settings(preset="small"))[0].to_dict("records")
    assert told["sentence"] in printed.err and "it fits" in told["sentence"]
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**8))
    assert "100 MB free: it does not fit." in fit(PAGE, Settings())[1]


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for wrong in ({"preset": "crop"}, {"model": "nowhere"}, {"device": "cuda:99"}):
        with refused():
            fit(PAGE, Settings(**wrong))
    with refused():
        fit("no.png", Settings())
