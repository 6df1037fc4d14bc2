"""HTML fragments for notebooks and reports: pure functions from a record, a table or a figure to a string.

Whatever a model, a file name or a person wrote is escaped here and nowhere else; no fragment carries a
script, a style of its own or an address. Classes start with ``op-`` and are dressed by ``fragments.css``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ocr_phases.analyse.check_texts import EXPECTATIONS
from ocr_phases.analyse.checks import Check, checks_verdict, run_checks, worst_verdict
from ocr_phases.analyse.floors import ceilings_text
from ocr_phases.analyse.grounding import PREAMBLE
from ocr_phases.analyse.headline import account, headline, key_figures, subject, text_doubt
from ocr_phases.analyse.noise import conditions_table
from ocr_phases.analyse.summary import repeat_table, stage_table
from ocr_phases.analyse.typical import typical_run
from ocr_phases.record import PhaseRun
from ocr_phases.show.blocks import badge, cards_block, share_bar, small_jpeg, status_line, title_block
from ocr_phases.show.blocks import safe as _safe
from ocr_phases.show.figures import SHARPNESS
from ocr_phases.show.overlay import printable
from ocr_phases.words import bytes_text, ms_text, percent_text, stage_name

if TYPE_CHECKING:
    from PIL.Image import Image


_LONG_TEXT = 1_200
_SHORT_TEXT = 60
_NOTHING = "–"
_CONDITIONS = {
    "wall_s": ("wall", "s"),
    "cpu_s": ("CPU of this program", "s"),
    "waited_s": ("waited for a core", "s"),
    "others": ("other programs", "%"),
    "steal": ("stolen by a hypervisor", "%"),
    "load_start": ("load at the start", ""),
    "load_end": ("load at the end", ""),
}

#: Column -> (heading, unit). A unit decides how the column is written; without one it follows the value.
HEADINGS: dict[str, tuple[str, str]] = {
    "device_ms": ("device", "ms"),
    "device_ms_p10": ("p10", "ms"),
    "device_ms_p90": ("p90", "ms"),
    "host_ms": ("host", "ms"),
    "share": ("share", "%"),
    "prepare_ms": ("prepare", "ms"),
    "prefill_ms": ("prefill", "ms"),
    "decode_ms": ("decode", "ms"),
    "generate_ms": ("generate", "ms"),
    "ttft_ms": ("first token", "ms"),
    "tokens_per_s": ("tokens/s", ""),
    "ms_per_char": ("per character", "ms"),
    "cache_len": ("cache length", ""),
}


def header_html(run: PhaseRun, title: str | None = None, lead: str | None = None) -> str:
    """The head of a report: the page's thumbnail (if the record has it), where the time went, the checks.

    ``lead`` is a sentence or more in place of all that is said about the times and the checks.
    """
    page = run.page_image()
    picture = ""
    if page is not None:
        page.thumbnail((480, 480))
        picture = image_html(page, "The page that was read", width=180)
    about = list(filter(None, subject(run)))
    name = title or str(run.page.get("file", "page"))
    if lead is not None:
        first, stop, rest = lead.partition(". ")
        return title_block(name, about, rest, headline=first + stop.strip(), picture=picture)
    checks = run_checks(run)
    status = status_line(worst_verdict(checks), checks_verdict(checks))
    below = _phase_bar(run) + status
    return title_block(name, about, account(run), headline=headline(run), picture=picture, below=below)


def _phase_bar(run: PhaseRun) -> str:
    """Where the time of the typical repeat went, vision apart from the rest of the prefill."""
    figures = typical_run(run).summary()
    vision = figures["vision_ms"] or 0.0
    parts = [
        ("prepare", figures["prepare_ms"]),
        ("vision", vision),
        ("rest of the prefill", max((figures["prefill_ms"] or 0.0) - vision, 0.0)),
        ("decode", figures["decode_ms"] if figures["prefill_ms"] is not None else None),
        ("generate()", figures["generate_ms"]),
    ]
    return share_bar([(label, ms or 0.0, ms_text(ms)) for label, ms in parts])


def cards_html(run: PhaseRun) -> str:
    """The key figures of the typical repeat as cards; one that this kind of run does not have gets none."""
    return cards_block(key_figures(run))


def table_html(
    table: pd.DataFrame,
    *,
    caption: str = "",
    headings: Mapping[str, tuple[str, str]] | None = None,
    strong: Sequence[bool] | None = None,
    links: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """A DataFrame as a sortable table, without its index: numbers aligned and rounded, text escaped.

    ``headings`` adds to `HEADINGS`; a unit of ``ms``, ``%`` or ``bytes`` decides how a column is written.
    ``strong`` marks rows, such as a phase's whole among its stages. ``links`` gives text columns an address a
    row, empty for none.
    """
    known = {**HEADINGS, **(headings or {})}
    columns = [
        (str(name), *known.get(str(name), (str(name).replace("_", " "), ""))) for name in table.columns
    ]
    numeric = {name: _is_numeric(table[name]) for name, _, _ in columns}
    head = "".join(
        f'<th scope="col"{_right(numeric[name])}>{_safe(text)}{_unit(unit)}</th>'
        for name, text, unit in columns
    )
    body = []
    for place, values in enumerate(table.itertuples(index=False, name=None)):
        cells = "".join(
            _cell(value, unit, numeric[name], links[name][place] if links and name in links else "")
            for value, (name, _, unit) in zip(values, columns, strict=True)
        )
        marked = ' class="op-strong"' if strong is not None and strong[place] else ""
        body.append(f"<tr{marked}>{cells}</tr>")
    title = f"<caption>{_safe(caption)}</caption>" if caption else ""
    return (
        f'{_scroller(caption)}<table class="op-table">{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _scroller(name: str) -> str:
    """A frame for a table that may be wider than the page; a keyboard can scroll what it can focus."""
    return f'<div class="op op-scroll" role="region" aria-label="{_safe(name or "Table")}" tabindex="0">'


def stages_html(run: PhaseRun) -> str:
    """`stage_table` as a table: each phase's whole stands out, what lies inside a decode step is indented."""
    table = stage_table(run)
    whole = table["stage"] == table["phase"]
    inside = (table["phase"] == "decode") & ~whole & (table["stage"] != "decode_step")
    names = table["stage"].map(stage_name)
    table["stage"] = names.mask(whole, "whole phase").mask(inside, "\N{NO-BREAK SPACE}" * 4 + names)
    if not table["view"].any():
        table = table.drop(columns="view")
    if len(run.repeats) == 1:
        table = table.drop(columns=["device_ms_p10", "device_ms_p90"])
    if run.device.get("kind") != "cuda":
        table = table.drop(columns="host_ms")
    caption = "Time of each phase and its stages"
    return table_html(table, caption=caption, strong=whole.tolist(), headings=_clock_headings(run))


