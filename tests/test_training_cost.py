"""Costs of a whole generation and of training, and the sizes of tensors, against the real class."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import PAGES
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.training_peak import training_peaks
from ocr_phases import OcrPhasesError, OCRSession
from ocr_phases.analyse import cost
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES
from ocr_phases.inputs.packing import PageInputs
from ocr_phases.models.wiring import native_config
from ocr_phases.steps.phases import DecodeState, generate
from ocr_phases.versions import asset


def shallow_config() -> dict[str, Any]:
    """The built-in model's config with few layers: more would only be counted again."""
    config = json.loads((asset("data", "tiny") / "config.json").read_text())
    text = config["text_config"]
    text["num_hidden_layers"] = 2
    for name in ("layer_types", "mlp_layer_types"):
        if name in text:
            text[name] = text[name][:2]
    config["vision_config"]["sam_config"].update(num_hidden_layers=2, global_attn_indexes=[1])
    config["vision_config"]["encoder_config"]["num_hidden_layers"] = 1
    return config


CONFIG = shallow_config()
VIEWS = [cost.VisionCall("global", 512)]
#: The config of the published model.
PUBLISHED = dict(FAMILIES[DEEPSEEK_OCR].config)


@dataclass
class Observed:
    """What a run of a shallow model showed: FLOPs by torch's counter, and tensors."""

    model: nn.Module
    inputs: PageInputs
    flops: int = 0
    hidden: list[torch.Tensor] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=dict)
    state: DecodeState | None = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count FLOPs and keep what goes into the head and out of it.

        Attention runs as plain products, because the counter does not know a CPU's fused kernel.
        """
        head = self.model.lm_head
        counter = FlopCounterMode(display=False)
        before = head.register_forward_pre_hook(self._keep_hidden)
        after = head.register_forward_hook(self._keep_logits)
        with before, after, sdpa_kernel(SDPBackend.MATH), counter:
            yield
        self.flops = counter.get_total_flops()

    def _keep_hidden(self, _head: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.hidden.append(inputs[0].detach())

    def _keep_logits(self, _head: nn.Module, _inputs: object, logits: torch.Tensor) -> None:
        self.logits.append(logits.detach())


def shallow_model(session: OCRSession) -> Observed:
    """A model of `CONFIG` whose products torch's counter sees all, and a page for it."""
    torch.manual_seed(0)
    model = type(session.model)._from_config(native_config(CONFIG), attn_implementation="sdpa")
    model.eval().set_experts_implementation("eager")
    inputs = session.prepare(PAGES / "receipt.png", preset="tiny")
    assert isinstance(inputs, PageInputs)
    return Observed(model, inputs)


@pytest.fixture(scope="module")
def training(tiny_session: OCRSession) -> Observed:
    """A step of training."""
    run = shallow_model(tiny_session)
    with run.watch():
        run.peaks = training_peaks(run.model, run.inputs, "cpu")
    return run


@pytest.fixture(scope="module")
def generation(tiny_session: OCRSession) -> Observed:
    """A generation of five tokens."""
    run = shallow_model(tiny_session)
    with run.watch():
        run.state = generate(run.model, run.inputs.to("cpu", torch.float32), 5)
    return run


def bytes_by_name(table: pd.DataFrame) -> dict[str, int]:
    """The bytes of each row of a table, by the row's name, which is its first column."""
    names = table.iloc[:, 0]
    return dict(zip(names, table["bytes"], strict=True))


# -- generation ------------------------------------------------------------------------------------


def test_a_generation_has_the_flops_that_torch_counts(generation: Observed) -> None:
    table = cost.generation_cost(
        CONFIG,
        prompt_len=generation.inputs.prefill_len,
        new_tokens=5,
        views=VIEWS,
        dtype_bytes=4,
    ).set_index("phase")

    assert table["steps"].to_dict() == {"prefill": 1, "decode": 4, "all": 5}
    assert table.loc["all", "flops"] == pytest.approx(generation.flops, rel=1e-6)


@pytest.mark.parametrize("window", [None, 16])
def test_a_generation_is_its_prefill_and_its_steps(window: int | None) -> None:
    views = cost.vision_calls("gundam", [(2, 3)])
    shape = {"batch": 3, "dtype_bytes": 2}

    table = cost.generation_cost(
        PUBLISHED, prompt_len=921, new_tokens=40, views=views, window=window, **shape
    ).set_index("phase")

    prefill = cost.prefill_cost(PUBLISHED, prompt_len=921, views=views, **shape)
    steps = all_steps_cost(prompt_len=921, steps=39, window=window, **shape)
    bytes_of_steps = steps["weight_bytes"].sum() + steps["kv_bytes"].sum()
    assert table.loc["prefill", "flops"] == prefill["flops"].sum()
    assert table.loc["decode", "flops"] == steps["flops"].sum()
    # Experts are rounded.
    assert table.loc["decode", "bytes"] == pytest.approx(bytes_of_steps, abs=1000)
    assert (table.loc["all"] == table.loc["prefill"] + table.loc["decode"]).all()


def all_steps_cost(
    *, prompt_len: int, steps: int, window: int | None, **shape: int
) -> pd.DataFrame:
    """The cost tables of so many decode steps of the published model, one below the other."""
    tables = []
    for step in range(1, steps + 1):
        generated = step
        if window is not None:
            generated = min(step, window)
        tables.append(cost.decode_cost(PUBLISHED, cache_len=prompt_len + generated, **shape))
    return pd.concat(tables)


