"""A stage is one row of a table, and a record says which stages it has.

A stage that the table does not have, such as a hook of somebody's own, is drawn and counted by its
role, or it is said to be in no sum.
"""

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from conftest import PAGES
from example_run import altered, check_of, make_run

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.stages import attended, stage_table, stages_of
from ocr_phases.families import FAMILIES, Wiring
from ocr_phases.record.parts import StagePart
from ocr_phases.show.comparison_plots import plot_prefill_stages
from ocr_phases.show.stage_rows import with_names
from ocr_phases.show.timeline_plot import plot_phase_timeline
from ocr_phases.show.vision_plot import plot_vision_stages
from ocr_phases.stages import STAGES, stage_of, stage_place


def with_adapter(role: str | None = None, inside: str | None = None) -> PhaseRun:
    """A record whose second encoder is called ``adapter``; with a role the record declares it."""
    run = make_run()
    spans = run.spans.assign(stage=run.spans["stage"].replace({"clip": "adapter"}))
    run = replace(run, spans=spans)
    if role is None:
        return run
    stage = StagePart(name="adapter", path="model.adapter", role=role, inside=inside)
    return replace(run, model=msgspec.structs.replace(run.model, stages=[stage]))


def words(figure) -> str:
    found = []
    for axes in figure.axes:
        found += [text.get_text() for text in (*axes.texts, *axes.get_yticklabels())]
        found.append(axes.get_title("left"))
    for legend in [*figure.legends, *(axes.get_legend() for axes in figure.axes)]:
        if legend is not None:
            found += [text.get_text() for text in legend.get_texts()]
    return "\n".join(found)


def test_every_stage_of_a_family_has_a_row_with_its_role() -> None:
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    for facts in FAMILIES.values():
        assert [stage_of(name).role for name in facts.encoders] == ["vision", "vision"]
        for wiring in filter(None, (facts.native, facts.vendor)):
            unknown = {*wiring.modules, *wiring.between} - set(names)
            assert not unknown, f"{facts.title}: add {', '.join(unknown)} to STAGES of stages.py"


def test_families_of_one_class_say_the_same_of_it() -> None:
    """How a class is driven is found by its name, so a stage is named in each of its families."""
    known: dict[str, tuple[str, Wiring]] = {}
    for facts in FAMILIES.values():
        for wiring in filter(None, (facts.native, facts.vendor)):
            title, first = known.setdefault(wiring.class_name, (facts.title, wiring))
            assert wiring == first, f"{wiring.class_name}: {title} and {facts.title} differ"


@pytest.mark.parametrize("role", [None, "vision"])
def test_a_stage_that_nobody_knows_is_in_the_tables_the_pictures_and_the_coverage(role) -> None:
    run = with_adapter(role)
    known = make_run()
    assert "adapter" in set(stage_table(run)["stage"])
    assert "adapter" in words(plot_phase_timeline(run))
    assert "adapter" in words(plot_vision_stages(run))
    assert "adapter" in words(plot_prefill_stages([run, known], ["a", "b"]))
    assert run["stage_coverage"] == known["stage_coverage"]


def test_a_legend_of_hundreds_of_stages_names_the_longest_alone() -> None:
    run = make_run()
    encoder = run.spans[run.spans["stage"] == "clip"]
    pieces = []
    for number in range(300):
        part = encoder.assign(stage=f"hook {number}")
        for clock in ("device", "host"):  # one after the other
            length = encoder[f"{clock}_ms"] / 300
            part[f"{clock}_start_ms"] += number * length
            part[f"{clock}_ms"] = 0.99 * length
        pieces.append(part)
    spans = pd.concat([run.spans[run.spans["stage"] != "clip"], *pieces], ignore_index=True)
    figure = plot_prefill_stages([replace(run, spans=spans), run], ["a", "b"])
    (legend,) = [axes.get_legend() for axes in figure.axes]
    named = [text.get_text() for text in legend.get_texts()]
    assert len(named) == 18  # 16 stages, the others, and what lies between stages
    assert re.fullmatch(r"\d+ others", named[-2])
    assert {"language model", "SAM"} <= set(named)


