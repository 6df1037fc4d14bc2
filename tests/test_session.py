"""A whole measurement on the built-in model: equal to ``generate()``, complete, or refused in a
sentence.
"""

import copy
import difflib
import json
import pkgutil
import signal
from functools import partial

import pytest
import torch
from conftest import GOLDEN, PAGES
from hypothesis import example, given
from hypothesis import strategies as st
from kernel_example import mini_trace
from PIL import Image
from refusals import refused
from torch import nn

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.cost import prefill_cost, run_cost, vision_calls
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.sentences import subject, verdict
from ocr_phases.errors import Interrupted
from ocr_phases.families import FAMILIES, ViewSizes
from ocr_phases.inputs.views import image_token_count
from ocr_phases.measure.live_checks import HostWaits, host_syncs_check
from ocr_phases.measure.request import recorded_settings
from ocr_phases.measure.trace import reduce_trace
from ocr_phases.models.tokenizers import TokenReader, load_tokenizer
from ocr_phases.record.parts import KernelsFailed, make_kernels, to_plain

RECEIPT = PAGES / "receipt.png"
BLANK = Image.new("RGB", (300, 300), "white")  # which tiny reads as 15 tokens
SMALL = Image.open(RECEIPT).resize((300, 300))  # whose file is not read again for every run
QUICK = {"preset": "tiny", "max_new_tokens": 12, "repeats": 1, "warmup": 0}
CHEAP = {**QUICK, "ceilings": False, "token_probabilities": False}
FEW = {**CHEAP, "max_new_tokens": 4, "repeats": 3}


@pytest.fixture(scope="module")
def run(tiny_session):
    return tiny_session.run_inference(RECEIPT, repeats=1, warmup=0)


def test_tiny_reads_the_receipt_as_generate_does(tiny_session, run):
    truth = json.loads((PAGES / "receipt.json").read_text())["regions"]
    assert run.result.finish_reason == "eos"
    regions = parse_grounding(run.text).regions
    assert len(regions) == len(truth) == run.token_table["region"].nunique()
    assert {"title", "text", "table", "image"} <= {region.label for region in regions}
    for mine, true in zip(regions, truth, strict=True):
        assert difflib.SequenceMatcher(None, mine.text, true["text"]).ratio() > 0.9
    sixty = {**CHEAP, "preset": None, "max_new_tokens": 60}
    once = tiny_session.run_inference(RECEIPT, **sixty, generate=True)
    assert once.result.ids == run.result.ids[:60]
    assert once["generate_ms"] > 0
    assert once["prefill_ms"] is once["tokens_per_s"] is None


def test_the_record_holds_what_it_promises(tiny_session, run):
    assert (run.page.file, len(run.page.sha256), run.page.grid) == ("receipt.png", 64, [1, 1])
    assert (run.page.image_tokens, run.page.text_tokens) == (111, 18)
    assert run.request.prefill_len == run.cache.lengths[0] == 129
    assert run.versions["torch"] and run.versions["transformers"]
    assert run.device.kind == "cpu"
    assert run.model.parameters["total"] > 9e6
    assert run.model.revision.startswith("sha256:")
    # Keys and values of 4 layers, 4 heads of 64, float32.
    assert run.cache.bytes_per_token == 2 * 4 * 4 * 64 * 4
    other = {check.name: check.verdict for check in run.live_checks if check.verdict != "pass"}
    assert other == {"host_syncs": "n/a"}  # of a CPU
    stages = run.spans.groupby("phase")["stage"].unique()
    assert set(stages["prepare"]) == {"prepare", "load_image", "tokenizer", "transfer"}
    assert set(stages["decode"]) == {
        "decode",
        "decode_step",
        "language_model",
        "lm_head",
        "sampling",
    }
    # The vendor's compression counts the output with its end token, tokenised again.
    assert run["text_tokens"] == len(
        tiny_session.encode(run.text + tiny_session.tokenizer.eos_token)
    )
    assert run["valid_image_tokens"] == 100 and run.result.finish_reason == "eos"
    assert run["compression_ratio"] == run["text_tokens"] / 100


def profiled(host_syncs):
    """A kernel view with so many waits of the host in each decode step."""
    view = to_plain(reduce_trace(*mini_trace(), tool="a profiler"))
    view["decode_steps"] = {"step": list(range(len(host_syncs))), "host_syncs": host_syncs}
    return make_kernels(view)


