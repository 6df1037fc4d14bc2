"""The sample pages of ``data/pages``: published records hold their hashes, so they stay as they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ocr_phases.analyse.grounding import parse_grounding

PAGES = Path(__file__).resolve().parents[1] / "data" / "pages"
SAMPLES = ("dense", "form", "invoice", "paper", "receipt", "slide")
#: Of all files in the order of their names: all ink is in tight boxes that lie apart, all boxes hold ink.
DRAWN = "f0a49085f64867d2ace6bc1c583a7e616ae78180859836f018804386cbe9156a"


def test_they_are_six_and_as_they_were_drawn() -> None:
    paths = sorted(PAGES.iterdir())
    assert [path.name for path in paths] == [f"{name}{end}" for name in SAMPLES for end in (".json", ".png")]
    assert hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest() == DRAWN


@pytest.mark.parametrize("name", SAMPLES)
def test_the_truth_reads_back_from_its_markdown(name: str) -> None:
    truth = json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))
    read = parse_grounding(truth["markdown"])
    assert read.dropped == 0
    assert [(r.label, [list(box) for box in r.boxes], r.text) for r in read.regions] == [
        (region["label"], [region["box"]], region["text"]) for region in truth["regions"]
    ]
