"""The settings of a measurement as widgets: which page, which model, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from ocr_phases.assets import asset
from ocr_phases.errors import OcrPhasesError
from ocr_phases.page_formats import PAGE_SUFFIXES
from ocr_phases.presets import PRESETS, PROMPTS
from ocr_phases.show.html import image_html, note_html
from ocr_phases.strategies import STRATEGIES, VISIONS

if TYPE_CHECKING:
    from PIL.Image import Image

_SAMPLE, _PATH, _UPLOAD = "Sample", "File or folder", "Upload"
_OTHER = ""  # of no known name; a value of None would leave the list blank
_MOST = 1_000_000


@dataclass(frozen=True)
class Settings:
    """One measurement as asked for; ``page`` as `run_inference` takes it, ``page_name`` of an upload."""

    page: str | bytes
    page_name: str | None
    model: str
    device: str
    preset: str | None
    prompt: str
    max_new_tokens: int
    repeats: int
    warmup: int
    strategy: str
    vision: str


class Choice(widgets.VBox):
    """A list of names that ends in "other …", which opens a field for the user's own."""

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
        self.file = widgets.Dropdown(options=[], description="Page of the folder")
        self.upload = widgets.FileUpload(
            accept=",".join(("image/*", ".pdf")), multiple=False, description="Choose a page"
        )
        self.thumbnail = widgets.HTML()
        self.thumbnail.add_class("opx-thumb")
        super().__init__([self.source, self.sample, self.path, self.file, self.upload, self.thumbnail])
        self.add_class("opx-chooser")
        if page is not None:
            self.source.value, self.path.value = _PATH, str(page)
        for widget, handler in (
            (self.source, self._show),
            (self.path, self._list_folder),
            (self.sample, self._show),
            (self.file, self._show),
            (self.upload, self._show),
        ):
            widget.observe(guarded(handler), "value")
        guarded(self._list_folder)()

    def page(self) -> tuple[str | bytes, str | None]:
        """The page and, for an upload, its file's name; `OcrPhasesError` where none was chosen."""
        if self.source.value == _SAMPLE:
            return self.sample.value, None
        if self.source.value == _UPLOAD:
            if not self.upload.value:
                raise OcrPhasesError("No page was uploaded yet: choose a file, or a sample.")
            chosen = self.upload.value[0]
            return bytes(chosen["content"]), str(chosen["name"])
        if self.file.options:
            return self.file.value, None
        if not self.path.value.strip():
            raise OcrPhasesError("No page was named yet: type the path of an image, or choose a sample.")
        return str(Path(self.path.value.strip()).expanduser()), None

    def _list_folder(self, _: Any = None) -> None:
        folder = Path(self.path.value.strip() or "missing").expanduser()
        pages: list[Path] = []
        if self.source.value == _PATH and folder.is_dir():
            pages = sorted(path for path in folder.iterdir() if path.suffix.lower() in PAGE_SUFFIXES)
        self.file.options = [(path.name, str(path)) for path in pages]
        self.file.value = str(pages[0]) if pages else None
        self._show()
        if self.source.value == _PATH and folder.is_dir() and not pages:
            raise OcrPhasesError(f"There is no page in {folder}: name a folder of images, or one file.")

    def _show(self, _: Any = None) -> None:
        kind = self.source.value
        shown = {self.sample: kind == _SAMPLE, self.path: kind == _PATH, self.upload: kind == _UPLOAD}
        shown[self.file] = kind == _PATH and bool(self.file.options)
        for widget, visible in shown.items():
            widget.layout.display = None if visible else "none"
        self.image = None
        self.thumbnail.value = ""
        nothing_yet = (kind == _UPLOAD and not self.upload.value) or (
            kind == _PATH and (not self.path.value.strip() or Path(self.path.value.strip()).is_dir())
        )
        if not nothing_yet or (kind == _PATH and self.file.options):
            from ocr_phases.measure.inputs.images import load_page  # of the measuring half: only now

            page, name = self.page()
            self.image = image = load_page(page, name or "image")[0]
            alt = f"The chosen page, {image.width} × {image.height} pixels"
            self.thumbnail.value = (
                f"{image_html(image, alt, width=104)}<p>{image.width:,} × {image.height:,} pixels</p>"
            )


class Form(widgets.HBox):
    """All settings, with the widget ``below`` under them; `settings` reads them as they stand."""

    def __init__(
        self,
        page: str | Path | None,
        model: str,
        guarded: Callable[..., Callable[..., None]],
        below: widgets.Widget,
    ) -> None:
        self.page = PageChooser(page, guarded)
        self.warning = widgets.HTML()
        self.warning.add_class("opx-type")
        self.model = Choice(
            "Model",
            {"tiny": "tiny (built in)", "dummy": "dummy (full size, random weights)"},
            model,
            "a checkpoint folder or hub id",
        )
        self.device = Choice(
            "Device", {"auto": "auto", "cpu": "cpu", "cuda": "cuda"}, "auto", "cuda:1, for example"
        )
        self.preset = widgets.Dropdown(
            description="Preset", options=[("the model's own", ""), *((name, name) for name in PRESETS)]
        )
        self.prompt = Choice(
            "Prompt",
            {name: name for name in PROMPTS if name != "locate"},  # which wants words of the user's own
            "markdown",
            "your words, or locate:words",
        )
        self.strategy = widgets.Dropdown(description="Decode strategy", options=STRATEGIES)
        self.vision = widgets.Dropdown(description="Vision strategy", options=VISIONS)
        self.tokens = self._number("Max new tokens", 1, 512)
        self.repeats = self._number("Repeats", 1, 3)
        self.warmup = self._number("Warm-up runs", 0, 1)
        fields = [
            self.model,
            self.preset,
            self.prompt,
            self.device,
            self.strategy,
            self.vision,
            self.tokens,
            self.repeats,
            self.warmup,
        ]
        grid = widgets.Box(fields)
        grid.add_class("opx-fields")
        right = widgets.VBox([grid, self.warning, below])
        right.add_class("opx-settings")
        super().__init__([self.page, right])
        self.add_class("opx-form")
        for widget in (self.page.thumbnail, self.model.known, self.model.own, self.preset):
            widget.observe(self._look_at_type, "value")
        self._look_at_type()

    def _look_at_type(self, _: Any = None) -> None:
        """Say before a run where the page's type is too small for model and preset."""
        from ocr_phases.measure.inputs.type_size import type_warning  # of the measuring half: only now

        image = self.page.image
        warning = "" if image is None else type_warning(image, self.model.value, self.preset.value or None)
        self.warning.value = note_html(warning) if warning else ""

    def settings(self) -> Settings:
        """What is set; `OcrPhasesError` where something is missing."""
        page, name = self.page.page()
        for what, value in (("model", self.model.value), ("device", self.device.value)):
            if not value:
                raise OcrPhasesError(f"No {what} was named: type one, or choose one of the list.")
        return Settings(
            page=page,
            page_name=name,
            model=self.model.value,
            device=self.device.value,
            preset=self.preset.value or None,
            prompt=self.prompt.value,
            max_new_tokens=self.tokens.value,
            repeats=self.repeats.value,
            warmup=self.warmup.value,
            strategy=self.strategy.value,
            vision=self.vision.value,
        )

    def _number(self, description: str, least: int, value: int) -> widgets.BoundedIntText:
        field = widgets.BoundedIntText(value=value, min=least, max=_MOST, description=description)
        field.add_class(f"opx-{description.split()[-1].lower()}")
        return field
