"""A stage is one row of a table, and a record says which stages it has.

A stage that the table does not have, such as a hook of somebody's own, is drawn and counted by its
role, or it is said to be in no sum.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from conftest import PAGES
from example_run import altered, check_of, make_run
from matplotlib.figure import Figure

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.stages import attended, stage_table, stages_of
from ocr_phases.families import FAMILIES, Wiring
from ocr_phases.families.facts import FamilyFacts
from ocr_phases.record.parts import StagePart
from ocr_phases.show.comparison_plots import plot_prefill_stages
from ocr_phases.show.stage_rows import with_names
from ocr_phases.show.timeline_plot import plot_phase_timeline
from ocr_phases.show.vision_plot import plot_vision_stages
from ocr_phases.stages import STAGES, stage_of, stage_place


def declare(run: PhaseRun, stages: list[StagePart] | None) -> PhaseRun:
    """The record with this list of its stages; with None it declares none."""
    return replace(run, model=msgspec.structs.replace(run.model, stages=stages))


def undeclared_adapter() -> PhaseRun:
    """A record whose second encoder is called ``adapter``, of which it says nothing."""
    run = make_run()
    spans = run.spans.assign(stage=run.spans["stage"].replace({"clip": "adapter"}))
    return replace(run, spans=spans)


def declared_adapter(inside: str | None = None) -> PhaseRun:
    """The same record, which declares the stage and its role, and which one it lies in."""
    stage = StagePart(name="adapter", path="model.adapter", role="vision", inside=inside)
    return declare(undeclared_adapter(), [stage])


def legend_texts(figure: Figure) -> list[str]:
    """What the legends of a figure say, those of the figure and those of its axes."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    texts = []
    for legend in legends:
        if legend is not None:
            texts += [text.get_text() for text in legend.get_texts()]
    return texts


def texts_of(figure: Figure) -> str:
    """All that a figure says in words."""
    texts = []
    for axes in figure.axes:
        texts += [text.get_text() for text in (*axes.texts, *axes.get_yticklabels())]
        texts.append(axes.get_title("left"))
    return "\n".join([*texts, *legend_texts(figure)])


# -- the table of stages ---------------------------------------------------------------------------


def wirings_of(facts: FamilyFacts) -> Iterator[Wiring]:
    """How the classes of a family are driven that it has."""
    for wiring in (facts.native, facts.vendor):
        if wiring is not None:
            yield wiring


def test_no_two_stages_have_one_name() -> None:
    names = [stage.name for stage in STAGES]

    assert len(set(names)) == len(names)


def test_every_stage_of_a_family_has_a_row_with_its_role() -> None:
    known = {stage.name for stage in STAGES}

    for facts in FAMILIES.values():
        assert [stage_of(name).role for name in facts.encoders] == ["vision", "vision"]
        for wiring in wirings_of(facts):
            unknown = {*wiring.modules, *wiring.between} - known
            assert not unknown, f"{facts.title}: add {', '.join(unknown)} to STAGES of stages.py"


def test_families_of_one_class_say_the_same_of_it() -> None:
    """How a class is driven is found by its name, so a stage is named in each of its families."""
    known: dict[str, tuple[str, Wiring]] = {}
    for facts in FAMILIES.values():
        for wiring in wirings_of(facts):
            title, first = known.setdefault(wiring.class_name, (facts.title, wiring))
            assert wiring == first, f"{wiring.class_name}: {title} and {facts.title} differ"


def test_a_stage_stands_among_those_of_its_role() -> None:
    adapter = stage_of("adapter", "vision")
    unknown_role = stage_of("adapter")

    assert stage_place(stage_of("clip")) < stage_place(adapter)
    assert stage_place(adapter) < stage_place(stage_of("projector"))
    assert stage_place(stage_of("sampling")) < stage_place(unknown_role)
    assert list(stages_of(declared_adapter())).index("adapter") == 4


# -- a stage that the table does not have ----------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(undeclared_adapter(), id="undeclared"),
        pytest.param(declared_adapter(), id="declared"),
    ],
)
def test_a_stage_that_nobody_knows_is_in_the_tables_the_pictures_and_the_coverage(
    run: PhaseRun,
) -> None:
    known = make_run()

    assert "adapter" in set(stage_table(run)["stage"])
    assert "adapter" in texts_of(plot_phase_timeline(run))
    assert "adapter" in texts_of(plot_vision_stages(run))
    assert "adapter" in texts_of(plot_prefill_stages([run, known], ["a", "b"]))
    assert run["stage_coverage"] == known["stage_coverage"]


