"""How a result shows itself: HTML in a notebook's colours, text in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.sentences import checks_verdict, headline, subject
from ocr_phases.record import PhaseRun
from ocr_phases.show import html, sections
from ocr_phases.show.blocks import Html, element, fragment
from ocr_phases.show.figures import Picture
from ocr_phases.show.overlay import printable
from ocr_phases.show.plots import plot_spans
from ocr_phases.show.views import view_pictures
from ocr_phases.show.web import notebook_style
from ocr_phases.text import count_text, plain

if TYPE_CHECKING:
    from PIL.Image import Image

    from ocr_phases.inputs.packing import PageInputs

Bundle = dict[str, str]
"""What a cell shows, by MIME type."""

_LONGEST_NAME = 80
_MOST_PAGES = 4  # that a cell draws


def bundle(shown: str, text: str) -> Bundle:
    """HTML of this package with its style, and the same in words for a terminal."""
    return {"text/html": notebook_style() + shown, "text/plain": plain(text)}


def run_bundle(run: PhaseRun) -> Bundle:
    """A record: page, headline, phase bar, checks and key figures; of a batch also a line a row."""
    return bundle(sections.overview(run).html(), run_text(run))


def run_text(run: PhaseRun) -> str:
    """Subject, headline, verdict of the checks; of a batch also a line a row."""
    table = html.row_table(run) if len(run.results) > 1 else pd.DataFrame()
    rows = [
        f"  row {row}: {printable(files, _LONGEST_NAME)}, {count_text(tokens, 'token')}, {ended}"
        for row, files, tokens, ended, *_ in table.itertuples(index=False, name=None)
    ]
    name = printable(html.run_title(run), _LONGEST_NAME)
    return "\n".join([f"{name} · {subject(run)}", headline(run), checks_verdict(run_checks(run)), *rows])


def timeline_bundle(spans: pd.DataFrame) -> Bundle:
    """The spans of a timeline, drawn, and summed by stage: a line a phase, stage and view."""
    if spans.empty:
        return facts_bundle("Timeline", {"spans": "none yet"})
    calls = spans.groupby(["phase", "stage", "view"], sort=False)
    table = calls.agg(calls=("device_ms", "size"), device_ms=("device_ms", "sum"), host_ms=("host_ms", "sum"))
    drawn = Picture(plot_spans(spans), "The spans over time").html()
    words = table.to_string(float_format="{:,.3f}".format)
    return bundle(element("div", Html(drawn), class_="op") + html.table_html(table.reset_index()), words)


def facts_bundle(
    title: str, facts: Mapping[str, object], pictures: Sequence[tuple[Image, str]] = (), *, below: str = ""
) -> Bundle:
    """An object as a title, facts by name, and pictures with their captions; ``below`` is HTML of ours."""
    rows = [fragment(element("dt", name), element("dd", value)) for name, value in facts.items()]
    shown = element(
        "div",
        element("p", title, class_="op-headline"),
        element("dl", *rows, class_="op-pairs"),
        class_="op op-object",
    )
    drawn = html.pictures_html(pictures) if pictures else ""
    lines = [title, *(f"  {name}: {value}" for name, value in facts.items())]
    return bundle(shown + drawn + below, "\n".join(lines))


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
