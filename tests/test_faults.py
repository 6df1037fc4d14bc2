"""Faults planted for real, and the check or sentence that names each (docs/troubleshooting.md)."""

import contextlib
import copy
import dataclasses
import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
import torch
from conftest import GOLDEN, PAGES, RECORD
from elements import Elements
from example_run import altered, make_run
from golden_cases import seen_once
from grounding_texts import fuzzed
from hypothesis import example, given, settings
from PIL import Image
from refusals import refused
from torch import nn
from wording import says

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.regions import region_table
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.cli import main
from ocr_phases.errors import OutOfMemory
from ocr_phases.files import LOCK_NAME
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.measure import measurement, parity
from ocr_phases.measure.live_checks import norm_layers
from ocr_phases.models.load import Checkpoint
from ocr_phases.record.parts import to_plain
from ocr_phases.report.render import page_report
from ocr_phases.show.page import regions_html
from ocr_phases.show.page_and_text import text_html
from ocr_phases.show.run_overview import head_html
from ocr_phases.steps import phases

RECEIPT = PAGES / "receipt.png"
#: A page whose file is not read again for every run.
SMALL = Image.open(RECEIPT).resize((300, 300))
ONCE: dict[str, Any] = {"preset": "tiny", "max_new_tokens": 6, "repeats": 1, "warmup": 0}
QUICK = {**ONCE, "token_probabilities": False, "ceilings": False}
#: Two rows of different lengths, of which the shorter one is padded.
PADDED = ([SMALL, SMALL], ["free", "<image>\n<|grounding|>A longer prompt."])


def checks_of(run: PhaseRun) -> dict[str, Verdict]:
    """The checks of a run by their names."""
    return {check.name: check for check in run_checks(run)}


def failures(run: PhaseRun) -> set[str]:
    """The names of the checks that fail."""
    return {check.name for check in run_checks(run) if check.verdict == "fail"}


#: What a call of the model is given by name.
Arguments = dict[str, Any]


@contextlib.contextmanager
def changed_arguments(
    model: nn.Module, change: Callable[[Arguments], object], *, prefill: bool = False
) -> Iterator[None]:
    """The model is handed something else than `phases` gave in each decode step.

    With ``prefill`` that is so in every call. Only the forward hooks of the package see it.
    """

    def hook(_module: nn.Module, args: Any, arguments: Arguments) -> tuple[Any, Arguments]:
        if prefill or arguments["input_ids"].shape[1] == 1:
            arguments = dict(arguments)
            change(arguments)
        return args, arguments

    with model.register_forward_pre_hook(hook, with_kwargs=True):
        yield


@dataclass(frozen=True)
class FamilySession:
    """A family's session whose ``run(pages, prompts, **options)`` is quick and at a small
    preset.
    """

    model: nn.Module
    interface: Any
    run: Callable[..., PhaseRun]


@pytest.fixture(scope="module", params=["golden_session", "ocr2_session"])
def session(request: pytest.FixtureRequest) -> Iterator[FamilySession]:
    """A session of each family, proved to be sound again after all faults."""
    own: OCRSession = request.getfixturevalue(request.param)
    preset = own.family.stands_for.get("tiny", "tiny")
    run = partial(own.run_inference, **{**QUICK, "preset": preset})
    with seen_once(own):
        yield FamilySession(own.model, own.checkpoint.interface, run)
        assert not failures(run(SMALL))


def test_a_sound_run_passes(session: FamilySession) -> None:
    run = session.run(SMALL, verify=True, token_probabilities=True, ceilings=True)
    checks = checks_of(run)
    assert checks["parity"].verdict == "pass"
    unknown = [name for name, check in checks.items() if check.verdict == "n/a"]
    assert unknown == ["repeat_spread", "host_syncs", "decode_trend"]  # one repeat, on a CPU


# -- faults in the arguments of a decode step ------------------------------------------------------

PIXELS = torch.zeros(1, 3, 512, 512)


def add_pixels(_session: FamilySession, arguments: Arguments) -> None:
    arguments["pixel_values"] = PIXELS


def add_count_of_crops(_session: FamilySession, arguments: Arguments) -> None:
    """An image argument that runs no vision."""
    arguments["num_local_patches"] = [0]


def run_vision(session: FamilySession, _arguments: Arguments) -> None:
    """As the vendor's class does when its one-token gate is passed."""
    stages = session.interface.modules(session.model)
    width = next(stages["projector"].parameters()).shape[-1]
    stages["sam"](PIXELS)
    stages["projector"](torch.zeros(1, 64, width))