def repeats_html(run: PhaseRun) -> str:
    """`repeat_table` as a table, without the phases that this run does not have."""
    table = repeat_table(run).dropna(axis="columns", how="all")
    table = table if table["steps"].any() else table.drop(columns="steps")
    return table_html(table, caption="Each repeat on its own")


def regions_html(table: pd.DataFrame) -> str:
    """`ocr_phases.analyse.grounding.region_table` as a table, the costliest region first.

    Texts are cut short, and columns that hold nothing out of the ordinary (boxes, repaired) left out.
    """
    table = table.sort_values("decode_ms", ascending=False, kind="stable")
    table = table.assign(
        label=[printable(label) for label in table["label"]],
        text=[printable(text, _SHORT_TEXT) for text in table["text"]],
    )
    marked = table[table["region"] != PREAMBLE]
    usual = [name for name, value in (("repaired", False), ("boxes", 1)) if (marked[name] == value).all()]
    table = table.drop(columns=usual)
    headings = {"decode_ms": ("decode time", "ms"), "text": ("begins with", "")}
    return table_html(table, caption="What each region cost to write", headings=headings)


def text_html(text: str, summary: str = "The text as the model wrote it") -> str:
    """Model text, escaped, in a block that scrolls; a long one starts folded."""
    opened = "" if len(text) > _LONG_TEXT else " open"
    return (
        f'<details class="op op-fold"{opened}><summary>{_safe(summary)} ({len(text):,} characters)</summary>'
        f'<pre class="op-text" tabindex="0">{_safe(text)}</pre></details>'
    )


