"""The tokenizer: built from the pages' own text, written as tokenizer.json and tokenizer_config.json.

Byte-level BPE with short pieces (at most four characters, a space in front counted), so that a page costs
fewer tokens than characters but a token still has to be read and cannot be guessed from its first letters.
Single digits are never merged.

Coordinates, labels and the brackets of a box are tokens that typed text never encodes to: in the file they
begin with the invisible U+2063, which decoding removes. Typed text is bytes to this tokenizer, so anything
survives a round trip, a typed U+2063 too.

    python data/tiny/train/tokenizer.py --fonts DIR --out DIR
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS, PAD, IMAGE = 0, 1, 2, 3
SPECIAL = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<image>"),
    *("<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>"),
)
TABLE = ("<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>")
LABELS = (
    *("title", "sub_title", "text", "list", "table", "image", "equation", "header", "footer", "caption"),
    *("image_caption", "table_caption", "page_number", "figure_title", "footnote", "other"),
)
BOX = ("[[", ", ", "]]")
MARK = "\u2063"
COORDINATES = 1000
_LONGEST_PIECE = 4


class _Region(Protocol):
    @property
    def label(self) -> str: ...
    @property
    def box(self) -> tuple[int, int, int, int]: ...
    @property
    def text(self) -> str: ...


def build_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer of ``size`` tokens whose merges are learned from ``texts``; same texts, same file."""
    marked = [MARK + piece.replace(" ", "Ġ") for piece in (*LABELS, *BOX, *map(str, range(COORDINATES)))]
    fixed = [*SPECIAL, *TABLE, *marked]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(fixed),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=_LONGEST_PIECE,
        show_progress=False,
    )
    learner.train_from_iterator(_without_tags(texts), trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    vocabulary = {piece: number for number, piece in enumerate([*fixed, *pieces])}
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, ""), decoders.ByteLevel()])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in TABLE])
    return tokenizer


def _pre_tokenizer() -> Any:
    words = Regex(r"\n\n|\n| ?[\p{L}\p{M}]+|\d| ?[^\s\p{L}\p{M}\d]+| +|\s")
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _without_tags(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        for tag in TABLE:
            text = text.replace(tag, "\n")
        yield text


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write both files, in the form that transformers and the package load."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=False))
    label = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    label |= {"clean_up_tokenization_spaces": False, "model_max_length": 4096}
    text = json.dumps(label, ensure_ascii=False, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Codec:
    """What training needs of a tokenizer: targets as ids, ids as text, and the kind of each id."""

    tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: Path) -> Codec:
        """From a folder with tokenizer.json."""
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Typed text, nothing added."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, tags kept, without begin, end and padding."""
        return self.tokenizer.decode([i for i in ids if i > PAD], skip_special_tokens=False)

    def target(self, page: Any, prompt: str) -> list[int]:
        """What a perfect reader answers to the prompt preset, with the end token."""
        if prompt == "free":
            return [*self.encode(page.free), EOS]
        if prompt == "ocr":
            parts = [self._line(line) for line in page.lines]
            gap = self.encode("\n")
        else:
            parts = [self._block(region) for region in page.regions]
            gap = self.encode("\n\n")
        ids: list[int] = []
        for part in parts:
            ids += (gap if ids else []) + part
        return [*ids, EOS]

    def _block(self, region: _Region) -> list[int]:
        label = self._marked(region.label)
        if label is None:
            raise ValueError(f"The label {region.label!r} has no token: add it to LABELS.")
        text = self.encode(f"\n{region.text}") if region.text else []
        return [*self._ids("<|ref|>"), label, *self._ids("<|/ref|>"), *self._box(region), *text]

    def _line(self, region: _Region) -> list[int]:
        return [*self._ids("<|ref|>"), *self.encode(region.text), *self._ids("<|/ref|>"), *self._box(region)]

    def _box(self, region: _Region) -> list[int]:
        first, between, last = (self._marked(piece) for piece in BOX)
        ids = [*self._ids("<|det|>"), first]
        for place, value in enumerate(region.box):
            ids += ([between] if place else []) + [self._marked(str(value))]
        return [*ids, last, *self._ids("<|/det|>")]

    def _ids(self, text: str) -> list[int]:
        return [self.tokenizer.token_to_id(text)]

    def _marked(self, piece: str) -> int | None:
        return self.tokenizer.token_to_id(MARK + piece.replace(" ", "Ġ"))

    def kinds(self) -> list[int]:
        """For each id: 0 text, 1 coordinate, 2 tag (specials, table tags, labels and brackets)."""
        first = self._marked("0")
        text = len(SPECIAL) + len(TABLE) + len(LABELS) + len(BOX) + COORDINATES
        return [1 if first <= i < text else 2 if i < text else 0 for i in range(self.size)]


def page_texts(fonts: Path | None, pages: int, seed: int) -> Iterable[str]:
    """Texts to learn the merges from: random pages of a size that does not matter, and the prompts."""
    import random

    from pages import draw, load_families

    from ocr_phases.families import PROMPTS

    families = load_families(fonts)
    for number in range(pages):
        rng = random.Random(f"tokenizer {seed} {number}")
        page = draw(rng, size=(512, 640), type_px=(12, 20), characters=600, families=families)
        yield page.free
    yield from list(PROMPTS.values()) * (pages // 20)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the tokenizer from random pages and write it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--fonts", type=Path, help="Debian's font files; without, matplotlib's families alone"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    tokenizer = build_tokenizer(page_texts(args.fonts, args.pages, args.seed), args.size)
    save_tokenizer(tokenizer, args.out)
    print(f"{tokenizer.get_vocab_size()} tokens in {args.out}")


if __name__ == "__main__":
    main()
