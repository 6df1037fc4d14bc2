"""The published remote-code class, by a stand-in with its contract; also run with transformers 4.46.3.

Its phases are held with the native classes' in ``test_phases.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from golden_cases import GOLDEN, VENDOR_CASES, noise
from refusals import refused
from vendor_standin import CUDA_CALL, CUDA_IMAGES, RULES, copy_of

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.models.wiring import VENDORS
from ocr_phases.session import repeat_run

NEW = 16
QUICK = {"repeats": 1, "warmup": 0, "ceilings": False, "token_probabilities": False}
SMALL, SMALL_PRESET = VENDOR_CASES["small"]
VENDOR = VENDORS["deepseek-ocr"]
RECORDED: dict[str, Any] = json.loads((GOLDEN / "preprocess.json").read_text())["cases"]
pytestmark = pytest.mark.usefixtures("remote_code")


@pytest.fixture
def session(vendor_session: OCRSession) -> OCRSession:
    return vendor_session


def test_a_padded_batch_reads_each_page_as_alone(session):
    pages = [noise(300, 500, seed=1), noise(700, 1300, seed=2), noise(1300, 700, seed=3)]
    options = {"preset": "gundam", "max_new_tokens": NEW, "ignore_eos": True, **QUICK}
    together = session.run_inference(pages, **options)
    alone = [session.run_inference(page, **options).result["ids"] for page in pages]
    assert [row["ids"] for row in together.results] == alone
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


def test_it_is_measured_as_a_whole(session, tmp_path):
    run = session.run_inference(SMALL, preset=SMALL_PRESET, max_new_tokens=4, ignore_eos=True, **QUICK)
    run = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert run.cache["bytes_per_token"] == 3 * 2 * 2 * 12 * 4  # layers, keys and values, heads of 12, float32
    assert (run.model["class"], run.model["implementation"]) == ("DeepseekOCRForCausalLM", "vendor")
    assert run.model["parameters"]["total"] > run.model["parameters"]["language_model"] > 0
    assert {check["verdict"] for check in run.live_checks} <= {"pass", "note", "n/a"}


def test_the_published_infer_by_name(session):
    """Greedy, its n-gram size, autocast: the tokens of ``generate()`` under the same settings."""
    options = {"preset": SMALL_PRESET, "max_new_tokens": 8, **QUICK}
    for name, size in (("published", 20), ("published-eval", 35)):
        run = session.run_inference(SMALL, infer=name, **options)
        spelled = {"infer": {"temperature": 0, "no_repeat_ngram_size": size}, "autocast": True}
        whole = session.run_inference(SMALL, generate=True, **spelled, **options)
        assert run.result["ids"] == whole.result["ids"]
        assert (run.request["autocast"], run.request["infer"]) == (True, whole.request["infer"])
    for wrong in (
        {"infer": "vendor"},
        {"infer": "published", "autocast": False},
        {"infer": "published", "strategy": "compiled"},
    ):
        with refused():
            session.run_inference(SMALL, **wrong)


def test_cuda_calls_can_be_ignored_on_a_cpu(session, standin, tmp_path):
    folder = copy_of(standin, tmp_path / "cuda", modeling_deepseekocr=CUDA_CALL, deepencoder=CUDA_IMAGES)
    on_cpu = OCRSession.load(str(folder), device="cpu", cuda_calls="ignore", **RULES)
    SMALL.save(tmp_path / "page.png")
    options = {"preset": SMALL_PRESET, "max_new_tokens": 8, **QUICK}
    plain = session.run_inference(SMALL, **options)
    for way in (False, True):
        run = on_cpu.run_inference(tmp_path / "page.png", generate=way, **options)
        assert run.result["ids"] == plain.result["ids"]
    assert (run.model["cuda_calls"], plain.model["cuda_calls"]) == ("ignore", None)
    assert "cuda" not in vars(torch.Tensor)  # only while a forward runs
    again = repeat_run(run, device="cpu", trust_remote_code=True, ceilings=False)
    assert again.result["ids"] == run.result["ids"]


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
            assert ours.results[0]["ids"] == whole.results[0]["ids"]
