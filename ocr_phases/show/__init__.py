"""Draws records: plots, page overlays and the explorer, without torch."""
