"""What a person may ask for: the fields of the form as plain values, and the measurements they
mean.
"""

from __future__ import annotations

import ctypes.util
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.errors import OcrPhasesError
from ocr_phases.explorer.records import found, placed
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, PRESET_NAMES, PROCESSOR
from ocr_phases.families.config import family_of_config
from ocr_phases.files import PAGE_SUFFIXES, each_page
from ocr_phases.measure.request import recorded_settings
from ocr_phases.models.dummies import dummy_family
from ocr_phases.models.host import host_name
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import (
    FAMILY_NAMES,
    NEW_TOKENS,
    Settings,
    choices,
    help_text,
    kind,
    setting_from_text,
)
from ocr_phases.show.web import printable
from ocr_phases.versions import asset

if TYPE_CHECKING:
    from PIL.Image import Image

#: Settings with no field: the panel looks for the end token after every step, a record without
#: phases or text has little to show, remote code is asked for by name in code, and a trace is a
#: file.
LEFT_OUT = (
    *("eos_check_every", "generate", "return_text", "kernel_trace", "kernel_steps"),
    *("implementation", "trust_remote_code", "attention", "cuda_calls"),
)
_SETTINGS = [setting for setting in fields(Settings) if setting.name not in LEFT_OUT]
_MODELS = ("tiny", "dummy", *(f"dummy:{name}" for name in [*FAMILIES][1:]))
#: Choices of settings that take any text too; `locate` wants words of one's own.
_OWN = {
    "model": _MODELS,
    "prompt": [name for name in FAMILIES[DEEPSEEK_OCR].prompts if name != "locate"],
    "device": ("auto", "cpu", "cuda"),
}
#: The strategies that are offered for a model which runs only eagerly.
EAGER_ONLY = {"strategy": ("eager",), "vision": ("eager",)}
_NEEDS_CUDA = ("cuda_graph", "captured", "cuda")
#: So many repeats that two records can be judged; a number of tokens, because a field cannot be
#: empty.
_USUAL = {"repeats": LEAST_REPEATS, "max_new_tokens": NEW_TOKENS}


#: A page on offer: the path of a file, or its contents and its name.
Page = tuple[str | bytes, str | None]


@dataclass(frozen=True)
class Asked:
    """A page as `run_inference` takes it, the name of an upload, and how to measure it."""

    page: str | bytes
    page_name: str | None
    settings: Settings

    def cells(self) -> dict[str, Any]:
        """Its row in the table of records, until there is one."""
        page, settings = printable(self.page_name or Path(str(self.page)).name, 60), self.settings
        cells = {"page": page, "model": settings.model, "preset": settings.preset or "default"}
        return {**cells, "strategy": settings.strategy, "steps": "waiting"}

    def code(self) -> str:
        """The lines that measure the same in a cell."""
        usual, page = vars(Settings()), self.page if isinstance(self.page, str) else self.page_name

        def given(values: Mapping[str, Any]) -> list[str]:
            return [f"{name}={value!r}" for name, value in values.items() if value != usual[name]]

        loaded = ", ".join(given(self.settings.of_model()))
        run = ", ".join([repr(page), *given(self.settings.of_run())])
        return (
            "from ocr_phases import OCRSession\n"
            f"session = OCRSession.load({loaded})\nrun = session.run_inference({run})"
        )


def asked_again(run: PhaseRun) -> Asked | None:
    """A record's measurement once more; None where its page or model cannot be had again here."""
    page, model = run.page_data() if len(run.pages) == 1 else None, run.model
    here = str(model.name).split(":")[0] in ("tiny", "dummy")
    if page is None or not (here or os.path.isdir(str(model.source))):  # noqa: PTH112
        return None
    given = recorded_settings(run)
    given["model"] = model.name if here else model.source
    given["dtype"] = model.dtype
    return Asked(page, run.page.file, Settings(**given))


def measured_here(run: PhaseRun) -> bool:
    """Whether a new measurement runs where the record was measured: on its server, or on this
    machine, as far as the names of its processors tell.
    """
    if run.is_server:
        return True
    if run.device.kind == "cuda" and not has_cuda():
        return False
    return (run.device.host or run.device.name) == host_name()


def pages_at(text: str) -> dict[str, Page]:
    """A file, or all pages of a folder, by their names; raises `OcrPhasesError` for a folder
    without pages.
    """
    path = found(text)
    paths = [path]
    if path.is_dir():
        paths = sorted(each for each in path.iterdir() if each.suffix.lower() in PAGE_SUFFIXES)
        if not paths:
            raise OcrPhasesError(
                f"There is no page in {path}: name a folder of images, or one file."
            )
    return {each.name: (str(each), None) for each in paths}


@functools.cache
def has_cuda() -> bool:
    """Whether there is a CUDA driver, asked without torch."""
    return ctypes.util.find_library("cuda") is not None


