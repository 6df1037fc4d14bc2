"""The families of models by name: what must be known of each without torch, a row a family.

What a family does with a model is its module in `ocr_phases.measure.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ocr_phases.errors import OcrPhasesError
from ocr_phases.presets import IMAGE_TAG, LEADS, PRESETS, PROMPTS, Preset, resolve_prompt
from ocr_phases.words import nearest

FULL, WINDOWED = "full_attention", "reference_sliding_attention"
DEEPSEEK_OCR, DEEPSEEK_OCR_2, UNLIMITED_OCR = "deepseek-ocr", "deepseek-ocr-2", "unlimited-ocr"


#: The no-repeat n-gram size of DeepSeek's ``infer()``, without and with its ``eval_mode``.
_PUBLISHED: Mapping[str, Mapping[str, int]] = {
    "published": {"no_repeat_ngram_size": 20},
    "published-eval": {"no_repeat_ngram_size": 35},
}


@dataclass(frozen=True)
class FamilyFacts:
    """One row of the table; ``name`` is what a record's model has as its ``family``.

    ``encoders`` are the stages that a view goes through before the projector. ``stands_for`` gives for a
    preset of another family the one here that does the same job, so that one name can be asked of them all.
    ``leads`` stand before a prompt of the user's own: the page's place, and the tag that asks for boxes,
    empty where the model marks them by itself. ``published`` has the sampling values of the published code,
    which makes at most ``published_limit`` tokens, those of the prompt among them if ``limit_has_prompt``.
    ``page_mark`` stands in the output before each page, and says that a region's mark has its label and box
    in one (`ocr_phases.analyse.grounding`); ``result_name`` is the file of the text.
    ``multipage`` is the prompt that takes a whole list of pages as one, ``multipage_preset`` the preset
    of such a list, which has no crops, ``multipage_infer`` what ``published`` has otherwise there.

    ``published_type`` and ``saved_type`` are the ``model_type`` of its ``config.json`` as published and as
    transformers saves it, ``encoder_part`` is the published name of the second vision encoder, ``attention``
    that of all layers of the language model, None where its class knows no other than full attention.
    """

    name: str
    title: str
    published_type: str
    saved_type: str
    encoder_part: str
    attention: str | None
    encoders: tuple[str, ...]
    presets: Mapping[str, Preset]
    default_preset: str
    prompts: Mapping[str, str]
    stands_for: Mapping[str, str] = field(default_factory=dict)
    leads: tuple[str, str] = LEADS
    published: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: _PUBLISHED)
    published_limit: int = 8192
    limit_has_prompt: bool = False
    page_mark: str | None = None
    result_name: str = "result.mmd"
    multipage: str | None = None
    multipage_preset: str | None = None
    multipage_infer: Mapping[str, int] = field(default_factory=dict)

    @property
    def vision_stages(self) -> tuple[str, ...]:
        """The stages of a vision call, in their order."""
        return (*self.encoders, "projector")

    def preset(self, name: str) -> Preset:
        """The preset of that name; raises OcrPhasesError, listing the known ones, when there is none."""
        found = self.presets.get(self.stands_for.get(name, name))
        if found is None:
            raise OcrPhasesError(
                f"There is no preset {name!r} of {self.title}: choose one of {', '.join(self.presets)}."
                f"{nearest(name, self.presets)}"
            )
        return found

    def text_of(self, prompt: str, *, grounding: bool | None = None, pages: int = 1) -> str:
        """The text handed to the model (`ocr_phases.presets.resolve_prompt`), for one row of ``pages``.

        Raises OcrPhasesError as that does, for a prompt that only other families have, and for a
        ``grounding`` where the model marks boxes whatever it is asked.
        """
        name = prompt.strip().partition(":")[0].rstrip()
        elsewhere = name == "locate" or any(prompt.strip() in facts.prompts for facts in FAMILIES.values())
        if elsewhere and name not in self.prompts:
            raise OcrPhasesError(
                f"There is no prompt {name!r} of {self.title}: choose one of {', '.join(self.prompts)}, or "
                "write your own."
            )
        if grounding is not None and not self.leads[1]:
            raise OcrPhasesError(f"{self.title} marks boxes by itself: leave grounding out.")
        text = resolve_prompt(prompt, grounding=grounding, prompts=self.prompts, leads=self.leads)
        return text.replace(IMAGE_TAG, IMAGE_TAG * pages) if name == self.multipage else text


FAMILIES: dict[str, FamilyFacts] = {
    facts.name: facts
    for facts in (
        FamilyFacts(
            name=DEEPSEEK_OCR,
            title="DeepSeek-OCR",
            published_type="deepseek_vl_v2",
            saved_type="unlimited_ocr",
            encoder_part="clip-l-14-224",
            attention=FULL,
            encoders=("sam", "clip"),
            presets=PRESETS,
            default_preset="gundam",
            prompts=PROMPTS,
        ),
        FamilyFacts(
            name=DEEPSEEK_OCR_2,
            title="DeepSeek-OCR-2",
            published_type="deepseek_vl_v2",
            saved_type="deepseek_ocr2",
            encoder_part="qwen2-0-5b",
            attention=None,
            encoders=("sam", "encoder"),
            presets={
                preset.name: preset
                for preset in (
                    Preset("small768", 768, 768, False, direct_size=768, row_ends=False),
                    Preset("base1024", 1024, 1024, False, direct_size=768, row_ends=False),
                    Preset("crop", 1024, 768, True, most_tiles=6, row_ends=False),
                )
            },
            default_preset="crop",
            prompts=PROMPTS,
            stands_for={"tiny": "small768", "small": "small768", "base": "base1024", "gundam": "crop"},
        ),
        FamilyFacts(
            name=UNLIMITED_OCR,
            title="Unlimited-OCR",
            published_type="unlimited-ocr",
            saved_type="unlimited_ocr",
            encoder_part="clip-l-14-224",
            attention=WINDOWED,
            encoders=("sam", "clip"),
            presets={
                preset.name: preset
                for preset in (
                    PRESETS["small"],
                    PRESETS["base"],
                    Preset("gundam", 1024, 640, True, most_tiles=32),
                )
            },
            default_preset="gundam",
            prompts={
                "markdown": f"{IMAGE_TAG}document parsing.",
                "multipage": f"{IMAGE_TAG}Multi page parsing.",
            },
            stands_for={"tiny": "small", "small768": "small", "base1024": "base", "crop": "gundam"},
            leads=(IMAGE_TAG, ""),
            published={
                "published": {"no_repeat_ngram_size": 35, "no_repeat_ngram_window": 128},
                "published-eval": {},
            },
            published_limit=32768,
            limit_has_prompt=True,
            page_mark="<PAGE>",
            result_name="result.md",
            multipage="multipage",
            multipage_preset="base",
            multipage_infer={"no_repeat_ngram_window": 1024},
        ),
    )
}
"""The families by name; the first is that of a record that names none."""

ENCODERS = tuple(dict.fromkeys(stage for facts in FAMILIES.values() for stage in facts.encoders))
"""The vision encoders of all families; a record has spans of its own family's."""

