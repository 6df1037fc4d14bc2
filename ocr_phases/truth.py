"""What a page really says, or what another run wrote: the text and regions that a record is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class TrueRegion:
    """A region of a truth: its label, its box `(x1, y1, x2, y2)` on the 0..999 grid, and its text."""

    label: str
    box: tuple[int, int, int, int] | None
    text: str


@dataclass(frozen=True)
class Truth:
    """A page's text as Markdown in reading order, and its regions in that order where they are known.

    ``reference`` is true where another run wrote it: a run is in agreement with that, not right or wrong.
    ``category`` is the kind of page, where the truth says it. ``ignored`` are labels of regions that the text
    leaves out: what a run wrote in such regions is left out, too.
    """

    text: str
    regions: tuple[TrueRegion, ...] = ()
    file: str = ""
    reference: bool = False
    category: str = ""
    ignored: tuple[str, ...] = ()

    def says(self) -> tuple[Any, ...]:
        """What two truths have to share to be one: all but their names."""
        return self.text, self.regions, self.reference, self.ignored

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, as a record keeps them; `from_dict` is the inverse."""
        regions = [{**asdict(region), "box": region.box and list(region.box)} for region in self.regions]
        return {**asdict(self), "regions": regions, "ignored": list(self.ignored)}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Truth:
        """The truth that `as_dict` wrote."""
        regions = [{**region, "box": region["box"] and tuple(region["box"])} for region in kept["regions"]]
        found = tuple(TrueRegion(region["label"], region["box"], region["text"]) for region in regions)
        known = {item.name: kept[item.name] for item in fields(cls)}  # a later version may keep more
        return cls(**{**known, "regions": found, "ignored": tuple(kept["ignored"])})
