"""A model of a family that nobody named, or that this version does not know: nothing is assumed of
it.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from fake_server import served

import ocr_phases
from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, Settings, SweepResult
from ocr_phases.analyse.sweep_table import FAILURE_COLUMNS
from ocr_phases.cli import main
from ocr_phases.explorer.form import Form
from ocr_phases.families import (
    FAMILIES,
    PRESET_NAMES,
    PROMPT_NAMES,
    facts_of,
    family_of_class,
    family_of_name,
)
from ocr_phases.session.kept import kept_session

ROOT = Path(ocr_phases.__file__).parents[1]
PAGE = ROOT / "data" / "pages" / "receipt.png"
RECORD = ROOT / "data" / "runs" / "h100-invoice-eager.json.gz"
SHORT: dict[str, Any] = {"max_new_tokens": 4, "repeats": 1, "warmup": 0}

NAMES = [
    ("deepseek-ai/DeepSeek-OCR", "deepseek-ocr"),
    ("deepseek-ocr-2025-10", "deepseek-ocr"),
    ("DeepSeek-OCR-24g-awq", "deepseek-ocr"),
    ("/data/deepseek-ocr/2510/snap", "deepseek-ocr"),
    ("mlx-community/DeepSeek-OCR-4bit", "deepseek-ocr"),
    ("deepseek-ocr:3b", "deepseek-ocr"),
    ("DeepseekOCRForCausalLM", "deepseek-ocr"),
    ("deepseek-ocr-2", "deepseek-ocr-2"),
    ("DeepSeek-OCR-2-awq", "deepseek-ocr-2"),
    ("DeepSeek_OCR2", "deepseek-ocr-2"),
    ("deepseek-ai/DeepSeek-OCR-2", "deepseek-ocr-2"),
    ("DeepseekOCR2ForCausalLM", "deepseek-ocr-2"),
    ("DeepseekOcr2ForConditionalGeneration", "deepseek-ocr-2"),
    ("baidu/Unlimited-OCR", "unlimited-ocr"),
    ("unlimited_ocr-awq", "unlimited-ocr"),
    ("UnlimitedOCRForCausalLM", "unlimited-ocr"),
    ("Qwen/Qwen2.5-VL-7B-Instruct", "unknown"),
    ("deepseek-ai/DeepSeek-V3", "unknown"),
    ("deepseek-ocr-3", "unknown"),
    ("DeepSeek-OCR-2.5", "unknown"),
    ("not-deepseek-ocr-or-unlimited-ocr", "unknown"),
    ("ocr", "unknown"),
    ("ocr2", "unknown"),
    ("model", "unknown"),
    ("", "unknown"),
]


@pytest.mark.parametrize(("name", "family"), NAMES)
def test_a_name_tells_its_family_or_none(name: str, family: str):
    assert family_of_name(name) == family


#: The served name, the user's family, the worker's extension; the family of the record and where it
#: is from.
SERVED = [
    ("deepseek-ocr-2025-10", None, False, "deepseek-ocr", "guessed from the served name"),
    ("DeepSeek-OCR-2", None, False, "deepseek-ocr-2", "guessed from the served name"),
    ("DeepSeek-OCR-2", "deepseek-ocr", False, "deepseek-ocr", "named by the user"),
    ("model", "unlimited-ocr", False, "unlimited-ocr", "named by the user"),
    ("model", None, True, "deepseek-ocr", "the worker's class"),
    ("model", None, False, "unknown", "unknown"),
    ("DeepSeek-OCR", "unknown", False, "unknown", "named by the user"),
]


@pytest.mark.parametrize(("name", "asked", "watched", "family", "source"), SERVED)
def test_the_family_of_a_served_model(name, asked, watched, family, source):
    with served() as fake:
        fake.models, fake.watched = [name], watched
        session = ocr_phases.connect(fake.url, family=asked)
        run = session.run_inference(PAGE, **SHORT)
    assert f"family {family}" in repr(session) and source in repr(session)
    assert run.model.family == family
    assert run.model.server["family_source"] == source


def test_a_batch_tells_the_family_of_a_served_model(tmp_path: Path):
    short = ["--max-new-tokens", "4", "--repeats", "1", "--warmup", "0", "--render", "none"]
    with served() as fake:
        fake.models = ["model"]
        server = ["--server", fake.url, "--family", "unlimited-ocr"]
        assert main(["batch", str(PAGE), *server, *short, "--out", str(tmp_path)]) == 0
    (record,) = tmp_path.rglob("run.json*")
    run = PhaseRun.load(record)
    assert run.model.family == "unlimited-ocr"
    assert run.model.server["family_source"] == "named by the user"


def test_the_explorer_tells_the_family_of_a_served_model():
    form = Form()
    with served() as fake:
        fake.models = ["model"]
        values = form.values(fake.url) | {"family": "deepseek-ocr-2"}
        (job,) = form.jobs(values)
        session = kept_session(**job.settings.of_model())
    assert session.family.name == "deepseek-ocr-2"
    assert "family='deepseek-ocr-2'" in job.code()


@pytest.mark.parametrize("verb", ["profile", "report", "batch", "sweep"])
def test_only_a_server_is_told_its_family(verb: str, tmp_path: Path, capsys):
    out = ["--save" if verb == "profile" else "--out", str(tmp_path / "out")]
    assert main([verb, str(PAGE), "--model", "tiny", "--family", "unknown", *out]) == 2
    assert "Only a --server is told its model's family: drop --family" in capsys.readouterr().err


def test_a_loaded_model_is_not_told_its_family():
    with pytest.raises(OcrPhasesError, match="Only a server is told its model's family"):
        OCRSession.load("tiny", family="unknown")
    with pytest.raises(OcrPhasesError, match="Unknown family 'qwen'"):
        Settings(model="http://127.0.0.1:9/v1", family="qwen")


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "other"])
def test_nothing_is_assumed_of_an_unknown_family(dialect: str, tmp_path: Path):
    with served(dialect) as fake:
        fake.models = ["Qwen/Qwen2.5-VL-7B-Instruct"]
        session = ocr_phases.connect(fake.url)
        text = "<image>\n Read this page. "
        run = session.run_inference(PAGE, text, **SHORT)
        session.run_inference(PAGE, **SHORT)
        for settings in (
            {"preset": "base"},
            {"prompt": "ocr"},
            {"grounding": True},
            {"infer": "published"},
        ):
            with pytest.raises(OcrPhasesError, match="unknown"):
                session.run_inference(PAGE, **SHORT, **settings)
    sent, plain = (body["messages"][0]["content"][1]["text"] for body in fake.bodies)
    assert sent == text
    assert plain == "Convert the document to markdown."
    assert "skip_special_tokens" not in fake.bodies[0]
    assert run.page.preset == "processor"
    assert run.page.image_tokens is None and run["valid_image_tokens"] is None
    assert run["compression_ratio"] is None and run.floors.empty
    checks = run.checks.set_index("name")["verdict"]
    assert checks["server_preset"] == "n/a"
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    shown = "".join(again._repr_mimebundle_().values())
    assert "DeepSeek" not in shown
    ocr_phases.compare(run, again)
    assert (
        main(["report", "--record", str(tmp_path / "run.json"), "--out", str(tmp_path / "out")])
        == 0
    )


@pytest.mark.parametrize("family", [None, "unknown", "paddleocr_vl", "deepseek-ocr-9"])
def test_a_record_of_a_family_that_is_not_known_opens_and_is_reported(
    family: str | None, tmp_path: Path
):
    known = PhaseRun.load(RECORD)
    run = replace(known, model=msgspec.structs.replace(known.model, family=family))
    path = run.save(tmp_path / "run.json")
    again = PhaseRun.load(path)
    assert again.model.family == family
    assert again.floors.empty
    assert again["prefill_ms"] == known["prefill_ms"]
    assert len(again.stages) == len(known.stages)
    ocr_phases.compare(again, known)
    again.explore()
    assert main(["report", "--record", str(path), "--out", str(tmp_path / "out")]) == 0
    assert main(["artifacts", str(path), "--out", str(tmp_path / "files")]) == 0


#: Names of prompts and presets that are a family's own; "markdown" is asked of every model.
FAMILY_WORDS = [*PRESET_NAMES, *(name for name in PROMPT_NAMES if name != "markdown")]
MISSPELT = [{"preset": "bsae"}, {"preset": "gundm"}, {"prompt": "  "}, {"prompt": "locate:"}]


def names_of_families(sentence: str) -> list[str]:
    return [word for word in FAMILY_WORDS if re.search(rf"\b{word}\b", sentence)]


@pytest.mark.parametrize("wrong", MISSPELT, ids=str)
@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-VL-7B-Instruct", "models/got", "http://host/v1"])
def test_a_wrong_name_is_not_hinted_with_those_of_another_family(model: str, wrong: dict[str, str]):
    with served("other") as fake:
        fake.models = ["Qwen/Qwen2.5-VL-7B-Instruct"]
        session = ocr_phases.connect(fake.url)
    with pytest.raises(OcrPhasesError) as by_session:
        session.run_inference(PAGE, **SHORT, **wrong)
    sentences = [str(by_session.value)]
    if "locate:" not in wrong.values():  # which a model of unknown name may be asked for
        with pytest.raises(OcrPhasesError) as by_name:
            Settings(model=model, **wrong)
        sentences.append(str(by_name.value))
    own = [] if "locate:" not in wrong.values() else ["locate"]  # what was asked for
    assert [names_of_families(sentence) for sentence in sentences] == [own] * len(sentences)


@pytest.mark.parametrize("word", ["OCR", "Figure", "markdwon", "free!"])
def test_one_word_is_a_prompt_of_its_own_where_no_family_has_its_name(word: str):
    with served("other") as fake:
        fake.models = ["PaddlePaddle/PaddleOCR-VL"]
        request = ocr_phases.connect(fake.url).check_request(PAGE, prompt=word)
    assert request.prompts == [word]
    assert Settings(model="PaddlePaddle/PaddleOCR-VL", prompt=word).prompt == word


KNOWN = ["tiny", "dummy:unlimited-ocr", "deepseek-ai/DeepSeek-OCR", "models/unlimited-ocr"]


@pytest.mark.parametrize("model", KNOWN)
def test_a_misspelt_name_of_a_known_family_is_refused_before_loading(model: str):
    with pytest.raises(OcrPhasesError, match="Did you mean base"):
        Settings(model=model, preset="bsae")
    with pytest.raises(OcrPhasesError, match="Did you mean markdown"):
        Settings(model=model, prompt="markdwon")


@pytest.mark.parametrize(
    ("model", "told"), [("tiny", "Did you mean base"), ("Qwen/Qwen2.5-VL", "There is no preset")]
)
def test_a_batch_names_presets_of_its_own_model(model: str, told: str, tmp_path: Path, capsys):
    presets = ["--presets", "tiny,bsae"]
    assert main(["batch", str(PAGE), "--model", model, *presets, "--out", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err


def without_prompt_length(run: PhaseRun) -> PhaseRun:
    return replace(run, request=msgspec.structs.replace(run.request, prefill_len=None))


def swept(**runs: PhaseRun) -> SweepResult:
    return SweepResult(runs, pd.DataFrame(columns=list(FAILURE_COLUMNS)))


#: What shows the length of a prompt, of a record that has one and the same record without it.
READERS: dict[str, Callable[[PhaseRun, PhaseRun], str]] = {
    "a record in a terminal": lambda known, unknown: repr(unknown),
    "a record in a notebook": lambda known, unknown: "".join(unknown._repr_mimebundle_().values()),
    "the baseline of a comparison": lambda known, unknown: repr(ocr_phases.compare(unknown, known)),
    "the other record compared": lambda known, unknown: repr(ocr_phases.compare(known, unknown)),
    "a sweep without lengths": lambda known, unknown: repr(swept(a=unknown, b=unknown)),
    "a sweep with one length": lambda known, unknown: repr(swept(a=known, b=unknown)),
    "a sweep of two models": lambda known, unknown: repr(
        swept(a=known, b=replace(unknown, model=msgspec.structs.replace(unknown.model, name="B")))
    ),
    "the plots of a sweep": lambda known, unknown: repr(
        [
            swept(a=known, b=unknown).plot.prefill(),
            swept(a=unknown, b=unknown).plot.prefill(),
            swept(a=known, b=unknown).plot.vision(),
        ]
    ),
    "the floors": lambda known, unknown: repr(unknown.floors),
    "the cache over the steps": lambda known, unknown: repr(unknown.token_table),
}


def test_a_server_s_model_is_not_compared_with_one_of_a_known_family():
    with served() as fake:
        fake.models = ["Qwen/Qwen2.5-VL-7B-Instruct"]
        session = ocr_phases.connect(fake.url, reference="tiny")
        with pytest.raises(OcrPhasesError, match="Nothing tells the family of Qwen.*--family"):
            session.run_inference(PAGE, verify=True, **SHORT)


@pytest.mark.parametrize("reader", READERS)
def test_a_prompt_of_unknown_length_is_shown_as_unknown(reader: str):
    known = PhaseRun.load(RECORD)
    shown = READERS[reader](known, without_prompt_length(known))
    assert not re.search(r"(nan|None|\.0) (prompt )?tokens", shown)


def test_neutral_facts_have_no_figures_of_a_known_family():
    facts = facts_of("paddleocr_vl")
    assert (facts.name, [*facts.presets]) == ("paddleocr_vl", ["processor"])
    assert facts.published_limit is None and facts.page_mark is None and not facts.published
    assert facts_of(None).name == "unknown"
    assert all(facts_of(name) is row for name, row in FAMILIES.items())


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("TinyDeepseekOCR", "deepseek-ocr"),
        ("DeepseekOCRForCausalLM", "deepseek-ocr"),
        ("DeepseekOcr2ForConditionalGeneration", "deepseek-ocr-2"),
        ("DeepSeekOCR2", "deepseek-ocr-2"),
        ("UnlimitedOcrForConditionalGeneration", "unlimited-ocr"),
        ("Qwen2_5_VLForConditionalGeneration", "unknown"),
    ],
)
def test_a_worker_s_class_tells_the_family(name, family):
    assert family_of_class(name) == family
