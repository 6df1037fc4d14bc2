"""A checkpoint's end tokens and generation settings: applied as its own ``generate()`` does, or
refused.
"""

import json
import shutil
from functools import partial

import pytest
import torch
from conftest import PAGES, TINY_CONFIG
from transformers import GenerationConfig

from ocr_phases import OcrPhasesError, OCRSession
from ocr_phases.measure.measurement import Measurement
from ocr_phases.models import generation
from ocr_phases.settings import RunSettings, SamplingSettings, resolve_infer
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.phases import generate
from ocr_phases.steps.sampling import sampler_for

RECEIPT = PAGES / "receipt.png"
NEW = 20
ASKED = {"preset": "tiny", "max_new_tokens": NEW, "repeats": 1, "warmup": 0, "ceilings": False}
ASKED["token_probabilities"] = False


@pytest.fixture(scope="module")
def session(quick_tiny_session):
    return quick_tiny_session


@pytest.fixture(scope="module")
def free(session):
    """The ids of a page that no setting and no end token of ours changes."""
    return session.run_inference(RECEIPT, **ASKED).results[0].ids


@pytest.fixture
def configured(session, monkeypatch):
    """A function that gives the model further entries of ``generation_config.json``."""

    def configure(**entries):
        own = GenerationConfig(
            **{"eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 2, **entries}
        )
        monkeypatch.setattr(session.model, "generation_config", own)
        return session

    return configure


_OWN_TOKENS: dict[str, list[int]] = {}


def own_tokens(session):
    """What ``model.generate()`` gives when it is called without any setting of ours."""
    configuration = session.model.generation_config.to_json_string()
    if configuration not in _OWN_TOKENS:
        _OWN_TOKENS[configuration] = generate_tokens(session)
    return _OWN_TOKENS[configuration]


def generate_tokens(session):
    inputs = session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)
    names = (
        "input_ids",
        "attention_mask",
        "pixel_values",
        "pixel_values_local",
        "num_local_patches",
    )
    given = {name: getattr(inputs, name, None) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    with torch.no_grad():
        tokens = session.model.generate(**given, max_new_tokens=NEW)
    return tokens[0, inputs.input_ids.shape[1] :].tolist()


# -- end tokens ------------------------------------------------------------------------------------

WAYS = (
    {},
    {"eos_check_every": 7},
    {"first_token": "redecode"},
    {"generate": True},
    {"infer": {"no_repeat_ngram_size": 30}},
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way) or "eager")
@pytest.mark.parametrize("place", [0, 9])
def test_any_end_token_ends_a_run(configured, free, way, place):
    end = free[place]
    run = configured(eos_token_id=[1, end, 1999]).run_inference(RECEIPT, **ASKED, **way)
    ids = free[: free.index(end) + 1]
    assert (run.results[0].ids, run.results[0].finish_reason) == (ids, "eos")
    assert run.results[0].text == "".join(run.results[0].token_texts[:-1])
    assert run.model.generation.end_tokens == [1, end, 1999]


@pytest.mark.parametrize("way", WAYS[:-1], ids=lambda way: "-".join(way) or "eager")
def test_none_ends_a_run_that_ignores_them(configured, free, way):
    session = configured(eos_token_id=[1, free[3], free[9]])
    run = session.run_inference(RECEIPT, **ASKED, **way, ignore_eos=True)
    assert run.results[0].ids == free
    assert run.results[0].finish_reason == "length"


def test_each_row_of_a_padded_batch_has_its_own_end(configured):
    prompts = ["free", "<image>\n<|grounding|>A longer prompt."]
    ask = partial(run_rows, prompts=prompts)
    first, second = ask(configured())
    end = next(token for token in second if token not in first)
    ended = ask(configured(eos_token_id=[1, end]))
    assert ended == [first, second[: second.index(end) + 1]]


def run_rows(session, prompts):
    run = session.run_inference([RECEIPT, RECEIPT], prompts, **ASKED, verify=True)
    assert next(one for one in run.live_checks if one.name == "parity").verdict == "pass"
    return [row.ids for row in run.results]


@pytest.mark.parametrize(
    ("own", "top", "text", "ends"),
    [
        (1, None, 1, (1,)),
        ([1, 33], None, 1, (1, 33)),
        ([33], None, 1, (33, 1)),
        (1, 44, 1, (1, 44)),
        (1, [44, 33], 1, (1, 44, 33)),
        (None, None, 1, (1,)),
    ],
)
def test_end_tokens_are_all_that_a_folder_names(tmp_path, own, top, text, ends):
    folder = shutil.copytree(PAGES.parent / "tiny", tmp_path / "model")
    config = json.loads(json.dumps(TINY_CONFIG))
    config["text_config"]["eos_token_id"] = text
    if top is not None:
        config["eos_token_id"] = top
    (folder / "config.json").write_text(json.dumps(config))
    entries = {"pad_token_id": 2} if own is None else {"eos_token_id": own}
    (folder / "generation_config.json").write_text(json.dumps(entries))
    assert OCRSession.load(folder, device="cpu").checkpoint.generation.end_tokens == ends


def test_parity_says_which_end_token_generate_does_not_know(configured, free):
    session = configured(eos_token_id=[1999])
    session.model.config.text_config.eos_token_id = free[9]
    try:
        run = session.run_inference(RECEIPT, **ASKED, verify=True)
    finally:
        session.model.config.text_config.eos_token_id = 1
    parity = next(one for one in run.live_checks if one.name == "parity")
    assert parity.verdict == "note"
    assert f"end token {free[9]}, which generation_config.json does not name" in parity.measured


# -- settings --------------------------------------------------------------------------------------

