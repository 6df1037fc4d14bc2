"""Loading: what fits is loaded whole; anything else, damaged or not, is refused in one sentence.

The sentences are in ``approved/refusals``.
"""

import copy
import json
import operator
import os
import shutil
import socket
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, SMALL_DUMMY
from mutants import mutants
from refusals import refused
from safetensors.torch import load_file, save_file
from vendor_standin import RULES

from ocr_phases import OcrPhasesError, OCRSession
from ocr_phases.analyse.cost import read_architecture
from ocr_phases.batch.jobs import known_model
from ocr_phases.models.devices import resolve_device
from ocr_phases.models.folders import hub_commit
from ocr_phases.models.weights import resolve_dtype
from ocr_phases.models.wiring import native_config
from ocr_phases.settings import ModelSettings
from ocr_phases.versions import asset, folder_hash

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
LABELS, GENERATION, INDEX = (
    "tokenizer_config.json",
    "generation_config.json",
    "model.safetensors.index.json",
)
#: What a folder may have besides, and the recorded one lacks.
BESIDES: dict[str, dict[str, Any]] = {
    GENERATION: {"bos_token_id": 0, "eos_token_id": [1, 2], "do_sample": False, "temperature": 0.7},
    INDEX: {"metadata": {"total_size": 2_100_000}, "weight_map": {"lm_head.weight": WEIGHTS}},
}
RECORDED_TOKENIZER = (GOLDEN / "checkpoint" / TOKENIZER).read_bytes()
PUBLISHED = ("model_type", "language_config", "vision_config", "image_token_id")
NORM = "model.norm.weight"
COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture
def folder(golden_checkpoint: Callable[[Path], Path], tmp_path: Path) -> Path:
    """A copy of the recorded checkpoint, to be damaged."""
    return Path(shutil.copytree(golden_checkpoint(GOLDEN), tmp_path / "model"))


def refuse(folder: Path | str) -> None:
    with refused():
        OCRSession.load(str(folder), device="cpu")


def test_published_layout_loads_whole(golden_session, golden_checkpoint):
    weights = load_file(golden_checkpoint(GOLDEN) / WEIGHTS)
    # CLIP's own patch embedding is in the file, but CLIP gets SAM's features: neither class uses
    # it.
    unused = weights.pop("model.vision_model.embeddings.patch_embedding.weight")
    assert unused.shape == (96, 3, 14, 14)
    parameters = golden_session.interface.parameters(golden_session.model)
    assert parameters["total"] == sum(tensor.numel() for tensor in weights.values())
    assert golden_session.checkpoint.image_token_id == 300
    assert golden_session.checkpoint.revision.startswith("sha256:")
    assert set(golden_session.model.config.text_config.layer_types) == {"full_attention"}
    # Its tokenizer's label misleads, and is ignored.
    text = "Total 12 450,00 € at 20 °C, naïve façade 表"
    ids = golden_session.tokenizer.encode(text, add_special_tokens=False)
    assert golden_session.tokenizer.decode(ids) == text


def test_dummy_is_seeded():
    one = OCRSession.load(SMALL_DUMMY, device="cpu")
    torch.manual_seed(1)  # as another process has drawn other numbers before
    two = OCRSession.load(SMALL_DUMMY, device="cpu")
    assert one.checkpoint.image_token_id == 2303
    assert one.checkpoint.default_ignore_eos
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b) and torch.isfinite(a).all()


@pytest.mark.parametrize(
    ("asked", "code"), [("main", []), (COMMIT, ["*.py"])], ids=["native", "vendor"]
)
def test_a_hub_id_is_loaded_at_its_commit(
    asked, code, standin, golden_checkpoint, remote_code, monkeypatch, tmp_path
):
    """Code is fetched for the class that runs it alone, and at a commit."""
    import huggingface_hub

    snapshot = shutil.copytree(standin if code else golden_checkpoint(GOLDEN), tmp_path / COMMIT)

    def fetched(name, *, revision, allow_patterns, local_files_only):
        assert (name, revision, local_files_only) == ("some-org/some-model", asked, False)
        assert allow_patterns == ["*.json", "*.safetensors", *code]
        if not snapshot.exists():
            raise OSError("no route")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *a, **k: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    options = {"device": "cpu", "revision": asked, **(RULES if code else {})}
    checkpoint = OCRSession.load("some-org/some-model", **options).checkpoint
    assert (checkpoint.revision, checkpoint.name) == (COMMIT, "some-org/some-model")
    snapshot.rename(tmp_path / "gone")
    with refused():
        OCRSession.load("some-org/some-model", **options)


