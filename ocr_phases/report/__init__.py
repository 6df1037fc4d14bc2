"""Writes what a run leaves behind: result files, notebooks and HTML reports, without torch."""
