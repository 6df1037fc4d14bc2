"""What a family must have, and that a record of each is measured, kept, drawn and compared alike."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, PAGES, SMALL_DUMMY_2
from golden_cases import (
    BOS,
    IMAGE_ID,
    PAD,
    RECORDINGS,
    captured,
    in_vendors_order,
    pooled,
    stand_in,
)
from PIL import Image
from refusals import refused
from safetensors.torch import load_file, save_file

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, compare, decode_step, prefill
from ocr_phases.analyse.checks import run_checks, with_verdict
from ocr_phases.analyse.cost import run_cost
from ocr_phases.config import read_model_config
from ocr_phases.families import FAMILIES, VISION_STAGES, crop_grid, facts_of
from ocr_phases.inputs.images import load_page
from ocr_phases.inputs.packing import image_token_count, make_views, pack
from ocr_phases.models.load import adopt
from ocr_phases.models.weights import dummy_config
from ocr_phases.models.wiring import NATIVES, family_of, native_config
from ocr_phases.settings import RunSettings, SamplingSettings, resolve_infer
from ocr_phases.steps.phases import generate, prompt_loss
from ocr_phases.steps.sampling import Sampler
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
    assert RunSettings(preset="crop").preset == "crop"
    with refused():
        facts_of(None).preset("crop")
    with refused():
        RunSettings(preset="huge")
    assert facts_of(None).name == "deepseek-ocr"
    with refused():
        facts_of("other")


def test_a_preset_of_another_family_is_refused(ocr2_session: OCRSession) -> None:
    with pytest.raises(OcrPhasesError, match="preset 'large' of DeepSeek-OCR-2.*small768, base1024 or crop"):
        ocr2_session.run_inference(RECEIPT, preset="large", **QUICK)


def test_a_missing_class_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    facts = FAMILIES["deepseek-ocr-2"]
    wiring = dataclasses.replace(facts.native, class_name="NotYetThere")
    family = dataclasses.replace(NATIVES["deepseek-ocr-2"], facts=dataclasses.replace(facts, native=wiring))
    with pytest.raises(OcrPhasesError, match="no NotYetThere, which DeepSeek-OCR-2 needs: upgrade"):
        family.model_class()
    assert NATIVES["deepseek-ocr-2"].model_class() is transformers.DeepseekOcr2ForConditionalGeneration


# -- what the vendors' code gave ----------------------------------------------------------------------


EACH_CASE = [(row.name, case) for row in RECORDINGS.values() for case in row.cases]
EACH_PAGE = [
    (row.name, page)
    for row in list(RECORDINGS.values())[1:]  # DeepSeek-OCR's are in test_page.py
    for page, case in row.preprocess["cases"].items()
    if "preset" in case
]
#: The vision encoders' recorded names, and what was kept of their outputs.
KEPT = {
    "sam": ("sam", lambda out: out.last_hidden_state.mean(dim=(2, 3))),
    "clip": ("clip", lambda out: out.last_hidden_state.mean(-1)),
    "encoder": ("qwen2", lambda out: out.last_hidden_state.chunk(2, dim=1)[1].mean(-1)),
}
COUNTS = {
    "deepseek-ocr": {"sam": 95_569_152, "clip": 302_575_616, "projector": 2_622_720, "total": 3_335_504_128},
    "deepseek-ocr-2": {
        "sam": 94_979_328,
        "encoder": 357_898_112 + 358_400,
        "projector": 1_148_160,
        "total": 3_389_119_360,
    },
}
COUNTS["unlimited-ocr"] = COUNTS["deepseek-ocr"]


def near(mine: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("name", "case"), EACH_CASE)
def test_matches_the_recorded_vendor_run(name: str, case: str, request: pytest.FixtureRequest) -> None:
    row = RECORDINGS[name]
    session = request.getfixturevalue(row.session)
    model, stages = session.model, session.family.stages(session.model)
    golden = {
        key.removeprefix(f"{case}."): value
        for key, value in row.forward.items()
        if key.startswith(f"{case}.")
    }
    inputs = row.inputs(case)
    with contextlib.ExitStack() as stack:
        outputs = {
            stage: stack.enter_context(captured(stages[stage], "output"))
            for stage in session.family.facts.vision_stages
        }
        embeds = stack.enter_context(captured(stages["language_model"], "inputs_embeds"))
        state = prefill(model, inputs, all_logits=True)
    for stage, calls in outputs.items():
        recorded, kept = KEPT.get(stage, ("projector", lambda out: out[:, :: row.skip]))
        parts = in_vendors_order([kept(out) for out in calls], inputs.num_local_patches)
        assert len(parts) == sum(key.startswith(f"{recorded}.") for key in golden)
        for number, mine in enumerate(parts):
            near(mine, golden[f"{recorded}.{number}"], 1e-4)
    seen, length = inputs.attention_mask.bool(), inputs.input_ids.shape[1]
    places = golden.get("logit_positions", torch.arange(length))
    kept_embeds = places if golden["fused_embeds"].shape[1] < length else torch.arange(length)
    for mine, entry, at, tolerance in (
        (embeds[0], "fused_embeds", kept_embeds, row.embeds),
        (state.prefill_logits, "prefill_logits", places, row.tolerance),
    ):
        near(mine[:, at][seen[:, at]], golden[entry][seen[:, at]], tolerance)
    if "fused_embeds_mean" in golden:
        near(embeds[0].mean(-1)[seen], golden["fused_embeds_mean"][seen], 1e-4)
    assert state.length == int(golden.get("prefill_cache_len", state.length)) == length

    expected = golden["greedy_tokens"]
    for step in range(expected.shape[1] - 1):
        decode_step(model, state)
        near(state.logits, golden["step_logits"][:, step], row.tolerance)
    assert state.ids == expected.tolist()
    assert state.lengths == list(range(length, length + expected.shape[1]))
    window = state.window or state.length
    assert state.entries == [
        min(held, length + window - (state.window is not None)) for held in state.lengths
    ]
    # The vendor keeps the entry that the next step writes over; here it has gone.
    if "cache_len" in golden:
        assert golden["cache_len"].tolist() == [min(held, length + window) for held in state.lengths]


@pytest.mark.parametrize(
    ("name", "case"), [(row.name, case) for row in RECORDINGS.values() for case in row.generated]
)
def test_equals_generate(name: str, case: str, request: pytest.FixtureRequest) -> None:
    row = RECORDINGS[name]
    model, inputs = request.getfixturevalue(row.session).model, row.inputs(case)
    state = generate(model, inputs, row.steps)
    arguments = state.family.prefill_arguments(inputs)
    arguments |= {"attention_mask": inputs.attention_mask, "position_ids": None}
    whole = model.generate(
        **arguments, max_new_tokens=row.steps, do_sample=False, eos_token_id=None, pad_token_id=2
    )
    assert state.ids == whole[:, inputs.input_ids.shape[1] :].tolist()
    assert state.attention_mask.shape == (len(inputs.input_ids), state.length)


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_loss_is_the_recorded_one(name: str, request: pytest.FixtureRequest) -> None:
    row = RECORDINGS[name]
    loss = prompt_loss(request.getfixturevalue(row.session).model, row.inputs("base"))
    near(loss.detach(), row.forward["base.labels_loss"].reshape(()), row.tolerance)


@pytest.mark.parametrize(("name", "page"), EACH_PAGE)
def test_pages_are_cut_as_recorded(name: str, page: str) -> None:
    row, facts = RECORDINGS[name], FAMILIES[name]
    case = row.preprocess["cases"][page]
    preset = facts.presets[case["preset"]]
    views = make_views(load_page(GOLDEN / "pages" / case["file"])[0], preset)
    assert [list(views.grid)] == case["spatial_crop"]
    assert bool(len(views.crops)) == case["crops_used"]
    assert image_token_count(preset, views.grid) == case["image_tokens"]
    tokens = {"image_token_id": IMAGE_ID, "bos_token_id": BOS, "pad_token_id": PAD}
    packed = pack([[views]], [facts.text_of("markdown")], stand_in, **tokens)
    assert packed.prefill_len == case["input_len"]
    assert packed.image_tokens == (case["image_tokens"],)
    where = packed.images_seq_mask[0].nonzero().flatten().tolist()
    assert where == list(range(case["mask_first"], case["mask_last"] + 1))
    ids = packed.input_ids[0].tolist()
    assert [ids[: where[0]], ids[where[-1] + 1 :]] == [case["text_ids_head"], case["text_ids_tail"]]
    shown = [("ori", views.global_view[None]), *([("crop", views.crops)] if len(views.crops) else [])]
    for kind, pixels in shown:
        assert list(pixels.transpose(0, 3, 1, 2).shape) == case[f"{kind}_shape"]
        kept = row.pixels.get(f"{case.get(f'{kind}32_same_as', page)}.{kind}32")
        if kept is not None:
            assert np.abs(np.stack([pooled(view) for view in pixels]) - kept.float().numpy()).max() <= 1
        assert kept is not None or name == "unlimited-ocr"  # whose recording keeps some
        if PIL.__version__.split(".")[0] == row.preprocess["pillow"].split(".")[0]:
            hashes = [hashlib.sha256(view.transpose(2, 0, 1).tobytes()).hexdigest() for view in pixels]
            assert hashes == np.ravel(case[f"{kind}_sha256"]).tolist()


@pytest.mark.parametrize("name", ["deepseek-ocr-2", "unlimited-ocr"])
def test_the_recording_is_whole_and_its_grids_are_ours(name: str) -> None:
    facts, recorded = FAMILIES[name], RECORDINGS[name].preprocess
    presets = [recorded["cases"][page]["preset"] for family, page in EACH_PAGE if family == name]
    assert (len(presets), len(recorded["grids"])) == (27, 161)
    assert set(presets) == set(facts.presets)
    for size, grid in recorded["grids"].items():
        width, height = map(int, size.split("x"))
        assert list(facts.presets[facts.default_preset].grid(width, height)) == grid, size
    assert crop_grid(769, 768, 768, 6) == (2, 2)


# -- config and weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_the_published_sizes_are_the_published_counts(name: str) -> None:
    family, config = NATIVES[name], native_config(dummy_config(f"dummy:{name}"))
    with torch.device("meta"):
        model = family.model_class()(config)
    assert [other for other in NATIVES.values() if other.drives(model)] == [family]
    assert family.window(model) == (128 if name == "unlimited-ocr" else None)
    assert config.text_config.max_position_embeddings == (32768 if name == "unlimited-ocr" else 8192)
    shared = {"language_model": 2_769_255_680, "lm_head": 165_478_400}
    assert family.parameters(model) == shared | COUNTS[name]


@pytest.mark.parametrize("name", ["deepseek-ocr-2", "unlimited-ocr"])
def test_what_transformers_saves_loads_whole(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    row = RECORDINGS[name]
    model = request.getfixturevalue(row.session).model
    model.save_pretrained(tmp_path)
    for path in (row.folder / "checkpoint").glob("tokenizer*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    again = OCRSession.from_local(tmp_path, device="cpu")
    assert again.family is NATIVES[name]
    assert again.family.window(again.model) == again.family.window(model)
    for mine, theirs in zip(again.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    saved = json.loads((tmp_path / "config.json").read_text())
    if name == "unlimited-ocr":
        mixed = copy.deepcopy(saved)
        mixed["text_config"]["layer_types"][0] = "full_attention"
        with refused():
            native_config(mixed)
        del saved["text_config"]["sliding_window"]
    else:
        rope = again.model.config.vision_config.encoder_config.rope_parameters
        assert rope["rope_theta"] == 1_000_000.0
        del saved["vision_config"]["encoder_config"]["rope_parameters"]
    with refused():
        native_config(saved)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_model_at_hand_is_a_checkpoint(name: str, request: pytest.FixtureRequest) -> None:
    session = request.getfixturevalue(RECORDINGS[name].session)
    adopted = adopt(session.model, session.tokenizer, name="mine")
    assert adopted.family is session.family
    assert (adopted.name, adopted.device, adopted.dtype) == ("mine", "cpu", torch.float32)
    assert adopted.image_token_id == session.checkpoint.image_token_id
    assert adopted.revision == adopt(session.model, session.tokenizer).revision
    wrapper = type(type(session.model).__name__, (torch.nn.Module,), {})()
    wrapper.config, wrapper.lm_head = session.model.config, torch.nn.Linear(1, 1)
    for model in (wrapper, torch.nn.Linear(1, 1)):
        with refused():
            adopt(model, session.tokenizer)


def numbers(section: object, path: tuple = ()) -> list[tuple]:
    """The paths of all numbers in plain JSON."""
    pairs = section.items() if isinstance(section, dict) else enumerate(section)
    found = []
    for key, value in pairs:
        if isinstance(value, dict | list):
            found += numbers(value, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((*path, key))
    return found


def at(section, path):
    for key in path:
        section = section[key]
    return section


def test_every_number_of_the_published_config_is_set():
    config = native_config(FAMILIES["deepseek-ocr-2"].config).to_dict()
    text, vision = config["text_config"], config["vision_config"]
    language = FAMILIES["deepseek-ocr-2"].config["language_config"]
    assert {name: text[name] for name in language if name in text} == {
        name: value for name, value in language.items() if name != "first_k_dense_replace"
    }
    assert text["mlp_layer_types"] == ["dense"] + ["sparse"] * 11
    assert text["rope_parameters"]["rope_theta"] == 10_000.0
    sam = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "mlp_dim": 3072}
    sam |= {"global_attn_indexes": [2, 5, 8, 11], "downsample_channels": [512, 896], "output_channels": 256}
    sam |= {"image_size": 1024, "patch_size": 16, "window_size": 14}
    encoder = {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14}
    encoder |= {"num_key_value_heads": 2, "intermediate_size": 4864, "rms_norm_eps": 1e-6}
    for expected, found in ((sam, vision["sam_config"]), (encoder, vision["encoder_config"])):
        assert {name: found[name] for name in expected} == expected
    assert vision["encoder_config"]["rope_parameters"]["rope_theta"] == 1_000_000.0
    assert config["image_token_id"] == 128815


def test_no_number_of_the_file_is_ignored():
    """Each of them, changed alone, changes the config or is refused."""
    recorded = json.loads((GOLDEN_2 / "checkpoint" / "config.json").read_text())
    raw = {name: recorded[name] for name in ("model_type", "language_config", "vision_config")}
    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        del raw["language_config"][name]  # of another kind of attention, which this model has not
    raw["language_config"] |= {"rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "routed_scaling_factor": 1.0}
    before = native_config(raw).to_dict()
    for path in numbers(raw):
        changed = copy.deepcopy(raw)
        section = at(changed, path[:-1])
        section[path[-1]] *= 2
        section[path[-1]] += 0 if isinstance(section[path[-1]], float) else 2
        try:
            assert native_config(changed).to_dict() != before, path
        except OcrPhasesError:
            continue


@pytest.mark.parametrize("name", ["hidden_size", "num_experts_per_tok", "eos_token_id"])
def test_a_number_that_the_class_would_make_up_is_asked_for(name):
    raw = copy.deepcopy(FAMILIES["deepseek-ocr-2"].config)
    del raw["language_config"][name]
    with pytest.raises(OcrPhasesError, match=f"language_config.{name}: it is missing"):
        native_config(raw)


def test_a_small_dummy_has_the_asked_sizes():
    config = native_config(dummy_config(SMALL_DUMMY_2))
    text, vision = config.text_config, config.vision_config
    assert (text.num_hidden_layers, text.hidden_size, text.num_key_value_heads) == (2, 64, 2)
    assert (vision.sam_config.num_hidden_layers, vision.encoder_config.num_hidden_layers) == (1, 1)
    assert config.image_token_id == 2303
    with pytest.raises(OcrPhasesError, match="clip_layers=2.* no size of dummy.*encoder_layers"):
        dummy_config("dummy:deepseek-ocr-2,clip_layers=2")
    assert "qwen2-0-5b" in FAMILIES["deepseek-ocr-2"].config["vision_config"]["width"]
    assert (
        "layers" not in FAMILIES["deepseek-ocr-2"].config["vision_config"]["width"]["qwen2-0-5b"]
    )  # a copy was changed


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path):
    for path in (GOLDEN_2 / "checkpoint").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(81)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OcrPhasesError, match="do not fit DeepSeek-OCR-2"):
        OCRSession.from_local(tmp_path, device="cpu")


def test_its_generation_rules_are_the_shared_ones():
    recorded = json.loads((GOLDEN_2 / "generation.json").read_text())
    asked = recorded["passed_to_generate"]
    for name, case in (("published", "infer"), ("published-eval", "infer eval_mode")):
        settings, autocast = resolve_infer(name, None)
        assert (settings.no_repeat_ngram_size, settings.do_sample) == (
            asked[case]["no_repeat_ngram_size"],
            False,
        )
        assert autocast
    scores = torch.tensor(recorded["ngram"]["scores_before"])
    for case in recorded["ngram"]["cases"]:
        sampler = Sampler(SamplingSettings(no_repeat_ngram_size=case["ngram_size"]))
        after = sampler.processors(torch.tensor(case["input_ids"]), scores.clone())
        banned = [row.isinf().nonzero().flatten().tolist() for row in after]
        assert banned == case["banned"], case["name"]


def test_its_output_files_are_deepseek_ocrs():
    """So whatever holds of the recorded text of DeepSeek-OCR holds of this family's."""
    first = json.loads((GOLDEN / "artifacts.json").read_text())
    second = json.loads((GOLDEN_2 / "artifacts.json").read_text())["same_text_as_deepseek_ocr"]
    assert second["result"] == first["result_mmd"]
    for name in ("model_text", "crops", "boxes_px", "page"):
        assert second[name] == first[name]


