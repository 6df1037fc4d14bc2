"""Measure pages as asked on standard input: a line has the number of tokens, and of rows.

The package that is measured is the one on PYTHONPATH.
"""

import json
import sys
import time

from ocr_phases import OCRSession

begun = time.perf_counter()
PAGE = sys.argv[1]
session = OCRSession.load("dummy", device="cuda")
options = {
    "preset": "base",
    "strategy": "compiled",
    "vision": "compiled",
    "ignore_eos": True,
    "repeats": 1,
    "warmup": 0,
    "ceilings": False,
    "token_probabilities": False,
}
for line in sys.stdin:
    tokens, rows = map(int, line.split())
    pages = PAGE if rows == 1 else [PAGE] * rows
    run = session.run_inference(pages, max_new_tokens=tokens, **options)
    steps = run.spans[run.spans["stage"] == "decode_step"]["device_ms"]
    answer = {
        "decode_ms": run["decode_ms"] / (tokens - 1),
        "median_step_ms": float(steps.median()),
        "since_start_s": time.perf_counter() - begun,
        "setup": str(run.model.strategy_setup),
        "kernels": run.model.decode_experts,
        "ids": hash(tuple(run.result.ids)),
    }
    print(json.dumps(answer), flush=True)
