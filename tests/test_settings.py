"""A setting is declared once: signatures, options, notebooks, explorer, lists, records and docs
follow.

What is asked for is refused before anything is measured, or is measured and can be saved.
"""

import copy
import inspect
import json
import math
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import papermill
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import refused

from benchmarks.settings_docs import (
    NOTEBOOKS,
    OwnParameter,
    parameters_cell,
    settings_tables,
)
from ocr_phases import OCRSession, Settings, sweep
from ocr_phases.analyse.check_rules import RULES
from ocr_phases.analyse.noise import NOISE
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.cli.arguments import add_options
from ocr_phases.cli.options import EVERY, OF_SERVERS, SETTINGS, OptionSpelling, Parser
from ocr_phases.engines.load import load_test
from ocr_phases.engines.session import ServerSession
from ocr_phases.errors import TAKEN_BY, Keyword, OcrPhasesError, SettingError
from ocr_phases.explorer.form import Form
from ocr_phases.families import FAMILIES, PRESET_NAMES, PROMPT_NAMES
from ocr_phases.measure.request import resolve_request
from ocr_phases.record.parts import to_plain
from ocr_phases.report.page_parameters import PAGE_REPORT_PARAMETERS
from ocr_phases.session.sweeps import Sweep
from ocr_phases.settings import (
    REQUEST_SETTINGS,
    FormGroup,
    ModelSettings,
    Request,
    RunSettings,
    SamplingSettings,
    resolve_infer,
    setting_names,
)
from ocr_phases.steps.sampling import Sampler

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "data" / "pages" / "receipt.png"
DEFAULTS = vars(Settings())
#: What to do where docs or notebooks lack a setting.
WRITE = "write them with python -m benchmarks.settings_docs"

#: Every call that takes settings, and whose they are.
CALLS = {
    OCRSession.load: ModelSettings,
    OCRSession.from_local: ModelSettings,
    OCRSession.run_inference: RunSettings,
    OCRSession.check_request: RunSettings,
    ServerSession.run_inference: RunSettings,
    ServerSession.check_request: RunSettings,
    load_test: RunSettings,
}
#: Settings without a group, which a form leaves out.
NOT_IN_A_FORM = {
    "attention",
    "cuda_calls",
    "eos_check_every",
    "generate",
    "implementation",
    "kernel_steps",
    "kernel_trace",
    "return_text",
    "trust_remote_code",
}
#: Arguments of these calls that are no settings.
OF_CALLS = {"self", "page", "pages", "session", "folder", "on_tokens", "progress"}
OF_CALLS |= {"concurrency", "rates", "requests", "slo"}


@pytest.mark.parametrize(
    ("call", "settings"), CALLS.items(), ids=lambda it: getattr(it, "__qualname__", "")
)
def test_the_signatures_name_every_setting(call: Callable[..., Any], settings: type) -> None:
    parameters = inspect.signature(call).parameters
    found = {
        name: parameter.default for name, parameter in parameters.items() if name not in OF_CALLS
    }

    expected = {name: DEFAULTS[name] for name in setting_names(settings)}
    if "folder" in parameters:  # a folder is no server
        for name in ("model", *OF_SERVERS):
            del expected[name]
    assert found == expected


def described_parameters(function: Callable[..., Any]) -> dict[str, str]:
    """The description of each parameter in a numpy-style docstring, on one line."""
    described: dict[str, str] = {}
    names: list[str] = []
    docstring = inspect.getdoc(function) or ""
    _, _, text = docstring.partition("Parameters\n----------\n")
    for line in text.splitlines():
        if re.fullmatch("-+", line):
            break
        if re.match(r"[*\w]+(, \w+)* : ", line):
            listed, _, _ = line.partition(" : ")
            names = listed.split(", ")
            described.update(dict.fromkeys(names, ""))
        elif line.startswith("    "):
            for name in names:
                described[name] = f"{described[name]} {line.strip()}".strip()
    return described


