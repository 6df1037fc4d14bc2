"""A record as the parts of its report, each a few fragments and figures: for a cell, a panel and a
terminal.

What is called in a cell shows itself; `Section.html` is the same as one string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ocr_phases.analyse.cards import key_metrics
from ocr_phases.analyse.checks import EXPECTATIONS, Verdict, run_checks, worst_verdict
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import ceilings_text, floor_table, why_no_floor
from ocr_phases.analyse.kernels import (
    host_syncs,
    idle_gaps,
    kernel_table,
    kv_cache_share,
    stage_verdict,
    top_kernels,
)
from ocr_phases.analyse.noise import ceilings_are_wrong, conditions_table, impossible_values
from ocr_phases.analyse.sentences import (
    checks_verdict,
    findings,
    headline,
    kernel_account,
    limit_sentence,
    noise_warning,
    subject,
    uncertain_sentence,
)
from ocr_phases.analyse.stages import (
    STAGE_KEYS,
    repeat_table,
    spread_names,
    stage_table,
    step_table,
    token_of_step,
)
from ocr_phases.record import Record, is_whole_phase
from ocr_phases.record.parts import KernelsPart, known_entries, to_plain
from ocr_phases.show import plots
from ocr_phases.show.figures import BLUE, GOLD, GREEN, ORANGE, REST, figure_html
from ocr_phases.show.page import (
    has_region_times,
    page_parts,
    pages_of_row,
    plot_region_types,
)
from ocr_phases.show.quality import quality_html
from ocr_phases.show.web import (
    Html,
    badge,
    block,
    element,
    facts,
    fold,
    fragment,
    image_html,
    note,
    notebook_style,
    pairs,
    pictures_html,
    preformatted,
    printable,
    section_heading,
    table_html,
)
from ocr_phases.text import count_text, digits_text, filled, ms_text, percent_text, plain

if TYPE_CHECKING:
    from PIL.Image import Image


#: What a cell shows, by MIME type.
Bundle = dict[str, str]

_FIRST_CARDS = 4  # of the first screen
_CLOSE_SUM = 0.005  # of the page's time: what three digits do not show
_LONG_TEXT = 1_200
_PRINTS_ABOVE = 1.005  # as per cent this is 101, a lower share at most 100
OVER_HUNDRED = "⚠ above 100 %"
_OVER_CAPTION = (
    ". ⚠ No stage does more than its hardware can: above 100 %, the ceiling was measured too low, or (MBU) "
    "the bytes came from a cache"
)
_LONGEST_NAME = 80
_NO_SPANS = {"spans": "none yet"}
_SLOWEST = 8
_TOP_KERNELS = 12
_WRITTEN = "The text as the model wrote it"
_CHECKS = ["check", "verdict", "expected", "measured"]
_CHECK_CAPTIONS = "Expected and measured value of each check", "Usual and measured value"
_RATIO_COLUMNS = (
    "ratio",
    "ratio_low",
    "ratio_high",
)  # near 1, where three digits would hide a change
_REFERENCES = ["what", "file", "line", "version", "symbol"]
_FLOORS = [
    *STAGE_KEYS,
    "device_ms",
    "floor_ms",
    "times_floor",
    "bound_by",
    "mfu",
    "mbu",
    "gflop",
    "bytes",
]
_KERNELS = [*STAGE_KEYS, "verdict", "kernels", "launches", "busy_ms", "wall_ms", "busy_%"]
_RATIOS = {
    "generated_compression_ratio": "{tokens:,} generated tokens from {valid_image_tokens:,} valid image "
    "tokens: a compression ratio of {generated_compression_ratio:.2f}.",
    "compression_ratio": " The vendor counts the text tokenised again: {text_tokens:,} tokens, "
    "a ratio of {compression_ratio:.2f}.",
}


class Section:
    """HTML fragments and figures in their order; empty ones are left out."""

    def __init__(self, *parts: str | Figure | Section) -> None:
        flat = [part.parts if isinstance(part, Section) else [part] for part in parts]
        self.parts: list[str | Figure] = [part for some in flat for part in some if part]

    def html(self) -> str:
        """All of it as one fragment."""
        return "".join(part if isinstance(part, str) else figure_html(part) for part in self.parts)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for part in self.parts:
            display(
                {"text/html": part} if isinstance(part, str) else part, raw=isinstance(part, str)
            )


def style() -> Section:
    """The look of all sections in JupyterLab; a report brings its own."""
    return Section(notebook_style())


# -- the first screen ---------------------------------------------------------------------------------


def overview(run: Record) -> Section:
    """The first screen: the page, headline, limit, phases, checks and four figures; then the rest,
    folded.
    """
    figures = key_metrics(run)
    first, rest = (
        block("cards", figures=some) for some in (figures[:_FIRST_CARDS], figures[_FIRST_CARDS:])
    )
    more = fold("Further figures and findings", rest, lines_html(findings(run)))
    shown = fold("Each row", table_html(row_table(run))) if len(run.results) > 1 else ""
    return Section(head_html(run), first, more, shown)


def cards(run: Record) -> Section:
    """The key figures."""
    return Section(block("cards", figures=key_metrics(run)))


def head_html(run: Record, title: str = "", said: Sequence[str] = (), about: str = "") -> Html:
    """The head of a report: the page's thumbnail (if the record has it), headline, limit, phases
    and checks.

    ``said`` are sentences in place of these, the headline first and the others folded; ``about``
    replaces the line that says of what it is.
    """
    page = run.page_image()
    thumb = "" if page is None else image_html(page, "The page", width=180)
    title, about = title or run_title(run), about or subject(run)
    if said:
        lead, below = "", fold("Further findings", lines_html(said[1:])) if said[1:] else ""
    else:
        said, lead, below = [headline(run)], limit_sentence(run), phase_bar(run) + status_html(run)
    return block(
        "head", picture=thumb, title=title, about=about, headline=said[0], lead=lead, below=below
    )


def status_html(run: Record) -> Html:
    """The checks' verdict as a badge and a sentence; what made a record noisy is folded below."""
    checks, noise = run_checks(run), noise_warning(run)
    status = element(
        "p", badge(worst_verdict(checks)), " ", checks_verdict(checks), class_="op-status"
    )
    return status + (
        fold("reasons and remedies", element("p", noise), classes="op-why") if noise else fragment()
    )


