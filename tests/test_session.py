"""A whole measurement on the built-in model: equal to ``generate()``, complete, or refused in a sentence."""

from __future__ import annotations

import difflib
import json
import math
import pkgutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import GOLDEN, PAGES, SMALL_DUMMY
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refused

from ocr_phases import OCRSession
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.sentences import verdict
from ocr_phases.collectors.live_checks import host_syncs_check
from ocr_phases.errors import Interrupted, Stopped
from ocr_phases.families import FAMILIES
from ocr_phases.models import weights
from ocr_phases.models.load import TokenReader, load_tokenizer
from ocr_phases.recorder import _describe_row
from ocr_phases.settings import SamplingSettings
from ocr_phases.versions import asset

RECEIPT = PAGES / "receipt.png"
QUICK = {"max_new_tokens": 24, "repeats": 1, "warmup": 0}


@pytest.fixture(scope="module")
def run(tiny_session):
    return tiny_session.run_inference(RECEIPT, repeats=2, warmup=1)


def test_tiny_reads_the_receipt(run):
    truth = json.loads((PAGES / "receipt.json").read_text())
    assert run.result["finish_reason"] == "eos"
    regions = parse_grounding(run.text).regions
    labels = [region.label for region in regions]
    assert len(labels) == len(truth["regions"])
    assert {"title", "text", "table", "image"} <= set(labels)
    for mine, true in zip(regions, truth["regions"], strict=True):
        assert difflib.SequenceMatcher(None, mine.text, true["text"]).ratio() > 0.9
    assert run.token_table["region"].nunique() == len(truth["regions"])


def test_the_run_equals_generate(tiny_session, run):
    once = tiny_session.run_inference(RECEIPT, repeats=1, warmup=0, generate=True)
    assert once.result == run.result
    assert once["generate_ms"] > 0
    assert once["prefill_ms"] is None
    assert once["tokens_per_s"] is None


def test_the_record_holds_what_it_promises(run):
    assert run.repeats == [0, 1]
    assert run.page["file"] == "receipt.png"
    assert len(run.page["sha256"]) == 64
    assert (run.page["image_tokens"], run.page["text_tokens"]) == (111, 18)
    assert run.page["grid"] == [1, 1]
    assert run.request["prefill_len"] == 129
    assert run.versions["torch"]
    assert run.versions["transformers"]
    assert run.device["kind"] == "cpu"
    assert run.model["parameters"]["total"] > 9e6
    assert run.model["revision"].startswith("sha256:")
    assert run.cache["lengths"][0] == 129
    # Keys and values of 4 layers, 4 heads of 64, float32.
    assert run.cache["bytes_per_token"] == 2 * 4 * 4 * 64 * 4
    other = {check["name"]: check["verdict"] for check in run.live_checks if check["verdict"] != "pass"}
    assert other == {"host_syncs": "n/a"}  # of a CPU
    stages = run.spans.groupby("phase")["stage"].unique()
    assert set(stages["prepare"]) == {"prepare", "load_image", "tokenizer", "transfer"}
    assert set(stages["decode"]) == {"decode", "decode_step", "language_model", "lm_head", "sampling"}


def test_the_compression_ratio_is_the_vendors(tiny_session, run):
    """Text tokens count the output with its end token, tokenised again: 483 in the recorded case, whose
    stand-in tokenizer makes a token of every byte."""
    recorded = json.loads((GOLDEN / "artifacts.json").read_text())
    assert len(recorded["model_text"].encode()) == 483
    assert "valid image tokens:  780\noutput texts tokens (valid):  483" in recorded["console"]
    whole = run.text + tiny_session.tokenizer.eos_token
    assert run["text_tokens"] == len(tiny_session.encode(whole))
    assert run["valid_image_tokens"] == 100
    assert run["compression_ratio"] == run["text_tokens"] / 100