@pytest.mark.parametrize("call", [OCRSession.load, OCRSession.from_local, OCRSession.run_inference])
def test_a_docstring_has_the_help_of_every_setting(call: Callable[..., Any]) -> None:
    described = described_parameters(call)
    for setting in fields(CALLS[call]):
        if setting.name in inspect.signature(call).parameters:
            text = setting.metadata["help"].format(
                prompts=", ".join(PROMPT_NAMES).replace("locate", "locate:words"),
                presets=", ".join(PRESET_NAMES),
            )
            assert text.lower() in described[setting.name].lower(), (
                f"{call.__qualname__}: write the help of {setting.name} into its docstring"
            )


@pytest.mark.parametrize("kind", [ModelSettings, RunSettings, Settings, Request, Sweep])
def test_settings_are_given_by_name_alone(kind: type) -> None:
    parameters = inspect.signature(kind).parameters.values()
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}


def test_settings_give_the_keywords_of_prepare() -> None:
    parameters = set(inspect.signature(OCRSession.prepare).parameters)
    assert set(Settings().of_prepare()) == parameters - {"self", "page", "max_new_tokens"}


def test_an_error_knows_which_call_takes_a_setting() -> None:
    of_load = set(TAKEN_BY["OCRSession.load"])
    of_runs = set(TAKEN_BY["OCRSession.run_inference"])
    of_sweeps = set(TAKEN_BY["OCRSession.sweep"])
    assert of_load | {"model"} == set(setting_names(ModelSettings))
    assert of_runs == {*setting_names(RunSettings), "on_tokens", "progress"}
    assert of_sweeps <= set(inspect.signature(OCRSession.sweep).parameters)


@pytest.mark.parametrize("call", [OCRSession.sweep, sweep])
def test_a_sweep_takes_every_field_of_its_plan(call: Callable[..., Any]) -> None:
    parameters = inspect.signature(call).parameters
    for plan_field in fields(Sweep):
        parameter = parameters[plan_field.name]
        if plan_field.name != "page":
            assert parameter.default == plan_field.default


#: Settings whose default is another one in a batch.
DEFAULTS_OF_A_BATCH = {"token_probabilities": False, "warm_once": True}


def options_of(verb: str) -> dict[str, Any]:
    """The settings of a command without any option."""
    parser = Parser()
    add_options(parser, verb)
    return vars(parser.parse_args([]))


@pytest.mark.parametrize("verb", [verb for verb in SETTINGS if verb != "sweep"])
def test_a_command_without_options_has_the_default_of_each_setting(verb: str) -> None:
    own_defaults = DEFAULTS_OF_A_BATCH if verb == "batch" else {}
    options = options_of(verb)
    assert Settings.among(options) == Settings(**own_defaults)
    assert set(EVERY) - set(options) <= {*NOT_IN_A_FORM, "revision", "verify"}


@pytest.mark.parametrize("verb", SETTINGS)
def test_the_options_of_a_verb_have_the_settings_defaults(verb: str) -> None:
    expected = dict(DEFAULTS)
    if verb == "batch":
        expected |= DEFAULTS_OF_A_BATCH
    if verb == "sweep":  # whose option is a list of lengths
        del expected["max_new_tokens"]

    options = options_of(verb)

    for name in set(options) & set(expected):
        assert options[name] == expected[name], name


@pytest.mark.parametrize("verb", SETTINGS)
def test_every_measuring_verb_takes_the_options_that_are_advised_against_noise(verb):
    advice = " ".join(RULES[name].fix for name in NOISE)
    options = [option.replace("-", "_") for option in re.findall(r"--([a-z-]+)", advice)]
    assert "threads" in options
    assert {*options, "repeats"} <= set(SETTINGS[verb])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebooks_parameters_are_the_settings(name: str) -> None:
    path = ROOT / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))

    inspected = papermill.inspect_notebook(str(path))

    assert cell.source == parameters_cell(NOTEBOOKS[name]), WRITE
    assert len(inspected) == len(NOTEBOOKS[name])
    for parameter in inspected.values():
        assert parameter["help"]


