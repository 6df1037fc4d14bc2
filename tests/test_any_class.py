"""Any image-text-to-text class of transformers: its tokens, its stages, and what is said of it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from any_classes import FOLDERS
from conftest import PAGES, RUNS
from more_any_classes import MORE_FOLDERS
from torch import nn

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, compare
from ocr_phases.cli import main
from ocr_phases.inputs.processed import ProcessedInputs, ProcessedPages
from ocr_phases.measure.probabilities import token_probabilities
from ocr_phases.models import processors
from ocr_phases.models.anyclass import any_interface
from ocr_phases.models.processors import render_chat

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = PAGES / "receipt.png"
EIGHT_TOKENS: dict[str, Any] = {
    "max_new_tokens": 8,
    "repeats": 1,
    "warmup": 0,
    "ignore_eos": True,
    "ceilings": False,
}
#: The classes whose reports are written: the others' have the same parts.
REPORTED = ("gemma3", "qwen2_5_vl")
#: Where the projector hangs inside the encoder, whose time then holds its own.
MERGED = {"qwen2_5_vl", "qwen3_vl", "glm_ocr", "granite_docling"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each class, by its family."""
    root = tmp_path_factory.mktemp("models")
    return {name: make().save(root / name) for name, make in FOLDERS.items()}


@pytest.fixture(scope="module")
def session_of(folders: dict[str, Path]) -> Callable[[str], OCRSession]:
    """A function that gives a session of a class by its family, loaded once."""

    @cache
    def load(family: str) -> OCRSession:
        return OCRSession.load(folders[family])

    return load


@dataclass(frozen=True)
class MeasuredClass:
    """A session of a class, and a record of it."""

    family: str
    session: OCRSession
    run: PhaseRun

    def verdict_of(self, check: str) -> str:
        return verdicts_of(self.run)[check]


def verdicts_of(run: PhaseRun) -> dict[str, str]:
    """The verdict of each check of a record, by its name."""
    return run.checks.set_index("name")["verdict"].to_dict()


@pytest.fixture(scope="module", params=sorted(FOLDERS))
def measured(
    request: pytest.FixtureRequest, session_of: Callable[[str], OCRSession]
) -> MeasuredClass:
    session = session_of(request.param)
    run = session.run_inference(PAGE, verify=True, **EIGHT_TOKENS)
    return MeasuredClass(request.param, session, run)


def test_tokens_are_those_of_generate(measured: MeasuredClass) -> None:
    inputs = measured.session.prepare(PAGE).to("cpu", torch.float32)

    tokens = measured.session.model.generate(
        **inputs.arguments, max_new_tokens=8, do_sample=False, eos_token_id=None
    )

    prompt_length = inputs.input_ids.shape[1]
    assert measured.run.result.ids == tokens[0, prompt_length:].tolist()
    assert measured.verdict_of("parity") == "pass"


def test_stages_are_those_of_the_class_and_a_merger_is_not_added_twice(
    measured: MeasuredClass,
) -> None:
    run = measured.run
    roles = {stage.name: stage.role for stage in run.model.stages}
    assert roles["encoder"] == "vision"
    assert roles["projector"] == "projector"
    assert roles["language_model"] == "language"

    prefill_ms = run.stages[run.stages["phase"] == "prefill"].set_index("stage")["device_ms"]
    vision_ms = prefill_ms["encoder"]
    if measured.family not in MERGED:
        vision_ms += prefill_ms["projector"]
    assert run["vision_ms"] == pytest.approx(vision_ms, rel=1e-6)


def test_the_cache_of_layers_with_a_window_has_the_bytes_that_it_holds(
    session_of: Callable[[str], OCRSession],
) -> None:
    session = session_of("gemma3")

    run = session.run_inference(PAGE, **EIGHT_TOKENS)

    bytes_per_entry = 2 * 2 * 16 * 4  # keys and values, 2 heads of 16 float32 numbers each
    # The layer with a window of 8 keeps 7 entries, the other one all.
    expected = [(7 + length) * bytes_per_entry for length in run.cache.lengths]
    assert run.cache.bytes == expected
    assert verdicts_of(run)["cache_linear"] == "n/a"
    with pytest.raises(OcrPhasesError, match="cannot drop an entry"):
        session.run_inference(PAGE, first_token="redecode", **EIGHT_TOKENS)


