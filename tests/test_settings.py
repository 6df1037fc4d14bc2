"""A setting is declared once: signatures, options, notebooks, explorer, lists, records and docs follow."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import nbformat
import numpy as np
import papermill
import pytest
from refusals import refused

from benchmarks.settings_docs import NOTEBOOKS, settings_lists, with_parameters
from ocr_phases import OCRSession, Settings
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.cli.options import EVERY, KERNELS, SETTINGS, Parser, add_options
from ocr_phases.explorer.form import LEFT_OUT, Form
from ocr_phases.settings import (
    REQUEST_SETTINGS,
    ModelSettings,
    RunSettings,
    kind,
    resolve_infer,
    setting_from_text,
    setting_names,
)

ROOT = Path(__file__).parents[1]
DEFAULTS = vars(Settings())


@pytest.mark.parametrize(
    ("call", "settings"),
    [(OCRSession.load, ModelSettings), (OCRSession.run_inference, RunSettings)],
)
def test_the_signatures_name_every_setting(call, settings) -> None:
    found = {
        name: parameter.default
        for name, parameter in inspect.signature(call).parameters.items()
        if name not in ("self", "page", "on_tokens", "progress")
    }
    assert found == {name: DEFAULTS[name] for name in setting_names(settings)}


def test_an_unknown_keyword_is_refused(tiny_session) -> None:
    with refused(TypeError):
        tiny_session.run_inference("page.png", max_tokens=3)


@pytest.mark.parametrize("verb", SETTINGS)
def test_the_options_of_a_verb_have_the_settings_defaults(verb: str) -> None:
    parser = Parser()
    add_options(parser, verb)
    asked = parser.parse_args([])
    own = {"token_probabilities": False} if verb == "batch" else {}
    if verb != "sweep":
        assert Settings.among(vars(asked)) == Settings(**own)
        assert set(EVERY) - set(vars(asked)) <= {*LEFT_OUT, "revision", "verify"}
    shared = set(vars(asked)) & set(DEFAULTS) - {"max_new_tokens" if verb == "sweep" else ""}
    assert {name: vars(asked)[name] for name in shared} == {
        name: {**DEFAULTS, **own}[name] for name in shared
    }


def test_every_setting_is_an_option_that_stores_its_type() -> None:
    parser = Parser()
    add_options(parser, "report")
    words, wanted = [], {}
    for setting in fields(Settings):
        if setting.name not in (*EVERY, *KERNELS):
            continue
        option = setting.name.replace("_", "-")
        if kind(setting) == "bool":
            value: object = not setting.default
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            value = 7 if kind(setting) == "int" else "words"
            words += [f"--{option}", str(value)]
        wanted[setting.name] = value
    asked = parser.parse_args([*words, "page.png"])
    assert {name: getattr(asked, name) for name in wanted} == wanted
    assert len(asked.given) == len(wanted)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebooks_parameters_are_the_settings(name: str) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert cell.source == with_parameters(cell.source, NOTEBOOKS[name])
    path = ROOT / "notebooks" / f"{name}.ipynb"
    assert set(NOTEBOOKS[name]) <= set(papermill.inspect_notebook(str(path)))


def test_the_explorer_has_a_field_for_every_setting() -> None:
    form = Form()
    shown = {field["name"] for field in form.fields("tiny")} - {"pages", "presets"}
    assert shown | set(LEFT_OUT) == set(DEFAULTS)
    assert form.jobs(form.values("tiny"))[0].settings == Settings(
        repeats=LEAST_REPEATS, max_new_tokens=512
    )  # so many that Compare can judge


def test_the_record_keeps_every_setting_of_a_run(tiny_session) -> None:
    quick = {"max_new_tokens": 2, "repeats": 1, "warmup": 0, "ceilings": False, "preset": "tiny"}
    run = tiny_session.run_inference(ROOT / "data/pages/receipt.png", **quick, infer="temperature=0")
    assert set(REQUEST_SETTINGS) <= set(run.request)
    assert not set(run.request) & {"ceilings", "kernels", "kernel_trace", *setting_names(ModelSettings)}
    assert None not in [run.request[name] for name in REQUEST_SETTINGS]


def test_the_docs_list_every_setting() -> None:
    assert settings_lists() in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


def test_a_list_of_pages_gives_each_setting_its_type() -> None:
    assert setting_from_text("repeats", "3") == 3
    assert setting_from_text("grounding", "False") is False
    assert setting_from_text("infer", "temperature=0.7") == "temperature=0.7"
    for name, text in (("repeats", "three"), ("ceilings", "maybe")):
        with refused():
            setting_from_text(name, text)


def test_sampling_as_text_is_the_same_as_the_mapping() -> None:
    text, mapping = "temperature=0.7, top_k=5,no_repeat_ngram_size=20", {"temperature": 0.7, "top_k": 5}
    assert resolve_infer(text, None) == resolve_infer({**mapping, "no_repeat_ngram_size": 20}, None)
    assert resolve_infer("do_sample=True", None)[0].do_sample
    assert resolve_infer({"temperature": np.float64(0.5)}, None)[0].temperature == 0.5
    for wrong in ("temperature=warm", "heat=1", "greedy"):
        with refused():
            resolve_infer(wrong, None)
