"""What a person may ask for: the fields of the form as plain values, and the measurements they
mean.
"""

from __future__ import annotations

import ctypes.util
import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.errors import OcrPhasesError
from ocr_phases.explorer.paths import existing_path, project_path
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
    FormGroup,
    Settings,
    choices,
    form_group,
    form_label,
    full_help_text,
    kind,
    setting_from_text,
)
from ocr_phases.show.web import printable
from ocr_phases.versions import asset

if TYPE_CHECKING:
    from PIL.Image import Image

_SETTINGS = [setting for setting in fields(Settings) if form_group(setting) is not None]
_OTHER_FAMILIES = [name for name in FAMILIES if name != DEEPSEEK_OCR]  # whose model is "dummy"
_MODELS = ("tiny", "dummy", *(f"dummy:{name}" for name in _OTHER_FAMILIES))
#: Choices of settings that take any text too; `locate` wants words of one's own.
_SUGGESTIONS: dict[str, tuple[str, ...]] = {
    "model": _MODELS,
    "prompt": tuple(name for name in FAMILIES[DEEPSEEK_OCR].prompts if name != "locate"),
    "device": ("auto", "cpu", "cuda"),
}
#: The strategies that are offered for a model which runs only eagerly.
EAGER_ONLY = {"strategy": ("eager",), "vision": ("eager",)}
_NEEDS_CUDA = ("cuda_graph", "captured", "cuda")
#: What the form has in place of defaults: so many repeats that two records can be judged, and a
#: number of tokens, because a field cannot be empty.
_FIRST_VALUES = {"repeats": LEAST_REPEATS, "max_new_tokens": NEW_TOKENS}


class OfferedPage(NamedTuple):
    """A page on offer: the path of a file, or the contents of an upload and its name."""

    source: str | bytes
    upload_name: str | None = None


@dataclass(frozen=True)
class MeasurementJob:
    """A measurement to make: a page as `run_inference` takes it, the name of an upload, and how to
    measure it.
    """

    page: str | bytes
    page_name: str | None
    settings: Settings

    def cells(self) -> dict[str, Any]:
        """Its row in the table of records, until there is one."""
        name = self.page_name or Path(str(self.page)).name
        return {
            "page": printable(name, 60),
            "model": self.settings.model,
            "preset": self.settings.preset or "default",
            "strategy": self.settings.strategy,
            "steps": "waiting",
        }

    def code(self) -> str:
        """The lines that measure the same in a cell."""
        page: str | None = self.page_name
        if isinstance(self.page, str):
            page = self.page
        of_model = _changed_keywords(self.settings.of_model())
        of_run = _changed_keywords(self.settings.of_run())
        return (
            "from ocr_phases import OCRSession\n"
            f"session = OCRSession.load({', '.join(of_model)})\n"
            f"run = session.run_inference({', '.join([repr(page), *of_run])})"
        )


def _changed_keywords(values: Mapping[str, Any]) -> list[str]:
    """The settings that have another value than their default, as keywords of a call."""
    defaults = vars(Settings())
    keywords = []
    for name, value in values.items():
        if value != defaults[name]:
            keywords.append(f"{name}={value!r}")
    return keywords


def job_again(run: PhaseRun) -> MeasurementJob | None:
    """A record's measurement once more; None where its page or model cannot be had again here.

    A server's model is not here, whatever the server calls it.
    """
    if run.is_server or len(run.pages) != 1:
        return None
    page = run.page_data()
    model = _model_here(run)
    if page is None or model is None:
        return None
    settings = recorded_settings(run)
    settings["model"] = model
    settings["dtype"] = run.model.dtype
    return MeasurementJob(page, run.page.file, Settings(**settings))


def _model_here(run: PhaseRun) -> str | None:
    """What loads a record's model on this machine: the name of a built-in one, or its folder."""
    name = str(run.model.name)
    if name.split(":")[0] in ("tiny", "dummy"):
        return name
    folder = str(run.model.source)
    if os.path.isdir(folder):  # noqa: PTH112
        return folder
    return None


def measured_here(run: PhaseRun) -> bool:
    """Whether a new measurement runs where the record was measured: on its server, or on this
    machine, as far as the names of its processors tell.
    """
    if run.is_server:
        return True
    if run.device.kind == "cuda" and not has_cuda():
        return False
    return (run.device.host or run.device.name) == host_name()