def lines_html(sentences: Sequence[str]) -> Html:
    """Sentences, a line each."""
    return element(
        "ul", *(element("li", sentence) for sentence in sentences), class_="op op-findings"
    )


def phase_bar(run: Record) -> Html:
    """A bar cut into the phases' times, vision separate from the rest of the prefill, above what
    they are.

    Its whole length is the page's time, which the headline's share is of; medians of phases may
    leave a part of it empty, or exceed it, which a sentence then says. The key is the bar's text
    alternative. What takes no time is left out.
    """
    figures = summary(run)
    vision = figures["vision_ms"] or 0.0
    prefill = float(np.median(run.phase_ms("prefill")))
    names = [
        "prepare",
        "vision",
        "rest of the prefill" if vision else "prefill",
        "decode",
        "generate()",
    ]
    if run.waits_for_first_token:
        names[2] = "first token"
    if run.is_server:
        names[4] = "whole answer"
    times = [
        figures["prepare_ms"],
        vision,
        max(prefill - vision, 0.0),
        figures["decode_ms"],
        figures["generate_ms"],
    ]
    bar = pd.DataFrame({"name": names, "colour": [REST, BLUE, GOLD, ORANGE, GREEN], "ms": times})
    together, page = float(bar["ms"].sum()), figures["page_ms"]
    bar["width"] = 1000 * bar["ms"] / max(together, page)
    bar = bar.assign(left=bar["width"].cumsum() - bar["width"], time=bar["ms"].map(ms_text))
    drawn = block("bar", pieces=list(bar[bar["width"] > 0].itertuples()))
    if abs(together - page) <= _CLOSE_SUM * page:
        return drawn
    return drawn + note(
        f"Medians of repeats add up to {ms_text(together)}, not to {ms_text(page)}."
    )


