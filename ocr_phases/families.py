"""The families of models, a row of ``families.toml`` each, with presets and prompts; no torch is
needed.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.text import nearest

IMAGE_TAG = "<image>"
#: The prompt that reads all pages at once, in one answer.
MULTIPAGE = "multipage"
GROUNDING_TAG = "<|grounding|>"


@dataclass(frozen=True)
class Preset:
    """How a page is cut: side of the global view and, with crops, side of one crop, both in pixels.

    ``most_tiles`` is the most crops of a page. ``squeezes``: the page is squeezed into the square,
    else it is padded to fit. ``row_ends``: an image token follows each row of a view's vision
    tokens.
    """

    name: str
    base_size: int
    image_size: int
    crops: bool
    most_tiles: int = 9
    squeezes: bool = False
    row_ends: bool = True

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Into how many ``(columns, rows)`` of square crops a page of that size in pixels is cut.

        (1, 1) without crops, and where no side exceeds ``image_size``. Else, of all grids of 2 to
        ``most_tiles`` tiles, the one nearest to the page in aspect ratio (columns / rows against
        width / height), as measured against the recorded vendor preprocessing. Of grids equally
        near, the larger wins where the page has more than half as many pixels as that grid: the
        published rule.
        """
        if not self.crops or max(width, height) <= self.image_size:
            return 1, 1
        areas = range(2, self.most_tiles + 1)
        grids = [
            (side, area // side)
            for area in areas
            for side in range(1, area + 1)
            if area % side == 0
        ]
        away = {grid: abs(width / height - grid[0] / grid[1]) for grid in grids}
        nearest = [grid for grid in away if away[grid] == min(away.values())]
        filled = [
            grid for grid in nearest if width * height > 0.5 * self.image_size**2 * math.prod(grid)
        ]
        return filled[-1] if filled else nearest[0]


FULL, WINDOWED = "full_attention", "reference_sliding_attention"
DEEPSEEK_OCR, DEEPSEEK_OCR_2, UNLIMITED_OCR = "deepseek-ocr", "deepseek-ocr-2", "unlimited-ocr"
#: The family of a model that is none of these, and its only preset: what its own processor does.
UNKNOWN = "unknown"
PROCESSOR = "processor"


@dataclass(frozen=True)
class Wiring:
    """How a model class is driven. Module paths are dotted names under the loaded model.

    ``modules`` are a stage each; ``parts`` are the modules that hold a stage's parameters where
    they are not those of the stage's own module. A stage that is no module of its own is
    ``between`` its first and its last one. ``image_arguments`` go into the prefill and must never
    carry a value in decode. ``mask`` is the form of an attention mask that needs no work: None or a
    4-D one to be added to the scores, in a dict for each kind of attention, or as it is; or the 2-D
    one of all tokens, always.
    """

    class_name: str
    modules: dict[str, str]
    image_arguments: tuple[str, ...]
    mask: Literal["by attention", "4-D", "2-D"]
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    between: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class FamilyFacts:
    """One row of the table; ``name`` is what a record's model has as its ``family``.

    ``encoders`` are the stages that a view goes through before the projector. ``stands_for`` gives
    for a preset of another family the one here that does the same job, so that one name can be
    asked of them all. ``prompts`` are prompt presets; in ``locate``, ``{words}`` stands for the
    user's words. ``leads`` stand before a prompt of the user's own: the page's place, and the tag
    that asks for boxes, empty where the model marks them by itself. ``published`` has the sampling
    values of the published code, which makes at most ``published_limit`` tokens, as many as the
    model has positions, those of the prompt among them if ``limit_has_prompt``. ``page_mark``
    stands in the output before each page, and says that a region's mark has its label and box in
    one (`ocr_phases.analyse.grounding`); ``result_name`` is the file of the text. Of a list of
    pages in one prompt ``multipage_preset`` is the preset, which has no crops, and
    ``multipage_infer`` what ``published`` has otherwise there.

    ``config`` has the entries of its published ``config.json`` that are read, ``saved_type`` is the
    ``model_type`` of that file as transformers saves it, ``encoder_part`` the published name of the
    second vision encoder, ``attention`` that of all layers of the language model, None where its
    class knows no other than full attention. ``native`` drives transformers' class and ``vendor``
    the published remote-code class, where that can be driven. ``unsaid`` is what a published file
    need not say of the second vision encoder: of a Qwen2-0.5B all but its width. Its class's own
    RoPE base of 10,000 gives other tokens.
    """

    name: str
    title: str
    saved_type: str
    encoder_part: str
    encoders: tuple[str, ...]
    presets: dict[str, Preset]
    prompts: dict[str, str]
    config: dict[str, Any]
    native: Wiring
    published: dict[str, dict[str, int]]
    published_limit: int | None
    vendor: Wiring | None = None
    attention: str | None = None
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    stands_for: Mapping[str, str] = field(default_factory=dict)
    leads: tuple[str, str] = (f"{IMAGE_TAG}\n", GROUNDING_TAG)
    limit_has_prompt: bool = False
    page_mark: str | None = None
    result_name: str = "result.mmd"
    multipage_preset: str | None = None
    multipage_infer: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of the family, so that these facts are the neutral ones."""
        return self.name not in FAMILIES

    def _own_text(self, prompt: str, grounding: bool | None) -> str:
        """The user's own text as it is, of an unknown family; of prompt presets there is only the
        first.
        """
        if grounding:
            raise OcrPhasesError(
                f"How {self.title} is asked for boxes is unknown: leave grounding out."
            )
        if prompt.strip() in self.prompts:
            return self.prompts[prompt.strip()]
        name = prompt.strip().partition(":")[0]
        if prompt.strip() in PROMPT_NAMES or name == "locate":
            check_known("prompt", name, self.prompts, self.title, ", or write your own")
        if not prompt.strip():
            raise OcrPhasesError("The prompt is empty: write one.")
        return prompt

    def preset(self, name: str | None = None) -> Preset:
        """The preset of that name, the last one by default; raises OcrPhasesError where there is
        none.
        """
        if self.is_unknown:
            if name not in (None, PROCESSOR):
                raise OcrPhasesError(
                    f"The presets of {self.title} are unknown: leave preset {name!r} out, or name the "
                    "model's family."
                )
            return self.presets[PROCESSOR]
        name = name or [*self.presets][-1]
        name = self.stands_for.get(name, name)
        check_known("preset", name, self.presets, self.title)
        return self.presets[name]

    def text_of(self, prompt: str, *, grounding: bool | None = None, pages: int = 1) -> str:
        """The text passed to the model for a row of ``pages``, stripped: a preset, or the user's
        own text.

        ``"locate:some words"`` fills the ``locate`` preset. The user's own text is put behind the
        family's ``leads``, ``<image>`` and a line break, then ``<|grounding|>`` unless
        ``grounding`` is False, if it carries no ``<image>`` itself; a text that does, and a preset,
        stay as they are.

        Raises OcrPhasesError for an empty prompt, for a preset that only other families have, for
        ``locate`` without words, for a preset that asks for boxes where ``grounding`` is False, for
        a ``grounding`` where the model marks boxes whatever it is asked, and for one word that is
        nearly a preset's name: write ``<image>`` and that word where it is meant.
        """
        if self.is_unknown:
            return self._own_text(prompt, grounding)
        prompt, prompts = prompt.strip(), self.prompts
        name, words = map(str.strip, prompt.partition(":")[::2])
        if name == "locate" or prompt in PROMPT_NAMES:
            check_known("prompt", name, prompts, self.title, ", or write your own")
        if grounding is not None and not self.leads[1]:
            raise OcrPhasesError(f"{self.title} marks boxes by itself: leave grounding out.")
        if name == "locate":
            if not words:
                raise OcrPhasesError(
                    'The locate prompt needs the words to find: write "locate:some words".'
                )
            return prompts["locate"].format(words=words)
        if prompt in prompts:
            if grounding is False and GROUNDING_TAG in prompts[prompt]:
                raise OcrPhasesError(
                    f"The prompt preset {prompt!r} asks for boxes, which grounding=False forbids: use the "
                    "preset 'free', which asks for none, or write the prompt yourself."
                )
            return prompts[prompt].replace(
                IMAGE_TAG, IMAGE_TAG * (pages if prompt == MULTIPAGE else 1)
            )
        if not prompt:
            raise OcrPhasesError(
                f"The prompt is empty: write one, or choose one of {', '.join(prompts)}."
            )
        if IMAGE_TAG in prompt:
            return prompt
        # One word, or what may be a misspelled "locate:some words".
        hint = (
            "" if " " in name else nearest(name.lower(), prompts if name == prompt else ["locate"])
        )
        if hint:
            raise OcrPhasesError(
                f"There is no prompt preset {name!r}: choose one of {', '.join(prompts)}, or write more than "
                f'one word, or "{IMAGE_TAG} {name}" for this one.{hint}'
            )
        return f"{self.leads[0]}{'' if grounding is False else self.leads[1]}{prompt}"


def _families() -> dict[str, FamilyFacts]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    files = Path(__file__).with_name("configs").glob("*.json")
    configs = {file.stem: json.loads(file.read_bytes()) for file in files}
    for name, row in table.items():
        like = table.get(row.get("like"), row)
        row = table[name] = {**like, "vendor": None, "attention": None, **row, "name": name}
        row |= {"config": configs[name], "unsaid": configs.get(row["encoder_part"], {})}
        row["published_limit"] = row["config"]["language_config"]["max_position_embeddings"]
        stages = (*row["encoders"], "projector", "language_model", "lm_head")
        modules = dict(zip(stages, like["native"]["modules"].values(), strict=True))
        row["native"] = {**like["native"], "modules": modules, **row["native"]}
        row["presets"] = {
            preset: {**sizes, "name": preset} for preset, sizes in row["presets"].items()
        }
    return msgspec.convert(table, dict[str, FamilyFacts])


#: The families by name.
FAMILIES = _families()

#: The vision encoders of all families; a record has spans of its own family's.
ENCODERS = tuple(dict.fromkeys(stage for facts in FAMILIES.values() for stage in facts.encoders))

#: The same and the projector, in the order that a view goes through them.
VISION_STAGES = (*ENCODERS, "projector")

#: The presets of all families.
PRESET_NAMES = tuple(dict.fromkeys(name for facts in FAMILIES.values() for name in facts.presets))

#: The prompt presets of all families.
PROMPT_NAMES = tuple(dict.fromkeys(name for facts in FAMILIES.values() for name in facts.prompts))


def windowed_length(length: int, prompt_len: int, window: int | None) -> int:
    """Cache entries that a step sees of ``length`` tokens, its own and the prompt's among them."""
    return length if window is None else min(length, prompt_len + window)


def facts_of(family: str | None) -> FamilyFacts:
    """A family's row; neutral facts for None and for a family that this version does not know."""
    if family in FAMILIES:
        return FAMILIES[family]
    return FamilyFacts(
        name=family or UNKNOWN,
        title=f"the family {family!r}"
        if family not in (None, UNKNOWN)
        else "a model of unknown family",
        saved_type="",
        encoder_part="",
        encoders=(),
        presets={PROCESSOR: Preset(PROCESSOR, base_size=0, image_size=0, crops=False)},
        prompts={"markdown": "Convert the document to markdown."},
        config={},
        native=Wiring(class_name="", modules={}, image_arguments=(), mask="2-D"),
        published={},
        published_limit=None,
        leads=("", ""),
    )


#: What a served name has to contain: a family's name, and perhaps a version that is no size or
#: date.
_SERVED = re.compile(
    r"(?<![a-z0-9])(deepseek|unlimited)[-_. ]?ocr(?:[-_. ]?v?(\d(?:\.\d+)?)(?![a-z0-9])|(?![a-z]))"
)
_BY_NAME = {
    ("deepseek", "1"): DEEPSEEK_OCR,
    ("deepseek", "2"): DEEPSEEK_OCR_2,
    ("unlimited", "1"): UNLIMITED_OCR,
}


def family_of_class(name: str) -> str:
    """The family that the name of a model's class tells, or ``unknown``:
    ``TinyDeepseekOCRForCausalLM``.
    """
    own = name.split("ForCausalLM")[0].split("ForConditional")[0]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", own)
    return family_of_name(words.replace("Deep Seek", "DeepSeek"))


def family_of_name(name: str) -> str:
    """The family that a served model's name or class tells, or ``unknown``.

    ``DeepSeek-OCR-2-awq`` tells DeepSeek-OCR-2, and ``deepseek-ocr-2025-10`` DeepSeek-OCR. A name
    that tells another version or several families tells none.
    """
    found = set()
    for maker, version in _SERVED.findall(
        name.lower().split("forcausallm")[0].split("forconditional")[0]
    ):
        found.add(_BY_NAME.get((maker, version or "1"), UNKNOWN))
    return found.pop() if len(found) == 1 else UNKNOWN