def presets_of(model: str) -> tuple[str, ...]:
    """The presets that a model by this name can have.

    A model of no known family has ``processor`` alone: its own processor cuts the page. Where
    nothing tells the family, all presets are offered.
    """
    if model == "tiny":
        return tuple(FAMILIES[DEEPSEEK_OCR].presets)
    if model == "dummy" or model.startswith("dummy:"):
        return _presets_of_dummy(model)
    try:
        config = json.loads((placed(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return PRESET_NAMES
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        return PRESET_NAMES
    return _presets_of_config(config)


def _presets_of_dummy(model: str) -> tuple[str, ...]:
    """Those of ``dummy``, ``dummy:FAMILY``, ``dummy:layers=2,...``, or of any other class."""
    first = model.partition(":")[2].partition(",")[0]
    if first and first not in FAMILIES and "=" not in first:
        return (PROCESSOR,)
    return tuple(dummy_family(model).presets)


def _presets_of_config(config: dict[str, Any]) -> tuple[str, ...]:
    """Those of the families that a ``config.json`` may be of, since two may share a class."""
    model_type = config["model_type"]
    known = [
        facts
        for facts in FAMILIES.values()
        if model_type in (facts.config["model_type"], facts.saved_type)
    ]
    if not known:
        try:
            known = [family_of_config(config)]
        except OcrPhasesError:
            return (PROCESSOR,)
    return tuple(dict.fromkeys(name for facts in known for name in facts.presets))


def runs_only_eagerly(model: str) -> bool:
    """Whether nothing of a model by this name can be captured or compiled: it has no known
    family.
    """
    return presets_of(model) == (PROCESSOR,)


class Form:
    """The pages on offer, the fields that the browser draws, and the measurements that their values
    mean.
    """

    def __init__(self) -> None:
        samples = sorted(
            asset("data", "pages").glob("*.png"), key=lambda path: path.stem != "receipt"
        )
        self.pages: dict[str, Page] = {path.stem: (str(path), None) for path in samples}

    def offer(self, pages: Mapping[str, Page]) -> None:
        """Offer pages, before those that are on offer."""
        others = {name: page for name, page in self.pages.items() if name not in pages}
        self.pages = {**pages, **others}

    def values(self, model: str) -> dict[str, Any]:
        """What the fields hold at first."""
        usual = {
            each.name: "" if each.default is None else each.default for each in _SETTINGS
        } | _USUAL
        return usual | {"model": model, "pages": [*self.pages][:1], "presets": []}

    def fields(self, model: str) -> list[dict[str, Any]]:
        """What the browser draws: what the model can do and this machine has, and nothing else."""
        presets = presets_of(model)
        own = {**_OWN, "model": (model, *_MODELS), "preset": presets, "family": FAMILY_NAMES}
        if runs_only_eagerly(model):
            own.update(EAGER_ONLY)
        many: dict[str, Any] = {"pages": [*self.pages], "presets": presets}
        listed = [{"name": name, "kind": "many", "options": each} for name, each in many.items()]
        for setting in _SETTINGS:
            known = own.get(setting.name, choices(setting))
            if kind(setting) == "bool" and setting.default is None:
                known = ("true", "false")
            options = [
                each for each in dict.fromkeys(known) if has_cuda() or each not in _NEEDS_CUDA
            ]
            options = ["", *options] if options and setting.default is None else options
            field = {"name": setting.name, "kind": kind(setting), "help": help_text(setting)}
            listed.append({**field, "options": options, "own": setting.name in _OWN})
        return listed

    def jobs(self, values: Mapping[str, Any]) -> list[Asked]:
        """Every chosen page with every chosen preset; `OcrPhasesError` for a missing or wrong
        setting.
        """
        if not values["pages"]:
            raise OcrPhasesError("No page chosen yet: choose one or more.")
        given = {}
        for setting in _SETTINGS:
            name, value = setting.name, values[setting.name]
            if isinstance(value, str) and (value := value.strip()):
                value = setting_from_text(name, value)
            if value == "" and setting.default is not None:
                raise OcrPhasesError(f"No {name} chosen: type one, or choose one from the list.")
            if value != "":  # which leaves a setting to the model or the device
                given[name] = value
        presets = dict.fromkeys([given.pop("preset", None), *values["presets"]])
        settings = [Settings(**given, preset=preset) for preset in presets]
        pages = map(self.pages.__getitem__, values["pages"])
        return [Asked(page, name, one) for page, name in pages for one in settings]


def first_image(page: str | bytes, name: str | None) -> Image:
    """The page, or the first of several of a file; `OcrPhasesError` where it cannot be read."""
    from ocr_phases.images import load_page  # of the measuring half: only now

    return load_page(each_page(page)[0] if isinstance(page, str) else page, name or "image")[0]