def copy_cache(_session: FamilySession, arguments: Arguments) -> None:
    arguments["past_key_values"] = copy.deepcopy(arguments["past_key_values"])


def crop_cache(_session: FamilySession, arguments: Arguments) -> None:
    arguments["past_key_values"].crop(-1)


def shorten_mask(_session: FamilySession, arguments: Arguments) -> None:
    """This is what a mask that is grown after the step looks like."""
    rows, length = arguments["attention_mask"].shape
    arguments["attention_mask"] = torch.ones(rows, length - 1, dtype=torch.int64)


def lengthen_mask(_session: FamilySession, arguments: Arguments) -> None:
    rows, length = arguments["attention_mask"].shape
    arguments["attention_mask"] = torch.ones(rows, length + 1, dtype=torch.int64)


def drop_mask(session: FamilySession, arguments: Arguments) -> None:
    arguments["attention_mask"] = session.interface.ready_mask(None)


StepFault = Callable[[FamilySession, Arguments], None]


def faulty_steps(session: FamilySession, fault: StepFault) -> AbstractContextManager[None]:
    """The session with a fault in the arguments of each decode step."""
    return changed_arguments(session.model, partial(fault, session))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(add_pixels, id="pixels"),
        pytest.param(copy_cache, id="a copied cache"),
        pytest.param(crop_cache, id="a cache that lost an entry"),
    ],
)
def test_a_decode_step_that_is_no_decode_step_is_refused(
    session: FamilySession, fault: StepFault
) -> None:
    with faulty_steps(session, fault), refused():
        session.run(SMALL)


def assert_only_fails(run: PhaseRun, *names: str) -> None:
    """These checks fail and no other, and the sentence over all of them warns."""
    assert failures(run) == set(names)
    assert says(checks_verdict(run_checks(run)), "not trust")


@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        pytest.param(
            add_count_of_crops,
            "no_image_arguments_in_decode",
            id="crops alone, which run no vision",
        ),
        pytest.param(run_vision, "vision_in_prefill_only", id="vision that runs"),
    ],
)
def test_images_in_a_decode_step_fail_a_check(
    session: FamilySession, fault: StepFault, failed: str
) -> None:
    with faulty_steps(session, fault):
        run = session.run(SMALL)
    assert_only_fails(run, failed)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(shorten_mask, id="a mask too short"),
        pytest.param(lengthen_mask, id="a mask too long"),
        pytest.param(drop_mask, id="padded rows without their mask"),
    ],
)
def test_a_wrong_mask_of_padded_rows_fails_a_check(
    session: FamilySession, fault: StepFault
) -> None:
    with faulty_steps(session, fault):
        try:
            run = session.run(*PADDED)
        except (RuntimeError, IndexError, ValueError):
            pytest.skip("this version of transformers refuses such a mask itself")
    assert_only_fails(run, "mask_handed_over")


# -- faults of the package -------------------------------------------------------------------------


@contextlib.contextmanager
def training_within_the_call(session: FamilySession) -> Iterator[None]:
    """The model is in training mode while a call runs, and in eval mode before and after it."""
    model = session.model

    def begin(_arguments: Arguments) -> None:
        model.training = True

    def end(*_: object) -> None:
        model.training = False

    with model.register_forward_hook(end), changed_arguments(model, begin, prefill=True):
        yield


