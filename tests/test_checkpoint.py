"""Loading: what fits is loaded whole, anything else is refused by name."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from conftest import GOLDEN, SMALL_DUMMY
from refusals import refused
from safetensors.torch import load_file, save_file

from ocr_phases import OCRSession
from ocr_phases.models import load
from ocr_phases.models.folders import hub_commit
from ocr_phases.models.weights import resolve_dtype
from ocr_phases.settings import ModelSettings
from ocr_phases.versions import asset


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of the recorded checkpoint, to be damaged."""
    return Path(shutil.copytree(GOLDEN / "checkpoint", tmp_path / "model"))


def refuse(folder: Path | str, message: str) -> None:
    with refused() as caught:
        OCRSession.load(str(folder), device="cpu")
    assert "\n" not in str(caught.value)


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def test_published_layout_loads_whole(golden_session):
    weights = load_file(GOLDEN / "checkpoint" / "model.safetensors")
    # CLIP's own patch embedding is in the file, but CLIP gets SAM's features: neither class uses it.
    unused = weights.pop("model.vision_model.embeddings.patch_embedding.weight")
    assert unused.shape == (96, 3, 14, 14)
    parameters = golden_session.family.parameters(golden_session.model)
    assert parameters["total"] == sum(tensor.numel() for tensor in weights.values())
    assert golden_session.checkpoint.image_token_id == 300
    assert golden_session.checkpoint.revision.startswith("sha256:")
    assert set(golden_session.model.config.text_config.layer_types) == {"full_attention"}


def test_dummy_is_seeded_and_scaled():
    loaded = []
    for others in range(2):
        torch.manual_seed(others)  # as another process has drawn other numbers before
        loaded.append(OCRSession.load(SMALL_DUMMY, device="cpu"))
    one, two = loaded
    assert one.checkpoint.image_token_id == 2303
    assert one.checkpoint.default_ignore_eos
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dummy:layers", "layers.* is no size of dummy"),
        ("dummy:depth=2", "depth=2.* is no size of dummy"),
        ("dummy:layers=0", "is no size of dummy"),
        ("dummy:hidden=100,heads=7", "multiple of its heads"),
        ("dummy:experts=2", "at least 6 experts"),
        ("dummy:vocab=100", "at least 2048"),
        ("dummy:deepseek-ocr-2,clip_layers=2", "is no size of dummy"),
        ("nonsense", "no model 'nonsense'"),
        ("./nowhere/model", "no model"),
        ("/nowhere/model", "no model"),
    ],
)
def test_unknown_names_are_refused(name, message):
    refuse(name, message)


def test_from_local_takes_folders_only(tmp_path):
    with refused():
        OCRSession.from_local("tiny")
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    with refused():
        OCRSession.from_local(file)


def test_an_unreachable_hub_id_says_what_to_do(monkeypatch):
    import huggingface_hub

    def unreachable(name, *, revision, allow_patterns, local_files_only):
        assert (allow_patterns, local_files_only) == (["*.json", "*.safetensors"], False)
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *a, **k: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    refuse("some-org/some-model", "neither a folder here nor could it be fetched")


def test_a_hub_id_is_loaded_at_its_recorded_revision(monkeypatch, tmp_path):
    import huggingface_hub

    snapshot = shutil.copytree(GOLDEN / "checkpoint", tmp_path / ("a" * 40))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *a, **k: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(snapshot))
    session = OCRSession.load("some-org/some-model", device="cpu", revision="main")
    assert session.checkpoint.revision == "a" * 40
    assert session.checkpoint.name == "some-org/some-model"


def test_old_transformers_is_refused_in_a_sentence(monkeypatch):
    import transformers

    monkeypatch.setattr(transformers, "__version__", "4.46.3")
    refuse("tiny", r"needs transformers >= 5.20, here is 4.46.3")


def test_missing_and_extra_tensors_are_named(folder):
    edit_weights(folder, lambda weights: weights.pop("model.norm.weight"))
    refuse(folder, r"missing keys: .*norm.weight")
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(80)}))
    edit_weights(folder, lambda weights: weights.update({"model.extra.weight": torch.ones(3)}))
    refuse(folder, r"unexpected keys: .*extra.weight")


def test_a_tensor_of_another_shape_is_refused(folder):
    edit_weights(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(81)}))
    refuse(folder, "do not fit DeepSeek-OCR")


def test_folders_that_are_no_checkpoint(folder, tmp_path):
    refuse(tmp_path, "no config.json")
    (folder / "model.safetensors").rename(folder / "model.bin")
    refuse(folder, "no \\*.safetensors")
    (folder / "model.bin").rename(folder / "model.safetensors")
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0notjson!")
    refuse(folder, "do not fit")
    (folder / "config.json").write_text("{")
    refuse(folder, "cannot be read as JSON")
    (folder / "config.json").write_text("[]")
    refuse(folder, "no JSON object")


def test_other_models_are_refused_by_name(folder):
    edit_config(folder, model_type="llama")
    refuse(folder, "'llama' model")
    edit_config(folder, model_type="deepseek_vl_v2", vision_config={"width": {"qwen2-0-5b": {}}})
    refuse(folder, "qwen2-0-5b")
    shutil.copy(asset("data", "tiny", "config.json"), folder / "config.json")
    text = {"num_hidden_layers": 2, "max_position_embeddings": 512, "sliding_window": 128}
    text["layer_types"] = ["full_attention", "reference_sliding_attention"]
    edit_config(folder, text_config=text)
    refuse(folder, "reference_sliding_attention")


def test_the_misleading_tokenizer_label_is_ignored(golden_session):
    text = "Total 12 450,00 € at 20 °C, naïve façade 表"
    ids = golden_session.tokenizer.encode(text, add_special_tokens=False)
    assert golden_session.tokenizer.decode(ids) == text


def test_wrong_tokenizers_are_refused(folder):
    path = folder / "tokenizer.json"
    good = path.read_text()
    path.write_text(good.replace("<|grounding|>", "<|other|>"))
    refuse(folder, r"splits <\|grounding\|>")
    content = json.loads(good)
    content["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    path.write_text(json.dumps(content))
    refuse(folder, "damaged or mislabelled")
    path.write_text("not json")
    refuse(folder, "is no tokenizer file")
    path.unlink()
    refuse(folder, "has no tokenizer.json")


def test_a_config_that_contradicts_the_tokenizer_is_refused(folder):
    edit_config(folder, image_token_id=7)
    refuse(folder, "image token 7, the tokenizer says 300")


def test_devices_and_dtypes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load.resolve_device("auto") == "cpu"
    with refused():
        load.resolve_device("cuda")
    with refused():
        load.resolve_device("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert load.resolve_device("cuda:0") == "cuda:0"
    with refused():
        load.resolve_device("cuda:3")
    assert resolve_dtype(None, "cuda") is torch.bfloat16
    assert resolve_dtype("float16", "cpu") is torch.float16
    with refused():
        ModelSettings(dtype=torch.int8)
    assert ModelSettings(dtype=torch.float16).dtype == "float16"


def test_a_hub_that_never_answers_is_given_up(monkeypatch, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as hub:  # it accepts, and says nothing
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        refuse("someone/model", r"could it be fetched from the hub \(ReadTimeout\)")
        assert hub_commit("someone/model") is None
    assert capsys.readouterr().err == f"Asking {address} for someone/model.\n" * 2
