"""Any image-text-to-text class of transformers: its tokens, its stages, and what is said of it."""

import json

import pytest
import torch
import transformers
from any_classes import FOLDERS
from conftest import PAGES, RUNS
from more_any_classes import MORE_FOLDERS

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, compare
from ocr_phases.cli import main
from ocr_phases.inputs.processed import ProcessedInputs, ProcessedPages
from ocr_phases.measure.probabilities import token_probabilities
from ocr_phases.models import processors
from ocr_phases.models.anyclass import any_interface
from ocr_phases.models.processors import render_chat

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = PAGES / "receipt.png"
ASKED = {"max_new_tokens": 8, "repeats": 1, "ignore_eos": True, "ceilings": False}
#: The classes whose reports are written: the others' have the same parts.
REPORTED = ("gemma3", "qwen2_5_vl")
#: Where the projector hangs inside the encoder, whose time then holds its own.
MERGED = {"qwen2_5_vl", "qwen3_vl", "glm_ocr", "granite_docling"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        name: make().save(tmp_path_factory.mktemp("models") / name)
        for name, make in FOLDERS.items()
    }


@pytest.fixture(scope="module", params=sorted(FOLDERS))
def measured(request, folders):
    """A session of a class, and a record of it."""
    session = OCRSession.load(folders[request.param])
    return request.param, session, session.run_inference(PAGE, verify=True, **ASKED)


def test_tokens_are_those_of_generate(measured):
    _, session, run = measured
    inputs = session.prepare(PAGE).to("cpu", torch.float32)
    tokens = session.model.generate(
        **inputs.given, max_new_tokens=8, do_sample=False, eos_token_id=None
    )
    assert run.result.ids == tokens[0, inputs.input_ids.shape[1] :].tolist()
    parity = run.checks[run.checks["name"] == "parity"]
    assert parity["verdict"].tolist() == ["pass"]


def test_stages_are_those_of_the_class_and_a_merger_is_not_added_twice(measured):
    name, _, run = measured
    roles = {stage.name: stage.role for stage in run.model.stages}
    assert roles["encoder"] == "vision"
    assert roles["projector"] == "projector"
    assert roles["language_model"] == "language"
    prefill = run.stages[run.stages["phase"] == "prefill"].set_index("stage")["device_ms"]
    expected = prefill["encoder"]
    if name not in MERGED:
        expected += prefill["projector"]
    assert run["vision_ms"] == pytest.approx(expected, rel=1e-6)


def test_the_cache_of_layers_with_a_window_has_the_bytes_that_it_holds(folders):
    session = OCRSession.load(folders["gemma3"])
    run = session.run_inference(PAGE, **ASKED)
    entry = 2 * 2 * 16 * 4  # bytes of keys and values, 2 heads of 16 float32 numbers each
    # The layer with a window of 8 keeps 7 entries, the other one all.
    assert run.cache.bytes == [(7 + length) * entry for length in run.cache.lengths]
    verdicts = dict(zip(run.checks["name"], run.checks["verdict"], strict=True))
    assert verdicts["cache_linear"] == "n/a"
    with pytest.raises(OcrPhasesError, match="cannot drop an entry"):
        session.run_inference(PAGE, first_token="redecode", **ASKED)


def test_vision_runs_in_the_prefill_alone_and_the_cache_grows_by_one(measured):
    _, _, run = measured
    lengths = run.cache.lengths
    assert [after - before for before, after in zip(lengths, lengths[1:], strict=False)] == [1] * 7
    assert set(run.spans.loc[run.spans["phase"] == "decode", "stage"]).isdisjoint(
        {"encoder", "projector"}
    )
    verdicts = dict(zip(run.checks["name"], run.checks["verdict"], strict=True))
    assert verdicts["no_image_arguments_in_decode"] == "pass"
    assert "fail" not in verdicts.values()


def test_what_needs_facts_is_missing_and_nothing_is_called_deepseek(measured, tmp_path):
    name, _, run = measured
    if name not in REPORTED:
        pytest.skip("one class of each kind is enough")
    path = run.save(tmp_path / "run.json")
    again = PhaseRun.load(path)
    assert again.model.family == name
    assert again.floors.empty
    report = again.report(tmp_path / "out").read_text(encoding="utf-8")
    assert "deepseek" not in report.lower()
    again.explore()
    compare(again, PhaseRun.load(RUNS / "tiny-receipt.json.gz"))


