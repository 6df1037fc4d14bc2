"""What the pages say: words, made-up words, numbers, dates, sums of money, names, codes, with
punctuation.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from benchmarks.random_pages.vocabulary import COMMON, FIRST_NAMES, GOODS, LAST_NAMES, PLACES, SHORT

_LOWER = "abcdefghijklmnopqrstuvwxyz"
_ACCENTED = "àáâãäåæçèéêëíîïñóôõöøùúûüß"
_VOWELS, _CONSONANTS = "aeiouy", "bcdfghjklmnprstvwz"
#: Codes leave out what many faces draw alike: I, l, 1 and O, 0.
_CODE = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_MIXED = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: English is seldom in its dictionary form.
_ENDINGS = ("s", "s", "s", "ed", "ed", "ing", "ing", "er", "ly", "'s")
_BRACKETS = ("()", "()", "()", "[]", "{}", "<>", "“”", '""', "‘’")
_CURRENCY = "$€£"
_MARKUP = re.compile(r"<\||\|>|</?(?:table|tr|td|image)>")


class Words:
    """An endless supply of text in the characters that a page's fonts have.

    ``plain`` is the share of common words among the words; the others are made-up ones, which can
    only be read, never guessed. The more plain the words, the fewer numbers, names and signs stand
    between them.
    """

    def __init__(self, rng: random.Random, allowed: frozenset[str], plain: float) -> None:
        self.rng = rng
        self._allowed = allowed
        self._common = plain
        self._capital = True
        self._kinds = (self.number, self.date, self.money, self.code, self.name)

    def token(self, *, start: bool = False) -> str:
        """The next word of running text, with its punctuation; ``start`` begins a sentence."""
        return self.drawable(lambda: self._punctuated(self._capital or start))

    def shows(self, text: str) -> bool:
        """Whether the fonts have all of it."""
        return self._allowed.issuperset(text)

    def plain(self) -> str:
        """A word of letters in lower case, common or made up."""
        return self.drawable(self._ordinary if self.rng.random() < self._common else self._made_up)

    def phrase(self, least: int, most: int) -> str:
        """So many plain words, the first one capitalised."""
        words = [self.plain() for _ in range(self.rng.randint(least, most))]
        return _capitalised(" ".join(words))

    def heading(self, choices: tuple[str, ...]) -> str:
        """One of ``choices`` or a phrase."""
        return self.rng.choice(choices) if self.rng.random() < 0.4 else self.phrase(1, 4)

    def goods(self) -> str:
        """Something to buy."""
        return self.drawable(
            lambda: self.rng.choice(GOODS) if self.rng.random() < 0.6 else self.phrase(1, 2)
        )

    def number(self) -> str:
        """An integer, a decimal or a percentage."""
        rng = self.rng
        value = rng.randrange(10 ** rng.randint(1, 5))
        form = rng.random()
        if form < 0.45:
            return str(value)
        if form < 0.6:
            return f"{value:,}"
        if form < 0.85:
            return f"{value % 1000}.{rng.randrange(10 ** rng.randint(1, 2))}"
        return f"{value % 100}%"

    def date(self) -> str:
        """A date or a time of day."""
        rng = self.rng
        year, month, day = rng.randint(1950, 2039), rng.randint(1, 12), rng.randint(1, 28)
        return rng.choice(
            (
                f"{year}-{month:02d}-{day:02d}",
                f"{day:02d}/{month:02d}/{year}",
                f"{day:02d}/{month:02d}/{year % 100:02d}",
                f"{day:02d}.{month:02d}.{year}",
                f"{_MONTHS[month - 1]} {day}, {year}",
                f"{day} {_MONTHS[month - 1]} {year}",
                f"{rng.randrange(24):02d}:{rng.randrange(60):02d}",
            )
        )

    def money(self) -> str:
        """A sum with its currency."""
        rng = self.rng
        value = rng.randrange(10 ** rng.randint(1, 5))
        cents = f".{rng.randrange(100):02d}" if rng.random() < 0.6 else ""
        return f"{self.drawable(lambda: rng.choice(_CURRENCY), '$')}{value:,}{cents}"

    def code(self) -> str:
        """A reference number."""
        rng = self.rng
        head = "".join(rng.choices(_CODE, k=rng.randint(1, 4)))
        tail = str(rng.randrange(10 ** rng.randint(1, 5)))
        return head + rng.choice(("-", "-", "", "/", "_", ".")) + tail

    def name(self) -> str:
        """A person or a place."""
        rng = self.rng
        first, last, place = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES), rng.choice(PLACES)
        return rng.choice(
            (f"{first} {last}", f"Dr. {last}", f"{first[0]}. {last}", last, place, first)
        )

    def _ordinary(self) -> str:
        """A word of English, as often a short one and as often with an ending as about in any
        text.
        """
        form = self.rng.random()
        if form < 0.25:
            return self.rng.choice(SHORT)
        word = self.rng.choice(COMMON)
        if form < 0.7 or len(word) < 3:
            return word
        ending = self.rng.choice(_ENDINGS)
        return (word[:-1] if word[-1] == "e" and ending[0] in "ei" else word) + ending

    def _made_up(self) -> str:
        rng = self.rng
        length = rng.choice((2, 3, 3, 4, 4, 5, 5, 6, 7, 8))
        form = rng.random()
        if form < 0.04:
            letters = [*rng.choices(_LOWER, k=length - 1), rng.choice(_ACCENTED)]
            rng.shuffle(letters)
            return "".join(letters)
        if form < 0.45:
            return "".join(rng.choice(_VOWELS if i % 2 else _CONSONANTS) for i in range(length))
        if form < 0.9:
            return "".join(rng.choices(_LOWER, k=length))
        return "".join(rng.choices(_MIXED, k=length))

    def _punctuated(self, start: bool) -> str:
        rng = self.rng
        if rng.random() < 0.75 + 0.2 * self._common:
            word = self.plain()
            case = rng.random()
            if start or case < 0.1:
                word = _capitalised(word)
            elif case < 0.13:
                word = word.upper()
            elif case < 0.15:
                word = f"{word}{rng.choice(('-', '-', '/', chr(39)))}{self.plain()}"
        else:
            kinds = rng.choices(self._kinds, weights=(5, 3, 3, 3, 3))
            word = kinds[0]()
        self._capital = False
        if len(word) < 2:
            return word
        mark = rng.random()
        if mark < 0.16 and not word[-1].isalnum():
            return word
        if mark < 0.07:
            return word + ","
        if mark < 0.13:
            self._capital = True
            return word + rng.choice(("." * 5) + "!?")
        if mark < 0.16:
            return word + rng.choice(":;")
        if mark < 0.185:
            pair = rng.choice(_BRACKETS)
            return pair[0] + word + pair[1]
        return word

    def drawable(self, make: Callable[[], str], instead: str = "") -> str:
        """What ``make`` returns, tried until the fonts can show it and no markup is in it."""
        for _ in range(12):
            text = make()
            if self._allowed.issuperset(text) and not _MARKUP.search(text):
                return text
        return instead or self.rng.choice(COMMON)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