def test_a_hub_that_never_answers_is_given_up(monkeypatch, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as hub:  # it accepts, and says nothing
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        given = {"ENDPOINT": address, "HF_HUB_ETAG_TIMEOUT": 0.2, "HF_HUB_CACHE": str(tmp_path)}
        for name, value in given.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        refuse("someone/model")
        assert hub_commit("someone/model") is None
    assert capsys.readouterr().err == f"Asking {address} for someone/model.\n" * 2


def test_devices_and_dtypes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    for device in ("cuda", "tpu"):
        with refused():
            resolve_device(device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("cuda:0") == "cuda:0"
    with refused():
        resolve_device("cuda:3")
    assert resolve_dtype("float16", "cpu") is torch.float16
    with refused():
        ModelSettings(dtype=torch.int8)
    assert ModelSettings(dtype=torch.float16).dtype == "float16"


def test_entries_that_nobody_declared_are_not_handed_on():
    good = json.loads(asset("data", "tiny", CONFIG).read_bytes())
    more = {
        "quantization_config": {"quant_method": "bitsandbytes"},
        "auto_map": {"AutoModel": "x.Y"},
    }
    config = native_config({**good, **more, "dtype": "evil"}).to_dict()
    assert not set(more) & set(config)
    assert config["dtype"] is None


UNKNOWN = (
    "dummy:layers dummy:depth=2 dummy:layers=0 dummy:hidden=100,heads=7 dummy:experts=2 "
    "dummy:vocab=100"
)
UNKNOWN += (
    " dummy:layers=97 dummy:deepseek-ocr-2,clip_layers=2 nonsense ./nowhere/model /nowhere/model"
)


@pytest.mark.parametrize("name", UNKNOWN.split())
def test_unknown_names_are_refused(name):
    refuse(name)


def test_from_local_takes_folders_only_and_native_needs_new_transformers(monkeypatch):
    for name in ("tiny", GOLDEN / "checkpoint" / CONFIG):
        with refused():
            OCRSession.from_local(name)
    monkeypatch.setattr("transformers.__version__", "4.46.3")
    refuse("tiny")


def entry(name: str, path: str, value: object) -> Callable[[Path], object]:
    """Set an entry of a JSON file, named by its keys with dots between."""

    def change(folder: Path) -> None:
        content = (
            copy.deepcopy(BESIDES[name])
            if name in BESIDES
            else json.loads((folder / name).read_text())
        )
        *above, key = path.split(".")
        reduce(operator.getitem, above, content)[key] = value
        (folder / name).write_text(json.dumps(content))

    return change


def tensor(name: str, value: torch.Tensor | None) -> Callable[[Path], object]:
    """Set a tensor of the weights, or take it out."""

    def change(folder: Path) -> None:
        weights = {**load_file(folder / WEIGHTS), name: value}
        kept = {key: each for key, each in weights.items() if each is not None}
        save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})

    return change


