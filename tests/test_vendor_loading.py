"""Loading the published remote-code class: opt-in, pinned, else refused in one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from vendor_standin import CODE, RULES, copy_of

from ocr_phases import DeepSeekOCRSession, OcrPhasesError
from ocr_phases.measure.folders import transformers_version

pytestmark = pytest.mark.usefixtures("remote_code")


def refuse(message: str, name: str | Path, **options: Any) -> None:
    with pytest.raises(OcrPhasesError, match=message) as caught:
        DeepSeekOCRSession.load(str(name), **{"device": "cpu", **options})
    assert "\n" not in str(caught.value)


def test_remote_code_is_opt_in(standin, tmp_path):
    refuse("trust_remote_code=True", standin, implementation="vendor")
    refuse("Unknown implementation 'remote'", standin, implementation="remote")
    refuse("tiny has no vendor class", "tiny", **RULES)
    refuse("dummy has no vendor class", "dummy", **RULES)
    refuse("is a file", standin / "config.json", **RULES)
    refuse("no config.json", tmp_path, **RULES)
    refuse("There is no model", "no such folder", **RULES)


@pytest.mark.parametrize("revision", [None, "main", "abc123", "A" * 40, "a" * 41])
def test_a_hub_id_needs_a_full_commit(revision):
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
    session = DeepSeekOCRSession.load("some-org/some-model", device="cpu", revision=commit, **RULES)
    assert session.checkpoint.revision == commit
    assert session.checkpoint.name == "some-org/some-model"


def test_the_code_is_part_of_a_folder_s_revision(standin, tmp_path):
    import transformers.dynamic_module_utils as machinery

    def revision(where: Path) -> str:
        return DeepSeekOCRSession.load(str(where), device="cpu", **RULES).checkpoint.revision

    edited = copy_of(standin, tmp_path / "edited", deepencoder=("/ 8)", "/ 8.0)"))
    assert revision(standin) == revision(shutil.copytree(standin, tmp_path / "same")) != revision(edited)
    assert any(Path(machinery.HF_MODULES_CACHE).rglob("deepencoder.py"))


@pytest.mark.parametrize("file", ["modeling_deepseekocr", "deepencoder"])
def test_cuda_calls_in_its_source_are_refused_on_a_cpu(file, standin, tmp_path):
    where = {
        "modeling_deepseekocr": (".to(inputs_embeds.device)", ".cuda()"),
        "deepencoder": ("(images) / 8", "(images.cuda()) / 8"),
    }
    broken = copy_of(standin, tmp_path / f"cuda_{file}", **{file: where[file]})
    refuse(
        rf"cannot run on a CPU.*|moves tensors to a GPU by itself \(.cuda\(\) in {file}.py, line \d+",
        broken,
        **RULES,
    )


def test_code_that_is_missing_elsewhere_or_broken_is_refused(standin, tmp_path):
    cases = {
        "elsewhere": (
            {"config": ('"AutoModel": "', '"AutoModel": "other/repo--')},
            "code of another repository",
        ),
        "unnamed": ({"config": ('"auto_map"', '"other_map"')}, "names no model class"),
        "outdated": (
            {"modeling_deepseekocr": ("import LlamaConfig,", "import NoSuchClass, LlamaConfig,")},
            r"cannot be imported with transformers .*NoSuchClass.*transformers==4.46.3",
        ),
        "renamed": (
            {
                "config": ('"model_type"', '"renamed"'),
                "modeling_deepseekocr": ("class DeepseekOCRForCausalLM", "class Other"),
            },
            "cannot be imported",
        ),
    }
    for name, (changes, message) in cases.items():
        refuse(message, copy_of(standin, tmp_path / name, **changes), **RULES)
    bare = copy_of(standin, tmp_path / "bare")
    for name in CODE:
        (bare / name).unlink()
    refuse(r"has no modeling_deepseekocr.py: put the checkpoint's \*.py files", bare, **RULES)


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