def compression_html(run: PhaseRun) -> str:
    """Generated tokens over valid image tokens, and the vendor's way where the record has counted it."""
    figures = run.summary()
    if figures["generated_compression_ratio"] is None:
        return ""
    sentence = (
        f"{figures['tokens']:,} generated tokens from {figures['valid_image_tokens']:,} valid image tokens: "
        f"a compression ratio of {figures['generated_compression_ratio']:.2f}."
    )
    if figures["compression_ratio"] is not None:
        sentence += (
            f" The vendor counts the text tokenised anew: {figures['text_tokens']:,} tokens, "
            f"a ratio of {figures['compression_ratio']:.2f}."
        )
    return note_html(sentence)


def text_doubt_html(run: PhaseRun) -> str:
    """What speaks against the text, beside it; nothing where nothing does."""
    doubt = text_doubt(run)
    return status_line("note", doubt) if doubt else ""


def note_html(sentence: str) -> str:
    """A sentence in place of something that is not there."""
    return f'<p class="op op-note">{_safe(sentence)}</p>'


def checks_html(checks: Iterable[Check]) -> str:
    """Checks as a table, verdicts in words as well as in colour; why and what to do unfold under each.

    What fails or is noisy is unfolded. The expectations, which are never a fault, are folded away beneath.
    """
    checks = list(checks)
    rules = [check for check in checks if check.name not in EXPECTATIONS]
    expected = [check for check in checks if check.name in EXPECTATIONS]
    caption = "Each rule, its verdict, and what was measured"
    if not expected:
        return _checks_table(rules, caption)
    within = sum(check.measured.startswith("in range") for check in expected)
    known = sum(check.verdict != "n/a" for check in expected)
    summary = f"Rules of thumb for the full model on a GPU: {within} of {known} in range"
    table = _checks_table(expected, "What is usual there, and what was measured here")
    fold = f'<details class="op op-fold"><summary>{summary}</summary>{table}</details>'
    return _checks_table(rules, caption) + fold


