"""The published remote-code class, by a stand-in with its contract; also run with transformers
4.46.3.

Its phases are held with the native classes' in ``test_phases.py``. Loading it is opt-in, pinned,
else refused in one sentence.
"""

import json

import pytest
import torch
import transformers
from batch_example import QUICK as COMMAND
from conftest import PAGES
from golden_cases import GOLDEN, VENDOR_CASES, noise
from refusals import refused
from vendor_standin import CODE, CUDA_CALL, CUDA_IMAGES, RULES, copy_of

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.cli import main
from ocr_phases.families import DEEPSEEK_OCR, facts_of
from ocr_phases.models.folders import transformers_version
from ocr_phases.models.weights import choose_attention
from ocr_phases.models.wiring import VendorInterface
from ocr_phases.session import repeat_run
from ocr_phases.settings import ModelSettings

NEW = 16
QUICK = {"repeats": 1, "warmup": 0, "ceilings": False, "token_probabilities": False}
SMALL, SMALL_PRESET = VENDOR_CASES["small"]
VENDOR_WIRING = facts_of(DEEPSEEK_OCR).vendor
assert VENDOR_WIRING is not None
VENDOR = VendorInterface(VENDOR_WIRING)
RECORDED = json.loads((GOLDEN / "preprocess.json").read_text())["cases"]
pytestmark = pytest.mark.usefixtures("remote_code")


@pytest.fixture
def session(vendor_session):
    return vendor_session


def test_a_padded_batch_reads_each_page_as_alone(session):
    pages = [noise(300, 500, seed=1), noise(700, 1300, seed=2), noise(1300, 700, seed=3)]
    options = {"preset": "gundam", "max_new_tokens": NEW, "ignore_eos": True, **QUICK}
    together = session.run_inference(pages, **options)
    alone = [session.run_inference(page, **options).result.ids for page in pages]
    assert [row.ids for row in together.results] == alone
    assert {check.verdict for check in together.live_checks} <= {"pass", "note", "n/a"}
    # Layers, keys and values, heads of 12, float32, of three rows.
    assert together.cache.bytes_per_token == 3 * 2 * 2 * 12 * 4 * 3
    assert together.model.parameters["total"] > together.model.parameters["language_model"] > 0
    views = together.spans.query("stage == 'sam'")["view"].tolist()
    assert views == ["global", "local", "global", "local", "global"]
    with refused():  # several pages in one prompt
        session.run_inference(pages[:2], "<image>\n<image>\nFree OCR.", **options)


@pytest.mark.parametrize("case", RECORDED)
def test_inputs_are_what_its_infer_hands_to_generate(case, session):
    recorded = RECORDED[case]
    inputs = session.prepare(GOLDEN / "pages" / recorded["file"], preset=recorded["preset"])
    arguments = VENDOR.prefill_arguments(inputs.to("cpu", torch.float32))
    [(crops, view)] = arguments["images"]
    assert list(crops.shape) == recorded["crop_shape"]
    assert list(view.shape) == recorded["ori_shape"]
    assert bool(crops.any()) == recorded["crops_used"]
    assert arguments["images_spatial_crop"].tolist() == recorded["spatial_crop"]
    assert arguments["images_spatial_crop"].device.type == "cpu"
    mask = arguments["images_seq_mask"]
    assert (mask.dtype, mask.shape) == (torch.bool, arguments["input_ids"].shape)
    places = list(range(recorded["mask_first"], recorded["mask_last"] + 1))
    assert mask[0].nonzero().squeeze(1).tolist() == places


def test_the_published_infer_by_name(session):
    """Greedy, its n-gram size, autocast: the tokens of ``generate()`` under the same settings."""
    options = {"preset": SMALL_PRESET, "max_new_tokens": 8, **QUICK}
    for name, size in (("published", 20), ("published-eval", 35)):
        run = session.run_inference(SMALL, infer=name, **options)
        spelled = {"infer": {"temperature": 0, "no_repeat_ngram_size": size}, "autocast": True}
        whole = session.run_inference(SMALL, generate=True, **spelled, **options)
        assert run.result.ids == whole.result.ids
        assert (run.request.autocast, run.request.infer) == (True, whole.request.infer)
    for wrong in (
        {"infer": "vendor"},
        {"infer": "published", "autocast": False},
        {"infer": "published", "strategy": "compiled"},
    ):
        with refused():
            session.run_inference(SMALL, **wrong)


