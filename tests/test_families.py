"""What a family must have, and that a record of each is measured, kept, drawn and compared alike."""

from __future__ import annotations

import contextlib
import copy
import json
import operator
from functools import reduce
from pathlib import Path

import pytest
import torch
from conftest import GOLDEN, GOLDEN_2, PAGES, SMALL_SIZES
from golden_cases import RECORDINGS
from mutants import paths
from refusals import refused

from ocr_phases import OcrPhasesError, OCRSession
from ocr_phases.analyse.checks import run_checks, with_verdict
from ocr_phases.config import read_model_config
from ocr_phases.families import FAMILIES, VISION_STAGES
from ocr_phases.models.weights import dummy_config
from ocr_phases.models.wiring import NATIVES, family_of, native_config
from ocr_phases.settings import SamplingSettings, resolve_infer
from ocr_phases.steps.sampling import Sampler

ROOT = Path(__file__).parents[1]
RECEIPT = PAGES / "receipt.png"
QUICK = {"max_new_tokens": 3, "repeats": 1, "warmup": 0, "ignore_eos": True, "ceilings": False}


# -- the table -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_whole(name: str) -> None:
    facts, family = FAMILIES[name], NATIVES[name]
    assert family.facts is facts and facts.name == name
    assert facts.default_preset in facts.presets
    assert all(preset.name == key for key, preset in facts.presets.items())
    assert set(facts.stands_for.values()) <= set(facts.presets)
    assert not set(facts.stands_for) & set(facts.presets)
    assert set(facts.vision_stages) <= set(VISION_STAGES) & set(family.wiring.modules)
    assert {"language_model", "lm_head"} <= set(family.wiring.modules)
    assert "markdown" in facts.prompts
    assert facts.multipage in (None, *facts.prompts) and facts.multipage_preset in (None, *facts.presets)
    assert read_model_config(facts.config).family is facts
    golden = GOLDEN if name == "deepseek-ocr" else GOLDEN / name
    for file in ("checkpoint/config.json", "forward.safetensors", "preprocess.json"):
        assert (golden / file).is_file()
    assert f"| {facts.title} |" in (ROOT / "docs" / "models.md").read_text()


COUNTS = {
    "deepseek-ocr": {"sam": 95_569_152, "clip": 302_575_616, "projector": 2_622_720, "total": 3_335_504_128},
    "deepseek-ocr-2": {
        "sam": 94_979_328,
        "encoder": 358_256_512,
        "projector": 1_148_160,
        "total": 3_389_119_360,
    },
}
COUNTS["unlimited-ocr"] = COUNTS["deepseek-ocr"]


# -- config and weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_the_published_sizes_are_the_published_counts(name: str) -> None:
    family, config = NATIVES[name], native_config(dummy_config(f"dummy:{name}"))
    with torch.device("meta"):
        model = family.model_class()(config)
    assert [other for other in NATIVES.values() if other.drives(model)] == [family]
    assert family.window(model) == (128 if name == "unlimited-ocr" else None)
    assert config.text_config.max_position_embeddings == (32768 if name == "unlimited-ocr" else 8192)
    shared = {"language_model": 2_769_255_680, "lm_head": 165_478_400}
    assert family.parameters(model) == shared | COUNTS[name]


