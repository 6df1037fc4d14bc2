"""Words and passages that `texts.py` collected, as pages draw on them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

LANGUAGES, HELD_OUT = ("en", "de", "fr", "es"), "held-out"
WORDS, PASSAGES = "words-{}.txt", "passages-{}.txt"
_SHARES = (70, 10, 10, 10)


@dataclass(frozen=True, eq=False)
class Texts:
    """One language's words, the most frequent first, and passages of prose; ``even``: no word is likelier."""

    words: tuple[str, ...]
    passages: tuple[str, ...]
    even: bool = False

    def word(self, rng: random.Random) -> str:
        """A word: half of the time any of them, else the likelier the more frequent it is."""
        count = len(self.words)
        frequent = not self.even and rng.random() < 0.5
        return self.words[int(count ** rng.random() if frequent else count * rng.random())]

    def passage(self, rng: random.Random) -> str:
        """A passage."""
        return rng.choice(self.passages)


@lru_cache(maxsize=8)
def load_texts(folder: Path, language: str) -> Texts:
    """The texts of a language, or those ``held-out`` for evaluation."""
    words, passages = (
        tuple((folder / name.format(language)).read_text("utf-8").split("\n")) for name in (WORDS, PASSAGES)
    )
    return Texts(words, passages, language == HELD_OUT)


def any_texts(folder: Path, rng: random.Random) -> Texts:
    """The texts of some language, English mostly."""
    return load_texts(folder, rng.choices(LANGUAGES, _SHARES)[0])