def _checks_table(checks: Sequence[Check], caption: str) -> str:
    rows = []
    for check in checks:
        advice = ""
        if check.why:
            unfolded = " open" if check.verdict in ("fail", "noisy") else ""
            advice = (
                f'<details class="op-why"{unfolded}><summary>why, and what to do</summary>'
                f"<p>{_safe(check.why)}</p><p>{_safe(check.fix)}</p></details>"
            )
        name = _safe(check.name.replace("_", " ").removeprefix("expected "))
        expected, measured = (_safe(text or _NOTHING) for text in (check.expected, check.measured))
        rows.append(f'<tr><th scope="row">{name}</th><td>{badge(check.verdict)}</td><td>{expected}</td>')
        rows.append(f"<td>{measured}{advice}</td></tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in ("check", "verdict", "expected", "measured"))
    return (
        f'{_scroller(caption)}<table class="op-table op-checks"><caption>{_safe(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def measured_html(run: PhaseRun) -> str:
    """How it was measured: device, versions, model, page and request, folded away."""
    device = {key: value for key, value in run.device.items() if key != "conditions"}
    model = {key: value for key, value in run.model.items() if key != "config"}
    pages = [{key: value for key, value in page.items() if key != "data"} for page in run.pages]
    memory = {"peaks are": run.memory.get("source"), "weights_bytes": run.memory.get("weights_bytes")}
    parts: list[tuple[str, Mapping[str, Any]]] = [
        ("Device", {**device, "ceilings": ceilings_text(run)}),
        ("Memory", memory),
        ("Versions", run.versions),
        ("Model", model),
        *((("Page" if len(pages) == 1 else f"Page {number + 1}"), page) for number, page in enumerate(pages)),
        ("Request", run.request),
    ]
    blocks = "".join(f"<h3>{_safe(title)}</h3>{_pairs(values)}" for title, values in parts)
    conditions = conditions_table(run).dropna(axis="columns", how="all")
    if len(conditions):
        blocks += table_html(conditions, caption="The machine during each repeat", headings=_CONDITIONS)
    config = json.dumps(run.model.get("config"), indent=2, ensure_ascii=False, default=str)
    blocks += (
        "<details class='op-fold'><summary>The model's configuration</summary>"
        f'<pre class="op-text" tabindex="0">{_safe(config)}</pre></details>'
    )
    return (
        '<details class="op op-fold"><summary>Device, versions, model and request</summary>'
        f"{blocks}</details>"
    )


def references_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `ocr_phases.measure.models.references` as a table; what was not found has a dash."""
    columns = ["what", "file", "line", "version", "symbol"]
    table = pd.DataFrame(rows, columns=columns).astype({"line": "Int64"})
    return f'<div class="op-paths">{table_html(table, caption="Where the code does it")}</div>'


def image_html(image: Image, alt: str, *, width: int) -> str:
    """An RGB image as an inline JPEG shown at most ``width`` CSS pixels wide, sharp on dense screens."""
    small, address = small_jpeg(image, width * SHARPNESS, 6 * width * SHARPNESS)
    shown = min(width, small.width)
    return (
        f'<img class="op-image" src="{address}" width="{shown}" '
        f'height="{round(small.height * shown / small.width)}" alt="{_safe(alt)}">'
    )


def pictures_html(pictures: Sequence[tuple[Image, str]]) -> str:
    """Page pictures side by side where there is room, each with its caption."""
    figures = "".join(
        f'<figure class="op-picture">{image_html(image, caption, width=520)}'
        f"<figcaption>{_safe(caption)}</figcaption></figure>"
        for image, caption in pictures
    )
    return f'<div class="op op-pictures">{figures}</div>'


def _clock_headings(run: PhaseRun) -> dict[str, tuple[str, str]]:
    """On a CPU there is one clock, so no column needs to say which."""
    if run.device.get("kind") == "cuda":
        return {}
    return {"device_ms": ("time", "ms")}


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _right(numeric: bool) -> str:
    return ' class="op-num"' if numeric else ""


def _unit(unit: str) -> str:
    return f' <span class="op-unit">{_safe(unit)}</span>' if unit else ""


def _cell(value: Any, unit: str, numeric: bool, link: str = "") -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return f"<td{_right(numeric)}>{_NOTHING}</td>"
    if not numeric:
        if isinstance(value, bool):
            value = "yes" if value else ""
        return f'<td><a href="{_safe(link)}">{_safe(value)}</a></td>' if link else f"<td>{_safe(value)}</td>"
    return f'<td class="op-num" data-value="{float(value)!r}">{_safe(_number(value, unit))}</td>'


def _number(value: float, unit: str) -> str:
    """As many digits as tell values apart, two at least: the unit stands in the heading."""
    if unit == "%":
        return percent_text(float(value)).removesuffix(" %")
    if unit == "bytes":
        return bytes_text(float(value))
    if float(value).is_integer() and unit != "ms":
        return f"{int(value):,}"
    size = abs(value)
    if 0 < size < 0.0995:
        return f"{value:.{1 - math.floor(math.log10(size))}f}"
    return f"{value:,.0f}" if size >= 999.5 else f"{value:.1f}" if size >= 99.95 else f"{value:.2f}"


def _pairs(values: Mapping[str, Any]) -> str:
    names = {key: str(key).replace("_", " ").removesuffix(" bytes") for key in values}
    rows = "".join(
        f"<dt>{_safe(names[key])}</dt><dd>{_safe(_value(key, value))}</dd>" for key, value in values.items()
    )
    return f'<dl class="op-pairs">{rows}</dl>'


def _value(key: str, value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and key.endswith("_bytes"):
        return bytes_text(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{inner} {_value(str(inner), item)}" for inner, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_value(key, item) for item in value)
    if isinstance(value, int) and key in (
        "parameters",
        "sam",
        "clip",
        "projector",
        "language_model",
        "lm_head",
        "total",
    ):
        return f"{value:,}"
    return str(value)
