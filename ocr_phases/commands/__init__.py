"""Verbs of the command line that have a module of their own; importing one loads nothing heavy."""