@pytest.mark.parametrize(
    ("waits", "seen", "device", "verdict", "measured"),
    [
        (None, None, "cpu", "n/a", "a CPU"),
        (None, None, "cuda", "n/a", "warm-up"),
        ((5, 23), None, "cuda", "pass", "5 in 23 steps"),
        ((6, 23), None, "cuda", "note", "6 in 23 steps"),
        ((5, 23), [1, 1, 0], "cuda", "note", "5 in 23 steps; the profiler saw 2 in 3 steps"),
    ],
)
def test_host_syncs_are_judged_by_what_was_counted(waits, seen, device, verdict, measured):
    waits = waits and HostWaits(*waits)
    check = host_syncs_check(waits, seen and profiled(seen), 5, device)
    assert check.verdict == verdict
    assert measured in check.measured


@pytest.mark.parametrize("way", [{}, {"generate": True, "infer": {"temperature": 3.0}}])
def test_tokens_are_streamed_and_the_callers_random_numbers_stay(way, golden_session):
    told, done = {-1: [], 0: []}, []
    before = torch.get_rng_state()
    run = golden_session.run_inference(
        SMALL,
        **{**CHEAP, "warmup": 1, **way},
        on_tokens=lambda repeat, new: told[repeat].extend(new[0]),
        progress=lambda *counts: done.append(counts),
    )
    assert done == [(0, 2), (1, 2), (2, 2)]
    assert told == {-1: run.result.ids, 0: run.result.ids}
    assert run.result.finish_reason == "length"
    assert torch.equal(torch.get_rng_state(), before)


interrupt = partial(signal.raise_signal, signal.SIGINT)


def test_an_interrupt_keeps_finished_repeats(golden_session):
    """So does a stop, which the explorer's tests hold."""
    with refused(Interrupted):
        golden_session.run_inference(SMALL, **FEW, on_tokens=lambda *_: interrupt())
    assert golden_session.last_run is None
    with pytest.raises(Interrupted) as caught:
        golden_session.run_inference(
            SMALL, **FEW, on_tokens=lambda repeat, _: repeat == 2 and interrupt()
        )
    run = golden_session.last_run
    assert run is caught.value.run
    assert (run.repeats, run.request.repeats) == ([0, 1], 2)
    (check,) = (check for check in run_checks(run) if check.name == "interrupted")
    assert (check.verdict, check.measured[:6]) == ("note", "2 of 3")
    assert caught.value._render_traceback_() == [str(caught.value)]


#: What is measured after the repeats, by a part of each; without a module it is the loaded model's.
AFTER = (
    "measure.parity.one_shot",
    "measure.kernels.chrome_trace",
    "measure.measurement.token_probabilities",
)
AFTER += ("ceilings",)


def holder(part, session):
    """The object that has the part, and its name."""
    module, _, name = part.rpartition(".")
    return pkgutil.resolve_name(f"ocr_phases.{module}") if module else session.loaded_model, name


@pytest.fixture
def afterwards(monkeypatch):
    """Everything that may follow the repeats is asked for."""
    monkeypatch.setattr(
        "ocr_phases.measure.measurement.check_kernels", lambda *args, **options: None
    )
    return {**QUICK, "max_new_tokens": 4, "verify": True, "kernels": True, "kernel_steps": 2}


@pytest.mark.parametrize("part", [*AFTER, "measure.measurement.Measurement.record"])
def test_an_interrupt_after_the_repeats_keeps_them(part, golden_session, afterwards, monkeypatch):
    place = holder(part, golden_session)
    honest = getattr(*place)

    def interrupted(*args, **options):
        interrupt()
        interrupt()
        return honest(*args, **options)

    monkeypatch.setattr(*place, interrupted)
    with pytest.raises(Interrupted):
        golden_session.run_inference(SMALL, **afterwards)
    assert golden_session.last_run.repeats == [0]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no memory"), RuntimeError("device-side assert")]
)
def test_a_failure_after_the_repeats_keeps_them(error, golden_session, afterwards, monkeypatch):
    def failing(*args, **options):
        raise error

    for part in AFTER:
        monkeypatch.setattr(*holder(part, golden_session), failing)
    with (
        pytest.warns(UserWarning, match="no token probabilities"),
        pytest.warns(match="no ceilings"),
    ):
        run = golden_session.run_inference(SMALL, **afterwards)
    assert run["tokens"] == 4
    assert run.probabilities is run.device.ceilings is None
    assert [check.verdict for check in run.live_checks if check.name == "parity"] == ["n/a"]
    assert run.kernels == KernelsFailed(error=f"{type(error).__name__}: {error}")
    assert str(error) in verdict(run)


