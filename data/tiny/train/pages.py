"""From a seed to one training example: a random page, cut by the package's own views, and its target.

A bucket is what one batch holds pages of: a preset, and for pages with crops one grid. All pages of a bucket
give views of the same shapes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from printed import PrintedPage, load_printed, printed_page
from tokenizer import IMAGE, Codec

from ocr_phases.families import PRESETS, Preset, facts_of
from ocr_phases.inputs.views import PageViews, make_views
from synth import (
    CHARACTERS,
    PageSettings,
    SynthPage,
    debian_families,
    degrade,
    matplotlib_families,
    random_page,
)
from synth.texts import Texts, any_texts, load_texts

GRIDS = tuple((c, r) for c in range(1, 10) for r in range(1, 10) if 2 <= c * r <= 9)
"""Every crop grid the tiling can make, as (columns, rows)."""

CELL = (8, 16)
"""Width and height in pixels of a cell of the character map."""

_GLOBAL_SHARE = 2.56  # a global view of 1024 costs as much as so many crops of 640
_TRIES = 40
_SMALLEST_TYPE = 8.0
_LEAST_SQUARE = 0.5
_FILLING = ("article", "columns", "dense", "magazine", "report")  # kinds that go on while there is text


@dataclass(frozen=True)
class Bucket:
    """A preset and a grid, how many pages of it one chunk holds, and how its pages differ from tiny's.

    type_scale and text_scale multiply the stage's largest type size and number of characters. Where ``long``
    is set, pages are full, with about so many characters at most.
    """

    preset: Preset
    grid: tuple[int, int]
    pages: int
    type_scale: float
    text_scale: float
    long: int = 0

    @property
    def name(self) -> str:
        """Like ``tiny`` or ``gundam 2x3 long``."""
        return (
            self.preset.name + (f" {self.grid_name}" if self.crops else "") + (" long" if self.long else "")
        )

    @property
    def grid_name(self) -> str:
        """Like ``2x3``, columns and rows."""
        return "{}x{}".format(*self.grid)

    @property
    def crops(self) -> int:
        """Crops of one page."""
        return 0 if self.grid == (1, 1) else math.prod(self.grid)


def squareness(bucket: Bucket) -> float:
    """1 for as many columns as rows, less the narrower the grid: 0.5 for twice as many."""
    columns, rows = bucket.grid
    return min(columns / rows, rows / columns)


def is_strip(bucket: Bucket) -> bool:
    """Whether the grid is more than twice as long as wide, or as wide as long."""
    return squareness(bucket) < _LEAST_SQUARE


def make_buckets(settings: dict[str, dict[str, float]]) -> dict[str, Bucket]:
    """The buckets of config.json's ``buckets``, by name; chunks of any grid cost about the same."""
    buckets: list[Bucket] = []
    for name, row in settings.items():
        preset, scales = PRESETS[name], (row["type_scale"], row["text_scale"])
        if not preset.crops:
            buckets.append(Bucket(preset, (1, 1), int(row["pages"]), *scales))
            continue
        for grid in GRIDS:
            pages = max(1, round(row["views"] / (math.prod(grid) + _GLOBAL_SHARE)))
            buckets.append(Bucket(preset, grid, pages, *scales))
    for bucket in tuple(buckets):
        if (letters := settings[bucket.preset.name].get("long")) and not is_strip(bucket):
            buckets.append(replace(bucket, long=int(letters), pages=max(1, bucket.pages // 2)))
    return {bucket.name: bucket for bucket in buckets}


@dataclass(frozen=True, eq=False)
class Sources:
    """What pages are made of: families of type, the folder of `texts.py`, pages that a browser laid out."""

    families: tuple[Any, ...]
    texts: Path | None = None
    printed: tuple[PrintedPage, ...] = ()


def load_sources(fonts: Path | None, texts: Path | None = None, printed: Path | None = None) -> Sources:
    """From their folders, as `load_families` does."""
    return Sources(load_families(fonts), texts, load_printed(printed))


@dataclass(frozen=True, eq=False)
class Example:
    """One page as the network gets it: text ids are prompt and target; characters [S/16, S/8] uint8."""

    views: PageViews
    text: list[int]
    prompt_length: int
    characters: np.ndarray


def load_families(fonts: Path | None, held_out: bool = False) -> tuple[Any, ...]:
    """matplotlib's families and Debian's from ``fonts``; with ``held_out`` the four kept for evaluation."""
    if held_out:
        return () if fonts is None else tuple(debian_families(fonts, held_out=True))
    return (*matplotlib_families(), *(() if fonts is None else debian_families(fonts)))


def draw(
    rng: random.Random,
    *,
    size: tuple[int, int],
    type_px: tuple[float, float],
    characters: int,
    families: Sequence[Any],
    colour: float = 0.0,
    plain: Sequence[float] = (0.35, 0.85),
    **more: Any,
) -> SynthPage:
    """One random page; ``colour`` is the chance of coloured text or paper, ``plain`` as in `PageSettings`."""
    low, high = (max(_SMALLEST_TYPE, pixels) for pixels in type_px)
    settings = PageSettings(
        width=size[0],
        height=size[1],
        type_px=(low, high),
        max_characters=characters,
        fonts=tuple(families),
        colour=colour,
        plain=(plain[0], plain[1]),
        **more,
    )
    return random_page(rng, settings)


def page_size(rng: random.Random, bucket: Bucket, reshape: float) -> tuple[int, int, float]:
    """Width and height of a page for the bucket, and how many of its pixels one pixel of the view shows.

    ``reshape`` is the share of pages whose size is not the view's own, so that they are scaled, or squeezed
    by the presets that do so.
    """
    preset = bucket.preset
    if preset.crops:
        return _size_for_grid(rng, bucket)
    side = preset.base_size
    if rng.random() >= reshape:
        return side, side, 1.0
    zoom = rng.triangular(0.8, 2.0, 1.0) if preset.squeezes else rng.uniform(0.75, 1.3)
    aspect = math.exp(rng.uniform(-0.35, 0.35))
    width, height = math.sqrt(aspect), 1 / math.sqrt(aspect)
    if not preset.squeezes:
        longest = max(width, height)
        width, height = width / longest, height / longest
    return round(side * zoom * width), round(side * zoom * height), zoom


def _size_for_grid(rng: random.Random, bucket: Bucket) -> tuple[int, int, float]:
    columns, rows = bucket.grid
    side = bucket.preset.image_size
    for _ in range(_TRIES):
        zoom = rng.uniform(0.65, 1.05)
        aspect = math.exp(rng.uniform(-0.12, 0.12))
        width, height = round(columns * side * zoom * aspect), round(rows * side * zoom / aspect)
        if bucket.preset.grid(width, height) == bucket.grid:
            return width, height, zoom
    return columns * side, rows * side, 1.0


def make_page(rng: random.Random, bucket: Bucket, stage: dict[str, Any], sources: Sources) -> SynthPage:
    """A page as hard as the stage says, for views of the bucket.

    Of the stage's optional parts ``browser`` and ``wide`` are the shares of pages that a browser laid out and
    of those with wide texts; ``texts`` names these and ``prose`` their share of running text. ``unreadable``
    is the share of pages with unreadable text, ``long_type`` the largest type of long pages in smallest ones.
    """
    page = None
    browser = stage.get("browser", 0)
    if browser and sources.printed and rng.random() < browser:
        letters = bucket.long or round(stage["characters"] * bucket.text_scale)
        least = stage["type_px"][0]
        page = printed_page(rng, sources.printed, bucket.preset, bucket.grid, least, letters)
    if page is None:
        page = _generated(rng, bucket, stage, sources)
    if rng.random() < stage["degrade"]:
        page = degrade(page, rng, rng.uniform(0.2, 1.0))
    return page


def _generated(rng: random.Random, bucket: Bucket, stage: dict[str, Any], sources: Sources) -> SynthPage:
    width, height, zoom = stage.get("size") or page_size(rng, bucket, stage["reshape"])
    low, high = (pixels * zoom for pixels in stage["type_px"])
    more: dict[str, Any] = {"kinds": tuple(stage.get("kinds", ()))}
    if bucket.long:
        more["kinds"] = _FILLING
    elif (share := stage.get("unreadable")) and rng.random() < share:
        more["kinds"] = ("unreadable",)
    if texts := _texts(rng, stage, sources):
        more |= {"texts": texts, "prose": stage.get("prose", 0.5)}
    return draw(
        rng,
        size=(width, height),
        type_px=(
            low,
            min(high, stage.get("long_type", 1.4) * low) if bucket.long else high * bucket.type_scale,
        ),
        characters=bucket.long or round(stage["characters"] * bucket.text_scale),
        families=sources.families,
        colour=stage["colour"],
        plain=stage["plain"],
        **more,
    )


def _texts(rng: random.Random, stage: dict[str, Any], sources: Sources) -> Texts | None:
    wide = stage.get("wide", 0)
    if not wide or sources.texts is None or rng.random() >= wide:
        return None
    return load_texts(sources.texts, stage["texts"]) if "texts" in stage else any_texts(sources.texts, rng)


def make_example(
    seed: str,
    bucket: Bucket,
    stage: dict[str, Any],
    prompts: dict[str, float],
    sources: Sources,
    codec: Codec,
    longest: int,
) -> Example:
    """The example of that seed, redrawn until prompt and target fit into ``longest`` tokens."""
    rng = random.Random(seed)
    kind = rng.choices(list(prompts), list(prompts.values()))[0]
    while True:
        page = make_page(rng, bucket, stage, sources)
        prompt = prompt_ids(codec, kind)
        target = codec.target(page, kind)
        if len(target) > 1 and len(prompt) + len(target) <= longest:
            break
    views = make_views(page.image, bucket.preset)
    if views.grid != bucket.grid:
        raise ValueError(f"A page of {page.image.size} gave the grid {views.grid}, not {bucket.grid}.")
    return Example(views, prompt + target, len(prompt), character_map(page, bucket.preset))


def prompt_ids(codec: Codec, kind: str) -> list[int]:
    """The ids that follow the image tokens in a prompt of that preset."""
    ids = _prompt(codec, kind)
    return ids[1:] if ids[0] == IMAGE else ids


@cache
def _prompt(codec: Codec, kind: str) -> list[int]:
    return codec.encode(facts_of(None).text_of(kind))


def character_map(page: SynthPage, preset: Preset) -> np.ndarray:
    """Which letter stands in each cell of the global view, uint8 [S/16, S/8]: from 1, as in CHARACTERS.

    Where two of them share a cell, the later one is named.
    """
    side, size = preset.base_size, np.array(page.image.size)
    scale = _global_scale(size, preset)
    shift = (side - scale * size) / 2
    cells = np.zeros((side // CELL[1], side // CELL[0]), np.uint8)
    for piece in page.letters:
        spots = ((piece.middles * scale + shift) // CELL).astype(int)
        for letter, (column, row) in zip(piece.text, spots, strict=True):
            if letter != " " and 0 <= row < cells.shape[0] and 0 <= column < cells.shape[1]:
                cells[row, column] = _class(letter)
    return cells


def _global_scale(size: np.ndarray, preset: Preset) -> np.ndarray:
    """Pixels of the global view for one of a page of that size, across and down."""
    return preset.base_size / (size if preset.squeezes else np.full(2, size.max()))


def type_shown(page: SynthPage, bucket: Bucket) -> float:
    """Median size of the page's letters in pixels of the views that show them (the crops if there are any).

    0 where there are no letters.
    """
    if not page.letters:
        return 0.0
    size = np.array(page.image.size)
    scale = _global_scale(size, bucket.preset)
    if bucket.crops:
        scale = np.array(bucket.grid) * bucket.preset.image_size / size
    sizes = np.repeat([piece.size for piece in page.letters], [len(piece.text) for piece in page.letters])
    return float(np.median(sizes) * scale.prod() ** 0.5)


@cache
def _class(letter: str) -> int:
    return CHARACTERS.find(letter) + 1
