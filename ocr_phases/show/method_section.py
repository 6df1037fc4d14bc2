"""How a record was measured, as a section of its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ocr_phases.analyse.floors import ceilings_text
from ocr_phases.analyse.noise import conditions_table
from ocr_phases.record import Record
from ocr_phases.record.parts import known_entries, to_plain
from ocr_phases.show.html_table import table_html
from ocr_phases.show.section import Section
from ocr_phases.show.web import element, fold, pairs, preformatted


def _page_parts(run: Record) -> dict[str, Mapping[str, Any]]:
    """What is known of each page, under a heading with its number.

    Where the prompt had no image, it says that there is no page.
    """
    if not run.has_page:
        return {"Page": {"page": "none, because the prompt has no image"}}
    return {f"Page {number}": to_plain(page) for number, page in enumerate(run.pages, start=1)}


def method_section(run: Record) -> Section:
    """Device, versions, model, page and request, folded."""
    device = to_plain(run.device)
    device["ceilings"] = ceilings_text(run)
    device["peak memory"] = run.memory.source
    parts: dict[str, Mapping[str, Any]] = {
        "Device": device,
        "Versions": run.versions,
        "Model": to_plain(run.model),
        **_page_parts(run),
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
