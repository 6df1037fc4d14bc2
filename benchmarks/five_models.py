"""Draws docs/gallery/five-models.png, a sweep over five models: ``python -m
benchmarks.five_models``.

The models are as small as their classes allow, with random weights: the picture shows what a sweep
tells, and nothing about the published models.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.gallery import drawn, save
from ocr_phases.analyse.stages import stage_table
from ocr_phases.results.run import PhaseRun
from ocr_phases.results.sweep import SweepResult
from ocr_phases.session.sweeps import sweep
from ocr_phases.show.shown_figure import blank_figure
from ocr_phases.stages import stage_of
from ocr_phases.versions import asset

CONFIGS = Path(__file__).with_suffix(".json")
TITLES = {
    "got_ocr2": "GOT-OCR2",
    "glm_ocr": "GLM-OCR",
    "lighton_ocr": "LightOnOCR",
    "paddleocr_vl": "PaddleOCR-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
}
COLUMNS = {
    "prefill_len": ("prompt\ntokens", "{:,.0f}"),
    "prefill_ms": ("prefill\nms", "{:.1f}"),
    "vision_share": ("of it\nvision", "{:.0%}"),
    "inter_token_ms": ("decode step\nms", "{:.2f}"),
    "page_ms": ("page\nms", "{:.0f}"),
    "edit_distance": ("edit\ndistance", "{:.0%}"),
    "cer": ("CER", "{:.0%}"),
}
STAGES = ("encoder", "projector", "language_model", "lm_head", "sampling")
CAPTION = (
    "One page, five document VLMs, one table. These are tiny models with random weights on a CPU: "
    "their text is noise,\nso edit distance and CER say nothing here, and the times are not those "
    "of "
    "the published models."
)


def measured(folder: Path) -> SweepResult:
    """The sweep of the receipt over the five models, with its reference text."""
    page = asset("data", "pages", "receipt.png")
    models = []
    for name, entries in json.loads(CONFIGS.read_text(encoding="utf-8")).items():
        file = folder / f"{name}.json"
        file.write_text(json.dumps(entries), encoding="utf-8")
        models.append(f"dummy:{file}")
    return sweep(
        page,
        models,
        presets=["processor"],
        lengths=[48],
        repeats=5,
        truth=page.with_suffix(".json"),
    )


def picture(result: SweepResult) -> Figure:
    """The sweep's table, with the stages of each prefill beside it."""
    figure = blank_figure(3.6, 11)
    table_axes, stage_axes = figure.subplots(1, 2, sharey=True, width_ratios=[2.3, 1])
    families = {cell: run.model.family for cell, run in result.runs.items()}
    table = result.table.assign(title=result.table["cell"].map(families).map(TITLES))
    _draw_table(table_axes, table)
    for place, cell in enumerate(table["cell"]):
        _draw_stages(stage_axes, place, result.runs[cell])
    stage_axes.set_ylim(len(table) - 0.5, -1.3)
    stage_axes.tick_params(left=False, labelleft=False)
    stage_axes.set_xlabel("prefill by stage, ms")
    stage_axes.spines[["top", "right", "left"]].set_visible(False)
    stage_axes.legend(*_keys(stage_axes), loc="upper left", ncols=3, fontsize=7, frameon=False)
    figure.suptitle(CAPTION, x=0.01, ha="left", fontsize=9)
    return figure


def _draw_table(axes: Axes, table: pd.DataFrame) -> None:
    axes.set_axis_off()
    axes.set_xlim(-1.6, len(COLUMNS) - 0.3)
    for column, (heading, _) in enumerate(COLUMNS.values()):
        axes.text(column + 0.5, -0.6, heading, ha="right", va="bottom", fontsize=8, color="#555")
    for place, row in table.iterrows():
        axes.text(-1.6, place, row["title"], va="center", fontsize=9, weight="bold")
        for column, (name, (_, form)) in enumerate(COLUMNS.items()):
            axes.text(
                column + 0.5, place, form.format(row[name]), ha="right", va="center", fontsize=9
            )


def _draw_stages(axes: Axes, place: int, run: PhaseRun) -> None:
    """A bar of the prefill's stages; what runs inside another stage is taken out of that one."""
    stages = stage_table(run)
    prefill = stages[stages["phase"] == "prefill"].set_index("stage")
    times = prefill["device_ms"].reindex(STAGES).fillna(0.0)
    for part in run.model.stages or ():
        if part.inside in times and part.name in times:
            times[part.inside] -= times[part.name]
    start = 0.0
    for name, time in times.items():
        stage = stage_of(str(name))
        axes.barh(place, time, left=start, height=0.5, color=stage.colour, label=stage.title)
        start += time


def _keys(axes: Axes) -> tuple[list, list[str]]:
    """Each stage once."""
    handles, labels = axes.get_legend_handles_labels()
    keys = dict(zip(labels, handles, strict=True))
    return list(keys.values()), list(keys)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as models:
        save("gallery/five-models", drawn(picture(measured(Path(models)))))
