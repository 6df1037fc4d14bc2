"""What a family must have, and that a record of each is measured, kept, drawn and compared alike."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import GOLDEN, PAGES, SMALL_DUMMY_2
from PIL import Image

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, compare
from ocr_phases.analyse.checks import failed, run_checks
from ocr_phases.analyse.cost import run_cost
from ocr_phases.config import read_model_config
from ocr_phases.families import FAMILIES, VISION_STAGES, check_preset, facts_of
from ocr_phases.models.wiring import NATIVES, family_of
from ocr_phases.sweep_models import make_cells
from ocr_phases.text import stage_name

ROOT = Path(__file__).parents[1]
RECEIPT = PAGES / "receipt.png"
QUICK = {"max_new_tokens": 5, "repeats": 1, "warmup": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def run(ocr2_session: OCRSession) -> PhaseRun:
    return ocr2_session.run_inference(RECEIPT, preset="small", verify=True, **QUICK)


# -- the table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_whole(name: str) -> None:
    facts, family = FAMILIES[name], NATIVES[name]
    assert family.facts is facts and facts.name == name
    assert facts.default_preset in facts.presets
    assert all(preset.name == key for key, preset in facts.presets.items())
    assert set(facts.stands_for.values()) <= set(facts.presets)
    assert not set(facts.stands_for) & set(facts.presets)
    assert set(facts.vision_stages) <= set(VISION_STAGES) & set(family.wiring.modules)
    assert {"language_model", "lm_head"} <= set(family.wiring.modules)
    assert "markdown" in facts.prompts
    assert facts.multipage in (None, *facts.prompts) and facts.multipage_preset in (None, *facts.presets)
    assert read_model_config(facts.config).family is facts
    golden = GOLDEN if name == "deepseek-ocr" else GOLDEN / name
    for file in ("checkpoint/config.json", "forward.safetensors", "preprocess.json"):
        assert (golden / file).is_file()
    assert f"| {facts.title} |" in (ROOT / "docs" / "families.md").read_text()


def test_names_of_presets_belong_to_families() -> None:
    assert facts_of(None).preset("base").row_ends
    other = facts_of("deepseek-ocr-2")
    assert other.preset("base") is other.preset("base1024")
    check_preset("crop")
    with pytest.raises(OcrPhasesError, match="no preset 'crop' of DeepSeek-OCR: choose one of tiny"):
        facts_of(None).preset("crop")
    with pytest.raises(OcrPhasesError, match="no preset 'huge': .*large.*base1024"):
        check_preset("huge")
    assert facts_of(None).name == "deepseek-ocr"
    with pytest.raises(OcrPhasesError, match="no family 'other'"):
        facts_of("other")


def test_a_preset_of_another_family_is_refused(ocr2_session: OCRSession) -> None:
    with pytest.raises(OcrPhasesError, match="no preset 'large' of DeepSeek-OCR-2.*small768, base1024, crop"):
        ocr2_session.run_inference(RECEIPT, preset="large", **QUICK)


def test_a_missing_class_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    facts = FAMILIES["deepseek-ocr-2"]
    wiring = dataclasses.replace(facts.native, class_name="NotYetThere")
    family = dataclasses.replace(NATIVES["deepseek-ocr-2"], facts=dataclasses.replace(facts, native=wiring))
    with pytest.raises(OcrPhasesError, match="no NotYetThere, which DeepSeek-OCR-2 needs: upgrade"):
        family.model_class()
    assert NATIVES["deepseek-ocr-2"].model_class() is transformers.DeepseekOcr2ForConditionalGeneration


# -- a record ------------------------------------------------------------------------------------------


def test_a_run_passes_every_check(run: PhaseRun) -> None:
    checks = {check.name: check.verdict for check in run_checks(run)}
    assert not failed(run_checks(run))
    assert checks["parity"] == checks["image_features"] == checks["cache_growth"] == "pass"
    assert run.model["family"] == "deepseek-ocr-2"
    assert run.request["preset"] == run.page["preset"] == "small768"
    assert run.page["image_tokens"] == 145 and run.page["valid_image_tokens"] == 144


def test_its_stages_are_named_in_tables_and_plots(run: PhaseRun) -> None:
    stages = run.stages.query("phase == 'prefill'")["stage"].tolist()
    assert stages[1:4] == ["sam", "encoder", "projector"]
    assert run["clip_ms"] is None and run["encoder_ms"] > 0
    assert run["vision_ms"] == pytest.approx(run["sam_ms"] + run["encoder_ms"] + run["projector_ms"])
    labels = [text.get_text() for text in run.plot.vision().axes[0].get_yticklabels()]
    assert labels[:3] == ["SAM global", "encoder global", "projector global"]
    assert stage_name("encoder") == "encoder"


def test_it_shows_itself(run: PhaseRun, ocr2_session: OCRSession) -> None:
    assert "KV cache" in run._repr_mimebundle_()["text/html"]
    assert "encoder 0.205 M" in ocr2_session._repr_mimebundle_()["text/plain"]
    assert run.explore() is not None
    found = ocr2_session.references()
    assert found["file"].notna().all()
    assert "vision call: encoder" in found["what"].tolist()


def test_its_cost_is_the_familys(run: PhaseRun, tmp_path: Path) -> None:
    loaded = PhaseRun.load(run.save(tmp_path / "run.json"))
    table = run_cost(loaded)
    assert set(table["stage"]) >= {"sam", "encoder", "projector"}
    assert int(table[table["phase"] == "prefill"]["parameters"].sum()) == run.model["parameters"]["total"]
    prefill = table[table["phase"] == "prefill"]
    assert prefill["kv_bytes"].sum() == run.cache["bytes"][0]
    other = dataclasses.replace(run, model={**run.model, "family": "other"})
    with pytest.raises(OcrPhasesError, match="no family 'other'"):
        run_cost(other)


def test_rows_with_and_without_crops_go_through_together(ocr2_session: OCRSession) -> None:
    pages = [Image.new("RGB", size, "white") for size in ((800, 400), (40, 30))]
    run = ocr2_session.run_inference(pages, ["markdown", "free"], **{**QUICK, "max_new_tokens": 2})
    assert [page["image_tokens"] for page in run.pages] == [257 + 2 * 144, 257]
    assert set(run.spans.query("stage == 'encoder'")["view"]) == {"global", "local"}
    assert not failed(run_checks(run))


def test_a_static_step_makes_the_same_tokens(ocr2_session: OCRSession, run: PhaseRun) -> None:
    from ocr_phases.steps.captured import StaticStep
    from ocr_phases.steps.phases import generate

    model = ocr2_session.model
    short, long = ["free", "<image>\n<|grounding|>Convert the document to markdown, with all of its tables."]
    for prompts in ([short], [short, long]):  # the second has a padded row
        inputs = ocr2_session.prepare([RECEIPT] * len(prompts), preset="small", prompt=prompts)
        inputs = inputs.to("cpu", torch.float32)
        step = StaticStep(model, len(prompts), 256, "eager")
        assert generate(model, inputs, 8, step=step).ids == generate(model, inputs, 8).ids


def test_compiled_vision_gives_the_same(ocr2_session: OCRSession, monkeypatch: pytest.MonkeyPatch) -> None:
    # It traces, but leaves the work to torch's own kernels: no minutes in a C++ compiler.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    runs = [
        ocr2_session.run_inference(RECEIPT, preset="small", vision=vision, **QUICK)
        for vision in ("eager", "compiled")
    ]
    assert runs[0].results == runs[1].results
    stages = {stage for stage, *_ in ocr2_session.prepared._vision.used}
    assert stages == {"sam", "encoder"}


def test_two_families_are_compared(run: PhaseRun, golden_session: OCRSession) -> None:
    first = golden_session.run_inference(RECEIPT, preset="tiny", **QUICK)
    both = compare(first, run)
    table = both.table
    ratios = table.set_index("metric")["ratio"]
    assert ratios[["prefill_ms", "prefill/sam/global"]].notna().all()
    assert ratios[["prefill/clip/global", "prefill/encoder/global"]].isna().all()
    assert "deepseek-ocr-2" in both.differs.to_string()
    assert len(both.plot.stages().axes) == 1


def test_a_sweep_takes_the_names_of_either_family(ocr2_session: OCRSession, tmp_path: Path) -> None:
    asked = {"presets": ("tiny", "small", "large"), "lengths": (3,), "folder": tmp_path, "repeats": 1}
    for _ in range(2):  # the second finds the records under the family's own name
        result = ocr2_session.sweep(RECEIPT, warmup=0, **asked)
        assert result.table["preset"].tolist() == ["small768"]
        assert "no preset 'large' of DeepSeek-OCR-2" in result.failures["reason"].item()
    assert len(list((tmp_path / "runs").glob("small768*n3.json"))) == 1
    assert make_cells(presets=["crop"], lengths=[3])


def test_a_small_dummy_runs(tmp_path: Path) -> None:
    session = OCRSession.load(SMALL_DUMMY_2, device="cpu")
    assert family_of(session.model).name == "deepseek-ocr-2"
    run = session.run_inference(RECEIPT, preset="small", **{**QUICK, "max_new_tokens": 3})
    assert run.model["name"] == SMALL_DUMMY_2
    assert not failed(run_checks(run))
    assert session.prepare(RECEIPT).views[0].preset.name == "crop"