@pytest.mark.parametrize(
    ("waits", "seen", "device", "verdict", "measured"),
    [
        (None, None, "cpu", "n/a", "a CPU"),
        (None, None, "cuda", "n/a", "warm-up"),
        ((5, 23), None, "cuda", "pass", "5 in 23 steps"),
        ((6, 23), None, "cuda", "note", "6 in 23 steps"),
        ((5, 23), [1, 1, 0], "cuda", "note", "5 in 23 steps; the profiler saw 2 in 3 steps"),
        (None, [0, 1, 0], "cuda", "pass", "saw 1 in 3"),
    ],
)
def test_host_syncs_are_judged_by_what_was_counted(waits, seen, device, verdict, measured, tiny_session):
    view = None if seen is None else {"decode_steps": {"host_syncs": seen}}
    check = host_syncs_check(waits, view, 5, device)
    assert check["verdict"] == verdict
    assert measured in check["measured"]


def test_tokens_are_streamed_while_decoding(tiny_session):
    seen: list[tuple[int, list[int]]] = []
    done: list[tuple[int, int]] = []
    run = tiny_session.run_inference(
        RECEIPT,
        max_new_tokens=10,
        repeats=1,
        warmup=1,
        on_tokens=lambda repeat, new: seen.append((repeat, new[0])),
        progress=lambda *counts: done.append(counts),
    )
    assert done == [(0, 2), (1, 2), (2, 2)]
    measured = [token for repeat, tokens in seen if repeat == 0 for token in tokens]
    assert measured == run.result["ids"]
    assert len([1 for repeat, _ in seen if repeat == -1]) == 10


def test_a_stop_ends_at_the_next_token_and_keeps_finished_repeats(tiny_session):
    seen: list[int] = []

    def stop_in(number):
        def on_tokens(repeat, new):
            seen.append(repeat)
            if repeat == number and seen.count(number) == 5:
                raise Stopped

        return on_tokens

    options = {"max_new_tokens": 20, "repeats": 3, "warmup": 0}
    run = tiny_session.run_inference(RECEIPT, **options, on_tokens=stop_in(1))
    assert seen == [0] * 20 + [1] * 5
    assert run.repeats == [0]
    assert run.request["repeats"] == 1
    assert run.token_count == 20
    seen.clear()
    with pytest.raises(Stopped):
        tiny_session.run_inference(RECEIPT, **options, on_tokens=stop_in(0))
    assert seen == [0] * 5
    # Nothing of the stopped run is left on the model.
    assert tiny_session.run_inference(RECEIPT, **options).result == run.result


def interrupting(repeat, number=signal.SIGINT):
    def on_tokens(now, new):
        if now == repeat:
            signal.raise_signal(number)

    return on_tokens


def test_an_interrupt_keeps_finished_repeats(tiny_session, monkeypatch):
    options = {"max_new_tokens": 3, "repeats": 3, "warmup": 0, "preset": "tiny"}
    with refused(Interrupted):
        tiny_session.run_inference(RECEIPT, **options, on_tokens=interrupting(0))
    assert tiny_session.last_run is None
    with pytest.raises(Interrupted) as caught:
        tiny_session.run_inference(RECEIPT, **options, on_tokens=interrupting(2))
    run = tiny_session.last_run
    assert run is caught.value.run
    assert (run.repeats, run.request["repeats"]) == ([0, 1], 2)
    (check,) = (check for check in run_checks(run) if check.name == "interrupted")
    assert (check.verdict, check.measured[:6]) == ("note", "2 of 3")
    assert caught.value._render_traceback_() == [str(caught.value)]


