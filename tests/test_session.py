"""A whole measurement on the built-in model: equal to ``generate()``, complete, or refused in a
sentence.
"""

import copy
import difflib
import json
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import GOLDEN, PAGES
from golden_cases import seen_once
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

#: SAM, most of a prefill's work here, encodes each page once.
pytestmark = pytest.mark.usefixtures("one_thread", "quick_tiny_session", "pixels_seen_once")

RECEIPT = PAGES / "receipt.png"
BLANK = Image.new("RGB", (300, 300), "white")  # which tiny reads as 15 tokens
SMALL = Image.open(RECEIPT).resize((300, 300))  # whose file is not read again for every run
#: Settings of a measurement that takes little time.
QUICK = {"preset": "tiny", "max_new_tokens": 12, "repeats": 1, "warmup": 0}
CHEAP = {**QUICK, "ceilings": False, "token_probabilities": False}


@pytest.fixture(scope="module")
def run(tiny_session: OCRSession) -> PhaseRun:
    """The built-in model's reading of the receipt."""
    return tiny_session.run_inference(RECEIPT, repeats=1, warmup=0)


def test_tiny_reads_every_region_of_the_receipt(run: PhaseRun) -> None:
    true_regions = json.loads((PAGES / "receipt.json").read_text())["regions"]

    regions = parse_grounding(run.text).regions

    assert run.result.finish_reason == "eos"
    assert len(regions) == len(true_regions)
    assert run.token_table["region"].nunique() == len(true_regions)
    assert {"title", "text", "table", "image"} <= {region.label for region in regions}
    for region, true in zip(regions, true_regions, strict=True):
        assert difflib.SequenceMatcher(None, region.text, true["text"]).ratio() > 0.9


def test_generate_gives_the_same_tokens_and_one_time(
    tiny_session: OCRSession, run: PhaseRun
) -> None:
    settings = {**CHEAP, "preset": None, "max_new_tokens": 24}

    generated = tiny_session.run_inference(RECEIPT, **settings, generate=True)

    assert generated.result.ids == run.result.ids[:24]
    assert generated["generate_ms"] > 0
    assert generated["prefill_ms"] is None
    assert generated["tokens_per_s"] is None


def test_the_record_says_what_was_read_by_what(run: PhaseRun) -> None:
    assert run.page.file == "receipt.png"
    assert len(run.page.sha256) == 64
    assert run.page.grid == [1, 1]
    assert run.page.image_tokens == 111
    assert run.page.text_tokens == 18
    assert run.request.prefill_len == 129
    assert run.cache.lengths[0] == 129
    # Keys and values of 4 layers, 4 heads of 64, float32.
    assert run.cache.bytes_per_token == 2 * 4 * 4 * 64 * 4
    assert run.versions["torch"]
    assert run.versions["transformers"]
    assert run.device.kind == "cpu"
    assert run.model.parameters["total"] > 9e6
    assert run.model.revision.startswith("sha256:")


def test_every_live_check_passes_but_for_the_host_syncs_of_a_cpu(run: PhaseRun) -> None:
    not_passed = {check.name: check.verdict for check in run.live_checks if check.verdict != "pass"}
    assert not_passed == {"host_syncs": "n/a"}


def test_the_record_has_a_span_of_every_stage(run: PhaseRun) -> None:
    stages = run.spans.groupby("phase")["stage"].unique()
    assert set(stages["prepare"]) == {"prepare", "load_image", "tokenizer", "transfer"}
    assert set(stages["decode"]) == {
        "decode",
        "decode_step",
        "language_model",
        "lm_head",
        "sampling",
    }


def test_the_compression_counts_the_output_with_its_end_token_as_the_vendor_does(
    tiny_session: OCRSession, run: PhaseRun
) -> None:
    tokenised_again = tiny_session.encode(run.text + tiny_session.tokenizer.eos_token)
    assert run["text_tokens"] == len(tokenised_again)
    assert run["valid_image_tokens"] == 100
    assert run["compression_ratio"] == run["text_tokens"] / 100


# -- waits of the host -----------------------------------------------------------------------------


def profiled(host_syncs: list[int]) -> Any:
    """A kernel view with so many waits of the host in each decode step."""
    view = to_plain(reduce_trace(*mini_trace(), tool="a profiler"))
    view["decode_steps"] = {"step": list(range(len(host_syncs))), "host_syncs": host_syncs}
    return make_kernels(view)


