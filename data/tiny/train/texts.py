"""The text that pages are made of: words by frequency and passages of prose in four languages.

    pip install --target WORDFREQ wordfreq && PYTHONPATH=WORDFREQ python data/tiny/train/texts.py TEXTS

Words come from PyPI's ``wordfreq``, passages from the documentation in Debian's `PACKAGES`, fetched by
``apt-get download`` and unpacked, not installed. Nothing of it is shipped but the weights that learned it.
"""

from __future__ import annotations

import argparse
import gzip
import html
import re
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from synth import CHARACTERS
from synth.texts import HELD_OUT, LANGUAGES, PASSAGES, WORDS
from synth.vocabulary import COMMON

#: Debian packages by language.
PACKAGES = {
    "en": (
        *("fortunes", "fortunes-min", "python3.11-doc", "manpages", "libreoffice-help-en-us", "anarchism"),
        *("debian-reference-en", "debian-faq"),
    ),
    "de": ("fortunes-de", "manpages-de", "libreoffice-help-de", "debian-reference-de"),
    "fr": ("manpages-fr", "libreoffice-help-fr", "debian-reference-fr"),
    "es": ("fortunes-es", "manpages-es", "libreoffice-help-es", "debian-reference-es"),
}
_WORDS = {"en": 45_000, "de": 20_000, "fr": 15_000, "es": 15_000}
_MOST_BYTES = {"en": 9_000_000, "de": 2_500_000, "fr": 2_500_000, "es": 2_500_000}
_LONGEST, _SHORTEST = 700, 40
_FAMILY = 5  # words that begin with the same letters are held out together
_FREQUENT = 1000  # and none of the most frequent
_LETTERS = re.compile(r"[^\W\d_]+")
_BLOCK = re.compile(r"<(?:p|li|dd|h[1-4])\b[^>]*>(.*?)</(?:p|li|dd|h[1-4])>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_ESCAPES = ((r"\-", "-"), (r"\&", ""), (r"\e", "\\"), (r"\(aq", "'"), (r"\(lq", "“"), (r"\(rq", "”"))
_FONT = re.compile(r"\\f(?:\[\w*\]|\(\w\w|\w)")
_MACRO = re.compile(r"^\.(?:B|I|BR|RB|IR|RI|BI|IB|SM)\s+")


def held_out(text: str, one_in: int) -> bool:
    """Whether a word family or a passage is kept for evaluation: one in so many, always the same."""
    return zlib.crc32(text.encode()) % one_in == 0


@cache
def is_held_out_word(word: str) -> bool:
    """Whether training never shows this word, nor any that begins with the same five letters."""
    return word not in _frequent() and held_out(word[:_FAMILY], 50)


@cache
def _frequent() -> frozenset[str]:
    common = {word[:_FAMILY] for word in (*COMMON, *_top("en", _FREQUENT))}
    return frozenset(word for word in _top("en", _WORDS["en"]) if word[:_FAMILY] in common)


@cache
def _top(language: str, count: int) -> tuple[str, ...]:
    from wordfreq import top_n_list  # type: ignore[import-not-found]

    return tuple(top_n_list(language, count))


def words(language: str) -> Iterator[str]:
    """Words of letters alone, the most frequent first; German nouns cannot be told and are in lower case."""
    allowed = frozenset(CHARACTERS)
    for word in _top(language, _WORDS[language]):
        if word.isalpha() and allowed.issuperset(word) and 1 < len(word) <= 16:
            yield word


def passages(folder: Path) -> Iterator[str]:
    """Paragraphs of a package's unpacked files, as one line each."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or "changelog" in path.name or "/off/" in str(path):
            continue
        if path.suffix == ".html":
            content = path.read_text("utf-8", errors="ignore")
            pieces: Iterable[str] = (html.unescape(_TAG.sub("", part)) for part in _BLOCK.findall(content))
        elif "/man/" in str(path) and path.suffix == ".gz":
            pieces = _manual(gzip.decompress(path.read_bytes()).decode("utf-8", errors="ignore"))
        elif "/fortunes" in str(path) and path.suffix not in (".dat", ".u8", ".gz"):
            pieces = path.read_text("utf-8", errors="ignore").split("\n%\n")
        else:
            continue
        for piece in pieces:
            yield from _cut(" ".join(piece.replace("\u00ad", "").split()))


def _manual(source: str) -> Iterator[str]:
    lines: list[str] = []
    for line in source.splitlines():
        line = _MACRO.sub("", line)
        if line.startswith((".", "'")):
            yield " ".join(lines)
            lines = []
            continue
        for escape, character in _ESCAPES:
            line = line.replace(escape, character)
        lines.append(_FONT.sub("", line))
    yield " ".join(lines)


def _cut(text: str) -> Iterator[str]:
    """The text, or its sentences in runs that are not too long, where it is prose in known characters."""
    while text:
        end = len(text) if len(text) <= _LONGEST else text.rfind(". ", 0, _LONGEST) + 1
        if end <= 0:
            return
        part, text = text[:end], text[end:].lstrip()
        letters = sum(map(str.isalpha, part))
        if len(part) >= _SHORTEST and letters > 0.7 * len(part) and _known().issuperset(part):
            yield part


@cache
def _known() -> frozenset[str]:
    return frozenset(CHARACTERS)


def fetch(packages: Sequence[str], folder: Path) -> None:
    """Download and unpack Debian packages."""
    subprocess.run(["apt-get", "download", "-qq", *packages], cwd=folder, check=True)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / package.name.partition("_")[0]], check=True)


def build(folder: Path) -> None:
    """Fill ``folder`` with a file of words and one of passages for each language, and what is held out."""
    folder.mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        every = list(words(language))
        (folder / WORDS.format(language)).write_text("\n".join(w for w in every if not is_held_out_word(w)))
        found: dict[str, None] = {}
        with tempfile.TemporaryDirectory() as work:
            fetch(PACKAGES[language], Path(work))
            for package in PACKAGES[language]:
                found |= dict.fromkeys(passages(Path(work) / package))
        chosen = sorted(found, key=lambda text: zlib.crc32(text.encode()[::-1]))
        kept, apart, room = [], [], _MOST_BYTES[language]
        for text in chosen:
            if held_out(text, 40):
                apart.append(text)
            elif not any(is_held_out_word(word) for word in _LETTERS.findall(text.lower())):
                kept.append(text)
                room -= len(text)
            if room < 0:
                break
        (folder / PASSAGES.format(language)).write_text("\n".join(kept))
        if language == "en":
            (folder / WORDS.format(HELD_OUT)).write_text("\n".join(filter(is_held_out_word, every)))
            (folder / PASSAGES.format(HELD_OUT)).write_text("\n".join(apart))
        print(f"{language}: {len(every)} words, {len(kept)} passages, {len(apart)} held out", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch the sources and write words and passages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, metavar="TEXTS", help="created where it is missing")
    build(parser.parse_args(arguments).folder)


if __name__ == "__main__":
    main()
