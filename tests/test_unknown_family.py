"""A model of a family that nobody named, or that this version does not know: nothing is assumed of
it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from batch_example import measured_here
from conftest import GOLDEN
from fake_server import Fake, served

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
PAGE = GOLDEN / "pages" / "small_400x300.png"
RECORD = ROOT / "data" / "runs" / "h100-invoice-eager.json.gz"
SHORT: dict[str, Any] = {"max_new_tokens": 4, "repeats": 1, "warmup": 0}
#: The name of a model that no family has.
QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"

FAMILIES_OF_NAMES = [
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
    (QWEN, "unknown"),
    ("deepseek-ai/DeepSeek-V3", "unknown"),
    ("deepseek-ocr-3", "unknown"),
    ("DeepSeek-OCR-2.5", "unknown"),
    ("not-deepseek-ocr-or-unlimited-ocr", "unknown"),
    ("ocr", "unknown"),
    ("ocr2", "unknown"),
    ("model", "unknown"),
    ("", "unknown"),
]


@pytest.mark.parametrize(("name", "family"), FAMILIES_OF_NAMES)
def test_a_name_tells_its_family_or_none(name: str, family: str) -> None:
    assert family_of_name(name) == family


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
def test_a_worker_s_class_tells_the_family(name: str, family: str) -> None:
    assert family_of_class(name) == family


# -- the family of a served model ------------------------------------------------------------------


@dataclass(frozen=True)
class ServedModel:
    """What tells the family of a served model, and what the record then says of it."""

    name: str
    family: str
    source: str
    named_by_user: str | None = None
    with_worker: bool = False


@pytest.mark.parametrize(
    "served_model",
    [
        ServedModel("deepseek-ocr-2025-10", "deepseek-ocr", "guessed from the served name"),
        ServedModel("DeepSeek-OCR-2", "deepseek-ocr-2", "guessed from the served name"),
        ServedModel(
            "DeepSeek-OCR-2", "deepseek-ocr", "named by the user", named_by_user="deepseek-ocr"
        ),
        ServedModel("model", "unlimited-ocr", "named by the user", named_by_user="unlimited-ocr"),
        ServedModel("model", "deepseek-ocr", "the worker's class", with_worker=True),
        ServedModel("model", "unknown", "unknown"),
        ServedModel("DeepSeek-OCR", "unknown", "named by the user", named_by_user="unknown"),
    ],
    ids=str,
)
def test_the_family_of_a_served_model(served_model: ServedModel) -> None:
    with served() as fake:
        fake.models = [served_model.name]
        fake.watched = served_model.with_worker
        session = ocr_phases.connect(fake.url, family=served_model.named_by_user)
        run = session.run_inference(PAGE, **SHORT)

    assert f"family {served_model.family}" in repr(session)
    assert served_model.source in repr(session)
    assert run.model.family == served_model.family
    assert run.model.server["family_source"] == served_model.source


def test_a_batch_tells_the_family_of_a_served_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", measured_here)
    command = ["batch", str(PAGE), "--family", "unlimited-ocr", "--out", str(tmp_path)]
    command += ["--max-new-tokens", "4", "--repeats", "1", "--warmup", "0", "--render", "none"]
    with served() as fake:
        fake.models = ["model"]
        assert main([*command, "--server", fake.url]) == 0

    (record,) = tmp_path.rglob("run.json*")
    run = PhaseRun.load(record)
    assert run.model.family == "unlimited-ocr"
    assert run.model.server["family_source"] == "named by the user"


def test_the_explorer_tells_the_family_of_a_served_model() -> None:
    form = Form()
    with served() as fake:
        fake.models = ["model"]
        values = form.values(fake.url) | {"family": "deepseek-ocr-2"}
        (job,) = form.jobs(values)
        session = kept_session(**job.settings.of_model())
    assert session.family.name == "deepseek-ocr-2"
    assert "family='deepseek-ocr-2'" in job.code()


@pytest.mark.parametrize(
    ("verb", "target"),
    [("profile", "--save"), ("report", "--out"), ("batch", "--out"), ("sweep", "--out")],
)
def test_only_a_server_is_told_its_family(
    verb: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [verb, str(PAGE), "--model", "tiny", "--family", "unknown"]
    assert main([*command, target, str(tmp_path / "out")]) == 2
    assert "Only a --server is told its model's family: drop --family" in capsys.readouterr().err


def test_a_loaded_model_is_not_told_its_family() -> None:
    with pytest.raises(OcrPhasesError, match="Only a server is told its model's family"):
        OCRSession.load("tiny", family="unknown")


def test_a_server_s_model_has_no_family_that_nobody_knows() -> None:
    with pytest.raises(OcrPhasesError, match="Unknown family 'qwen'"):
        Settings(model="http://127.0.0.1:9/v1", family="qwen")


def test_a_server_s_model_is_not_compared_with_one_of_a_known_family() -> None:
    with served() as fake:
        fake.models = [QWEN]
        session = ocr_phases.connect(fake.url, reference="tiny")
        with pytest.raises(OcrPhasesError, match="Nothing tells the family of Qwen.*--family"):
            session.run_inference(PAGE, verify=True, **SHORT)


# -- nothing is assumed ----------------------------------------------------------------------------


def served_qwen(fake: Fake) -> Any:
    """A session of a served model that no family has."""
    fake.models = [QWEN]
    return ocr_phases.connect(fake.url)


every_dialect = pytest.mark.parametrize("dialect", ["vllm", "sglang", "other"])


@every_dialect
def test_a_prompt_is_sent_as_it_stands_to_an_unknown_family(dialect: str) -> None:
    text = "<image>\n Read this page. "
    with served(dialect) as fake:
        session = served_qwen(fake)
        session.run_inference(PAGE, text, **SHORT)
        session.run_inference(PAGE, **SHORT)

    of_text, by_default = fake.bodies
    assert of_text["messages"][0]["content"][1]["text"] == text
    assert "skip_special_tokens" not in of_text
    message = by_default["messages"][0]["content"][1]["text"]
    assert message == "Convert the document to markdown."


@every_dialect
def test_settings_of_a_known_family_are_refused_by_an_unknown_one(dialect: str) -> None:
    with served(dialect) as fake:
        session = served_qwen(fake)
        for settings in (
            {"preset": "base"},
            {"prompt": "ocr"},
            {"grounding": True},
            {"infer": "published"},
        ):
            with pytest.raises(OcrPhasesError, match="unknown"):
                session.run_inference(PAGE, **SHORT, **settings)


@every_dialect
def test_nothing_is_assumed_of_an_unknown_family(dialect: str, tmp_path: Path) -> None:
    with served(dialect) as fake:
        run = served_qwen(fake).run_inference(PAGE, "<image>\n Read this page. ", **SHORT)

    assert run.page.preset == "processor"
    assert run.page.image_tokens is None
    assert run["valid_image_tokens"] is None
    assert run["compression_ratio"] is None
    assert run.floors.empty
    verdicts = run.checks.set_index("name")["verdict"]
    assert verdicts["server_preset"] == "n/a"

    path = run.save(tmp_path / "run.json")
    again = PhaseRun.load(path)
    shown = "".join(again._repr_mimebundle_().values())
    assert "DeepSeek" not in shown
    ocr_phases.compare(run, again)
    assert main(["report", "--record", str(path), "--out", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("family", [None, "paddleocr_vl", "deepseek-ocr-9"])
def test_a_record_of_a_family_that_is_not_known_opens_and_is_reported(
    family: str | None, tmp_path: Path
) -> None:
    known = PhaseRun.load(RECORD)
    model = msgspec.structs.replace(known.model, family=family)
    path = replace(known, model=model).save(tmp_path / "run.json")

    again = PhaseRun.load(path)

    assert again.model.family == family
    assert again.floors.empty
    assert again["prefill_ms"] == known["prefill_ms"]
    assert len(again.stages) == len(known.stages)
    ocr_phases.compare(again, known)
    again.explore()
    assert main(["report", "--record", str(path), "--out", str(tmp_path / "out")]) == 0
    assert main(["artifacts", str(path), "--out", str(tmp_path / "files")]) == 0


def test_neutral_facts_have_no_figures_of_a_known_family() -> None:
    facts = facts_of("paddleocr_vl")
    assert facts.name == "paddleocr_vl"
    assert list(facts.presets) == ["processor"]
    assert facts.published_limit is None
    assert facts.page_mark is None
    assert not facts.published


def test_facts_are_found_by_the_name_of_their_family() -> None:
    assert facts_of(None).name == "unknown"
    for name, facts in FAMILIES.items():
        assert facts_of(name) is facts


# -- hints -----------------------------------------------------------------------------------------


#: Names of prompts and presets that are a family's own; "markdown" is asked of every model.
FAMILY_WORDS = [*PRESET_NAMES, *(name for name in PROMPT_NAMES if name != "markdown")]


def family_words_in(sentence: str) -> list[str]:
    """The names of a family's own prompts and presets that a sentence has."""
    return [word for word in FAMILY_WORDS if re.search(rf"\b{word}\b", sentence)]