@pytest.mark.parametrize(
    "part",
    [
        "collectors.parity.one_shot",
        "recorder.token_probabilities",
        "recorder.kernel_view",
        "collectors.machine._copy",
        "recorder.Measurement.record",
    ],
)
def test_an_interrupt_after_the_repeats_keeps_them(part, tiny_session, monkeypatch):
    honest = pkgutil.resolve_name(f"ocr_phases.{part}")

    def interrupted(*args, **options):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        return honest(*args, **options)

    monkeypatch.setattr(f"ocr_phases.{part}", interrupted)
    monkeypatch.setattr("ocr_phases.recorder.check_kernels", lambda *args, **options: None)
    tiny_session.prepared.ceilings.cache_clear()
    with pytest.raises(Interrupted):
        tiny_session.run_inference(RECEIPT, verify=True, kernels=part == "recorder.kernel_view", **QUICK)
    assert tiny_session.last_run.repeats == [0]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("device-side assert")]
)
def test_a_failure_after_the_repeats_keeps_them(error, tiny_session, monkeypatch):
    def failing(*args, **options):
        raise error

    for name in (
        "collectors.parity.one_shot",
        "collectors.machine._copy",
        "collectors.kernels.chrome_trace",
        "recorder.token_probabilities",
    ):
        monkeypatch.setattr(f"ocr_phases.{name}", failing)
    monkeypatch.setattr("ocr_phases.recorder.check_kernels", lambda *args, **options: None)
    tiny_session.prepared.ceilings.cache_clear()
    with (
        pytest.warns(UserWarning, match="no token probabilities"),
        pytest.warns(UserWarning, match="no ceilings"),
    ):
        run = tiny_session.run_inference(RECEIPT, verify=True, kernels=True, **QUICK)
    assert run["tokens"] == 24
    assert run.probabilities is run.device["ceilings"] is None
    assert [check["verdict"] for check in run.live_checks if check["name"] == "parity"] == ["n/a"]
    assert run.kernels == {"error": f"{type(error).__name__}: {error}"}
    assert str(error) in verdict(run)


def test_generate_tells_of_its_tokens_and_leaves_the_callers_random_numbers(tiny_session):
    seen = []
    before = torch.get_rng_state()
    run = tiny_session.run_inference(
        RECEIPT,
        generate=True,
        infer={"temperature": 3.0},
        on_tokens=lambda _, new: seen.extend(new[0]),
        **QUICK,
    )
    assert seen == run.result["ids"]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("family", ["deepseek-ocr", "unlimited-ocr"])
def test_a_published_infer_has_its_published_limit(family, tiny_session, monkeypatch):
    facts = replace(tiny_session.family, facts=FAMILIES[family])
    monkeypatch.setitem(vars(tiny_session.checkpoint), "family", facts)
    monkeypatch.setattr(tiny_session, "family", facts)
    monkeypatch.setattr(tiny_session.model.config.get_text_config(), "max_position_embeddings", 40_000)
    limits = {"deepseek-ocr": 8192, "unlimited-ocr": 32768 - len(tiny_session.prepare(RECEIPT).input_ids[0])}
    options = ({"infer": "published"}, {"infer": "published", "max_new_tokens": 7}, {})
    requests = [tiny_session.check_request(RECEIPT, **each) for each in options]
    assert [request.max_new_tokens for request in requests] == [limits[family], 7, 512]


def test_a_large_dummy_says_what_it_takes_before_it_is_made(monkeypatch, capsys):
    before = torch.get_rng_state()
    OCRSession.load(SMALL_DUMMY, device="cpu")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(weights, "_LARGE", 0)
    OCRSession.load(SMALL_DUMMY, device="cpu")
    memory, time = capsys.readouterr().err.splitlines()
    assert "parameters take" in memory
    assert "s a token" in time
    assert torch.equal(torch.get_rng_state(), before)


def test_a_folder_called_tiny_is_a_folder(tmp_path):
    folder = tmp_path / "tiny"
    folder.symlink_to(asset("data", "tiny"))
    checkpoint = OCRSession.load(str(folder), device="cpu").checkpoint
    assert (checkpoint.source, checkpoint.default_preset) == (str(folder), None)


def test_options_reach_the_run(tiny_session):
    plain = tiny_session.run_inference(RECEIPT, **QUICK)
    again = tiny_session.run_inference(RECEIPT, first_token="redecode", **QUICK)
    assert again.result == plain.result
    assert again.token_table["source"].tolist() == ["decode"] * 24
    assert again["decode_steps"] == 24
    mute = tiny_session.run_inference(RECEIPT, return_text=False, embed_page=False, **QUICK)
    assert mute["text"] is None
    assert mute.page_image() is None
    assert mute.result["token_texts"] == [""] * 24
    endless = tiny_session.run_inference(RECEIPT, ignore_eos=True, max_new_tokens=300, repeats=1, warmup=0)
    assert endless["tokens"] == 300
    assert endless.result["finish_reason"] == "length"
    one = tiny_session.run_inference(RECEIPT, max_new_tokens=1, repeats=1, warmup=0)
    assert (one["tokens"], one["decode_steps"], one["inter_token_ms"]) == (1, 0, None)
    sampled = [
        tiny_session.run_inference(RECEIPT, infer={"temperature": 3.0}, seed=seed, **QUICK).result["ids"]
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]


