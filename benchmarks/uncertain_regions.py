"""How well uncertain regions are those that were read wrongly: ``python -m
benchmarks.uncertain_regions``.

The built-in model reads pages of `benchmarks.random_pages.quality`; a row is written for each
region that has a text. ``python -m benchmarks.quality_figures`` then writes the sentence of
docs/quality.md.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from benchmarks.random_pages.quality import draw
from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.quality import region_differences
from ocr_phases.analyse.regions import UNCERTAIN_BELOW
from ocr_phases.analyse.stages import recorded_probabilities, text_tokens
from ocr_phases.analyse.text import EXTRA
from ocr_phases.record.schema import TrueRegion, Truth
from ocr_phases.text import percent_text

RESULT = Path(__file__).parents[1] / "data" / "runs" / "quality" / "uncertain.csv.gz"
WRONG_ABOVE = 0.1
"""A region is wrong if its CER is higher, or if the truth has no text in its place."""


def region_rows(run: PhaseRun, truth: Truth) -> Iterator[dict[str, object]]:
    """One row a region of the first row that has a text."""
    known, own = recorded_probabilities(run), text_tokens(run)
    for side in region_differences(run, truth).itertuples():
        if not pd.isna(side.region) and len(own[side.region]):
            wrong = side.outcome == EXTRA or bool(side.cer > WRONG_ABOVE)
            mean = known.loc[own[side.region], "probability"].mean()
            named = {"region": side.region, "label": side.label, "cer": side.cer}
            yield {**named, "wrong": wrong, "mean_probability": mean}


def read_truth(path: Path) -> Truth:
    """A page's JSON; unlike `load_truth` it may have no text at all."""
    regions = json.loads(path.read_text(encoding="utf-8"))["regions"]
    known = [
        TrueRegion(region["label"], tuple(region["box"]), region["text"]) for region in regions
    ]
    return Truth("\n\n".join(region.text for region in known), tuple(known))


def read_pages(folder: Path) -> Iterator[dict[str, object]]:
    """The rows of all pages of a folder, which names the set."""
    session = OCRSession.load("tiny", device="cpu")
    quick = {"repeats": 1, "warmup": 0, "max_new_tokens": 2048, "ceilings": False}
    for page in tqdm(sorted(folder.glob("*.png")), disable=None):
        run = session.run_inference(page, preset="small", **quick)
        for row in region_rows(run, read_truth(page.with_suffix(".json"))):
            yield {"set": folder.name, "page": page.stem, **row}


def found(regions: pd.DataFrame) -> str:
    """How many of the uncertain regions are wrong, and of the wrong ones uncertain, in words."""
    wrong, marked = regions["wrong"], regions["mean_probability"] < UNCERTAIN_BELOW
    hits, pages = int((marked & wrong).sum()), int(regions.groupby(["set", "page"]).ngroups)
    precision, recall = (percent_text(hits / int(all_of.sum())) for all_of in (marked, wrong))
    return (
        f"On {pages} pages, {wrong.sum()} of {len(regions)} regions with a text are wrong. "
        f"{marked.sum()} regions are uncertain, and {precision} of these are wrong. Of the "
        f"{wrong.sum()} wrong regions, {recall} are uncertain."
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as own:
        pages = Path(own, "generated")
        draw(pages, 75, seed=2)
        table = pd.DataFrame(read_pages(pages)).round(4)
    table.to_csv(RESULT, index=False, compression={"method": "gzip", "mtime": 0})
    print(found(table))