def test_the_page_report_has_few_parameters() -> None:
    assert len(PAGE_REPORT_PARAMETERS) <= 14


@pytest.mark.parametrize(
    "parameter",
    [
        pytest.param(OwnParameter("page", "str", "None", "a help that is so long " * 5), id="long"),
        pytest.param(
            OwnParameter("page", "str", "None\n)", "what a wrapped line leaves behind"),
            id="no Python",
        ),
        pytest.param("presett", id="unknown"),
    ],
)
def test_a_parameters_cell_that_would_be_broken_is_not_written(
    parameter: OwnParameter | str,
) -> None:
    with pytest.raises(SystemExit) as failed:
        parameters_cell([parameter])
    assert failed.value.code not in (0, None)


def test_the_explorer_has_a_field_for_every_setting() -> None:
    shown = {field["name"] for field in Form().fields("tiny")}
    assert (shown - {"pages", "presets"}) | NOT_IN_A_FORM == set(DEFAULTS)


def test_the_explorer_asks_for_as_many_repeats_as_compare_can_judge() -> None:
    form = Form()
    (job,) = form.jobs(form.values("tiny"))
    assert job.settings == Settings(repeats=LEAST_REPEATS, max_new_tokens=512)


def test_the_explorer_shows_settings_in_words_and_group_by_group() -> None:
    form_fields = Form().fields("tiny")

    groups = [field["group"] for field in form_fields]
    order = list(FormGroup)
    assert list(dict.fromkeys(groups)) == order
    assert groups == sorted(groups, key=order.index)

    labels = [field["label"] for field in form_fields]
    assert len(set(labels)) == len(labels)
    for label in labels:
        assert label
        assert "_" not in label


def test_the_record_keeps_every_setting_of_a_run(golden_session: OCRSession) -> None:
    run = golden_session.run_inference(
        PAGE,
        max_new_tokens=2,
        repeats=1,
        warmup=0,
        ceilings=False,
        preset="tiny",
        infer="temperature=0",
    )

    request = to_plain(run.request)
    of_others = {"ceilings", "kernels", "kernel_trace", *setting_names(ModelSettings)}
    assert set(REQUEST_SETTINGS) <= set(request)
    assert not set(request) & of_others
    assert [name for name in REQUEST_SETTINGS if request[name] is None] == [
        "base_size",
        "image_size",
        "crop_mode",
        "min_crops",
        "max_crops",
        "threads",
        "price_per_hour",
    ]


def test_no_setting_is_lost_on_its_way_to_what_runs() -> None:
    """A request has a default for each setting, so that a missing line would go unnoticed."""
    other_than_defaults: dict[str, Any] = {
        "return_text": False,
        "ignore_eos": True,
        "eos_check_every": 3,
        "first_token": "redecode",
        "repeats": 5,
        "warmup": 4,
        "warm_once": True,
        "seed": 9,
        "strategy": "cuda_graph",
        "vision": "compiled",
        "threads": 2,
        "embed_page": False,
        "verify": True,
        "token_probabilities": False,
        "ceilings": False,
        "phase_energy": True,
        "kernels": True,
        "kernel_steps": 7,
        "kernel_trace": "trace.json.gz",
        "price_per_hour": 2.5,
        "max_new_tokens": 11,
        "grounding": False,
        "preset": "gundam",
        "base_size": 1280,
        "image_size": 1024,
        "crop_mode": True,
        "min_crops": 3,
        "max_crops": 6,
        "prompt": "<image>\n<|grounding|>Read the page.",  # which alone would mean grounding
    }
    decided_elsewhere = {"infer", "autocast", "generate"}
    assert set(other_than_defaults) | decided_elsewhere == set(setting_names(RunSettings))
    for name, value in other_than_defaults.items():
        assert value != DEFAULTS[name]

    settings = RunSettings(**other_than_defaults)
    request = resolve_request(settings, FAMILIES["deepseek-ocr"], PAGE)

    for name, value in other_than_defaults.items():
        assert getattr(request, name) == value, name