@pytest.mark.parametrize("name", ["deepseek-ocr-2", "unlimited-ocr"])
def test_what_transformers_saves_loads_whole(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    row = RECORDINGS[name]
    model = request.getfixturevalue(row.session).model
    model.save_pretrained(tmp_path)
    for path in (row.folder / "checkpoint").glob("tokenizer*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    again = OCRSession.from_local(tmp_path, device="cpu")
    assert again.family is NATIVES[name]
    assert again.family.window(again.model) == again.family.window(model)
    for mine, theirs in zip(again.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    saved = json.loads((tmp_path / "config.json").read_text())
    if name == "unlimited-ocr":
        mixed = copy.deepcopy(saved)
        mixed["text_config"]["layer_types"][0] = "full_attention"
        with refused():
            native_config(mixed)
        del saved["text_config"]["sliding_window"]
    else:
        rope = again.model.config.vision_config.encoder_config.rope_parameters
        assert rope["rope_theta"] == 1_000_000.0
        del saved["vision_config"]["encoder_config"]["rope_parameters"]
    with refused():
        native_config(saved)


def test_no_number_of_the_file_is_ignored():
    """Each of them, changed alone, changes the config or is refused."""
    recorded = json.loads((GOLDEN_2 / "checkpoint" / "config.json").read_text())
    raw = {name: recorded[name] for name in ("model_type", "language_config", "vision_config")}
    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        del raw["language_config"][name]  # of another kind of attention, which this model has not
    raw["language_config"] |= {"rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "routed_scaling_factor": 1.0}
    before = native_config(raw).to_dict()
    numbers = [path for path in paths(raw) if type(reduce(operator.getitem, path, raw)) in (int, float)]
    assert len(numbers) > 30
    for path in numbers:
        changed = copy.deepcopy(raw)
        section = reduce(operator.getitem, path[:-1], changed)
        section[path[-1]] *= 2
        section[path[-1]] += 0 if isinstance(section[path[-1]], float) else 2
        with contextlib.suppress(OcrPhasesError):
            assert native_config(changed).to_dict() != before, path


RULES = {
    row.name: json.loads((row.folder / "generation.json").read_text())
    for row in RECORDINGS.values()
    if (row.folder / "generation.json").exists()
}


NGRAMS = [(name, case) for name, recorded in RULES.items() for case in recorded["ngram"]["cases"]]


@pytest.mark.parametrize(("name", "case"), [row for row in NGRAMS if not row[1]["whitelist"]])
def test_ngrams_are_banned_as_recorded(name, case):
    size, window = case["ngram_size"], case["window"] or 0
    asked = SamplingSettings(no_repeat_ngram_size=size, no_repeat_ngram_window=window)
    scores = torch.tensor(RULES[name]["ngram"]["scores_before"])
    (rule,) = Sampler(asked).processors
    after = rule(torch.tensor(case["input_ids"]), scores.clone())
    assert [row.isneginf().nonzero().flatten().tolist() for row in after] == case["banned"]
    assert torch.equal(after[~after.isneginf()], scores[~after.isneginf()])


def test_the_published_rule_is_the_familys():
    for name, published, evaluated in (
        ("deepseek-ocr", {"no_repeat_ngram_size": 20}, {"no_repeat_ngram_size": 35}),
        ("deepseek-ocr-2", {"no_repeat_ngram_size": 20}, {"no_repeat_ngram_size": 35}),
        ("unlimited-ocr", {"no_repeat_ngram_size": 35, "no_repeat_ngram_window": 128}, {}),
    ):
        assert resolve_infer("published", None, name) == (SamplingSettings(**published), True)
        assert resolve_infer("published-eval", None, name) == (SamplingSettings(**evaluated), True)
        for case, rule in (("infer", published), ("infer eval_mode", evaluated)):
            asked = RULES[name]["passed_to_generate"][case] if name == "deepseek-ocr-2" else rule
            assert asked.get("no_repeat_ngram_size") == rule.get("no_repeat_ngram_size")
    many, _ = resolve_infer("published", None, "unlimited-ocr", several_pages=True)
    assert many == SamplingSettings(no_repeat_ngram_size=35, no_repeat_ngram_window=1024)
    assert "no_repeat_ngram_window" not in many.as_generate()
    assert "no_repeat_ngram_window" not in SamplingSettings().described()
    with refused():
        SamplingSettings(no_repeat_ngram_window=5)


# -- a record ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes", "preset", "prompt", "small"),
    [
        (
            "deepseek-ocr-2",
            SMALL_SIZES,
            "crop",
            "<image>\n<|grounding|>Convert the document to markdown.",
            ("small768", 145, 144),
        ),
        (
            "unlimited-ocr",
            f"{SMALL_SIZES},window=32",
            "gundam",
            "<image>document parsing.",
            ("small", 111, 100),
        ),
    ],
)
def test_a_small_dummy_runs(
    name: str, sizes: str, preset: str, prompt: str, small: tuple[str, int, int]
) -> None:
    encoder = "encoder_layers" if name == "deepseek-ocr-2" else "clip_layers"
    text = f"dummy:{name},{sizes.replace('clip_layers', encoder)}"
    session = OCRSession.load(text, device="cpu")
    assert family_of(session.model).facts.name == name
    run = session.run_inference(RECEIPT, preset="small", **QUICK)
    assert (run.model["name"], run.model["family"]) == (text, name)
    assert tuple(run.page[key] for key in ("preset", "image_tokens", "valid_image_tokens")) == small
    assert not with_verdict(run_checks(run), "fail")
    inputs = session.prepare(RECEIPT)
    assert (inputs.views[0].preset.name, inputs.prompts) == (preset, (prompt,))
