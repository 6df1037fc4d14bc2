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

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
GENERATION = "generation_config.json"
INDEX = "model.safetensors.index.json"
#: The weights of a linear layer.
LINEAR = "model.layers.0.mlp.down_proj.weight"
PAGE = str(GOLDEN / "pages" / "small_400x300.png")
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 6672547120\n"
)
FROM_MODEL = "OCRSession.from_model(model, tokenizer)"

Weights = dict[str, torch.Tensor]
#: What is done to a checkpoint's folder.
Change = Callable[[Path], object]
#: What the sentence on such a folder must say.
Words = tuple[str, ...]


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
    """Several changes, one after the other."""

    def change(folder: Path) -> None:
        for change_once in changes:
            change_once(folder)

    return change


def write_file(name: str, content: bytes) -> Change:
    """Write a file, in place of one that may be there."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return change


def set_entries(**entries: Any) -> Change:
    """Set entries of config.json; one that is None is taken out."""

    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text()) | entries
        kept = {name: value for name, value in config.items() if value is not None}
        (folder / CONFIG).write_text(json.dumps(kept))

    return change


def set_entries_of_part(part: str, **entries: Any) -> Change:
    """Set entries of a part of config.json."""

    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        config[part] |= entries
        (folder / CONFIG).write_text(json.dumps(config))

    return change


def remove_files(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def change_weights(change_all: Callable[[Weights], Weights], **metadata: str) -> Change:
    """Write the weights again as ``change_all`` makes them, with more metadata in their header."""

    def change(folder: Path) -> None:
        weights = change_all(load_file(folder / WEIGHTS))
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"} | metadata)

    return change


def store_linear_as(dtype: torch.dtype) -> Change:
    """Store the weights of the linear layer as another dtype."""
    return change_weights(lambda weights: weights | {LINEAR: weights[LINEAR].to(dtype)})


def add_to_linear(suffix: str) -> Change:
    """Add a tensor that belongs to the linear layer."""
    name = LINEAR.removesuffix("weight") + suffix
    return change_weights(lambda weights: weights | {name: torch.ones(1)})


def rename_tensors(old: str, new: str) -> Change:
    """Write ``new`` for ``old`` in the name of each tensor."""

    def rename(weights: Weights) -> Weights:
        return {name.replace(old, new): value for name, value in weights.items()}

    return change_weights(rename)


def prefix_tensors(prefix: str) -> Change:
    """Put a prefix before the name of each tensor."""

    def rename(weights: Weights) -> Weights:
        return {prefix + name: value for name, value in weights.items()}

    return change_weights(rename)


def leave_a_lora(weights: Weights) -> Weights:
    """A tensor of a LoRA in place of all weights."""
    layer = LINEAR.removesuffix(".weight")
    return {f"base_model.model.{layer}.lora_A.weight": torch.zeros(2, 2)}


def move_weights_to(name: str) -> Change:
    """Give the file of the weights another name."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / name)

    return change


def replace_weights_by(name: str) -> Change:
    """Put a file of another format in the place of the weights."""
    return all_of(remove_files(WEIGHTS), write_file(name, b"GGUF\0\0\0\3"))


def move_into(below: str) -> Change:
    """Move the checkpoint into a folder of the one that is named."""

    def change(folder: Path) -> None:
        aside = folder.rename(folder.with_name("aside"))
        (folder / below).parent.mkdir(parents=True)
        aside.rename(folder / below)

    return change


def copy_checkpoint_500(folder: Path) -> None:
    shutil.copytree(folder / "checkpoint-500", folder / "checkpoint-1000")


def remove_all(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def cut_file(name: str, left: int) -> Change:
    """Leave so many bytes of a file."""

    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:left])

    return change


def shard_file(number: int) -> str:
    return f"model-{number:05}-of-00003.safetensors"


def shard_weights(*written: int) -> Change:
    """Divide the weights into three files with an index, of which only those ``written`` are
    there.
    """

    def change(folder: Path) -> None:
        weights = load_file(folder / WEIGHTS)
        file_of = {name: shard_file(place % 3 + 1) for place, name in enumerate(sorted(weights))}
        (folder / WEIGHTS).unlink()
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": file_of}))
        for number in written:
            file = shard_file(number)
            shard = {name: weights[name] for name in file_of if file_of[name] == file}
            save_file(shard, folder / file, metadata={"format": "pt"})

    return change


