"""Loading the published remote-code class: opt-in, pinned, else refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from golden_cases import noise
from refusals import refused
from vendor_standin import CODE, CUDA_CALL, CUDA_IMAGES, RULES, copy_of

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.cli import main
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.weights import choose_attention
from ocr_phases.settings import ModelSettings

PAGE = Path(__file__).parents[1] / "data" / "pages" / "slide.png"
QUICK = {"preset": "tiny", "repeats": 1, "warmup": 0, "ceilings": False}
pytestmark = pytest.mark.usefixtures("remote_code")


def load(name: str | Path, **options: Any) -> OCRSession:
    return OCRSession.load(str(name), **{"device": "cpu", **RULES, **options})


def refuse(name: str | Path, **options: Any) -> None:
    with refused() as caught:
        load(name, **options)
    assert "\n" not in str(caught.value)


def test_remote_code_is_opt_in(standin, tmp_path):
    refuse(standin, trust_remote_code=False)
    (tmp_path / "empty").mkdir()
    for name in ("tiny", "dummy", standin / "config.json", tmp_path / "empty", "no such folder"):
        refuse(name)
    for revision in (None, "main", "abc123", "A" * 40, "a" * 41):
        refuse("some-org/some-model", revision=revision)


MODEL, ENCODER = "modeling_deepseekocr", "deepencoder"
NO_OPERATOR = 'raise RuntimeError("operator torchvision::nms does not exist")\nclass Sam'
#: Changes of the class's files, each a text and what takes its place.
BROKEN: dict[str, dict[str, tuple[str, str]]] = {
    "a CUDA call": {MODEL: CUDA_CALL},
    "CUDA images": {ENCODER: CUDA_IMAGES},
    "elsewhere": {"config": ('"AutoModel": "', '"AutoModel": "other/repo--')},
    "unnamed": {"config": ('"auto_map"', '"other_map"')},
    "no module": {ENCODER: ("import torch\n", "import no_such_module, torch\n")},
    "a missing file": {MODEL: ("from .deepencoder", "from .vision")},
    "torchvision": {ENCODER: ("class Sam", NO_OPERATOR)},
    "renamed": {
        "config": ('"model_type"', '"renamed"'),
        MODEL: ("class DeepseekOCRForCausalLM", "class Other"),
    },
}


@pytest.mark.parametrize("name", BROKEN)
def test_code_that_cannot_run_here_is_refused(name, standin, tmp_path):
    refuse(copy_of(standin, tmp_path / "broken", **BROKEN[name]))


def test_code_that_cannot_be_imported_or_is_missing_is_refused(standin, tmp_path):
    outdated = (
        "s code is not made for transformers 4.46.3, which is here"
        if transformers.__version__ == "4.46.3"
        else " is not made for transformers .*, so install transformers==4.46.3 tokenizers==0.20.3"
    )
    for change, message in (
        (("import LlamaConfig,", "import NoSuchClass, LlamaConfig,"), f"cannot import name .*: it{outdated}"),
        (("class DeepseekOCRModel(", "class DeepseekOCRModel(("), "own .*py files there, unchanged"),
    ):
        broken = copy_of(standin, tmp_path / change[0].split()[0], **{MODEL: change})
        with pytest.raises(OcrPhasesError, match=message):
            load(broken)
    for name in CODE:
        (broken / name).unlink()
    refuse(broken)


def test_each_folder_runs_its_own_code(standin, tmp_path, monkeypatch):
    """Of the same name, one with a dot; their siblings differ, and so do their tokens and their revisions."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    change = {"deepencoder": ("(images) / 8", "(images) * 8")}
    first = copy_of(standin, tmp_path / "a" / "ckpt.v1")
    second = copy_of(standin, tmp_path / "b" / "ckpt.v1", **change)
    sessions = [load(folder) for folder in (first, second, copy_of(second, tmp_path / "alone"))]
    runs = [session.run_inference(noise(300, 500), max_new_tokens=8, **QUICK) for session in sessions]
    for one, other, same in (
        [run.result["ids"] for run in runs],
        [run.model["revision"] for run in runs],
    ):
        assert one != other == same
    monkeypatch.chdir(standin)
    here = load(".").checkpoint
    assert (here.name, here.source) == ("standin", str(standin))
    assert here.revision == runs[0].model["revision"]
    broken = first / "deepencoder.py"
    broken.write_text(broken.read_text().replace(*CUDA_IMAGES))  # the folder's code of now, not of before
    refuse(first)


def test_attention_is_chosen(standin, monkeypatch):
    for name, value in (
        ("attention", "flash_attention_2"),
        ("attention", "fast"),
        ("cuda_calls", "drop"),
        ("implementation", "remote"),
    ):
        refuse(standin, **{name: value})
    session = OCRSession.from_local(standin, device="cpu", attention="eager", **RULES)
    assert session.model.config._attn_implementation == "eager"

    class Published:
        _supports_sdpa = False

    def chosen(asked: Any, dtype: Any = torch.bfloat16) -> str:
        return choose_attention(Published, ModelSettings(device="cuda", dtype=dtype, attention=asked))

    assert chosen(None) == "eager"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for asked, dtype in (
        ("sdpa", torch.bfloat16),
        ("flash_attention_2", torch.float32),
        ("flash_attention_2", torch.bfloat16),
    ):
        with refused():
            chosen(asked, dtype)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert chosen("flash_attention_2") == "flash_attention_2"


@pytest.mark.skipif(transformers_version() < (5, 20), reason="here the native class is not there")
def test_native_takes_none_of_the_class_s_options(standin):
    native = {"implementation": "native", "trust_remote_code": False}
    refuse(standin, cuda_calls="ignore", **native)
    refuse("tiny", attention="flash_attention_2", **native)


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