def test_the_worked_example_of_how_it_works() -> None:
    """256 tokens at base: 1,383.3 GFLOP of prefill, 299.4 of 255 steps."""
    table = cost.generation_cost(
        PUBLISHED,
        prompt_len=291,
        new_tokens=256,
        views=cost.vision_calls("base", [(1, 1)]),
    )

    assert (table["flops"] / 1e9).round(1).tolist() == [1383.3, 299.4, 1682.7]


# -- training --------------------------------------------------------------------------------------


def test_training_has_the_flops_that_torch_counts(training: Observed) -> None:
    """The loss is elementwise, which the counter leaves out, as it does the optimizer."""
    prompt_len = training.inputs.prefill_len
    stages = {"sam", "clip", "projector", "language_model", "lm_head"}

    table = cost.training_cost(CONFIG, prompt_len=prompt_len, views=VIEWS)

    flops = dict(zip(table["part"], table["flops"], strict=True))
    assert set(flops) == stages | {"loss", "backward", "all"}
    products = sum(flops[name] for name in stages) + flops["backward"]
    assert products == pytest.approx(training.flops, rel=1e-6)
    assert flops["loss"] == 4 * (prompt_len - 1) * CONFIG["text_config"]["vocab_size"]
    assert flops["all"] == products + flops["loss"]


def test_training_holds_weights_gradients_states_and_logits(training: Observed) -> None:
    parameters = list(training.model.parameters())
    weight_bytes = sum(parameter.nbytes for parameter in parameters)
    gradient_bytes = sum(each.grad.nbytes for each in parameters if each.grad is not None)
    logits = training.logits[0]

    table = cost.training_memory(
        CONFIG, prompt_len=training.inputs.prefill_len, views=VIEWS, dtype_bytes=4
    )

    held = bytes_by_name(table)
    assert held["weights"] == weight_bytes
    assert held["gradients"] == weight_bytes
    # A parameter that the page does not reach has no gradient here.
    assert held["gradients"] == pytest.approx(gradient_bytes, rel=0.1)
    # Two moments of each gradient.
    assert held["optimizer"] == 2 * weight_bytes
    assert held["logits"] == logits.nbytes
    assert held["float32 logits"] == logits.float().nbytes
    assert held["log probabilities"] == logits.float().nbytes
    assert held["all"] == sum(count for part, count in held.items() if part != "all")


def test_the_peak_of_training_is_above_what_is_held(training: Observed) -> None:
    assert list(training.peaks) == ["forward", "backward", "optimizer"]
    assert not training.model.training
    if all(training.peaks.values()):  # Linux lets a process read its high-water mark
        weight_bytes = sum(parameter.nbytes for parameter in training.model.parameters())
        assert training.peaks["backward"] > 2 * weight_bytes
        assert training.peaks["optimizer"] > 2 * weight_bytes


def test_training_without_an_image_has_its_flops() -> None:
    table = cost.training_cost(CONFIG, prompt_len=8)

    assert np.isfinite(table["flops"]).all()


# -- tensors ---------------------------------------------------------------------------------------


def test_the_sizes_of_tensors_are_those_of_the_tensors(
    training: Observed, generation: Observed
) -> None:
    inputs = generation.inputs.to("cpu", torch.float32)
    state = generation.state
    assert state is not None
    cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in state.cache.layers)

    table = cost.tensor_sizes(
        CONFIG,
        prompt_len=generation.inputs.prefill_len,
        new_tokens=5,
        views=VIEWS,
        dtype_bytes=4,
    )

    assert bytes_by_name(table) == {
        "global views": inputs.pixel_values.nbytes,
        "input ids": inputs.input_ids.nbytes,
        "attention mask": inputs.attention_mask.nbytes,
        "image mask": inputs.images_seq_mask.nbytes,
        "hidden states": training.hidden[0].nbytes,
        "logits of the last position": generation.logits[0].nbytes,
        "logits of all positions": training.logits[0].nbytes,
        "the same in float32": training.logits[0].float().nbytes,
        "KV cache at the last token": cache_bytes,
        "output ids": 8 * (generation.inputs.prefill_len + 5),
    }


def test_the_figures_of_the_published_sizes() -> None:
    """By hand: a crop has 3 x 640 x 640 numbers, 8,192 positions 1,280 each."""
    views = cost.vision_calls("gundam", [(2, 3)])

    sizes = bytes_by_name(cost.tensor_sizes(PUBLISHED, prompt_len=8192, views=views))

    assert sizes["crops"] == 6 * 2_457_600
    assert sizes["global views"] == 6_291_456
    assert sizes["hidden states"] == 20_971_520
    assert sizes["input ids"] == 65_536
    assert sizes["image mask"] == 8_192
    assert sizes["the same in float32"] == 8192 * 129_280 * 4


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"prompt_len": 0, "new_tokens": 1}, id="no prompt"),
        pytest.param({"prompt_len": 8, "new_tokens": 0}, id="no new token"),
    ],
)
def test_shapes_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(OcrPhasesError):
        cost.tensor_sizes(CONFIG, **wrong)
    with pytest.raises(OcrPhasesError):
        cost.generation_cost(CONFIG, **wrong)
