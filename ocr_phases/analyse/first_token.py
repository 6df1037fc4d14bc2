"""Where the time until the first token goes, of a loaded model and of a server side by side.

Nobody tells all of it of a server: each part has its source, or is n/a with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from ocr_phases.analyse.figures import summary
from ocr_phases.record import Record
from ocr_phases.record.parts import to_plain

#: The columns of `first_token_table`.
FIRST_TOKEN_COLUMNS = ("part", "run", "ms", "source")

_CLIENT = "the client's stream"
_METRICS = "the server's own times"
_WORKER = "the worker's extension"
_SPANS = "spans of the loaded model"
_ENCODER_STATS = "vLLM's --enable-mm-processor-stats"


class _Part(NamedTuple):
    """A part of the time until the first token: its ms and who tells them, or why nobody does."""

    name: str
    ms: float | None
    source: str


def first_token_table(runs: Sequence[Record], labels: Sequence[str]) -> pd.DataFrame:
    """The parts of the time until the first token, a row per part and record.

    Parameters
    ----------
    runs : sequence of Record
        Records of loaded models and of servers, on one page.
    labels : sequence of str
        A name for each record.

    Returns
    -------
    pandas.DataFrame
        Columns `FIRST_TOKEN_COLUMNS`. ``ms`` is the median over the repeats and missing where
        nobody tells it; ``source`` says who tells it, or why nobody does. The parts are: decode of
        the image, processor, queue, encoder, prefill (the rest of it) and first token (all of it).
        Medians need not add up.

    Examples
    --------
    >>> first_token_table([native, server], ["native", "vllm"])  # doctest: +SKIP
    """
    rows = []
    for run, label in zip(runs, labels, strict=True):
        parts = _parts_of_server(run) if run.is_server else _parts_of_model(run)
        rows += [(part.name, label, part.ms, part.source) for part in parts]
    table = pd.DataFrame(rows, columns=list(FIRST_TOKEN_COLUMNS))
    table["ms"] = table["ms"].astype("float64")
    # Of each part the records stand side by side, in the order of the parts.
    places = {name: place for place, name in enumerate(dict.fromkeys(table["part"]))}
    order = table["part"].map(places)
    return table.assign(order=order).sort_values("order", kind="stable", ignore_index=True)[
        list(FIRST_TOKEN_COLUMNS)
    ]


def _parts_of_model(run: Record) -> list[_Part]:
    """The parts of a model that this package loaded."""
    image_ms = _stage_ms(run, "prepare", "load_image")
    figures = summary(run)
    prepare_ms = figures["prepare_ms"]
    vision_ms = figures["vision_ms"]
    prefill_ms = figures["prefill_ms"]
    return [
        _part("decode of the image", image_ms, _SPANS, "this run did not time it"),
        _part("processor", _rest(prepare_ms, image_ms), _SPANS, "this run did not time it"),
        _part("queue", None, "", "a loaded model has no queue"),
        _part("encoder", vision_ms, _SPANS, "this run did not time it"),
        _part("prefill", _rest(prefill_ms, vision_ms), _SPANS, "this run did not time it"),
        _part("first token", figures["ttft_ms"], _SPANS, "this run did not time it"),
    ]


def _parts_of_server(run: Record) -> list[_Part]:
    """The parts of a server, as far as it and its worker tell them."""
    processor_ms = _stage_ms(run, "prepare", "preprocess")
    figures = summary(run)
    encoder_ms = figures["vision_ms"]
    encoder_source = _WORKER
    if encoder_ms is None:
        encoder_ms = _encoder_stats_ms(run)
        encoder_source = _ENCODER_STATS
    return [
        _part("decode of the image", None, "", "no server tells it: it is in the processor's time"),
        _part("processor", processor_ms, _METRICS, "no /metrics of this request alone"),
        _part("queue", _own_ms(run, "queue_ms"), _METRICS, "no /metrics of this request alone"),
        _part("encoder", encoder_ms, encoder_source, "no extension in the worker"),
        _part(
            "prefill",
            _rest(figures["prefill_ms"], encoder_ms),
            _METRICS,
            "neither /metrics nor a worker's extension tells it",
        ),
        _part("first token", figures["ttft_ms"], _CLIENT, "the answer came all at once"),
    ]


def _part(name: str, ms: float | None, source: str, reason: str) -> _Part:
    """A part with who tells it; without a time, with the reason."""
    if ms is None:
        return _Part(name, None, f"n/a: {reason}")
    return _Part(name, float(ms), source)


def _rest(whole_ms: float | None, part_ms: float | None) -> float | None:
    """The whole without the part, where both are known or the part is not there; never below 0."""
    if whole_ms is None:
        return None
    return max(0.0, whole_ms - (part_ms or 0.0))


def _stage_ms(run: Record, phase: str, stage: str) -> float | None:
    """The median over the repeats of a stage's time on the host, in ms; None without it."""
    spans = run.spans[(run.spans["phase"] == phase) & (run.spans["stage"] == stage)]
    if spans.empty:
        return None
    return float(spans.groupby("repeat")["host_ms"].sum().median())


def _own_ms(run: Record, name: str) -> float | None:
    """The median of one of the server's own times in ms; None where a repeat lacks it."""
    server = to_plain(run.model.server) or {}
    times = [repeat.get(name) for repeat in server.get("times") or []]
    if not times or any(ms is None for ms in times):
        return None
    return float(pd.Series(times).median())


def _encoder_stats_ms(run: Record) -> float | None:
    """The encoder's time by vLLM's own statistics; None where they are not switched on."""
    return _own_ms(run, "encoder_ms")
