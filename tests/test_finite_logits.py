"""Logits that are NaN, infinite or all equal fail a check, however the model runs, and without a
wait.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from conftest import PAGES
from PIL import Image
from torch import Tensor, nn

from ocr_phases import OCRSession, PhaseRun, decode, prefill
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.settings import SamplingSettings
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.phases import decode_step, generate
from ocr_phases.steps.sampling import Sampler

RECEIPT = Image.open(PAGES / "receipt.png").resize((300, 300))  # small, and read once
FIVE_TOKENS: dict[str, Any] = {
    "preset": "tiny",
    "max_new_tokens": 5,
    "repeats": 1,
    "warmup": 0,
    "ceilings": False,
    "token_probabilities": False,
}
HEAD = "lm_head"
NAN = float("nan")
INFINITY = float("inf")


@pytest.fixture(scope="module")
def session(golden_session: OCRSession, pixels_seen_once: None) -> OCRSession:
    """The sound model, after a run: SAM's output is known, and no damage reaches that."""
    golden_session.run_inference(RECEIPT, **FIVE_TOKENS)
    return golden_session


@pytest.fixture
def inputs(session: OCRSession) -> DeviceInputs:
    """The receipt as inputs for the functions that run without a session."""
    return session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)


@pytest.fixture
def static_step(session: OCRSession, inputs: DeviceInputs) -> StaticStep:
    """What captured and compiled strategies run, here as it is."""
    step = StaticStep(session.model, 1, 128, "eager")
    return step.ready_for(inputs.input_ids.shape[1], 5)


def finite_logits(run: PhaseRun) -> Verdict:
    """The check of a record that this file is about."""
    return next(check for check in run_checks(run) if check.name == "finite_logits")


@dataclass(frozen=True)
class Damage:
    """A value that is written over weights of a model.

    It goes into the weights whose name has ``part``: into all of their entries, or into the first
    one of each.
    """

    value: float
    part: str = ""
    first_entry_only: bool = False

    def write(self, weight: Tensor) -> None:
        if self.first_entry_only:
            weight.view(-1)[0] = self.value
        else:
            weight.fill_(self.value)

    @contextlib.contextmanager
    def of(self, model: nn.Module) -> Iterator[None]:
        """The model with this damage, then as it was."""
        with changed_weights(model, self.part, self.write):
            yield


@contextlib.contextmanager
def changed_weights(
    model: nn.Module, part: str, change: Callable[[Tensor], object]
) -> Iterator[None]:
    """The model with a change of every weight whose name has ``part``, then as it was."""
    originals = {}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if part in name and (part or weight.dim() > 0):
                originals[name] = weight.clone()
                change(weight)
    assert originals
    try:
        yield
    finally:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in originals:
                    weight.copy_(originals[name])


DAMAGES = {
    "all NaN": Damage(NAN),
    "one NaN in the head": Damage(NAN, HEAD, first_entry_only=True),
    "one NaN in a layer": Damage(NAN, "layers.1.self_attn.q_proj", first_entry_only=True),
    "a head of infinities": Damage(INFINITY, HEAD),
    "one infinity in the head": Damage(INFINITY, HEAD, first_entry_only=True),
    "one negative infinity in the head": Damage(-INFINITY, HEAD, first_entry_only=True),
    "all infinite": Damage(INFINITY),
    "all zero": Damage(0.0),
    "a head of zeros": Damage(0.0, HEAD),
}
every_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)

#: Every way in which a session can write tokens on a CPU.
every_way = pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="eager"),
        pytest.param({"eos_check_every": 4}, id="end token looked for every 4 steps"),
        pytest.param({"generate": True}, id="generate"),
        pytest.param({"infer": {"repetition_penalty": 1.1}}, id="penalty"),
        pytest.param({"infer": {"temperature": 0.7}}, id="sampling"),
        pytest.param({"autocast": True}, id="autocast"),
    ],
)


@every_way
@every_damage
def test_a_damaged_model_is_not_measured_correctly(
    session: OCRSession, damage: Damage, options: dict[str, Any]
) -> None:
    with damage.of(session.model):
        run = session.run_inference(RECEIPT, **FIVE_TOKENS, **options)

    check = finite_logits(run)
    assert check.verdict == "fail"
    assert ("all equal" in check.measured) == (damage.value == 0.0)
    assert not checks_verdict(run_checks(run)).startswith("Measured correctly")


@every_way
def test_a_sound_model_passes(session: OCRSession, options: dict[str, Any]) -> None:
    check = finite_logits(session.run_inference(RECEIPT, **FIVE_TOKENS, **options))
    assert check.verdict == "pass"
    assert check.measured == "the logits of 5 tokens checked"


