"""DeepSeek-OCR-2 against what its vendor's code gave: pages, prefill and decode, and its config."""

from __future__ import annotations

import copy
import hashlib
import json

import numpy as np
import PIL
import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, SMALL_DUMMY_2
from safetensors.torch import load_file, save_file
from test_page import BOS, IMAGE_ID, PAD, pooled, stand_in
from test_phases import captured

from ocr_phases import OcrPhasesError, OCRSession, decode_step, prefill
from ocr_phases.families import DEEPSEEK_OCR_2, FAMILIES, crop_grid
from ocr_phases.inputs.images import load_page
from ocr_phases.inputs.packing import DeviceInputs, image_token_count, make_views, pack
from ocr_phases.models.load import dummy_config
from ocr_phases.models.wiring import NATIVES, native_config
from ocr_phases.settings import SamplingSettings, resolve_infer
from ocr_phases.steps.phases import generate, prompt_loss
from ocr_phases.steps.sampling import Sampler

FACTS = FAMILIES[DEEPSEEK_OCR_2]
RECORDED = json.loads((GOLDEN_2 / "preprocess.json").read_text())
NATIVE = NATIVES[DEEPSEEK_OCR_2]
PUBLISHED = NATIVE.facts.config
TOLERANCE = 5e-4  # of logits that reach 20
CASES = {"base": ("base",), "gundam": ("gundam",), "page768": ("page768",), "batch": ("batch", "batch")}
CASES["mixed"] = ("gundam", "base")


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN_2 / "forward.safetensors")


@pytest.fixture(scope="module")
def views_32() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN_2 / "preprocess.safetensors")


# -- pages -------------------------------------------------------------------------------------------


PAGES = [name for name, case in RECORDED["cases"].items() if "preset" in case]


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_cut_as_recorded(name, views_32):
    case = RECORDED["cases"][name]
    preset = FACTS.presets[case["preset"]]
    assert (preset.base_size, preset.image_size) == (case["base_size"], case["image_size"])
    page = load_page(GOLDEN / "pages" / case["file"])[0]
    views = make_views(page, preset)
    assert [list(views.grid)] == case["spatial_crop"]
    assert bool(len(views.crops)) == case["crops_used"]
    prompt = RECORDED["prompt"].strip()
    tokens = {"image_token_id": IMAGE_ID, "bos_token_id": BOS, "pad_token_id": PAD}
    packed = pack([[views]], [prompt], stand_in, **tokens)
    assert packed.prefill_len == case["input_len"]
    assert packed.image_tokens == (case["image_tokens"],) == (image_token_count(preset, views.grid),)
    where = packed.images_seq_mask[0].nonzero().flatten().tolist()
    assert where == list(range(case["mask_first"], case["mask_last"] + 1))
    ids = packed.input_ids[0].tolist()
    assert [ids[: where[0]], ids[where[-1] + 1 :]] == [case["text_ids_head"], case["text_ids_tail"]]

    shown = [("ori", views.global_view[None]), *([("crop", views.crops)] if len(views.crops) else [])]
    for kind, pixels in shown:
        assert list(pixels.transpose(0, 3, 1, 2).shape) == case[f"{kind}_shape"]
        kept = views_32[f"{case.get(f'{kind}32_same_as', name)}.{kind}32"]
        assert np.abs(np.stack([pooled(view) for view in pixels]) - kept.float().numpy()).max() <= 1
        if PIL.__version__.split(".")[0] == RECORDED["pillow"].split(".")[0]:
            hashes = [hashlib.sha256(view.transpose(2, 0, 1).tobytes()).hexdigest() for view in pixels]
            assert hashes == np.ravel(case[f"{kind}_sha256"]).tolist()


def test_the_recording_is_whole():
    assert len(PAGES) == 27
    assert len(RECORDED["grids"]) == 161
    assert {case["preset"] for case in map(RECORDED["cases"].get, PAGES)} == set(FACTS.presets)


