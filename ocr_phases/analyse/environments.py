"""What records were measured with: a label each, and every setting that differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import pandas as pd

from ocr_phases.record import PhaseRun

#: What is measured, is told in another part, or follows from the model's name and revision.
_NO_SETTING = (
    ("device", "ceilings"),
    ("device", "conditions"),
    ("model", "config"),
    ("model", "strategy_setup"),
    ("model", "vision_setup"),
    ("request", "preset"),
    ("request", "preset_choice"),
    ("request", "strategy"),
    ("request", "vision"),
)


def run_labels(runs: Sequence[PhaseRun], paths: Iterable[str | Path] | None = None) -> list[str]:
    """A short, unique name for each record: its file's, else the settings that differ."""
    if paths is not None:
        names = [Path(path).stem for path in paths]
    else:
        settings = [
            (run.page["file"], run.model["name"], run.page.get("preset"), run.model.get("strategy"))
            for run in runs
        ]
        differs = [len(set(values)) > 1 for values in zip(*settings, strict=True)]
        shown = differs if any(differs) else [True] * len(differs)
        names = [", ".join(str(value) for value in compress(values, shown)) for values in settings]
    return [name if names.count(name) == 1 else f"{name} ({place + 1})" for place, name in enumerate(names)]


def environment_table(
    runs: Sequence[PhaseRun], labels: Sequence[str] | None = None, *, everything: bool = False
) -> pd.DataFrame:
    """What the records were measured with, columns ``part``, ``name`` and one a record; texts.

    Parts are device, versions, model, page and request. Only what differs, unless ``everything``.
    """
    names = run_labels(runs) if labels is None else list(labels)
    settings = [dict(_settings(run)) for run in runs]
    keys = dict.fromkeys(key for entries in settings for key in entries)
    rows = [(*key, *(_text(entries.get(key)) for entries in settings)) for key in keys]
    if not everything:
        rows = [row for row in rows if len(set(row[2:])) > 1]
    return pd.DataFrame(rows, columns=["part", "name", *names])


def _settings(run: PhaseRun) -> Iterator[tuple[tuple[str, str], Any]]:
    """Everything a time depends on, as ((part, name), value)."""
    page = {
        name: run.page.get(name)
        for name in ("file", "sha256", "width", "height", "preset", "grid", "image_tokens", "text_tokens")
    }
    parts = {
        "device": run.device,
        "versions": run.versions,
        "model": run.model,
        "page": page | {"pages": len(run.pages)},
        "request": run.request,
    }
    for part, values in parts.items():
        settings = {name: value for name, value in values.items() if (part, name) not in _NO_SETTING}
        for name, value in _flat(settings):
            yield (part, name), value


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "–" if value is None else str(value)
