"""A setting is declared once: signatures, options, notebooks, explorer, lists, records and docs
follow.

What is asked for is refused before anything is measured, or is measured and can be saved.
"""

import copy
import inspect
import json
import math
import re
from dataclasses import asdict, fields
from pathlib import Path

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
def test_the_signatures_name_every_setting(call, settings):
    parameters = inspect.signature(call).parameters
    found = {
        name: parameter.default for name, parameter in parameters.items() if name not in OF_CALLS
    }
    expected = {name: DEFAULTS[name] for name in setting_names(settings)}
    if "folder" in parameters:  # a folder is no server
        for name in ("model", *OF_SERVERS):
            del expected[name]
    assert found == expected


def described_parameters(function):
    """The description of each parameter in a numpy-style docstring, on one line."""
    described, names = {}, []
    _, _, text = inspect.getdoc(function).partition("Parameters\n----------\n")
    for line in text.splitlines():
        if re.fullmatch("-+", line):
            break
        if re.match(r"[*\w]+(, \w+)* : ", line):
            names = line.partition(" : ")[0].split(", ")
            described.update(dict.fromkeys(names, ""))
        elif line.startswith("    "):
            for name in names:
                described[name] = f"{described[name]} {line.strip()}".strip()
    return described


@pytest.mark.parametrize("call", [OCRSession.load, OCRSession.from_local, OCRSession.run_inference])
def test_a_docstring_has_the_help_of_every_setting(call):
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
def test_settings_are_given_by_name_alone(kind):
    parameters = inspect.signature(kind).parameters.values()
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}


def test_settings_give_the_keywords_of_prepare():
    parameters = set(inspect.signature(OCRSession.prepare).parameters)
    assert set(Settings().of_prepare()) == parameters - {"self", "page", "max_new_tokens"}


def test_an_error_knows_which_call_takes_a_setting():
    assert {*TAKEN_BY["OCRSession.load"], "model"} == set(setting_names(ModelSettings))
    assert set(TAKEN_BY["OCRSession.run_inference"]) == {
        *setting_names(RunSettings),
        "on_tokens",
        "progress",
    }
    assert set(TAKEN_BY["OCRSession.sweep"]) <= set(inspect.signature(OCRSession.sweep).parameters)


@pytest.mark.parametrize("call", [OCRSession.sweep, sweep])
def test_a_sweep_takes_every_field_of_its_plan(call):
    parameters = inspect.signature(call).parameters
    for plan_field in fields(Sweep):
        default = parameters[plan_field.name].default
        assert plan_field.name == "page" or default == plan_field.default


@pytest.mark.parametrize("verb", SETTINGS)
def test_the_options_of_a_verb_have_the_settings_defaults(verb):
    parser = Parser()
    add_options(parser, verb)
    asked = vars(parser.parse_args([]))
    own = {"token_probabilities": False, "warm_once": True} if verb == "batch" else {}
    if verb != "sweep":
        assert Settings.among(asked) == Settings(**own)
        assert set(EVERY) - set(asked) <= {*NOT_IN_A_FORM, "revision", "verify"}
    shared = set(asked) & set(DEFAULTS) - {"max_new_tokens" if verb == "sweep" else ""}
    assert {name: asked[name] for name in shared} == {
        name: {**DEFAULTS, **own}[name] for name in shared
    }


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebooks_parameters_are_the_settings(name):
    path = ROOT / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert cell.source == parameters_cell(NOTEBOOKS[name]), WRITE
    inspected = papermill.inspect_notebook(str(path))
    assert len(inspected) == len(NOTEBOOKS[name])
    assert all(parameter["help"] for parameter in inspected.values())


def test_the_page_report_has_few_parameters():
    assert len(PAGE_REPORT_PARAMETERS) <= 14


@pytest.mark.parametrize(
    "parameter",
    [
        OwnParameter("page", "str", "None", "a help that is so long " * 5),
        OwnParameter("page", "str", "None\n)", "what a wrapped line leaves behind"),
        "presett",
    ],
    ids=["long", "no Python", "unknown"],
)
def test_a_parameters_cell_that_would_be_broken_is_not_written(parameter):
    with pytest.raises(SystemExit) as failed:
        parameters_cell([parameter])
    assert failed.value.code not in (0, None)


def test_the_explorer_has_a_field_for_every_setting():
    form = Form()
    shown = {field["name"] for field in form.fields("tiny")} - {"pages", "presets"}
    assert shown | NOT_IN_A_FORM == set(DEFAULTS)
    (job,) = form.jobs(form.values("tiny"))
    assert job.settings == Settings(
        repeats=LEAST_REPEATS, max_new_tokens=512
    )  # Compare can judge so many


def test_the_explorer_shows_settings_in_words_and_group_by_group():
    fields = Form().fields("tiny")
    groups = [field["group"] for field in fields]
    assert [*dict.fromkeys(groups)] == [*FormGroup]
    assert groups == sorted(groups, key=[*FormGroup].index)
    labels = [field["label"] for field in fields]
    assert len(set(labels)) == len(labels)
    assert all(label and "_" not in label for label in labels)


