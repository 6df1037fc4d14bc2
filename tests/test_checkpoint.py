"""Loading: what fits is loaded whole; anything else, damaged or not, is refused in one sentence.

The sentences are in ``approved/refusals``.
"""

import copy
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
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

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
LABELS = "tokenizer_config.json"
GENERATION = "generation_config.json"
INDEX = "model.safetensors.index.json"
#: What a folder may have besides, and the recorded one lacks.
OPTIONAL_FILES: dict[str, dict[str, Any]] = {
    GENERATION: {"bos_token_id": 0, "eos_token_id": [1, 2], "do_sample": False, "temperature": 0.7},
    INDEX: {"metadata": {"total_size": 2_100_000}, "weight_map": {"lm_head.weight": WEIGHTS}},
}
RECORDED_TOKENIZER = (GOLDEN / "checkpoint" / TOKENIZER).read_bytes()
#: The entries of a published config that describe the model.
PUBLISHED = ("model_type", "language_config", "vision_config", "image_token_id")
NORM = "model.norm.weight"
COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture
def folder(golden_checkpoint: Callable[[Path], Path], tmp_path: Path) -> Path:
    """A copy of the recorded checkpoint, to be damaged."""
    return Path(shutil.copytree(golden_checkpoint(GOLDEN), tmp_path / "model"))


def assert_refused(name: Path | str) -> None:
    """Loading this model is refused with the approved sentence."""
    with refused():
        OCRSession.load(str(name), device="cpu")


# -- what loads ------------------------------------------------------------------------------------


def test_published_layout_loads_whole(
    golden_session: OCRSession, golden_checkpoint: Callable[[Path], Path]
) -> None:
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


def test_a_misleading_label_of_a_tokenizer_is_ignored(golden_session: OCRSession) -> None:
    text = "Total 12 450,00 € at 20 °C, naïve façade 表"
    ids = golden_session.tokenizer.encode(text, add_special_tokens=False)
    assert golden_session.tokenizer.decode(ids) == text


def test_dummy_is_seeded() -> None:
    first = OCRSession.load(SMALL_DUMMY, device="cpu")
    torch.manual_seed(1)  # as another process has drawn other numbers before
    second = OCRSession.load(SMALL_DUMMY, device="cpu")

    assert first.checkpoint.image_token_id == 2303
    assert first.checkpoint.default_ignore_eos
    for weight, again in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(weight, again)
        assert torch.isfinite(weight).all()


class FakeHub:
    """Stands in for the Hugging Face Hub, which has one model at one commit."""

    NAME = "some-org/some-model"

    def __init__(self, snapshot: Path) -> None:
        self.snapshot = snapshot
        #: What was asked for with each download.
        self.downloads: list[dict[str, Any]] = []

    def model_info(self, *_: object, **__: object) -> None:
        pass

    def snapshot_download(self, name: str, **options: Any) -> str:
        assert name == self.NAME
        self.downloads.append(options)
        if not self.snapshot.exists():
            raise OSError("no route")
        return str(self.snapshot)

    def lose(self) -> None:
        """From now on the model cannot be fetched."""
        self.snapshot.rename(self.snapshot.with_name("gone"))


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    import huggingface_hub

    hub = FakeHub(tmp_path / COMMIT)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", hub.model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_a_hub_id_is_loaded_at_its_commit(
    fake_hub: FakeHub, golden_checkpoint: Callable[[Path], Path]
) -> None:
    shutil.copytree(golden_checkpoint(GOLDEN), fake_hub.snapshot)

    checkpoint = OCRSession.load(FakeHub.NAME, device="cpu", revision="main").checkpoint

    assert checkpoint.revision == COMMIT
    assert checkpoint.name == FakeHub.NAME
    for download in fake_hub.downloads:
        assert download == {
            "revision": "main",
            "allow_patterns": ["*.json", "*.safetensors"],
            "local_files_only": False,
        }
    fake_hub.lose()
    with refused():
        OCRSession.load(FakeHub.NAME, device="cpu", revision="main")


def test_code_is_fetched_for_the_class_that_runs_it_alone_and_at_a_commit(
    fake_hub: FakeHub, standin: Path, remote_code: None
) -> None:
    shutil.copytree(standin, fake_hub.snapshot)

    session = OCRSession.load(FakeHub.NAME, device="cpu", revision=COMMIT, **RULES)

    assert session.checkpoint.revision == COMMIT
    assert session.checkpoint.name == FakeHub.NAME
    for download in fake_hub.downloads:
        assert download == {
            "revision": COMMIT,
            "allow_patterns": ["*.json", "*.safetensors", "*.py"],
            "local_files_only": False,
        }
    fake_hub.lose()
    with refused():
        OCRSession.load(FakeHub.NAME, device="cpu", revision=COMMIT, **RULES)


