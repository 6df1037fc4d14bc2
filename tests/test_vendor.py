"""The published remote-code class, by a stand-in with its contract; also run with transformers 4.46.3."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import GOLDEN
from faulty import faulty
from PIL import Image
from torch import Tensor
from transformers import DynamicCache
from vendor_standin import CUDA_CALL, CUDA_IMAGES, RULES, copy_of

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, Timeline, decode, decode_step, prefill
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.models.caches import cache_bytes_per_token, cache_layers, cache_length
from ocr_phases.models.wiring import VENDORS, family_of
from ocr_phases.session import repeat_run
from ocr_phases.steps.phases import generate, prompt_loss

NEW = 16
VENDOR = VENDORS["deepseek-ocr"]
RECORDED = json.loads((GOLDEN / "preprocess.json").read_text())["cases"]


pytestmark = pytest.mark.usefixtures("remote_code")


@pytest.fixture(scope="module")
def session(standin: Path, remote_code: None) -> OCRSession:
    return OCRSession.load(str(standin), device="cpu", **RULES)


def page(width: int, height: int, seed: int = 0) -> Image.Image:
    levels = np.random.default_rng(seed).integers(0, 256, (height // 20, width // 20, 3), dtype=np.uint8)
    return Image.fromarray(levels).resize((width, height))


CASES = {
    "crops": (page(1300, 1900), "gundam"),
    "small": (page(300, 500), "tiny"),
    "base": (page(900, 700), "base"),
}


def inputs_of(session: OCRSession, case: str) -> DeviceInputs:
    image, preset = CASES[case]
    return session.prepare(image, preset=preset).to("cpu", torch.float32)


# -- what it computes ---------------------------------------------------------------------------------


def fused(model: Any, inputs: DeviceInputs) -> Tensor:
    """Embeddings with the page's features in them, computed here, token by token."""
    parts = model.model

    def see(images: Tensor) -> Tensor:
        grid = parts.sam_model(images)
        tokens = parts.vision_model(images, grid)[:, 1:]
        return parts.projector(torch.cat([tokens, grid.flatten(2).mT], dim=-1))

    side = inputs.pixel_values.shape[-1] // 64
    features = []
    if inputs.pixel_values_local is not None:
        (columns, rows), q = inputs.patches_grid[0], inputs.pixel_values_local.shape[-1] // 64
        tiles = see(inputs.pixel_values_local)
        for line in range(rows * q):
            for column in range(columns):
                start = (line % q) * q
                features += list(tiles[(line // q) * columns + column, start : start + q])
            features.append(parts.image_newline)
    for index, token in enumerate(see(inputs.pixel_values)[0]):
        features += [token, parts.image_newline] if index % side == side - 1 else [token]
    features.append(parts.view_seperator)
    embeddings = parts.embed_tokens(inputs.input_ids).clone()
    embeddings[inputs.images_seq_mask] = torch.stack(features)
    return embeddings


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_tokens_are_those_of_its_llama_alone(case, session):
    """A plain Llama with the same weights, fed the fused embeddings, without cache, gate or class."""
    model, inputs = session.model, inputs_of(session, case)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_llama_fields(model.config))).eval()
    own = llama.state_dict()
    llama.load_state_dict({name: value for name, value in model.state_dict().items() if name in own})
    embeddings, expected = fused(model, inputs), []
    for _ in range(NEW):
        logits = llama(inputs_embeds=embeddings).logits[:, -1]
        expected.append(int(logits.argmax()))
        embeddings = torch.cat([embeddings, llama.model.embed_tokens(logits.argmax(-1))[:, None]], dim=1)
    state = generate(model, inputs, NEW)
    assert state.ids == [expected]
    assert len(set(expected)) > 3


def _llama_fields(config: Any) -> dict[str, Any]:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {
        name: getattr(config, name) for name in (*names, "num_key_value_heads", "max_position_embeddings")
    }


@pytest.mark.parametrize("case", CASES)
def test_equals_generate_and_redecode(case, session):
    image, preset = CASES[case]
    options = {"preset": preset, "max_new_tokens": NEW, "repeats": 1, "warmup": 0, "ignore_eos": True}
    ours = session.run_inference(image, **options)
    assert ours["tokens"] == NEW
    whole = session.run_inference(image, generate=True, **options)
    again = session.run_inference(image, first_token="redecode", **options)
    assert whole.results[0]["ids"] == ours.results[0]["ids"] == again.results[0]["ids"]
    prompt = ours.request["prefill_len"]
    assert ours.cache["lengths"] == list(range(prompt, prompt + NEW))
    assert ours.model["implementation"] == "vendor"


def test_pages_read_differently(session):
    texts = {tuple(generate(session.model, inputs_of(session, case), NEW).ids[0]) for case in CASES}
    assert len(texts) == len(CASES)


def test_a_padded_batch_reads_each_page_as_alone(session):
    pages = [page(300, 500, seed=1), page(700, 1300, seed=2), page(1300, 700, seed=3)]
    options = {"preset": "gundam", "max_new_tokens": NEW, "repeats": 1, "warmup": 0, "ignore_eos": True}
    together = session.run_inference(pages, **options)
    for row, image in enumerate(pages):
        assert together.results[row]["ids"] == session.run_inference(image, **options).results[0]["ids"]
    views = together.spans.query("stage == 'sam'")["view"].tolist()
    assert views == ["global", "local", "global", "local", "global"]


def test_sampling_equals_generate(session):
    image, preset = CASES["small"]
    options = {
        "preset": preset,
        "max_new_tokens": NEW,
        "repeats": 1,
        "warmup": 0,
        "ignore_eos": True,
        "infer": {"temperature": 0.8, "top_k": 20, "no_repeat_ngram_size": 3},
    }
    ours, whole = (session.run_inference(image, generate=way, seed=3, **options) for way in (False, True))
    assert ours.results[0]["ids"] == whole.results[0]["ids"]


def test_the_loss_leaves_images_out(session):
    inputs = inputs_of(session, "small")
    with torch.no_grad():
        logits = session.model(**VENDOR.prefill_arguments(inputs)).logits
    labels = inputs.input_ids.masked_fill(inputs.images_seq_mask, -100)
    expected = torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:])
    torch.testing.assert_close(prompt_loss(session.model, inputs).detach(), expected)


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
    assert mask[0].nonzero().squeeze(1).tolist() == list(
        range(recorded["mask_first"], recorded["mask_last"] + 1)
    )


