"""The families of models by name: what must be known of each without torch, a row a family.

What a family does with a model is its module in `ocr_phases.measure.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ocr_phases.errors import OcrPhasesError
from ocr_phases.presets import PRESETS, PROMPTS, Preset

DEEPSEEK_OCR, DEEPSEEK_OCR_2 = "deepseek-ocr", "deepseek-ocr-2"


@dataclass(frozen=True)
class FamilyFacts:
    """One row of the table; ``name`` is what a record's model has as its ``family``.

    ``encoders`` are the stages that a view goes through before the projector. ``stands_for`` gives for a
    preset of another family the one here that does the same job, so that one name can be asked of them all.
    """

    name: str
    title: str
    encoders: tuple[str, ...]
    presets: Mapping[str, Preset]
    default_preset: str
    prompts: Mapping[str, str]
    stands_for: Mapping[str, str] = field(default_factory=dict)

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
            )
        return found


FAMILIES: dict[str, FamilyFacts] = {
    facts.name: facts
    for facts in (
        FamilyFacts(
            name=DEEPSEEK_OCR,
            title="DeepSeek-OCR",
            encoders=("sam", "clip"),
            presets=PRESETS,
            default_preset="gundam",
            prompts=PROMPTS,
        ),
        FamilyFacts(
            name=DEEPSEEK_OCR_2,
            title="DeepSeek-OCR-2",
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
    )
}
"""The families by name; the first is that of a record that names none."""

ENCODERS = tuple(dict.fromkeys(stage for facts in FAMILIES.values() for stage in facts.encoders))
"""The vision encoders of all families; a record has spans of its own family's."""

VISION_STAGES = (*ENCODERS, "projector")
"""The same and the projector, in the order that a view goes through them."""

PRESET_NAMES = tuple(dict.fromkeys(name for facts in FAMILIES.values() for name in facts.presets))
"""The presets of all families."""


def facts_of(family: str | None) -> FamilyFacts:
    """A family's row; DeepSeek-OCR's for None, as of old records. OcrPhasesError for an unknown name."""
    name = DEEPSEEK_OCR if family is None else family
    if name not in FAMILIES:
        raise OcrPhasesError(f"There is no family {name!r} here: it knows {', '.join(FAMILIES)}.")
    return FAMILIES[name]


def get_preset(name: str, family: str | None = None) -> Preset:
    """The preset of that name of a family; raises OcrPhasesError, listing the known ones, for none."""
    return facts_of(family).preset(name)


def check_preset(name: str) -> None:
    """Raise OcrPhasesError for a name that is no preset of any family."""
    if name not in PRESET_NAMES:
        raise OcrPhasesError(f"There is no preset {name!r}: choose one of {', '.join(PRESET_NAMES)}.")
