"""Writes result files, notebooks and HTML reports, without torch."""
