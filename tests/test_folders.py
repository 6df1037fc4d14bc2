"""Checkpoint folders as people have them: each loads, or is refused in a sentence that says what to
do.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import GOLDEN, GOLDEN_2
from safetensors.torch import load_file, save_file

from ocr_phases import OcrPhasesError, OCRSession
from ocr_phases.analyse.checks import run_checks
from ocr_phases.measure import live_checks
from ocr_phases.measure.live_checks import card_dtype
from ocr_phases.measure.memory_fit import fit
from ocr_phases.models.tokenizers import load_tokenizer
from ocr_phases.models.weights import resolve_dtype
from ocr_phases.settings import Settings
from ocr_phases.versions import asset

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"
GENERATION, INDEX = "generation_config.json", "model.safetensors.index.json"
LINEAR = "model.layers.0.mlp.down_proj.weight"
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 6672547120\n"
)
FROM_MODEL = "OCRSession.from_model(model, tokenizer)"
Change = Callable[[Path], object]


@pytest.fixture
def folder(golden_checkpoint: Callable[[Path], Path], tmp_path: Path) -> Path:
    """A copy of the recorded checkpoint, to be changed."""
    return Path(shutil.copytree(golden_checkpoint(GOLDEN), tmp_path / "model"))


def sentence_on(folder: Path) -> str:
    """The one line in which a folder is refused."""
    with pytest.raises(OcrPhasesError) as caught:
        OCRSession.load(str(folder), device="cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- how a folder is changed -----------------------------------------------------------------------


def all_of(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def data(name: str, content: bytes) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return change


def entries(**added: Any) -> Change:
    """More entries of config.json; one that is None is taken out."""

    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text()) | added
        kept = {name: value for name, value in config.items() if value is not None}
        (folder / CONFIG).write_text(json.dumps(kept))

    return change


def part_entries(part: str, **added: Any) -> Change:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        config[part] |= added
        (folder / CONFIG).write_text(json.dumps(config))

    return change


def gone(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def tensors(
    change_all: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], **metadata: str
) -> Change:
    def change(folder: Path) -> None:
        weights = change_all(load_file(folder / WEIGHTS))
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"} | metadata)

    return change


def stored_as(dtype: torch.dtype) -> Change:
    return tensors(lambda weights: weights | {LINEAR: weights[LINEAR].to(dtype)})


def beside(suffix: str) -> Change:
    """One more tensor, which belongs to the linear layer."""
    name = LINEAR.removesuffix("weight") + suffix
    return tensors(lambda weights: weights | {name: torch.ones(1)})


def renamed(rename: Callable[[str], str]) -> Change:
    return tensors(lambda weights: {rename(name): value for name, value in weights.items()})


def weights_named(name: str) -> Change:
    return lambda folder: (folder / WEIGHTS).rename(folder / name)


def only(name: str) -> Change:
    """A file of another format in the place of the weights."""
    return all_of(gone(WEIGHTS), data(name, b"GGUF\0\0\0\3"))


def one_level_up(below: str) -> Change:
    """The checkpoint moves into a folder of the one that is named."""

    def change(folder: Path) -> None:
        aside = folder.rename(folder.with_name("aside"))
        (folder / below).parent.mkdir(parents=True)
        aside.rename(folder / below)

    return change


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def cut(name: str, left: int) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:left])


def sharded(*written: int) -> Change:
    """The weights in three files with an index, of which only those ``written`` are there."""

    def change(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        names = sorted(weights)
        file_of = {
            name: f"model-{number % 3 + 1:05}-of-00003.safetensors"
            for number, name in enumerate(names)
        }
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": file_of}))
        for number in written:
            file = f"model-{number:05}-of-00003.safetensors"
            kept = {name: weights[name] for name in names if file_of[name] == file}
            save_file(kept, folder / file, metadata={"format": "pt"})

    return change


def linked_to_nothing(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("../../blobs/0123")

    return change


LORA = json.dumps(
    {"peft_type": "LORA", "base_model_name_or_path": "deepseek-ai/DeepSeek-OCR", "r": 16}
).encode()


def newer_tokenizer(part: str) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / TOKENIZER).read_text())
        content[part] = {"type": "OfTheFuture", "level": 2}
        (folder / TOKENIZER).write_text(json.dumps(content))

    return change


# -- quantised weights -----------------------------------------------------------------------------

PLAIN = "plain BF16"
BLOCKS = {"activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QUANTISED: dict[str, tuple[Change, tuple[str, ...]]] = {
    "fp8": (
        entries(quantization_config={"quant_method": "fp8"} | BLOCKS),
        ("quantization_config: fp8", PLAIN),
    ),
    "bitsandbytes 4": (
        entries(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("bitsandbytes, 4 bits", PLAIN),
    ),
    "bitsandbytes 8": (
        entries(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ("bitsandbytes, 8 bits",),
    ),
    "awq": (entries(quantization_config={"quant_method": "awq", "bits": 4}), ("awq, 4 bits",)),
    "gptq": (entries(quantization_config={"quant_method": "gptq", "bits": 8}), ("gptq, 8 bits",)),
    "compressed-tensors": (
        entries(quantization_config={"quant_method": "compressed-tensors", "config_groups": {}}),
        ("compressed-tensors",),
    ),
    "an older compressed-tensors": (
        entries(compression_config={"format": "int-quantized"}),
        ("int-quantized",),
    ),
    "torchao": (
        entries(quantization_config={"quant_method": "torchao", "quant_type": {"default": {}}}),
        ("torchao",),
    ),
    "mxfp4": (entries(quantization_config={"quant_method": "mxfp4"}), ("mxfp4",)),
    "modelopt": (entries(quantization_config={"quant_algo": "NVFP4"}), ("NVFP4",)),
    "mlx": (
        entries(quantization={"group_size": 64, "bits": 8}),
        ("quantization: MLX, 8 bits", PLAIN),
    ),
    "no object": (entries(quantization_config="int8"), ("'int8'",)),
    "in a part": (
        part_entries("language_config", quantization_config={"quant_method": "hqq"}),
        ("language_config.quantization_config: hqq",),
    ),
    "a file of gptq": (
        data("quantize_config.json", b'{"bits": 4}'),
        ("quantize_config.json", PLAIN),
    ),
    "a file of awq": (data("quant_config.json", b'{"w_bit": 4}'), ("quant_config.json",)),
    "a file of modelopt": (data("hf_quant_config.json", b"{}"), ("hf_quant_config.json",)),
    "a file of quanto": (data("quanto_qmap.json", b"{}"), ("quanto_qmap.json",)),
    "config and tensors": (
        all_of(entries(quantization_config={"quant_method": "fp8"}), beside("weight_scale_inv")),
        ("quantization_config: fp8",),
    ),
}
for _suffix in [
    "weight_scale_inv",
    "weight_scale",
    "input_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight.absmax",
    "weight.quant_map",
    "SCB",
    "weight.quant_state.bitsandbytes__nf4",
    "weight_packed",
    "weight_zero_point",
    "q_weight",
    "W_q",
    "weight._data",
    "codebooks",
]:
    QUANTISED[f"a tensor {_suffix}"] = (
        beside(_suffix),
        ("quantised", LINEAR.removesuffix("weight") + _suffix),
    )
for _dtype, _stored in {
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}.items():
    QUANTISED[f"stored as {_stored}"] = (
        stored_as(_dtype),
        ("quantised", f"{LINEAR} is stored as {_stored}"),
    )


@pytest.mark.parametrize("case", QUANTISED)
def test_quantised_weights_are_refused_by_name(case, folder):
    change, words = QUANTISED[case]
    change(folder)
    sentence = sentence_on(folder)
    for word in (*words, "quantised", FROM_MODEL, "float32, bfloat16 or float16"):
        assert word in sentence
    if PLAIN not in words:
        return
    assert "to measure these" in sentence


@pytest.mark.parametrize("value", [None, {}, False])
def test_an_entry_that_quantises_nothing_is_none(value, folder):
    config = json.loads((folder / CONFIG).read_text()) | {"quantization_config": value}
    (folder / CONFIG).write_text(json.dumps(config))
    assert OCRSession.load(str(folder), device="cpu").checkpoint.dtype == torch.float32


def test_a_dry_run_refuses_quantised_weights_too(folder):
    entries(quantization_config={"quant_method": "awq", "bits": 4})(folder)
    with pytest.raises(OcrPhasesError, match="awq, 4 bits"):
        fit(str(GOLDEN / "pages" / "small_400x300.png"), Settings(model=str(folder), device="cpu"))


def test_weights_of_other_floats_and_integer_buffers_load(folder):
    def change(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights[LINEAR] = weights[LINEAR].to(torch.float16)
        weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.float64)
        return weights

    before = OCRSession.load(str(folder), device="cpu").model.state_dict()
    tensors(change)(folder)
    after = OCRSession.load(str(folder), device="cpu").model.state_dict()
    assert all(torch.allclose(before[name], after[name], atol=1e-4) for name in before)


# -- cards before Ampere ---------------------------------------------------------------------------


@pytest.fixture
def card(monkeypatch):
    """Stands in for a CUDA device: a function that says its name and compute capability."""

    class Chosen:
        def __init__(self, device: str) -> None:
            self.device = device

        def __enter__(self) -> None:
            pass

        def __exit__(self, *problem: object) -> None:
            pass

    def of(name: str, major: int) -> None:
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "device", Chosen)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        properties = SimpleNamespace(
            name=name, major=major, total_memory=16 << 30, multi_processor_count=40
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return of


CARDS = {
    "Tesla P100": 6,
    "Tesla V100": 7,
    "Tesla T4": 7,
    "A100": 8,
    "RTX 4090": 8,
    "H100": 9,
    "B200": 10,
}


@pytest.mark.parametrize("name", CARDS)
def test_cards_before_ampere_get_float16(name, card):
    card(name, CARDS[name])
    old = CARDS[name] < 8
    for device in ("cuda", "cuda:0"):
        assert resolve_dtype(None, device) is (torch.float16 if old else torch.bfloat16)
        assert resolve_dtype("bfloat16", device) is torch.bfloat16  # what is asked for is had
        assert resolve_dtype("float32", device) is torch.float32
    assert bool(card_dtype("cuda", torch.float16, autocast=False)) is old
    assert resolve_dtype(None, "cpu") is torch.float32
    assert card_dtype("cpu", torch.float32, autocast=False) == []


@pytest.mark.parametrize(
    ("dtype", "autocast", "words"),
    [
        (torch.float16, False, "float16 is the default there; the weights are float16"),
        (torch.float32, False, "the weights are float32"),
        (torch.bfloat16, False, "the weights are bfloat16: that is emulated"),
        (torch.float16, True, "autocast to bfloat16: that is emulated"),
    ],
)
def test_a_note_says_what_the_dtype_means_on_an_old_card(dtype, autocast, words, card):
    card("Tesla T4", 7)
    (check,) = card_dtype("cuda", dtype, autocast)
    assert (check.name, check.verdict) == ("card_dtype", "note")
    assert check.measured.startswith("Tesla T4 does not compute with bfloat16 itself")
    assert words in check.measured


def test_the_note_on_an_old_card_is_in_the_record(golden_session, card, monkeypatch):
    card("Tesla V100", 7)
    # What this machine has not, the check is told: the run itself is the CPU's.
    monkeypatch.setattr(live_checks, "card_dtype", lambda device, *rest: card_dtype("cuda", *rest))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    page = str(GOLDEN / "pages" / "small_400x300.png")
    run = golden_session.run_inference(page, preset="tiny", max_new_tokens=2, repeats=1, warmup=0)
    (check,) = (check for check in run_checks(run) if check.name == "card_dtype")
    assert check.verdict == "note"
    assert check.measured.startswith("Tesla V100 does not compute with bfloat16 itself")
    assert "float16" in check.why and "dtype float32" in check.fix


# -- folders of the wild ---------------------------------------------------------------------------

MERGE = ("merge_and_unload()", FROM_MODEL)
PICKLE = ("pickle", "never opened", "safetensors", FROM_MODEL)
AGAIN = "download that file again"
WILD: dict[str, tuple[Change, tuple[str, ...]]] = {
    # adapters and merged weights
    "a LoRA alone": (
        all_of(
            gone(CONFIG, WEIGHTS),
            data("adapter_config.json", LORA),
            data("adapter_model.safetensors", b""),
        ),
        ("adapter", "LoRA", "adapter_config.json", *MERGE),
    ),
    "a LoRA with a config": (
        all_of(weights_named("adapter_model.safetensors"), data("adapter_config.json", LORA)),
        ("adapter", *MERGE),
    ),
    "a pickled LoRA": (
        all_of(gone(CONFIG, WEIGHTS), data("adapter_model.bin", b"x")),
        ("adapter_model.bin", *MERGE),
    ),
    "a LoRA beside whole weights": (
        all_of(data("adapter_config.json", LORA), data("adapter_model.safetensors", b"")),
        (
            "beside whole weights",
            "remove adapter_config.json and adapter_model.safetensors",
            *MERGE,
        ),
    ),
    "a LoRA's tensors": (
        tensors(
            lambda weights: {f"base_model.model.{LINEAR[:-7]}.lora_A.weight": torch.zeros(2, 2)}
        ),
        ("lora_A", "not merged", *MERGE),
    ),
    "base layers": (
        renamed(lambda name: name.replace("down_proj.", "down_proj.base_layer.")),
        ("not merged", *MERGE),
    ),
    "a DoRA": (beside("lora_magnitude_vector"), ("not merged", *MERGE)),
    "prefix of peft": (
        renamed("base_model.model.{}".format),
        ("base_model.model.", "peft", *MERGE),
    ),
    "prefix of DataParallel": (
        renamed("module.{}".format),
        ("module.", "DataParallel", FROM_MODEL),
    ),
    "prefix of compile": (
        renamed("_orig_mod.{}".format),
        ("_orig_mod.", "torch.compile", FROM_MODEL),
    ),
    "compiled inside": (
        renamed(lambda name: name.replace("model.layers", "model._orig_mod.layers")),
        ("_orig_mod.", "torch.compile", FROM_MODEL),
    ),
    "prefix of FSDP": (renamed("_fsdp_wrapped_module.{}".format), ("FSDP", FROM_MODEL)),
    "both prefixes": (renamed("module._orig_mod.{}".format), ("_orig_mod.", FROM_MODEL)),
    "model twice": (renamed("model.{}".format), ("model.model.", FROM_MODEL)),
    "a prefix of their own": (renamed("student.net.{}".format), ("student.net.", FROM_MODEL)),
    "written by MLX": (tensors(dict, format="mlx"), ("MLX", "made from")),
    # pointers, damage
    "a pointer for weights": (data(WEIGHTS, POINTER), (WEIGHTS, "Git LFS pointer", "git lfs pull")),
    "a pointer for the tokenizer": (
        data(TOKENIZER, POINTER),
        (TOKENIZER, "Git LFS pointer", "git lfs pull"),
    ),
    "a pointer for the config": (
        data(CONFIG, POINTER),
        (CONFIG, "Git LFS pointer", "git lfs pull"),
    ),
    "a pointer for generation": (
        data(GENERATION, POINTER),
        (GENERATION, "Git LFS pointer", "git lfs pull"),
    ),
    "a pointer for the index": (data(INDEX, POINTER), (INDEX, "Git LFS pointer", "git lfs pull")),
    "a pointer for labels": (
        data("tokenizer_config.json", POINTER),
        ("tokenizer_config.json", "Git LFS pointer", "git lfs pull"),
    ),
    "an old pointer": (
        data(WEIGHTS, POINTER.replace(b"git-lfs.github", b"hawser.github")),
        ("git lfs pull",),
    ),
    "git-annex": (data(WEIGHTS, b"/annex/objects/SHA256E-s19--0"), ("git annex get",)),
    "a web page": (data(CONFIG, b"<!DOCTYPE html>\n<html>"), (CONFIG, "web page", AGAIN)),
    "a web page of weights": (
        data(WEIGHTS, b"\n<html><body>Not found"),
        (WEIGHTS, "web page", AGAIN),
    ),
    "empty weights": (data(WEIGHTS, b""), (WEIGHTS, "is empty", AGAIN)),
    "an empty config": (data(CONFIG, b""), (CONFIG, "is empty", AGAIN)),
    "an empty tokenizer": (data(TOKENIZER, b""), (TOKENIZER, "is empty", AGAIN)),
    "weights cut": (cut(WEIGHTS, 200_000), (WEIGHTS, "cut short", "200 kB of", AGAIN)),
    "a header cut": (cut(WEIGHTS, 900), (WEIGHTS, "cut short", AGAIN)),
    "five bytes": (cut(WEIGHTS, 5), (WEIGHTS, AGAIN)),
    "a config cut": (cut(CONFIG, 100), (CONFIG, "JSON", "published checkpoint")),
    "a tokenizer cut": (cut(TOKENIZER, 1000), (TOKENIZER, "published checkpoint")),
    "a pickle by the wrong name": (data(WEIGHTS, b"PK\x03\x04" + b"\0" * 64), (WEIGHTS, "pickled")),
    "GGUF by the wrong name": (data(WEIGHTS, b"GGUF" + b"\0" * 64), (WEIGHTS, "GGUF")),
    # tokenizers
    "a newer tokenizer": (
        newer_tokenizer("pre_tokenizer"),
        (TOKENIZER, "pip install -U tokenizers", "newer"),
    ),
    "a newer decoder": (
        newer_tokenizer("decoder"),
        (TOKENIZER, "pip install -U tokenizers", "newer"),
    ),
    "a newer model": (newer_tokenizer("model"), (TOKENIZER, "pip install -U tokenizers", "newer")),
    "a newer normalizer": (
        newer_tokenizer("normalizer"),
        (TOKENIZER, "pip install -U tokenizers", "newer"),
    ),
    "only tokenizer.model": (
        all_of(gone(TOKENIZER), data("tokenizer.model", b"x")),
        (TOKENIZER, "published checkpoint", "tokenizer.model"),
    ),
    # other formats
    "GGUF": (
        only("deepseek-ocr-q8_0.gguf"),
        ("deepseek-ocr-q8_0.gguf", "llama.cpp", "safetensors"),
    ),
    "GGUF alone": (
        all_of(only("q8_0.gguf"), gone(CONFIG)),
        ("q8_0.gguf", "llama.cpp", "safetensors"),
    ),
    "ONNX": (only("decoder.onnx"), ("decoder.onnx", "ONNX", "safetensors")),
    "NumPy": (only("weights.npz"), ("weights.npz", "safetensors")),
    "TensorFlow": (only("tf_model.h5"), ("tf_model.h5", "safetensors")),
    "an archive": (all_of(only("model.tar.gz"), gone(CONFIG)), ("model.tar.gz", "unpack")),
    "a download at work": (only("model.safetensors.incomplete"), ("not finished", "hf download")),
    "a pickle .bin": (only("pytorch_model.bin"), ("pytorch_model.bin", *PICKLE)),
    "a pickle .pt": (only("model.pt"), ("model.pt", *PICKLE)),
    "a pickle .pth": (only("consolidated.00.pth"), ("consolidated.00.pth", *PICKLE)),
    "a pickle .ckpt": (only("epoch=3.ckpt"), ("epoch=3.ckpt", *PICKLE)),
    "pickles without a config": (all_of(only("model.pt"), gone(CONFIG)), ("model.pt", *PICKLE)),
    "no weights": (gone(WEIGHTS), ("no *.safetensors file", "download")),
    "weights without a config": (gone(CONFIG), ("no config.json", "beside the weights")),
    # folders
    "an empty folder": (emptied, ("is empty", "name the folder")),
    "one level too high": (one_level_up("checkpoint-500"), ("checkpoint-500", "name that")),
    "two levels too high": (one_level_up("runs/final"), ("runs/final", "name that")),
    "a repository of the cache": (
        one_level_up("snapshots/0123abcd"),
        ("snapshots/0123abcd", "name that"),
    ),
    "the hub's cache": (
        one_level_up("models--deepseek-ai--DeepSeek-OCR/snapshots/0123abcd"),
        ("models--deepseek-ai--DeepSeek-OCR/snapshots/0123abcd", "name that"),
    ),
    "a cache without a download": (
        all_of(emptied, data("models--a--b/refs/main", b"0123")),
        ("hub's cache", "hub id"),
    ),
    "several inside": (
        all_of(
            one_level_up("checkpoint-500"),
            lambda folder: shutil.copytree(folder / "checkpoint-500", folder / "checkpoint-1000"),
        ),
        ("checkpoint-1000, checkpoint-500", "name one of them"),
    ),
    "weights one level below": (
        all_of(data("weights/x", b""), weights_named("weights/model.safetensors")),
        ("weights", "beside config.json"),
    ),
    "a config that links to nothing": (linked_to_nothing(CONFIG), (CONFIG, "link", "download")),
    "weights that link to nothing": (linked_to_nothing(WEIGHTS), (WEIGHTS, "link", "download")),
    # parts of weights
    "an index without its shards": (
        sharded(),
        ("index", "model-00001-of-00003.safetensors", "3 files of 3"),
    ),
    "a shard is missing": (
        sharded(1, 3),
        ("model-00002-of-00003.safetensors", "index", "1 file of 3"),
    ),
    "shards without an index": (all_of(sharded(1, 2, 3), gone(INDEX)), (INDEX, "download")),
    "two of three without an index": (
        all_of(sharded(1, 2), gone(INDEX)),
        (INDEX, "1 file of its 3"),
    ),
    "weights by another name": (
        weights_named("consolidated.safetensors"),
        ("consolidated.safetensors", WEIGHTS),
    ),
}


@pytest.mark.parametrize("case", WILD)
def test_a_folder_of_the_wild_is_told_what_to_do(case, folder):
    change, words = WILD[case]
    change(folder)
    sentence = sentence_on(folder)
    for word in words:
        assert word in sentence


FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "weights": (WEIGHTS, ("name the checkpoint's folder", "model.")),
    "GGUF": ("q4.gguf", ("GGUF", "llama.cpp")),
    "a pickle": ("model.pth", ("pickle", "never opened")),
    "an archive": ("model.zip", ("unpack",)),
    "ONNX": ("model.onnx", ("ONNX",)),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_in_the_place_of_a_folder_is_told_what_to_do(case, folder):
    name, words = FILES[case]
    if not (folder / name).exists():
        (folder / name).write_bytes(b"x")
    sentence = sentence_on(folder / name)
    for word in ("is a file", *words):
        assert word in sentence


def test_whole_shards_load(folder):
    sharded(1, 2, 3)(folder)
    assert OCRSession.load(str(folder), device="cpu").model


def test_a_second_copy_beside_is_not_asked(folder):
    weights = load_file(folder / WEIGHTS)
    save_file({"x.scales": torch.ones(1), **weights}, folder / "consolidated.safetensors")
    assert OCRSession.load(str(folder), device="cpu").model


def test_no_pickle_is_opened(folder, monkeypatch):
    """Neither by torch nor by pickle itself, whatever the files are called."""
    import pickle

    def opened(*arguments: object, **options: object) -> None:
        raise AssertionError("a pickle was opened")

    monkeypatch.setattr(torch, "load", opened)
    monkeypatch.setattr(pickle, "load", opened)
    monkeypatch.setattr(pickle, "Unpickler", opened)
    all_of(only("pytorch_model.bin"), data("model.pt", b"\x80\x04."))(folder)
    assert "pickle" in sentence_on(folder)


# -- names of the model ----------------------------------------------------------------------------

NAMES = [
    "deepseekocr",
    "deepseek_ocr",
    "DeepseekOCR",
    "DeepSeek-OCR",
    "deepseek-ocr",
    "deepseek_vl2",
    "deepseek_vl_v2",
    "DeepseekVLV2",
    "deepseek_ocr_hf",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("recording", "family"), [(GOLDEN, "deepseek-ocr"), (GOLDEN_2, "deepseek-ocr-2")]
)
def test_a_published_layout_loads_by_its_parts(
    name, recording, family, golden_checkpoint, tmp_path
):
    folder = Path(shutil.copytree(golden_checkpoint(recording), tmp_path / "model"))
    entries(model_type=name)(folder)
    assert OCRSession.load(str(folder), device="cpu").family.name == family


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The built-in model, whose layout is that which transformers saves; to be changed."""
    folder = tmp_path / "saved"
    folder.mkdir()
    for file in asset("data", "tiny").iterdir():
        if file.name == WEIGHTS:
            (folder / WEIGHTS).symlink_to(file)
        else:
            shutil.copy(file, folder / file.name)
    return folder


