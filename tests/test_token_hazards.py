"""What the kernels of a step read and write, and when, as Triton's interpreter sees it.

A kernel may start before the one in front of it has ended, and its warps are not in step. What goes
wrong then is seen in few of many runs on a GPU, so the rules are held here for every address.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from golden_cases import recorded_inputs

from ocr_phases import decode, prefill
from ocr_phases.steps.capacity import CAPACITY
from ocr_phases.steps.captured import StaticStep

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass
class Accesses:
    """The addresses that one launch of a kernel read and wrote."""

    kernel: str
    early_reads: set[int] = field(default_factory=set)  # before the wait
    reads: set[int] = field(default_factory=set)
    overwritten_reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    early_writes: set[int] = field(default_factory=set)


@dataclass
class Watch:
    """Notes what each launch reads and writes, in the order of the launches."""

    launches: list[Accesses] = field(default_factory=list)
    has_waited: bool = False
    unfenced_reads: set[int] = field(default_factory=set)  # of the program that runs

    def begin_program(self) -> None:
        self.has_waited = False
        self.unfenced_reads = set()

    def read(self, addresses: set[int]) -> None:
        launch = self.launches[-1]
        launch.reads |= addresses
        self.unfenced_reads |= addresses
        if not self.has_waited:
            launch.early_reads |= addresses

    def write(self, addresses: set[int]) -> None:
        launch = self.launches[-1]
        launch.writes |= addresses
        launch.overwritten_reads |= addresses & self.unfenced_reads
        if not self.has_waited:
            launch.early_writes |= addresses

    def pass_barrier(self) -> None:
        self.unfenced_reads = set()


def addresses_of(pointers: Any, mask: Any) -> set[int]:
    """The addresses that a load or a store touches."""
    return set(np.broadcast_to(pointers.data, mask.data.shape)[mask.data.astype(bool)].tolist())


@pytest.fixture(scope="module")
def watched_step(
    interpreted: None, request: pytest.FixtureRequest
) -> Iterator[tuple[Watch, StaticStep]]:
    """One step of the recorded model, watched."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    from ocr_phases.steps import token_kernels

    watch = Watch()
    load = InterpreterBuilder.create_masked_load
    store = InterpreterBuilder.create_masked_store
    set_place = InterpreterBuilder.set_grid_idx
    launch = GridExecutor.__call__

    def watched_load(builder: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        watch.read(addresses_of(pointers, mask))
        return load(builder, pointers, mask, *rest)

    def watched_store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch.write(addresses_of(pointers, mask))
        return store(builder, pointers, value, mask, *rest)

    def watched_place(builder: Any, *place: int) -> None:
        watch.begin_program()
        set_place(builder, *place)

    def watched_launch(executor: Any, *arguments: Any, **sizes: Any) -> Any:
        watch.launches.append(Accesses(executor.fn.__name__))
        return launch(executor, *arguments, **sizes)

    def wait(EARLY: Any) -> None:
        watch.has_waited = True

    model = request.getfixturevalue("golden_session").model
    inputs = recorded_inputs("deepseek-ocr", "small")
    step = StaticStep(model, 1, CAPACITY, "eager")
    step.use_token_kernels()
    step.ready_for(inputs.input_ids.shape[1], 3)
    state = prefill(model, inputs, step=step)
    with (
        patch.object(InterpreterBuilder, "create_masked_load", watched_load),
        patch.object(InterpreterBuilder, "create_masked_store", watched_store),
        patch.object(InterpreterBuilder, "create_barrier", lambda _: watch.pass_barrier()),
        patch.object(InterpreterBuilder, "set_grid_idx", watched_place),
        patch.object(GridExecutor, "__call__", watched_launch),
        patch.object(token_kernels, "wait_for_others", wait),
    ):
        decode(model, state, 2, step=step)
    yield watch, step


def test_every_kernel_of_a_step_is_watched(watched_step: tuple[Watch, StaticStep]) -> None:
    watch, _ = watched_step
    names = [launch.kernel for launch in watch.launches]
    assert names[0] == "open_step"
    assert names[-1] == "close_step"
    assert len(set(names)) == 9
    assert all(launch.reads and launch.writes for launch in watch.launches)
    assert any(launch.early_reads for launch in watch.launches[1:])


def test_nothing_is_written_before_the_wait(watched_step: tuple[Watch, StaticStep]) -> None:
    watch, _ = watched_step
    for launch in watch.launches[1:]:
        assert not launch.early_writes, launch.kernel


def test_what_is_read_before_the_wait_is_not_written_by_the_step(
    watched_step: tuple[Watch, StaticStep],
) -> None:
    # But for what the step adds itself and reads again: its own entry, and that it is seen; and for
    # the slot, which only the last kernel writes.
    watch, step = watched_step
    *_, last = watch.launches
    assert step.token_step is not None
    slot = step.token_step.state.slot.data_ptr()
    assert slot in last.writes
    own_slot = int(step.token_step.state.slot) - 1
    allowed = {slot}
    mask = step.token_step.state.mask
    allowed.add(mask.data_ptr() + own_slot * mask.element_size())
    for layer in step.cache.layers:
        for entries in (layer.keys, layer.values):
            own = entries[:, :, own_slot]
            places = torch.arange(own.shape[-1])[None, :] * own.stride(-1)
            places = places + torch.arange(own.shape[1])[:, None] * own.stride(1)
            addresses = own.data_ptr() + places * own.element_size()
            allowed |= set(addresses.flatten().tolist())

    written = set().union(*(launch.writes for launch in watch.launches))
    for launch in watch.launches[1:]:
        assert not (launch.early_reads & written) - allowed, launch.kernel


def test_no_kernel_writes_what_it_has_read_without_a_barrier_between(
    watched_step: tuple[Watch, StaticStep],
) -> None:
    watch, _ = watched_step
    for launch in watch.launches:
        assert not launch.overwritten_reads, launch.kernel
        if launch.kernel != "close_step":  # of one program
            assert not launch.reads & launch.writes, launch.kernel