def test_a_penalty_of_repetition_is_described_where_there_is_one():
    assert "repetition_penalty" not in SamplingSettings().described()
    assert SamplingSettings(repetition_penalty=1.2).described()["repetition_penalty"] == 1.2


def test_the_docs_list_every_setting() -> None:
    docs = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    is_listed = settings_tables() in docs
    assert is_listed, WRITE


def test_sampling_as_text_is_the_same_as_the_mapping() -> None:
    text = "temperature=0.7, top_k=5,no_repeat_ngram_size=20"
    mapping = {"temperature": 0.7, "top_k": 5, "no_repeat_ngram_size": 20}
    assert resolve_infer(text, None) == resolve_infer(mapping, None)


def test_sampling_takes_words_numbers_of_numpy_and_a_temperature_of_0() -> None:
    sampled, _ = resolve_infer("do_sample=True", None)
    of_numpy, _ = resolve_infer({"temperature": np.float64(0.5)}, None)
    assert sampled.do_sample
    assert of_numpy.temperature == 0.5
    assert SamplingSettings.from_infer({"temperature": 0.0}) == SamplingSettings()


NUMBERS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([10**400, 2**63, -(2**64), math.inf, -math.inf, math.nan, 5e-324]),
)
VALUES = st.one_of(
    NUMBERS,
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.lists(NUMBERS, max_size=2),
    st.binary(max_size=3),
)
#: The settings of one type.
SIMPLE_SETTINGS = sorted(set(setting_names(RunSettings)) - {"infer", "kernel_trace"})
SAMPLING = ("do_sample", "temperature", "top_p", "top_k", "no_repeat_ngram_size", "heat", 5)


@example({"seed": 2**63})
@example({"seed": math.nan})
@example({"repeats": True})
@example({"preset": ["tiny"]})
@given(st.dictionaries(st.sampled_from(SIMPLE_SETTINGS), VALUES, max_size=3))
def test_a_setting_that_is_accepted_can_be_saved(settings: dict[str, Any]) -> None:
    try:
        RunSettings(**settings)
    except OcrPhasesError as error:
        assert str(error).count("\n") == 0
    else:
        saved = json.dumps(settings, allow_nan=False, ensure_ascii=False).encode()
        assert json.loads(saved) == settings


@example({"temperature": 5e-324})
@example({"temperature": 2})
@example({"top_k": 10**400})
@given(st.dictionaries(st.sampled_from(SAMPLING), VALUES, max_size=3))
def test_sampling_that_is_accepted_runs_and_can_be_saved(infer: dict[Any, Any]) -> None:
    try:
        settings = SamplingSettings.from_infer(infer)
    except OcrPhasesError as error:
        assert str(error).count("\n") == 0
    else:
        json.dumps(asdict(settings), allow_nan=False)
        logits = torch.tensor([[-30.0, 0.0, 30.0]])
        token = Sampler(settings)(logits, torch.tensor([[0, 1]]))
        assert 0 <= token.item() <= 2