# -- a record ------------------------------------------------------------------------------------------


def test_a_run_passes_every_check(run: PhaseRun) -> None:
    checks = {check.name: check.verdict for check in run_checks(run)}
    assert not with_verdict(run_checks(run), "fail")
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
    with pytest.raises(OcrPhasesError, match="family 'other'"):
        run_cost(other)


def test_rows_with_and_without_crops_go_through_together(ocr2_session: OCRSession) -> None:
    pages = [Image.new("RGB", size, "white") for size in ((800, 400), (40, 30))]
    run = ocr2_session.run_inference(pages, ["markdown", "free"], **{**QUICK, "max_new_tokens": 2})
    assert [page["image_tokens"] for page in run.pages] == [257 + 2 * 144, 257]
    assert set(run.spans.query("stage == 'encoder'")["view"]) == {"global", "local"}
    assert not with_verdict(run_checks(run), "fail")


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
    stages = {stage for stage, *_ in ocr2_session.prepared.vision.used}
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
        assert "preset 'large' of DeepSeek-OCR-2" in result.failures["reason"].item()
    assert len(list((tmp_path / "runs").glob("small768*n3.json"))) == 1
    assert make_cells(presets=["crop"], lengths=[3])


def test_a_small_dummy_runs(tmp_path: Path) -> None:
    session = OCRSession.load(SMALL_DUMMY_2, device="cpu")
    assert family_of(session.model).name == "deepseek-ocr-2"
    run = session.run_inference(RECEIPT, preset="small", **{**QUICK, "max_new_tokens": 3})
    assert run.model["name"] == SMALL_DUMMY_2
    assert not with_verdict(run_checks(run), "fail")
    assert session.prepare(RECEIPT).views[0].preset.name == "crop"