@pytest.mark.parametrize("family", ["deepseek-ocr", "unlimited-ocr"])
def test_a_published_infer_has_its_published_limit(family, tiny_session, monkeypatch):
    monkeypatch.setitem(vars(tiny_session.checkpoint), "family", FAMILIES[family])
    monkeypatch.setattr(
        tiny_session.model.config.get_text_config(), "max_position_embeddings", 40_000
    )
    limits = {
        "deepseek-ocr": 8192,
        "unlimited-ocr": 32768 - len(tiny_session.prepare(RECEIPT).input_ids[0]),
    }
    options = ({"infer": "published"}, {"infer": "published", "max_new_tokens": 7}, {})
    requests = [tiny_session.check_request(RECEIPT, **each) for each in options]
    assert [request.max_new_tokens for request in requests] == [limits[family], 7, 512]


def test_options_reach_the_run(tiny_session):
    def made(**options):
        return tiny_session.run_inference(BLANK, **{**CHEAP, "max_new_tokens": 17, **options})

    plain, again, ignored = made(), made(first_token="redecode"), made(ignore_eos=True)
    assert again.result == plain.result == made(generate=True).result
    assert (
        again.token_table["source"].tolist()
        == ["decode"] * again["decode_steps"]
        == ["decode"] * 15
    )
    for run, end in ((plain, (15, "eos")), (ignored, (17, "length"))):
        assert (run["tokens"], run.result.finish_reason) == end
    one = made(max_new_tokens=1, return_text=False, embed_page=False)
    assert one["text"] is one.page_image() is one["inter_token_ms"] is None
    assert (one["tokens"], one["decode_steps"], one.result.token_texts) == (1, 0, [""])
    few = {"infer": {"temperature": 3.0}, "max_new_tokens": 4}
    sampled = [made(**few, seed=seed).result.ids for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_a_batch_equals_its_single_runs(tiny_session):
    """One row ends before the other."""
    options = {**CHEAP, "max_new_tokens": 16}
    batch = tiny_session.run_inference([RECEIPT, BLANK], **options)
    assert batch.results == [
        tiny_session.run_inference(page, **options).result for page in (RECEIPT, BLANK)
    ]
    assert [len(result.ids) for result in batch.results] == [16, 15]
    assert [page.row for page in batch.pages] == [0, 1]
    assert batch.request.batch == 2
    assert batch["tokens_per_s"] == pytest.approx((15 + 14) / batch["decode_ms"] * 1000)
    assert len(batch.tokens_of(1)) == 15


AS_IT_IS = {**QUICK, "max_new_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def plain(tiny_session):
    return tiny_session.run_inference(SMALL, **AS_IT_IS)


@pytest.fixture
def model(tiny_session):
    return copy.deepcopy(tiny_session.model)


def wrapped(model):
    """Layers without a weight of their own, as an adapter that is not merged leaves them."""
    for layer in model.model.language_model.layers:
        layer.self_attn.q_proj = nn.Sequential(layer.self_attn.q_proj)
    return model


def quantised(model):
    layer = model.model.language_model.layers[-1].self_attn
    layer.o_proj = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer.o_proj), {nn.Linear})[
        0
    ]
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("change", [wrapped, quantised])
def test_a_model_object_is_measured_as_it_is(change, model, plain, tiny_session):
    changed = change(model)
    session = OCRSession.from_model(changed, tiny_session.tokenizer, name="mine")
    session.loaded_model.ceilings = tiny_session.loaded_model.ceilings
    run = session.run_inference(SMALL, **AS_IT_IS)
    assert session.model is changed
    if change is not quantised:  # which rounds
        assert run.result.ids == plain.result.ids
    assert (run.model.name, run.model.family) == ("mine", plain.model.family)
    assert not [check for check in run.live_checks if check.verdict == "fail"]
    assert PhaseRun.from_json(run.to_json()).floors.equals(run.floors)


