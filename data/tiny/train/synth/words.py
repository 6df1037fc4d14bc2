"""What the pages say: words, made-up words, numbers, dates, sums of money, names, codes, with punctuation."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable

from synth.texts import Texts
from synth.vocabulary import COMMON, FIRST_NAMES, GOODS, LAST_NAMES, PLACES, SHORT

_LOWER = "abcdefghijklmnopqrstuvwxyz"
_ACCENTED = "àáâãäåæçèéêëíîïñóôõöøùúûüß"
_VOWELS, _CONSONANTS = "aeiouy", "bcdfghjklmnprstvwz"
#: Codes leave out what many faces draw alike: I, l, 1 and O, 0.
_CODE = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_MIXED = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNITS = ("%", "°C", "kg", "km", "ms", "GB", "cm", "µm", "m²", "V", "Hz", "px", "£", "€")
_SIGNS = (
    "&",
    "&",
    "&",
    "+",
    "+",
    "=",
    "→",
    "±",
    "×",
    "≤",
    "≥",
    "<",
    ">",
    "~",
    "|",
    "/",
    "–",
    "—",
    "•",
    "·",
    "*",
    "#",
    "≠",
    "÷",
)
_ATTACHED = ("®", "™", "©", "§", "#", "@", "*", "^", "_", "\\", "`", "¡", "¿", "½", "¼", "³")
#: English is seldom in its dictionary form.
_ENDINGS = ("s", "s", "s", "ed", "ed", "ing", "ing", "er", "ly", "'s")
_BRACKETS = ("()", "()", "()", "[]", "{}", "<>", "“”", '""', "‘’")
_CURRENCY = "$€£"
_SYLLABLES = (
    "an ber con del er fen gra hin is jor kel lum mer nis or pra qui ran sten tor ul ver wen xi yor zen"
)
_DOUBLES = "bcdefglmnoprst"
_MARKUP = re.compile(r"<\||\|>|</?(?:table|tr|td|image)>")


class Words:
    """An endless supply of text in the characters that a page's fonts have.

    ``plain`` is the share of common words among the words; the others are made-up ones, which can only be
    read, never guessed. The more plain the words, the fewer numbers, names and signs stand between them.
    With ``texts`` the words are those, and running text is their passages where ``prose`` is set.
    """

    def __init__(
        self,
        rng: random.Random,
        allowed: frozenset[str],
        plain: float = 0.6,
        texts: Texts | None = None,
        prose: bool = False,
    ) -> None:
        self.rng = rng
        self._allowed = allowed
        self._common = plain
        self._capital = True
        self._texts, self._prose = texts, prose
        self._passage: deque[str] = deque()
        self._kinds: tuple[Callable[[], str], ...] = (
            self.number, self.date, self.money, self.code, self.email, self.name, self.sign, self.measure
        )  # fmt: skip

    def token(self, *, start: bool = False) -> str:
        """The next word of running text, with its punctuation; ``start`` begins a sentence."""
        if self._texts and self._prose:
            return self._next_of_passage(self._texts, start)
        return self._possible(lambda: self._punctuated(self._capital or start))

    def _next_of_passage(self, texts: Texts, start: bool) -> str:
        if start:
            self._passage.clear()
        while not self._passage:
            words = [w for w in texts.passage(self.rng).split() if self.shows(w) and not _MARKUP.search(w)]
            self._passage.extend(words[self.rng.randrange(len(words)) if self.rng.random() < 0.5 else 0 :]
                                 if words else ())  # fmt: skip
        return self._passage.popleft()

    def shows(self, text: str) -> bool:
        """Whether the fonts have all of it."""
        return self._allowed.issuperset(text)

    def shown(self, text: str, instead: str) -> str:
        """``text`` where the fonts have all of it, else ``instead``."""
        return text if self.shows(text) else instead

    def plain(self) -> str:
        """A word of letters in lower case, common or made up."""
        return self._possible(self._ordinary if self.rng.random() < self._common else self._made_up)

    def phrase(self, least: int, most: int) -> str:
        """So many plain words, the first one capitalised."""
        words = [self.plain() for _ in range(self.rng.randint(least, most))]
        return self.shown(_capitalised(" ".join(words)), " ".join(words))

    def heading(self, choices: tuple[str, ...]) -> str:
        """One of ``choices`` or a phrase."""
        return self.rng.choice(choices) if self.rng.random() < 0.4 else self.phrase(1, 4)

    def goods(self) -> str:
        """Something to buy."""
        return self._possible(
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
        sign = self._possible(lambda: rng.choice(_CURRENCY), "$")
        return f"{sign}{value:,}{cents}"

    def code(self) -> str:
        """A reference number."""
        rng = self.rng
        head = "".join(rng.choices(_CODE, k=rng.randint(1, 4)))
        tail = str(rng.randrange(10 ** rng.randint(1, 5)))
        return head + rng.choice(("-", "-", "", "/", "_", ".")) + tail

    def email(self) -> str:
        """An address of the web."""
        rng = self.rng
        left, right = rng.choice(COMMON), rng.choice(COMMON)
        ending = rng.choice(("com", "org", "net", "de", "eu"))
        return rng.choice(
            (f"{left}@{right}.{ending}", f"www.{left}{right}.{ending}", f"{right}.{ending}/{left}")
        )

    def name(self) -> str:
        """A person or a place."""
        rng = self.rng
        first, last, place = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES), rng.choice(PLACES)
        return rng.choice((f"{first} {last}", f"Dr. {last}", f"{first[0]}. {last}", last, place, first))

    def sign(self) -> str:
        """A sign that stands alone, or a word that carries one."""
        rng = self.rng
        if rng.random() < 0.6:
            return rng.choice(_SIGNS)
        return (
            rng.choice(_ATTACHED) + self.plain()
            if rng.random() < 0.5
            else self.plain() + rng.choice(_ATTACHED)
        )

    def measure(self) -> str:
        """A quantity with its unit, a range or a product."""
        rng = self.rng
        a, b = rng.randrange(1, 500), rng.randrange(1, 500)
        return rng.choice(
            (f"{a}{rng.choice(_UNITS)}", f"{a}{rng.choice(_UNITS)}", f"{a}–{b}", f"{a}×{b}", f"±{b}")
        )

    def drawable(self, make: Callable[[], str]) -> str:
        """What ``make`` returns, tried until the fonts can show it."""
        return self._possible(make)

    def _ordinary(self) -> str:
        """A word of English, as often a short one and as often with an ending as about in any text."""
        if self._texts:
            return self._texts.word(self.rng)
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
        if self._texts and rng.random() < 0.6:
            return self._altered(self._texts)
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

    def _altered(self, texts: Texts) -> str:
        """A word that might be one: two halves, syllables, a letter doubled, changed or left out."""
        rng = self.rng
        word, form = texts.word(rng), rng.random()
        at = rng.randrange(len(word))
        if form < 0.3:
            other = texts.word(rng)
            return word[: len(word) // 2 + 1] + other[len(other) // 2 :]
        if form < 0.5:
            return "".join(rng.choices(_SYLLABLES.split(), k=rng.randint(2, 5)))
        if form < 0.7:
            return word[:at] + rng.choice(_DOUBLES) * 2 + word[at:]
        if form < 0.9:
            return word[:at] + rng.choice(_LOWER) + word[at + 1 :]
        return word[:at] + word[at + 1 :] or word

    def address(self) -> str:
        """Something with an address: of the web, of a file, of a call, of a telephone."""
        rng, word = self.rng, self.plain
        digits = "".join(rng.choices("0123456789", k=8))
        return rng.choice(
            (
                f"https://{word()}.{rng.choice(('org', 'com', 'de', 'io'))}/{word()}/{word()}.html",
                f"/{word()}/{word()}/{word()}.{rng.choice(('py', 'txt', 'conf'))}",
                f"{word()}_{word()}({word()}={rng.randrange(100)})",
                f"{word()}.{word()}[{rng.randrange(64)}]",
                f"+{rng.randrange(1, 99)} {digits[:3]} {digits[3:]}",
                f"--{word()}-{word()}",
                f"v{rng.randrange(9)}.{rng.randrange(30)}.{rng.randrange(9)}",
                f"{word()}.{word()}@{word()}.{rng.choice(('org', 'com', 'de', 'fr', 'es'))}",
            )
        )

    def label(self) -> str:
        """What stands before a value: any words, now and then in capitals."""
        text = self.phrase(1, 3)
        return self.shown(text.upper(), text) if self.rng.random() < 0.2 else text

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
            kinds = rng.choices(self._kinds, weights=(5, 3, 3, 3, 1.2, 3, 1.2, 2))
            word = self.address() if self._texts and rng.random() < 0.2 else kinds[0]()
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

    def _possible(self, make: Callable[[], str], instead: str = "") -> str:
        """What ``make`` returns, tried until the fonts can show it and no markup is in it."""
        for _ in range(12):
            text = make()
            if self._allowed.issuperset(text) and not _MARKUP.search(text):
                return text
        return instead or self.rng.choice(COMMON)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
