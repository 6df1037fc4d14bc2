"""A record as the parts of its report, each a few fragments and figures: for a cell, a panel and a terminal.

What is called in a cell shows itself; `Section.html` is the same as one string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ocr_phases.analyse.checks import EXPECTATIONS, Verdict, run_checks, worst_verdict
from ocr_phases.analyse.floors import ceilings_text, floor_table, why_no_floor
from ocr_phases.analyse.kernels import (
    has_kernels,
    host_syncs,
    kernel_table,
    kv_cache_share,
    short_kernel,
    stage_verdict,
    top_kernels,
)
from ocr_phases.analyse.noise import conditions_table
from ocr_phases.analyse.sentences import (
    checks_verdict,
    findings,
    headline,
    kernel_account,
    key_metrics,
    limit_sentence,
    noise_warning,
    subject,
    uncertain_sentence,
)
from ocr_phases.analyse.stages import repeat_table, spread_names, stage_table, step_table
from ocr_phases.record import PhaseRun
from ocr_phases.show import plots
from ocr_phases.show.figures import Picture
from ocr_phases.show.page import (
    has_region_times,
    page_html,
    plot_region_types,
    printable,
    region_tables_html,
    shown_rows,
    view_pictures,
)
from ocr_phases.show.web import (
    MISSING,
    Html,
    badge,
    block,
    element,
    fold,
    fragment,
    image_html,
    note,
    notebook_style,
    pairs,
    pictures_html,
    preformatted,
    section_heading,
    share_bar,
    table_html,
)
from ocr_phases.text import bytes_text, count_text, ms_text, percent_text, plain, stage_name

if TYPE_CHECKING:
    from PIL.Image import Image

    from ocr_phases.inputs.packing import PageInputs

Bundle = dict[str, str]
"""What a cell shows, by MIME type."""

_FIRST_CARDS = 4  # of the first screen
_LONG_TEXT = 1_200
_SHORT_TEXT = 60
_LONGEST_NAME = 80
_MOST_PAGES = 4  # that a cell draws
_SLOWEST = 8
_TOP_KERNELS = 12
_INDENT = "\N{NO-BREAK SPACE}" * 4
_CONDITIONS = {
    "cpu_s": ("CPU of this program", "s"),
    "other_threads_s": ("other threads (panel, cells)", "s"),
    "waited_s": ("waited for a core", "s"),
    "others": ("other programs", "%"),
    "steal": ("stolen by a hypervisor", "%"),
    "load_start": ("load at the start", ""),
    "load_end": ("load at the end", ""),
}
_KERNELS = {
    "busy_ms": ("GPU busy", "ms"),
    "wall_ms": ("time", "ms"),
    "works": ("busy", "%"),
    "device_us": ("time", "µs"),
    "wait_ms": ("waited", "ms"),
    "through": ("call", ""),
    "of_busy": ("of GPU busy time", "%"),
    "of_wall": ("of the phase", "%"),
    "by": ("identified by", ""),
}
_CACHE_PARTS = {"kv_update": "KV cache, write", "attention": "KV cache, read (attention)"}
_FLOORS = ("stage", "device_ms", "floor_ms", "times_floor", "bound_by", "mfu", "mbu", "gflop", "bytes")
_WHOLES = {"prefill": "whole prefill", "decode_step": "whole decode step"}


class Section:
    """HTML fragments and pictures in their order; empty ones are left out."""

    def __init__(self, *parts: str | Picture) -> None:
        self.parts = [part for part in parts if part]

    def html(self) -> str:
        """All of it as one fragment."""
        return "".join(part if isinstance(part, str) else part.html() for part in self.parts)

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        for part in self.parts:
            display(HTML(part) if isinstance(part, str) else part)


def style() -> Section:
    """The look of all sections in JupyterLab; a report brings its own."""
    return Section(notebook_style())


# -- the first screen ---------------------------------------------------------------------------------


def overview(run: PhaseRun) -> Section:
    """The first screen: the page, headline, limit, phases, checks and four figures; then the rest, folded."""
    figures = key_metrics(run)
    folded = block("cards", figures=figures[_FIRST_CARDS:]), lines_html(findings(run))
    more = fold("Further figures and findings", *folded)
    shown = fold("Each row", table_html(row_table(run))) if len(run.results) > 1 else ""
    return Section(head_html(run), block("cards", figures=figures[:_FIRST_CARDS]), more, shown)


def cards(run: PhaseRun) -> Section:
    """The key figures."""
    return Section(block("cards", figures=key_metrics(run)))


def head_html(
    run: PhaseRun,
    title: str = "",
    said: Sequence[str] | None = None,
    about: str = "",
    *,
    picture: bool = True,
) -> Html:
    """The head of a report: the page's thumbnail (if the record has it), headline, limit, phases and checks.

    ``said`` are sentences in place of these, the headline first and the others folded; ``about`` replaces the
    line that says of what it is.
    """
    page = run.page_image() if picture else None
    if said is None:
        below = phase_bar(run) + status_html(run)
    else:
        below = fold("Further findings", lines_html(said[1:])) if said[1:] else fragment()
    return block(
        "head",
        picture="" if page is None else image_html(page, "The page", width=180),
        title=title or run_title(run),
        about=about or subject(run),
        headline=headline(run) if said is None else said[0],
        lead=limit_sentence(run) if said is None else "",
        below=below,
    )


def status_html(run: PhaseRun) -> Html:
    """The checks' verdict as a badge and a sentence; what made a record noisy is folded below."""
    checks, noise = run_checks(run), noise_warning(run)
    status = element("p", badge(worst_verdict(checks)), " ", checks_verdict(checks), class_="op-status")
    return status + (fold("what was busy", element("p", noise), classes="op-why") if noise else fragment())