# -- what is measured ---------------------------------------------------------------------------------


def test_spans_are_complete_and_in_the_class_s_order(session):
    timeline = Timeline("cpu")
    inputs = inputs_of(session, "crops")
    seen: list[int] = []
    handle = session.model.model.sam_model.register_forward_pre_hook(
        lambda module, args: seen.append(len(args[0]))
    )
    decode(session.model, prefill(session.model, inputs, timeline), 4, timeline)
    handle.remove()
    assert seen == [6, 1]  # crops, then the global view
    rows = timeline.rows()
    spans = [(phase, stage, view, step) for _, phase, stage, view, step, *_ in rows]
    vision = [(stage, view) for view in ("local", "global") for stage in ("sam", "clip", "projector")]
    stages = [*vision, ("vision_fusion", ""), ("language_model", ""), ("lm_head", ""), ("sampling", "")]
    assert [span[1:3] for span in spans if span[0] == "prefill"] == [("prefill", ""), *stages]
    steps = [("decode_step", 0), ("language_model", 0), ("lm_head", 0), ("sampling", 0)]
    assert [(stage, step) for phase, stage, _, step in spans if phase == "decode"] == [
        ("decode", None),
        *((stage, step) for step in range(3) for stage, _ in steps),
    ]
    ends = [row[7] + row[8] for row in rows if row[1] == "prefill"]
    starts = [row[7] for row in rows if row[1] == "prefill"]
    assert all(end <= start for end, start in zip(ends[1:], starts[2:], strict=False))
    assert max(ends[1:]) <= ends[0]