def test_a_model_object_and_its_processor_give_the_same(measured):
    name, session, run = measured
    if name not in REPORTED:
        pytest.skip("one class of each kind is enough")
    other = OCRSession.from_model(session.model, session.checkpoint.packer.processor)
    assert other.run_inference(PAGE, **ASKED).result.ids == run.result.ids


def test_probabilities_need_no_image_token_and_are_those_with_one(folders):
    session = OCRSession.load(folders["qwen2_5_vl"])
    inputs = session.prepare(PAGE).to("cpu", torch.float32)
    ids = [[5, 17, 40]]
    known = token_probabilities(session.model, inputs, ids)
    inputs.image_token_id = None
    assert token_probabilities(session.model, inputs, ids) == known


def test_marks_of_tokens_grow_with_the_text_behind_the_prompt():
    ids = torch.tensor([[1, 9, 9, 2]])
    marks = {"mm_token_type_ids": ids == 9, "image_embeds_position_mask": (ids == 9).long()}
    pixels = torch.zeros(1, 7)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    longer = ProcessedInputs({**given, **marks}, None).followed_by(torch.tensor([[3, 4]])).given
    assert longer["input_ids"].tolist() == [[1, 9, 9, 2, 3, 4]]
    assert longer["attention_mask"].tolist() == [[1] * 6]
    for name in marks:
        assert longer[name].long().tolist() == [[0, 1, 1, 0, 0, 0]]
    assert longer["pixel_values"] is pixels