def test_grids_are_the_recorded_ones():
    for size, grid in RECORDED["grids"].items():
        width, height = map(int, size.split("x"))
        assert list(FACTS.presets["crop"].grid(width, height)) == grid, size
    assert crop_grid(769, 768, 768, 6) == (2, 2)


# -- prefill and decode ------------------------------------------------------------------------------


def inputs_of(golden: dict[str, torch.Tensor], case: str) -> DeviceInputs:
    """A recorded case: its pixels are kept at an eighth of their size."""
    ids = golden[f"{case}.input_ids"]
    mask = golden.get(f"{case}.attention_mask", torch.ones_like(ids))

    def pixels(name: str) -> torch.Tensor:
        levels = golden[name].repeat_interleave(8, 2).repeat_interleave(8, 3).float() / 255
        return ((levels - 0.5) / 0.5).to(torch.bfloat16).float()

    sources = [(source, row if case == "batch" else 0) for row, source in enumerate(CASES[case])]
    crops = [f"{source}.images_crop_small.{row}" for source, row in sources]
    local = [pixels(name) for name in crops if name in golden]
    return DeviceInputs(
        input_ids=ids,
        attention_mask=mask,
        images_seq_mask=ids == 300,
        pixel_values=torch.cat([pixels(f"{source}.images_ori_small.{row}") for source, row in sources]),
        pixel_values_local=torch.cat(local) if local else None,
        num_local_patches=[len(golden[name]) if name in golden else 0 for name in crops],
        patches_grid=golden[f"{case}.images_spatial_crop"].tolist(),
        position_ids=None if mask.all() else (mask.cumsum(dim=1) - 1).clamp(min=0),
    )


def in_vendors_order(calls: list[torch.Tensor], counts: list[int]) -> list[torch.Tensor]:
    """The class sees all pages, then all crops; the vendor's, page by page, the crops and then the page."""
    pages = calls[0].split(1)
    crops = calls[1].split(counts) if len(calls) > 1 else [calls[0][:0]] * len(pages)
    return [part for page, own in zip(pages, crops, strict=True) for part in (own, page) if len(part)]


@pytest.mark.parametrize("case", CASES)
def test_matches_the_recorded_vendor_run(case, ocr2_session, golden):
    model, inputs = ocr2_session.model, inputs_of(golden, case)
    tower = model.model.vision_tower
    seen = inputs.attention_mask.bool()
    with (
        captured(model.model.language_model, "inputs_embeds") as embeds,
        captured(tower.sam_encoder, "output") as sam,
        captured(tower.vision_encoder, "output") as encoder,
        captured(model.model.multi_modal_projector, "output") as projected,
    ):
        state = prefill(model, inputs, all_logits=True)

    def near(mine: torch.Tensor, name: str, tolerance: float = TOLERANCE) -> None:
        torch.testing.assert_close(mine, golden[f"{case}.{name}"], atol=tolerance, rtol=0)

    stages = {
        "sam": [out.last_hidden_state.mean(dim=(2, 3)) for out in sam],
        "qwen2": [out.last_hidden_state.chunk(2, dim=1)[1].mean(-1) for out in encoder],
        "projector": [out[:, ::8] for out in projected],
    }
    for stage, calls in stages.items():
        for number, mine in enumerate(in_vendors_order(calls, inputs.num_local_patches)):
            near(mine, f"{stage}.{number}", 1e-4)
    places = golden[f"{case}.logit_positions"]
    kept = seen[:, places]
    for mine, name in ((embeds[0], "fused_embeds"), (state.prefill_logits, "prefill_logits")):
        theirs = golden[f"{case}.{name}"]
        torch.testing.assert_close(mine[:, places][kept], theirs[kept], atol=TOLERANCE, rtol=0)
    means = golden[f"{case}.fused_embeds_mean"]
    torch.testing.assert_close(embeds[0].mean(-1)[seen], means[seen], atol=1e-4, rtol=0)

    expected = golden[f"{case}.greedy_tokens"]
    for step in range(expected.shape[1] - 1):
        decode_step(model, state)
        theirs = golden[f"{case}.step_logits"][:, step]
        torch.testing.assert_close(state.logits, theirs, atol=TOLERANCE, rtol=0)
    assert state.ids == expected.tolist()
    assert state.lengths == golden[f"{case}.cache_len"].tolist()


