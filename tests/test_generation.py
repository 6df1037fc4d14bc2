"""A checkpoint's end tokens and generation settings: applied as its own ``generate()`` does, or
refused.
"""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PAGES, TINY_CONFIG
from example_run import check_of
from PIL import Image
from transformers import GenerationConfig

from ocr_phases import OcrPhasesError, OCRSession
from ocr_phases.measure.measurement import Measurement
from ocr_phases.models import generation
from ocr_phases.settings import RunSettings, SamplingSettings, resolve_infer
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.phases import generate
from ocr_phases.steps.sampling import sampler_for

RECEIPT = Image.open(PAGES / "receipt.png").resize((300, 300))  # small, and read once
NEW_TOKENS = 12
ONCE: dict[str, Any] = {
    "prompt": "free",
    "preset": "tiny",
    "max_new_tokens": NEW_TOKENS,
    "repeats": 1,
    "warmup": 0,
    "ceilings": False,
    "token_probabilities": False,
}

Settings = dict[str, Any]


@pytest.fixture(scope="module")
def session(quick_tiny_session: OCRSession) -> OCRSession:
    return quick_tiny_session


@pytest.fixture(scope="module")
def free_ids(session: OCRSession) -> list[int]:
    """The ids of a page that no setting and no end token of ours changes."""
    return session.run_inference(RECEIPT, **ONCE).results[0].ids


Configure = Callable[..., OCRSession]