def lines_html(sentences: Sequence[str]) -> Html:
    """Sentences, a line each."""
    return element("ul", *(element("li", sentence) for sentence in sentences), class_="op op-findings")


def phase_bar(run: PhaseRun) -> Html:
    """Time by phase, vision separate from the rest of the prefill."""
    vision = run["vision_ms"] or 0.0
    parts = {
        "prepare": run["prepare_ms"],
        "vision": vision,
        "rest of the prefill": max((run["prefill_ms"] or 0.0) - vision, 0.0),
        "decode": run["decode_ms"] if run["prefill_ms"] is not None else None,
        "generate()": run["generate_ms"],
    }
    return share_bar([(label, ms or 0.0, ms_text(ms)) for label, ms in parts.items()])


def run_title(run: PhaseRun) -> str:
    """The page's file; for several pages the first and the number of others."""
    name, more = str(run.page["file"]), len(run.pages) - 1
    return f"{name} and {count_text(more, 'more page')}" if more else name


def row_table(run: PhaseRun) -> pd.DataFrame:
    """One line per row of a batch: files, tokens, finish and the beginning of its text."""
    rows = []
    for row, result in enumerate(run.results):
        files = ", ".join(str(page["file"]) for page in run.pages if page["row"] == row)
        ended = "end token" if result.get("finish_reason") == "eos" else "token limit"
        rows.append((row, files, len(result["ids"]), ended, printable(result["text"] or "", _SHORT_TEXT)))
    return pd.DataFrame(rows, columns=["row", "file", "tokens", "end", "text"])


# -- time ---------------------------------------------------------------------------------------------


def stages(run: PhaseRun) -> Section:
    """Each phase with its stages, whole phases in bold and stages of a decode step indented; each repeat."""
    table = stage_table(run)
    whole = table["stage"] == table["phase"]
    inside = (table["phase"] == "decode") & ~whole & (table["stage"] != "decode_step")
    names = table["stage"].map(stage_name)
    table["stage"] = names.mask(whole, "whole phase").mask(inside, _INDENT + names)
    spread = ["device_ms_p10", "device_ms_p90"] if len(run.repeats) == 1 else []
    table = table.drop(columns=[*spread, *([] if table["view"].any() else ["view"])])
    shown = timed_table(run, table, "Time of each phase and its stages", strong=whole)
    repeats = repeat_table(run).dropna(axis="columns", how="all")
    repeats["repeat"] = range(1, len(repeats) + 1)  # a person counts from one
    repeats = repeats if repeats["steps"].any() else repeats.drop(columns="steps")
    return Section(shown, table_html(repeats, caption="Time of each repeat"))


