"""The key figures of one record: the cards of a report and the lines that ``profile`` prints.

Which figures have a card, and in which order, is said in `ocr_phases.analyse.figure_rows`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ocr_phases.analyse.figure_rows import SHARE, FigureRow, Place, figures_in
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.noise import has_untimed_tokens
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.sentences import tokens_text
from ocr_phases.record import Record
from ocr_phases.text import (
    bytes_text,
    count_text,
    digits_text,
    ms_text,
    percent_text,
    prompt_text,
)


class KeyFigure(NamedTuple):
    """A card: the figure's name, its value as text, and a note, which may be empty."""

    label: str
    value: str
    note: str


def key_metrics(run: Record) -> list[KeyFigure]:
    """The known key figures, those of a report's first screen first."""
    figures = summary(run)
    if run.truths:  # most records need none of the libraries of quality
        figures = figures | quality_of(run)
    cards = []
    for row in figures_in(Place.CARD):
        value = figures.get(row.name)
        if value is None or not _has_card(run, row.name):
            continue
        label = row.card
        if row.name == "generate_ms" and run.is_server:
            label = "Whole answer"
        cards.append(KeyFigure(label, _value_text(row, value), _note(run, row.name, figures)))
    return cards


def key_metrics_text(run: Record) -> str:
    """`key_metrics` as lines of a terminal."""
    cards = key_metrics(run)
    label_width = max(len(card.label) for card in cards)
    value_width = max(len(card.value) for card in cards)
    return "\n".join(
        f"{card.label:{label_width}}  {card.value:>{value_width}}  {card.note}" for card in cards
    )


def _has_card(run: Record, name: str) -> bool:
    """Whether a known figure says something about this record that no other card says."""
    if name == "ntpot_ms":  # where tokens have times of their own, their median says more
        return run.is_server and has_untimed_tokens(run)
    if name == "decode_ms":
        return summary(run)["decode_steps"] > 0
    return True


def _value_text(row: FigureRow, value: float) -> str:
    """A figure with its unit."""
    if row.unit == "ms":
        return ms_text(value)
    if row.unit == "bytes":
        return bytes_text(value)
    if row.unit == SHARE:
        return percent_text(value)
    if row.unit == "J":
        return f"{value:,.3g} J"
    if row.unit == "tokens/s":
        return f"{value:,.1f}"
    if row.unit == "pages/h":
        return f"{value:,.0f}"
    return digits_text(value)


def _note(run: Record, name: str, figures: dict[str, Any]) -> str:
    """What stands beside a figure on its card; empty for a figure that needs no note."""
    match name:
        case "generate_ms":
            if run.is_server:
                return f"{tokens_text(run)}; it came in one piece"
            each = figures["generate_ms"] / figures["tokens"]
            return f"{tokens_text(run)}, {ms_text(each)} each, prefill included"
        case "ttft_ms":
            return "the client's wait" if run.waits_for_first_token else "prepare + prefill"
        case "inter_token_ms":
            p90 = ms_text(figures["inter_token_ms_p90"])
            return f"median; p90 {p90}, p99 {ms_text(figures['inter_token_ms_p99'])}"
        case "ntpot_ms":
            return f"mean: time of the whole answer / {tokens_text(run)}"
        case "tokens_per_s":
            rows = len(run.results)
            what = "" if rows == 1 else f" of {rows} rows together"
            return f"mean{what} over the whole decode phase"
        case "peak_bytes":
            return f"in {_peak_phase(run)}"
        case "pages_per_hour":
            return _manner_text(run)
        case "price_per_1000_pages":
            return f"at {run.request.price_per_hour:,} per hour, {_manner_text(run)}"
        case "prefill_ms":
            return prompt_text(figures["prefill_len"])
        case "vision_share":
            prefill = ms_text(figures["prefill_ms"])
            return f"{ms_text(figures['vision_ms'])} of the prefill's {prefill}"
        case "decode_ms":
            return count_text(figures["decode_steps"], "step")
        case "kv_cache_bytes":
            return _cache_text(run)
        case "energy_j":
            return _energy_text(figures)
        case "cer":
            is_cut = run.result.finish_reason == "length"
            cut = f"; cut at {tokens_text(run)}" if is_cut else ""
            return f"against the page's reference text{cut}"
        case "agreement":
            return "with a reference run"
    return ""


def _peak_phase(run: Record) -> str:
    """The phase with the largest peak of memory; the first of several alike."""
    peaks = {}
    for phase, of_repeats in (run.memory.peak_bytes or {}).items():
        if of_repeats:
            peaks[phase] = max(of_repeats)
    return max(peaks, key=lambda phase: peaks[phase], default="")


def _manner_text(run: Record) -> str:
    """How the pages of a figure that counts pages were read."""
    pages = count_text(len(run.pages), "page")
    return f"{pages} at a time, {run.preset}, {run.request.strategy}"


def _cache_text(run: Record) -> str:
    """What a token takes in the KV cache, and how large a static one is."""
    per_token = run.cache.bytes_per_token
    text = f"{bytes_text(per_token)} per token" if per_token else "at its largest"
    allocated = run.cache.allocated_bytes
    if allocated:
        return f"{text}; static, room for {bytes_text(allocated)}"
    return text


def _energy_text(figures: dict[str, Any]) -> str:
    """What a measured energy is for tokens and for pages, and the idle device's part of it."""
    parts = []
    tokens_j = figures["thousand_tokens_j"]
    if tokens_j is not None:
        parts.append(f"{tokens_j:,.3g} J for 1,000 tokens")
    of_pages = figures["wh_per_1000_pages"]
    if of_pages is not None:
        parts.append(f"{of_pages:,.3g} Wh for 1,000 pages")
    note = f"per run; {', '.join(parts)}"
    idle_share = figures["idle_energy_share"]
    if idle_share is not None:
        note += f"; idle alone takes {percent_text(idle_share)}"
    return note