def mask_not_grown(_session: FamilySession) -> AbstractContextManager[object]:
    def pad_nothing(mask: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return mask

    functional = SimpleNamespace(pad=pad_nothing)
    return mock.patch.object(phases, "nn", SimpleNamespace(functional=functional))


def gradients(_session: FamilySession) -> AbstractContextManager[object]:
    """The functions of a phase without the decorator that turns gradients off."""
    return mock.patch.multiple(
        phases,
        prefill=phases.prefill.__wrapped__,
        decode_step=phases.decode_step.__wrapped__,
        decode=phases.decode.__wrapped__,
    )


def spaces_lost(_session: FamilySession) -> AbstractContextManager[object]:
    """A tokenizer that sees no spaces."""
    encode = Checkpoint.encode

    def encode_without_spaces(checkpoint: Checkpoint, text: str) -> list[int]:
        return encode(checkpoint, text.replace(" ", ""))

    return mock.patch.object(Checkpoint, "encode", encode_without_spaces)


def image_tokens_elsewhere(_session: FamilySession) -> AbstractContextManager[object]:
    """The image's tokens are said to be one place further than they are."""
    pack_rows = measurement.pack_rows

    def pack_shifted(*args: Any) -> Any:
        packed, pages = pack_rows(*args)
        shifted = packed.images_seq_mask.roll(1, dims=1)
        return dataclasses.replace(packed, images_seq_mask=shifted), pages

    return mock.patch.object(measurement, "pack_rows", pack_shifted)


def other_tokens_for_generate(_session: FamilySession) -> AbstractContextManager[object]:
    """Another tokenisation for the one-shot path: its last token is the third last one."""
    one_shot = parity.one_shot

    def one_shot_of_others(checkpoint: Checkpoint, inputs: DeviceInputs, request: Any) -> Any:
        ids = inputs.input_ids.clone()
        ids[:, -1] = ids[:, -3]
        return one_shot(checkpoint, dataclasses.replace(inputs, input_ids=ids), request)

    return mock.patch.object(parity, "one_shot", one_shot_of_others)


PackageFault = Callable[[FamilySession], AbstractContextManager[object]]


@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        pytest.param(training_within_the_call, ["eval_mode"], id="training within the call"),
        pytest.param(mask_not_grown, ["attention_mask"], id="a mask that is not grown"),
        pytest.param(gradients, ["gradients_off"], id="gradients"),
        pytest.param(spaces_lost, ["prompt_tokens"], id="lost spaces"),
        pytest.param(
            image_tokens_elsewhere, ["image_mask", "prompt_tokens"], id="image tokens elsewhere"
        ),
    ],
)
def test_a_fault_of_the_package_fails_a_check(
    session: FamilySession, fault: PackageFault, failed: list[str]
) -> None:
    with fault(session):
        run = session.run(SMALL)
    assert_only_fails(run, *failed)


def test_other_tokens_than_those_of_generate_fail_parity(session: FamilySession) -> None:
    with other_tokens_for_generate(session):
        run = session.run(SMALL, verify=True, max_new_tokens=20)
    assert_only_fails(run, "parity")


# -- what is noted and is no fault -----------------------------------------------------------------


def test_parity_of_a_sampled_run_is_a_note(golden_session: OCRSession) -> None:
    run = golden_session.run_inference(SMALL, **QUICK, verify=True, infer={"temperature": 2.0})
    check = checks_of(run)["parity"]
    assert check.verdict == "note"
    assert "sampled with one seed" in check.measured
    assert not failures(run)


def test_norms_under_autocast_are_a_note(golden_session: OCRSession) -> None:
    run = golden_session.run_inference(SMALL, **QUICK, verify=True, autocast=True)
    check = checks_of(run)["norm_layers"]
    assert check.verdict == "note"
    assert says(check.measured, "model.language_model.layers.*.input_layernorm (3)")
    assert "parity" not in failures(run)


def test_a_norm_of_another_dtype_is_a_note(golden_session: OCRSession) -> None:
    model = golden_session.model
    norm = next(module for module in model.modules() if type(module).__name__ == "LayerNorm")
    norm.half()
    try:
        check = norm_layers(model, golden_session.dtype, autocast=False)
    finally:
        norm.float()
    assert check.verdict == "note"
    assert says(check.measured, "1 LayerNorm", "float16")


# -- parity in 16 bits -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bfloat16_session(golden_checkpoint: Callable[[Path], Path]) -> OCRSession:
    """The recorded model in 16 bits."""
    return OCRSession.from_local(golden_checkpoint(GOLDEN), device="cpu", dtype="bfloat16")