def timed_table(run: PhaseRun, table: pd.DataFrame, caption: str, time: str = "device", **given: Any) -> Html:
    """A table of medians over repeats with their spread; without a device clock there is one time."""
    low, high = spread_names(len(run.repeats))
    headings = {"device_ms": (time, "ms"), "device_ms_p10": (low, "ms"), "device_ms_p90": (high, "ms")}
    if run.device.get("kind") != "cuda":
        table = table.drop(columns="host_ms", errors="ignore")
        headings["device_ms"] = (time.replace("device", "time"), "ms")
    return table_html(table, caption=caption, headings=headings | given.pop("headings", {}), **given)


def latency(run: PhaseRun) -> Section:
    """Every decode step over its floor, and the slowest steps."""
    drawn = Picture(plots.plot_latency(run), "Time of each decode step")
    slowest = step_table(run).nlargest(_SLOWEST, "device_ms")
    if slowest.empty:
        return Section(drawn)
    slowest["index"] += 1  # a person counts tokens from one
    columns = ["step", "index", "text", "cache_len", "device_ms", "device_ms_p10", "device_ms_p90", "host_ms"]
    headings = {"index": ("token", ""), "text": ("text", "")}
    caption = f"The {len(slowest)} slowest steps"
    return Section(drawn, timed_table(run, slowest[columns], caption, "median", headings=headings))


def vision(run: PhaseRun) -> Section:
    """The prefill's stages, global and local views apart."""
    return Section(Picture(plots.plot_vision_stages(run), "Stages of the prefill, with their share of it"))


def floors(run: PhaseRun) -> Section:
    """Each stage beside its floor, or the reason why there is none."""
    reason = why_no_floor(run)
    if reason is not None:
        return Section(note(reason))
    table = floor_table(run).dropna(subset=["device_ms"])
    whole = table["stage"].isin(_WHOLES)
    names = (table["stage"].map(stage_name) + " " + table["view"]).str.strip()
    names = names.mask(table["phase"] == "decode", "decode: " + names)
    table["stage"] = names.mask(whole, table["stage"].map(_WHOLES))
    table["gflop"] = table["flops"] / 1e9
    shown = timed_table(
        run,
        table[list(_FLOORS)],
        "Time and floor of each stage",
        strong=whole,
        headings={"bytes": ("read", "bytes")},
        missing="no floor is known for the stage",
    )
    roofline = Picture(plots.plot_roofline(run), "Roofline: arithmetic done over arithmetic intensity")
    return Section(shown, note(f"Ceilings: {ceilings_text(run)}."), roofline)


def timeline(run: PhaseRun) -> Section:
    """One repeat from its start."""
    return Section(Picture(plots.plot_phase_timeline(run), "Phases and stages of one repeat over time"))


def memory(run: PhaseRun) -> Section:
    """Peak memory and the KV cache."""
    return Section(Picture(plots.plot_memory(run), "Peak memory of each phase and growth of the KV cache"))