MANY = 10**15
#: Wrong values of each setting.
WRONG_VALUES: dict[str, list[Any]] = {
    "max_new_tokens": [0, MANY],
    "repeats": [0, "three", MANY],
    "warmup": [-1, MANY],
    "threads": [0, -1, 1_025, "many"],
    "eos_check_every": [0, 2.5, MANY],
    "kernel_steps": [MANY],
    "base_size": [0, 32, 100, 8192, -64, 512.5, "large", True],
    "image_size": [0, 32, 100, 8192, -64, 512.5, "large", True],
    "crop_mode": ["no", 1],
    "min_crops": [0, MANY, "few"],
    "max_crops": [0, MANY, "many"],
    "first_token": ["none"],
    "strategy": ["magic"],
    "seed": [2**64],
    "embed_page": ["no"],
    "prompt": [5, "caf\udce9", None, ["markdown", 5], b"markdown", "\ud800"],
    "infer": [
        {"heat": 1},
        {"temperature": -1},
        {"top_p": 0},
        {"temperature": math.inf},
        {"do_sample": True, "temperature": 0},
        {"no_repeat_ngram_window": 5},
        [1],
        5,
        [("temperature", 1.0)],
        "hot",
        "a=b",
        "a\nb=1",
        "temperature=warm",
        "heat=1",
        "greedy",
    ],
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_wrong_value_is_refused_in_one_sentence(name: str) -> None:
    for value in WRONG_VALUES[name]:
        with refused():
            RunSettings(**{name: value})


@pytest.mark.parametrize(
    "setting", [{"first_token": "redecode"}, {"verify": True}, {"strategy": "compiled"}], ids=str
)
def test_what_generate_has_no_way_to_do_is_refused(setting: dict[str, Any]) -> None:
    with refused():
        RunSettings(generate=True, **setting)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"strategy": "magic"}, "strategy"),
        ({"preset": "huge"}, "preset"),
        ({"prompt": ""}, "prompt"),
        ({"infer": {"top_k": -1}}, "infer"),
        ({"infer": "published", "autocast": False}, "autocast"),
        ({"generate": True, "verify": True}, "verify"),
        ({"image_size": 100}, "image_size"),
        ({"min_crops": 5, "max_crops": 4}, "min_crops"),
        ({"crop_mode": False, "max_crops": 4}, "max_crops"),
        ({"crop_mode": False, "base_size": 1024, "image_size": 640}, "image_size"),
    ],
)
def test_an_error_about_a_setting_names_it_in_a_field(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError) as caught:
        Settings(**settings)
    assert caught.value.field == field

    again = copy.copy(caught.value)  # made as it is made again in another process
    assert again.field == field
    assert str(again) == str(caught.value)


@pytest.mark.parametrize(
    ("keyword", "option"),
    [
        (Keyword("max_new_tokens"), "--max-new-tokens"),
        (Keyword("max_new_tokens", 64), "--max-new-tokens 64"),
        (Keyword("infer", "temperature=0.7, top_k=5"), "--infer 'temperature=0.7, top_k=5'"),
        (Keyword("autocast", True), "--autocast"),
        (Keyword("autocast", False), "--no-autocast"),
        (Keyword("top_k", 5), "top_k=5"),  # no option of the command line
    ],
)
def test_the_command_line_names_options_in_place_of_keywords(keyword: Keyword, option: str) -> None:
    spelling = OptionSpelling.of_command(Namespace(**DEFAULTS))
    error = SettingError(keyword.name, "Drop {keyword}.", keyword=keyword)
    assert error.sentence(spelling) == f"Drop {option}."


@pytest.mark.parametrize(
    ("given", "name", "option"),
    [
        (["--server"], "model", "--server"),
        (["--model"], "model", "--model"),
        (["--strategies"], "strategy", "--strategies"),
        (["--dtypes"], "dtype", "--dtypes"),
        (["--batch"], "batch", "--batch"),
        ([], "dtype", "--dtype"),
    ],
)
def test_the_command_line_names_the_option_that_was_given(
    given: list[str], name: str, option: str
) -> None:
    spelling = OptionSpelling.of_command(Namespace(**DEFAULTS, given=given))
    assert spelling(Keyword(name)) == option


def test_a_value_in_a_sentence_may_have_braces_and_is_never_read_as_a_place() -> None:
    typed = "{setting} {0} {"
    error = OcrPhasesError("{setting} is {typed}.", setting=Keyword("infer"), typed=typed)
    assert str(error) == f"infer is {typed}."
    assert str(OcrPhasesError(f"There is no {typed}.")) == f"There is no {typed}."