def run_title(run: Record) -> str:
    """The page's file; for several pages the first and the number of others."""
    name, more = str(run.page.file), len(run.pages) - 1
    return f"{name} and {count_text(more, 'more page')}" if more else name


_ENDS = {"eos": "end token", "length": "token limit"}


def row_table(run: Record) -> pd.DataFrame:
    """One line per row of a batch: number from 1, files, tokens, finish and the text."""
    rows = []
    for row, result in enumerate(run.results):
        files = ", ".join(run.pages[page].file for page in pages_of_row(run, row))
        ended = _ENDS.get(result.finish_reason or "", "unknown")
        tokens = result.known_tokens or len(result.ids)
        rows.append((row + 1, files, tokens, ended, result.text or ""))
    return pd.DataFrame(rows, columns=["row", "file", "tokens", "end", "text"])


# -- time ---------------------------------------------------------------------------------------------


def stages(run: Record) -> Section:
    """Each phase with its stages, whole phases in bold; each repeat."""
    table, whole = _with_wholes(stage_table(run))
    spread = ["device_ms_p10", "device_ms_p90"] if len(run.repeats) == 1 else []
    shown = timed_table(
        run, table.drop(columns=spread), "Time of each phase and its stages", strong=whole
    )
    repeats = repeat_table(run)
    repeats["repeat"] = range(1, len(repeats) + 1)  # a person counts from one
    return Section(shown, table_html(repeats, caption="Time of each repeat"))


