"""Reads records: verdicts, cost, regions and comparisons, without torch."""
