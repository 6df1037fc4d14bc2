"""Which rule finds the regions that were read wrongly: ``python -m benchmarks.uncertain_regions``.

Reads pages with their truth and writes a row a region that has a text: whether that is wrong, and what the
rules say of it. A FOLDER has pages and their JSON as ``benchmarks.quality_pages`` draws them, which it does
where none is given. ``python -m benchmarks.quality_figures`` then writes the table of docs/quality.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from benchmarks.quality_pages import draw
from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.quality import region_differences
from ocr_phases.analyse.regions import UNCERTAIN_BELOW
from ocr_phases.analyse.stages import text_tokens, token_probabilities
from ocr_phases.analyse.text import EXTRA
from ocr_phases.schema import TrueRegion, Truth
from ocr_phases.text import percent_text

RESULT = Path(__file__).parents[1] / "data" / "runs" / "quality" / "uncertain.csv.gz"
WRONG_ABOVE = 0.1
"""A region is wrong if its CER is higher, or if the truth has no text in its place."""
#: The rules compared; of each, lower is less sure.
RULES = {
    "mean_probability": "mean probability of the tokens",
    "geometric_mean": "geometric mean of them",
    "least_probability": "least of them",
    "likely_share": "share of tokens with at least 80 %",
    "mean_margin": "mean margin",
    "least_margin": "least margin",
}
THRESHOLDS = (0.8, 0.85, UNCERTAIN_BELOW, 0.95)
_LIKELY = 0.8


def region_rows(run: PhaseRun, truth: Truth) -> Iterator[dict[str, object]]:
    """One row a region of the first row that has a text."""
    known, own = token_probabilities(run), text_tokens(run)
    for side in region_differences(run, truth).itertuples():
        if pd.isna(side.region) or not len(own[side.region]):
            continue
        mine = known.loc[own[side.region]]
        sure = mine["probability"]
        yield {
            "region": side.region,
            "label": side.label,
            "tokens": len(mine),
            "cer": side.cer,
            "wrong": side.outcome == EXTRA or bool(side.cer > WRONG_ABOVE),
            "mean_probability": sure.mean(),
            "geometric_mean": np.exp(np.log(sure).mean()),
            "least_probability": sure.min(),
            "likely_share": (sure >= _LIKELY).mean(),
            "mean_margin": mine["margin"].mean(),
            "least_margin": mine["margin"].min(),
        }


def read_truth(path: Path) -> Truth:
    """A page's JSON; unlike `load_truth` it may have no text at all."""
    regions = [
        TrueRegion(region["label"], tuple(region["box"]), region["text"])
        for region in json.loads(path.read_text(encoding="utf-8"))["regions"]
    ]
    return Truth("\n\n".join(region.text for region in regions), tuple(regions))


def read_pages(session: OCRSession, folder: Path, preset: str) -> Iterator[dict[str, object]]:
    """The rows of all pages of a folder, which names the set."""
    for page in tqdm(sorted(folder.glob("*.png")), desc=folder.name, disable=None):
        run = session.run_inference(
            page, preset=preset, repeats=1, warmup=0, max_new_tokens=2048, ceilings=False
        )
        for row in region_rows(run, read_truth(page.with_suffix(".json"))):
            yield {"set": folder.name, "page": page.stem, **row}


def area_under_curve(wrong: pd.Series, value: pd.Series) -> float:
    """The chance that a wrong region has a lower value than one that is right; half of one for a tie."""
    ranks, count = value.rank(), int(wrong.sum())
    right = len(wrong) - count
    return 1 - float(ranks[wrong].sum() - count * (count + 1) / 2) / (count * right)


def rule_table(regions: pd.DataFrame) -> str:
    """Each rule's area under the ROC curve: Markdown."""
    lines = ["| rule | area under the ROC curve |", "| --- | --- |"]
    lines += [
        f"| {text} | {area_under_curve(regions['wrong'], regions[name]):.3f} |"
        for name, text in RULES.items()
    ]
    return "\n".join(lines)


def threshold_table(regions: pd.DataFrame) -> str:
    """What the chosen rule finds below some thresholds: Markdown."""
    wrong = regions["wrong"]
    lines = ["| mean probability below | uncertain | precision | recall |", "| --- | --- | --- | --- |"]
    for threshold in THRESHOLDS:
        marked = regions["mean_probability"] < threshold
        hits = int((marked & wrong).sum())
        shares = (hits / max(int(marked.sum()), 1), hits / int(wrong.sum()))
        lines.append(
            f"| {percent_text(threshold)} | {marked.sum()} of {len(regions)} | "
            f"{' | '.join(map(percent_text, shares))} |"
        )
    of = f"{wrong.sum()} of {len(regions)} regions with a text are wrong, on {pages_of(regions)} pages."
    return "\n".join([of, "", *lines])


def pages_of(regions: pd.DataFrame) -> int:
    """How many pages they are of."""
    return int(regions.groupby(["set", "page"]).ngroups)


def main() -> None:
    """Read the pages, write the rows and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="default: pages drawn now")
    parser.add_argument("--checkpoint", default="tiny")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--pages", type=int, default=75, help="drawn where there is no FOLDER")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    session = OCRSession.load(options.checkpoint, device="cpu")
    with tempfile.TemporaryDirectory() as own:
        folders = options.folders
        if not folders:
            folders = [Path(own, "generated")]
            draw(folders[0], options.pages, seed=2)
        rows = [row for folder in folders for row in read_pages(session, folder, options.preset)]
    table = pd.DataFrame(rows).round(4)
    table.to_csv(options.out, index=False, compression={"method": "gzip", "mtime": 0})
    print(rule_table(table), threshold_table(table), sep="\n\n")


if __name__ == "__main__":
    main()