def kernels(run: PhaseRun) -> Section:
    """What limits each stage by the kernel view, under its own heading; empty without one.

    Decode's figures are per profiled step. A view that failed gives its error.
    """
    if run.kernels is None:
        return Section()
    head = section_heading("Kernels"), note(kernel_account(run))
    if not has_kernels(run):
        return Section(*head)
    keys = ["phase", "stage", "view"]
    table = kernel_table(run).merge(stage_verdict(run)[[*keys, "verdict"]], on=keys)
    table["works"] = table["busy_ms"] / table["wall_ms"]
    whole = table["stage"].isin(("prefill", "decode_step"))
    table["stage"] = table["stage"].map(stage_name).mask(table["stage"] == table["phase"], "whole phase")
    keys = keys if table["view"].any() else keys[:2]
    tool, steps = run.kernels["tool"], run.kernels["steps"]
    told = table_html(
        table[[*keys, "verdict", "kernels", "launches", "busy_ms", "wall_ms", "works"]],
        caption=f"From one more run under {tool} with {steps} decode steps; decode is per profiled step.",
        headings=_KERNELS,
        strong=whole,
    )
    busy = Picture(plots.plot_kernels(run), "GPU busy time of each stage")
    gaps = Picture(plots.plot_idle_gaps(run), "Idle time by length of the gap and by cause")
    return Section(*head, told, busy, gaps, *_kernel_details(run))


def _kernel_details(run: PhaseRun) -> Iterable[Html]:
    """The KV cache's share, host syncs and longest kernels, as folded tables."""
    shares = kv_cache_share(run)
    attention = set(shares.loc[shares["part"] == "attention", "phase"])
    stages = set(kernel_table(run)[["phase", "stage"]].itertuples(index=False, name=None))
    shown = (("prefill", "language_model"), ("decode", "decode_step"))
    hidden = [phase for phase, stage in shown if (phase, stage) in stages and phase not in attention]
    caption = "Share of each phase."
    if hidden:
        caption += f" Attention in {' and '.join(hidden)} is n/a: a captured graph does not name its kernels."
    shares = shares.assign(part=shares["part"].map(_CACHE_PARTS))
    yield fold("Share of the KV cache", table_html(shares, caption=caption, headings=_KERNELS))
    waits = host_syncs(run)
    each = waits.loc[waits["phase"] == "decode", "count"].sum()
    waits = waits.assign(stage=waits["stage"].map(stage_name), operator=waits["operator"].replace("", "none"))
    caption = "Each host sync beyond the EOS check stops the host from launching ahead."
    yield fold(f"Host syncs: {each:g} per step", table_html(waits, caption=caption, headings=_KERNELS))
    for phase, name in (("prefill", "the prefill"), ("decode", "a decode step")):
        table = top_kernels(run, phase)
        if len(table):
            yield fold(f"Longest kernels of {name}", _longest(table))


def _longest(table: pd.DataFrame) -> Html:
    """The longest kernels over all stages of a phase."""
    busy_ms = float(table["device_ms"].sum())
    named = table[table["kernel"] != ""].nlargest(_TOP_KERNELS, "device_ms")
    shown = named[["stage", "count"]].assign(
        stage=named["stage"].map(stage_name),
        device_us=named["device_ms"] * 1e3,
        share=named["device_ms"] / busy_ms,
        kernel=named["kernel"].map(short_kernel),
    )
    together = percent_text(float(named["device_ms"].sum()) / busy_ms)
    return table_html(shown, caption=f"Together {together} of GPU busy time.", headings=_KERNELS)


# -- the page and its text ----------------------------------------------------------------------------


def page(run: PhaseRun) -> Section:
    """The page with its boxes, and the decode time of each region and type of region."""
    types = [part for row in shown_rows(run) for part in region_types(run, row).parts]
    return Section(page_html(run), *types, region_tables_html(run))


def region_types(run: PhaseRun, row: int) -> Section:
    """Decode time by type of region in one row of a batch; nothing where no region has a time."""
    if not has_region_times(run, row):
        return Section()
    return Section(Picture(plot_region_types(run, row), "Decode time by type of region"))


def text_notes(run: PhaseRun) -> Section:
    """What speaks against relying on the text, and the compression ratio."""
    figures = run.summary()
    if figures["generated_compression_ratio"] is None:
        return Section(note(uncertain_sentence(run)))
    ratio = (
        f"{figures['tokens']:,} generated tokens from {figures['valid_image_tokens']:,} valid image tokens: "
        f"a compression ratio of {figures['generated_compression_ratio']:.2f}."
    )
    if figures["compression_ratio"] is not None:
        ratio += (
            f" The vendor counts the text tokenised again: {figures['text_tokens']:,} tokens, "
            f"a ratio of {figures['compression_ratio']:.2f}."
        )
    return Section(note(uncertain_sentence(run)), note(ratio))