def test_a_batch_equals_its_single_runs(tiny_session):
    names = ["receipt.png", "slide.png", "invoice.png"]
    batch = tiny_session.run_inference([PAGES / name for name in names], repeats=1, warmup=0)
    for row, name in enumerate(names):
        single = tiny_session.run_inference(PAGES / name, repeats=1, warmup=0)
        assert batch.results[row] == single.result
        assert batch.pages[row]["row"] == row
    assert batch.request["batch"] == 3
    made = sum(len(result["ids"]) - 1 for result in batch.results)
    assert batch["tokens_per_s"] == pytest.approx(made / batch["decode_ms"] * 1000)
    assert len(batch.tokens_of(1)) == len(batch.results[1]["ids"])


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0},
        {"repeats": 0},
        {"warmup": -1},
        {"eos_check_every": 0},
        {"eos_check_every": 2.5},
        {"repeats": "three"},
        {"preset": "huge"},
        {"first_token": "none"},
        {"strategy": "magic"},
        {"generate": True, "first_token": "redecode"},
        {"infer": {"heat": 1}},
        {"infer": {"temperature": -1}},
        {"infer": {"top_p": 0}},
        {"infer": {"temperature": math.inf}},
        {"infer": [1]},
        {"seed": 2**64},
        {"embed_page": "no"},
        {"prompt": 5},
        {"prompt": "caf\udce9"},
        {"infer": {"do_sample": True, "temperature": 0}},
        {"max_new_tokens": 4096},
        {"prompt": "no page <image> and <image>"},
    ],
)
def test_bad_requests_are_one_sentence(options, tiny_session):
    with refused() as caught:
        tiny_session.run_inference(RECEIPT, **options)
    assert "\n" not in str(caught.value)


def test_temperature_zero_is_greedy():
    assert SamplingSettings.from_infer({"temperature": 0.0}) == SamplingSettings()
    assert SamplingSettings.from_infer({"temperature": 0.5}).do_sample


TOKENIZER = load_tokenizer(GOLDEN / "checkpoint")


def token_texts(tokenizer, ids):
    read = TokenReader(tokenizer).read
    return [read(token, last=place == len(ids)) for place, token in enumerate(ids, start=1)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40))
def test_token_texts_join_to_the_decoded_text(ids):
    texts = token_texts(TOKENIZER, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == TOKENIZER.decode(ids)


def test_a_replacement_character_of_the_text_is_not_held_back():
    ids = TOKENIZER.encode("\ufffda", add_special_tokens=False)
    assert len(ids) == 4  # a token a byte
    assert token_texts(TOKENIZER, ids) == ["", "", "\ufffd", "a"]


def test_ids_without_text_show_as_their_number():
    [a] = TOKENIZER.encode("a", add_special_tokens=False)
    assert token_texts(TOKENIZER, [a, 5000, a]) == ["a", "<5000>", "a"]
    assert "".join(token_texts(TOKENIZER, [250, 229, 5000])) == "\ufffd\ufffd<5000>"


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(2, 255), max_size=6))
@example([250, 229])
def test_a_character_left_incomplete_before_the_end_is_in_the_text(golden_session, ids):
    request = SimpleNamespace(ignore_eos=False, return_text=True)
    row = _describe_row(golden_session.checkpoint, request, [*ids, golden_session.eos_id])
    assert row["text"] == TOKENIZER.decode(ids) == "".join(row["token_texts"][:-1])
    assert len(row["token_texts"]) == len(row["ids"])
    read = TokenReader(TOKENIZER).read  # as it is shown while it is written
    assert "".join(map(read, row["ids"])) == TOKENIZER.decode(row["ids"])
