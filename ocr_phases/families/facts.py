"""The facts of a family, and what follows from them: prompts, presets, page cutting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self

from ocr_phases.errors import Keyword, SettingError, check_known
from ocr_phases.text import count_text, nearest

IMAGE_TAG = "<image>"
GROUNDING_TAG = "<|grounding|>"

#: The prompt that reads all pages at once, in one answer.
MULTIPAGE = "multipage"
#: The prompt that needs words of the user's: ``locate:some words``.
LOCATE = "locate"
#: The prompt presets of all families, in the order that options and errors list them.
PROMPT_NAMES = ("markdown", "ocr", "free", "figure", "describe", LOCATE, MULTIPAGE)

#: The kinds of attention of a language model's layers, as a ``config.json`` names them.
FULL = "full_attention"
WINDOWED = "reference_sliding_attention"

#: ``<td>`` and ``</td>``, which the n-gram rules of the vendor's scripts for vLLM never forbid.
CELL_TOKENS = (128_821, 128_822)

#: The family of a model that is of none that this version knows.
UNKNOWN = "unknown"
#: Its only preset: what the model's own processor does.
PROCESSOR = "processor"
#: What stands for a preset where the prompt has no image, so that nothing is cut.
NO_VIEWS = "none"

#: The published name of the first vision encoder, which all families share.
SAM_PART = "sam_vit_b"


class SizeSettings(Protocol):
    """What has the settings of a page's cutting: a run's settings, its request, its record."""

    @property
    def base_size(self) -> int | None:
        """Side of the global view, in pixels."""

    @property
    def image_size(self) -> int | None:
        """Side of a crop or of the only view, in pixels."""

    @property
    def crop_mode(self) -> bool | None:
        """Whether a large page is cut into crops."""

    @property
    def min_crops(self) -> int | None:
        """Minimum number of crops."""

    @property
    def max_crops(self) -> int | None:
        """Maximum number of crops."""


@dataclass(frozen=True)
class ViewSizes:
    """The sizes that a page is cut to instead of its preset's; None is what the preset has.

    Raises SettingError for sizes that contradict each other, whatever the preset is.
    """

    base_size: int | None = None
    image_size: int | None = None
    crop_mode: bool | None = None
    min_crops: int | None = None
    max_crops: int | None = None

    def __post_init__(self) -> None:
        fewest = self.min_crops
        most = self.max_crops
        if fewest is not None and most is not None and fewest > most:
            raise SettingError(
                "min_crops",
                "{min_crops} is above {max_crops}: lower the one, or raise the other.",
                min_crops=Keyword("min_crops", fewest),
                max_crops=Keyword("max_crops", most),
            )
        if self.crop_mode is False:
            self._check_uncut()

    @classmethod
    def from_settings(cls, settings: SizeSettings) -> Self:
        """The sizes that settings, a request or a record's request ask for."""
        return cls(
            settings.base_size,
            settings.image_size,
            settings.crop_mode,
            settings.min_crops,
            settings.max_crops,
        )

    def _check_uncut(self) -> None:
        for name, number in (("min_crops", self.min_crops), ("max_crops", self.max_crops)):
            if number is not None:
                raise SettingError(
                    name,
                    "{crop_mode} makes no crops: drop it, or {crops}.",
                    crop_mode=Keyword("crop_mode", False),
                    crops=Keyword(name, number),
                )
        if self.base_size is not None and self.image_size is not None:
            check_single_view(self.base_size, self.image_size)


def check_single_view(base_size: int, image_size: int) -> None:
    """Raise SettingError where the sizes of the only view of an uncut page differ."""
    if base_size != image_size:
        raise SettingError(
            "image_size",
            "A page that is not cut has one view, of {side} pixels ({image_size}): give "
            "{as_large} for a view as large as {base_size}, or {crop_mode}.",
            side=image_size,
            image_size=Keyword("image_size"),
            as_large=Keyword("image_size", base_size),
            base_size=Keyword("base_size", base_size),
            crop_mode=Keyword("crop_mode", True),
        )