def test_text_tokens_of_a_row_are_neither_image_tokens_nor_padding():
    ids = torch.tensor([[0, 0, 1, 9, 9, 2], [1, 9, 9, 9, 2, 3]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    given = {"input_ids": ids, "attention_mask": mask}
    pages = ProcessedPages(ProcessedInputs(given, 9), (), (1, 1), ("Read it.", "Read it."))
    assert pages.image_tokens == (2, 3)
    assert pages.text_tokens == (2, 3)


@pytest.mark.parametrize(
    "setting", [{"strategy": "compiled"}, {"vision": "compiled"}, {"preset": "base"}]
)
def test_what_only_a_family_can_do_is_refused_in_a_sentence(setting, folders):
    session = OCRSession.load(folders["qwen2_5_vl"])
    with pytest.raises(OcrPhasesError, match="no known family|presets of"):
        session.run_inference(PAGE, **ASKED, **setting)


@pytest.mark.parametrize("verb", ["profile", "report", "verify"])
def test_a_verb_takes_the_folder(verb, folders, tmp_path, capsys):
    target = {"profile": [], "report": ["--out", str(tmp_path / "out")], "verify": []}[verb]
    tokens = [] if verb == "verify" else ["--repeats", "1"]
    model = ["--model", str(folders["qwen2_5_vl"]), "--max-new-tokens", "4"]
    assert main([verb, str(PAGE), *model, *tokens, *target]) == 0


@pytest.mark.parametrize("name", ["got-ocr2", "paddleocr-vl", "qwen2.5-vl-3b"])
def test_a_record_of_a_gpu_is_not_judged_by_what_is_expected_of_deepseek_ocr(name):
    run = PhaseRun.load(RUNS / f"h100-{name}.json.gz")
    expected = run.checks[run.checks["name"].str.startswith("expected")]
    assert set(expected["verdict"]) <= {"n/a"}
    assert run["vision_ms"] > 0
    assert run.floors.empty


# -- the parts of a class --------------------------------------------------------------------------


def on_meta(config, model_class):
    """A model without memory for its weights."""
    with torch.device("meta"):
        return getattr(transformers, model_class)._from_config(config)


def test_each_of_two_towers_and_of_two_projectors_has_its_own_name():
    config = transformers.DeepseekVLHybridConfig()
    interface = any_interface(on_meta(config, "DeepseekVLHybridForConditionalGeneration"))
    roles = {part.stage: part.role for part in interface.parts}
    assert roles == {
        "vision_model": "vision",
        "high_res_vision_model": "vision",
        "high_res_vision_neck": "vision",
        "high_res_vision_proj": "projector",
        "aligner": "projector",
        "language_model": "language",
        "lm_head": "head",
    }


def test_each_projector_of_a_list_is_a_stage_because_nobody_calls_the_list():
    config = MORE_FOLDERS["granite4_vision"]().config
    interface = any_interface(on_meta(config, "Granite4VisionForConditionalGeneration"))
    projectors = [part.stage for part in interface.parts if part.role == "projector"]
    assert projectors == ["layerwise_projectors_0"] + [f"spatial_projectors_{i}" for i in range(4)]


PARTS = {
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


@pytest.mark.parametrize("name", PARTS)
def test_the_parts_of_a_class_are_found_by_what_it_calls_them(name):
    config = getattr(transformers, f"{name}Config")()
    interface = any_interface(on_meta(config, f"{name}ForConditionalGeneration"))
    paths = {part.stage: part.path for part in interface.parts}
    assert paths.items() >= PARTS[name].items()


UNDRIVEN = {
    "Florence2ForConditionalGeneration": "encoder-decoder",
    "Pix2StructForConditionalGeneration": "encoder-decoder",
    "UdopForConditionalGeneration": "encoder-decoder",
    "FuyuForCausalLM": "does not name an image encoder",
    "GitForCausalLM": "does not name an image encoder",
    "Blip2ForConditionalGeneration": "generate\\(\\) of its own",
    "BlipForConditionalGeneration": "generate\\(\\) of its own",
    "Kosmos2ForConditionalGeneration": "generate\\(\\) of its own",
    "IdeficsForVisionText2Text": "reads both pixels and text",
}


@pytest.mark.parametrize("model_class", UNDRIVEN)
def test_a_class_that_cannot_be_driven_is_refused_and_told_why(model_class):
    model = on_meta(getattr(transformers, model_class).config_class(), model_class)
    with pytest.raises(OcrPhasesError, match=UNDRIVEN[model_class]):
        any_interface(model)


# -- what is refused -------------------------------------------------------------------------------


def without(name):
    def change(folder):
        (folder / name).unlink()

    return change


def with_config(**entries):
    def change(folder):
        file = folder / "config.json"
        config = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(config | entries), encoding="utf-8")

    return change


REFUSED = {
    "no tokenizer": (without("tokenizer.json"), "tokenizer.json"),
    "no image processor": (without("preprocessor_config.json"), "preprocessor_config.json"),
    "a model_type nobody knows": (with_config(model_type="no_such_model"), "no_such_model"),
    "an encoder-decoder without weights of it": (
        with_config(model_type="florence2"),
        "does not fit Florence2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_cannot_be_driven_is_refused_in_a_sentence(name, tmp_path):
    change, words = REFUSED[name]
    folder = FOLDERS["qwen2_5_vl"]().save(tmp_path / "model")
    change(folder)
    with pytest.raises(OcrPhasesError, match=words):
        OCRSession.load(folder)


def test_code_that_a_checkpoint_names_never_runs(tmp_path):
    folder = FOLDERS["qwen2_5_vl"]().save(tmp_path / "model")
    (folder / "own.py").write_text("raise SystemExit('it ran')\n", encoding="utf-8")
    with_config(auto_map={"AutoModel": "own.Model", "AutoProcessor": "own.Processor"})(folder)
    assert OCRSession.load(folder).family.name == "qwen2_5_vl"


HOSTILE = {
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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_chat_template_ends_in_a_sentence(name, monkeypatch):
    monkeypatch.setattr(processors, "CHAT_SECONDS", 1)
    with pytest.raises(OcrPhasesError, match="chat template cannot be rendered"):
        render_chat(HOSTILE[name], "Read this page.", 1, "<s>", "</s>")


def test_a_chat_template_puts_pages_before_the_prompt():
    template = (
        "{% for part in messages[0]['content'] %}"
        "{{ '<img>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    )
    assert render_chat(template, "Read.", 2, "<s>", "</s>") == "<img><img>Read."