@pytest.mark.parametrize("one_shot", [False, True], ids=["eager", "generate"])
def test_what_processors_suppress_is_no_fault(
    session: OCRSession, one_shot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.model.generation_config, "suppress_tokens", [4, 5], raising=False)
    run = session.run_inference(RECEIPT, **FIVE_TOKENS, generate=one_shot)
    assert finite_logits(run).verdict == "pass"


def test_a_fault_in_one_row_of_a_padded_batch_is_found(session: OCRSession) -> None:
    def spoil_second_row(_module: nn.Module, _args: object, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[1, -1, 7] = -INFINITY
        return logits

    prompts = ["free", "<image>\n<|grounding|>A longer prompt."]
    with session.model.lm_head.register_forward_hook(spoil_second_row):
        run = session.run_inference([RECEIPT, RECEIPT], prompts, **FIVE_TOKENS)

    assert finite_logits(run).measured == "NaN or infinite at 5 of 5 tokens, first at 1"


@pytest.mark.parametrize(
    ("first_bad_call", "places"),
    [
        pytest.param(0, "5 of 5 tokens, first at 1", id="from the prefill on"),
        pytest.param(3, "2 of 5 tokens, first at 4", id="from the third step on"),
    ],
)
def test_the_first_token_that_is_wrong_is_named(
    session: OCRSession, first_bad_call: int, places: str
) -> None:
    calls = 0

    def spoil_late_calls(_module: nn.Module, _args: object, logits: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > first_bad_call:
            return logits * NAN
        return logits

    with session.model.lm_head.register_forward_hook(spoil_late_calls):
        run = session.run_inference(RECEIPT, **FIVE_TOKENS)

    assert finite_logits(run).measured == f"NaN or infinite at {places}"


def test_float16_overflow_is_found() -> None:
    def enlarge(weight: Tensor) -> None:
        weight.mul_(3e4)

    session = OCRSession.load("tiny", device="cpu", dtype="float16")
    sound = session.run_inference(RECEIPT, **FIVE_TOKENS)
    with changed_weights(session.model, HEAD, enlarge):
        overflowing = session.run_inference(RECEIPT, **FIVE_TOKENS)

    assert finite_logits(sound).verdict == "pass"
    assert finite_logits(overflowing).verdict == "fail"


@every_damage
def test_the_functions_alone_and_a_static_step_find_a_damage(
    session: OCRSession, inputs: DeviceInputs, static_step: StaticStep, damage: Damage
) -> None:
    with damage.of(session.model):
        state = prefill(session.model, inputs)
        assert state.logits_fault() is not None
        decode(session.model, state, 5)
        assert state.logits_fault() is not None
        of_static_step = generate(session.model, inputs, 5, step=static_step)
        assert of_static_step.logits_fault() is not None

    # The sums of a static step start anew with each prefill.
    repaired = generate(session.model, inputs, 5, step=static_step)
    assert repaired.logits_fault() is None


def test_the_functions_alone_and_a_static_step_pass_a_sound_model(
    session: OCRSession, inputs: DeviceInputs, static_step: StaticStep
) -> None:
    state = prefill(session.model, inputs)
    assert state.logits_fault() is None
    decode(session.model, state, 5)
    assert state.logits_fault() is None
    for _ in range(2):
        of_static_step = generate(session.model, inputs, 5, step=static_step)
        assert of_static_step.logits_fault() is None


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY])
def test_a_static_step_finds_one_bad_step_among_good_ones(
    session: OCRSession, inputs: DeviceInputs, static_step: StaticStep, value: float
) -> None:
    damage = Damage(value, HEAD, first_entry_only=True)
    sampler = Sampler(SamplingSettings())

    state = prefill(session.model, inputs, sampler=sampler, step=static_step)
    decode_step(session.model, state, step=static_step, read=False)
    with damage.of(session.model):
        decode_step(session.model, state, step=static_step, read=False)
    for _ in range(2):
        decode_step(session.model, state, step=static_step, read=False)

    assert state.logits_fault() == "NaN or infinite in a decode step"


def test_decode_does_not_read_the_sums(
    session: OCRSession, inputs: DeviceInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host waits for the tokens alone: the sums stay on the device until somebody asks."""
    read_dtypes = []

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Tensor, *args: Any, **options: Any) -> Any:
            read_dtypes.append(tensor.dtype)
            return method(tensor, *args, **options)

        return read

    for name in ("tolist", "item", "__bool__", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, watched(getattr(torch.Tensor, name)))

    state = generate(session.model, inputs, 5)

    assert torch.float32 not in read_dtypes
    assert len(state.sums) == 5
