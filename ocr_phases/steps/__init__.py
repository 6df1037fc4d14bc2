"""The heart: prefill, one decode step, the decode loop, and how a step is executed."""
