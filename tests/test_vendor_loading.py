"""Loading the published remote-code class: opt-in, pinned, else refused in one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from golden_cases import noise
from vendor_standin import CODE, CUDA_CALL, CUDA_IMAGES, RULES, copy_of

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.cli import main
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.weights import choose_attention
from ocr_phases.settings import ModelSettings

PAGE = Path(__file__).parents[1] / "data" / "pages" / "slide.png"
QUICK = {"preset": "tiny", "repeats": 1, "warmup": 0, "ceilings": False}
pytestmark = pytest.mark.usefixtures("remote_code")


def refuse(message: str, name: str | Path, **options: Any) -> None:
    with pytest.raises(OcrPhasesError, match=message) as caught:
        OCRSession.load(str(name), **{"device": "cpu", **options})
    assert "\n" not in str(caught.value)


def test_remote_code_is_opt_in(standin, tmp_path):
    refuse("trust_remote_code=True", standin, implementation="vendor")
    for name, message in (
        ("tiny", "tiny has no vendor class"),
        ("dummy", "dummy has no vendor class"),
        (standin / "config.json", "is a file"),
        (tmp_path, "no config.json"),
        ("no such folder", "There is no model"),
    ):
        refuse(message, name, **RULES)
    for revision in (None, "main", "abc123", "A" * 40, "a" * 41):
        refuse("40-digit commit hash", "some-org/some-model", revision=revision, **RULES)


def test_a_pinned_hub_id_fetches_code_too(standin, tmp_path, monkeypatch):
    import huggingface_hub

    commit = "0123456789abcdef" * 2 + "01234567"
    snapshot = shutil.copytree(standin, tmp_path / commit)

    def fetched(name: str, *, revision: str, allow_patterns: list[str], local_files_only: bool) -> str:
        assert (name, revision) == ("some-org/some-model", commit)
        assert allow_patterns == ["*.json", "*.safetensors", "*.py"]
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *a, **k: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    session = OCRSession.load("some-org/some-model", device="cpu", revision=commit, **RULES)
    assert session.checkpoint.revision == commit
    assert session.checkpoint.name == "some-org/some-model"


def test_the_code_is_part_of_a_folder_s_revision(standin, tmp_path):
    import transformers.dynamic_module_utils as machinery

    def revision(where: Path) -> str:
        return OCRSession.load(str(where), device="cpu", **RULES).checkpoint.revision

    edited = copy_of(standin, tmp_path / "edited", deepencoder=("/ 8)", "/ 8.0)"))
    assert revision(standin) == revision(shutil.copytree(standin, tmp_path / "same")) != revision(edited)
    assert any(Path(machinery.HF_MODULES_CACHE).rglob("deepencoder.py"))


HERE = transformers.__version__
OUTDATED = (
    "s code is not made for transformers 4.46.3, which is here"
    if HERE == "4.46.3"
    else f" is not made for transformers {HERE}, so install transformers==4.46.3 tokenizers==0.20.3"
)
MODEL, ENCODER = "modeling_deepseekocr", "deepencoder"
NO_OPERATOR = 'raise RuntimeError("operator torchvision::nms does not exist")\nclass Sam'
CUDA = (
    r"moves tensors to a GPU by itself \(.cuda\(\) in {}.py, line \d+\), so it cannot run on a CPU: "
    'use device cuda, native, or cuda_calls="ignore"'
)
#: Changes of the class's files, each a text and what takes its place, and how that is refused.
BROKEN: dict[str, tuple[dict[str, tuple[str, str]], str]] = {
    "a CUDA call": ({MODEL: CUDA_CALL}, CUDA.format(MODEL)),
    "CUDA images": ({ENCODER: CUDA_IMAGES}, CUDA.format(ENCODER)),
    "elsewhere": ({"config": ('"AutoModel": "', '"AutoModel": "other/repo--')}, "code of another repository"),
    "unnamed": ({"config": ('"auto_map"', '"other_map"')}, "names no model class"),
    "outdated": (
        {MODEL: ("import LlamaConfig,", "import NoSuchClass, LlamaConfig,")},
        rf"cannot be imported \(cannot import name 'NoSuchClass'.*: it{OUTDATED}",
    ),
    "lonely": (
        {ENCODER: ("import torch\n", "import no_such_module, torch\n")},
        r"'no_such_module'\): install the module no_such_module .*constraints-4.46.txt addict",
    ),
    "partial": (
        {MODEL: ("from .deepencoder", "from .vision")},
        r"\(No module named 'vision'\): put the checkpoint's own \*.py files there",
    ),
    "pair": (
        {ENCODER: ("class Sam", NO_OPERATOR)},
        r"torchvision::nms.*\): torchvision and torch must be made for each other, so pip install -c",
    ),
    "typo": ({ENCODER: ("class Sam(", "class Sam((")}, "own .*py files there, unchanged"),
    "renamed": (
        {"config": ('"model_type"', '"renamed"'), MODEL: ("class DeepseekOCRForCausalLM", "class Other")},
        "DeepseekOCRForCausalLM.*own .*py files there, unchanged",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_code_that_cannot_run_here_is_refused(name, standin, tmp_path):
    changes, message = BROKEN[name]
    refuse(message, copy_of(standin, tmp_path / name.replace(" ", "-"), **changes), **RULES)


def test_code_that_is_missing_is_refused(standin, tmp_path):
    bare = copy_of(standin, tmp_path / "bare")
    for name in CODE:
        (bare / name).unlink()
    refuse(r"has no modeling_deepseekocr.py: put the checkpoint's \*.py files", bare, **RULES)


def test_each_folder_runs_its_own_code(standin, tmp_path):
    """Of the same name, one with a dot; their siblings differ, and so do their tokens."""
    page = noise(300, 500)

    def tokens(where: Path) -> list[int]:
        session = OCRSession.load(str(where), device="cpu", **RULES)
        return session.run_inference(page, max_new_tokens=8, **QUICK).result["ids"]

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    change = {"deepencoder": ("(images) / 8", "(images) * 8")}
    first = copy_of(standin, tmp_path / "a" / "ckpt.v1")
    second = copy_of(standin, tmp_path / "b" / "ckpt.v1", **change)
    alone = copy_of(standin, tmp_path / "alone", **change)
    assert tokens(first) != tokens(second) == tokens(alone)
    broken = first / "deepencoder.py"
    broken.write_text(broken.read_text().replace(*CUDA_IMAGES))  # the folder's code of now, not of before
    refuse("in deepencoder.py, line", first, **RULES)


def test_attention_is_chosen(standin, monkeypatch):
    for options, message in (
        ({"attention": "flash_attention_2"}, "'flash_attention_2' needs a CUDA device, this is cpu"),
        ({"attention": "fast"}, "Unknown attention 'fast': use eager, sdpa or flash_attention_2"),
        ({"cuda_calls": "drop"}, "Unknown cuda_calls 'drop': use refuse or ignore"),
        ({"implementation": "remote"}, "Unknown implementation 'remote'"),
    ):
        refuse(message, standin, **{**RULES, **options})
    session = OCRSession.from_local(standin, device="cpu", attention="eager", **RULES)
    assert session.model.config._attn_implementation == "eager"

    class Published:
        _supports_sdpa = False

    def chosen(asked: Any, dtype: Any = torch.bfloat16) -> str:
        return choose_attention(Published, ModelSettings(device="cuda", dtype=dtype, attention=asked))

    assert chosen(None) == "eager"
    for asked, dtype, message in (
        ("sdpa", torch.bfloat16, "Published has no SDPA"),
        ("flash_attention_2", torch.float32, "needs bfloat16 or float16"),
        ("flash_attention_2", torch.bfloat16, "package flash_attn, which is not installed"),
    ):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(OcrPhasesError, match=message):
            chosen(asked, dtype)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert chosen("flash_attention_2") == "flash_attention_2"


def test_a_folder_named_by_a_dot_has_a_name(standin, monkeypatch):
    monkeypatch.chdir(standin)
    checkpoint = OCRSession.load(".", device="cpu", **RULES).checkpoint
    assert (checkpoint.name, checkpoint.source) == ("standin", str(standin))


@pytest.mark.skipif(transformers_version() < (5, 20), reason="here the native class is not there")
def test_native_takes_none_of_the_class_s_options(standin):
    refuse('cuda_calls is for implementation="vendor"', standin, cuda_calls="ignore")
    refuse("needs a CUDA device", "tiny", device="cpu", attention="flash_attention_2")


def test_weights_that_do_not_fit_are_refused(standin, tmp_path):
    from safetensors.torch import load_file, save_file

    broken = copy_of(standin, tmp_path / "weights")
    weights = load_file(broken / "model.safetensors")
    save_file({**weights, "model.extra": torch.ones(1)}, broken / "model.safetensors", {"format": "pt"})
    refuse("unexpected keys: model.extra", broken, **RULES)
    del weights["model.norm.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    refuse("missing keys: model.norm.weight", broken, **RULES)


@pytest.mark.skipif(transformers_version() >= (5, 20), reason="here the native class is there")
def test_native_is_refused_in_a_sentence_with_old_transformers():
    refuse("native model needs transformers >= 5.20, here is 4.46.3: upgrade", "tiny")


def test_the_command_line_measures_the_vendor_s_class_and_warns_once(standin, tmp_path, capsys):
    page, quick = str(PAGE), ["--max-new-tokens", "3", "--warmup", "0", "--no-ceilings", "--device", "cpu"]
    command = ["verify", page, "--model", str(standin), "--implementation", "vendor", *quick]
    assert main(command) == 2
    assert "--trust-remote-code" in capsys.readouterr().err
    target = tmp_path / "run.json"
    assert main([*command, "--trust-remote-code", "--save", str(target)]) in (0, 1)
    assert capsys.readouterr().err.count("Warning: this runs the Python files of") == 1
    assert PhaseRun.load(target).model["implementation"] == "vendor"
    again = ["profile", "--from", str(target), "--save", str(tmp_path / "again.json"), "--no-ceilings"]
    assert main(again) == 2
    capsys.readouterr()
    assert main([*again, "--trust-remote-code"]) == 0
    assert capsys.readouterr().err.count("Warning: this runs the Python files of") == 1
