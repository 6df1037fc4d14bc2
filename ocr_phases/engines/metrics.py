"""A server's own times of a request, from the difference of two readings of ``/metrics``."""

from __future__ import annotations

import re
import time
from collections import Counter

from ocr_phases.engines.client import Server, ServerFailed

#: A request's times as a record has them, and what vLLM calls their histograms.
_TIMES = {
    "queue_ms": "request_queue_time",
    "prefill_ms": "request_prefill_time",
    "decode_ms": "request_decode_time",
    "ttft_ms": "time_to_first_token",
}
_SAMPLE = re.compile(r"vllm:(\w+)_seconds_(sum|count)(?:\{.*\})? (\S+)(?: \S+)?\s*")
#: More seconds or requests than any server has had, so not what it means to tell.
_MOST_OF_SAMPLE = 1e12

Samples = dict[tuple[str, str], float]


def metrics(server: Server) -> Samples:
    """Sum in s and count of each of vLLM's histograms so far, of all engines.

    Empty where there are none, and where they are not such as can be read.
    """
    try:
        text = b"".join(server.lines(f"{server.root}/metrics")).decode("utf-8", "replace")
    except ServerFailed:
        return {}
    return read_metrics(text)


def read_metrics(text: str) -> Samples:
    """`metrics` of this text in Prometheus's format."""
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None or sample[1] not in _TIMES.values():
            continue
        value = _sample_value(sample[3])
        if value is None:
            return {}
        found[sample[1], sample[2]] += value  # type: ignore[assignment]
    return dict(found)


def _sample_value(text: str) -> float | None:
    """A sample's number; None where it is none, or none that a sum of seconds or a count can be."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= _MOST_OF_SAMPLE else None


def server_times(server: Server, before: Samples) -> dict[str, float]:
    """The server's own times of the request that finished since ``before``, ms; empty unless it was
    alone.
    """
    if not before:
        return {}
    for pause in (0.0, 0.05, 0.2, 0.5):
        time.sleep(pause)  # the last chunk may leave before its figures are in
        after = metrics(server)
        new = {key: value - before.get(key, 0.0) for key, value in after.items()}
        if all(new.get((name, "count")) == 1 for name in _TIMES.values()):
            times = {own: 1e3 * new.get((name, "sum"), -1.0) for own, name in _TIMES.items()}
            return times if min(times.values()) >= 0 else {}
    return {}