def test_vision_runs_in_the_prefill_alone_and_the_cache_grows_by_one(
    measured: MeasuredClass,
) -> None:
    run = measured.run
    growth = [after - before for before, after in pairwise(run.cache.lengths)]
    assert growth == [1] * 7
    decode_stages = set(run.spans.loc[run.spans["phase"] == "decode", "stage"])
    assert decode_stages.isdisjoint({"encoder", "projector"})
    assert measured.verdict_of("no_image_arguments_in_decode") == "pass"
    assert "fail" not in verdicts_of(run).values()


@pytest.fixture
def reported(measured: MeasuredClass) -> MeasuredClass:
    """A measured class of each kind: the others have the same parts."""
    if measured.family not in REPORTED:
        pytest.skip("one class of each kind is enough")
    return measured


def test_what_needs_facts_is_missing_and_nothing_is_called_deepseek(
    reported: MeasuredClass, tmp_path: Path
) -> None:
    run = PhaseRun.load(reported.run.save(tmp_path / "run.json"))
    assert run.model.family == reported.family
    assert run.floors.empty

    report = run.report(tmp_path / "out").read_text(encoding="utf-8")
    assert "deepseek" not in report.lower()
    run.explore()
    compare(run, PhaseRun.load(RUNS / "tiny-receipt.json.gz"))


def test_a_model_object_and_its_processor_give_the_same(reported: MeasuredClass) -> None:
    session = reported.session
    from_objects = OCRSession.from_model(session.model, session.checkpoint.packer.processor)
    run = from_objects.run_inference(PAGE, **EIGHT_TOKENS)
    assert run.result.ids == reported.run.result.ids


def test_probabilities_need_no_image_token_and_are_those_with_one(
    session_of: Callable[[str], OCRSession],
) -> None:
    session = session_of("qwen2_5_vl")
    inputs = session.prepare(PAGE).to("cpu", torch.float32)
    ids = [[5, 17, 40]]

    with_image_token = token_probabilities(session.model, inputs, ids)
    inputs.image_token_id = None
    without_image_token = token_probabilities(session.model, inputs, ids)

    assert without_image_token == with_image_token