@dataclass(frozen=True)
class Preset:
    """How a page is cut: side of the global view and, with crops, side of one crop, both in pixels.

    ``fewest_tiles`` and ``most_tiles`` are the minimum and the maximum number of crops of a page.
    With ``squeezes`` the page is squeezed into the square, else it is padded to fit. With
    ``row_ends`` an image token follows each row of a view's vision tokens. A page with no side
    above ``small_side`` pixels is not cut, whatever the size of a crop, and a single view of at
    most that side is squeezed.
    """

    name: str
    base_size: int
    image_size: int
    crops: bool
    most_tiles: int = 9
    squeezes: bool = False
    row_ends: bool = True
    fewest_tiles: int = 2
    small_side: int = 640

    def resized(self, sizes: ViewSizes) -> Preset:
        """This preset with other sizes, under a name that says them.

        Without crops the only view has the side ``image_size``, as in the published code. Raises
        SettingError for sizes that contradict the preset.
        """
        crops = self.crops
        if sizes.crop_mode is not None:
            crops = sizes.crop_mode
        image_size = sizes.image_size or self.image_size
        own_base_size = self.base_size if crops else image_size
        base_size = sizes.base_size or own_base_size
        fewest_tiles = sizes.min_crops or self.fewest_tiles
        most_tiles = sizes.max_crops or self.most_tiles
        if crops:
            self._check_tiles(sizes, fewest_tiles, most_tiles)
        else:
            check_single_view(base_size, image_size)
            self._check_no_tiles(sizes)
        changed = replace(
            self,
            base_size=base_size,
            image_size=image_size,
            crops=crops,
            fewest_tiles=fewest_tiles,
            most_tiles=most_tiles,
            squeezes=not crops and image_size <= self.small_side,
        )
        return replace(changed, name=changed._name_beside(self))

    def _check_tiles(self, sizes: ViewSizes, fewest: int, most: int) -> None:
        if fewest <= most:
            return
        if sizes.max_crops is None:
            raise SettingError(
                "min_crops",
                "{min_crops} is above the {most} crops that {preset} makes at most: give "
                "{max_crops} too.",
                min_crops=Keyword("min_crops", fewest),
                most=most,
                preset=self.name,
                max_crops=Keyword("max_crops"),
            )
        raise SettingError(
            "max_crops",
            "{max_crops} is below the {fewest} crops that {preset} makes at least: give "
            "{min_crops} too.",
            max_crops=Keyword("max_crops", most),
            fewest=fewest,
            preset=self.name,
            min_crops=Keyword("min_crops", most),
        )

    def _check_no_tiles(self, sizes: ViewSizes) -> None:
        for name, number in (("min_crops", sizes.min_crops), ("max_crops", sizes.max_crops)):
            if number is not None:
                raise SettingError(
                    name,
                    "The preset {preset} makes no crops: give {crop_mode} too, or drop {crops}.",
                    preset=self.name,
                    crop_mode=Keyword("crop_mode", True),
                    crops=Keyword(name, number),
                )

    def _name_beside(self, preset: Preset) -> str:
        """A name for this preset, made from ``preset``: its name, and what differs from it."""
        name = preset.name
        sizes = (self.crops, self.base_size, self.image_size)
        if sizes != (preset.crops, preset.base_size, preset.image_size):
            if self.crops:
                name += f" {self.base_size}+{self.image_size}"
            else:
                name += f" {self.image_size}"
        if preset.crops and not self.crops:
            name += ", no crops"
        if (self.fewest_tiles, self.most_tiles) != (preset.fewest_tiles, preset.most_tiles):
            if self.fewest_tiles == self.most_tiles:
                name += f", {count_text(self.most_tiles, 'crop')}"
            else:
                name += f", {self.fewest_tiles} to {self.most_tiles} crops"
        return name

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Into how many ``(columns, rows)`` of square crops a page of that size in pixels is cut.

        (1, 1) without crops, and where no side exceeds ``small_side``. Else, of all grids of
        ``fewest_tiles`` to ``most_tiles`` tiles, the one nearest to the page in aspect ratio
        (columns / rows against width / height), as measured against the recorded vendor
        preprocessing. Of grids equally near, the larger wins where the page has more than half as
        many pixels as that grid: the published rule. A grid of one tile is a page without crops.
        """
        if not self.crops or max(width, height) <= self.small_side:
            return 1, 1
        grids = []
        for tiles in range(self.fewest_tiles, self.most_tiles + 1):
            for columns in range(1, tiles + 1):
                if tiles % columns == 0:
                    grids.append((columns, tiles // columns))
        distances = {grid: abs(width / height - grid[0] / grid[1]) for grid in grids}
        least = min(distances.values())
        chosen = None
        for grid in grids:
            if distances[grid] > least:
                continue
            pixels_of_grid = self.image_size**2 * math.prod(grid)
            if chosen is None or width * height > 0.5 * pixels_of_grid:
                chosen = grid
        assert chosen is not None  # of at least one tile, some grid is the nearest
        return chosen


@dataclass(frozen=True)
class Wiring:
    """Where the parts of a model class hang, and what it takes.

    Module paths are dotted names under the loaded model.

    Attributes
    ----------
    class_name
        The name of the class.
    modules
        The path of the module that is a stage, by the stage's name.
    image_arguments
        The arguments that go into the prefill and must never carry a value in
        decode.
    mask
        The form of an attention mask that needs no work: None or a 4-D one to be added to the
        scores, in a dict with an entry for each kind of attention (``"by attention"``) or as it
        is (``"4-D"``); or always the 2-D one of all tokens (``"2-D"``).
    parts
        The modules that hold a stage's parameters, where they are not those of the stage's
        own module.
    between
        The first and the last module of a stage that is no module of its own.
    """

    class_name: str
    modules: Mapping[str, str]
    image_arguments: tuple[str, ...]
    mask: Literal["by attention", "4-D", "2-D"]
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    between: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class FamilyFacts:
    """What is known of one family of models.

    Attributes
    ----------
    name
        What a record's model has as its ``family``.
    title
        The name for people.
    config
        The entries of its published ``config.json`` that are read.
    saved_type
        The ``model_type`` of that file as transformers saves it.
    second_encoder
        The stage of the vision encoder behind SAM: ``clip`` or ``encoder``, empty for an
        unknown family.
    encoder_part
        The name of that encoder in a published ``config.json``.
    encoder_defaults
        What a published file need not say of that encoder.
    attention
        The kind of attention of all layers of the language model; None where its class
        knows no other than full attention.
    native
        How transformers' class is driven.
    vendor
        How the published remote-code class is driven; None where it cannot be.
    presets
        The page cuttings by name.
    default_preset
        The preset where nobody asks for one.
    view_sides
        The sides in pixels that a view can have; empty where every multiple of 64 will do.
    stands_for
        For a preset of another family, the one of this family that does the same job,
        so that one name can be asked of all families.
    prompts
        The prompt presets; in ``locate``, ``{words}`` stands for the user's words.
    page_lead
        What stands for the page before a prompt of the user's own.
    boxes_tag
        The tag behind it that asks for boxes; empty where the model marks them by itself.
    published
        The sampling values of the published code, by the name that ``infer`` takes.
    published_vllm
        The sampling values of the vendor's scripts for vLLM, by the name that ``infer`` takes.
    published_limit
        The tokens that the published code makes at most, as many as the model has
        positions; None where that is unknown.
    limit_has_prompt
        Whether the tokens of the prompt count among them.
    page_mark
        What stands in the output before each page. A family that has one also writes the
        label and the box of a region in one mark (`ocr_phases.analyse.grounding`).
    result_name
        The file name of the text.
    multipage_preset
        The preset of a list of pages in one prompt, which has no crops.
    multipage_infer
        What ``published`` has otherwise there.
    is_unknown
        Whether nothing is known of the family, so that these facts are the neutral
        ones.
    """

    name: str
    title: str
    config: Mapping[str, Any]
    saved_type: str
    second_encoder: str
    encoder_part: str
    native: Wiring
    presets: Mapping[str, Preset]
    default_preset: str
    prompts: Mapping[str, str]
    published: Mapping[str, Mapping[str, int]]
    published_limit: int | None
    vendor: Wiring | None = None
    attention: str | None = None
    encoder_defaults: Mapping[str, Any] = field(default_factory=dict)
    view_sides: tuple[int, ...] = ()
    stands_for: Mapping[str, str] = field(default_factory=dict)
    page_lead: str = f"{IMAGE_TAG}\n"
    boxes_tag: str = GROUNDING_TAG
    limit_has_prompt: bool = False
    page_mark: str | None = None
    result_name: str = "result.mmd"
    multipage_preset: str | None = None
    multipage_infer: Mapping[str, int] = field(default_factory=dict)
    published_vllm: Mapping[str, Mapping[str, int | tuple[int, ...]]] = field(default_factory=dict)
    is_unknown: bool = False

    def __post_init__(self) -> None:
        for name in self.prompts:
            if name not in PROMPT_NAMES:
                raise ValueError(f"{self.title}: name the prompt {name!r} in PROMPT_NAMES.")

    @property
    def encoder_parts(self) -> dict[str, str]:
        """The name of each vision encoder in a published ``config.json``, by its stage."""
        if not self.second_encoder:
            return {}
        return {"sam": SAM_PART, self.second_encoder: self.encoder_part}

    @property
    def encoders(self) -> tuple[str, ...]:
        """The stages that a view goes through before the projector."""
        return tuple(self.encoder_parts)

    def preset(self, name: str | None = None, sizes: ViewSizes | None = None) -> Preset:
        """A preset by its name, or by the name of another family's that does the same job.

        The default preset stands for None, and ``sizes`` replace its own. Raises SettingError for
        a name that there is not, and for sizes that the preset or the model cannot have.
        """
        if sizes is None or sizes == ViewSizes():
            return self._named_preset(name)
        self._check_sizes(sizes)
        return self._named_preset(name).resized(sizes)

    def _check_sizes(self, sizes: ViewSizes) -> None:
        """Raise SettingError for sizes that this family's model cannot have."""
        changed = {name: value for name, value in vars(sizes).items() if value is not None}
        if self.is_unknown:
            name = next(iter(changed))
            raise SettingError(
                name,
                "The processor of {family} decides how a page is cut: leave {size} out, or name "
                "the model's family.",
                family=self.title,
                size=Keyword(name, changed[name]),
            )
        for name in ("base_size", "image_size"):
            if name in changed and self.view_sides and changed[name] not in self.view_sides:
                sides = " or ".join(str(side) for side in self.view_sides)
                raise SettingError(
                    name,
                    "{size} is no size that {family} can read: give {sides}, which are the sizes "
                    "that its second encoder has queries for.",
                    size=Keyword(name, changed[name]),
                    family=self.title,
                    sides=sides,
                )

    def _named_preset(self, name: str | None) -> Preset:
        if self.is_unknown:
            if name not in (None, PROCESSOR):
                raise SettingError(
                    "preset",
                    f"The presets of {self.title} are unknown: leave preset {name!r} out, or name "
                    "the model's family.",
                )
            return self.presets[self.default_preset]
        name = name or self.default_preset
        name = self.stands_for.get(name, name)
        check_known(Keyword("preset"), name, self.presets, self.title)
        return self.presets[name]

    def text_of(self, prompt: str, *, grounding: bool | None = None, pages: int = 1) -> str:
        """The text passed to the model: that of a prompt preset, or the user's own text, stripped.

        Parameters
        ----------
        prompt
            The name of a preset, ``"locate:some words"``, or a text of the user's own. A text of
            the user's own that carries no ``<image>`` is put behind the family's ``page_lead`` and
            ``boxes_tag``, which are ``<image>`` with a line break, and ``<|grounding|>``. A text
            that carries it, and a preset, stay as they are.
        grounding
            False leaves ``<|grounding|>`` out; None and True put it in.
        pages
            How many pages the prompt is for; the ``multipage`` preset has an ``<image>`` for
            each.

        Raises
        ------
        SettingError
            For an empty prompt, for a preset that only other families have, for
            ``locate`` without words, for a preset that asks for boxes where ``grounding`` is
            False, for a ``grounding`` where the model marks boxes whatever it is asked, and for
            one word that is nearly a preset's name: write ``<image>`` and that word where it is
            meant.
        """
        if self.is_unknown:
            return self._text_of_unknown(prompt, grounding)
        prompt = prompt.strip()
        name, _, words = prompt.partition(":")
        name = name.strip()
        words = words.strip()
        if name == LOCATE or prompt in PROMPT_NAMES:
            self._check_prompt(name)
        if grounding is not None and not self.boxes_tag:
            raise SettingError(
                "grounding", f"{self.title} marks boxes by itself: leave grounding out."
            )
        if name == LOCATE:
            return self._text_of_locate(words)
        if prompt in self.prompts:
            return self._text_of_preset(prompt, grounding, pages)
        return self._text_of_own(prompt, name, grounding)

    def _text_of_locate(self, words: str) -> str:
        """The text of the preset ``locate`` with the user's ``words``."""
        if not words:
            raise SettingError(
                "prompt",
                'The locate prompt needs the words to find: write "locate:some words".',
            )
        return self.prompts[LOCATE].format(words=words)

    def _text_of_own(self, prompt: str, name: str, grounding: bool | None) -> str:
        """The user's own ``prompt``, with what the family puts before it.

        ``name`` is what stands in it before a colon, which may be a misspelt preset.
        """
        if not prompt:
            raise SettingError(
                "prompt",
                f"The prompt is empty: write one, or choose one of {', '.join(self.prompts)}.",
            )
        if IMAGE_TAG in prompt:
            return prompt
        self._refuse_misspelt(prompt, name)
        if grounding is False:
            return f"{self.page_lead}{prompt}"
        return f"{self.page_lead}{self.boxes_tag}{prompt}"

    def text_without_image(self, prompt: str) -> str:
        """The text passed to the model where there is no page: the user's own, stripped.

        Raises SettingError for an empty prompt, and for one that speaks of a page: a preset, and a
        text with ``<image>`` or ``<|grounding|>``.
        """
        prompt = prompt.strip()
        if not prompt:
            raise SettingError("prompt", "The prompt is empty: write one.")
        name = prompt.partition(":")[0].strip()
        if prompt in PROMPT_NAMES or name == LOCATE:
            raise SettingError(
                "prompt",
                "The prompt preset {name!r} asks about a page, and there is none: give a page, or "
                "a prompt of your own.",
                name=name,
            )
        for tag in (IMAGE_TAG, GROUNDING_TAG):
            if tag in prompt:
                raise SettingError(
                    "prompt",
                    "The prompt has {tag}, which stands for a page or its boxes, and there is no "
                    "page: give one, or leave {tag} out.",
                    tag=tag,
                )
        return prompt

    def _text_of_preset(self, prompt: str, grounding: bool | None, pages: int) -> str:
        """The text of another preset; ``multipage`` has a place for each of the ``pages``."""
        text = self.prompts[prompt]
        if grounding is False and GROUNDING_TAG in text:
            raise SettingError(
                "grounding",
                "The prompt preset {prompt!r} asks for boxes, which {without_boxes} forbids: use "
                "the preset 'free', which asks for none, or write the prompt yourself.",
                prompt=prompt,
                without_boxes=Keyword("grounding", False),
            )
        if prompt == MULTIPAGE:
            return text.replace(IMAGE_TAG, IMAGE_TAG * pages)
        return text

    def _refuse_misspelt(self, prompt: str, name: str) -> None:
        """Raise for one word, or for what may be "locate:some words", that is nearly a preset."""
        if " " in name:
            return
        candidates = [*self.prompts] if name == prompt else [LOCATE]
        hint = nearest(name.lower(), candidates)
        if hint:
            raise SettingError(
                "prompt",
                f"There is no prompt preset {name!r}: choose one of {', '.join(self.prompts)}, or "
                f'write more than one word, or "{IMAGE_TAG} {name}" for this one.{hint}',
            )

    def _text_of_unknown(self, prompt: str, grounding: bool | None) -> str:
        """The user's own text as it is, or the only prompt preset of an unknown family."""
        if grounding:
            raise SettingError(
                "grounding", f"How {self.title} is asked for boxes is unknown: leave grounding out."
            )
        stripped = prompt.strip()
        if stripped in self.prompts:
            return self.prompts[stripped]
        name = stripped.partition(":")[0]
        if stripped in PROMPT_NAMES or name == LOCATE:
            self._check_prompt(name)
        if not stripped:
            raise SettingError("prompt", "The prompt is empty: write one.")
        return prompt

    def _check_prompt(self, name: str) -> None:
        """Raise `SettingError` for the name of a prompt preset that this family does not have."""
        check_known(Keyword("prompt"), name, self.prompts, self.title, ", or write your own")


def unknown_family(name: str | None) -> FamilyFacts:
    """Neutral facts for a family of which nothing is known; ``name`` is what it is called."""
    title = "a model of unknown family"
    if name is not None and name != UNKNOWN:
        title = f"the family {name!r}"
    return FamilyFacts(
        name=name or UNKNOWN,
        title=title,
        config={},
        saved_type="",
        second_encoder="",
        encoder_part="",
        native=Wiring(class_name="", modules={}, image_arguments=(), mask="2-D"),
        presets={PROCESSOR: Preset(PROCESSOR, base_size=0, image_size=0, crops=False)},
        default_preset=PROCESSOR,
        prompts={"markdown": "Convert the document to markdown."},
        page_lead="",
        boxes_tag="",
        published={},
        published_limit=None,
        is_unknown=True,
    )


def windowed_length(length: int, prompt_len: int, window: int | None) -> int:
    """Cache entries that a step sees of ``length`` tokens, its own and the prompt's among them.

    Of generated tokens it sees the last ``window``, its own among them; all for None.
    """
    if window is None:
        return length
    return min(length, prompt_len + window)
