"""Whether saving a record would overwrite a different one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli.options import settings_of
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import each_page, free_path, split_page
from ocr_phases.settings import REQUEST_SETTINGS, resolve_infer

if TYPE_CHECKING:
    from ocr_phases.record import PhaseRun

#: Settings that may differ between two records of one measurement.
_FREE = ("repeats", "warmup", "return_text", "embed_page", "verify", "ignore_eos", "eos_check_every")
_SETTINGS = [name for name in REQUEST_SETTINGS if name not in _FREE]


def add_overwrite(command: argparse.ArgumentParser) -> None:
    """``--overwrite``."""
    command.add_argument(
        "--overwrite", action="store_true", help="let --save replace a record of another measurement"
    )


def free_name(name: str) -> Path:
    """``name``, or where that is taken the first free one of ``run-2.json``, ``run-3.json`` and so on."""
    free = free_path(Path(name))
    if free != Path(name):
        print(f"{name} exists, so the record goes into {free}.", file=sys.stderr)
    return free


def what_is_lost(arguments: argparse.Namespace, target: Path, then: PhaseRun | None) -> str:
    """How ``target`` differs from an earlier record of the same measurement; empty if nothing is lost."""
    from ocr_phases.record import PhaseRun

    if not target.exists() or not target.stat().st_size:
        return ""
    try:
        there = PhaseRun.load(target)
    except OcrPhasesError:
        return "exists and is not a record"
    differs = _differs_from_asked(there, arguments) if then is None else _differs(there, then)
    return f"is a record of another {differs}" if differs else ""


def _differs_from_asked(there: PhaseRun, arguments: argparse.Namespace) -> str:
    from ocr_phases.measure.inputs.images import load_page
    from ocr_phases.measure.models.checkpoint import resolve_device
    from ocr_phases.record import describe_page

    pages = [describe_page(*load_page(page), embed=False) for page in each_page(arguments.page)]
    if [_identity(page) for page in pages] != [_identity(page) for page in there.pages]:
        return "page"
    if there.model["name"] not in (arguments.model, Path(arguments.model).resolve().name):
        return "model"
    if not resolve_device(arguments.device).startswith(str(there.device.get("kind"))):
        return "device"
    if arguments.dtype not in (None, there.model["dtype"]):
        return "dtype"
    asked = settings_of(arguments)
    infer, autocast = resolve_infer(asked.infer, asked.autocast, there.model.get("family"))
    # None means any value, except where it has the same meaning for every page.
    wanted = {**vars(asked), "infer": infer.described(), "autocast": autocast}
    wanted["preset"] = asked.preset
    known = there.request
    return next((name for name in _SETTINGS if wanted[name] not in (None, known.get(name, wanted[name]))), "")


def _differs(there: PhaseRun, then: PhaseRun) -> str:
    if [page["sha256"] for page in there.pages] != [page["sha256"] for page in then.pages]:
        return "page"
    if there.model["name"] != then.model["name"]:
        return "model"
    known, wanted = there.request, then.request
    return next((name for name in _SETTINGS if known.get(name) != wanted.get(name, known.get(name))), "")


def _identity(page: Mapping[str, Any]) -> tuple[str, str]:
    """The file's content, and which page of it."""
    return page["sha256"], split_page(page["file"])[1]