def test_parameters_are_all_accounted_for(session):
    counts = VENDOR.parameters(session.model)
    separators = session.model.model.image_newline.numel() + session.model.model.view_seperator.numel()
    assert sum(counts.values()) - counts["total"] == counts["total"] - separators
    assert family_of(session.model) is VENDOR


def test_the_cache_is_measured(session):
    config, state = session.model.config, prefill(session.model, inputs_of(session, "small"))
    head = config.hidden_size // config.num_attention_heads
    per_token = config.num_hidden_layers * 2 * config.num_key_value_heads * head * 4
    assert cache_bytes_per_token(state.cache) == per_token
    assert cache_length(state.cache) == state.length
    assert len(cache_layers(state.cache)) == config.num_hidden_layers


def test_it_decodes_from_the_cache_that_generate_hands_it(session, monkeypatch):
    """Handed none, the class makes a new tuple each step: another decode than the one its users run."""
    given: list[Any] = []
    handle = session.model.register_forward_pre_hook(
        lambda module, args, arguments: given.append(arguments["past_key_values"]), with_kwargs=True
    )
    options = {"preset": "tiny", "max_new_tokens": 3, "repeats": 1, "warmup": 0, "ignore_eos": True}
    options["token_probabilities"] = False
    for way in (True, False):
        session.run_inference(CASES["small"][0], generate=way, **options)
    handle.remove()
    theirs, ours = given[:3], given[3:]
    assert {type(cache) for cache in theirs} == {type(cache) for cache in ours} == {DynamicCache}
    assert len(set(map(id, ours))) == 1


def test_nothing_is_printed(standin, capsys):
    warned: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = warned.append  # type: ignore[method-assign]
    logging.getLogger("transformers").addHandler(handler)
    session = OCRSession.from_local(standin, device="cpu", **RULES)
    image, preset = CASES["crops"]
    for way in (False, True):
        session.run_inference(image, preset=preset, max_new_tokens=3, repeats=1, warmup=0, generate=way)
    logging.getLogger("transformers").removeHandler(handler)
    assert capsys.readouterr().out == ""
    assert [record.getMessage() for record in warned] == []


def test_the_published_infer_by_name(session):
    """Greedy, its n-gram size, autocast: the tokens of ``generate()`` under the same settings."""
    image, preset = CASES["small"]
    options = {"preset": preset, "max_new_tokens": 8, "repeats": 1, "warmup": 0, "ceilings": False}
    for name, size in (("published", 20), ("published-eval", 35)):
        run = session.run_inference(image, infer=name, **options)
        spelled = {"infer": {"temperature": 0, "no_repeat_ngram_size": size}, "autocast": True}
        whole = session.run_inference(image, generate=True, **spelled, **options)
        assert run.result["ids"] == whole.result["ids"]
        assert (run.request["autocast"], run.request["infer"]) == (True, whole.request["infer"])
    for wrong, message in (
        ({"infer": "vendor"}, "Unknown infer 'vendor': use published or published-eval"),
        ({"infer": "published", "autocast": False}, "drop autocast=False, or the name"),
        ({"infer": "published", "strategy": "compiled"}, "runs only eagerly"),
    ):
        with pytest.raises(OcrPhasesError, match=message):
            session.run_inference(image, **wrong)


def test_cuda_calls_can_be_ignored_on_a_cpu(session, standin, tmp_path):
    folder = copy_of(standin, tmp_path / "cuda", modeling_deepseekocr=CUDA_CALL, deepencoder=CUDA_IMAGES)
    on_cpu = OCRSession.load(str(folder), device="cpu", cuda_calls="ignore", **RULES)
    image, preset = tmp_path / "page.png", CASES["small"][1]
    CASES["small"][0].save(image)
    options = {"preset": preset, "max_new_tokens": 8, "repeats": 1, "warmup": 0, "ceilings": False}
    plain = session.run_inference(image, **options)
    for way in (False, True):
        run = on_cpu.run_inference(image, generate=way, **options)
        assert run.result["ids"] == plain.result["ids"]
    assert (run.model["cuda_calls"], plain.model["cuda_calls"]) == ("ignore", None)
    assert "cuda" not in vars(torch.Tensor)  # only while a forward runs
    again = repeat_run(run, device="cpu", trust_remote_code=True, ceilings=False)
    assert again.result["ids"] == run.result["ids"]


