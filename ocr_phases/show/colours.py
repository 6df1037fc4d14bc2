"""The colours of all pictures. Each means one thing."""

from __future__ import annotations

from ocr_phases.stages import STAGES

INK, MUTED, AXIS, FAINT = "#222222", "#666666", "#999999", "#d9d9d9"
#: The colour of what has no meaning of its own: the time between stages, a device that waits.
REST = "#8c8c8c"
BLUE, SKY, GREEN, PURPLE = "#0072b2", "#4a96d2", "#009e73", "#c56ba0"
GOLD, ORANGE, VERMILLION, VIOLET, BROWN = "#b48c00", "#d9730d", "#d1373c", "#7568c8", "#8a6d5a"
PHASE_COLOURS = {"prepare": REST, "prefill": VIOLET, "decode": ORANGE, "generate": GREEN}
STAGE_COLOURS = {stage.name: stage.colour for stage in STAGES if stage.role != "whole"}
