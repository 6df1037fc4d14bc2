"""The names of the decode and vision strategies, without torch."""

from __future__ import annotations

#: How a decode step is executed; what each does is in `ocr_phases.measure.steps.execution`.
STRATEGIES = ("eager", "cuda_graph", "compiled")
#: How the vision encoders run in the prefill.
VISIONS = ("eager", "compiled")
