"""What makers say their GPUs can do: dense rates, a second source beside measuring.

FLOP/s by dtype of the operands, accumulated in float32; ``tf32`` is what float32 products take only where
TF32 was allowed, which torch by default does not. Where a maker prints the rate with sparsity, the dense one
is half of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Datasheet:
    """One GPU: ``pattern`` finds it in a device's name; FLOP/s are of each dtype it has units for."""

    name: str
    pattern: str
    bandwidth_bytes_per_s: float
    source: str
    flops_per_s: dict[str, float] = field(default_factory=dict)


def _sheet(
    name: str, pattern: str, gb_s: float, half: float, tf32: float | None, single: float, source: str
) -> Datasheet:
    """Rates in TFLOP/s; without TF32 units there are none for bfloat16 either."""
    rates = {"float16": half, "float32": single}
    if tf32 is not None:
        rates |= {"bfloat16": half, "tf32": tf32}
    flops = {dtype: rate * 1e12 for dtype, rate in rates.items()}
    return Datasheet(name, pattern, gb_s * 1e9, source, flops)


_BLACKWELL = "NVIDIA Blackwell architecture technical brief"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"
_ADA = "NVIDIA Ada GPU architecture whitepaper"

#: The first that matches counts, so what is narrower stands first.
DATASHEETS = (
    _sheet("B200", r"\bB200\b", 8000, 2250, 1125, 80, _BLACKWELL),
    _sheet("H200 NVL", r"\bH200 NVL\b", 4800, 835, 418, 60, "NVIDIA H200 Tensor Core GPU datasheet"),
    _sheet("H200 SXM", r"\bH200\b", 4800, 989, 494, 67, "NVIDIA H200 Tensor Core GPU datasheet"),
    _sheet("H100 NVL", r"\bH100 NVL\b", 3900, 835, 418, 60, _H100),
    _sheet("H100 PCIe", r"\bH100 PCIe\b", 2000, 756, 378, 51, _H100),
    _sheet("H100 SXM", r"\bH100 (80GB HBM3|SXM)", 3350, 989, 494, 67, _H100),
    _sheet("A100 SXM 80 GB", r"\bA100-SXM.*80GB", 2039, 312, 156, 19.5, _A100),
    _sheet("A100 PCIe 80 GB", r"\bA100(-PCIE-80GB| 80GB PCIe)", 1935, 312, 156, 19.5, _A100),
    _sheet("A100 40 GB", r"\bA100.*40GB", 1555, 312, 156, 19.5, _A100),
    _sheet("L40S", r"\bL40S\b", 864, 362, 183, 91.6, "NVIDIA L40S datasheet"),
    _sheet("L40", r"\bL40\b", 864, 181, 90.5, 90.5, "NVIDIA L40 datasheet"),
    _sheet("L4", r"\bL4\b", 300, 121, 60, 30.3, "NVIDIA L4 datasheet"),
    _sheet("A10", r"\bA10\b", 600, 125, 62.5, 31.2, "NVIDIA A10 datasheet"),
    _sheet("RTX 4090", r"\bRTX 4090\b", 1008, 165.2, 82.6, 82.6, _ADA),
    _sheet("RTX 3090", r"\bRTX 3090\b(?! Ti)", 936, 71, 35.6, 35.6, "NVIDIA Ampere GA102 whitepaper"),
    _sheet("T4", r"\bT4\b", 320, 65, None, 8.1, "NVIDIA T4 datasheet"),
    _sheet("V100 SXM", r"\bV100-SXM", 900, 125, None, 15.7, "NVIDIA V100 datasheet"),
)


def find_datasheet(device_name: str | None) -> Datasheet | None:
    """The datasheet of a device by the name its driver gives; None for one that is not in the table.

    A slice of a GPU (MIG) and a laptop's version have less than the table says, so they have none.
    """
    name = str(device_name or "")
    if re.search(r"\bMIG\b|\bLaptop\b|\bMax-Q\b", name):
        return None
    return next((sheet for sheet in DATASHEETS if re.search(sheet.pattern, name)), None)
