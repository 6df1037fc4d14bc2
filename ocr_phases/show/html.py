"""HTML fragments for notebooks and reports: pure functions from a record, a table or a figure to a string.

Whatever a model, a file name or a person wrote is text (`ocr_phases.show.blocks.element`); no fragment has a
script, a style of its own or an address. Classes start with ``op-`` and are dressed by ``fragments.css``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ocr_phases.analyse.checks import EXPECTATIONS, Verdict, run_checks, worst_verdict
from ocr_phases.analyse.floors import ceilings_text
from ocr_phases.analyse.grounding import PREAMBLE
from ocr_phases.analyse.noise import conditions_table
from ocr_phases.analyse.sentences import (
    account,
    checks_verdict,
    headline,
    key_metrics,
    subject,
    uncertain_sentence,
)
from ocr_phases.analyse.stages import repeat_table, spread_names, stage_table
from ocr_phases.families import VISION_STAGES
from ocr_phases.record import PhaseRun
from ocr_phases.show.blocks import (
    Html,
    badge,
    cards_block,
    element,
    fold,
    fragment,
    preformatted,
    share_bar,
    small_jpeg,
    status_line,
    title_block,
)
from ocr_phases.show.figures import SHARPNESS
from ocr_phases.show.overlay import printable
from ocr_phases.text import bytes_text, count_text, ms_text, percent_text, stage_name

if TYPE_CHECKING:
    from PIL.Image import Image


_LONG_TEXT = 1_200
_SHORT_TEXT = 60
_NOTHING = "–"
_CONDITIONS = {
    "wall_s": ("wall", "s"),
    "cpu_s": ("CPU of this program", "s"),
    "other_threads_s": ("other threads (panel, cells)", "s"),
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
    "probability": ("probability", "%"),
    "cache_len": ("cache length", ""),
}


def header_html(
    run: PhaseRun, title: str | None = None, lead: str | None = None, about: str | None = None
) -> Html:
    """The head of a report: the page's thumbnail (if the record has it), headline, findings and checks.

    ``lead`` replaces headline, findings and checks, ``about`` the line that says of what it is.
    """
    page = run.page_image()
    picture = ""
    if page is not None:
        page.thumbnail((480, 480))
        picture = image_html(page, "The page", width=180)
    told = [about or subject(run)]
    name = title or run_title(run)
    if lead is not None:
        first, stop, rest = lead.partition(". ")
        return title_block(name, told, rest, headline=first + stop.strip(), picture=picture)
    checks = run_checks(run)
    status = status_line(worst_verdict(checks), checks_verdict(checks))
    below = phase_bar(run) + status
    return title_block(name, told, account(run), headline=headline(run), picture=picture, below=below)


def run_title(run: PhaseRun) -> str:
    """The page's file; for several pages the first and the number of others."""
    name, more = str(run.page.get("file", "page")), len(run.pages) - 1
    return f"{name} and {count_text(more, 'more page')}" if more else name


def row_table(run: PhaseRun) -> pd.DataFrame:
    """One line per row of a batch: files, tokens, finish and the beginning of its text."""
    rows = []
    for row, result in enumerate(run.results):
        files = ", ".join(str(page.get("file", "page")) for page in run.pages if page["row"] == row)
        ended = "end token" if result.get("finish_reason") == "eos" else "token limit"
        rows.append((row, files, len(result["ids"]), ended, printable(result["text"] or "", _SHORT_TEXT)))
    return pd.DataFrame(rows, columns=["row", "file", "tokens", "end", "text"])


def rows_html(run: PhaseRun) -> Html:
    """`row_table` of a batch as a table; nothing for a single row."""
    if len(run.results) == 1:
        return fragment()
    return table_html(row_table(run), caption="Each row", headings={"text": ("begins with", "")})


def phase_bar(run: PhaseRun) -> str:
    """Time by phase, vision separate from the rest of the prefill."""
    figures = run.summary()
    vision = figures["vision_ms"] or 0.0
    parts = [
        ("prepare", figures["prepare_ms"]),
        ("vision", vision),
        ("rest of the prefill", max((figures["prefill_ms"] or 0.0) - vision, 0.0)),
        ("decode", figures["decode_ms"] if figures["prefill_ms"] is not None else None),
        ("generate()", figures["generate_ms"]),
    ]
    return share_bar([(label, ms or 0.0, ms_text(ms)) for label, ms in parts])


def cards_html(run: PhaseRun) -> Html:
    """The key figures as cards."""
    return cards_block(key_metrics(run))


