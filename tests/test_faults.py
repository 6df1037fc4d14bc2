"""Faults planted for real, and the check or the sentence that names each (docs/troubleshooting.md)."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import GOLDEN, PAGES
from elements import Elements
from example_run import make_run
from grounding_texts import fuzzed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import OCRSession, PhaseRun, recorder
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.regions import region_table
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.cli import main
from ocr_phases.collectors import parity
from ocr_phases.collectors.live_checks import norm_layers
from ocr_phases.collectors.parity import bfloat16_step
from ocr_phases.errors import OutOfMemory
from ocr_phases.families import PROMPTS
from ocr_phases.files import LOCK_NAME
from ocr_phases.models.load import Checkpoint
from ocr_phases.report.render import page_report
from ocr_phases.show import page as page_view
from ocr_phases.show import results
from ocr_phases.steps import phases

RECEIPT = PAGES / "receipt.png"
ONCE: dict[str, Any] = {"max_new_tokens": 12, "repeats": 1, "warmup": 0}
QUICK = {**ONCE, "token_probabilities": False, "ceilings": False}


def verdicts(run: PhaseRun) -> dict[str, str]:
    return {check.name: check.verdict for check in run_checks(run)}


def failures(run: PhaseRun) -> set[str]:
    return {name for name, verdict in verdicts(run).items() if verdict == "fail"}


@contextlib.contextmanager
def arguments_changed(
    model: Any, change: Callable[[dict[str, Any]], None], *, prefill: bool = False
) -> Iterator[None]:
    """A model whose forward is handed something else than `phases` gave: only the forward hooks see it."""

    def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if prefill or kwargs["input_ids"].shape[1] == 1:
            kwargs = dict(kwargs)
            change(kwargs)
        return args, kwargs

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture(scope="module", params=["tiny", "small768"])
def session(request: pytest.FixtureRequest) -> Iterator[OCRSession]:
    """A session of each family at a small preset, proved to be sound again after all faults."""
    name = "tiny_session" if request.param == "tiny" else "ocr2_session"
    checkpoint = request.getfixturevalue(name).checkpoint
    session = OCRSession(dataclasses.replace(checkpoint, default_preset=request.param))
    yield session
    assert not failures(session.run_inference(RECEIPT, **QUICK))


def test_a_sound_run_passes(session: OCRSession) -> None:
    run = session.run_inference(RECEIPT, verify=True, **ONCE)
    found = verdicts(run)
    assert found["parity"] == "pass"
    unknown = [name for name, verdict in found.items() if verdict == "n/a"]
    assert unknown == ["repeat_spread", "host_syncs", "decode_trend"]  # one repeat, on a CPU


# -- the faults of the review's list ------------------------------------------------------------------

PIXELS = torch.zeros(1, 3, 512, 512)
PADDED = [RECEIPT, RECEIPT], ["free", "<image>\n<|grounding|>A longer prompt."]


def run_vision(session: OCRSession, arguments: dict[str, Any]) -> None:
    """As the vendor's class does when its one-token gate is passed."""
    stages = session.family.stages(session.model)
    stages["sam"](PIXELS)
    stages["projector"](torch.zeros(1, 64, next(stages["projector"].parameters()).shape[-1]))


def regrown(columns: int) -> Callable[[OCRSession, dict[str, Any]], None]:
    """A mask of other columns: one short is what a mask grown after the step looks like."""

    def regrow(_: OCRSession, arguments: dict[str, Any]) -> None:
        rows, length = arguments["attention_mask"].shape
        arguments["attention_mask"] = torch.ones(rows, length + columns, dtype=torch.int64)

    return regrow


