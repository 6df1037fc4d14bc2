"""The published remote-code class, by a stand-in with its contract; also run with transformers
4.46.3.

Its phases are held with the native classes' in ``test_phases.py``. Loading it is opt-in, pinned,
else refused in one sentence.
"""

import json
from pathlib import Path
from typing import Any

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

NEW_TOKENS = 16
QUICK: dict[str, Any] = {
    "repeats": 1,
    "warmup": 0,
    "ceilings": False,
    "token_probabilities": False,
}
SMALL, SMALL_PRESET = VENDOR_CASES["small"]
EIGHT_TOKENS = {"preset": SMALL_PRESET, "max_new_tokens": 8, **QUICK}
VENDOR_WIRING = facts_of(DEEPSEEK_OCR).vendor
assert VENDOR_WIRING is not None
VENDOR = VendorInterface(VENDOR_WIRING)
RECORDED = json.loads((GOLDEN / "preprocess.json").read_text())["cases"]
pytestmark = pytest.mark.usefixtures("remote_code")


@pytest.fixture
def session(vendor_session: OCRSession) -> OCRSession:
    return vendor_session


def load(name: object, **options: Any) -> OCRSession:
    """A session of the vendor's class in this folder."""
    return OCRSession.load(str(name), **{"device": "cpu", **RULES, **options})


def assert_refused(name: object, **options: Any) -> None:
    """Loading this model is refused with the approved sentence."""
    with refused():
        load(name, **options)


# -- what it measures ------------------------------------------------------------------------------


def test_a_padded_batch_reads_each_page_as_alone(session: OCRSession) -> None:
    pages = [noise(300, 500, seed=1), noise(700, 1300, seed=2), noise(1300, 700, seed=3)]
    options = {"preset": "gundam", "max_new_tokens": NEW_TOKENS, "ignore_eos": True, **QUICK}

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


@pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)
def test_inputs_are_what_its_infer_hands_to_generate(
    recorded: dict[str, Any], session: OCRSession
) -> None:
    page = GOLDEN / "pages" / recorded["file"]
    inputs = session.prepare(page, preset=recorded["preset"]).to("cpu", torch.float32)

    arguments = VENDOR.prefill_arguments(inputs)

    [(crops, view)] = arguments["images"]
    assert list(crops.shape) == recorded["crop_shape"]
    assert list(view.shape) == recorded["ori_shape"]
    assert bool(crops.any()) == recorded["crops_used"]
    assert arguments["images_spatial_crop"].tolist() == recorded["spatial_crop"]
    assert arguments["images_spatial_crop"].device.type == "cpu"

    mask = arguments["images_seq_mask"]
    image_places = list(range(recorded["mask_first"], recorded["mask_last"] + 1))
    assert mask.dtype == torch.bool
    assert mask.shape == arguments["input_ids"].shape
    assert mask[0].nonzero().squeeze(1).tolist() == image_places


@pytest.mark.parametrize(("name", "size"), [("published", 20), ("published-eval", 35)])
def test_the_published_infer_gives_the_tokens_of_generate_under_the_same_settings(
    name: str, size: int, session: OCRSession
) -> None:
    """Greedy, its n-gram size, autocast."""
    spelled_out = {"temperature": 0, "no_repeat_ngram_size": size}

    run = session.run_inference(SMALL, infer=name, **EIGHT_TOKENS)

    one_shot = session.run_inference(
        SMALL, generate=True, infer=spelled_out, autocast=True, **EIGHT_TOKENS
    )
    assert run.result.ids == one_shot.result.ids
    assert run.request.autocast is True
    assert run.request.infer == one_shot.request.infer


def test_settings_that_the_published_infer_or_class_does_not_have_are_refused(
    session: OCRSession,
) -> None:
    for wrong in (
        {"infer": "vendor"},
        {"infer": "published", "autocast": False},
        {"infer": "published", "strategy": "compiled"},
    ):
        with refused():
            session.run_inference(SMALL, **wrong)