@pytest.mark.parametrize(
    ("waits", "kernels", "device", "verdict", "measured"),
    [
        pytest.param(None, None, "cpu", "n/a", "a CPU", id="cpu"),
        pytest.param(None, None, "cuda", "n/a", "warm-up", id="not-counted"),
        pytest.param(HostWaits(5, 23), None, "cuda", "pass", "5 in 23 steps", id="as-expected"),
        pytest.param(HostWaits(6, 23), None, "cuda", "note", "6 in 23 steps", id="one-more"),
        pytest.param(
            HostWaits(5, 23),
            profiled([1, 1, 0]),
            "cuda",
            "note",
            "5 in 23 steps; the profiler saw 2 in 3 steps",
            id="more-under-the-profiler",
        ),
    ],
)
def test_host_syncs_are_judged_by_what_was_counted(
    waits: HostWaits | None, kernels: Any, device: str, verdict: str, measured: str
) -> None:
    check = host_syncs_check(waits, kernels, 5, device)

    assert check.verdict == verdict
    assert measured in check.measured


# -- what a caller sees of a run, and what ends it -------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="greedy"),
        pytest.param({"generate": True, "infer": {"temperature": 3.0}}, id="generate-sampled"),
    ],
)
def test_tokens_are_streamed_and_the_callers_random_numbers_stay(
    settings: dict[str, Any], golden_session: OCRSession
) -> None:
    streamed: dict[int, list[int]] = {-1: [], 0: []}
    progress: list[tuple[int, int]] = []
    random_state = torch.get_rng_state()

    def note_tokens(repeat: int, new: list[list[int]]) -> None:
        streamed[repeat] += new[0]

    def note_progress(done: int, total: int) -> None:
        progress.append((done, total))

    run = golden_session.run_inference(
        SMALL,
        **{**CHEAP, "warmup": 1, **settings},
        on_tokens=note_tokens,
        progress=note_progress,
    )

    assert progress == [(0, 2), (1, 2), (2, 2)]
    assert streamed == {-1: run.result.ids, 0: run.result.ids}
    assert run.result.finish_reason == "length"
    assert torch.equal(torch.get_rng_state(), random_state)


def interrupt() -> None:
    """Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


#: Settings of three repeats that can be interrupted.
THREE_REPEATS = {**CHEAP, "max_new_tokens": 4, "repeats": 3}


def test_an_interrupt_in_the_first_repeat_leaves_no_record(golden_session: OCRSession) -> None:
    def interrupt_at_once(repeat: int, new: list[list[int]]) -> None:
        interrupt()

    with refused(Interrupted):
        golden_session.run_inference(SMALL, **THREE_REPEATS, on_tokens=interrupt_at_once)

    assert golden_session.last_run is None


def test_an_interrupt_keeps_finished_repeats(golden_session: OCRSession) -> None:
    """So does a stop, which the explorer's tests hold."""

    def interrupt_third_repeat(repeat: int, new: list[list[int]]) -> None:
        if repeat == 2:
            interrupt()

    with pytest.raises(Interrupted) as caught:
        golden_session.run_inference(SMALL, **THREE_REPEATS, on_tokens=interrupt_third_repeat)

    run = golden_session.last_run
    assert run is caught.value.run
    assert run.repeats == [0, 1]
    assert run.request.repeats == 2
    (check,) = [check for check in run_checks(run) if check.name == "interrupted"]
    assert check.verdict == "note"
    assert check.measured.startswith("2 of 3")
    assert caught.value._render_traceback_() == [str(caught.value)]


#: What is measured after the repeats, by a part of each; without a module it is the loaded model's.
AFTER_REPEATS = [
    "measure.parity.one_shot",
    "measure.kernels.chrome_trace",
    "measure.measurement.token_probabilities",
    "ceilings",
]


def owner_of(part: str, session: OCRSession) -> tuple[Any, str]:
    """The object that has this part, and the part's name in it."""
    module, _, name = part.rpartition(".")
    if not module:
        return session.loaded_model, name
    return pkgutil.resolve_name(f"ocr_phases.{module}"), name