@pytest.mark.parametrize("name", [*NAMES, "unlimited_ocr"])
def test_a_saved_layout_loads_by_its_parts(name, saved):
    entries(model_type=name)(saved)
    session = OCRSession.load(str(saved), device="cpu")
    assert session.family.name == "deepseek-ocr"
    assert set(session.model.config.text_config.layer_types) == {"full_attention"}


OTHERS: dict[str, tuple[Change, tuple[str, ...], tuple[str, ...]]] = {
    "another maker": (
        entries(model_type="llama"),
        ("'llama'", "vision parts clip-l-14-224, sam_vit_b:"),
        (),
    ),
    "no model_type": (entries(model_type=None), ("a model without model_type",), ("None",)),
    "DeepSeek-VL2 itself": (
        entries(
            model_type="deepseek_vl_v2", vision_config={"model_name": "siglip_so400m_patch14_384"}
        ),
        ("'deepseek_vl_v2'", "no vision parts"),
        (),
    ),
    "another encoder": (
        entries(model_type="deepseekocr", vision_config={"width": {"siglip": {}, "sam_vit_b": {}}}),
        ("'deepseekocr'", "vision parts sam_vit_b, siglip:"),
        (),
    ),
    "a language model": (
        entries(model_type="deepseek_v3", vision_config=None),
        ("no vision parts",),
        (),
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_another_model_is_refused_with_what_its_file_says(case, folder):
    change, words, unsaid = OTHERS[case]
    change(folder)
    described = sentence_on(folder).partition("what can be loaded")[0]
    for word in words:
        assert word in described
    for word in ("attention", "layer_types", *unsaid):
        assert word not in described


def test_a_saved_layout_without_its_kind_of_attention_is_refused(saved):
    config = json.loads((saved / CONFIG).read_text()) | {"model_type": "deepseekocr"}
    del config["text_config"]["layer_types"]
    (saved / CONFIG).write_text(json.dumps(config))
    assert "no layer_types in its text_config" in sentence_on(saved)


def test_the_tokenizer_of_another_version_is_named_with_the_version_here(folder):
    import tokenizers

    newer_tokenizer("pre_tokenizer")(folder)
    with pytest.raises(OcrPhasesError, match=f"tokenizers {tokenizers.__version__}, which is here"):
        load_tokenizer(folder)