@pytest.mark.parametrize(("shift", "verdict"), [(1.5, "pass"), (4, "fail")])
def test_the_first_difference_is_judged_by_its_margin(
    shift: float,
    verdict: str,
    bfloat16_session: OCRSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """generate()'s sixth token is replaced by one that our logits put ``shift`` bfloat16 steps
    lower.
    """
    own_scores = parity.scores
    own_one_shot = parity.one_shot
    other_token = 17

    def scores(*args: Any) -> dict[int, torch.Tensor]:
        found = own_scores(*args)
        assert set(found) == args[-1] == {5}
        best = found[5].max().bfloat16()
        one_step = best - torch.nextafter(best, best * 0)
        found[5][0, other_token] = float(best) - shift * float(one_step)
        return found

    def one_shot(checkpoint: Checkpoint, inputs: DeviceInputs, request: Any) -> list[list[int]]:
        ids = own_one_shot(checkpoint, inputs, request)
        ids[0][5] = other_token
        return ids

    monkeypatch.setattr(parity, "scores", scores)
    monkeypatch.setattr(parity, "one_shot", one_shot)

    seven_tokens = {**QUICK, "max_new_tokens": 7}
    run = bfloat16_session.run_inference(SMALL, ignore_eos=True, verify=True, **seven_tokens)

    check = checks_of(run)["parity"]
    assert check.verdict == verdict
    assert says(check.measured, "token 6 of 7", "top-2 margin")


# -- the verbs -------------------------------------------------------------------------------------


def test_verify_answers_by_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it prints of sound records is approved."""
    run = PhaseRun.load(RECORD)
    first, *others = run.live_checks
    failed = msgspec.structs.replace(first, verdict="fail")
    record = altered(run, live_checks=[failed, *others]).save(tmp_path / "run.json")

    assert main(["verify", "--record", str(record)]) == 1

    assert re.search(r"not trust .*\b1 failed", capsys.readouterr().out)


def assert_repeated(run: PhaseRun, *pages: Path) -> None:
    """The verb measures a record once more; a page that is not in the record is named."""
    run.save("then.json", overwrite=True)
    command = ["profile", *map(str, pages), "--from", "then.json", "--device", "cpu"]
    command += ["--no-ceilings", "--no-token-probabilities", "--save", "now.json", "--overwrite"]
    assert main(command) == 0

    now = PhaseRun.load("now.json")
    assert now.request == run.request
    assert [page.sha256 for page in now.pages] == [page.sha256 for page in run.pages]


def test_profile_repeats_a_record_whose_page_is_named(
    tmp_path: Path,
    golden_session: OCRSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = golden_session.run_inference(
        RECEIPT,
        "free",
        embed_page=False,
        first_token="redecode",
        eos_check_every=2,
        infer={"temperature": 1.5},
        seed=3,
        **QUICK,
    )
    assert_repeated(run, RECEIPT)
    assert "Tokens: equal" in capsys.readouterr().out


def test_profile_repeats_a_record_that_holds_its_pages(
    tmp_path: Path,
    golden_session: OCRSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = golden_session.run_inference([RECEIPT, PAGES / "slide.png"], **QUICK)
    assert_repeated(run)
    assert "Tokens: equal" in capsys.readouterr().out


# -- whatever a model may write --------------------------------------------------------------------


TEXT_RUN = make_run(max_tokens=8, repeats=1, embed=False, crops=False)


def with_text(text: str) -> PhaseRun:
    """A record whose model wrote this text, in tokens of seven characters."""
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)] or [""]
    ids = list(range(len(pieces)))
    result = {**to_plain(TEXT_RUN.result), "ids": ids, "token_texts": pieces, "text": text}
    return altered(TEXT_RUN, results=[result])


@settings(max_examples=12)
@given(fuzzed)
@example("\x00\ud800<script>alert(1)</script>")
def test_any_text_becomes_fragments_without_a_script(text: str) -> None:
    run = with_text(text)

    regions = region_table(parse_grounding(text), run.token_table)
    document = head_html(run) + text_html(text) + regions_html(regions)

    elements = Elements(document)
    assert not elements.open
    assert not elements.stray
    assert not {"script", "iframe", "object", "style"} & elements.tags()
    # The only drawings are the header's own bar and its key.
    drawings = {attributes.get("class") for attributes in elements.attributes_of("svg")}
    assert drawings <= {"op-bar", "op-key"}
    for _, attributes in elements.found:
        assert not any(name.startswith("on") for name in attributes)
    document.encode()


# -- full disks, no memory -------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = make_run().save(tmp_path / "run.json")
    before = path.read_bytes()
    monkeypatch.setattr(os, call, full_disk)

    with refused():
        make_run(seed=1).save(path)
    assert path.read_bytes() == before
    with refused():
        page_report(PhaseRun.load(RECORD), tmp_path / "out")
    assert {item.name for item in tmp_path.iterdir()} == {"run.json", "out"}
    assert not (tmp_path / "out" / LOCK_NAME).exists()


def test_out_of_memory_says_what_would_ask_for_less(golden_session: OCRSession) -> None:
    def exhaust_memory(_arguments: Arguments) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with changed_arguments(golden_session.model, exhaust_memory), refused(OutOfMemory):
        golden_session.run_inference([SMALL] * 2, **QUICK)
