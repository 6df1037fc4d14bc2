"""``dummy:CLASS`` and ``dummy:path/to/config.json``: any class with random weights, and its
verbs.
"""

import json
from types import SimpleNamespace

import pytest
import torch
from any_classes import FOLDERS
from conftest import PAGES
from PIL import Image

from ocr_phases import OcrPhasesError, OCRSession, compare
from ocr_phases.cli import main
from ocr_phases.engines.vllm_worker import watched_modules
from ocr_phases.models.processors import default_image_processor
from ocr_phases.session.sweeps import sweep

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = PAGES / "receipt.png"
ASKED = {"max_new_tokens": 4, "repeats": 1, "warmup": 0, "ceilings": False}


def config_of(name, folder):
    """A config.json of a tiny model alone, as the name of a dummy."""
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(FOLDERS[name]().config.to_json_string(use_diff=False), encoding="utf-8")
    return f"dummy:{file}"


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "internvl", "llava_onevision"])
def test_a_config_alone_makes_a_model_whose_tokens_are_those_of_generate(name, tmp_path, capsys):
    session = OCRSession.load(config_of(name, tmp_path))
    run = session.run_inference(PAGE, verify=True, **ASKED)
    parity = run.checks[run.checks["name"] == "parity"]
    assert parity["verdict"].tolist() == ["pass"]
    assert "tiny's tokenizer" in run.model.source
    said = capsys.readouterr().err
    assert "parameters" in said
    assert "it fits" in said


def test_the_processor_beside_a_config_packs_the_page(tmp_path):
    folder = FOLDERS["internvl"]().save(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    session = OCRSession.load(f"dummy:{folder / 'config.json'}")
    assert session.run_inference(PAGE, **ASKED).model.source == "random weights"


CUT = {
    # What cuts a square out of the page has the size of it twice.
    "llava": {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
    "llava_next": {"size": {"shortest_edge": 56}, "image_grid_pinpoints": [[56, 112]]},
    "paligemma": {"size": {"height": 56, "width": 56}},
}


@pytest.mark.parametrize("model_type", CUT)
def test_a_page_has_the_size_that_the_config_s_encoder_takes(model_type):
    vision = SimpleNamespace(image_size=56, patch_size=14)
    config = SimpleNamespace(vision_config=vision, image_grid_pinpoints=[[56, 112]])
    processor = default_image_processor(model_type, config)
    for name, expected in CUT[model_type].items():
        found = getattr(processor, name)
        if isinstance(expected, dict):
            found = {side: found[side] for side in expected}
        assert found == expected


def test_pages_that_would_have_to_be_padded_are_refused_without_a_processor(tmp_path):
    wide = tmp_path / "wide.png"
    Image.new("RGB", (900, 100), "white").save(wide)
    session = OCRSession.load(config_of("llava_onevision", tmp_path))
    with pytest.raises(OcrPhasesError, match="one at a time"):
        session.run_inference([PAGE, wide], **ASKED)


REFUSED = {
    "dummy:MistralLarge4ForConditionalGeneration": "does not fit",
    "dummy:Emu3ForConditionalGeneration": "need not be that of a published model",
    "dummy:florence2": "encoder-decoder",
    "dummy:NoSuchForConditionalGeneration": "no size of dummy",
    "dummy:missing/config.json": "cannot be read",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_dummy_that_cannot_be_made_is_refused_before_its_weights_are(name):
    with pytest.raises(OcrPhasesError, match=REFUSED[name]):
        OCRSession.load(name)


HOSTILE = {
    "a thousand million layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers 1,000,000,000"),
    "a vocabulary that fits nowhere": ({"vocab_size": 10**14}, "does not fit"),
    "a text for a number": ({"hidden_size": "64"}, "does not fit Gemma3"),
    "a negative size": ({"hidden_size": -64}, "makes no Gemma3|does not fit Gemma3"),
    "no layers' names at all": ({"layer_types": []}, "makes no Gemma3|does not fit Gemma3"),
    "heads that do not divide": ({"num_attention_heads": 3}, "cannot|makes no|does not fit"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_config_ends_in_a_sentence_before_memory_is_taken(name, tmp_path):
    entries, words = HOSTILE[name]
    config = json.loads(FOLDERS["gemma3"]().config.to_json_string(use_diff=False))
    config["text_config"] |= entries
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(OcrPhasesError, match=words):
        OCRSession.load(f"dummy:{file}").run_inference(PAGE, **ASKED)


NO_CONFIG = {
    "a list": "[]",
    "a model type that is a list": '{"model_type": ["gemma3"]}',
    "lists in lists": "[" * 100_000,
    "objects in objects": '{"model_type": "gemma3", "text_config": ' + '{"a": ' * 5_000,
    "no text": "\x00",
}


@pytest.mark.parametrize("name", NO_CONFIG)
def test_a_file_that_is_no_config_ends_in_a_sentence(name, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(NO_CONFIG[name], encoding="utf-8")
    with pytest.raises(OcrPhasesError, match="config.json"):
        OCRSession.load(f"dummy:{file}")


def test_infinity_is_read_as_transformers_writes_it(tmp_path):
    config = FOLDERS["gemma3"]().config
    config.text_config.some_limit = [0.0, float("inf")]
    file = tmp_path / "config.json"
    file.write_text(config.to_json_string(), encoding="utf-8")
    assert "__float__" in file.read_text(encoding="utf-8")
    loaded = OCRSession.load(f"dummy:{file}").model.config
    assert loaded.text_config.some_limit == [0.0, float("inf")]


def test_a_dry_run_says_that_nobody_knows_what_a_page_costs(tmp_path, capsys):
    for model in (config_of("gemma3", tmp_path), str(tmp_path)):
        assert main(["profile", str(PAGE), "--model", model, "--dry-run"]) != 0
        assert "n/a: nobody has written down" in capsys.readouterr().err


def test_a_sweep_over_models_is_one_table_with_one_cell_for_each(tmp_path):
    models = [config_of(name, tmp_path / name) for name in ("gemma3", "internvl")]
    truth = PAGE.with_suffix(".json")
    result = sweep(
        str(PAGE), models, batches=[1], lengths=[4], repeats=1, folder=tmp_path / "out", truth=truth
    )
    assert len(result.table) == 2
    assert set(result.table["preset"]) == {"processor"}
    assert {"gemma3", "internvl"} == {run.model.family for run in result.runs.values()}
    first, second = result.runs.values()
    comparison = compare(first, second)
    assert result.table[["edit_distance", "cer"]].notna().all(axis=None)
    assert {"edit_distance", "cer", "wer"} <= set(comparison.table["metric"])


NAMED = {
    "Qwen2.5-VL": (["visual", "language_model"], {"encoder": "visual"}),
    "InternVL": (
        ["vision_model", "mlp1", "language_model"],
        {"encoder": "vision_model", "projector": "mlp1"},
    ),
    "LLaVA": (
        ["vision_tower", "multi_modal_projector", "language_model"],
        {"encoder": "vision_tower", "projector": "multi_modal_projector"},
    ),
    "DeepSeek-OCR": (
        ["sam_model", "vision_model", "projector", "language_model"],
        {"sam": "sam_model", "clip": "vision_model", "projector": "projector"},
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_vllms_worker_finds_the_parts_that_a_class_has(name):
    children, stages = NAMED[name]
    model = torch.nn.Module()
    for child in children:
        setattr(model, child, torch.nn.Identity())
    assert watched_modules(model) == {**stages, "language_model": "language_model"}