def served_without_family() -> Any:
    """A session of a served model that no family has, for what is refused before it is asked."""
    with served("other") as fake:
        return served_qwen(fake)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"preset": "bsae"}, []),
        ({"preset": "gundm"}, []),
        ({"prompt": "  "}, []),
        ({"prompt": "locate:"}, ["locate"]),  # what was asked for
    ],
    ids=str,
)
def test_a_wrong_name_is_not_hinted_by_a_session_with_those_of_another_family(
    wrong: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(OcrPhasesError) as refusal:
        served_without_family().run_inference(PAGE, **SHORT, **wrong)
    assert family_words_in(str(refusal.value)) == words


@pytest.mark.parametrize(
    "wrong", [{"preset": "bsae"}, {"preset": "gundm"}, {"prompt": "  "}], ids=str
)
@pytest.mark.parametrize("model", [QWEN, "models/got", "http://host/v1"])
def test_a_wrong_name_is_not_hinted_by_settings_with_those_of_another_family(
    model: str, wrong: dict[str, str]
) -> None:
    with pytest.raises(OcrPhasesError) as refusal:
        Settings(model=model, **wrong)
    assert family_words_in(str(refusal.value)) == []


@pytest.mark.parametrize("word", ["OCR", "Figure", "markdwon", "free!"])
def test_one_word_is_a_prompt_of_its_own_where_no_family_has_its_name(word: str) -> None:
    with served("other") as fake:
        fake.models = ["PaddlePaddle/PaddleOCR-VL"]
        request = ocr_phases.connect(fake.url).check_request(PAGE, prompt=word)
    assert request.prompts == [word]
    assert Settings(model="PaddlePaddle/PaddleOCR-VL", prompt=word).prompt == word


@pytest.mark.parametrize(
    "model",
    ["tiny", "dummy:unlimited-ocr", "deepseek-ai/DeepSeek-OCR", "models/unlimited-ocr"],
)
def test_a_misspelt_name_of_a_known_family_is_refused_before_loading(model: str) -> None:
    with pytest.raises(OcrPhasesError, match="Did you mean base"):
        Settings(model=model, preset="bsae")
    with pytest.raises(OcrPhasesError, match="Did you mean markdown"):
        Settings(model=model, prompt="markdwon")


@pytest.mark.parametrize(
    ("model", "hint"), [("tiny", "Did you mean base"), ("Qwen/Qwen2.5-VL", "There is no preset")]
)
def test_a_batch_names_presets_of_its_own_model(
    model: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["batch", str(PAGE), "--model", model, "--presets", "tiny,bsae"]
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert hint in capsys.readouterr().err


# -- a prompt of unknown length --------------------------------------------------------------------


@dataclass(frozen=True)
class TwoRecords:
    """A record that knows the length of its prompt, and the same record without it."""

    known: PhaseRun
    unknown: PhaseRun


@pytest.fixture(scope="module")
def records() -> TwoRecords:
    known = PhaseRun.load(RECORD)
    request = msgspec.structs.replace(known.request, prefill_len=None)
    return TwoRecords(known, replace(known, request=request))


def swept(**runs: PhaseRun) -> SweepResult:
    """A sweep of these records."""
    return SweepResult(runs, pd.DataFrame(columns=list(FAILURE_COLUMNS)))


def record_in_terminal(records: TwoRecords) -> str:
    return repr(records.unknown)


def record_in_notebook(records: TwoRecords) -> str:
    return "".join(records.unknown._repr_mimebundle_().values())


def baseline_of_comparison(records: TwoRecords) -> str:
    return repr(ocr_phases.compare(records.unknown, records.known))


def other_of_comparison(records: TwoRecords) -> str:
    return repr(ocr_phases.compare(records.known, records.unknown))


def sweep_without_lengths(records: TwoRecords) -> str:
    return repr(swept(a=records.unknown, b=records.unknown))


def sweep_with_one_length(records: TwoRecords) -> str:
    return repr(swept(a=records.known, b=records.unknown))


def sweep_of_two_models(records: TwoRecords) -> str:
    model = msgspec.structs.replace(records.unknown.model, name="B")
    return repr(swept(a=records.known, b=replace(records.unknown, model=model)))


def plots_of_sweep(records: TwoRecords) -> str:
    one_length = swept(a=records.known, b=records.unknown)
    no_length = swept(a=records.unknown, b=records.unknown)
    figures = [one_length.plot.prefill(), no_length.plot.prefill(), one_length.plot.vision()]
    return repr(figures)


def floors(records: TwoRecords) -> str:
    return repr(records.unknown.floors)


def cache_over_steps(records: TwoRecords) -> str:
    return repr(records.unknown.token_table)


@pytest.mark.parametrize(
    "show",
    [
        record_in_terminal,
        record_in_notebook,
        baseline_of_comparison,
        other_of_comparison,
        sweep_without_lengths,
        sweep_with_one_length,
        sweep_of_two_models,
        plots_of_sweep,
        floors,
        cache_over_steps,
    ],
)
def test_a_prompt_of_unknown_length_is_shown_as_unknown(
    show: Callable[[TwoRecords], str], records: TwoRecords
) -> None:
    assert not re.search(r"(nan|None|\.0) (prompt )?tokens", show(records))