APPLIED = (
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 3.0},
    {"no_repeat_ngram_size": 1},
    {"suppress_tokens": "seen"},
    {"begin_suppress_tokens": "seen"},
    {"bad_words_ids": "pair"},
    {"bad_words_ids": "single"},
    {"min_new_tokens": 15, "eos_token_id": "seen"},
    {"min_length": 90, "eos_token_id": "seen"},
    {"repetition_penalty": 1.3, "suppress_tokens": "seen", "no_repeat_ngram_size": 2},
)


def filled(entries, free):
    values = {"seen": free[:3], "pair": [free[2:4]], "single": [[free[0]], [free[4]]]}
    found = dict(entries)
    for name, value in entries.items():
        if isinstance(value, str):
            found[name] = values[value]
    return found


@pytest.mark.parametrize("way", [{}, {"generate": True}], ids=str)
@pytest.mark.parametrize("entries", APPLIED, ids=str)
def test_a_checkpoints_setting_is_applied_as_generate_does(configured, free, entries, way):
    session = configured(**filled(entries, free))
    verify = not way
    run = session.run_inference(RECEIPT, **ASKED, **way, verify=verify)
    assert run.results[0].ids == own_tokens(session)
    assert run.results[0].ids != free[: len(run.results[0].ids)] or "eos_token_id" in entries
    assert run.model.generation.settings
    if verify:
        assert next(one for one in run.live_checks if one.name == "parity").verdict == "pass"


@pytest.mark.parametrize("entries", APPLIED, ids=str)
def test_a_static_step_applies_them_too(configured, free, entries):
    """What captured and compiled strategies run, here as it is."""
    session = configured(**filled(entries, free))
    measurement = Measurement(session, RECEIPT, RunSettings(preset="tiny", max_new_tokens=NEW))
    step = StaticStep(session.model, 1, 128, "eager").ready_for(measurement.packed.prefill_len, NEW)
    sampler = sampler_for(session.checkpoint, measurement.request, measurement.packed.prefill_len)
    inputs = measurement.packed.to("cpu", torch.float32)
    options = {"eos_ids": measurement.end_tokens, "eos_check_every": 16}
    state = generate(session.model, inputs, NEW, sampler=sampler, step=step, **options)
    assert state.ids[0] == own_tokens(session)


REFUSED = {
    "num_beams": 4,
    "num_return_sequences": 2,
    "penalty_alpha": 0.6,
    "encoder_repetition_penalty": 1.1,
    "encoder_no_repeat_ngram_size": 3,
    "min_p": 0.1,
    "typical_p": 0.9,
    "epsilon_cutoff": 3e-4,
    "guidance_scale": 1.5,
    "forced_eos_token_id": 1,
    "forced_bos_token_id": 0,
    "exponential_decay_length_penalty": (5, 1.1),
    "stop_strings": "end",
    "dola_layers": "high",
    "prompt_lookup_num_tokens": 3,
    "max_time": 2.0,
    "cache_implementation": "quantized",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_that_is_not_applied_is_refused_by_its_name(configured, name):
    session = configured()
    setattr(session.model.generation_config, name, REFUSED[name])
    with pytest.raises(
        OcrPhasesError, match=rf"generation_config.json sets {name} to .*: remove it"
    ):
        session.run_inference(RECEIPT, **ASKED)


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


@pytest.mark.parametrize("way", [{}, {"generate": True}], ids=str)
@pytest.mark.parametrize("entries", HARMLESS, ids=str)
def test_a_setting_that_changes_nothing_is_loaded(configured, free, entries, way):
    run = configured(**entries).run_inference(RECEIPT, **ASKED, **way)
    assert run.results[0].ids == free
    assert run.model.generation.settings == {}


def test_every_setting_that_transformers_knows_is_applied_refused_or_harmless():
    listed = {
        *generation.SAMPLING,
        *generation.TOKEN_RULES,
        *generation.HARMLESS,
        *generation.REFUSED,
    }
    assert set(vars(GenerationConfig())) <= listed


@pytest.mark.parametrize(
    ("entries", "infer", "right"),
    [
        ({"repetition_penalty": 1.5}, None, {"repetition_penalty": 1.5}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.0}, {}),
        ({"repetition_penalty": 1.5}, "temperature=0", {"repetition_penalty": 1.5}),
        ({"no_repeat_ngram_size": 9}, "published", {"no_repeat_ngram_size": "published"}),
        (
            {"do_sample": True, "temperature": 0.5},
            None,
            {"do_sample": True, "temperature": 0.5, "top_k": 50},
        ),
        ({"do_sample": True, "temperature": 0.5}, {"temperature": 0}, {"top_k": 50}),
        ({"do_sample": True, "top_k": 7}, {"top_k": 3}, {"do_sample": True, "top_k": 3}),
        ({"do_sample": True, "temperature": 0.0}, None, {}),
        ({"do_sample": True, "top_p": 0.5}, SamplingSettings(), {}),
    ],
    ids=str,
)
def test_what_infer_says_wins(configured, entries, infer, right):
    session = configured(**entries)
    run = session.run_inference(RECEIPT, **ASKED, infer=infer)
    wanted = dict(right)
    if infer == "published":
        published, _ = resolve_infer(infer, None, session.family.name)
        wanted["no_repeat_ngram_size"] = published.no_repeat_ngram_size
    assert run.request.infer == type(run.request.infer)(**SamplingSettings(**wanted).described())


@pytest.mark.parametrize("penalty", [0, -1, float("nan"), "x", True])
def test_a_penalty_that_is_none_is_one_sentence(penalty):
    with pytest.raises(OcrPhasesError, match=r"infer's repetition_penalty is .*: give a number"):
        SamplingSettings.from_infer({"repetition_penalty": penalty})