def test_cuda_calls_can_be_ignored_on_a_cpu(session, standin, tmp_path):
    folder = copy_of(
        standin, tmp_path / "cuda", modeling_deepseekocr=CUDA_CALL, deepencoder=CUDA_IMAGES
    )
    on_cpu = OCRSession.load(str(folder), device="cpu", cuda_calls="ignore", **RULES)
    SMALL.save(tmp_path / "page.png")
    options = {"preset": SMALL_PRESET, "max_new_tokens": 8, **QUICK}
    plain = session.run_inference(SMALL, **options)
    for way in (False, True):
        run = on_cpu.run_inference(tmp_path / "page.png", generate=way, **options)
        assert run.result.ids == plain.result.ids
    assert (run.model.cuda_calls, plain.model.cuda_calls) == ("ignore", None)
    assert "cuda" not in vars(torch.Tensor)  # only while a forward runs
    again = repeat_run(run, device="cpu", trust_remote_code=True, ceilings=False)
    assert again.result.ids == run.result.ids


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_on_a_gpu_its_own_cuda_calls_are_welcome(standin, tmp_path):
    folder = copy_of(standin, tmp_path / "gpu", modeling_deepseekocr=CUDA_CALL)
    image, preset = VENDOR_CASES["crops"]
    options = {"preset": preset, "max_new_tokens": NEW, "ignore_eos": True, **QUICK}
    for dtype in ("float32", "bfloat16"):
        session = OCRSession.load(str(folder), device="cuda", dtype=dtype, **RULES)
        ours = session.run_inference(image, **options)
        assert ours["tokens"] == NEW
        if dtype == "float32":
            whole = session.run_inference(image, generate=True, **options)
            assert ours.results[0].ids == whole.results[0].ids


def load(name, **options):
    return OCRSession.load(str(name), **{"device": "cpu", **RULES, **options})


def refuse(name, **options):
    with refused():
        load(name, **options)


def test_remote_code_is_opt_in(standin, tmp_path):
    refuse(standin, trust_remote_code=False)
    (tmp_path / "empty").mkdir()
    for name in ("tiny", "dummy", standin / "config.json", tmp_path / "empty", "no such folder"):
        refuse(name)
    for revision in (None, "main", "abc123", "A" * 40, "a" * 41):
        refuse("some-org/some-model", revision=revision)


MODEL, ENCODER = "modeling_deepseekocr", "deepencoder"
NO_OPERATOR = 'raise RuntimeError("operator torchvision::nms does not exist")\nclass Sam'
#: Changes of the class's files, each a text and what takes its place.
BROKEN = {
    "a CUDA call": {MODEL: CUDA_CALL},
    "CUDA images": {ENCODER: CUDA_IMAGES},
    "elsewhere": {"config": ('"AutoModel": "', '"AutoModel": "other/repo--')},
    "unnamed": {"config": ('"auto_map"', '"other_map"')},
    "no module": {ENCODER: ("import torch\n", "import no_such_module, torch\n")},
    "a missing file": {MODEL: ("from .deepencoder", "from .vision")},
    "torchvision": {ENCODER: ("class Sam", NO_OPERATOR)},
    "renamed": {
        "config": ('"model_type"', '"renamed"'),
        MODEL: ("class DeepseekOCRForCausalLM", "class Other"),
    },
}


@pytest.mark.parametrize("name", BROKEN)
def test_code_that_cannot_run_here_is_refused(name, standin, tmp_path):
    refuse(copy_of(standin, tmp_path / "broken", **BROKEN[name]))