Change = Callable[[OCRSession, dict[str, Any]], Any]
#: What becomes of a decode step's arguments, what is measured, and the check that fails (None: refused).
FAULTS: dict[str, tuple[Change, tuple[Any, ...], str | None]] = {
    "pixels": (lambda _, step: step.update(pixel_values=PIXELS), (RECEIPT,), None),
    "crops alone, which run no vision": (
        lambda _, step: step.update(num_local_patches=[0]),
        (RECEIPT,),
        "no_image_arguments_in_decode",
    ),
    "vision that runs": (run_vision, (RECEIPT,), "vision_in_prefill_only"),
    "a copied cache": (
        lambda _, step: step.update(past_key_values=copy.deepcopy(step["past_key_values"])),
        (RECEIPT,),
        None,
    ),
    "a cache that lost an entry": (lambda _, step: step["past_key_values"].crop(-1), (RECEIPT,), None),
    "a mask too short": (regrown(-1), PADDED, "mask_handed_over"),
    "a mask too long": (regrown(1), PADDED, "mask_handed_over"),
    "padded rows without their mask": (
        lambda session, step: step.update(attention_mask=session.family.ready_mask(None)),
        PADDED,
        "mask_handed_over",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_behind_the_step_is_refused_or_seen(name: str, session: OCRSession) -> None:
    """Only the forward hooks can notice."""
    change, asked, outcome = FAULTS[name]
    with arguments_changed(session.model, lambda arguments: change(session, arguments)):
        if outcome is None:
            with refused():
                session.run_inference(*asked, **QUICK)
            return
        try:
            run = session.run_inference(*asked, **QUICK)
        except (RuntimeError, IndexError, ValueError):
            pytest.skip("this version of transformers refuses such a mask itself")
    assert failures(run) == {outcome}
    assert says(checks_verdict(run_checks(run)), "not trust")


def test_training_mode_switched_on_within_the_call_is_seen(session: OCRSession) -> None:
    model = session.model

    def train(kwargs: dict[str, Any]) -> None:
        model.training = True

    def evaluate(*args: Any) -> None:
        model.training = False

    handle = model.register_forward_hook(evaluate)
    try:
        with arguments_changed(model, train, prefill=True):
            run = session.run_inference(RECEIPT, **QUICK)
    finally:
        handle.remove()
    assert failures(run) == {"eval_mode"}


def mask_not_grown(patch: pytest.MonkeyPatch) -> None:
    functional = SimpleNamespace(pad=lambda mask, *args, **kwargs: mask)
    patch.setattr(phases, "nn", SimpleNamespace(functional=functional))


def gradients(patch: pytest.MonkeyPatch) -> None:
    for name in ("prefill", "decode_step", "decode"):
        patch.setattr(phases, name, getattr(phases, name).__wrapped__)


def spaces_lost(patch: pytest.MonkeyPatch) -> None:
    honest = Checkpoint.encode
    patch.setattr(Checkpoint, "encode", lambda self, text: honest(self, text.replace(" ", "")))


def image_tokens_elsewhere(patch: pytest.MonkeyPatch) -> None:
    honest = recorder.pack_rows

    def shifted(*args: Any) -> Any:
        packed, pages = honest(*args)
        return dataclasses.replace(packed, images_seq_mask=packed.images_seq_mask.roll(1, dims=1)), pages

    patch.setattr(recorder, "pack_rows", shifted)


def other_tokens_for_generate(patch: pytest.MonkeyPatch) -> None:
    """Another tokenisation for the one-shot path: the beginning token twice."""
    honest = parity.one_shot

    def generate(self: OCRSession, inputs: Any, request: Any) -> list[list[int]]:
        ids = inputs.input_ids.clone()
        ids[:, -1] = ids[:, -3]
        return honest(self, dataclasses.replace(inputs, input_ids=ids), request)

    patch.setattr(parity, "one_shot", generate)


@pytest.mark.parametrize(
    ("fault", "failed", "asked"),
    [
        (mask_not_grown, "attention_mask", {}),
        (gradients, "gradients_off", {"max_new_tokens": 4}),
        (spaces_lost, "prompt_tokens", {}),
        (image_tokens_elsewhere, "image_mask", {}),
        (other_tokens_for_generate, "parity", {"verify": True, "max_new_tokens": 60}),
    ],
)
def test_a_fault_of_the_package_is_seen(
    fault: Callable[[pytest.MonkeyPatch], None],
    failed: str,
    asked: dict[str, Any],
    session: OCRSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        run = session.run_inference(RECEIPT, **{**QUICK, **asked})
    assert failed in failures(run)
    assert failures(run) == {failed} or fault is image_tokens_elsewhere


def test_sampling_is_a_note_of_parity(tiny_session: OCRSession) -> None:
    run = tiny_session.run_inference(RECEIPT, preset="tiny", infer={"temperature": 2.0}, verify=True, **QUICK)
    (check,) = (check for check in run_checks(run) if check.name == "parity")
    assert check.verdict == "note"
    assert "sampled with one seed" in check.measured
    assert not failures(run)


def test_autocast_and_mixed_norms_are_notes(tiny_session: OCRSession) -> None:
    session = tiny_session
    run = session.run_inference(RECEIPT, preset="tiny", autocast=True, verify=True, **QUICK)
    assert verdicts(run)["norm_layers"] == "note"
    assert "parity" not in failures(run)
    norm = next(module for module in session.model.modules() if type(module).__name__ == "LayerNorm")
    norm.half()
    try:
        check = norm_layers(session.model, session.dtype, autocast=False)
    finally:
        norm.float()
    assert (check["name"], check["verdict"]) == ("norm_layers", "note")
    assert says(check["measured"], "1 LayerNorm", "float16")


def test_a_decode_that_repeats_itself_is_flagged(tiny_session: OCRSession) -> None:
    """A head that has one token to say, whatever the weights."""

    def stuck(head: Any, args: Any, logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(logits).index_fill_(-1, torch.tensor(100), 1.0)

    handle = tiny_session.model.lm_head.register_forward_hook(stuck)
    try:
        run = tiny_session.run_inference(RECEIPT, preset="tiny", **{**QUICK, "max_new_tokens": 120})
    finally:
        handle.remove()
    assert verdicts(run)["repetition_loop"] == "note"
    assert "times from token" in "".join(check.measured for check in run_checks(run))


# -- parity in 16 bits --------------------------------------------------------------------------------


def test_bfloat16_passes_by_its_tokens_or_a_tie() -> None:
    session = OCRSession.load("tiny", device="cpu", dtype="bfloat16")
    run = session.run_inference(RECEIPT, preset="tiny", verify=True, **{**QUICK, "max_new_tokens": 24})
    assert verdicts(run)["parity"] == "pass"


@pytest.mark.parametrize(("shift", "verdict"), [(0, "pass"), (1.5, "pass"), (4, "fail")])
def test_the_first_difference_is_judged_by_its_margin(
    shift: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """generate()'s sixth token is replaced by one that our logits put ``shift`` bfloat16 steps lower."""
    session = OCRSession.from_local(GOLDEN / "checkpoint", device="cpu", dtype="bfloat16")
    honest_scores, honest = parity.scores, parity.one_shot
    other = 17

    def scores(*args: Any) -> dict[int, torch.Tensor]:
        found = honest_scores(*args)
        assert set(found) == args[-1] == {5}
        best = float(found[5].max())
        found[5][0, other] = best - shift * bfloat16_step(best)
        return found

    def generate(self: OCRSession, inputs: Any, request: Any) -> list[list[int]]:
        ids = honest(self, inputs, request)
        ids[0][5] = other
        return ids

    monkeypatch.setattr(parity, "scores", scores)
    monkeypatch.setattr(parity, "one_shot", generate)
    run = session.run_inference(
        RECEIPT, preset="tiny", ignore_eos=True, verify=True, **{**QUICK, "max_new_tokens": 8}
    )
    (check,) = (check for check in run_checks(run) if check.name == "parity")
    assert check.verdict == verdict
    assert says(check.measured, "token 6 of 8")
    assert "top-2 margin" in check.measured


# -- the verbs ----------------------------------------------------------------------------------------


def test_verify_prints_the_table_and_answers_by_exit_code(tmp_path: Path, capsys: Any) -> None:
    saved = tmp_path / "run.json"
    options = ["--preset", "tiny", "--max-new-tokens", "6", "--repeats", "1", "--warmup", "0"]
    assert main(["verify", str(RECEIPT), "--save", str(saved), *options, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "pass  parity" in out
    assert "checks failed" not in out
    run = PhaseRun.load(saved)
    assert run.request["verify"]
    checks = [{**run.live_checks[0], "verdict": "fail"}, *run.live_checks[1:]]
    dataclasses.replace(run, live_checks=checks).save(saved)
    assert main(["verify", "--record", str(saved)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"not trust .*\b1 of \d+ .*failed.*repeats agree", out)
    assert "deterministic kernels" in out


def test_profile_repeats_a_record(
    tmp_path: Path, tiny_session: OCRSession, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"first_token": "redecode", "eos_check_every": 2, "infer": {"temperature": 1.5}, "seed": 3}
    asked = {"preset": "tiny", **QUICK}
    for pages, run in (  # a page that is not in the record is named
        ([RECEIPT], tiny_session.run_inference(RECEIPT, "free", embed_page=False, **options, **asked)),
        ([], tiny_session.run_inference([RECEIPT, PAGES / "slide.png"], **asked)),
    ):
        run.save("then.json", overwrite=True)
        command = ["profile", *map(str, pages), "--from", "then.json", "--device", "cpu"]
        assert main([*command, "--save", "now.json", "--overwrite"]) == 0
        assert "Tokens: equal" in capsys.readouterr().out
        now = PhaseRun.load("now.json")
        assert now.request == run.request
        assert [page["sha256"] for page in now.pages] == [page["sha256"] for page in run.pages]


# -- pages: as many features as tokens ----------------------------------------------------------------

SIDES = st.one_of(st.integers(1, 1500), st.sampled_from([1, 2, 639, 640, 641, 1024, 1280]))
SIZES = st.one_of(
    st.tuples(SIDES, SIDES),
    st.tuples(st.integers(1, 20_000), st.integers(1, 50)),
    st.tuples(st.integers(1, 50), st.integers(1, 20_000)),
)
PROMPT_TEXTS = st.one_of(
    st.sampled_from([name for name in PROMPTS if name != "locate"]),
    st.text(min_size=1, max_size=20).filter(lambda text: text.strip() and "<image>" not in text),
)


@settings(deadline=None, max_examples=4)
@given(size=SIZES, preset=st.sampled_from(["tiny", "tiny", "small"]), prompt=PROMPT_TEXTS)
@example(size=(1, 1), preset="tiny", prompt="free")
@example(size=(20_000, 50), preset="gundam", prompt="free")
@example(size=(50, 1_300), preset="gundam", prompt="markdown")
def test_any_page_goes_through_the_model(
    golden_session: OCRSession, size: tuple[int, int], preset: str, prompt: str
) -> None:
    if prompt.strip().partition(":")[0].rstrip() == "locate":
        return
    page = Image.new("RGB", size, (200, 220, 240))
    run = golden_session.run_inference(
        page, prompt, preset=preset, ignore_eos=True, **{**QUICK, "max_new_tokens": 2}
    )
    found = verdicts(run)
    assert found["image_features"] == found["image_mask"] == "pass"
    assert not failures(run)


# -- whatever a model may write -----------------------------------------------------------------------


TEXT_RUN = make_run(max_tokens=8, repeats=1, embed=False, crops=False)


@settings(deadline=None, max_examples=30)
@given(fuzzed)
@example("\x00\ud800<script>alert(1)</script>")
def test_any_text_becomes_fragments_without_a_script(text: str) -> None:
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)] or [""]
    result = {**TEXT_RUN.result, "ids": list(range(len(pieces))), "token_texts": pieces, "text": text}
    run = dataclasses.replace(TEXT_RUN, results=[result])
    regions = page_view.regions_html(region_table(parse_grounding(text), run.token_table))
    elements = Elements(document := results.head_html(run) + results.text_html(text) + regions)
    assert not elements.open
    assert not elements.stray
    assert not {"script", "iframe", "object", "style"} & elements.tags()
    # The only drawings are the header's own bar and its key.
    assert {own.get("class") for tag, own in elements.found if tag == "svg"} <= {"op-bar", "op-key"}
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    document.encode()


# -- full disks, no memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = make_run().save(tmp_path / "run.json")
    before = path.read_bytes()
    monkeypatch.setattr(os, call, full_disk)
    with refused():
        make_run(seed=1).save(path)
    assert path.read_bytes() == before
    with refused():
        page_report(PhaseRun.load(GOLDEN / "run.json"), tmp_path / "out")
    assert {item.name for item in tmp_path.iterdir()} == {"run.json", "out"}
    assert not (tmp_path / "out" / LOCK_NAME).exists()


def test_out_of_memory_says_what_would_ask_for_less(tiny_session: OCRSession) -> None:
    def exhausted(kwargs: dict[str, Any]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with arguments_changed(tiny_session.model, exhausted, prefill=False), refused(OutOfMemory):
        tiny_session.run_inference([RECEIPT] * 2, preset="tiny", **QUICK)
