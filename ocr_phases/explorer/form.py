"""The settings of a measurement as widgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.errors import OcrPhasesError
from ocr_phases.explorer.kept_records import found
from ocr_phases.families import FAMILIES, PRESET_NAMES, PROMPTS
from ocr_phases.files import PAGE_SUFFIXES, each_page
from ocr_phases.settings import NEW_TOKENS, Settings, choices, declared, help_text, kind
from ocr_phases.show.web import element, image_html
from ocr_phases.text import count_text
from ocr_phases.versions import asset

if TYPE_CHECKING:
    from PIL.Image import Image

_SAMPLE, _PATH, _UPLOAD = "Sample", "File or folder", "Upload"
_OTHER = ""  # of no known name; a value of None would leave the list blank
_MOST = 1_000_000


#: Settings with no field: the panel looks for the end token after every step, a record without phases or text
#: has little to show, remote code is asked for by name in code, and a trace is a file.
LEFT_OUT = (
    *("eos_check_every", "generate", "return_text", "kernel_trace", "kernel_steps"),
    *("implementation", "trust_remote_code", "attention", "cuda_calls"),
)
#: Fields that are always in sight; the others are under "More settings".
_IN_SIGHT = (
    *("model", "preset", "prompt", "device", "strategy", "vision"),
    *("max_new_tokens", "repeats", "warmup"),
)
_LABELS = {"strategy": "Decode strategy", "vision": "Vision strategy", "warmup": "Warm-up runs"}
_LABELS |= {"infer": "Sampling (infer)", "ignore_eos": "Ignore end token", "dtype": "Data type"}


@dataclass(frozen=True)
class Asked:
    """A page as `run_inference` takes it, the name of an upload, and how to measure it."""

    page: str | bytes
    page_name: str | None
    settings: Settings


class Choice(widgets.VBox):
    """A list of names; its last entry "other …" opens a text field."""

    def __init__(self, description: str, options: Mapping[str, str], value: str, hint: str) -> None:
        self.known = widgets.Dropdown(
            description=description,
            options=[*((text, name) for name, text in options.items()), ("other …", _OTHER)],
        )
        self.own = widgets.Text(placeholder=hint)
        self.own.add_class("opx-own")
        super().__init__([self.known, self.own])
        self.known.observe(self._toggle, "value")
        if value in options:
            self.known.value = value
        else:
            self.known.value, self.own.value = _OTHER, value
        self._toggle()

    @property
    def value(self) -> str:
        """The chosen or typed name, stripped."""
        return str(self.known.value or self.own.value).strip()

    def _toggle(self, _: Any = None) -> None:
        self.own.layout.display = "none" if self.known.value else None


class PageChooser(widgets.VBox):
    """A sample, a file (or one of a folder's), or an upload, with a thumbnail of it.

    ``guarded`` wraps handlers, so that a page that cannot be read is told at once.
    """

    def __init__(self, page: str | Path | None, guarded: Callable[..., Callable[..., None]]) -> None:
        self.image: Image | None = None  # the chosen page, upright
        samples = sorted(asset("data", "pages").glob("*.png"))
        self.source = widgets.ToggleButtons(options=[_SAMPLE, _PATH, _UPLOAD], description="Page")
        self.source.add_class("opx-source")
        receipt = next((path for path in samples if path.stem == "receipt"), samples[0])
        self.sample = widgets.Dropdown(
            options=[(path.stem, str(path)) for path in samples], value=str(receipt), description="Sample"
        )
        self.path = widgets.Text(
            placeholder="page.png, scan.pdf#3 or a folder",
            description="File or folder",
            continuous_update=False,
        )
        self.path.add_class("opx-path")
        self.file = widgets.SelectMultiple(
            options=[], rows=5, description="Pages of the folder", tooltip="Several run one after another"
        )
        self.upload = widgets.FileUpload(accept="image/*,.pdf", multiple=True, description="Choose pages")
        self.thumbnail = widgets.HTML()
        self.thumbnail.add_class("opx-thumb")
        super().__init__([self.source, self.sample, self.path, self.file, self.upload, self.thumbnail])
        self.add_class("opx-chooser")
        if page is not None:
            self.source.value, self.path.value = _PATH, str(page)
        self.path.observe(guarded(self._list_folder), "value")
        for widget in (self.source, self.sample, self.file, self.upload):
            widget.observe(guarded(self._show), "value")
        guarded(self._list_folder)()

    def pages(self) -> list[tuple[str | bytes, str | None]]:
        """Each page and, for an upload, its file's name; `OcrPhasesError` where none was chosen."""
        if self.source.value == _SAMPLE:
            return [(self.sample.value, None)]
        if self.source.value == _UPLOAD:
            if not self.upload.value:
                raise OcrPhasesError("No page uploaded yet: choose a file or a sample.")
            return [(bytes(chosen["content"]), str(chosen["name"])) for chosen in self.upload.value]
        if self.file.options:
            if not self.file.value:
                raise OcrPhasesError("No page of the folder chosen yet: choose one or more.")
            return [(page, None) for page in self.file.value]
        if not self.path.value.strip():
            raise OcrPhasesError("No page chosen yet: type the path of an image, or choose a sample.")
        return [(str(found(self.path.value)), None)]

    def _list_folder(self, _: Any = None) -> None:
        folder = found(self.path.value)
        self.path.tooltip = str(folder)
        pages: list[Path] = []
        if self._names_folder():
            pages = sorted(path for path in folder.iterdir() if path.suffix.lower() in PAGE_SUFFIXES)
        self.file.options = [(path.name, str(path)) for path in pages]
        self.file.value = [str(page) for page in pages[:1]]
        self._show()
        if self._names_folder() and not pages:
            raise OcrPhasesError(f"There is no page in {folder}: name a folder of images, or one file.")

    def _names_folder(self) -> bool:
        name = self.path.value.strip()
        return self.source.value == _PATH and bool(name) and found(name).is_dir()

    def _show(self, _: Any = None) -> None:
        kind = self.source.value
        shown = {self.sample: kind == _SAMPLE, self.path: kind == _PATH, self.upload: kind == _UPLOAD}
        shown[self.file] = kind == _PATH and bool(self.file.options)
        for widget, visible in shown.items():
            widget.layout.display = None if visible else "none"
        self.image = None
        self.thumbnail.value = ""
        nothing_yet = (kind == _UPLOAD and not self.upload.value) or (
            kind == _PATH and (not self.path.value.strip() or self._names_folder())
        )
        if not nothing_yet or (kind == _PATH and self.file.value):
            (page, name), *others = self.pages()
            self.image = image = first_image(page, name)
            alt = f"The chosen page, {image.width} × {image.height} pixels"
            more = f" and {count_text(len(others), 'more page')}" if others else ""
            size = element("p", f"{image.width:,} × {image.height:,} pixels{more}")
            self.thumbnail.value = image_html(image, alt, width=104) + size


def first_image(page: str | bytes, name: str | None) -> Image:
    """The page, or the first of several of a file; `OcrPhasesError` where it cannot be read."""
    from ocr_phases.inputs.images import load_page  # of the measuring half: only now

    return load_page(each_page(page)[0] if isinstance(page, str) else page, name or "image")[0]


class Fold:
    """A ``button`` that shows and hides ``content``: unlike an accordion's, a keyboard reaches it."""

    def __init__(self, name: str, content: widgets.Widget, *, unfolded: bool = False) -> None:
        self._content = content
        self.button = widgets.ToggleButton(value=unfolded, description=name)
        self.button.add_class("opx-fold")
        self.button.observe(self._fold, "value")
        self._fold()

    def _fold(self, _: Any = None) -> None:
        shown = self.button.value
        self._content.layout.display = None if shown else "none"
        self.button.icon = "caret-down" if shown else "caret-right"
        self.button.tooltip = f"{'Hide' if shown else 'Show'} {self.button.description.lower()}"


class Form(widgets.HBox):
    """All settings, with the widget ``below`` under them; `jobs` reads them."""

    def __init__(
        self,
        page: str | Path | None,
        model: str,
        guarded: Callable[..., Callable[..., None]],
        below: widgets.Widget,
    ) -> None:
        self.page = PageChooser(page, guarded)
        self.fields: dict[str, Any] = {
            setting.name: _field(setting, model)
            for setting in fields(Settings)
            if setting.name not in LEFT_OUT
        }
        self.presets = widgets.SelectMultiple(
            options=PRESET_NAMES,
            rows=4,
            description="Further presets",
            tooltip="Each page runs with these too",
        )
        grid = widgets.Box([*(self.fields[name] for name in _IN_SIGHT), self.presets])
        more = widgets.Box([field for name, field in self.fields.items() if name not in _IN_SIGHT])
        for box in (grid, more):
            box.add_class("opx-fields")
        more.add_class("opx-more")
        right = widgets.VBox([grid, Fold("More settings", more).button, more, below])
        right.add_class("opx-settings")
        super().__init__([self.page, right])
        self.add_class("opx-form")

    def jobs(self) -> list[Asked]:
        """Every chosen page with every chosen preset; `OcrPhasesError` for a missing or wrong setting."""
        pages = self.page.pages()
        for what in ("model", "device"):
            if not self.fields[what].value:
                raise OcrPhasesError(f"No {what} chosen: type one, or choose one from the list.")
        defaults = vars(Settings())
        values = {name: field.value for name, field in self.fields.items()}
        # An empty field is a setting left to the model or the device.
        given = {name: value for name, value in values.items() if value != "" or defaults[name] is not None}
        presets = dict.fromkeys([given.get("preset"), *self.presets.value])
        settings = [Settings(**{**given, "preset": preset}) for preset in presets]
        return [Asked(page, name, one) for page, name in pages for one in settings]


def _field(setting: Field[Any], model: str) -> widgets.Widget:
    """The widget of one setting, from its type and choices."""
    label = _LABELS.get(setting.name, setting.name.replace("_", " ").capitalize())
    common = {"description": label, "tooltip": help_text(setting)}
    if setting.name == "model":
        known = {"tiny": "tiny (built in)", "dummy": "dummy (full size, random weights)"}
        known |= {f"dummy:{name}": f"dummy: {facts.title}" for name, facts in [*FAMILIES.items()][1:]}
        return Choice(label, known, model, "a checkpoint folder or hub id")
    if setting.name == "device":
        return Choice(label, {name: name for name in ("auto", "cpu", "cuda")}, "auto", "cuda:1, for example")
    if setting.name == "prompt":
        known = {name: name for name in PROMPTS if name != "locate"}  # which wants words of the user's own
        return Choice(label, known, "markdown", "your words, or locate:words")
    listed: list[tuple[str, object]] = [(name, name) for name in choices(setting)]
    if setting.name == "preset":
        listed = [(name, name) for name in PRESET_NAMES]
    if kind(setting) == "bool" and setting.default is None:
        listed = [("yes", True), ("no", False)]
    if listed:
        own = [("the model's own" if setting.name == "preset" else "default", "")]
        own = own if setting.default is None else []
        return widgets.Dropdown(options=[*own, *listed], **common)
    if kind(setting) == "bool":
        return widgets.Checkbox(value=setting.default, indent=False, **common)
    if kind(setting) == "int":
        least = max(declared(setting).__metadata__[0].ge, -_MOST)
        # So many that Compare can judge two records; a number of tokens, because a field cannot be empty.
        numbers = {"repeats": LEAST_REPEATS, "max_new_tokens": NEW_TOKENS}
        value = numbers.get(setting.name, setting.default)
        field = widgets.BoundedIntText(value=value, min=least, max=_MOST, **common)
        field.add_class(f"opx-{label.split()[-1].lower()}")
        return field
    return widgets.Text(placeholder=help_text(setting), **common)