def link_to_nothing(name: str) -> Change:
    """Put a link in the place of a file that leads nowhere."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to("../../blobs/0123")

    return change


def set_newer_part(part: str) -> Change:
    """Write a kind of a tokenizer's part that no library knows yet."""

    def change(folder: Path) -> None:
        content = json.loads((folder / TOKENIZER).read_text())
        content[part] = {"type": "OfTheFuture", "level": 2}
        (folder / TOKENIZER).write_text(json.dumps(content))

    return change


LORA_CONFIG = json.dumps(
    {"peft_type": "LORA", "base_model_name_or_path": "deepseek-ai/DeepSeek-OCR", "r": 16}
).encode()


# -- quantised weights -----------------------------------------------------------------------------

PLAIN = "plain BF16"
BLOCKS = {"activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QUANTISED: dict[str, tuple[Change, Words]] = {
    "fp8": (
        set_entries(quantization_config={"quant_method": "fp8"} | BLOCKS),
        ("quantization_config: fp8", PLAIN),
    ),
    "bitsandbytes 4": (
        set_entries(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("bitsandbytes, 4 bits", PLAIN),
    ),
    "bitsandbytes 8": (
        set_entries(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
        ("bitsandbytes, 8 bits",),
    ),
    "awq": (set_entries(quantization_config={"quant_method": "awq", "bits": 4}), ("awq, 4 bits",)),
    "gptq": (
        set_entries(quantization_config={"quant_method": "gptq", "bits": 8}),
        ("gptq, 8 bits",),
    ),
    "compressed-tensors": (
        set_entries(
            quantization_config={"quant_method": "compressed-tensors", "config_groups": {}}
        ),
        ("compressed-tensors",),
    ),
    "an older compressed-tensors": (
        set_entries(compression_config={"format": "int-quantized"}),
        ("int-quantized",),
    ),
    "torchao": (
        set_entries(quantization_config={"quant_method": "torchao", "quant_type": {"default": {}}}),
        ("torchao",),
    ),
    "mxfp4": (set_entries(quantization_config={"quant_method": "mxfp4"}), ("mxfp4",)),
    "modelopt": (set_entries(quantization_config={"quant_algo": "NVFP4"}), ("NVFP4",)),
    "mlx": (
        set_entries(quantization={"group_size": 64, "bits": 8}),
        ("quantization: MLX, 8 bits", PLAIN),
    ),
    "no object": (set_entries(quantization_config="int8"), ("'int8'",)),
    "in a part": (
        set_entries_of_part("language_config", quantization_config={"quant_method": "hqq"}),
        ("language_config.quantization_config: hqq",),
    ),
    "a file of gptq": (
        write_file("quantize_config.json", b'{"bits": 4}'),
        ("quantize_config.json", PLAIN),
    ),
    "a file of awq": (write_file("quant_config.json", b'{"w_bit": 4}'), ("quant_config.json",)),
    "a file of modelopt": (write_file("hf_quant_config.json", b"{}"), ("hf_quant_config.json",)),
    "a file of quanto": (write_file("quanto_qmap.json", b"{}"), ("quanto_qmap.json",)),
    "config and tensors": (
        all_of(
            set_entries(quantization_config={"quant_method": "fp8"}),
            add_to_linear("weight_scale_inv"),
        ),
        ("quantization_config: fp8",),
    ),
}
for _suffix in (
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
):
    QUANTISED[f"a tensor {_suffix}"] = (
        add_to_linear(_suffix),
        (LINEAR.removesuffix("weight") + _suffix,),
    )
for _dtype, _name in {
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int32: "I32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}.items():
    QUANTISED[f"stored as {_name}"] = (
        store_linear_as(_dtype),
        (f"{LINEAR} is stored as {_name}",),
    )


@pytest.mark.parametrize(("change", "words"), QUANTISED.values(), ids=QUANTISED)
def test_quantised_weights_are_refused_by_name(change: Change, words: Words, folder: Path) -> None:
    change(folder)
    sentence = sentence_on(folder)
    for word in (*words, "quantised", FROM_MODEL, "float32, bfloat16 or float16"):
        assert word in sentence
    if PLAIN in words:
        assert "to measure these" in sentence


@pytest.mark.parametrize("value", [None, {}, False])
def test_an_entry_that_quantises_nothing_is_none(value: object, folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text()) | {"quantization_config": value}
    (folder / CONFIG).write_text(json.dumps(config))
    assert OCRSession.load(str(folder), device="cpu").checkpoint.dtype == torch.float32


def test_a_dry_run_refuses_quantised_weights_too(folder: Path) -> None:
    quantise = set_entries(quantization_config={"quant_method": "awq", "bits": 4})
    quantise(folder)
    with pytest.raises(OcrPhasesError, match="awq, 4 bits"):
        fit(PAGE, Settings(model=str(folder), device="cpu"))


def test_weights_of_other_floats_and_integer_buffers_load(folder: Path) -> None:
    def store_as_other_floats(weights: Weights) -> Weights:
        weights[LINEAR] = weights[LINEAR].to(torch.float16)
        weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.float64)
        return weights

    before = OCRSession.load(str(folder), device="cpu").model.state_dict()
    change_weights(store_as_other_floats)(folder)

    after = OCRSession.load(str(folder), device="cpu").model.state_dict()

    for name, tensor in before.items():
        assert torch.allclose(tensor, after[name], atol=1e-4)


# -- cards before Ampere ---------------------------------------------------------------------------


class CurrentDevice:
    """Stands in for the block of code in which a device is torch's current one."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, *problem: object) -> None:
        pass


SeesCard = Callable[[str, int], None]


@pytest.fixture
def sees_card(monkeypatch: pytest.MonkeyPatch) -> SeesCard:
    """A function that lets torch see a CUDA device of this name and compute capability."""

    def see(name: str, major: int) -> None:
        properties = SimpleNamespace(
            name=name, major=major, total_memory=16 << 30, multi_processor_count=40
        )
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "device", CurrentDevice)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return see


def has_card_note(dtype: torch.dtype) -> bool:
    """Whether a check says what this dtype means on the card."""
    return bool(card_dtype("cuda", dtype, autocast=False))


#: Cards and their major compute capability.
CARDS_BEFORE_AMPERE = [("Tesla P100", 6), ("Tesla V100", 7), ("Tesla T4", 7)]
NEWER_CARDS = [("A100", 8), ("RTX 4090", 8), ("H100", 9), ("B200", 10)]


@pytest.mark.parametrize(("name", "major"), CARDS_BEFORE_AMPERE)
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cards_before_ampere_get_float16_and_a_note(
    name: str, major: int, device: str, sees_card: SeesCard
) -> None:
    sees_card(name, major)
    assert resolve_dtype(None, device) is torch.float16
    assert has_card_note(torch.float16)


@pytest.mark.parametrize(("name", "major"), NEWER_CARDS)
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_newer_cards_get_bfloat16_and_no_note(
    name: str, major: int, device: str, sees_card: SeesCard
) -> None:
    sees_card(name, major)
    assert resolve_dtype(None, device) is torch.bfloat16
    assert not has_card_note(torch.float16)


@pytest.mark.parametrize(("name", "major"), [*CARDS_BEFORE_AMPERE, *NEWER_CARDS])
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_dtype_that_is_asked_for_is_had_on_any_card(
    name: str, major: int, device: str, sees_card: SeesCard
) -> None:
    sees_card(name, major)
    assert resolve_dtype("bfloat16", device) is torch.bfloat16
    assert resolve_dtype("float32", device) is torch.float32


def test_a_cpu_gets_float32_and_no_note() -> None:
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
def test_a_note_says_what_the_dtype_means_on_an_old_card(
    dtype: torch.dtype, autocast: bool, words: str, sees_card: SeesCard
) -> None:
    sees_card("Tesla T4", 7)

    (check,) = card_dtype("cuda", dtype, autocast)

    assert check.name == "card_dtype"
    assert check.verdict == "note"
    assert check.measured.startswith("Tesla T4 does not compute with bfloat16 itself")
    assert words in check.measured


def test_the_note_on_an_old_card_is_in_the_record(
    golden_session: OCRSession, sees_card: SeesCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def card_dtype_of_cuda(device: str, *rest: Any) -> list[Any]:
        """What this machine has not, the check is told: the run itself is the CPU's."""
        return card_dtype("cuda", *rest)

    sees_card("Tesla V100", 7)
    monkeypatch.setattr(live_checks, "card_dtype", card_dtype_of_cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    run = golden_session.run_inference(PAGE, preset="tiny", max_new_tokens=2, repeats=1, warmup=0)

    (check,) = (check for check in run_checks(run) if check.name == "card_dtype")
    assert check.verdict == "note"
    assert check.measured.startswith("Tesla V100 does not compute with bfloat16 itself")
    assert "float16" in check.why
    assert "dtype float32" in check.fix


# -- folders of the wild ---------------------------------------------------------------------------

MERGE = ("merge_and_unload()", FROM_MODEL)
PICKLE = ("pickle", "never opened", "safetensors", FROM_MODEL)
AGAIN = "download that file again"
WILD: dict[str, tuple[Change, Words]] = {
    # adapters and merged weights
    "a LoRA alone": (
        all_of(
            remove_files(CONFIG, WEIGHTS),
            write_file("adapter_config.json", LORA_CONFIG),
            write_file("adapter_model.safetensors", b""),
        ),
        ("adapter", "LoRA", "adapter_config.json", *MERGE),
    ),
    "a LoRA with a config": (
        all_of(
            move_weights_to("adapter_model.safetensors"),
            write_file("adapter_config.json", LORA_CONFIG),
        ),
        ("adapter", *MERGE),
    ),
    "a pickled LoRA": (
        all_of(remove_files(CONFIG, WEIGHTS), write_file("adapter_model.bin", b"x")),
        ("adapter_model.bin", *MERGE),
    ),
    "a LoRA beside whole weights": (
        all_of(
            write_file("adapter_config.json", LORA_CONFIG),
            write_file("adapter_model.safetensors", b""),
        ),
        (
            "beside whole weights",
            "remove adapter_config.json and adapter_model.safetensors",
            *MERGE,
        ),
    ),
    "a LoRA's tensors": (
        change_weights(leave_a_lora),
        ("lora_A", "not merged", *MERGE),
    ),
    "base layers": (
        rename_tensors("down_proj.", "down_proj.base_layer."),
        ("not merged", *MERGE),
    ),
    "a DoRA": (add_to_linear("lora_magnitude_vector"), ("not merged", *MERGE)),
    "prefix of peft": (
        prefix_tensors("base_model.model."),
        ("base_model.model.", "peft", *MERGE),
    ),
    "prefix of DataParallel": (
        prefix_tensors("module."),
        ("module.", "DataParallel", FROM_MODEL),
    ),
    "prefix of compile": (
        prefix_tensors("_orig_mod."),
        ("_orig_mod.", "torch.compile", FROM_MODEL),
    ),
    "compiled inside": (
        rename_tensors("model.layers", "model._orig_mod.layers"),
        ("_orig_mod.", "torch.compile", FROM_MODEL),
    ),
    "prefix of FSDP": (prefix_tensors("_fsdp_wrapped_module."), ("FSDP", FROM_MODEL)),
    "both prefixes": (prefix_tensors("module._orig_mod."), ("_orig_mod.", FROM_MODEL)),
    "model twice": (prefix_tensors("model."), ("model.model.", FROM_MODEL)),
    "a prefix of their own": (prefix_tensors("student.net."), ("student.net.", FROM_MODEL)),
    "written by MLX": (change_weights(dict, format="mlx"), ("MLX", "made from")),
    # pointers, damage
    "a pointer for weights": (
        write_file(WEIGHTS, POINTER),
        (WEIGHTS, "Git LFS pointer", "git lfs pull"),
    ),
    "a pointer for the tokenizer": (
        write_file(TOKENIZER, POINTER),
        (TOKENIZER, "Git LFS pointer", "git lfs pull"),
    ),
    "a pointer for the config": (
        write_file(CONFIG, POINTER),
        (CONFIG, "Git LFS pointer", "git lfs pull"),
    ),
    "a pointer for generation": (
        write_file(GENERATION, POINTER),
        (GENERATION, "Git LFS pointer", "git lfs pull"),
    ),
    "a pointer for the index": (
        write_file(INDEX, POINTER),
        (INDEX, "Git LFS pointer", "git lfs pull"),
    ),
    "a pointer for labels": (
        write_file("tokenizer_config.json", POINTER),
        ("tokenizer_config.json", "Git LFS pointer", "git lfs pull"),
    ),
    "an old pointer": (
        write_file(WEIGHTS, POINTER.replace(b"git-lfs.github", b"hawser.github")),
        ("git lfs pull",),
    ),
    "git-annex": (write_file(WEIGHTS, b"/annex/objects/SHA256E-s19--0"), ("git annex get",)),
    "a web page": (write_file(CONFIG, b"<!DOCTYPE html>\n<html>"), (CONFIG, "web page", AGAIN)),
    "a web page of weights": (
        write_file(WEIGHTS, b"\n<html><body>Not found"),
        (WEIGHTS, "web page", AGAIN),
    ),
    "empty weights": (write_file(WEIGHTS, b""), (WEIGHTS, "is empty", AGAIN)),
    "an empty config": (write_file(CONFIG, b""), (CONFIG, "is empty", AGAIN)),
    "an empty tokenizer": (write_file(TOKENIZER, b""), (TOKENIZER, "is empty", AGAIN)),
    "weights cut": (cut_file(WEIGHTS, 200_000), (WEIGHTS, "cut short", "200 kB of", AGAIN)),
    "a header cut": (cut_file(WEIGHTS, 900), (WEIGHTS, "cut short", AGAIN)),
    "five bytes": (cut_file(WEIGHTS, 5), (WEIGHTS, AGAIN)),
    "a config cut": (cut_file(CONFIG, 100), (CONFIG, "JSON", "published checkpoint")),
    "a tokenizer cut": (cut_file(TOKENIZER, 1000), (TOKENIZER, "published checkpoint")),
    "a pickle by the wrong name": (
        write_file(WEIGHTS, b"PK\x03\x04" + b"\0" * 64),
        (WEIGHTS, "pickled"),
    ),
    "GGUF by the wrong name": (write_file(WEIGHTS, b"GGUF" + b"\0" * 64), (WEIGHTS, "GGUF")),
    # tokenizers
    "a newer tokenizer": (
        set_newer_part("pre_tokenizer"),
        (TOKENIZER, "pip install -U tokenizers", "newer"),
    ),
    "a newer decoder": (
        set_newer_part("decoder"),
        (TOKENIZER, "pip install -U tokenizers", "newer"),
    ),
    "a newer model": (set_newer_part("model"), (TOKENIZER, "pip install -U tokenizers", "newer")),
    "a newer normalizer": (
        set_newer_part("normalizer"),
        (TOKENIZER, "pip install -U tokenizers", "newer"),
    ),
    "only tokenizer.model": (
        all_of(remove_files(TOKENIZER), write_file("tokenizer.model", b"x")),
        (TOKENIZER, "published checkpoint", "tokenizer.model"),
    ),
    # other formats
    "GGUF": (
        replace_weights_by("deepseek-ocr-q8_0.gguf"),
        ("deepseek-ocr-q8_0.gguf", "llama.cpp", "safetensors"),
    ),
    "GGUF alone": (
        all_of(replace_weights_by("q8_0.gguf"), remove_files(CONFIG)),
        ("q8_0.gguf", "llama.cpp", "safetensors"),
    ),
    "ONNX": (replace_weights_by("decoder.onnx"), ("decoder.onnx", "ONNX", "safetensors")),
    "NumPy": (replace_weights_by("weights.npz"), ("weights.npz", "safetensors")),
    "TensorFlow": (replace_weights_by("tf_model.h5"), ("tf_model.h5", "safetensors")),
    "an archive": (
        all_of(replace_weights_by("model.tar.gz"), remove_files(CONFIG)),
        ("model.tar.gz", "unpack"),
    ),
    "a download at work": (
        replace_weights_by("model.safetensors.incomplete"),
        ("not finished", "hf download"),
    ),
    "a pickle .bin": (replace_weights_by("pytorch_model.bin"), ("pytorch_model.bin", *PICKLE)),
    "a pickle .pt": (replace_weights_by("model.pt"), ("model.pt", *PICKLE)),
    "a pickle .pth": (replace_weights_by("consolidated.00.pth"), ("consolidated.00.pth", *PICKLE)),
    "a pickle .ckpt": (replace_weights_by("epoch=3.ckpt"), ("epoch=3.ckpt", *PICKLE)),
    "pickles without a config": (
        all_of(replace_weights_by("model.pt"), remove_files(CONFIG)),
        ("model.pt", *PICKLE),
    ),
    "no weights": (remove_files(WEIGHTS), ("no *.safetensors file", "download")),
    "weights without a config": (remove_files(CONFIG), ("no config.json", "beside the weights")),
    # folders
    "an empty folder": (remove_all, ("is empty", "name the folder")),
    "one level too high": (move_into("checkpoint-500"), ("checkpoint-500", "name that")),
    "two levels too high": (move_into("runs/final"), ("runs/final", "name that")),
    "a repository of the cache": (
        move_into("snapshots/0123abcd"),
        ("snapshots/0123abcd", "name that"),
    ),
    "the hub's cache": (
        move_into("models--deepseek-ai--DeepSeek-OCR/snapshots/0123abcd"),
        ("models--deepseek-ai--DeepSeek-OCR/snapshots/0123abcd", "name that"),
    ),
    "a cache without a download": (
        all_of(remove_all, write_file("models--a--b/refs/main", b"0123")),
        ("hub's cache", "hub id"),
    ),
    "several inside": (
        all_of(
            move_into("checkpoint-500"),
            copy_checkpoint_500,
        ),
        ("checkpoint-1000, checkpoint-500", "name one of them"),
    ),
    "weights one level below": (
        all_of(write_file("weights/x", b""), move_weights_to("weights/model.safetensors")),
        ("weights", "beside config.json"),
    ),
    "a config that links to nothing": (link_to_nothing(CONFIG), (CONFIG, "link", "download")),
    "weights that link to nothing": (link_to_nothing(WEIGHTS), (WEIGHTS, "link", "download")),
    # parts of weights
    "an index without its shards": (
        shard_weights(),
        ("index", "model-00001-of-00003.safetensors", "3 files of 3"),
    ),
    "a shard is missing": (
        shard_weights(1, 3),
        ("model-00002-of-00003.safetensors", "index", "1 file of 3"),
    ),
    "shards without an index": (
        all_of(shard_weights(1, 2, 3), remove_files(INDEX)),
        (INDEX, "download"),
    ),
    "two of three without an index": (
        all_of(shard_weights(1, 2), remove_files(INDEX)),
        (INDEX, "1 file of its 3"),
    ),
    "weights by another name": (
        move_weights_to("consolidated.safetensors"),
        ("consolidated.safetensors", WEIGHTS),
    ),
}


@pytest.mark.parametrize(("change", "words"), WILD.values(), ids=WILD)
def test_a_folder_of_the_wild_is_told_what_to_do(
    change: Change, words: Words, folder: Path
) -> None:
    change(folder)
    sentence = sentence_on(folder)
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param(WEIGHTS, ("name the checkpoint's folder", "model."), id="weights"),
        pytest.param("q4.gguf", ("GGUF", "llama.cpp"), id="GGUF"),
        pytest.param("model.pth", ("pickle", "never opened"), id="a pickle"),
        pytest.param("model.zip", ("unpack",), id="an archive"),
        pytest.param("model.onnx", ("ONNX",), id="ONNX"),
    ],
)
def test_a_file_in_the_place_of_a_folder_is_told_what_to_do(
    name: str, words: Words, folder: Path
) -> None:
    if not (folder / name).exists():
        (folder / name).write_bytes(b"x")
    sentence = sentence_on(folder / name)
    for word in ("is a file", *words):
        assert word in sentence


def test_whole_shards_load(folder: Path) -> None:
    shard_weights(1, 2, 3)(folder)
    assert OCRSession.load(str(folder), device="cpu").model


def test_a_second_copy_beside_is_not_asked(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    save_file({"x.scales": torch.ones(1), **weights}, folder / "consolidated.safetensors")
    assert OCRSession.load(str(folder), device="cpu").model


def test_no_pickle_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by torch nor by pickle itself, whatever the files are called."""
    import pickle

    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("a pickle was opened")

    monkeypatch.setattr(torch, "load", fail)
    monkeypatch.setattr(pickle, "load", fail)
    monkeypatch.setattr(pickle, "Unpickler", fail)
    replace_weights_by("pytorch_model.bin")(folder)
    (folder / "model.pt").write_bytes(b"\x80\x04.")

    assert "pickle" in sentence_on(folder)


# -- names of the model ----------------------------------------------------------------------------

#: What people write as ``model_type`` of one model.
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
    name: str,
    recording: Path,
    family: str,
    golden_checkpoint: Callable[[Path], Path],
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(golden_checkpoint(recording), tmp_path / "model"))
    set_entries(model_type=name)(folder)
    assert OCRSession.load(str(folder), device="cpu").family.name == family


@pytest.fixture
def saved_folder(tmp_path: Path) -> Path:
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
def test_a_saved_layout_loads_by_its_parts(name: str, saved_folder: Path) -> None:
    set_entries(model_type=name)(saved_folder)
    session = OCRSession.load(str(saved_folder), device="cpu")
    assert session.family.name == "deepseek-ocr"
    assert set(session.model.config.text_config.layer_types) == {"full_attention"}


@pytest.mark.parametrize(
    ("change", "words", "unsaid"),
    [
        pytest.param(
            set_entries(model_type="llama"),
            ("'llama'", "vision parts clip-l-14-224, sam_vit_b:"),
            (),
            id="another maker",
        ),
        pytest.param(
            set_entries(model_type=None),
            ("a model without model_type",),
            ("None",),
            id="no model_type",
        ),
        pytest.param(
            set_entries(
                model_type="deepseek_vl_v2",
                vision_config={"model_name": "siglip_so400m_patch14_384"},
            ),
            ("'deepseek_vl_v2'", "no vision parts"),
            (),
            id="DeepSeek-VL2 itself",
        ),
        pytest.param(
            set_entries(
                model_type="deepseekocr", vision_config={"width": {"siglip": {}, "sam_vit_b": {}}}
            ),
            ("'deepseekocr'", "vision parts sam_vit_b, siglip:"),
            (),
            id="another encoder",
        ),
        pytest.param(
            set_entries(model_type="deepseek_v3", vision_config=None),
            ("no vision parts",),
            (),
            id="a language model",
        ),
    ],
)
def test_another_model_is_refused_with_what_its_file_says(
    change: Change, words: Words, unsaid: Words, folder: Path
) -> None:
    change(folder)
    description, _, _ = sentence_on(folder).partition("what can be loaded")
    for word in words:
        assert word in description
    for word in ("attention", "layer_types", *unsaid):
        assert word not in description


def test_a_saved_layout_without_its_kind_of_attention_is_refused(saved_folder: Path) -> None:
    config = json.loads((saved_folder / CONFIG).read_text()) | {"model_type": "deepseekocr"}
    del config["text_config"]["layer_types"]
    (saved_folder / CONFIG).write_text(json.dumps(config))
    assert "no layer_types in its text_config" in sentence_on(saved_folder)


def test_the_tokenizer_of_another_version_is_named_with_the_version_here(folder: Path) -> None:
    import tokenizers

    set_newer_part("pre_tokenizer")(folder)
    with pytest.raises(OcrPhasesError, match=f"tokenizers {tokenizers.__version__}, which is here"):
        load_tokenizer(folder)
