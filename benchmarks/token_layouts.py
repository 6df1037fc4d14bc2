"""What Triton makes of the kernels of a token's step: ``python -m benchmarks.token_layouts``.

It needs Triton, but no GPU. Each kernel of the full-size model in bfloat16 is compiled for an H100
or H200 (compute capability 9.0). Printed are its programs, the warps of each, the registers of a
thread and how many bytes of them had to be kept in memory (spills), its barriers, and how often
numbers move from one thread to another through shared memory (``convert_layout``). Spills,
barriers and moves cost time that no other kernel can use.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from transformers import AutoModelForImageTextToText
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.documents import markdown
from ocr_phases.models.dummies import dummy_config
from ocr_phases.models.wiring import native_config
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.token_step import SIZES, TokenStep

#: A dense layer and one with experts; all others are like the second.
MODEL = "dummy:layers=2"
#: How many entries a step reads: its first size, and one that `attend` reads in several blocks.
READS = (512, 4096)
ENTRIES = 8192
MULTIPROCESSORS = 132
TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class CompiledStep(TokenStep):
    """A step that compiles its kernels in place of starting them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: A row for each kernel that was compiled: its name with what came out.
        self.rows: list[tuple[str, ...]] = []

    def start(self, name: str, grid: tuple[int, ...], **arguments: Any) -> None:
        """Compile a kernel, and note what came out."""
        kernel = getattr(self._kernels, name)
        types = {}
        constants = {}
        divisible_by_16 = {}
        for place, argument in enumerate(kernel.arg_names):
            value = arguments.get(argument, self._early)
            types[argument] = type_of(argument, value)
            if types[argument] == "constexpr":
                constants[(place,)] = value
            elif isinstance(value, Tensor):
                divisible_by_16[(place,)] = [["tt.divisibility", 16]]
        compiled = triton.compile(
            ASTSource(kernel, types, constants, divisible_by_16),
            target=TARGET,
            options={"num_warps": SIZES[name].warps, "launch_pdl": name != "open_step"},
        )
        registers, spills = registers_of(compiled.asm["ptx"])
        row = (
            name,
            f"{math.prod(grid):,}",
            str(SIZES[name].warps),
            registers,
            spills,
            str(compiled.asm["ptx"].count("bar.sync")),
            str(compiled.asm["ttgir"].count("ttg.convert_layout")),
        )
        if row not in self.rows:
            self.rows.append(row)


def type_of(argument: str, value: Any) -> str:
    """Triton's type of an argument. Names in capitals are known when a kernel is compiled."""
    if argument.isupper():
        return "constexpr"
    if isinstance(value, Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, int):
        return "i32"
    return "fp32"


def registers_of(ptx: str) -> tuple[str, str]:
    """The registers of a thread, and the bytes of spills, as NVIDIA's assembler tells them."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        told = subprocess.run(
            [triton.knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", source, "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
    registers = re.search(r"Used (\d+) registers", told)
    spills = re.search(r"(\d+) bytes spill stores", told)
    assert registers is not None and spills is not None, told
    return registers[1], spills[1]


def compiled_rows() -> list[tuple[str, ...]]:
    """The kernels of the full-size model with what came out of each."""
    config = native_config(dummy_config(MODEL))
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu")  # no weight is ever read
    step = StaticStep(model, 1, ENTRIES, "eager")
    step.use_token_kernels()
    assert step.token_step is not None
    compiled_step = CompiledStep(
        step.interface.modules(model)["language_model"],
        model.get_output_embeddings(),
        step.cache,
        step.token_step.state,
        early=True,
        multiprocessors=MULTIPROCESSORS,
    )
    for read in READS:
        compiled_step(read)
    return compiled_step.rows


if __name__ == "__main__":
    headings = ("kernel", "programs", "warps", "registers", "spills", "barriers", "moves")
    print(markdown(headings, compiled_rows()))