def text(run: PhaseRun) -> Section:
    """The generated text of each row; a long one starts folded."""
    rows = []
    for row, result in enumerate(run.results):
        name = "The text as the model wrote it" if len(run.results) == 1 else f"Text of row {row}"
        rows.append(text_html(result["text"], name))
    return Section(*text_notes(run).parts, *rows)


def text_html(text: str | None, name: str = "The text as the model wrote it") -> Html:
    """Model text in a block that scrolls."""
    if text is None:
        return note("This record has no text (return_text=False).")
    return fold(f"{name} ({len(text):,} characters)", preformatted(text), opened=len(text) <= _LONG_TEXT)


def quality(run: PhaseRun) -> Section:
    """The text against its truth, under a heading of its own; empty for a record without one."""
    if run.truths is None:
        return Section()
    from ocr_phases.show.quality import quality_html

    return Section(quality_html(run))


# -- trust --------------------------------------------------------------------------------------------


def checks(run: PhaseRun) -> Section:
    """The verification checklist."""
    return Section(checks_html(run_checks(run)))


def checks_html(checks: Iterable[Verdict]) -> Html:
    """Checks as a table, verdicts in words and colour, with foldable reason and remedy.

    The expectations, which never fail, are folded below.
    """
    checks = list(checks)
    expected = [check for check in checks if check.name in EXPECTATIONS]
    rules = _checks_table(
        [check for check in checks if check.name not in EXPECTATIONS],
        "Expected and measured value of each check",
    )
    if not expected:
        return rules
    within = sum(check.measured.startswith("in range") for check in expected)
    known = sum(check.verdict != "n/a" for check in expected)
    summary = f"Rules of thumb for the full model on a GPU: {within} of {known} in range"
    return rules + fold(summary, _checks_table(expected, "Usual and measured value"))


def _checks_table(checks: Sequence[Verdict], caption: str) -> Html:
    """Reason and remedy of a failed or noisy check are unfolded."""
    rows = []
    for check in checks:
        urgent = check.verdict in ("fail", "noisy")
        reasons = element("p", check.why), element("p", check.fix)
        advice = fold("reason and remedy", *reasons, opened=urgent, classes="op-why") if check.why else ""
        measured = fragment(check.measured or "–", advice)
        rows.append(
            (check.label.removeprefix("expected "), badge(check.verdict), check.expected or "–", measured)
        )
    table = pd.DataFrame(rows, columns=["check", "verdict", "expected", "measured"], dtype=object)
    return table_html(table, caption=caption, classes="op-checks")


def verification(run: PhaseRun) -> Section:
    """The head of a report on the checks alone."""
    return Section(head_html(run, f"Verification: {run.page['file']}", [checks_verdict(run_checks(run))]))


def references(rows: Sequence[Mapping[str, Any]] | None) -> Section:
    """Source lines of the measured code; None if unknown, as for a loaded record."""
    if rows is None:
        return Section(note("Records do not contain source lines; verify shows them when it measures."))
    columns = ["what", "file", "line", "version", "symbol"]
    table = pd.DataFrame(rows, columns=columns).astype({"line": "Int64"})
    return Section(table_html(table, caption="Source lines of the measured code", classes="op-paths"))


