"""The names of the ways to run decode and vision, for both halves: nothing here needs torch."""

from __future__ import annotations

#: How a decode step is executed; what each does is in `ocr_phases.measure.steps.execution`.
STRATEGIES = ("eager", "cuda_graph", "compiled")
#: How the vision encoders run in the prefill.
VISIONS = ("eager", "compiled")