def test_marks_of_tokens_grow_with_the_text_behind_the_prompt() -> None:
    ids = torch.tensor([[1, 9, 9, 2]])
    pixels = torch.zeros(1, 7)
    marks = {"mm_token_type_ids": ids == 9, "image_embeds_position_mask": (ids == 9).long()}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}

    processed = ProcessedInputs({**inputs, **marks}, None)
    longer = processed.followed_by(torch.tensor([[3, 4]])).arguments

    assert longer["input_ids"].tolist() == [[1, 9, 9, 2, 3, 4]]
    assert longer["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 1]]
    for name in marks:
        assert longer[name].long().tolist() == [[0, 1, 1, 0, 0, 0]]
    assert longer["pixel_values"] is pixels


def test_text_tokens_of_a_row_are_neither_image_tokens_nor_padding() -> None:
    ids = torch.tensor([[0, 0, 1, 9, 9, 2], [1, 9, 9, 9, 2, 3]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    inputs = ProcessedInputs({"input_ids": ids, "attention_mask": mask}, 9)

    pages = ProcessedPages(inputs, (), (1, 1), ("Read it.", "Read it."))

    assert pages.image_tokens == (2, 3)
    assert pages.text_tokens == (2, 3)


@pytest.mark.parametrize(
    "setting", [{"strategy": "compiled"}, {"vision": "compiled"}, {"preset": "base"}], ids=str
)
def test_what_only_a_family_can_do_is_refused_in_a_sentence(
    setting: dict[str, str], session_of: Callable[[str], OCRSession]
) -> None:
    session = session_of("qwen2_5_vl")
    with pytest.raises(OcrPhasesError, match="no known family|presets of"):
        session.run_inference(PAGE, **EIGHT_TOKENS, **setting)


@pytest.mark.parametrize("verb", ["profile", "report", "verify"])
def test_a_verb_takes_the_folder(verb: str, folders: dict[str, Path], tmp_path: Path) -> None:
    command = [verb, str(PAGE), "--model", str(folders["qwen2_5_vl"]), "--max-new-tokens", "4"]
    command.append("--no-ceilings")
    if verb != "verify":
        command += ["--repeats", "1"]
    if verb == "report":
        command += ["--out", str(tmp_path / "out")]
    assert main(command) == 0


@pytest.mark.parametrize("name", ["got-ocr2", "paddleocr-vl", "qwen2.5-vl-3b"])
def test_a_record_of_a_gpu_is_not_judged_by_what_is_expected_of_deepseek_ocr(name: str) -> None:
    run = PhaseRun.load(RUNS / f"h100-{name}.json.gz")
    expectations = run.checks[run.checks["name"].str.startswith("expected")]
    assert set(expectations["verdict"]) <= {"n/a"}
    assert run["vision_ms"] > 0
    assert run.floors.empty


# -- the parts of a class --------------------------------------------------------------------------


def model_on_meta(config: Any, class_name: str) -> nn.Module:
    """A model of a class of transformers, without memory for its weights."""
    with torch.device("meta"):
        return getattr(transformers, class_name)._from_config(config)


def test_each_of_two_towers_and_of_two_projectors_has_its_own_name() -> None:
    config = transformers.DeepseekVLHybridConfig()
    model = model_on_meta(config, "DeepseekVLHybridForConditionalGeneration")

    parts = any_interface(model).parts

    assert {part.stage: part.role for part in parts} == {
        "vision_model": "vision",
        "high_res_vision_model": "vision",
        "high_res_vision_neck": "vision",
        "high_res_vision_proj": "projector",
        "aligner": "projector",
        "language_model": "language",
        "lm_head": "head",
    }


def test_each_projector_of_a_list_is_a_stage_because_nobody_calls_the_list() -> None:
    config = MORE_FOLDERS["granite4_vision"]().config
    model = model_on_meta(config, "Granite4VisionForConditionalGeneration")

    parts = any_interface(model).parts

    assert [part.stage for part in parts if part.role == "projector"] == [
        "layerwise_projectors_0",
        "spatial_projectors_0",
        "spatial_projectors_1",
        "spatial_projectors_2",
        "spatial_projectors_3",
    ]


PARTS_OF_CLASSES = {
    # What makes pictures, and reads none, is no stage.
    "Janus": {"encoder": "model.vision_model", "projector": "model.aligner"},
    # A table of embeddings that is not the text's is the projector.
    "Ovis2": {"projector": "model.visual_embeddings_table"},
    # The decoder that the class names holds the head, which is a stage of its own.
    "Kosmos2_5": {"language_model": "text_model.model", "lm_head": "text_model.lm_head"},
    "Llava": {"encoder": "model.vision_tower", "projector": "model.multi_modal_projector"},
    "LlavaNext": {"projector": "model.multi_modal_projector"},
    "PaliGemma": {"projector": "model.multi_modal_projector"},
    "Idefics2": {"projector": "model.connector"},
    "Qwen2VL": {"projector": "model.visual.merger"},
    "Mistral3": {"encoder": "model.vision_tower"},
    "DeepseekVL": {"encoder": "model.vision_model", "projector": "model.aligner"},
}


@pytest.mark.parametrize(("name", "expected"), PARTS_OF_CLASSES.items(), ids=PARTS_OF_CLASSES)
def test_the_parts_of_a_class_are_found_by_what_it_calls_them(
    name: str, expected: dict[str, str]
) -> None:
    config = getattr(transformers, f"{name}Config")()
    interface = any_interface(model_on_meta(config, f"{name}ForConditionalGeneration"))
    paths = {part.stage: part.path for part in interface.parts}
    assert paths.items() >= expected.items()


@pytest.mark.parametrize(
    ("class_name", "reason"),
    [
        ("Florence2ForConditionalGeneration", "encoder-decoder"),
        ("Pix2StructForConditionalGeneration", "encoder-decoder"),
        ("UdopForConditionalGeneration", "encoder-decoder"),
        ("FuyuForCausalLM", "does not name an image encoder"),
        ("GitForCausalLM", "does not name an image encoder"),
        ("Blip2ForConditionalGeneration", r"generate\(\) of its own"),
        ("BlipForConditionalGeneration", r"generate\(\) of its own"),
        ("Kosmos2ForConditionalGeneration", r"generate\(\) of its own"),
        ("IdeficsForVisionText2Text", "reads both pixels and text"),
    ],
)
def test_a_class_that_cannot_be_driven_is_refused_and_told_why(
    class_name: str, reason: str
) -> None:
    config = getattr(transformers, class_name).config_class()
    model = model_on_meta(config, class_name)
    with pytest.raises(OcrPhasesError, match=reason):
        any_interface(model)


# -- what is refused -------------------------------------------------------------------------------


Change = Callable[[Path], None]


def without(name: str) -> Change:
    """Take a file out of a folder."""

    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


def with_config(**entries: Any) -> Change:
    """Change entries of a folder's config."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(config | entries), encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(without("tokenizer.json"), "tokenizer.json", id="no tokenizer"),
        pytest.param(
            without("preprocessor_config.json"),
            "preprocessor_config.json",
            id="no image processor",
        ),
        pytest.param(
            with_config(model_type="no_such_model"),
            "no_such_model",
            id="a model_type nobody knows",
        ),
        pytest.param(
            with_config(model_type="florence2"),
            "does not fit Florence2",
            id="an encoder-decoder without weights of it",
        ),
    ],
)
def test_a_folder_that_cannot_be_driven_is_refused_in_a_sentence(
    change: Change, words: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders["qwen2_5_vl"], tmp_path / "model"))
    change(folder)
    with pytest.raises(OcrPhasesError, match=words):
        OCRSession.load(folder)


def test_code_that_a_checkpoint_names_never_runs(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["qwen2_5_vl"], tmp_path / "model"))
    (folder / "own.py").write_text("raise SystemExit('it ran')\n", encoding="utf-8")
    name_own_code = with_config(
        auto_map={"AutoModel": "own.Model", "AutoProcessor": "own.Processor"}
    )
    name_own_code(folder)
    assert OCRSession.load(folder).family.name == "qwen2_5_vl"


HOSTILE_TEMPLATES = {
    "a long loop": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "loops over texts": "{% for a in 'x'|center(9000) %}{% for b in 'x'|center(9000) %}"
    "{% for c in 'x'|center(9000) %}{% endfor %}{% endfor %}{% endfor %}",
    "a long text that is not written": "{{ 'x'|center(10 ** 10)|length }}",
    "a long text": "{{ 'x' * 1000000000 }}",
    "a great power": "{{ 9 ** 9999999 }}",
    "a class": "{{ ''.__class__.__mro__ }}",
    "its own error": "{{ raise_exception('no images') }}",
    "endless calls": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "what is not there": "{{ messages[7]['content'] }}",
    "a repeated list": "{{ [0] * 10 ** 10 }}",
    "an import": "{% import 'os' as os %}{{ os }}",
    "no template": "{% for %}",
}


@pytest.mark.parametrize("template", HOSTILE_TEMPLATES.values(), ids=HOSTILE_TEMPLATES)
def test_a_hostile_chat_template_ends_in_a_sentence(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "CHAT_SECONDS", 1)
    with pytest.raises(OcrPhasesError, match="chat template cannot be rendered"):
        render_chat(template, "Read this page.", 1, "<s>", "</s>")


def test_a_chat_template_puts_pages_before_the_prompt() -> None:
    template = (
        "{% for part in messages[0]['content'] %}"
        "{{ '<img>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    )
    assert render_chat(template, "Read.", 2, "<s>", "</s>") == "<img><img>Read."