def method(run: PhaseRun) -> Section:
    """Device, versions, model, page and request, folded."""
    many = len(run.pages) > 1
    parts: dict[str, Mapping[str, Any]] = {
        "Device": {**_without(run.device, "conditions"), "ceilings": ceilings_text(run)},
        "Memory": {"peaks from": run.memory.get("source"), "weights_bytes": run.memory.get("weights_bytes")},
        "Versions": run.versions,
        "Model": _without(run.model, "config"),
        **{
            f"Page {number + 1}" if many else "Page": _without(page, "data")
            for number, page in enumerate(run.pages)
        },
        "Request": run.request,
    }
    blocks = [element("h3", title) + pairs(dict(_facts(values))) for title, values in parts.items()]
    conditions = conditions_table(run).dropna(axis="columns", how="all")
    if len(conditions):
        conditions["repeat"] += 1
        blocks.append(table_html(conditions, caption="The machine during each repeat", headings=_CONDITIONS))
    config = json.dumps(run.model.get("config"), indent=2, ensure_ascii=False, default=str)
    blocks.append(fold("The model's configuration", preformatted(config), classes="op-fold"))
    return Section(fold("Device, versions, model and request", *blocks))


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def _facts(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        yield str(key).replace("_", " ").removesuffix(" bytes"), _fact(str(key), value)


def _fact(key: str, value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return bytes_text(value) if key.endswith("_bytes") else f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{inner} {_fact(str(inner), item)}" for inner, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_fact(key, item) for item in value)
    return str(value)


# -- what a cell shows --------------------------------------------------------------------------------


def bundle(shown: str, text: str) -> Bundle:
    """HTML of this package with its style, and the same in words for a terminal."""
    return {"text/html": str(notebook_style()) + str(shown), "text/plain": plain(text)}


def run_bundle(run: PhaseRun) -> Bundle:
    """A record's first screen; in words its subject, headline, checks and, of a batch, a line a row."""
    rows = row_table(run).itertuples(index=False, name=None) if len(run.results) > 1 else ()
    lines = [
        f"  row {row}: {printable(files, _LONGEST_NAME)}, {count_text(tokens, 'token')}, {ended}"
        for row, files, tokens, ended, _ in rows
    ]
    name = printable(run_title(run), _LONGEST_NAME)
    text = [f"{name} · {subject(run)}", headline(run), checks_verdict(run_checks(run)), *lines]
    return bundle(overview(run).html(), "\n".join(text))


def timeline_bundle(spans: pd.DataFrame) -> Bundle:
    """The spans of a timeline, drawn, and summed by stage: a line a phase, stage and view."""
    if spans.empty:
        return facts_bundle("Timeline", {"spans": "none yet"})
    calls = spans.groupby(["phase", "stage", "view"], sort=False)
    table = calls.agg(calls=("device_ms", "size"), device_ms=("device_ms", "sum"), host_ms=("host_ms", "sum"))
    drawn = element("div", Picture(plots.plot_spans(spans), "The spans over time").html(), class_="op")
    return bundle(drawn + table_html(table.reset_index()), table.to_string(float_format="{:,.3f}".format))


def facts_bundle(
    title: str, facts: Mapping[str, object], pictures: Sequence[tuple[Image, str]] = (), *, below: str = ""
) -> Bundle:
    """An object as a title, facts by name, and pictures with their captions; ``below`` is HTML of ours."""
    shown = element("div", element("p", title, class_="op-headline"), pairs(facts), class_="op op-object")
    lines = [title, *(f"  {name}: {value}" for name, value in facts.items())]
    return bundle(fragment(shown, pictures_html(pictures), Html(below)), "\n".join(lines))


def inputs_bundle(inputs: PageInputs) -> Bundle:
    """A batch ready for the model: its prompts and counts of tokens, and the views of its first pages."""
    facts: dict[str, object] = {
        "prompt": ", ".join(dict.fromkeys(map(repr, inputs.prompts))),
        "rows": inputs.batch_size,
        "tokens of a row": f"{inputs.prefill_len:,}",
    }
    for what, counts in (("image tokens", inputs.image_tokens), ("text tokens", inputs.text_tokens)):
        one = counts[:1] if len(set(counts)) == 1 else counts  # where all rows have it
        facts[what] = ", ".join(f"{count:,}" for count in one)
    pictures = [picture for views in inputs.views[:_MOST_PAGES] for picture in view_pictures(views)]
    if len(inputs.views) > _MOST_PAGES:
        facts["pages"] = f"{len(inputs.views)}, of which {_MOST_PAGES} are shown"
    return facts_bundle("Inputs, ready for the model", facts, pictures)