def test_the_time_of_vision_has_a_declared_vision_stage() -> None:
    known = make_run()

    declared = declared_adapter()

    assert declared["vision_ms"] == pytest.approx(known["vision_ms"])
    assert declared["adapter_ms"] == known["clip_ms"]
    assert "adapter" not in check_of(declared, "stage_coverage").measured


def test_the_time_of_vision_lacks_an_undeclared_stage_and_a_check_says_so() -> None:
    undeclared = undeclared_adapter()

    assert undeclared["vision_ms"] < make_run()["vision_ms"]
    measured = check_of(undeclared, "stage_coverage").measured
    assert "it is unknown what adapter is" in measured


def adapter_within_sam() -> PhaseRun:
    """A record whose declared ``adapter`` runs in the first half of each run of SAM."""
    run = declared_adapter(inside="sam")
    spans = run.spans.copy()
    sam = spans[spans["stage"] == "sam"].set_index(["repeat", "view"])
    for row in spans.index[spans["stage"] == "adapter"]:
        outer = sam.loc[(spans.at[row, "repeat"], spans.at[row, "view"])]
        spans.loc[row, "device_start_ms"] = outer["device_start_ms"]
        spans.loc[row, "device_ms"] = outer["device_ms"] / 2
    return replace(run, spans=spans)


def test_a_stage_inside_another_is_added_to_no_sum_twice() -> None:
    run = adapter_within_sam()

    outer_stages_ms = run["sam_ms"] + run["projector_ms"]
    assert run["vision_ms"] == pytest.approx(outer_stages_ms, rel=1e-2)


def test_an_undeclared_stage_that_overlaps_others_is_in_no_sum_and_a_check_says_so() -> None:
    undeclared = declare(adapter_within_sam(), None)

    measured = check_of(undeclared, "stage_coverage").measured

    assert "adapter overlaps other stages, so it is in no sum" in measured


def test_a_legend_of_hundreds_of_stages_names_the_longest_alone() -> None:
    run = make_run()
    crowded = encoder_in_pieces(run, 300)

    figure = plot_prefill_stages([crowded, run], ["a", "b"])

    named = legend_texts(figure)
    assert len(named) == 18  # 16 stages, the others, and what lies between stages
    assert re.fullmatch(r"\d+ others", named[-2])
    assert {"language model", "SAM"} <= set(named)


def encoder_in_pieces(run: PhaseRun, count: int) -> PhaseRun:
    """The record with so many equal stages, one after another, in place of the second encoder."""
    is_encoder = run.spans["stage"] == "clip"
    encoder = run.spans[is_encoder]
    pieces = []
    for number in range(count):
        piece = encoder.assign(stage=f"hook {number}")
        for clock in ("device", "host"):
            length = encoder[f"{clock}_ms"] / count
            piece[f"{clock}_start_ms"] += number * length
            piece[f"{clock}_ms"] = 0.99 * length
        pieces.append(piece)
    spans = pd.concat([run.spans[~is_encoder], *pieces], ignore_index=True)
    return replace(run, spans=spans)


# -- what a record says of its stages --------------------------------------------------------------


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
    assert listed["projector"].role == "projector"
    assert listed["vision_fusion"].path is None
    assert list(listed) == list(stages_of(again))
    assert declare(again, None).summary() == again.summary()


def test_a_row_of_a_picture_has_the_stage_in_words_and_its_view() -> None:
    stages = ["prefill", "decode_step", "vision_fusion", "sam"]
    rows = pd.DataFrame({"stage": stages, "view": ["", "", "", "local"]})

    names = with_names(rows)["name"].tolist()

    fusion = stage_of("vision_fusion").title
    encoder = stage_of("sam").title
    assert names == ["whole prefill", "decode step", fusion, f"{encoder} local"]


def test_a_window_bounds_the_cache_entries_that_a_step_sees() -> None:
    run = make_run(crops=False)
    prompt_tokens = run.request.prefill_len
    lengths = np.array([prompt_tokens, prompt_tokens + 16, prompt_tokens + 500])

    windowed = altered(run, cache={"window": 16})

    seen = [prompt_tokens, prompt_tokens + 16, prompt_tokens + 16]
    assert attended(windowed, lengths).tolist() == seen


def test_without_a_window_or_the_length_of_its_prompt_a_step_sees_all_entries() -> None:
    run = make_run(crops=False)
    prompt_tokens = run.request.prefill_len
    lengths = np.array([prompt_tokens, prompt_tokens + 16, prompt_tokens + 500])
    unknown_prompt = altered(run, cache={"window": 16}, request={"prefill_len": None})

    assert attended(run, lengths).tolist() == lengths.tolist()
    assert attended(unknown_prompt, lengths).tolist() == lengths.tolist()
