"""Draws random pages whose truth is known, for benchmarks and tests, in the type that matplotlib
carries.

The built-in model learned from pages of its larger forerunner: see data/tiny/README.md.
"""