def test_code_that_cannot_be_imported_or_is_missing_is_refused(standin, tmp_path):
    outdated = (
        "s code is not made for transformers 4.46.3, which is here"
        if transformers.__version__ == "4.46.3"
        else " is not made for transformers .*, so install transformers==4.46.3 tokenizers==0.20.3"
    )
    for change, message in (
        (
            ("import LlamaConfig,", "import NoSuchClass, LlamaConfig,"),
            f"cannot import name .*: it{outdated}",
        ),
        (
            ("class DeepseekOCRModel(", "class DeepseekOCRModel(("),
            "own .*py files there, unchanged",
        ),
    ):
        broken = copy_of(standin, tmp_path / change[0].split()[0], **{MODEL: change})
        with pytest.raises(OcrPhasesError, match=message):
            load(broken)
    for name in CODE:
        (broken / name).unlink()
    refuse(broken)


def test_each_folder_runs_its_own_code(standin, tmp_path, monkeypatch):
    """Of the same name, one with a dot; their siblings differ, and so do their tokens and their
    revisions.
    """
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    change = {"deepencoder": ("(images) / 8", "(images) * 8")}
    first = copy_of(standin, tmp_path / "a" / "ckpt.v1")
    second = copy_of(standin, tmp_path / "b" / "ckpt.v1", **change)
    sessions = [load(folder) for folder in (first, second, copy_of(second, tmp_path / "alone"))]
    options = {"preset": SMALL_PRESET, "max_new_tokens": 8, **QUICK}
    runs = [session.run_inference(SMALL, **options) for session in sessions]
    for one, other, same in zip(
        *((run.result.ids, run.model.revision) for run in runs), strict=True
    ):
        assert one != other == same
    monkeypatch.chdir(standin)
    here = load(".").checkpoint
    assert (here.name, here.source) == ("standin", str(standin))
    assert here.revision == runs[0].model.revision
    broken = first / "deepencoder.py"
    broken.write_text(
        broken.read_text().replace(*CUDA_IMAGES)
    )  # the folder's code of now, not of before
    refuse(first)


def test_attention_is_chosen(standin, monkeypatch):
    flash = "flash_attention_2"
    for attention in (flash, "fast"):
        refuse(standin, attention=attention)
    refuse(standin, cuda_calls="drop")
    refuse(standin, implementation="remote")
    session = OCRSession.from_local(standin, device="cpu", attention="eager", **RULES)
    assert session.model.config._attn_implementation == "eager"

    class Published:
        _supports_sdpa = False

    def chosen(asked, dtype=torch.bfloat16):
        return choose_attention(
            Published, ModelSettings(device="cuda", dtype=dtype, attention=asked)
        )

    assert chosen(None) == "eager"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for asked, dtype in (("sdpa", torch.bfloat16), (flash, torch.float32), (flash, torch.bfloat16)):
        with refused():
            chosen(asked, dtype)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert chosen(flash) == flash


@pytest.mark.skipif(transformers_version() < (5, 20), reason="here the native class is not there")
def test_native_takes_none_of_the_class_s_options(standin):
    native = {"implementation": "native", "trust_remote_code": False}
    refuse(standin, cuda_calls="ignore", **native)
    refuse("tiny", attention="flash_attention_2", **native)


def test_the_command_line_measures_the_vendor_s_class_and_warns_once(standin, tmp_path, capsys):
    page = str(PAGES / "slide.png")
    command = [
        "verify",
        page,
        "--model",
        str(standin),
        "--implementation",
        "vendor",
        "--no-ceilings",
    ]
    command += ["--preset", SMALL_PRESET, *COMMAND]
    assert main(command) == 2
    assert "--trust-remote-code" in capsys.readouterr().err
    target = tmp_path / "run.json"
    assert main([*command, "--trust-remote-code", "--save", str(target)]) in (0, 1)
    assert capsys.readouterr().err.count("Warning: this runs the Python files of") == 1
    model = PhaseRun.load(target).model
    assert (model.class_name, model.implementation) == ("DeepseekOCRForCausalLM", "vendor")
    again = [
        "profile",
        "--from",
        str(target),
        "--save",
        str(tmp_path / "again.json"),
        "--no-ceilings",
    ]
    assert main(again) == 2
    capsys.readouterr()
    assert main([*again, "--trust-remote-code"]) == 0
    assert capsys.readouterr().err.count("Warning: this runs the Python files of") == 1
