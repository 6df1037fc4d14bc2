"""What a person may ask for: the fields of the form as plain values, and the measurements they mean."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any

from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.errors import OcrPhasesError
from ocr_phases.explorer.records import found, placed
from ocr_phases.families import FAMILIES, PRESET_NAMES, PROMPTS
from ocr_phases.files import PAGE_SUFFIXES, each_page
from ocr_phases.record import PhaseRun
from ocr_phases.settings import (
    NEW_TOKENS,
    REQUEST_SETTINGS,
    ModelSettings,
    Settings,
    choices,
    declared,
    help_text,
    kind,
    setting_names,
)
from ocr_phases.versions import asset

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST = 1_000_000
#: Settings with no field: the panel looks for the end token after every step, a record without phases or text
#: has little to show, remote code is asked for by name in code, and a trace is a file.
LEFT_OUT = (
    *("eos_check_every", "generate", "return_text", "kernel_trace", "kernel_steps"),
    *("implementation", "trust_remote_code", "attention", "cuda_calls"),
)
#: The fields in their order: the first two are in the bar.
_FIRST = ("model", "preset", "prompt", "device", "strategy", "vision", "max_new_tokens", "repeats", "warmup")
_LABELS = {"strategy": "Decode strategy", "vision": "Vision strategy", "warmup": "Warm-up runs"}
_LABELS |= {"infer": "Sampling (infer)", "ignore_eos": "Ignore end token", "dtype": "Data type"}
_DEFAULT = [["", "default"]]
_SWITCH = [["true", "yes"], ["false", "no"]]
_NEEDS_CUDA = ("cuda_graph", "captured", "cuda")
_MODELS = {"tiny": "tiny (built in)", "dummy": "dummy (full size, random weights)"}
_MODELS |= {f"dummy:{name}": f"dummy: {facts.title}" for name, facts in [*FAMILIES.items()][1:]}


@dataclass(frozen=True)
class Asked:
    """A page as `run_inference` takes it, the name of an upload, and how to measure it."""

    page: str | bytes
    page_name: str | None
    settings: Settings

    def code(self) -> str:
        """The lines that measure the same in a cell."""
        defaults = vars(Settings())
        given = {name: value for name, value in vars(self.settings).items() if value != defaults[name]}
        model = {name: given.pop(name) for name in setting_names(ModelSettings) if name in given}
        page = repr(self.page if isinstance(self.page, str) else self.page_name)
        loaded = ", ".join([repr(model.pop("model", "tiny")), *_keywords(model)])
        return (
            "from ocr_phases import OCRSession\n"
            f"session = OCRSession.load({loaded})\n"
            f"run = session.run_inference({', '.join([page, *_keywords(given)])})"
        )


def _keywords(given: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in given.items()]


def asked_again(run: PhaseRun, **changes: Any) -> Asked | None:
    """A record's measurement once more; None where its page or model cannot be had again here."""
    page, model = run.page_data() if len(run.pages) == 1 else None, run.model
    here = str(model["name"]).split(":")[0] in ("tiny", "dummy")
    if page is None or not (here or os.path.isdir(str(model["source"]))):  # noqa: PTH112
        return None
    given = {name: run.request[name] for name in REQUEST_SETTINGS if name in run.request} | changes
    name = model["name"] if here else model["source"]
    return Asked(page, str(run.page["file"]), Settings(model=name, dtype=model["dtype"], **given))


