"""One table of every stage: its name, its title, its role, its place in the order, its colour.

A stage is a part of a phase that has a time of its own. A record names the stages that it has; what
it does not say of them stands here. To add a stage, add a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

#: What a stage does. A ``vision`` stage turns pixels into features, the ``projector`` turns those
#: into vectors of the language model, ``fusion`` puts them among the text's. ``other`` is what
#: nobody has declared.
Role = Literal[
    "whole", "prepare", "vision", "projector", "fusion", "language", "head", "sampling", "other"
]
ROLES: tuple[str, ...] = get_args(Role)

#: The roles whose times add up to the time of vision.
VISION_ROLES = ("vision", "projector")


@dataclass(frozen=True)
class Stage:
    """One row of the table.

    Attributes
    ----------
    name
        The name in records, spans and NVTX ranges.
    title
        The name in pictures and reports.
    role
        What the stage does.
    colour
        The colour of its bars, as ``#rrggbb``.
    """

    name: str
    title: str
    role: Role
    colour: str


#: All stages, in the order that a page goes through them. The whole of a phase comes first.
STAGES = (
    Stage("prepare", "prepare", "whole", "#8c8c8c"),
    Stage("prefill", "prefill", "whole", "#7568c8"),
    Stage("first_token", "first token", "whole", "#7568c8"),
    Stage("decode", "decode", "whole", "#d9730d"),
    Stage("decode_step", "decode step", "whole", "#d9730d"),
    Stage("generate", "generate", "whole", "#009e73"),
    Stage("load_image", "load image", "prepare", "#6e6e6e"),
    Stage("tokenizer", "tokenizer", "prepare", "#7f7f7f"),
    Stage("transfer", "transfer", "prepare", "#8c8c8c"),
    Stage("preprocess", "preprocess", "prepare", "#6e6e6e"),
    Stage("queue", "queue", "prepare", "#7f7f7f"),
    Stage("sam", "SAM", "vision", "#0072b2"),
    Stage("clip", "CLIP", "vision", "#4a96d2"),
    Stage("encoder", "encoder", "vision", "#4a96d2"),
    Stage("projector", "projector", "projector", "#009e73"),
    Stage("vision_fusion", "fusion", "fusion", "#c56ba0"),
    Stage("language_model", "language model", "language", "#b48c00"),
    Stage("lm_head", "LM head", "head", "#d1373c"),
    Stage("sampling", "sampling", "sampling", "#8a6d5a"),
)

_BY_NAME = {stage.name: stage for stage in STAGES}
_PLACES = {stage.name: place for place, stage in enumerate(STAGES)}

#: The colour of a stage that is not in the table.
_UNDECLARED_COLOUR = "#d9730d"

#: The vision encoders of all families.
ENCODERS = tuple(stage.name for stage in STAGES if stage.role == "vision")

#: The same and the projector, in the order that a view goes through them.
VISION_STAGES = tuple(stage.name for stage in STAGES if stage.role in VISION_ROLES)


def stage_of(name: str, role: Role | None = None) -> Stage:
    """The stage of that name; one that is not in the table has the ``role`` given, else
    ``other``.
    """
    stage = _BY_NAME.get(name)
    if stage is None:
        return Stage(name, name.replace("_", " "), role or "other", _UNDECLARED_COLOUR)
    if role is None or role == stage.role:
        return stage
    return Stage(name, stage.title, role, stage.colour)


def stage_title(name: str) -> str:
    """What a stage is called in a picture or a report; whatever else has a name keeps its words."""
    return stage_of(name).title


def stage_colour(name: str) -> str:
    """The colour of a stage's bars, as ``#rrggbb``."""
    return stage_of(name).colour


def stage_place(stage: Stage) -> int:
    """The place of a stage in the order; one that is not in the table follows those of its role."""
    if stage.name in _PLACES:
        return _PLACES[stage.name]
    places = [place for place, known in enumerate(STAGES) if known.role == stage.role]
    return max(places, default=len(STAGES))