@pytest.fixture
def all_afterwards(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings that ask for everything that may follow the repeats."""
    monkeypatch.setattr(
        "ocr_phases.measure.measurement.check_kernels", lambda *args, **options: None
    )
    return {**QUICK, "max_new_tokens": 4, "verify": True, "kernels": True, "kernel_steps": 2}


@pytest.mark.parametrize("part", [*AFTER_REPEATS, "measure.measurement.Measurement.record"])
def test_an_interrupt_after_the_repeats_keeps_them(
    part: str,
    golden_session: OCRSession,
    all_afterwards: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, name = owner_of(part, golden_session)
    original = getattr(owner, name)

    def interrupted_twice(*args: Any, **options: Any) -> Any:
        interrupt()
        interrupt()
        return original(*args, **options)

    monkeypatch.setattr(owner, name, interrupted_twice)
    with pytest.raises(Interrupted):
        golden_session.run_inference(SMALL, **all_afterwards)

    assert golden_session.last_run.repeats == [0]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no memory"), RuntimeError("device-side assert")]
)
def test_a_failure_after_the_repeats_keeps_them(
    error: Exception,
    golden_session: OCRSession,
    all_afterwards: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    for part in AFTER_REPEATS:
        owner, name = owner_of(part, golden_session)
        monkeypatch.setattr(owner, name, fail)
    with (
        pytest.warns(UserWarning, match="no token probabilities"),
        pytest.warns(match="no ceilings"),
    ):
        run = golden_session.run_inference(SMALL, **all_afterwards)

    assert run["tokens"] == 4
    assert run.probabilities is None
    assert run.device.ceilings is None
    assert [check.verdict for check in run.live_checks if check.name == "parity"] == ["n/a"]
    assert run.kernels == KernelsFailed(error=f"{type(error).__name__}: {error}")
    assert str(error) in verdict(run)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["deepseek-ocr", "unlimited-ocr"])
def test_a_published_infer_has_its_published_limit(
    family: str, tiny_session: OCRSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_session.model.config.get_text_config()
    monkeypatch.setitem(vars(tiny_session.checkpoint), "family", FAMILIES[family])
    monkeypatch.setattr(config, "max_position_embeddings", 40_000)
    prompt_tokens = len(tiny_session.prepare(RECEIPT).input_ids[0])
    published_limits = {"deepseek-ocr": 8192, "unlimited-ocr": 32768 - prompt_tokens}

    published = tiny_session.check_request(RECEIPT, infer="published")
    limited = tiny_session.check_request(RECEIPT, infer="published", max_new_tokens=7)
    default = tiny_session.check_request(RECEIPT)

    assert published.max_new_tokens == published_limits[family]
    assert limited.max_new_tokens == 7
    assert default.max_new_tokens == 512


def read_blank(session: OCRSession, **settings: Any) -> PhaseRun:
    """The record of the blank page, which has room for its 15 tokens."""
    return session.run_inference(BLANK, **{**CHEAP, "max_new_tokens": 17, **settings})


@pytest.fixture(scope="module")
def blank_run(tiny_session: OCRSession) -> PhaseRun:
    return read_blank(tiny_session)


def test_a_run_ends_at_the_end_token(blank_run: PhaseRun) -> None:
    assert blank_run["tokens"] == 15
    assert blank_run.result.finish_reason == "eos"


def test_a_run_that_ignores_the_end_token_ends_at_its_limit(tiny_session: OCRSession) -> None:
    run = read_blank(tiny_session, ignore_eos=True)
    assert run["tokens"] == 17
    assert run.result.finish_reason == "length"


def test_the_first_token_can_come_from_a_decode_step(
    tiny_session: OCRSession, blank_run: PhaseRun
) -> None:
    run = read_blank(tiny_session, first_token="redecode")

    assert run.result == blank_run.result
    assert run["decode_steps"] == 15
    assert run.token_table["source"].tolist() == ["decode"] * 15


def test_generate_gives_the_same_result(tiny_session: OCRSession, blank_run: PhaseRun) -> None:
    assert read_blank(tiny_session, generate=True).result == blank_run.result


def test_a_run_of_one_token_without_text_and_page_has_neither(tiny_session: OCRSession) -> None:
    run = read_blank(tiny_session, max_new_tokens=1, return_text=False, embed_page=False)

    assert run["text"] is None
    assert run.page_image() is None
    assert run["inter_token_ms"] is None
    assert run["tokens"] == 1
    assert run["decode_steps"] == 0
    assert run.result.token_texts == [""]


def test_a_seed_decides_what_is_sampled(tiny_session: OCRSession) -> None:
    sampling = {"infer": {"temperature": 3.0}, "max_new_tokens": 4}

    first = read_blank(tiny_session, **sampling, seed=1)
    same_seed = read_blank(tiny_session, **sampling, seed=1)
    other_seed = read_blank(tiny_session, **sampling, seed=2)

    assert same_seed.result.ids == first.result.ids
    assert other_seed.result.ids != first.result.ids


def test_a_batch_equals_its_single_runs_though_one_row_ends_first(
    tiny_session: OCRSession,
) -> None:
    settings = {**CHEAP, "max_new_tokens": 16}
    receipt = tiny_session.run_inference(RECEIPT, **settings)
    blank = tiny_session.run_inference(BLANK, **settings)

    batch = tiny_session.run_inference([RECEIPT, BLANK], **settings)

    assert batch.results == [receipt.result, blank.result]
    assert [len(result.ids) for result in batch.results] == [16, 15]
    assert [page.row for page in batch.pages] == [0, 1]
    assert batch.request.batch == 2
    assert batch["tokens_per_s"] == pytest.approx((15 + 14) / batch["decode_ms"] * 1000)
    assert len(batch.tokens_of(1)) == 15


# -- a model of the caller's own -------------------------------------------------------------------

SIX_TOKENS = {**QUICK, "max_new_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny_run(tiny_session: OCRSession) -> PhaseRun:
    """What the built-in model, as it is loaded by name, reads in six tokens."""
    return tiny_session.run_inference(SMALL, **SIX_TOKENS)


@pytest.fixture
def model(tiny_session: OCRSession) -> nn.Module:
    """A copy of the built-in model, which a test may change."""
    return copy.deepcopy(tiny_session.model)


def wrapped(model: Any) -> nn.Module:
    """Layers without a weight of their own, as an adapter that is not merged leaves them."""
    for layer in model.model.language_model.layers:
        layer.self_attn.q_proj = nn.Sequential(layer.self_attn.q_proj)
    return model


def quantised(model: Any) -> nn.Module:
    """A model with a layer that has integers for weights, and so rounds."""
    attention = model.model.language_model.layers[-1].self_attn
    wrapper = nn.Sequential(attention.o_proj)
    attention.o_proj = torch.ao.quantization.quantize_dynamic(wrapper, {nn.Linear})[0]
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("change", [wrapped, quantised])
def test_a_model_object_is_measured_as_it_is(
    change: Callable[[Any], nn.Module],
    model: nn.Module,
    tiny_run: PhaseRun,
    tiny_session: OCRSession,
) -> None:
    changed = change(model)
    session = OCRSession.from_model(changed, tiny_session.tokenizer, name="mine")
    session.loaded_model.ceilings = tiny_session.loaded_model.ceilings

    run = session.run_inference(SMALL, **SIX_TOKENS)

    assert session.model is changed
    if change is not quantised:
        assert run.result.ids == tiny_run.result.ids
    assert run.model.name == "mine"
    assert run.model.family == tiny_run.model.family
    assert not [check for check in run.live_checks if check.verdict == "fail"]
    assert PhaseRun.from_json(run.to_json()).floors.equals(run.floors)


def test_other_weights_are_another_revision(model: Any, tiny_session: OCRSession) -> None:
    def revision() -> str:
        return OCRSession.from_model(model, tiny_session.tokenizer).checkpoint.revision

    before = revision()
    assert revision() == before

    model.lm_head.weight.data[0, 0] += 1
    assert revision() != before


def test_buffers_are_no_weights(model: Any, tiny_session: OCRSession) -> None:
    model.register_buffer("spare", torch.zeros(10**7))
    session = OCRSession.from_model(model, tiny_session.tokenizer)
    assert "weights: 39.1 MB" in session._repr_mimebundle_()["text/plain"]


def within_another(model: Any) -> nn.Module:
    return nn.Sequential(model)


def without_projector(model: Any) -> nn.Module:
    del model.model.multi_modal_projector
    return model


@pytest.mark.parametrize("change", [within_another, without_projector])
def test_what_cannot_be_measured_is_refused(
    change: Callable[[Any], nn.Module], model: nn.Module, tiny_session: OCRSession
) -> None:
    with refused():
        OCRSession.from_model(change(model), tiny_session.tokenizer)


def test_the_same_weights_run_with_another_attention_and_dtype(
    tiny_run: PhaseRun, tiny_session: OCRSession
) -> None:
    other = tiny_session.with_model(attention="eager", dtype="bfloat16")
    run = other.run_inference(SMALL, **SIX_TOKENS, ceilings=False)

    assert run.model.attention == "eager"
    assert run.model.dtype == "bfloat16"
    assert run.result.ids == tiny_run.result.ids
    assert tiny_session.model.dtype == torch.float32


def test_the_settings_that_a_model_has_need_no_other_session(
    model: nn.Module, tiny_session: OCRSession
) -> None:
    of_callers_model = OCRSession.from_model(model, tiny_session.tokenizer)

    assert tiny_session.with_model(attention="sdpa", dtype="float32") is tiny_session
    assert of_callers_model.with_model(attention="sdpa") is of_callers_model


def test_a_callers_model_is_not_loaded_with_another_attention(
    model: nn.Module, tiny_session: OCRSession
) -> None:
    with refused():
        OCRSession.from_model(model, tiny_session.tokenizer).with_model(attention="eager")


# -- texts of tokens -------------------------------------------------------------------------------

TOKENIZER = load_tokenizer(GOLDEN / "checkpoint")
#: The first bytes of a character that has more of them.
INCOMPLETE = [250, 229]


def token_texts(ids: list[int]) -> list[str]:
    """The text that each token adds."""
    read = TokenReader(TOKENIZER).read
    return [read(token, last=place == len(ids)) for place, token in enumerate(ids, start=1)]


@example([*INCOMPLETE, TOKENIZER.eos_token_id])
@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40))
def test_token_texts_join_to_the_decoded_text(ids: list[int]) -> None:
    texts = token_texts(ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == TOKENIZER.decode(ids)


def test_a_replacement_character_that_was_written_is_text() -> None:
    ids = TOKENIZER.encode("\ufffda", add_special_tokens=False)
    assert len(ids) == 4  # a token a byte
    assert token_texts(ids) == ["", "", "\ufffd", "a"]


@pytest.mark.parametrize("beyond", [len(TOKENIZER), 5000])
def test_an_id_without_text_is_shown_by_its_number(beyond: int) -> None:
    [a] = TOKENIZER.encode("a", add_special_tokens=False)
    assert token_texts([a, beyond, a]) == ["a", f"<{beyond}>", "a"]
    assert "".join(token_texts([*INCOMPLETE, beyond])) == f"\ufffd\ufffd<{beyond}>"


OWN_SIZES = [
    pytest.param(
        "golden_session",
        {"preset": "gundam", "base_size": 512, "image_size": 320, "max_crops": 6},
        id="deepseek-ocr-gundam",
    ),
    pytest.param("golden_session", {"preset": "small", "image_size": 192}, id="deepseek-ocr-small"),
    pytest.param(
        "unlimited_session",
        {"preset": "gundam", "base_size": 320, "image_size": 128},
        id="unlimited-ocr-gundam",
    ),
    pytest.param(
        "ocr2_session",
        {"preset": "crop", "base_size": 768, "max_crops": 2},
        id="deepseek-ocr-2-crop",
    ),
]


@pytest.mark.parametrize(("fixture", "sizes"), OWN_SIZES)
def test_other_sizes_run_are_recorded_and_cost_what_ran(
    fixture: str, sizes: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    session = request.getfixturevalue(fixture)
    page = Image.new("RGB", (700, 1000), "white")

    with seen_once(session):
        run = session.run_inference(
            page,
            **sizes,
            max_new_tokens=3,
            repeats=1,
            warmup=0,
            verify=True,
            ignore_eos=True,
            ceilings=False,
        )
    saved = PhaseRun.load(run.save(tmp_path / "run.json"))

    verdicts = {check.name: check.verdict for check in run.live_checks}
    assert verdicts["parity"] == "pass"
    assert "fail" not in verdicts.values()

    view_sizes = ViewSizes.from_settings(run.request)
    preset = session.family.preset(sizes["preset"], view_sizes)
    assert run.request.preset == sizes["preset"]
    assert run.page.preset == preset.name
    assert preset.name != sizes["preset"]
    assert run.page.image_tokens == image_token_count(preset, preset.grid(*page.size))
    assert saved.page.preset in subject(saved)
    settings = recorded_settings(saved)
    assert settings | sizes == settings

    views = vision_calls(
        sizes["preset"],
        [run.page.grid],
        session.family.name,
        ViewSizes.from_settings(saved.request),
    )
    assert {call.side for call in views} <= {preset.base_size, preset.image_size}
    expected = prefill_cost(
        run.model.config, prompt_len=run.request.prefill_len, views=views, dtype_bytes=4
    )
    cost = run_cost(saved)
    assert cost[cost["phase"] == "prefill"]["flops"].sum() == expected["flops"].sum()


MEASURED = """
import sys
from ocr_phases import OCRSession, sample_page
session = OCRSession.load("tiny", device="cpu")
run = session.run_inference(
    sample_page(), preset="tiny", max_new_tokens=2, repeats=1, warmup=0, ceilings=False
)
assert run["decode_ms"] > 0
assert "matplotlib" not in sys.modules
"""


def test_a_measurement_imports_nothing_that_draws() -> None:
    command = [sys.executable, "-c", MEASURED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
