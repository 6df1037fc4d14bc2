"""The peak memory of a step of training with labels: ``python -m benchmarks.training_peak PAGE``.

Forward, backward and a step of AdamW are measured one after another, each with its own peak, and
stand beside what `ocr_phases.analyse.cost.training_memory` says is held for certain. On a GPU the
peak is that of torch's allocator; on a CPU it is the process's, with the program in it.
"""

from __future__ import annotations

import argparse

import pandas as pd
import torch
from torch import nn

from ocr_phases import OCRSession
from ocr_phases.analyse.cost import training_memory, vision_calls
from ocr_phases.inputs.packing import PageInputs
from ocr_phases.models.devices import device_of
from ocr_phases.steps.phases import prompt_loss
from ocr_phases.text import bytes_text


def training_peaks(model: nn.Module, inputs: PageInputs, device: str) -> dict[str, int]:
    """The peak in bytes during the forward, the backward and the optimizer's step.

    The model is trained by one step, and is in eval mode afterwards.
    """
    measured = device_of(device)
    dtype = next(model.parameters()).dtype
    prepared = inputs.to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    peaks: dict[str, int] = {}

    def note(phase: str) -> None:
        measured.synchronize()
        peaks[phase] = measured.peak_bytes() or 0

    model.train()
    try:
        measured.synchronize()
        measured.peak_bytes()  # what was before does not count
        loss = prompt_loss(model, prepared)
        note("forward")
        loss.backward()
        note("backward")
        optimizer.step()
        note("optimizer")
    finally:
        model.eval()
    return peaks


def main() -> None:
    """Measure as the command line says, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--preset")
    arguments = parser.parse_args()
    session = OCRSession.load(arguments.model, device=arguments.device)
    inputs = session.prepare(arguments.page, preset=arguments.preset)
    assert isinstance(inputs, PageInputs)
    peaks = training_peaks(session.model, inputs, session.device)
    grids = [view.grid for view in inputs.views]
    held = training_memory(
        session.checkpoint.config,
        prompt_len=inputs.prefill_len,
        views=vision_calls(inputs.presets[0].name, grids, session.checkpoint.family.name),
        batch=inputs.batch_size,
        dtype_bytes=next(session.model.parameters()).element_size(),
    )
    rows = [("held for certain", part, bytes_text(count)) for part, count in held.to_numpy()]
    rows += [("measured peak", phase, bytes_text(count)) for phase, count in peaks.items()]
    print(pd.DataFrame(rows, columns=["", "part", "bytes"]).to_string(index=False))


if __name__ == "__main__":
    main()