def _with_wholes(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """A table of stages that calls whole phases so, and where they are."""
    whole = is_whole_phase(table)
    waits = table["stage"] == "first_token"
    table = table.assign(stage=table["stage"].mask(whole, "whole phase"))
    return table.assign(phase=table["phase"].mask(waits, "first token")), whole


def timed_table(
    run: Record, table: pd.DataFrame, caption: str, time: str = "device", **given: Any
) -> Html:
    """A table of medians over repeats with their spread; without a device clock there is one time."""
    low, high = spread_names(len(run.repeats))
    if run.device.kind != "cuda":
        table, time = table.drop(columns="host_ms", errors="ignore"), time.replace("device", "time")
    headings = {
        "device_ms": (time, "ms"),
        "device_ms_p10": (low, "ms"),
        "device_ms_p90": (high, "ms"),
    }
    return table_html(
        table, caption=caption, headings=headings | given.pop("headings", {}), **given
    )


def latency(run: Record) -> Section:
    """Every decode step over its floor, and the slowest steps."""
    slowest = step_table(run).nlargest(_SLOWEST, "device_ms").drop(columns="outlier")
    slowest["index"] = token_of_step(
        run, slowest.pop("step")
    )  # one count, from 1, as everywhere on the page
    caption, headings = (
        f"The {len(slowest)} slowest steps",
        {"index": ("token", ""), "text": ("text", "")},
    )
    table = timed_table(run, slowest, caption, "median", headings=headings, empty="")
    return Section(plots.plot_latency(run), table)


def floors(run: Record) -> Section:
    """Each stage beside its floor, or the reason why there is none."""
    reason = why_no_floor(run)
    if reason is not None:
        return Section(note(reason))
    table = floor_table(run).dropna(subset=["device_ms"])
    table, whole = _with_wholes(table.assign(gflop=table["flops"] / 1e9)[_FLOORS])
    wrong, missing, faults = ceilings_are_wrong(run), None, Html("")
    if wrong:
        table = table.assign(floor_ms=math.nan, times_floor=math.nan, bound_by="n/a")
        missing = "the ceilings were measured wrongly"
        faults = note(
            f"These ceilings are wrong, so that no floor is known: {impossible_values(run).measured}."
        )
    given: dict[str, Any] = {
        "strong": whole,
        "headings": {"bytes": ("read", "bytes")},
        "missing": missing,
    }
    shown = timed_table(run, table, _floor_caption(table), marks=over_hundred(table), **given)
    return Section(
        shown, note(f"Ceilings: {ceilings_text(run)}."), faults, plots.plot_roofline(run)
    )


def over_hundred(table: pd.DataFrame) -> dict[str, pd.Series]:
    """A mark for each MFU and MBU of `floor_table` that is above 100 %, for `table_html`."""
    return {
        name: (table[name] > _PRINTS_ABOVE).map({True: OVER_HUNDRED, False: ""})
        for name in ("mfu", "mbu")
    }


def floor_table_html(table: pd.DataFrame) -> Html:
    """`ocr_phases.analyse.floors.floor_table` in a notebook: what is above 100 % is marked and
    explained.
    """
    return table_html(
        table, caption=_floor_caption(table), missing="none", marks=over_hundred(table)
    )


def _floor_caption(table: pd.DataFrame) -> str:
    marked = any((words != "").any() for words in over_hundred(table).values())
    return f"Time and floor of each stage{_OVER_CAPTION if marked else ''}"


def kernels(run: Record) -> Section:
    """What limits each stage by the kernel view, under its own heading; empty without one.

    Decode's figures are per profiled step. A view that failed gives its error.
    """
    if run.kernels is None:
        return Section()
    head = section_heading("Kernels"), note(kernel_account(run))
    if not isinstance(run.kernels, KernelsPart):
        return Section(*head)
    table = kernel_table(run).merge(stage_verdict(run)[[*STAGE_KEYS, "verdict"]])
    table["busy_%"] = table["busy_ms"] / table["wall_ms"]
    table, whole = _with_wholes(table[_KERNELS])
    caption = (
        f"From one more run under {run.kernels.tool} with {run.kernels.steps} decode steps; decode is per "
        "profiled step."
    )
    headings = {"wall_ms": ("time", "ms")}
    shown = table_html(table, caption=caption, headings=headings, strong=whole)
    folded = [
        fold(name, table_html(rows, caption=caption))
        for name, rows, caption in _kernel_details(run)
    ]
    return Section(*head, shown, plots.plot_kernels(run), *folded)


def _kernel_details(run: Record) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Name, table and caption of what is folded: idle gaps, KV cache, host syncs and longest
    kernels.
    """
    gaps = (
        idle_gaps(run)
        .groupby(["phase", "cause"], sort=False)[["gaps", "idle_ms"]]
        .sum()
        .reset_index()
    )
    caption = (
        "Under the profiler, where gaps are longer; launch: the host was late, device: it was not."
    )
    yield "Idle gaps", gaps, caption
    waits = host_syncs(run)
    caption = (
        "Share of each phase. Attention in a captured graph is n/a: it does not name its kernels."
    )
    yield "Share of the KV cache", kv_cache_share(run), caption
    each = waits.loc[waits["phase"] == "decode", "count"].sum()
    caption = "Each host sync beyond the EOS check stops the host from launching ahead."
    yield f"Host syncs: {each:g} per step", waits, caption
    for phase, name in (("prefill", "the prefill"), ("decode", "a decode step")):
        table = top_kernels(run, phase)
        times = table["device_ms"]
        table = table.assign(share=times / times.sum(), time_us=1e3 * times)
        top = table[table["kernel"] != ""].nlargest(_TOP_KERNELS, "device_ms")
        if len(table):
            caption = f"Together {percent_text(top['share'].sum())} of GPU busy time."
            yield (
                f"Longest kernels of {name}",
                top[["stage", "count", "time_us", "share", "kernel"]],
                caption,
            )


# -- the page and its text ----------------------------------------------------------------------------


def page(run: Record) -> Section:
    """The page with its boxes, and the decode time of each region and type of region."""
    return Section(*page_parts(run))


def region_types(run: Record, row: int) -> Section:
    """Decode time by type of region in one row of a batch; nothing where no region has a time."""
    return Section(plot_region_types(run, row)) if has_region_times(run, row) else Section()


def text_notes(run: Record) -> Section:
    """What speaks against relying on the text, and the compression ratio."""
    figures = summary(run)
    told = [filled(text, figures) for name, text in _RATIOS.items() if figures[name] is not None]
    return Section(note(uncertain_sentence(run)), note("".join(told)))


def text(run: Record) -> Section:
    """The generated text of each row; a long one starts folded."""
    texts = [result.text for result in run.results]
    names = (
        [f"Text of row {row}" for row in range(1, len(texts) + 1)] if len(texts) > 1 else [_WRITTEN]
    )
    return Section(text_notes(run), *map(text_html, texts, names))


def text_html(text: str | None, name: str = _WRITTEN) -> Html:
    """Model text in a block that scrolls."""
    if text is None:
        return note("This record has no text (return_text=False).")
    return fold(
        f"{name} ({len(text):,} characters)", preformatted(text), opened=len(text) <= _LONG_TEXT
    )


def quality(run: Record) -> Section:
    """The text against its truth, under a heading of its own; empty for a record without one."""
    return Section(quality_html(run))


# -- trust --------------------------------------------------------------------------------------------


def checks(run: Record) -> Section:
    """The verification checklist."""
    return Section(checks_html(run_checks(run)))


def checks_html(checks: Iterable[Verdict]) -> Html:
    """Checks as a table, verdicts in words and colour, with foldable reason and remedy.

    Reason and remedy of a failed or noisy check are unfolded. The expectations, which never fail,
    are folded below.
    """
    rows: dict[bool, list[object]] = {False: [], True: []}
    for check in checks:
        reasons, usual = (
            (element("p", check.why), element("p", check.fix)),
            check.name in EXPECTATIONS,
        )
        urgent = check.verdict in ("fail", "noisy")
        advice = (
            fold("reason and remedy", *reasons, opened=urgent, classes="op-why")
            if check.why
            else ""
        )
        label, measured = (
            check.label.removeprefix("expected "),
            fragment(check.measured or "–", advice),
        )
        rows[usual].append((label, badge(check.verdict), check.expected or "–", measured))
    rules, expected = (
        table_html(
            pd.DataFrame(some, columns=_CHECKS, dtype=object), caption=caption, classes="op-checks"
        )
        for some, caption in zip(rows.values(), _CHECK_CAPTIONS, strict=True)
    )
    return (
        rules + fold("Rules of thumb for the full model on a GPU", expected)
        if rows[True]
        else rules
    )


def verification(run: Record) -> Section:
    """The head of a report on the checks alone."""
    return Section(
        head_html(run, f"Verification: {run.page.file}", [checks_verdict(run_checks(run))])
    )


def references(rows: Sequence[Mapping[str, Any]] | None) -> Section:
    """Source lines of the measured code; None if unknown, as for a loaded record."""
    if rows is None:
        return Section(
            note("Records do not contain source lines; verify shows them when it measures.")
        )
    table = pd.DataFrame(rows, columns=_REFERENCES).astype({"line": "Int64"})
    return Section(
        table_html(table, caption="Source lines of the measured code", classes="op-paths")
    )


def method(run: Record) -> Section:
    """Device, versions, model, page and request, folded."""
    parts: dict[str, Mapping[str, Any]] = {
        "Device": {
            **to_plain(run.device),
            "ceilings": ceilings_text(run),
            "peak memory": run.memory.source,
        },
        "Versions": run.versions,
        "Model": to_plain(run.model),
        **{f"Page {number}": to_plain(page) for number, page in enumerate(run.pages, 1)},
        "Request": to_plain(run.request),
    }
    blocks = []
    for title, values in parts.items():
        blocks.append(element("h3", title) + pairs(known_entries(values)))
    conditions = conditions_table(run)
    conditions["repeat"] += 1  # a person counts from one
    blocks.append(table_html(conditions, caption="The machine during each repeat", empty=""))
    config = json.dumps(run.model.config, indent=2, ensure_ascii=False, default=str)
    blocks.append(fold("The model's configuration", preformatted(config), classes="op-fold"))
    return Section(fold("Device, versions, model and request", *blocks))


# -- what a cell shows --------------------------------------------------------------------------------


def bundle(shown: str, text: str) -> Bundle:
    """HTML of this package with its style, and the same in words for a terminal."""
    return {"text/html": str(notebook_style()) + str(shown), "text/plain": plain(text)}


def run_bundle(run: Record) -> Bundle:
    """A record's first screen, and `run_text`."""
    return bundle(overview(run).html(), run_text(run))


def run_text(run: Record) -> str:
    """A record in words: its subject, headline, checks and, of a batch, a line a row."""
    rows = row_table(run).itertuples(index=False, name=None) if len(run.results) > 1 else ()
    lines = [
        f"  row {row}: {printable(files, _LONGEST_NAME)}, {count_text(tokens, 'token')}, {ended}"
        for row, files, tokens, ended, _ in rows
    ]
    first = f"{printable(run_title(run), _LONGEST_NAME)} · {subject(run)}"
    return plain("\n".join([first, headline(run), checks_verdict(run_checks(run)), *lines]))


def timeline_bundle(spans: pd.DataFrame) -> Bundle:
    """The spans of a timeline, drawn, and summed by stage: a line a phase, stage and view."""
    if spans.empty:
        return facts_bundle("Timeline", _NO_SPANS)
    drawn = element("div", figure_html(plots.plot_spans(spans)), class_="op")
    return bundle(drawn + table_html(_time_by_stage(spans)), timeline_text(spans))


def timeline_text(spans: pd.DataFrame) -> str:
    """The spans of a timeline for a terminal, summed by stage."""
    if spans.empty:
        return facts_text("Timeline", _NO_SPANS)
    return table_text(_time_by_stage(spans))


def _time_by_stage(spans: pd.DataFrame) -> pd.DataFrame:
    calls = spans.groupby(["phase", "stage", "view"], sort=False)
    table = calls.agg(
        calls=("device_ms", "size"), device_ms=("device_ms", "sum"), host_ms=("host_ms", "sum")
    )
    return table.reset_index()


def table_text(table: pd.DataFrame) -> str:
    """A table for a terminal, without its index: three digits, of a ratio three behind the point."""
    ratios = {name: _ratio_text for name in _RATIO_COLUMNS if name in table}
    return table.to_string(index=False, float_format=_float_text, formatters=ratios, na_rep="")


def _float_text(value: float) -> str:
    return digits_text(value) if math.isfinite(value) else str(value)


def _ratio_text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.3f}"


def facts_bundle(
    title: str,
    values: Mapping[str, Any],
    pictures: Sequence[tuple[Image, str]] = (),
    *,
    below: str = "",
) -> Bundle:
    """An object as a title, `facts`, and pictures with their captions; ``below`` is HTML of ours."""
    shown = element(
        "div", element("p", title, class_="op-headline"), pairs(values), class_="op op-object"
    )
    return bundle(fragment(shown, pictures_html(pictures), Html(below)), facts_text(title, values))


def facts_text(title: str, values: Mapping[str, Any]) -> str:
    """An object for a terminal: its title and, below it, its `facts`."""
    lines = [f"  {name}: {value}" for name, value in facts(values).items()]
    return plain("\n".join([title, *lines]))