def bytes_of(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def endless_config(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).symlink_to("/dev/zero")


def mixed_layers(folder: Path) -> None:
    shutil.copy(asset("data", "tiny", CONFIG), folder / CONFIG)
    text: dict[str, Any] = {
        "num_hidden_layers": 2,
        "max_position_embeddings": 512,
        "sliding_window": 128,
    }
    text["layer_types"] = ["full_attention", "reference_sliding_attention"]
    entry(CONFIG, "text_config", text)(folder)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a tensor is missing": tensor(NORM, None),
    "a tensor too many": tensor("model.extra.weight", torch.ones(3)),
    "five too many": lambda to: [tensor(f"model.extra.{n}", torch.ones(3))(to) for n in range(5)],
    "another shape": tensor(NORM, torch.ones(81)),
    "another header": bytes_of(WEIGHTS, b"\x08\0\0\0\0\0\0\0notjson!"),
    "no safetensors": lambda folder: (folder / WEIGHTS).rename(folder / "model.bin"),
    "a pipe": lambda folder: os.mkfifo(folder / "more.safetensors"),
    "no config": lambda folder: (folder / CONFIG).unlink(),
    "an endless config": endless_config,
    "half a config": bytes_of(CONFIG, b"{"),
    "a list": bytes_of(CONFIG, b"[]"),
    "a deep config": bytes_of(CONFIG, b"[" * 200_000),
    "no JSON": bytes_of(CONFIG, b'{"model_type": NaN}'),
    "another model": entry(CONFIG, "model_type", "llama"),
    "another encoder": entry(CONFIG, "vision_config", {"width": {"qwen2-0-5b": {}}}),
    "two kinds of layers": mixed_layers,
    "another image token": entry(CONFIG, "image_token_id", 7),
    "no vision": entry(CONFIG, "vision_config", 5),
    "a list of types": entry(CONFIG, "model_type", ["x"]),
    "no map": entry(CONFIG, "auto_map", 5),
    "a list of sizes": entry(CONFIG, "language_config.hidden_size", ["x"]),
    "a huge size": entry(CONFIG, "language_config.hidden_size", 10**400),
    "heads that do not fit": entry(CONFIG, "language_config.num_attention_heads", 3),
    "an entry is missing": entry(CONFIG, "vision_config.width.sam_vit_b", {"width": 64}),
    "a label": entry(LABELS, "eos_token", 5),
    "a hot temperature": entry(GENERATION, "temperature", "hot"),
    "no weight map": entry(INDEX, "weight_map", 5),
    "a way out": entry(INDEX, "weight_map.x", "../../../../../../etc/passwd"),
    "a file is missing": entry(INDEX, "weight_map.x", "b.safetensors"),
    "a split token": bytes_of(
        TOKENIZER, RECORDED_TOKENIZER.replace(b"<|grounding|>", b"<|other|>")
    ),
    "lost spaces": entry(TOKENIZER, "pre_tokenizer", {"type": "WhitespaceSplit"}),
    "no tokenizer file": bytes_of(TOKENIZER, b"not json"),
    "no tokenizer": lambda folder: (folder / TOKENIZER).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_refused(damage, folder):
    DAMAGES[damage](folder)
    refuse(folder)


@pytest.mark.parametrize("claimed", [2**63 - 1, 2**64 - 1, 100_000_000, 0])
def test_a_header_that_claims_too_much_is_refused(folder, claimed):
    bytes_of(WEIGHTS, claimed.to_bytes(8, "little") + b"{}")(folder)
    with refused():
        folder_hash(folder)
    known_model(str(folder))  # the batch goes on: loading it says what is wrong
    refuse(folder)


def refusals_of(good: Any, count: int, *reads: Callable[[Any], object]) -> None:
    """Damaged copies of JSON are read or refused in a sentence: some of both."""
    refused = 0
    for _, damaged in mutants(good, count, seed=19):
        for read in reads:
            try:
                read(damaged)
            except OcrPhasesError as error:
                assert "\n" not in str(error)
                refused += 1
    assert 0 < refused < count * len(reads)


def test_no_damage_of_a_config_ends_in_another_error(ocr2_session):
    """Neither of the published layout nor of the one that transformers saves; so for cost."""
    refusals_of(json.loads(asset("data", "tiny", CONFIG).read_bytes()), 80, native_config)
    published = json.loads((GOLDEN_2 / "checkpoint" / CONFIG).read_text())
    for good in ({key: published[key] for key in PUBLISHED}, ocr2_session.model.config.to_dict()):
        native_config(good)
        refusals_of(good, 80, native_config, read_architecture)