@pytest.mark.parametrize("case", ["page768", "mixed"])
def test_equals_generate(case, ocr2_session, golden):
    inputs, model = inputs_of(golden, case), ocr2_session.model
    state = generate(model, inputs, 12)
    arguments = {**state.family.prefill_arguments(inputs), "attention_mask": inputs.attention_mask}
    arguments["position_ids"] = None
    whole = model.generate(**arguments, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=2)
    assert state.ids == whole[:, inputs.input_ids.shape[1] :].tolist()


def test_the_loss_is_the_recorded_one(ocr2_session, golden):
    loss = prompt_loss(ocr2_session.model, inputs_of(golden, "base"))
    torch.testing.assert_close(loss.detach(), golden["base.labels_loss"], atol=TOLERANCE, rtol=0)


# -- what it writes ----------------------------------------------------------------------------------


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


# -- its config --------------------------------------------------------------------------------------


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
    config = native_config(PUBLISHED).to_dict()
    text, vision = config["text_config"], config["vision_config"]
    language = PUBLISHED["language_config"]
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
    raw = copy.deepcopy(PUBLISHED)
    del raw["language_config"][name]
    with pytest.raises(OcrPhasesError, match=f"language_config.{name}: it is missing"):
        native_config(raw)


def test_the_published_sizes_are_the_published_counts():
    with torch.device("meta"):
        model = NATIVE.model_class()(native_config(dummy_config("dummy:deepseek-ocr-2")))
    assert NATIVE.parameters(model) == {
        "sam": 94_979_328,
        "encoder": 357_898_112 + 358_400,
        "projector": 1_148_160,
        "language_model": 2_769_255_680,
        "lm_head": 165_478_400,
        "total": 3_389_119_360,
    }


def test_a_small_dummy_has_the_asked_sizes():
    config = native_config(dummy_config(SMALL_DUMMY_2))
    text, vision = config.text_config, config.vision_config
    assert (text.num_hidden_layers, text.hidden_size, text.num_key_value_heads) == (2, 64, 2)
    assert (vision.sam_config.num_hidden_layers, vision.encoder_config.num_hidden_layers) == (1, 1)
    assert config.image_token_id == 2303
    with pytest.raises(OcrPhasesError, match="clip_layers=2.* no size of dummy.*encoder_layers"):
        dummy_config("dummy:deepseek-ocr-2,clip_layers=2")
    assert "qwen2-0-5b" in PUBLISHED["vision_config"]["width"]
    assert "layers" not in PUBLISHED["vision_config"]["width"]["qwen2-0-5b"]  # a copy was changed


def test_what_transformers_saves_loads_whole(ocr2_session, tmp_path):
    model = ocr2_session.model
    model.save_pretrained(tmp_path)
    for path in (GOLDEN_2 / "checkpoint").glob("tokenizer*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    again = OCRSession.from_local(tmp_path, device="cpu")
    assert again.family is NATIVE
    for mine, theirs in zip(again.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    rope = again.model.config.vision_config.encoder_config.rope_parameters
    assert rope["rope_theta"] == 1_000_000.0
    config = json.loads((tmp_path / "config.json").read_text())
    del config["vision_config"]["encoder_config"]["rope_parameters"]
    with pytest.raises(OcrPhasesError, match="rope_parameters: it is missing"):
        native_config(config)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path):
    for path in (GOLDEN_2 / "checkpoint").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(81)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OcrPhasesError, match="do not fit DeepSeek-OCR-2"):
        OCRSession.from_local(tmp_path, device="cpu")
