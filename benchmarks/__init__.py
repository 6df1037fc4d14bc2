"""Measures the project itself; draws its published tables and pictures. Not installed."""
