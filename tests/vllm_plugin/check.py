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

PAGE = str(asset("data", "pages", "receipt.png"))
TOKENS = 64
#: The checks that `verify` must have found passed.
PASSED_CHECKS = ("parity", "server_prompt", "server_preset", "fresh_prompt", "repeats_agree")
#: The figures that a server does not tell.
UNKNOWN_FIGURES = ("peak_bytes", "kv_cache_bytes", "vision_fusion_ms", "compression_ratio")
#: The parts of the wait for the first token that a server tells.
PARTS_OF_FIRST_TOKEN = {"processor", "queue", "encoder", "prefill", "first token"}


def run_verb(*words: str) -> None:
    """Run one verb; its exit code must be 0."""
    print("+ ocr-phases", *words, flush=True)
    assert main(words) == 0, words


def check(url: str, out: Path) -> None:
    """Profile, verify, load and compare; every record stays in ``out``."""
    server = ("--server", url, "--max-new-tokens", str(TOKENS))
    saved = out / "vllm.json"
    verified = out / "verified.json"
    profile_options = ("--preset", "gundam", "--repeats", "5")
    sweep_options = ("--concurrency", "1,2,4", "--requests", "4")
    run_verb("profile", PAGE, *server, *profile_options, "--save", str(saved))
    run_verb("verify", PAGE, *server, "--repeats", "1", "--save", str(verified))
    run_verb("sweep", PAGE, *server, *sweep_options, "--out", str(out / "load"))
    native = measure_native()
    native.save(out / "transformers.json")
    run = PhaseRun.load(saved)

    check_same_reading(native, run)
    check_verdicts(PhaseRun.load(verified))
    check_stages(run)
    check_unknown_figures(run)
    check_comparison(native, run)
    check_first_token(native, run)
    print(compare(native, run).verdict)


def measure_native() -> PhaseRun:
    """The same page by transformers, on this machine."""
    session = OCRSession.load("tiny", device="cpu")
    return session.run_inference(PAGE, preset="gundam", max_new_tokens=TOKENS, repeats=5)


def check_same_reading(native: PhaseRun, run: PhaseRun) -> None:
    """The server read the same prompt and made the same tokens."""
    assert run.result.ids == native.result.ids, "other tokens"
    assert run.request.prefill_len == native.request.prefill_len, "another prompt"


def check_verdicts(verified: PhaseRun) -> None:
    """The checks that need the model here have passed."""
    verdicts = verified.checks.set_index("name")["verdict"]
    for name in PASSED_CHECKS:
        assert verdicts[name] == "pass", (name, verdicts[name])


def check_stages(run: PhaseRun) -> None:
    """In each repeat the stages lie within the prefill, and all of them are there."""
    for _, spans in run.spans.groupby("repeat"):
        prefill = spans[spans["phase"] == "prefill"].set_index("stage")
        stages = prefill.drop(index=["prefill", "first_token"], errors="ignore")
        whole = prefill.loc["prefill"]
        ends = stages["host_start_ms"] + stages["host_ms"]
        assert set(stages.index) == {"sam", "clip", "projector", "language_model"}
        assert (stages["host_start_ms"] >= whole["host_start_ms"]).all()
        assert (ends <= whole["host_start_ms"] + whole["host_ms"]).all()
    paths = {part.name: part.path for part in run.model.stages or []}
    assert paths["sam"] == "sam_model", paths


def check_unknown_figures(run: PhaseRun) -> None:
    """What the server does not tell is missing."""
    for name in UNKNOWN_FIGURES:
        assert run[name] is None, f"{name}: {run[name]} in place of n/a"


def check_comparison(native: PhaseRun, run: PhaseRun) -> None:
    """The two records can be compared stage by stage."""
    table = compare(native, run).table.set_index("metric")
    assert table.loc["agreement", "other"] == 1.0
    assert pd.isna(table.loc["prefill/vision_fusion", "other"])
    assert table.loc["prefill/sam/global", "ratio"] > 0


def check_first_token(native: PhaseRun, run: PhaseRun) -> None:
    """The server tells what its first token waited for."""
    waits = compare(native, run, labels=["native", "vllm"]).first_token
    known = waits[(waits["run"] == "vllm") & waits["ms"].notna()]
    assert set(known["part"]) == PARTS_OF_FIRST_TOKEN, known


if __name__ == "__main__":
    check(sys.argv[1], Path(sys.argv[2]))