def test_a_hub_that_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:  # it accepts, and says nothing
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        assert_refused("someone/model")
        assert hub_commit("someone/model") is None
    assert capsys.readouterr().err == f"Asking {address} for someone/model.\n" * 2


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    for cuda, device in ((None, "cuda"), ("13.0", "cuda:1"), (None, "tpu")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", None)
        with refused():
            resolve_device(device)


def test_a_gpu_beyond_the_last_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("cuda:0") == "cuda:0"
    with refused():
        resolve_device("cuda:3")


def test_a_dtype_that_no_model_has_is_refused() -> None:
    assert resolve_dtype("float16", "cpu") is torch.float16
    assert ModelSettings(dtype=torch.float16).dtype == "float16"
    with refused():
        ModelSettings(dtype=torch.int8)


def test_entries_that_nobody_declared_are_not_handed_on() -> None:
    good = json.loads(asset("data", "tiny", CONFIG).read_bytes())
    undeclared = {
        "quantization_config": {"quant_method": "bitsandbytes"},
        "auto_map": {"AutoModel": "x.Y"},
    }

    config = native_config({**good, **undeclared, "dtype": "evil"}).to_dict()

    assert not set(undeclared) & set(config)
    assert config["dtype"] is None


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "dummy:layers",
        "dummy:depth=2",
        "dummy:layers=0",
        "dummy:hidden=100,heads=7",
        "dummy:experts=2",
        "dummy:vocab=100",
        "dummy:layers=97",
        "dummy:deepseek-ocr-2,clip_layers=2",
        "nonsense",
        "./nowhere/model",
        "/nowhere/model",
    ],
)
def test_unknown_names_are_refused(name: str) -> None:
    assert_refused(name)


def test_from_local_takes_folders_only() -> None:
    for name in ("tiny", GOLDEN / "checkpoint" / CONFIG):
        with refused():
            OCRSession.from_local(name)


def test_native_needs_a_new_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", "4.46.3")
    assert_refused("tiny")


#: What is done to a copy of the recorded checkpoint.
Damage = Callable[[Path], object]


def set_entry(name: str, path: str, value: object) -> Damage:
    """Set an entry of a JSON file, named by its keys with dots between."""

    def damage(folder: Path) -> None:
        if name in OPTIONAL_FILES:
            content = copy.deepcopy(OPTIONAL_FILES[name])
        else:
            content = json.loads((folder / name).read_text())
        *sections, key = path.split(".")
        section = content
        for above in sections:
            section = section[above]
        section[key] = value
        (folder / name).write_text(json.dumps(content))

    return damage