VISION_STAGES = (*ENCODERS, "projector")
"""The same and the projector, in the order that a view goes through them."""

PRESET_NAMES = tuple(dict.fromkeys(name for facts in FAMILIES.values() for name in facts.presets))
"""The presets of all families."""


def windowed_length(length: int, prompt_len: int, window: int | None) -> int:
    """Cache entries that a step sees of ``length`` tokens, its own and the prompt's among them."""
    return length if window is None else min(length, prompt_len + window)


def facts_of(family: str | None) -> FamilyFacts:
    """A family's row; DeepSeek-OCR's for None, as of old records. OcrPhasesError for an unknown name."""
    name = DEEPSEEK_OCR if family is None else family
    if name not in FAMILIES:
        raise OcrPhasesError(
            f"There is no family {name!r} here: it knows {', '.join(FAMILIES)}.{nearest(name, FAMILIES)}"
        )
    return FAMILIES[name]


def get_preset(name: str, family: str | None = None) -> Preset:
    """The preset of that name of a family; raises OcrPhasesError, listing the known ones, for none."""
    return facts_of(family).preset(name)


def preset_job(name: str) -> str:
    """The preset of Unlimited-OCR for the same job, by which families are compared; else the name itself."""
    return FAMILIES[UNLIMITED_OCR].stands_for.get(name, name)


def check_preset(name: str) -> None:
    """Raise OcrPhasesError for a name that is no preset of any family."""
    if name not in PRESET_NAMES:
        hint = nearest(name, PRESET_NAMES)
        raise OcrPhasesError(f"There is no preset {name!r}: choose one of {', '.join(PRESET_NAMES)}.{hint}")