def pages_at(text: str) -> dict[str, OfferedPage]:
    """A file, or all pages of a folder, by their names; raises `OcrPhasesError` for a folder
    without pages.
    """
    path = existing_path(text)
    if not path.is_dir():
        return {path.name: OfferedPage(str(path))}
    files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in PAGE_SUFFIXES]
    if not files:
        raise OcrPhasesError(f"There is no page in {path}: name a folder of images, or one file.")
    return {file.name: OfferedPage(str(file)) for file in files}


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
        config = json.loads((project_path(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return PRESET_NAMES
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        return PRESET_NAMES
    return _presets_of_config(config)


def _presets_of_dummy(model: str) -> tuple[str, ...]:
    """Those of ``dummy``, ``dummy:FAMILY``, ``dummy:layers=2,...``, or of any other class."""
    _, _, options = model.partition(":")
    first_option = options.split(",")[0]
    is_family = first_option in FAMILIES
    is_size = "=" in first_option
    if first_option and not is_family and not is_size:  # the name of another class
        return (PROCESSOR,)
    return tuple(dummy_family(model).presets)


def _presets_of_config(config: dict[str, Any]) -> tuple[str, ...]:
    """Those of all families that a ``config.json`` may be of, since several may share a class."""
    model_type = config["model_type"]
    families = []
    for facts in FAMILIES.values():
        if model_type in (facts.config["model_type"], facts.saved_type):
            families.append(facts)
    if not families:
        try:
            families = [family_of_config(config)]
        except OcrPhasesError:
            return (PROCESSOR,)
    presets: list[str] = []
    for facts in families:
        presets += facts.presets
    return tuple(dict.fromkeys(presets))  # each once


def runs_only_eagerly(model: str) -> bool:
    """Whether nothing of a model by this name can be captured or compiled: it has no known
    family.
    """
    return presets_of(model) == (PROCESSOR,)


class FormField(TypedDict):
    """A field as the browser draws it. ``own`` says that it takes other words than its options."""

    name: str
    label: str
    group: FormGroup
    kind: str
    help: str
    options: list[str]
    own: bool


def _list_of_many(name: str, label: str, options: Sequence[str]) -> FormField:
    """A list of which several may be chosen."""
    return FormField(
        name=name,
        label=label,
        group=FormGroup.PAGE,
        kind="many",
        help="each is measured, one after another; hold Ctrl to choose several",
        options=[*options],
        own=False,
    )


def _field(setting: Field[Any], offered: Sequence[str] | None) -> FormField:
    """The field of a setting, with the options that are ``offered`` or those that it knows."""
    group = form_group(setting)
    assert group is not None
    return FormField(
        name=setting.name,
        label=form_label(setting),
        group=group,
        kind=kind(setting),
        help=full_help_text(setting),
        options=_options(setting, offered),
        own=setting.name in _SUGGESTIONS,
    )


def _options(setting: Field[Any], offered: Sequence[str] | None) -> list[str]:
    """What can be chosen for a setting on this machine: of what is offered, or else of all."""
    known: Sequence[str] = choices(setting)
    if offered:
        known = offered
    elif setting.name in _SUGGESTIONS:
        known = _SUGGESTIONS[setting.name]
    elif kind(setting) == "bool" and setting.default is None:
        known = ("true", "false")
    options = list(dict.fromkeys(known))  # each once
    if not has_cuda():
        options = [option for option in options if option not in _NEEDS_CUDA]
    if options and setting.default is None:
        options.insert(0, "")  # which leaves it to the model or the device
    return options


class Form:
    """The pages on offer, the fields that the browser draws, and the measurements that their values
    mean.
    """

    def __init__(self) -> None:
        samples = asset("data", "pages")
        self.pages: dict[str, OfferedPage] = {}
        for path in [samples / "receipt.png", *sorted(samples.glob("*.png"))]:
            self.pages[path.stem] = OfferedPage(str(path))

    def offer(self, pages: Mapping[str, OfferedPage]) -> None:
        """Put pages before those that are on offer; of one name the new one stays."""
        others = {name: page for name, page in self.pages.items() if name not in pages}
        self.pages = {**pages, **others}

    def values(self, model: str) -> dict[str, Any]:
        """What the fields hold at first; an empty text leaves a setting to the model or device."""
        values: dict[str, Any] = {}
        for setting in _SETTINGS:
            values[setting.name] = setting.default
            if setting.default is None:
                values[setting.name] = ""
        values.update(_FIRST_VALUES)
        values["model"] = model
        values["pages"] = list(self.pages)[:1]
        values["presets"] = []
        return values

    def fields(self, model: str) -> list[FormField]:
        """What the browser draws, group by group: what the model can do and this machine has, and
        nothing else.
        """
        presets = presets_of(model)
        fields = [
            _list_of_many("pages", "Several pages", list(self.pages)),
            _list_of_many("presets", "Several presets", presets),
        ]
        offered = {"model": (model, *_MODELS), "preset": presets, "family": FAMILY_NAMES}
        if runs_only_eagerly(model):
            offered.update(EAGER_ONLY)
        for setting in _SETTINGS:
            fields.append(_field(setting, offered.get(setting.name)))
        groups = list(FormGroup)
        return sorted(fields, key=lambda field: groups.index(field["group"]))

    def jobs(self, values: Mapping[str, Any]) -> list[MeasurementJob]:
        """Every chosen page with every chosen preset; `OcrPhasesError` for a missing or wrong
        setting.
        """
        if not values["pages"]:
            raise OcrPhasesError("No page chosen yet: choose one or more.")
        chosen = {}
        for setting in _SETTINGS:
            value = _chosen_value(setting, values[setting.name])
            if value is not None:
                chosen[setting.name] = value
        one_preset = chosen.pop("preset", None)  # None for the default one
        all_settings = []
        for preset in dict.fromkeys([one_preset, *values["presets"]]):
            all_settings.append(Settings(**chosen, preset=preset))
        jobs = []
        for name in values["pages"]:
            page = self.pages[name]
            for settings in all_settings:
                jobs.append(MeasurementJob(page.source, page.upload_name, settings))
        return jobs


def _chosen_value(setting: Field[Any], value: Any) -> Any:
    """What a field says of its setting; None where it leaves that to the model or the device."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text:
        return setting_from_text(setting.name, text)
    if setting.default is not None:
        raise OcrPhasesError(f"No {setting.name} chosen: type one, or choose one from the list.")
    return None


def first_image(page: str | bytes, name: str | None) -> Image:
    """The picture of a page, or of the first of several of a file.

    ``page`` is a path or the contents of a file, ``name`` what an error calls those. Raises
    `OcrPhasesError` where it cannot be read.
    """
    from ocr_phases.images import load_page  # of the measuring half: only now

    if isinstance(page, str):
        page = each_page(page)[0]
    image, *_ = load_page(page, name or "image")
    return image
