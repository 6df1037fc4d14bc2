"""A server's own times of a request, from the difference of two readings of ``/metrics``."""

from __future__ import annotations

import re
import time

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

#: How long to wait for a request's figures, in s before each reading: the last chunk of an answer
#: may leave before they are in.
_PAUSES_S = (0.0, 0.05, 0.2, 0.5)

#: A value by the histogram's name and ``sum`` or ``count``.
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
    sums: Samples = {}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            continue
        histogram, kind, number = sample.groups()
        if histogram not in _TIMES.values():
            continue
        value = _sample_value(number)
        if value is None:
            return {}
        sums[histogram, kind] = sums.get((histogram, kind), 0.0) + value
    return sums


def _sample_value(text: str) -> float | None:
    """A sample's number; None where it is none, or none that a sum of seconds or a count can be."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= _MOST_OF_SAMPLE else None


def server_times(server: Server, before: Samples) -> dict[str, float]:
    """The server's own times of the request that finished since ``before``.

    Parameters
    ----------
    server : Server
        The server that was asked.
    before : dict
        What `metrics` gave before the request was sent; empty where the server has no metrics.

    Returns
    -------
    dict of str to float
        The times in ms by their names in a record. Empty where the server has no metrics, where a
        histogram has no sum or one that fell, and where other requests finished meanwhile, since
        then the difference is not this request's alone.
    """
    if not before:
        return {}
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        after = metrics(server)
        if all(_growth(before, after, name, "count") == 1 for name in _TIMES.values()):
            return _times_between(before, after)
    return {}


def _times_between(before: Samples, after: Samples) -> dict[str, float]:
    """The times of the one request between two readings, in ms; empty where one is not told."""
    times = {}
    for name, histogram in _TIMES.items():
        seconds = _growth(before, after, histogram, "sum")
        if seconds is None or seconds < 0:
            return {}
        times[name] = 1e3 * seconds
    return times


def _growth(before: Samples, after: Samples, histogram: str, kind: str) -> float | None:
    """By how much a value of a histogram grew; None where the second reading lacks it."""
    value = after.get((histogram, kind))
    if value is None:
        return None
    return value - before.get((histogram, kind), 0.0)