def table_html(
    table: pd.DataFrame,
    *,
    caption: str = "",
    headings: Mapping[str, tuple[str, str]] | None = None,
    strong: Sequence[bool] | None = None,
    links: Mapping[str, Sequence[str]] | None = None,
) -> Html:
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
    head = [
        element("th", text, _unit(unit), scope="col", class_=_right(numeric[name]))
        for name, text, unit in columns
    ]
    body = []
    for place, values in enumerate(table.itertuples(index=False, name=None)):
        cells = [
            _cell(value, unit, numeric[name], links[name][place] if links and name in links else "")
            for value, (name, _, unit) in zip(values, columns, strict=True)
        ]
        marked = strong is not None and strong[place]
        body.append(element("tr", *cells, class_="op-strong" if marked else None))
    return _table(caption, head, body)


def _table(caption: str, head: Sequence[Html], body: Sequence[Html], classes: str = "op-table") -> Html:
    """A table in a frame that scrolls where it is wider than the page; a keyboard scrolls what has focus."""
    rows = element("thead", element("tr", *head)), element("tbody", *body)
    title = element("caption", caption) if caption else ""
    frame = {"class_": "op op-scroll", "role": "region", "aria_label": caption or "Table", "tabindex": 0}
    return element("div", element("table", title, *rows, class_=classes), **frame)


def stages_html(run: PhaseRun) -> Html:
    """`stage_table` as a table: whole phases in bold, stages of a decode step indented."""
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
    headings = {**_clock_headings(run), **spread_headings(run)}
    return table_html(table, caption=caption, strong=whole.tolist(), headings=headings)


def repeats_html(run: PhaseRun) -> Html:
    """`repeat_table` as a table, without empty phases."""
    table = repeat_table(run).dropna(axis="columns", how="all")
    table = table if table["steps"].any() else table.drop(columns="steps")
    return table_html(table, caption="Time of each repeat")


def regions_html(table: pd.DataFrame) -> Html:
    """`region_table`, or `ocr_phases.analyse.regions.regions_of`, as a table, the costliest region first.

    Texts are shortened. Columns with only usual values (boxes, repaired, uncertain) are left out, and
    probabilities where the record has none.
    """
    table = table.sort_values("decode_ms", ascending=False, kind="stable")
    table = table.assign(
        label=[printable(label) for label in table["label"]],
        text=[printable(text, _SHORT_TEXT) for text in table["text"]],
    )
    marked = table[table["region"] != PREAMBLE]
    values = (("repaired", False), ("boxes", 1), ("uncertain", False))
    usual = [name for name, value in values if name in table and (marked[name] == value).all()]
    unknown = [name for name in ("probability",) if name in table and table[name].isna().all()]
    table = table.drop(columns=[*usual, *unknown])
    headings = {"decode_ms": ("decode time", "ms"), "text": ("begins with", "")}
    return table_html(table, caption="Decode time of each region", headings=headings)


def text_html(text: str, summary: str = "The text as the model wrote it") -> Html:
    """Model text, escaped, in a block that scrolls; a long one starts folded."""
    counted = f"{summary} ({len(text):,} characters)"
    return fold(counted, preformatted(text), opened=len(text) <= _LONG_TEXT)


def compression_html(run: PhaseRun) -> Html:
    """Generated tokens over valid image tokens, and the vendor's ratio if the record has it."""
    figures = run.summary()
    if figures["generated_compression_ratio"] is None:
        return fragment()
    sentence = (
        f"{figures['tokens']:,} generated tokens from {figures['valid_image_tokens']:,} valid image tokens: "
        f"a compression ratio of {figures['generated_compression_ratio']:.2f}."
    )
    if figures["compression_ratio"] is not None:
        sentence += (
            f" The vendor counts the text tokenised again: {figures['text_tokens']:,} tokens, "
            f"a ratio of {figures['compression_ratio']:.2f}."
        )
    return note_html(sentence)


def uncertain_html(run: PhaseRun) -> Html:
    """How many regions are uncertain; empty for none."""
    sentence = uncertain_sentence(run)
    return note_html(sentence) if sentence else fragment()


def note_html(sentence: str) -> Html:
    """A sentence as a note."""
    return element("p", sentence, class_="op op-note")


def checks_html(checks: Iterable[Verdict]) -> Html:
    """Checks as a table, verdicts in words and colour, with foldable reason and remedy.

    Failed and noisy checks are unfolded. The expectations, which never fail, are folded below.
    """
    checks = list(checks)
    rules = [check for check in checks if check.name not in EXPECTATIONS]
    expected = [check for check in checks if check.name in EXPECTATIONS]
    caption = "Expected and measured value of each check"
    if not expected:
        return _checks_table(rules, caption)
    within = sum(check.measured.startswith("in range") for check in expected)
    known = sum(check.verdict != "n/a" for check in expected)
    summary = f"Rules of thumb for the full model on a GPU: {within} of {known} in range"
    usual = _checks_table(expected, "Usual and measured value")
    return fragment(_checks_table(rules, caption), fold(summary, usual))