def test_cuda_calls_can_be_ignored_on_a_cpu(
    session: OCRSession, standin: Path, tmp_path: Path
) -> None:
    folder = copy_of(
        standin, tmp_path / "cuda", modeling_deepseekocr=CUDA_CALL, deepencoder=CUDA_IMAGES
    )
    on_cpu = load(folder, cuda_calls="ignore")
    SMALL.save(tmp_path / "page.png")
    plain = session.run_inference(SMALL, **EIGHT_TOKENS)

    step_by_step = on_cpu.run_inference(tmp_path / "page.png", **EIGHT_TOKENS)
    one_shot = on_cpu.run_inference(tmp_path / "page.png", generate=True, **EIGHT_TOKENS)

    assert step_by_step.result.ids == plain.result.ids
    assert one_shot.result.ids == plain.result.ids
    assert one_shot.model.cuda_calls == "ignore"
    assert plain.model.cuda_calls is None
    assert "cuda" not in vars(torch.Tensor)  # only while a forward runs
    again = repeat_run(one_shot, device="cpu", trust_remote_code=True, ceilings=False)
    assert again.result.ids == one_shot.result.ids


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_on_a_gpu_its_own_cuda_calls_are_welcome(standin: Path, tmp_path: Path) -> None:
    folder = copy_of(standin, tmp_path / "gpu", modeling_deepseekocr=CUDA_CALL)
    image, preset = VENDOR_CASES["crops"]
    options = {"preset": preset, "max_new_tokens": NEW_TOKENS, "ignore_eos": True, **QUICK}
    for dtype in ("float32", "bfloat16"):
        session = load(folder, device="cuda", dtype=dtype)
        run = session.run_inference(image, **options)
        assert run["tokens"] == NEW_TOKENS
        if dtype == "float32":
            one_shot = session.run_inference(image, generate=True, **options)
            assert run.result.ids == one_shot.result.ids


# -- code that runs only when it is allowed to -----------------------------------------------------


def test_remote_code_is_opt_in(standin: Path, tmp_path: Path) -> None:
    assert_refused(standin, trust_remote_code=False)
    (tmp_path / "empty").mkdir()
    for name in ("tiny", "dummy", standin / "config.json", tmp_path / "empty", "no such folder"):
        assert_refused(name)
    for revision in (None, "main", "abc123", "A" * 40, "a" * 41):
        assert_refused("some-org/some-model", revision=revision)


MODEL = "modeling_deepseekocr"
ENCODER = "deepencoder"
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


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN)
def test_code_that_cannot_run_here_is_refused(
    changes: dict[str, tuple[str, str]], standin: Path, tmp_path: Path
) -> None:
    assert_refused(copy_of(standin, tmp_path / "broken", **changes))


def other_version_sentence() -> str:
    """What is said of a class that was made for another version of transformers."""
    if transformers.__version__ == "4.46.3":
        return "s code is not made for transformers 4.46.3, which is here"
    return " is not made for transformers .*, so install transformers==4.46.3 tokenizers==0.20.3"


def test_code_for_another_version_of_transformers_is_refused(standin: Path, tmp_path: Path) -> None:
    change = ("import LlamaConfig,", "import NoSuchClass, LlamaConfig,")
    folder = copy_of(standin, tmp_path / "import", **{MODEL: change})
    message = f"cannot import name .*: it{other_version_sentence()}"
    with pytest.raises(OcrPhasesError, match=message):
        load(folder)


def test_code_that_is_no_python_is_refused(standin: Path, tmp_path: Path) -> None:
    change = ("class DeepseekOCRModel(", "class DeepseekOCRModel((")
    folder = copy_of(standin, tmp_path / "class", **{MODEL: change})
    with pytest.raises(OcrPhasesError, match=r"own .*py files there, unchanged"):
        load(folder)


def test_code_that_is_missing_is_refused(standin: Path, tmp_path: Path) -> None:
    folder = copy_of(standin, tmp_path / "class")
    for name in CODE:
        (folder / name).unlink()
    assert_refused(folder)