def has_cuda() -> bool:
    """Whether a CUDA driver finds a device, without torch."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def presets_of(model: str) -> tuple[str, ...]:
    """The presets that a model by this name can have; all of them where its family is not known."""
    name = model.partition(":")[2] or ("" if model not in ("tiny", "dummy") else next(iter(FAMILIES)))
    try:
        named = name or json.loads((placed(model) / "config.json").read_bytes())["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return PRESET_NAMES
    suited = [
        facts for facts in FAMILIES.values() if named in (facts.name, facts.published_type, facts.saved_type)
    ]
    return tuple(dict.fromkeys(name for facts in suited for name in facts.presets)) or PRESET_NAMES


class Form:
    """`fields` is what the browser draws, `values` what a person has chosen; `jobs` are what these mean."""

    def __init__(self, model: str = "tiny") -> None:
        samples = sorted(asset("data", "pages").glob("*.png"), key=lambda path: path.stem != "receipt")
        self.pages: dict[str, tuple[str | bytes, str | None]] = {
            path.stem: (str(path), None) for path in samples
        }
        settings = [setting for setting in fields(Settings) if setting.name not in LEFT_OUT]
        settings.sort(key=lambda setting: (*_FIRST, setting.name).index(setting.name))
        self.fields = {setting.name: _field(setting, has_cuda()) for setting in settings}
        self.values: dict[str, Any] = {name: field["value"] for name, field in self.fields.items()}
        self.values |= {"model": model, "pages": [next(iter(self.pages))], "presets": []}
        self.suit_model()

    def add_path(self, text: str) -> None:
        """Offer a file, or all pages of a folder, and choose it, or the first of them."""
        if not text.strip():
            raise OcrPhasesError("No page chosen yet: type the path of an image, or choose a sample.")
        path = found(text)
        paths = [path]
        if path.is_dir():
            paths = sorted(each for each in path.iterdir() if each.suffix.lower() in PAGE_SUFFIXES)
            if not paths:
                raise OcrPhasesError(f"There is no page in {path}: name a folder of images, or one file.")
        self._choose({each.name: (str(each), None) for each in paths}, paths[0].name)

    def add_files(self, files: Mapping[str, bytes]) -> None:
        """Offer the contents of files by their names, and choose them all."""
        self._choose({name: (data, name) for name, data in files.items()}, *files)

    def _choose(self, pages: dict[str, tuple[str | bytes, str | None]], *names: str) -> None:
        self.pages = pages | {name: page for name, page in self.pages.items() if name not in pages}
        self.values["pages"] = list(names)

    def suit_model(self) -> None:
        """Offer the presets of the chosen model alone."""
        presets = presets_of(str(self.values["model"]))
        self.fields["preset"]["options"] = [["", "the model's own"], *([name, name] for name in presets)]
        if self.values["preset"] not in presets:
            self.values["preset"] = ""
        self.values["presets"] = [name for name in self.values["presets"] if name in presets]

    def drawn(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        models = [[name, text] for name, text in _MODELS.items()]
        if (model := self.values["model"]) not in _MODELS:
            models.insert(0, [model, model])
        listed = {**self.fields, "model": {**self.fields["model"], "options": models}}
        return {"fields": list(listed.values()), "values": dict(self.values), "pages": list(self.pages)}

    def preview(self) -> Image:
        """The first chosen page, upright; `OcrPhasesError` where it cannot be read."""
        page, name = self.pages[self.values["pages"][0]]
        return first_image(page, name)

    def jobs(self) -> list[Asked]:
        """Every chosen page with every chosen preset; `OcrPhasesError` for a missing or wrong setting."""
        if not self.values["pages"]:
            raise OcrPhasesError("No page chosen yet: choose one or more.")
        for what in ("model", "device"):
            if not str(self.values[what]).strip():
                raise OcrPhasesError(f"No {what} chosen: type one, or choose one from the list.")
        defaults = vars(Settings())
        given = {}
        for name, field in self.fields.items():
            value = self.values[name]
            value = value.strip() if isinstance(value, str) else value
            if field["options"] == [*_DEFAULT, *_SWITCH]:
                value = {"true": True, "false": False}.get(value, "")
            # An empty field is a setting left to the model or the device.
            if value != "" or defaults[name] is not None:
                given[name] = value
        presets = dict.fromkeys([given.get("preset"), *self.values["presets"]])
        settings = [Settings(**{**given, "preset": preset}) for preset in presets]
        pages = [self.pages[name] for name in self.values["pages"]]
        return [Asked(page, name, one) for page, name in pages for one in settings]


def first_image(page: str | bytes, name: str | None) -> Image:
    """The page, or the first of several of a file; `OcrPhasesError` where it cannot be read."""
    from ocr_phases.inputs.images import load_page  # of the measuring half: only now

    return load_page(each_page(page)[0] if isinstance(page, str) else page, name or "image")[0]


def _field(setting: Field[Any], cuda: bool) -> dict[str, Any]:
    """One setting from its type and choices: a list of options, a tick, a number or words."""
    name = setting.name
    options = [[each, each] for each in choices(setting) if cuda or each not in _NEEDS_CUDA]
    if name == "device":
        options = [[each, each] for each in ("auto", "cpu", *(["cuda"] if cuda else []))]
    elif name == "prompt":
        options = [[each, each] for each in PROMPTS if each != "locate"]  # which wants words of one's own
    elif kind(setting) == "bool" and setting.default is None:
        options = _SWITCH
    if options and setting.default is None:
        options = [*_DEFAULT, *options]
    is_number = kind(setting) == "int"
    # So many that two records can be judged; a number of tokens, because a field cannot be empty.
    numbers = {"repeats": LEAST_REPEATS, "max_new_tokens": NEW_TOKENS}
    least = max(declared(setting).__metadata__[0].ge, -_MOST) if is_number else None
    return {
        "name": name,
        "label": _LABELS.get(name, name.replace("_", " ").capitalize()),
        "help": help_text(setting),
        "options": options,
        "own": name in ("model", "device", "prompt"),
        "kind": "number" if is_number else "tick" if isinstance(setting.default, bool) else "text",
        "least": least,
        "value": numbers.get(name, "" if setting.default is None else setting.default),
    }
