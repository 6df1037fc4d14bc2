"""What differs between model families, as plain Python: a module for each family, and no torch.

`FamilyFacts` says what each entry means. `ocr_phases.families.config` reads a ``config.json``.
"""

from __future__ import annotations

import re

from ocr_phases.families.deepseek_ocr import DEEPSEEK_OCR_FACTS
from ocr_phases.families.deepseek_ocr_2 import DEEPSEEK_OCR_2_FACTS
from ocr_phases.families.facts import FULL as FULL
from ocr_phases.families.facts import GROUNDING_TAG as GROUNDING_TAG
from ocr_phases.families.facts import IMAGE_TAG as IMAGE_TAG
from ocr_phases.families.facts import MULTIPAGE as MULTIPAGE
from ocr_phases.families.facts import NO_VIEWS as NO_VIEWS
from ocr_phases.families.facts import PROCESSOR as PROCESSOR
from ocr_phases.families.facts import PROMPT_NAMES as PROMPT_NAMES
from ocr_phases.families.facts import UNKNOWN as UNKNOWN
from ocr_phases.families.facts import WINDOWED as WINDOWED
from ocr_phases.families.facts import FamilyFacts as FamilyFacts
from ocr_phases.families.facts import Preset as Preset
from ocr_phases.families.facts import ViewSizes as ViewSizes
from ocr_phases.families.facts import Wiring as Wiring
from ocr_phases.families.facts import unknown_family
from ocr_phases.families.facts import windowed_length as windowed_length
from ocr_phases.families.unlimited_ocr import UNLIMITED_OCR_FACTS

#: The families by name. What a record's model has as its ``family`` is such a name.
FAMILIES = {
    facts.name: facts for facts in (DEEPSEEK_OCR_FACTS, DEEPSEEK_OCR_2_FACTS, UNLIMITED_OCR_FACTS)
}

DEEPSEEK_OCR = DEEPSEEK_OCR_FACTS.name
DEEPSEEK_OCR_2 = DEEPSEEK_OCR_2_FACTS.name
UNLIMITED_OCR = UNLIMITED_OCR_FACTS.name

#: The presets of all families.
PRESET_NAMES = tuple(dict.fromkeys(name for facts in FAMILIES.values() for name in facts.presets))
#: Which of them each family has, as the help of a command says it.
PRESETS_BY_FAMILY = (
    "; ".join(f"{facts.title} has {', '.join(facts.presets)}" for facts in FAMILIES.values()) + "."
)


def facts_of(family: str | None) -> FamilyFacts:
    """The facts of a family by its name.

    Neutral facts stand for None, and for a family that this version does not know.
    """
    if family in FAMILIES:
        return FAMILIES[family]
    return unknown_family(family)


#: What a served name has to contain: a family's name, and perhaps a version that is no size or
#: date.
_SERVED_NAME = re.compile(
    r"(?<![a-z0-9])(deepseek|unlimited)[-_. ]?ocr(?:[-_. ]?v?(\d(?:\.\d+)?)(?![a-z0-9])|(?![a-z]))"
)
_BY_MAKER_AND_VERSION = {
    ("deepseek", "1"): DEEPSEEK_OCR,
    ("deepseek", "2"): DEEPSEEK_OCR_2,
    ("unlimited", "1"): UNLIMITED_OCR,
}


def family_of_class(name: str) -> str:
    """The family that the name of a served model's class tells, or ``unknown``.

    ``TinyDeepseekOCRForCausalLM`` tells DeepSeek-OCR. A model that is loaded here has its family
    from its ``config.json`` (`ocr_phases.families.config`).
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", _without_task(name))
    return family_of_name(words.replace("Deep Seek", "DeepSeek"))


def family_of_name(name: str) -> str:
    """The family that a served model's name tells, or ``unknown``.

    ``DeepSeek-OCR-2-awq`` tells DeepSeek-OCR-2, and ``deepseek-ocr-2025-10`` DeepSeek-OCR. A name
    that tells another version or several families tells none.
    """
    families = set()
    for maker, version in _SERVED_NAME.findall(_without_task(name).lower()):
        families.add(_BY_MAKER_AND_VERSION.get((maker, version or "1"), UNKNOWN))
    if len(families) == 1:
        return families.pop()
    return UNKNOWN


def _without_task(name: str) -> str:
    """A name up to what a class has behind its model: ``ForCausalLM`` and the like."""
    return re.split("ForCausalLM|ForConditional", name, maxsplit=1, flags=re.IGNORECASE)[0]