def test_the_time_of_vision_has_a_declared_vision_stage_and_no_undeclared_one() -> None:
    known = make_run()
    declared = with_adapter("vision")
    assert declared["vision_ms"] == pytest.approx(known["vision_ms"])
    assert declared["adapter_ms"] == known["clip_ms"]
    undeclared = with_adapter()
    assert undeclared["vision_ms"] < known["vision_ms"]
    measured = check_of(undeclared, "stage_coverage").measured
    assert "it is unknown what adapter is" in measured
    assert "adapter" not in check_of(declared, "stage_coverage").measured


def test_a_stage_inside_another_is_added_to_no_sum_twice() -> None:
    run = with_adapter("vision", inside="sam")
    spans = run.spans.copy()
    sam = spans[spans["stage"] == "sam"].set_index(["repeat", "view"])
    for row in spans.index[spans["stage"] == "adapter"]:
        outer = sam.loc[(spans.at[row, "repeat"], spans.at[row, "view"])]
        spans.loc[row, "device_start_ms"] = outer["device_start_ms"]
        spans.loc[row, "device_ms"] = outer["device_ms"] / 2
    run = replace(run, spans=spans)
    parts = run["sam_ms"] + run["projector_ms"]
    assert run["vision_ms"] == pytest.approx(parts, rel=1e-2)
    undeclared = replace(run, model=msgspec.structs.replace(run.model, stages=None))
    measured = check_of(undeclared, "stage_coverage").measured
    assert "adapter overlaps other stages, so it is in no sum" in measured


def test_a_stage_stands_among_those_of_its_role() -> None:
    adapter = stage_of("adapter", "vision")
    assert stage_place(stage_of("clip")) < stage_place(adapter) < stage_place(stage_of("projector"))
    assert stage_place(stage_of("sampling")) < stage_place(stage_of("adapter"))
    assert [*stages_of(with_adapter("vision"))].index("adapter") == 4


def test_a_record_lists_its_stages_and_keeps_them(
    golden_session: OCRSession, tmp_path: Path
) -> None:
    run = golden_session.run_inference(
        PAGES / "receipt.png", preset="tiny", max_new_tokens=2, repeats=1, warmup=0, ceilings=False
    )
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert again.model.stages is not None
    listed = {part.name: part for part in again.model.stages}
    assert listed["sam"].path == "model.vision_tower.sam_encoder"
    assert (listed["projector"].role, listed["vision_fusion"].path) == ("projector", None)
    assert list(listed) == list(stages_of(again))
    unlisted = replace(again, model=msgspec.structs.replace(again.model, stages=None))
    assert unlisted.summary() == again.summary()


def test_a_row_of_a_picture_has_the_stage_in_words_and_its_view() -> None:
    rows = pd.DataFrame(
        {
            "stage": ["prefill", "decode_step", "vision_fusion", "sam"],
            "view": ["", "", "", "local"],
        }
    )
    fusion = stage_of("vision_fusion").title
    encoder = stage_of("sam").title
    names = with_names(rows)["name"].tolist()
    assert names == ["whole prefill", "decode step", fusion, f"{encoder} local"]


def test_a_window_bounds_the_cache_entries_that_a_step_sees() -> None:
    run = make_run(crops=False)
    prompt_tokens = run.request.prefill_len
    lengths = np.array([prompt_tokens, prompt_tokens + 16, prompt_tokens + 500])
    windowed = altered(run, cache={"window": 16})
    assert attended(windowed, lengths).tolist() == [*lengths[:2], prompt_tokens + 16]
    assert attended(run, lengths).tolist() == lengths.tolist()
    without_prompt = altered(windowed, request={"prefill_len": None})
    assert attended(without_prompt, lengths).tolist() == lengths.tolist()