def set_tensors(count: int, name: str, value: torch.Tensor) -> Damage:
    """Set so many tensors of the weights; ``{}`` in the name stands for the number of each."""

    def damage(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        for number in range(count):
            weights[name.format(number)] = value.clone()
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def without_tensor(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights[NORM]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def set_bytes(name: str, data: bytes) -> Damage:
    """Replace what a file holds."""

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return damage


def without_file(name: str) -> Damage:
    """Take a file out of the folder."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()

    return damage


def weights_of_another_kind(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model.bin")


def pipe_among_weights(folder: Path) -> None:
    os.mkfifo(folder / "more.safetensors")


def endless_config(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).symlink_to("/dev/zero")


def mixed_layers(folder: Path) -> None:
    shutil.copy(asset("data", "tiny", CONFIG), folder / CONFIG)
    text_config: dict[str, Any] = {
        "num_hidden_layers": 2,
        "max_position_embeddings": 512,
        "sliding_window": 128,
        "layer_types": ["full_attention", "reference_sliding_attention"],
    }
    set_entry(CONFIG, "text_config", text_config)(folder)


DAMAGES: dict[str, Damage] = {
    "a tensor is missing": without_tensor,
    "a tensor too many": set_tensors(1, "model.extra.weight", torch.ones(3)),
    "five too many": set_tensors(5, "model.extra.{}", torch.ones(3)),
    "another shape": set_tensors(1, NORM, torch.ones(81)),
    "another header": set_bytes(WEIGHTS, b"\x08\0\0\0\0\0\0\0notjson!"),
    "no safetensors": weights_of_another_kind,
    "a pipe": pipe_among_weights,
    "no config": without_file(CONFIG),
    "an endless config": endless_config,
    "half a config": set_bytes(CONFIG, b"{"),
    "a list": set_bytes(CONFIG, b"[]"),
    "a deep config": set_bytes(CONFIG, b"[" * 200_000),
    "no JSON": set_bytes(CONFIG, b'{"model_type": NaN}'),
    "another model": set_entry(CONFIG, "model_type", "llama"),
    "another encoder": set_entry(CONFIG, "vision_config", {"width": {"qwen2-0-5b": {}}}),
    "two kinds of layers": mixed_layers,
    "another image token": set_entry(CONFIG, "image_token_id", 7),
    "no vision": set_entry(CONFIG, "vision_config", 5),
    "a list of types": set_entry(CONFIG, "model_type", ["x"]),
    "no map": set_entry(CONFIG, "auto_map", 5),
    "a list of sizes": set_entry(CONFIG, "language_config.hidden_size", ["x"]),
    "a huge size": set_entry(CONFIG, "language_config.hidden_size", 10**400),
    "heads that do not fit": set_entry(CONFIG, "language_config.num_attention_heads", 3),
    "an entry is missing": set_entry(CONFIG, "vision_config.width.sam_vit_b", {"width": 64}),
    "a label": set_entry(LABELS, "eos_token", 5),
    "a hot temperature": set_entry(GENERATION, "temperature", "hot"),
    "no weight map": set_entry(INDEX, "weight_map", 5),
    "a way out": set_entry(INDEX, "weight_map.x", "../../../../../../etc/passwd"),
    "a file is missing": set_entry(INDEX, "weight_map.x", "b.safetensors"),
    "a split token": set_bytes(
        TOKENIZER, RECORDED_TOKENIZER.replace(b"<|grounding|>", b"<|other|>")
    ),
    "lost spaces": set_entry(TOKENIZER, "pre_tokenizer", {"type": "WhitespaceSplit"}),
    "no tokenizer file": set_bytes(TOKENIZER, b"not json"),
    "no tokenizer": without_file(TOKENIZER),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_does_not_fit_is_refused(damage: Damage, folder: Path) -> None:
    damage(folder)
    assert_refused(folder)


@pytest.mark.parametrize("claimed", [2**63 - 1, 2**64 - 1, 100_000_000, 0])
def test_a_header_that_claims_too_much_is_refused(folder: Path, claimed: int) -> None:
    (folder / WEIGHTS).write_bytes(claimed.to_bytes(8, "little") + b"{}")
    with refused():
        folder_hash(folder)
    known_model(str(folder))  # the batch goes on: loading it says what is wrong
    assert_refused(folder)


# -- damaged configs -------------------------------------------------------------------------------


def sentences_of_refusals(
    read: Callable[[Any], object], good: dict[str, Any], count: int
) -> Iterator[str]:
    """What is said of so many damaged copies of JSON; some of them can be read all the same."""
    for _, damaged in mutants(good, count, seed=19):
        try:
            read(damaged)
        except OcrPhasesError as error:
            yield str(error)


def assert_damage_is_read_or_refused(
    read: Callable[[Any], object], good: dict[str, Any], count: int = 80
) -> None:
    """Damaged copies of JSON are read or refused in a sentence: some of both."""
    sentences = list(sentences_of_refusals(read, good, count))
    assert 0 < len(sentences) < count
    for sentence in sentences:
        assert "\n" not in sentence


def test_no_damage_of_the_built_in_config_ends_in_another_error() -> None:
    tiny = json.loads(asset("data", "tiny", CONFIG).read_bytes())
    assert_damage_is_read_or_refused(native_config, tiny)


@pytest.mark.parametrize("read", [native_config, read_architecture])
def test_no_damage_of_the_published_layout_ends_in_another_error(
    read: Callable[[Any], object],
) -> None:
    recorded = json.loads((GOLDEN_2 / "checkpoint" / CONFIG).read_text())
    published = {key: recorded[key] for key in PUBLISHED}
    native_config(published)
    assert_damage_is_read_or_refused(read, published)


@pytest.mark.parametrize("read", [native_config, read_architecture])
def test_no_damage_of_the_layout_that_transformers_saves_ends_in_another_error(
    read: Callable[[Any], object], ocr2_session: OCRSession
) -> None:
    saved = ocr2_session.model.config.to_dict()
    native_config(saved)
    assert_damage_is_read_or_refused(read, saved)