@pytest.fixture
def folders_of_one_name(standin: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of the same name, with a dot in it, whose code differs."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = copy_of(standin, tmp_path / "a" / "ckpt.v1")
    second = copy_of(
        standin, tmp_path / "b" / "ckpt.v1", deepencoder=("(images) / 8", "(images) * 8")
    )
    return first, second


def test_each_folder_runs_its_own_code(
    folders_of_one_name: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = folders_of_one_name
    copy_of_second = copy_of(second, tmp_path / "alone")

    sessions = [load(folder) for folder in (first, second, copy_of_second)]
    run, other, same_as_other = (
        session.run_inference(SMALL, **EIGHT_TOKENS) for session in sessions
    )

    assert run.result.ids != other.result.ids
    assert other.result.ids == same_as_other.result.ids
    assert run.model.revision != other.model.revision
    assert other.model.revision == same_as_other.model.revision


def test_the_code_of_a_folder_that_is_changed_is_read_again(
    folders_of_one_name: tuple[Path, Path],
) -> None:
    folder, _ = folders_of_one_name
    load(folder)
    encoder = folder / "deepencoder.py"
    encoder.write_text(encoder.read_text().replace(*CUDA_IMAGES))
    assert_refused(folder)


def test_the_current_folder_is_named_and_its_revision_is_that_of_its_files(
    standin: Path, folders_of_one_name: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_of_standin, _ = folders_of_one_name
    monkeypatch.chdir(standin)

    checkpoint = load(".").checkpoint

    assert checkpoint.name == "standin"
    assert checkpoint.source == str(standin)
    assert checkpoint.revision == load(copy_of_standin).checkpoint.revision


# -- how it is loaded ------------------------------------------------------------------------------


FLASH = "flash_attention_2"


def test_options_of_loading_that_do_not_fit_are_refused(standin: Path) -> None:
    assert_refused(standin, attention=FLASH)
    assert_refused(standin, attention="fast")
    assert_refused(standin, cuda_calls="drop")
    assert_refused(standin, implementation="remote")


def test_an_attention_that_is_asked_for_is_had(standin: Path) -> None:
    session = OCRSession.from_local(standin, device="cpu", attention="eager", **RULES)
    assert session.model.config._attn_implementation == "eager"


class Published:
    """As the published class, which has no SDPA."""

    _supports_sdpa = False


def chosen_attention(asked: str | None, dtype: torch.dtype = torch.bfloat16) -> str:
    """The attention of the published class on a GPU."""
    settings = ModelSettings(device="cuda", dtype=dtype, attention=asked)
    return choose_attention(Published, settings)


def test_the_published_class_has_eager_attention_or_flash_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert chosen_attention(None) == "eager"
    assert chosen_attention(FLASH) == FLASH


def test_an_attention_that_the_published_class_cannot_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused():
        chosen_attention("sdpa")
    with refused():
        chosen_attention(FLASH, torch.float32)
    with refused():
        chosen_attention(FLASH)


@pytest.mark.skipif(transformers_version() < (5, 20), reason="here the native class is not there")
def test_native_takes_none_of_the_class_s_options(standin: Path) -> None:
    native = {"implementation": "native", "trust_remote_code": False}
    assert_refused(standin, cuda_calls="ignore", **native)
    assert_refused("tiny", attention=FLASH, **native)


# -- the command line ------------------------------------------------------------------------------

WARNING = "Warning: this runs the Python files of"


def test_the_command_line_measures_the_vendor_s_class_and_warns_once(
    standin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "run.json"
    command = ["verify", str(PAGES / "slide.png"), "--model", str(standin)]
    command += ["--implementation", "vendor", "--no-ceilings", "--preset", SMALL_PRESET, *COMMAND]

    assert main(command) == 2
    assert "--trust-remote-code" in capsys.readouterr().err

    assert main([*command, "--trust-remote-code", "--save", str(record)]) in (0, 1)
    assert capsys.readouterr().err.count(WARNING) == 1
    model = PhaseRun.load(record).model
    assert model.class_name == "DeepseekOCRForCausalLM"
    assert model.implementation == "vendor"

    repeat = ["profile", "--from", str(record), "--save", str(tmp_path / "again.json")]
    repeat.append("--no-ceilings")
    assert main(repeat) == 2
    capsys.readouterr()
    assert main([*repeat, "--trust-remote-code"]) == 0
    assert capsys.readouterr().err.count(WARNING) == 1
