"""What a notebook holds: measurements, comparisons, sweeps and load tests, each with tables and
plots.
"""
