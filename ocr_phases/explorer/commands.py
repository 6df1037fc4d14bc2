"""What a browser asks the panel for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """What a browser asks for: ``do`` names it, ``sender`` is the place that waits for the answer.

    ``key`` is a record's, ``label`` the words of the button, ``value`` what was typed, and
    ``files`` are what was chosen, dropped or pasted, as names and contents.
    """

    do: str
    sender: str = ""
    key: str = ""
    label: str = ""
    value: str = ""
    files: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of_message(cls, content: Mapping[str, Any], buffers: Sequence[memoryview]) -> Command:
        """The command of a message of ``panel.js``."""
        names = content.get("names", [])
        contents = [bytes(buffer) for buffer in buffers]
        return cls(
            do=content["do"],
            sender=content["from"],
            key=content.get("key", ""),
            label=content.get("label", ""),
            value=content.get("value", ""),
            files=tuple(zip(names, contents, strict=True)),
        )
