"""Whether saving a record would take the place of another one."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import split_page
from ocr_phases.record import PhaseRun, describe_page

_SETTINGS = ("prompt", "preset", "max_new_tokens", "seed", "strategy", "vision")


def free_name(name: str) -> Path:
    """``name``, or where that is taken the first free one of ``run-2.json``, ``run-3.json`` and so on."""
    path = Path(name)
    if not os.path.lexists(path):
        return path
    free = next(
        found
        for number in itertools.count(2)
        if not os.path.lexists(found := path.with_name(f"{path.stem}-{number}{path.suffix}"))
    )
    print(f"{name} is there already, so the record goes into {free}.", file=sys.stderr)
    return free


def what_is_lost(arguments: argparse.Namespace, target: Path, then: PhaseRun | None) -> str:
    """What ``target`` holds that is no earlier measurement of the same; empty where nothing is lost."""
    if not target.exists() or not target.stat().st_size:
        return ""
    try:
        there = PhaseRun.load(target)
    except OcrPhasesError:
        return "is there and is no record"
    differs = _differs_from_asked(there, arguments) if then is None else _differs(there, then)
    return f"is a record of another {differs}" if differs else ""


def _differs_from_asked(there: PhaseRun, arguments: argparse.Namespace) -> str:
    from ocr_phases.measure.inputs.images import load_page
    from ocr_phases.measure.models.checkpoint import resolve_device

    page = describe_page(*load_page(arguments.page), embed=False)
    if page["sha256"] != there.page["sha256"] or _number(page["file"]) != _number(there.page["file"]):
        return "page"
    if there.model["name"] not in (arguments.model, Path(arguments.model).resolve().name):
        return "model"
    if not resolve_device(arguments.device).startswith(str(there.device.get("kind"))):
        return "device"
    if arguments.dtype not in (None, there.model["dtype"]):
        return "dtype"
    for name in _SETTINGS:
        asked = getattr(arguments, name)
        left_open = name == "preset" and asked in (None, "auto")
        if not left_open and asked != there.request[name]:
            return name
    return ""


def _differs(there: PhaseRun, then: PhaseRun) -> str:
    if [page["sha256"] for page in there.pages] != [page["sha256"] for page in then.pages]:
        return "page"
    if there.model["name"] != then.model["name"]:
        return "model"
    return next((name for name in _SETTINGS if there.request[name] != then.request[name]), "")


def _number(file: str) -> str:
    return split_page(file)[1]