def test_the_record_is_a_record(session, tmp_path):
    image, preset = CASES["small"]
    run = session.run_inference(image, preset=preset, max_new_tokens=4, repeats=1, warmup=0)
    run.save(tmp_path / "run.json")
    model = PhaseRun.load(tmp_path / "run.json").model
    assert (model["class"], model["implementation"]) == ("DeepseekOCRForCausalLM", "vendor")
    assert model["revision"].startswith("sha256:")
    assert {check["verdict"] for check in run.live_checks} <= {"pass", "note", "n/a"}


# -- broken rules -------------------------------------------------------------------------------------


def with_fault(state: Any, fault: Any) -> Any:
    state.family = faulty(state.family, fault)
    return state


@pytest.mark.parametrize("name", ["images", "images_seq_mask", "images_spatial_crop"])
def test_image_arguments_leaked_into_decode_are_errors(name, session):
    inputs = inputs_of(session, "small")
    leaked = VENDOR.prefill_arguments(inputs)[name]
    state = with_fault(prefill(session.model, inputs), lambda arguments: {**arguments, name: leaked})
    with pytest.raises(OcrPhasesError, match=rf"Image arguments reached decode \({name}\)"):
        decode_step(session.model, state)


def test_other_faulty_steps_are_errors(session):
    inputs = inputs_of(session, "small")
    state = with_fault(
        prefill(session.model, inputs), lambda arguments: {**arguments, "past_key_values": None}
    )
    with pytest.raises(OcrPhasesError, match="grow by one"):
        decode_step(session.model, state)
    state = prefill(session.model, inputs)
    state.length += 1
    with pytest.raises(OcrPhasesError, match="grow by one"):
        decode_step(session.model, state)


def test_training_mode_is_refused(session):
    inputs = inputs_of(session, "small")
    session.model.train()
    try:
        with pytest.raises(OcrPhasesError, match="training mode"):
            prefill(session.model, inputs)
    finally:
        session.model.eval()


def test_several_pages_in_one_prompt_are_refused(session):
    pages = [page(300, 500), page(500, 300)]
    with pytest.raises(OcrPhasesError, match="one page a prompt, got 2 pages in 1"):
        session.run_inference(pages, "<image>\n<image>\nFree OCR.", preset="tiny", max_new_tokens=2)


def test_without_generate_the_one_shot_path_says_so(session, monkeypatch):
    name = type(session.model).__name__
    bare = type(name, (torch.nn.Module,), {"config": session.model.config})
    monkeypatch.setattr(session, "checkpoint", replace(session.checkpoint, model=bare()))
    with pytest.raises(OcrPhasesError, match="has no generate"):
        session.run_inference(page(300, 500), preset="tiny", max_new_tokens=2, generate=True)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")
def test_on_a_gpu_its_own_cuda_calls_are_welcome(standin, tmp_path):
    folder = copy_of(standin, tmp_path / "gpu", modeling_deepseekocr=CUDA_CALL)
    image, preset = CASES["crops"]
    options = {"preset": preset, "max_new_tokens": NEW, "repeats": 1, "warmup": 0, "ignore_eos": True}
    for dtype in ("float32", "bfloat16"):
        session = OCRSession.load(str(folder), device="cuda", dtype=dtype, **RULES)
        ours = session.run_inference(image, **options)
        assert ours["tokens"] == NEW
        if dtype == "float32":
            whole = session.run_inference(image, generate=True, **options)
            assert ours.results[0]["ids"] == whole.results[0]["ids"]