@pytest.fixture
def configured(session: OCRSession, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """A function that gives the model further entries of ``generation_config.json``."""

    def configure(**entries: Any) -> OCRSession:
        usual = {"eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 2}
        configuration = GenerationConfig(**{**usual, **entries})
        monkeypatch.setattr(session.model, "generation_config", configuration)
        return session

    return configure


#: The ids of ``model.generate()`` by the settings that it ran with.
_IDS_OF_GENERATE: dict[str, list[int]] = {}


def ids_of_generate(session: OCRSession) -> list[int]:
    """What ``model.generate()`` gives when it is called without any setting of ours."""
    configuration = session.model.generation_config.to_json_string()
    if configuration not in _IDS_OF_GENERATE:
        _IDS_OF_GENERATE[configuration] = call_generate(session)
    return _IDS_OF_GENERATE[configuration]


def call_generate(session: OCRSession) -> list[int]:
    inputs = session.prepare(RECEIPT, "free", preset="tiny").to("cpu", torch.float32)
    arguments = {
        "input_ids": inputs.input_ids,
        "attention_mask": inputs.attention_mask,
        "pixel_values": inputs.pixel_values,
    }
    for name in ("pixel_values_local", "num_local_patches"):
        value = getattr(inputs, name)
        if value is not None:
            arguments[name] = value
    with torch.no_grad():
        tokens = session.model.generate(**arguments, max_new_tokens=NEW_TOKENS)
    return tokens[0, inputs.input_ids.shape[1] :].tolist()


# -- end tokens ------------------------------------------------------------------------------------

#: Every way in which a session writes tokens that takes its end tokens from the checkpoint.
WAYS = [
    pytest.param({}, id="eager"),
    pytest.param({"eos_check_every": 4}, id="end token looked for every 4 steps"),
    pytest.param({"first_token": "redecode"}, id="redecode"),
    pytest.param({"generate": True}, id="generate"),
]
WITH_A_RULE = pytest.param({"infer": {"no_repeat_ngram_size": 30}}, id="a rule against repetition")


@pytest.mark.parametrize("options", [*WAYS, WITH_A_RULE])
@pytest.mark.parametrize("place", [0, 9])
def test_any_end_token_ends_a_run(
    configured: Configure, free_ids: list[int], options: Settings, place: int
) -> None:
    end = free_ids[place]

    run = configured(eos_token_id=[1, end, 1999]).run_inference(RECEIPT, **ONCE, **options)

    up_to_the_end = free_ids[: free_ids.index(end) + 1]
    assert run.result.ids == up_to_the_end
    assert run.result.finish_reason == "eos"
    assert run.result.text == "".join(run.result.token_texts[:-1])
    assert run.model.generation.end_tokens == [1, end, 1999]


@pytest.mark.parametrize("options", WAYS)
def test_none_ends_a_run_that_ignores_them(
    configured: Configure, free_ids: list[int], options: Settings
) -> None:
    session = configured(eos_token_id=[1, free_ids[3], free_ids[9]])
    run = session.run_inference(RECEIPT, **ONCE, **options, ignore_eos=True)
    assert run.result.ids == free_ids
    assert run.result.finish_reason == "length"


def ids_of_two_rows(session: OCRSession) -> list[list[int]]:
    """The ids of two rows of which the first one is padded; parity with generate() is checked."""
    prompts = ["free", "<image>\n<|grounding|>A longer prompt."]
    run = session.run_inference([RECEIPT, RECEIPT], **{**ONCE, "prompt": prompts}, verify=True)
    assert check_of(run, "parity").verdict == "pass"
    return [row.ids for row in run.results]


def test_each_row_of_a_padded_batch_has_its_own_end(configured: Configure) -> None:
    first, second = ids_of_two_rows(configured())
    end = next(token for token in second if token not in first)

    ended = ids_of_two_rows(configured(eos_token_id=[1, end]))

    assert ended == [first, second[: second.index(end) + 1]]


@pytest.mark.parametrize(
    ("of_generation", "of_config", "expected"),
    [
        pytest.param(1, None, (1,), id="one"),
        pytest.param([1, 33], None, (1, 33), id="a list in generation_config.json"),
        pytest.param([33], None, (33, 1), id="another one than the language model's"),
        pytest.param(1, 44, (1, 44), id="another one at the top of config.json"),
        pytest.param(1, [44, 33], (1, 44, 33), id="a list at the top of config.json"),
        pytest.param(None, None, (1,), id="none in generation_config.json"),
    ],
)
def test_end_tokens_are_all_that_a_folder_names(
    tmp_path: Path,
    of_generation: int | list[int] | None,
    of_config: int | list[int] | None,
    expected: tuple[int, ...],
) -> None:
    folder = Path(shutil.copytree(PAGES.parent / "tiny", tmp_path / "model"))
    config = copy.deepcopy(TINY_CONFIG)
    config["text_config"]["eos_token_id"] = 1
    if of_config is not None:
        config["eos_token_id"] = of_config
    (folder / "config.json").write_text(json.dumps(config))
    settings: Settings = {"eos_token_id": of_generation}
    if of_generation is None:
        settings = {"pad_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(settings))

    checkpoint = OCRSession.load(folder, device="cpu").checkpoint

    assert checkpoint.generation.end_tokens == expected


def test_parity_says_which_end_token_generate_does_not_know(
    configured: Configure, free_ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = configured(eos_token_id=[1999])
    monkeypatch.setattr(session.model.config.text_config, "eos_token_id", free_ids[9])

    run = session.run_inference(RECEIPT, **ONCE, verify=True)

    parity = check_of(run, "parity")
    assert parity.verdict == "note"
    unknown = f"end token {free_ids[9]}, which generation_config.json does not name"
    assert unknown in parity.measured


# -- settings --------------------------------------------------------------------------------------


@pytest.fixture(
    params=[
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 3.0},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": "seen"},
        {"begin_suppress_tokens": "seen"},
        {"bad_words_ids": "pair"},
        {"bad_words_ids": "single"},
        {"min_new_tokens": 9, "eos_token_id": "seen"},
        {"min_length": 86, "eos_token_id": "seen"},  # of which the prompt has 80
        {"repetition_penalty": 1.3, "suppress_tokens": "seen", "no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def applied_settings(request: pytest.FixtureRequest, free_ids: list[int]) -> Settings:
    """Settings of a checkpoint that change which tokens come.

    A word in place of a value stands for tokens that come without the setting.
    """
    tokens = {
        "seen": free_ids[:3],
        "pair": [free_ids[2:4]],
        "single": [[free_ids[0]], [free_ids[4]]],
    }
    settings = dict(request.param)
    for name, value in settings.items():
        if isinstance(value, str):
            settings[name] = tokens[value]
    return settings


def assert_other_ids(ids: list[int], free_ids: list[int], settings: Settings) -> None:
    """The setting did something; with an end token of its own the ids may just be fewer."""
    if "eos_token_id" not in settings:
        assert ids != free_ids[: len(ids)]


def test_a_checkpoints_setting_is_applied_as_generate_does(
    configured: Configure, free_ids: list[int], applied_settings: Settings
) -> None:
    session = configured(**applied_settings)

    run = session.run_inference(RECEIPT, **ONCE, verify=True)

    assert run.result.ids == ids_of_generate(session)
    assert_other_ids(run.result.ids, free_ids, applied_settings)
    assert run.model.generation.settings
    assert check_of(run, "parity").verdict == "pass"


def test_a_checkpoints_setting_is_applied_in_one_shot(
    configured: Configure, free_ids: list[int], applied_settings: Settings
) -> None:
    session = configured(**applied_settings)

    run = session.run_inference(RECEIPT, **ONCE, generate=True)

    assert run.result.ids == ids_of_generate(session)
    assert_other_ids(run.result.ids, free_ids, applied_settings)
    assert run.model.generation.settings


def test_a_static_step_applies_a_checkpoints_setting(
    configured: Configure, applied_settings: Settings
) -> None:
    """What captured and compiled strategies run, here as it is."""
    session = configured(**applied_settings)
    settings = RunSettings(prompt="free", preset="tiny", max_new_tokens=NEW_TOKENS)
    measurement = Measurement(session, RECEIPT, settings)
    prefill_length = measurement.packed.prefill_len
    step = StaticStep(session.model, 1, 128, "eager").ready_for(prefill_length, NEW_TOKENS)

    state = generate(
        session.model,
        measurement.packed.to("cpu", torch.float32),
        NEW_TOKENS,
        sampler=sampler_for(session.checkpoint, measurement.request, prefill_length),
        step=step,
        eos_ids=measurement.end_tokens,
        eos_check_every=8,
    )

    assert state.ids[0] == ids_of_generate(session)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 4),
        ("num_return_sequences", 2),
        ("penalty_alpha", 0.6),
        ("encoder_repetition_penalty", 1.1),
        ("encoder_no_repeat_ngram_size", 3),
        ("min_p", 0.1),
        ("typical_p", 0.9),
        ("epsilon_cutoff", 3e-4),
        ("guidance_scale", 1.5),
        ("forced_eos_token_id", 1),
        ("forced_bos_token_id", 0),
        ("exponential_decay_length_penalty", (5, 1.1)),
        ("stop_strings", "end"),
        ("dola_layers", "high"),
        ("prompt_lookup_num_tokens", 3),
        ("max_time", 2.0),
        ("cache_implementation", "quantized"),
    ],
)
def test_a_setting_that_is_not_applied_is_refused_by_its_name(
    configured: Configure, name: str, value: object
) -> None:
    session = configured()
    setattr(session.model.generation_config, name, value)
    sentence = rf"generation_config.json sets {name} to .*: remove it"
    with pytest.raises(OcrPhasesError, match=sentence):
        session.run_inference(RECEIPT, **ONCE)


HARMLESS = (
    {
        "num_beams": 1,
        "repetition_penalty": 1.0,
        "top_k": 50,
        "temperature": 1.0,
        "diversity_penalty": 0.0,
    },
    {"temperature": 0.3, "top_p": 0.5},  # without do_sample
    {"max_length": 8192, "max_new_tokens": 3},
    {"use_cache": False},
    {"output_scores": True, "return_dict_in_generate": True},
    {"encoder_repetition_penalty": 1.0, "typical_p": 1.0, "stop_strings": None},
    {"unsloth_version": "2026.4.8"},
)


@pytest.mark.parametrize("one_shot", [False, True], ids=["eager", "generate"])
@pytest.mark.parametrize("settings", HARMLESS, ids=str)
def test_a_setting_that_changes_nothing_is_loaded(
    configured: Configure, free_ids: list[int], settings: Settings, one_shot: bool
) -> None:
    session = configured(**settings)
    run = session.run_inference(RECEIPT, **ONCE, generate=one_shot)
    assert run.result.ids == free_ids
    assert run.model.generation.settings == {}


def test_every_setting_that_transformers_knows_is_applied_refused_or_harmless() -> None:
    listed = {
        *generation.SAMPLING,
        *generation.TOKEN_RULES,
        *generation.HARMLESS,
        *generation.REFUSED,
    }
    assert set(vars(GenerationConfig())) <= listed


PENALTY = {"repetition_penalty": 1.5}
SAMPLED = {"do_sample": True, "temperature": 0.5}


@pytest.mark.parametrize(
    ("settings", "infer", "expected"),
    [
        (PENALTY, None, PENALTY),
        (PENALTY, {"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        (PENALTY, {"repetition_penalty": 1.0}, {}),
        (PENALTY, "temperature=0", PENALTY),
        (SAMPLED, None, {**SAMPLED, "top_k": 50}),
        (SAMPLED, {"temperature": 0}, {"top_k": 50}),
        ({"do_sample": True, "top_k": 7}, {"top_k": 3}, {"do_sample": True, "top_k": 3}),
        ({"do_sample": True, "temperature": 0.0}, None, {}),
        ({"do_sample": True, "top_p": 0.5}, SamplingSettings(), {}),
    ],
    ids=str,
)
def test_what_infer_says_wins(
    configured: Configure, settings: Settings, infer: object, expected: Settings
) -> None:
    run = configured(**settings).run_inference(RECEIPT, **ONCE, infer=infer)
    part = run.request.infer
    assert part == type(part)(**SamplingSettings(**expected).described())


def test_the_published_rule_wins_over_a_checkpoints_own(configured: Configure) -> None:
    session = configured(no_repeat_ngram_size=9)
    published, _ = resolve_infer("published", None, session.family.name)

    run = session.run_inference(RECEIPT, **ONCE, infer="published")

    rule = SamplingSettings(no_repeat_ngram_size=published.no_repeat_ngram_size)
    part = run.request.infer
    assert part == type(part)(**rule.described())


@pytest.mark.parametrize("penalty", [0, -1, float("nan"), "x", True])
def test_a_penalty_that_is_none_is_one_sentence(penalty: object) -> None:
    with pytest.raises(OcrPhasesError, match=r"infer's repetition_penalty is .*: give a number"):
        SamplingSettings.from_infer({"repetition_penalty": penalty})