def test_other_weights_are_another_revision_and_buffers_are_no_weights(model, tiny_session):
    def mine():
        return OCRSession.from_model(model, tiny_session.tokenizer)

    before = mine().checkpoint.revision
    assert mine().checkpoint.revision == before
    model.lm_head.weight.data[0, 0] += 1
    assert mine().checkpoint.revision != before
    model.register_buffer("spare", torch.zeros(10**7))
    assert "weights: 39.1 MB" in mine()._repr_mimebundle_()["text/plain"]


def headless(model):
    del model.model.multi_modal_projector
    return model


@pytest.mark.parametrize("change", [nn.Sequential, headless])
def test_what_cannot_be_measured_is_refused(change, model, tiny_session):
    with refused():
        OCRSession.from_model(change(model), tiny_session.tokenizer)


def test_the_same_weights_run_with_another_attention_and_dtype(model, plain, tiny_session):
    assert tiny_session.with_model(attention="sdpa", dtype="float32") is tiny_session
    other = tiny_session.with_model(attention="eager", dtype="bfloat16")
    run = other.run_inference(SMALL, **AS_IT_IS, ceilings=False)
    assert (run.model.attention, run.model.dtype) == ("eager", "bfloat16")
    assert run.result.ids == plain.result.ids
    assert tiny_session.model.dtype == torch.float32
    at_hand = OCRSession.from_model(model, tiny_session.tokenizer)
    assert at_hand.with_model(attention="sdpa") is at_hand
    with refused():
        at_hand.with_model(attention="eager")


TOKENIZER = load_tokenizer(GOLDEN / "checkpoint")


def token_texts(ids):
    read = TokenReader(TOKENIZER).read
    return [read(token, last=place == len(ids)) for place, token in enumerate(ids, start=1)]


@example([250, 229, TOKENIZER.eos_token_id])  # a character left incomplete before the end
@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40))
def test_token_texts_join_to_the_decoded_text(ids):
    texts = token_texts(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == TOKENIZER.decode(ids)


def test_a_replacement_character_is_text_and_an_id_without_text_its_number():
    ids = TOKENIZER.encode("\ufffda", add_special_tokens=False)
    assert len(ids) == 4  # a token a byte
    assert token_texts(ids) == ["", "", "\ufffd", "a"]
    [a] = TOKENIZER.encode("a", add_special_tokens=False)
    assert token_texts([a, 5000, a]) == ["a", "<5000>", "a"]
    assert "".join(token_texts([250, 229, 5000])) == "\ufffd\ufffd<5000>"


SIZES_OF_RUNS = (
    ("golden_session", {"preset": "gundam", "base_size": 512, "image_size": 320, "max_crops": 6}),
    ("golden_session", {"preset": "small", "image_size": 192}),
    ("unlimited_session", {"preset": "gundam", "base_size": 320, "image_size": 128}),
    ("ocr2_session", {"preset": "crop", "base_size": 768, "max_crops": 2}),
)


@pytest.mark.parametrize(("session", "sizes"), SIZES_OF_RUNS)
def test_other_sizes_run_are_recorded_and_cost_what_ran(session, sizes, request, tmp_path):
    session = request.getfixturevalue(session)
    page = Image.new("RGB", (700, 1000), "white")
    run = session.run_inference(
        page, **sizes, max_new_tokens=3, repeats=1, warmup=0, verify=True, ignore_eos=True
    )
    verdicts = {check.name: check.verdict for check in run.live_checks}
    assert verdicts["parity"] == "pass"
    assert "fail" not in verdicts.values()

    cutting = session.family.preset(sizes["preset"], ViewSizes.from_settings(run.request))
    assert run.page.preset == cutting.name != sizes["preset"] == run.request.preset
    assert run.page.image_tokens == image_token_count(cutting, cutting.grid(*page.size))
    run.save(tmp_path / "run.json")
    saved = PhaseRun.load(tmp_path / "run.json")
    assert saved.page.preset in subject(saved)
    again = recorded_settings(saved)
    assert {name: again[name] for name in sizes} == sizes
    views = vision_calls(
        sizes["preset"],
        [run.page.grid],
        session.family.name,
        ViewSizes.from_settings(saved.request),
    )
    assert {call.side for call in views} <= {cutting.base_size, cutting.image_size}
    expected = prefill_cost(
        run.model.config, prompt_len=run.request.prefill_len, views=views, dtype_bytes=4
    )
    measured = run_cost(saved)
    assert measured[measured["phase"] == "prefill"]["flops"].sum() == expected["flops"].sum()
