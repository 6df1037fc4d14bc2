"""What must hold of a real vLLM with the built-in model, for ``.ci/engine``: ``check.py URL
FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from ocr_phases import PhaseRun, compare
from ocr_phases.cli import main
from ocr_phases.session import OCRSession
from ocr_phases.versions import asset

TOKENS = 64


def verb(*words: str) -> None:
    """Run one verb; its exit code must be 0."""
    print("+ ocr-phases", *words, flush=True)
    assert main(words) == 0, words


def check(url: str, out: Path) -> None:
    """Profile, verify, load and compare; every record stays in ``out``."""
    page = str(asset("data", "pages", "receipt.png"))
    asked = ("--server", url, "--max-new-tokens", str(TOKENS))
    saved, verified, load = (str(out / name) for name in ("vllm.json", "verified.json", "load"))
    verb("profile", page, *asked, "--preset", "gundam", "--repeats", "5", "--save", saved)
    verb("verify", page, *asked, "--repeats", "1", "--save", verified)
    verb("sweep", page, *asked, "--concurrency", "1,2,4", "--requests", "4", "--out", load)
    options = {"preset": "gundam", "max_new_tokens": TOKENS, "repeats": 5}
    native = OCRSession.load("tiny", device="cpu").run_inference(page, **options)
    native.save(out / "transformers.json")
    run = PhaseRun.load(saved)
    assert run.result.ids == native.result.ids, "other tokens"
    assert run.request.prefill_len == native.request.prefill_len, "another prompt"
    checks = PhaseRun.load(verified).checks.set_index("name")["verdict"]
    for name in ("parity", "server_prompt", "server_preset", "fresh_prompt", "repeats_agree"):
        assert checks[name] == "pass", (name, checks[name])
    for _, spans in run.spans.groupby("repeat"):
        inside = spans[spans["phase"] == "prefill"].set_index("stage")
        whole = inside.loc["prefill"]
        start, end = whole["host_start_ms"], whole["host_start_ms"] + whole["host_ms"]
        stages = inside.drop(index=["prefill", "first_token"], errors="ignore")
        begun = stages["host_start_ms"]
        assert {*stages.index} == {"sam", "clip", "projector", "language_model"}
        assert (begun >= start).all() and (begun + stages["host_ms"] <= end).all()
    missing = ("peak_bytes", "kv_cache_bytes", "vision_fusion_ms", "compression_ratio")
    assert [run[name] for name in missing] == [None] * len(missing), "0 in place of n/a"
    table = compare(native, run).table.set_index("metric")
    assert table.loc["agreement", "other"] == 1.0
    assert pd.isna(table.loc["prefill/vision_fusion", "other"])
    assert table.loc["prefill/sam/global", "ratio"] > 0
    listed = {part.name: part.path for part in run.model.stages or []}
    assert listed["sam"] == "sam_model", listed
    waits = compare(native, run, labels=["native", "vllm"]).first_token
    told = waits[waits["run"] == "vllm"].set_index("part")["ms"].dropna()
    assert set(told.index) == {"processor", "queue", "encoder", "prefill", "first token"}, told
    print(compare(native, run).verdict)


if __name__ == "__main__":
    check(sys.argv[1], Path(sys.argv[2]))
