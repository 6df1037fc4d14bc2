"""A decode step by kernels of its own, in Triton's interpreter on the CPU: equal to the class's.

On a GPU the same is held by ``test_cuda.py``, where kernels may start early.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from golden_cases import RECORDINGS, assert_same, recorded_inputs, static_step
from refusals import refused
from torch import Tensor, nn

from ocr_phases import OcrPhasesError, OCRSession, decode, prefill
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.models.wiring import interface_of
from ocr_phases.steps import token_step
from ocr_phases.steps.capacity import CAPACITY
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.token_step import SIZES, token_kernels_fit, triton_explained

pytestmark = pytest.mark.usefixtures("one_thread")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@pytest.fixture
def session_of(request: pytest.FixtureRequest, interpreted: None) -> Callable[[str], OCRSession]:
    """A function that gives the session of a recorded family. Kernels are interpreted."""

    def session(family: str) -> OCRSession:
        return request.getfixturevalue(RECORDINGS[family].session)

    return session


def step_with_token_kernels(model: nn.Module, inputs: DeviceInputs, tokens: int) -> StaticStep:
    """A static step for these inputs that its own kernels run."""
    step = StaticStep(model, 1, CAPACITY, "eager")
    step.use_token_kernels()
    return step.ready_for(inputs.input_ids.shape[1], tokens)


@pytest.mark.parametrize("family", RECORDINGS)
def test_token_kernels_make_the_tokens_of_the_class(
    family: str, session_of: Callable[[str], OCRSession]
) -> None:
    model = session_of(family).model
    inputs = recorded_inputs(family, "base")
    step = step_with_token_kernels(model, inputs, 6)

    mine = decode(model, prefill(model, inputs, step=step), 6, step=step)

    assert_same(mine, decode(model, prefill(model, inputs), 6))
    assert torch.isfinite(step.sums).all()


def test_token_kernels_go_around_a_window(session_of: Callable[[str], OCRSession]) -> None:
    model = session_of("unlimited-ocr").model
    inputs = recorded_inputs("unlimited-ocr", "small")

    with patch.object(model.config.get_text_config(), "sliding_window", 3):
        by_class = static_step(model, inputs, 7)
        expected = decode(model, prefill(model, inputs, step=by_class), 7, step=by_class)
        step = step_with_token_kernels(model, inputs, 7)
        mine = decode(model, prefill(model, inputs, step=step), 7, step=step)

    assert_same(mine, expected)


def test_token_kernels_read_many_entries_block_by_block(
    session_of: Callable[[str], OCRSession],
) -> None:
    model = session_of("deepseek-ocr").model
    inputs = recorded_inputs("deepseek-ocr", "base")

    with patch.object(token_step, "MOST_PARTS", 2):
        step = step_with_token_kernels(model, inputs, 2)
        mine = decode(model, prefill(model, inputs, step=step), 2, step=step)

    assert_same(mine, decode(model, prefill(model, inputs), 2))


class OutOfSight:
    """What the kernels of a step write, out of sight from the start of a program to its wait.

    There a kernel on a GPU may find anything: those in front of it may still run. Every tensor that
    `TokenStep` holds is hidden, a new one as well.
    """

    def __init__(self, step: StaticStep) -> None:
        assert step.token_step is not None
        self._step = step
        self._state = step.token_step.state
        self._buffers = [
            value for value in vars(step.token_step).values() if isinstance(value, Tensor)
        ]
        self._kept: list[tuple[Tensor, Tensor]] = []

    def hide(self, early: Any) -> None:
        """In place of `let_next_start`, the first statement of all kernels but the first and the
        last.
        """
        state = self._state
        slot = int(state.slot)
        tensors = [*self._buffers, state.token, state.position, state.count, state.sums]
        tensors.append(state.mask[..., slot])
        for layer in self._step.cache.layers:
            tensors.append(layer.keys[:, :, slot])
            tensors.append(layer.values[:, :, slot])
        for tensor in tensors:
            self._kept.append((tensor, tensor.clone()))
            tensor.fill_(torch.nan if tensor.is_floating_point() else -(2**30))

    def show(self, early: Any) -> None:
        """In place of `wait_for_others`."""
        for tensor, kept in self._kept:
            tensor.copy_(kept)
        self._kept.clear()


def test_kernels_read_nothing_that_their_step_writes_before_they_wait(
    session_of: Callable[[str], OCRSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ocr_phases.steps import token_kernels  # which needs the fixture before

    model = session_of("deepseek-ocr").model
    inputs = recorded_inputs("deepseek-ocr", "base")
    step = step_with_token_kernels(model, inputs, 3)
    out_of_sight = OutOfSight(step)
    monkeypatch.setattr(token_kernels, "let_next_start", out_of_sight.hide)
    monkeypatch.setattr(token_kernels, "wait_for_others", out_of_sight.show)

    mine = decode(model, prefill(model, inputs, step=step), 3, step=step)

    assert_same(mine, decode(model, prefill(model, inputs), 3))


def test_of_equal_logits_the_first_word_is_the_next_token(
    session_of: Callable[[str], OCRSession],
) -> None:
    model = session_of("deepseek-ocr").model
    inputs = recorded_inputs("deepseek-ocr", "base")
    head = model.get_output_embeddings()
    weight = torch.zeros_like(head.weight)
    # A row of ones gives the sum of the final state. It may be negative: then the rows of -1 are
    # best. The last two words are in another part of the vocabulary than the others.
    weight[[5, 6, 7, -2]] = 1.0
    weight[[3, 4, 8, -1]] = -1.0

    with patch.object(head, "weight", nn.Parameter(weight)):
        step = step_with_token_kernels(model, inputs, 2)
        state = decode(model, prefill(model, inputs, step=step), 2, step=step)

    best = (state.logits[0] == state.logits.max()).nonzero()
    assert len(best) == 4
    assert state.ids[0][-1] == best[0]


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_a_nan_leaves_tokens_and_experts_among_those_there_are(
    session_of: Callable[[str], OCRSession],
) -> None:
    # An expert behind the last one would be read at an address of nobody, which ends a process.
    model = session_of("deepseek-ocr").model
    inputs = recorded_inputs("deepseek-ocr", "base")
    step = step_with_token_kernels(model, inputs, 3)
    state = prefill(model, inputs, step=step)
    for layer in step.cache.layers:
        layer.values.fill_(torch.nan)

    decode(model, state, 3, step=step)

    words = model.get_output_embeddings().weight.shape[0]
    assert state.logits.isnan().all()
    assert step.sums.isnan().all()
    assert all(0 <= token < words for token in state.ids[0])


def test_attention_to_large_values_stays_within_float16(
    session_of: Callable[[str], OCRSession],
) -> None:
    # The mean of the values is one that float16 has, their sum is not.
    model = copy.deepcopy(session_of("deepseek-ocr").model).half()
    inputs = recorded_inputs("deepseek-ocr", "base")
    assert inputs.pixel_values is not None
    inputs = replace(inputs, pixel_values=inputs.pixel_values.half())
    step = step_with_token_kernels(model, inputs, 2)
    state = prefill(model, inputs, step=step)
    for layer in step.cache.layers:
        layer.keys.zero_()
        layer.values.fill_(2 * 65504 / state.length)

    decode(model, state, 2, step=step)

    assert torch.isfinite(step.sums).all()


# -- which models they are for ---------------------------------------------------------------------


def with_a_bias(language_model: Any) -> None:
    attention = language_model.layers[0].self_attn
    attention.q_proj = nn.Linear(attention.q_proj.in_features, attention.q_proj.out_features)


def with_shared_key_heads(language_model: Any) -> None:
    language_model.layers[0].self_attn.num_key_value_groups = 2


def with_groups_of_experts(language_model: Any) -> None:
    language_model.layers[1].mlp.gate.topk_method = "group_limited_greedy"


def with_another_activation(language_model: Any) -> None:
    language_model.layers[0].mlp.act_fn = nn.GELU()


def with_a_layer_of_another_type(language_model: Any) -> None:
    language_model.layers[0].mlp.down_proj.half()


def with_a_matrix_column_by_column(language_model: Any) -> None:
    weight = language_model.layers[0].mlp.down_proj.weight
    weight.data = weight.data.T.contiguous().T


def with_other_angles(language_model: Any) -> None:
    language_model.rotary_emb.rope_type = "yarn"


CHANGES = [
    with_a_bias,
    with_shared_key_heads,
    with_groups_of_experts,
    with_another_activation,
    with_a_layer_of_another_type,
    with_a_matrix_column_by_column,
    with_other_angles,
]


@pytest.fixture
def parts(golden_session: OCRSession) -> tuple[nn.Module, nn.Module]:
    """A copy of the recorded language model, and its head."""
    model = golden_session.model
    language_model = interface_of(model).modules(model)["language_model"]
    return copy.deepcopy(language_model), model.get_output_embeddings()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """A function that makes a version of Triton the installed one; None: there is none."""

    def install(number: str | None) -> None:
        def version(name: str) -> str:
            assert name == "triton"
            if number is None:
                raise PackageNotFoundError(name)
            return number

        monkeypatch.setattr(token_step, "version", version)

    install("3.6.0")
    return install


def test_token_kernels_fit_one_row_of_the_families(
    parts: tuple[nn.Module, nn.Module], installed: Callable[[str | None], None]
) -> None:
    assert token_kernels_fit(*parts, batch=1)
    assert not token_kernels_fit(*parts, batch=2)


@pytest.mark.parametrize("change", CHANGES)
def test_token_kernels_do_not_fit_other_layers(
    change: Callable[[Any], None],
    parts: tuple[nn.Module, nn.Module],
    installed: Callable[[str | None], None],
) -> None:
    change(parts[0])
    assert not token_kernels_fit(*parts, batch=1)


def test_token_kernels_do_not_fit_another_model(installed: Callable[[str | None], None]) -> None:
    assert not token_kernels_fit(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), batch=1)


@pytest.mark.parametrize(
    ("number", "fits"),
    [(None, False), ("2.3.1", False), ("3.5.1", False), ("3.10.0", True), ("4.0.0+git1", True)],
)
def test_token_kernels_need_a_triton_that_compiles_them(
    number: str | None,
    fits: bool,
    parts: tuple[nn.Module, nn.Module],
    installed: Callable[[str | None], None],
) -> None:
    installed(number)
    assert token_kernels_fit(*parts, batch=1) == fits


@pytest.mark.parametrize("lines", ["Failed to find C compiler.\nInstall one.", ""])
def test_what_triton_cannot_compile_is_one_sentence(lines: str) -> None:
    with refused(), triton_explained():
        raise RuntimeError(lines)


@needs_triton
def test_errors_of_triton_are_explained() -> None:
    from triton.errors import TritonError

    with pytest.raises(OcrPhasesError, match="no such instruction"), triton_explained():
        raise TritonError("no such instruction")


def test_a_lack_of_memory_is_not_said_to_be_tritons() -> None:
    with pytest.raises(torch.OutOfMemoryError), triton_explained():
        raise torch.OutOfMemoryError("out of memory")


@needs_triton
def test_no_kernel_keeps_registers_in_memory() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "benchmarks.token_layouts"]
    root = Path(__file__).parents[1]

    done = subprocess.run(
        command, capture_output=True, text=True, cwd=root, env=environment, check=False
    )

    assert done.returncode == 0, done.stderr
    _, _, *rows = [line.split(" | ") for line in done.stdout.splitlines()]
    assert {row[0].removeprefix("| ") for row in rows} == set(SIZES)
    spills = [int(row[4]) for row in rows]
    assert spills == [0] * len(rows)