def test_the_record_keeps_every_setting_of_a_run(golden_session):
    quick = {"max_new_tokens": 2, "repeats": 1, "warmup": 0, "ceilings": False, "preset": "tiny"}
    run = golden_session.run_inference(
        ROOT / "data/pages/receipt.png", **quick, infer="temperature=0"
    )
    request = to_plain(run.request)
    assert set(REQUEST_SETTINGS) <= set(request)
    assert not set(request) & {
        "ceilings",
        "kernels",
        "kernel_trace",
        *setting_names(ModelSettings),
    }
    assert [name for name in REQUEST_SETTINGS if request[name] is None] == [
        *("base_size", "image_size", "crop_mode", "min_crops", "max_crops"),
        "threads",
        "price_per_hour",
    ]


def test_no_setting_is_lost_on_its_way_to_what_runs():
    """A request has a default for each setting, so that a missing line would go unnoticed."""
    asked = {
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
        "prompt": "free",
    }
    decided_elsewhere = {"infer", "autocast", "generate"}
    assert set(asked) | decided_elsewhere == set(setting_names(RunSettings))
    settings = RunSettings(**asked)
    for name, value in asked.items():
        assert value != RunSettings.__dataclass_fields__[name].default
    page = ROOT / "data/pages/receipt.png"
    request = resolve_request(settings, FAMILIES["deepseek-ocr"], page)
    assert {name: getattr(request, name) for name in asked} == asked


def test_the_docs_list_every_setting():
    listed = settings_tables() in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert listed, WRITE


def test_sampling_as_text_is_the_same_as_the_mapping():
    text, mapping = (
        "temperature=0.7, top_k=5,no_repeat_ngram_size=20",
        {"temperature": 0.7, "top_k": 5},
    )
    assert resolve_infer(text, None) == resolve_infer({**mapping, "no_repeat_ngram_size": 20}, None)
    assert resolve_infer("do_sample=True", None)[0].do_sample
    assert resolve_infer({"temperature": np.float64(0.5)}, None)[0].temperature == 0.5
    assert SamplingSettings.from_infer({"temperature": 0.0}) == SamplingSettings()


NUMBERS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([10**400, 2**63, -(2**64), math.inf, -math.inf, math.nan, 5e-324]),
)
VALUES = st.one_of(
    *(NUMBERS, st.booleans(), st.none(), st.text(max_size=5), st.lists(NUMBERS, max_size=2)),
    st.binary(max_size=3),
)
ASKED = sorted(set(setting_names(RunSettings)) - {"infer", "kernel_trace"})  # of no one type
SAMPLING = ("do_sample", "temperature", "top_p", "top_k", "no_repeat_ngram_size", "heat", 5)


@example({"seed": 2**63})
@example({"seed": math.nan})
@example({"repeats": True})
@example({"preset": ["tiny"]})
@given(st.dictionaries(st.sampled_from(ASKED), VALUES, max_size=3))
def test_a_setting_that_is_accepted_can_be_saved(settings):
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
def test_sampling_that_is_accepted_runs_and_can_be_saved(infer):
    try:
        settings = SamplingSettings.from_infer(infer)
    except OcrPhasesError as error:
        assert str(error).count("\n") == 0
    else:
        json.dumps(asdict(settings), allow_nan=False)
        logits = torch.tensor([[-30.0, 0.0, 30.0]])
        assert 0 <= Sampler(settings)(logits, torch.tensor([[0, 1]])).item() <= 2


MANY = 10**15
WRONG = {
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
        *({"heat": 1}, {"temperature": -1}, {"top_p": 0}, {"temperature": math.inf}),
        *({"do_sample": True, "temperature": 0}, {"no_repeat_ngram_window": 5}, [1], 5),
        *([("temperature", 1.0)], "hot", "a=b", "a\nb=1", "temperature=warm", "heat=1", "greedy"),
    ],
}
BOTH = ({"first_token": "redecode"}, {"verify": True}, {"strategy": "compiled"})


@pytest.mark.parametrize("name", [*WRONG, "generate"])
def test_a_wrong_value_is_refused_in_one_sentence(name):
    wrong = [{name: value} for value in WRONG.get(name, ())] or [
        {"generate": True, **more} for more in BOTH
    ]
    for settings in wrong:
        with refused():
            RunSettings(**settings)


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
def test_an_error_about_a_setting_names_it_in_a_field(settings, field):
    with pytest.raises(SettingError) as caught:
        Settings(**settings)
    assert caught.value.field == field
    again = copy.copy(caught.value)  # made as it is made again in another process
    assert (again.field, str(again)) == (field, str(caught.value))


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
def test_the_command_line_names_options_in_place_of_keywords(keyword, option):
    spelling = OptionSpelling(DEFAULTS)
    error = SettingError(keyword.name, "Drop {keyword}.", keyword=keyword)
    assert error.sentence(spelling) == f"Drop {option}."


def test_a_value_in_a_sentence_may_have_braces_and_is_never_read_as_a_place():
    typed = "{setting} {0} {"
    error = OcrPhasesError("{setting} is {typed}.", setting=Keyword("infer"), typed=typed)
    assert str(error) == f"infer is {typed}."
    assert str(OcrPhasesError(f"There is no {typed}.")) == f"There is no {typed}."
