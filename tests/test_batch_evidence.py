"""The estimator behind the speed-up of several devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import batch_evidence

ROOT = Path(__file__).parents[1]


def attempts(worker: str, starts: list[float], seconds: float) -> list[dict[str, Any]]:
    return [{"worker": worker, "started": start, "seconds": seconds} for start in starts]


def test_a_pace_counts_whole_pages_while_all_are_at_it():
    # One worker is ready at 10 s and takes 2 s a page, the other at 100 s, takes 4 s and waits 1 s.
    fast = attempts("a", [10.0 + 2.0 * number for number in range(100)], 2.0)
    slow = attempts("b", [100.0 + 5.0 * number for number in range(10)], 4.0)
    by_worker = batch_evidence.pages_by_worker([*slow, *fast[::-1]])
    begin, end = batch_evidence.steady_window(by_worker)
    assert (begin, end) == (104.0, 149.0)
    assert batch_evidence.pace(by_worker["a"], begin, end) == pytest.approx(1 / 2)
    assert batch_evidence.pace(by_worker["b"], begin, end) == pytest.approx(1 / 5)
    with pytest.raises(SystemExit, match="give more pages"):
        batch_evidence.pace(by_worker["a"], begin, begin + 1.0)


def evidence() -> dict[str, Any]:
    values = {"median": 1.5, "q25": 1.4, "q75": 1.6, "count": 20}
    run = {"pages": 60, "pages_per_min": 40.0, "seconds_a_page": values, "decode_step_ms": values}
    both = [{"pages_per_min": 39.5}, {"pages_per_min": 38.5}]
    return {
        "what": "gpus",
        "workers": 2,
        "options": ["--preset", "base"],
        "threads_a_worker": 8,
        "one": run,
        "several": {**run, "pages_per_min": 78.0, "workers": both, "pages_in_window": 56, "window_s": 43.0},
        "one again": {**run, "pages_per_min": 39.0},
        "speedup": 1.975,
        "speedup_range": [1.95, 2.0],
        "step_change": 0.001,
        "step_change_of_one_alone": -0.002,
        "measured_with": {
            "devices": ["Some GPU"],
            "versions": [{"torch": "2.11", "cuda": None}],
            "models": ["dummy in bfloat16"],
        },
    }


def test_the_document_says_what_the_files_say(tmp_path):
    file, document = tmp_path / "gpus.json", tmp_path / "doc.md"
    file.write_text(json.dumps(evidence()))
    mark = "<!-- evidence: written by benchmarks.batch_evidence write -->"
    document.write_text(f"before\n{mark}\nold\n<!-- /evidence -->\nafter\n")
    for _ in range(2):
        batch_evidence.write(document, [file])
        text = document.read_text()
        assert text.startswith(f"before\n{mark}\n| | |") and text.endswith("<!-- /evidence -->\nafter\n")
    for part in (
        "| one device, before and after | 40.0 and 39.0 pages a minute |",
        "| each of them | 39.5 and 38.5 |",
        "| speed-up | 1.98 (1.95 to 2.00 ",
        "| seconds a page beside a neighbour | 1.500 (1.400 to 1.600) |",
        "Some GPU, torch 2.11; dummy in bfloat16; `--preset base`; 60, 60, 60 pages",
        "56 pages in 43 s",
    ):
        assert part in text.replace("\n", " ")
    assert "old" not in text
