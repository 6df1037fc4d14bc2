"""The colours of all pictures. Each means one thing."""

from __future__ import annotations

from ocr_phases.stages import STAGES

INK = "#222222"
MUTED = "#666666"
AXIS = "#999999"
FAINT = "#d9d9d9"
#: The colour of what has no meaning of its own: the time between stages, a device that waits.
REST = "#8c8c8c"
BLUE = "#0072b2"
SKY = "#4a96d2"
GREEN = "#009e73"
PURPLE = "#c56ba0"
GOLD = "#b48c00"
ORANGE = "#d9730d"
VERMILLION = "#d1373c"
VIOLET = "#7568c8"
PHASE_COLOURS = {"prepare": REST, "prefill": VIOLET, "decode": ORANGE, "generate": GREEN}
STAGE_COLOURS = {stage.name: stage.colour for stage in STAGES if stage.role != "whole"}