def _checks_table(checks: Sequence[Verdict], caption: str) -> Html:
    rows = []
    for check in checks:
        advice = fragment()
        if check.why:
            reasons = element("p", check.why), element("p", check.fix)
            urgent = check.verdict in ("fail", "noisy")
            advice = fold("reason and remedy", *reasons, opened=urgent, classes="op-why")
        cells = (
            element("th", check.name.replace("_", " ").removeprefix("expected "), scope="row"),
            element("td", badge(check.verdict)),
            element("td", check.expected or _NOTHING),
            element("td", check.measured or _NOTHING, advice),
        )
        rows.append(element("tr", *cells))
    head = [element("th", name, scope="col") for name in ("check", "verdict", "expected", "measured")]
    return _table(caption, head, rows, "op-table op-checks")


def measured_html(run: PhaseRun) -> Html:
    """Device, versions, model, page and request, folded."""
    device = {key: value for key, value in run.device.items() if key != "conditions"}
    model = {key: value for key, value in run.model.items() if key != "config"}
    pages = [{key: value for key, value in page.items() if key != "data"} for page in run.pages]
    memory = {"peaks from": run.memory.get("source"), "weights_bytes": run.memory.get("weights_bytes")}
    parts: list[tuple[str, Mapping[str, Any]]] = [
        ("Device", {**device, "ceilings": ceilings_text(run)}),
        ("Memory", memory),
        ("Versions", run.versions),
        ("Model", model),
        *((("Page" if len(pages) == 1 else f"Page {number + 1}"), page) for number, page in enumerate(pages)),
        ("Request", run.request),
    ]
    blocks = [fragment(element("h3", title), _pairs(values)) for title, values in parts]
    conditions = conditions_table(run).dropna(axis="columns", how="all")
    if len(conditions):
        caption = "The machine during each repeat"
        blocks.append(table_html(conditions, caption=caption, headings=_CONDITIONS))
    config = json.dumps(run.model.get("config"), indent=2, ensure_ascii=False, default=str)
    blocks.append(fold("The model's configuration", preformatted(config), classes="op-fold"))
    return fold("Device, versions, model and request", *blocks)


def references_html(rows: Sequence[Mapping[str, Any]]) -> Html:
    """The rows of `ocr_phases.models.references` as a table; missing values are dashes."""
    columns = ["what", "file", "line", "version", "symbol"]
    table = pd.DataFrame(rows, columns=columns).astype({"line": "Int64"})
    return element("div", table_html(table, caption="Source lines of the measured code"), class_="op-paths")


def image_html(image: Image, alt: str, *, width: int) -> Html:
    """An RGB image as an inline JPEG shown at most ``width`` CSS pixels wide, sharp on dense screens."""
    small, address = small_jpeg(image, width * SHARPNESS, 6 * width * SHARPNESS)
    shown = min(width, small.width)
    height = round(small.height * shown / small.width)
    return element("img", class_="op-image", src=address, width=shown, height=height, alt=alt)


def pictures_html(pictures: Sequence[tuple[Image, str]]) -> Html:
    """Page pictures with captions, side by side if they fit."""
    figures = [
        element(
            "figure",
            image_html(image, caption, width=520),
            element("figcaption", caption),
            class_="op-picture",
        )
        for image, caption in pictures
    ]
    return element("div", *figures, class_="op op-pictures")


def spread_headings(run: PhaseRun) -> dict[str, tuple[str, str]]:
    """The headings of the two ends of a spread over repeats."""
    low, high = spread_names(len(run.repeats))
    return {"device_ms_p10": (low, "ms"), "device_ms_p90": (high, "ms")}


def _clock_headings(run: PhaseRun) -> dict[str, tuple[str, str]]:
    """Without a device clock the column is called time."""
    if run.device.get("kind") == "cuda":
        return {}
    return {"device_ms": ("time", "ms")}


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _right(numeric: bool) -> str | None:
    return "op-num" if numeric else None


def _unit(unit: str) -> Html:
    return fragment(" ", element("span", unit, class_="op-unit")) if unit else fragment()


def _cell(value: Any, unit: str, numeric: bool, link: str = "") -> Html:
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return element("td", _NOTHING, class_=_right(numeric))
    if numeric:
        return element("td", _number(value, unit), class_="op-num", data_value=repr(float(value)))
    if isinstance(value, bool):
        value = "yes" if value else ""
    return element("td", element("a", value, href=link) if link else value)


def _number(value: float, unit: str) -> str:
    """A number with two or three digits; its unit is in the heading."""
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


def _pairs(values: Mapping[str, Any]) -> Html:
    names = {key: str(key).replace("_", " ").removesuffix(" bytes") for key in values}
    shown = {key: _value(key, value) for key, value in values.items()}
    rows = [fragment(element("dt", names[key]), element("dd", value)) for key, value in shown.items()]
    return element("dl", *rows, class_="op-pairs")


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
        *VISION_STAGES,
        "language_model",
        "lm_head",
        "total",
    ):
        return f"{value:,}"
    return str(value)
