"""Damaged checkpoint folders: each is refused in one sentence, or loads."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import GOLDEN, GOLDEN_2
from mutants import mutants
from refusals import refused

from ocr_phases import OcrPhasesError, OCRSession
from ocr_phases.analyse.cost import read_architecture
from ocr_phases.batch.jobs import known_model
from ocr_phases.models.wiring import native_config
from ocr_phases.versions import asset, folder_hash

INDEX = {"metadata": {"total_size": 2_100_000}, "weight_map": {"lm_head.weight": "model.safetensors"}}
GENERATION = {"bos_token_id": 0, "eos_token_id": [1, 2], "do_sample": False, "temperature": 0.7, "top_p": 0.9}


@pytest.fixture
def folder(tmp_path) -> Path:
    """The recorded checkpoint with every JSON file that a folder may have; its weights are links."""
    made = tmp_path / "model"
    made.mkdir()
    for path in (GOLDEN / "checkpoint").iterdir():
        if path.suffix == ".safetensors":
            (made / path.name).symlink_to(path)
        else:
            shutil.copy(path, made)
    (made / "model.safetensors.index.json").write_text(json.dumps(INDEX))
    (made / "generation_config.json").write_text(json.dumps(GENERATION))
    return made


def loads(folder: Path) -> bool:
    """Whether the folder loads; any other error than a sentence is for the test to fail with."""
    try:
        OCRSession.load(str(folder), device="cpu")
    except OcrPhasesError as error:
        assert "\n" not in str(error)
        return False
    return True


def refuse(folder: Path, message: str) -> None:
    with refused() as caught:
        OCRSession.load(str(folder), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "entries", "count"),
    [
        ("config.json", ("model_type", "language_config", "vision_config", "image_token_id"), 50),
        ("tokenizer_config.json", ("bos_token", "eos_token", "pad_token"), 10),
        ("generation_config.json", tuple(GENERATION), 10),
        ("model.safetensors.index.json", tuple(INDEX), 20),
    ],
)
def test_a_damaged_json_file_never_ends_in_another_error(folder, name, entries, count):
    good = json.loads((folder / name).read_text())
    good = {entry: good[entry] for entry in entries}
    refused = 0
    for _, damaged in mutants(good, count, seed=19):
        (folder / name).write_text(json.dumps(damaged))
        refused += not loads(folder)
    assert 0 < refused < count


def test_the_config_that_transformers_saves_is_looked_through_too():
    good = json.loads(asset("data", "tiny", "config.json").read_bytes())
    refused = 0
    for _, damaged in mutants(good, 150, seed=19):
        try:
            native_config(damaged)
        except OcrPhasesError as error:
            assert "\n" not in str(error)
            refused += 1
    assert 0 < refused < 150


def test_no_damage_of_deepseek_ocr_2s_config_ends_in_another_error(ocr2_session):
    """Neither of the published layout nor of the one that transformers saves; so for cost."""
    published = json.loads((GOLDEN_2 / "checkpoint" / "config.json").read_text())
    entries = ("model_type", "language_config", "vision_config", "image_token_id")
    for good in ({entry: published[entry] for entry in entries}, ocr2_session.model.config.to_dict()):
        native_config(good)
        refused = 0
        for _, damaged in mutants(good, 150, seed=19):
            for reads in (native_config, read_architecture):
                try:
                    reads(damaged)
                except OcrPhasesError as error:
                    assert "\n" not in str(error)
                    refused += 1
        assert 0 < refused < 300


INDEXED = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("config.json", "vision_config", 5, "vision parts unknown"),
        ("config.json", "model_type", ["x"], "model_type: expected str, got array"),
        ("config.json", "auto_map", 5, "auto_map: expected object, got int"),
        ("config.json", "language_config.hidden_size", ["x"], "hidden_size: expected int, got array"),
        ("config.json", "language_config.hidden_size", 10**400, "hidden_size: expected int <= 32768"),
        ("config.json", "language_config.num_attention_heads", 3, "no multiple of num_attention_heads"),
        ("config.json", "vision_config.width.sam_vit_b", {"width": 64}, "sam_vit_b.heads: it is missing"),
        ("tokenizer_config.json", "eos_token", 5, "eos_token: expected"),
        ("generation_config.json", "temperature", "hot", "temperature: expected float"),
        (INDEXED, "weight_map", 5, "weight_map: expected object"),
        (
            INDEXED,
            "weight_map.x",
            "../../../../../../etc/passwd",
            "weight_map.*: expected str matching",
        ),
        (INDEXED, "weight_map.x", "b.safetensors", "no b.safetensors"),
    ],
)
def test_a_wrong_entry_is_named(folder, name, path, value, message):
    content = section = json.loads((folder / name).read_text())
    *above, key = path.split(".")
    for part in above:
        section = section[part]
    section[key] = value
    (folder / name).write_text(json.dumps(content))
    refuse(folder, message)


def test_entries_that_nobody_declared_are_not_handed_on():
    good = json.loads(asset("data", "tiny", "config.json").read_bytes())
    good |= {
        "quantization_config": {"quant_method": "bitsandbytes"},
        "dtype": "evil",
        "auto_map": {"AutoModel": "x.Y"},
    }
    config = native_config(good).to_dict()
    assert not {"quantization_config", "auto_map"} & set(config)
    assert config["dtype"] is None


def test_files_that_are_not_what_they_seem(folder):
    config = folder / "config.json"
    good = config.read_bytes()
    config.write_text("[" * 200_000)
    refuse(folder, "nested too deeply")
    config.write_text('{"model_type": NaN}')
    refuse(folder, "not valid JSON")
    config.unlink()
    config.symlink_to("/dev/zero")
    refuse(folder, "no config.json")
    config.unlink()
    config.write_bytes(good)
    os.mkfifo(folder / "more.safetensors")
    refuse(folder, "more.safetensors is no regular file")


@pytest.mark.parametrize("claimed", [2**63 - 1, 2**64 - 1, 100_000_000, 0])
def test_a_header_that_claims_too_much_is_refused(folder, claimed):
    weights = folder / "model.safetensors"
    weights.unlink()
    weights.write_bytes(claimed.to_bytes(8, "little") + b"{}")
    with refused():
        folder_hash(folder)
    known_model(str(folder))  # the batch goes on: loading it says what is wrong
    refuse(folder, "do not fit DeepSeek-OCR")
