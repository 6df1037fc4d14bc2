"""What a camera or a scanner does to a page, and where that leaves the boxes."""

from __future__ import annotations

import io
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from synth.page import BOX_MAX, Box, Region, SynthPage, to_box

#: A 3 x 3 matrix that takes homogeneous pixel coordinates of the page to those of the scan.
Mapping = NDArray[np.float64]

#: At strength 1: the largest slant, degrees; the largest part of a side that letterboxing takes away.
MAX_SLANT, MAX_SHRINK = 1.5, 0.25
#: At strength 1: how much farther than its middle the far edge of a tilted page may be.
MAX_TILT = 0.02


def degrade(page: SynthPage, rng: random.Random, strength: float) -> SynthPage:
    """The page as a scan or a photograph of it looks: same size in pixels, boxes around the same ink.

    ``strength`` 0 leaves it as it is; towards 1 the effects get more and stronger. The page may be moved
    (slanted, letterboxed, squeezed, seen at an angle), then it is blurred, lit, and pressed.
    """
    if strength <= 0:
        return page
    moved = _move(page, rng, strength) if rng.random() < 0.35 + 0.45 * strength else page
    image = moved.image
    for effect, chance in ((_resample, 0.4), (_blur, 0.4), (_expose, 0.8), (_compress, 0.5)):
        if rng.random() < chance * (0.4 + 0.6 * strength):
            image = effect(image, rng, strength)
    return replace(moved, image=image)


def _move(page: SynthPage, rng: random.Random, strength: float) -> SynthPage:
    """Slant, letterbox, squeeze or tilt the page; everything on it stays in view."""
    width, height = page.image.size
    slant = math.radians(rng.uniform(-1, 1) * MAX_SLANT * strength) if rng.random() < 0.6 else 0.0
    shrink = [1.0, 1.0]
    form = rng.random()
    if form < 0.3:
        shrink = [1 - rng.uniform(0, MAX_SHRINK) * strength] * 2
    elif form < 0.55:
        shrink[rng.randrange(2)] -= rng.uniform(0, MAX_SHRINK) * strength
    lean = MAX_TILT * strength if rng.random() < 0.25 else 0.0
    tilt = [rng.uniform(-lean, lean) / side for side in (width, height)]
    mapping = _centred(width, height, slant, shrink, tilt)
    boxes = [*(region.box for region in page.regions), *page.decoration]
    low, high = _extent(boxes, mapping, width, height)
    room = np.array([width, height], dtype=np.float64)
    fit = min(1.0, *((room - 4) / np.maximum(high - low, 1)))
    low, high = room / 2 + fit * (low - room / 2), room / 2 + fit * (high - room / 2)
    wander = [rng.uniform(-0.5, 0.5) * (1 - s) for s in shrink] * room
    shift = np.clip(wander, 2 - low, room - 2 - high)
    mapping = _about((width / 2, height / 2), np.diag([fit, fit, 1.0])) @ mapping
    mapping = np.array([[1, 0, shift[0]], [0, 1, shift[1]], [0, 0, 1]]) @ mapping
    back = np.linalg.inv(mapping)
    coefficients = (back / back[2, 2]).flatten()
    image = page.image.transform(
        (width, height),
        Image.Transform.PERSPECTIVE if lean else Image.Transform.AFFINE,  # the latter is far quicker
        tuple(coefficients[: 8 if lean else 6]),
        rng.choice((Image.Resampling.BILINEAR, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)),
        fillcolor=_surround(page.image, rng),
    )
    return SynthPage(
        image,
        tuple(_moved(region, mapping, width, height) for region in page.regions),
        tuple(_moved(line, mapping, width, height) for line in page.lines),
        tuple(_moved_box(box, mapping, width, height) for box in page.decoration),
        tuple(replace(piece, middles=_projected(piece.middles, mapping)) for piece in page.letters),
    )


def _centred(width: int, height: int, slant: float, shrink: list[float], tilt: list[float]) -> Mapping:
    """Shrink, slant and tilt about the middle of the page."""
    cos, sin = math.cos(slant), math.sin(slant)
    turn = np.array([[cos, -sin, 0], [sin, cos, 0], [tilt[0], tilt[1], 1]])
    return _about((width / 2, height / 2), turn @ np.diag([*shrink, 1.0]))


def _about(middle: tuple[float, float], change: Mapping) -> Mapping:
    there = np.array([[1, 0, middle[0]], [0, 1, middle[1]], [0, 0, 1.0]])
    back = np.array([[1, 0, -middle[0]], [0, 1, -middle[1]], [0, 0, 1.0]])
    moved: Mapping = there @ change @ back
    return moved


def _corners(box: Box, mapping: Mapping, width: int, height: int) -> NDArray[np.float64]:
    """Where a box's four corners come to lie, pixels [4, 2]."""
    x1, x2 = (v * width / BOX_MAX for v in box[::2])
    y1, y2 = (v * height / BOX_MAX for v in box[1::2])
    return _projected(np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], dtype=np.float64), mapping)


def _projected(points: NDArray[np.float64], mapping: Mapping) -> NDArray[np.float64]:
    """Where points [n, 2] come to lie."""
    moved = np.column_stack((points, np.ones(len(points)))) @ mapping.T
    return moved[:, :2] / moved[:, 2:]


def _extent(
    boxes: list[Box], mapping: Mapping, width: int, height: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The smallest and the largest coordinates of all boxes on the scan, pixels."""
    points = np.concatenate([_corners(box, mapping, width, height) for box in boxes])
    return points.min(axis=0), points.max(axis=0)


def _moved(region: Region, mapping: Mapping, width: int, height: int) -> Region:
    return Region(region.label, _moved_box(region.box, mapping, width, height), region.text)


def _moved_box(box: Box, mapping: Mapping, width: int, height: int) -> Box:
    points = _corners(box, mapping, width, height)
    (x1, y1), (x2, y2) = points.min(axis=0), points.max(axis=0)
    # A box has been rounded outwards once; half a unit less keeps it from growing by another one.
    half_x, half_y = 0.5 * width / BOX_MAX, 0.5 * height / BOX_MAX
    return to_box((x1 + half_x, y1 + half_y, x2 - half_x, y2 - half_y), width, height)


def _surround(image: Image.Image, rng: random.Random) -> tuple[int, int, int]:
    """What shows beside the page: paper, a scanner's white or black, the grey of padding, a table top."""
    red, green, blue = (int(v) for v in np.asarray(image.crop((1, 1, 2, 2)))[0, 0])
    table = rng.randint(20, 235), rng.randint(20, 235), rng.randint(20, 235)
    paper = red, green, blue
    return rng.choice((paper, paper, (255, 255, 255), (0, 0, 0), (127, 127, 127), table))


def _resample(image: Image.Image, rng: random.Random, strength: float) -> Image.Image:
    """Scan with fewer pixels, then enlarge to the old size."""
    factor = 1 - rng.uniform(0.05, 0.35) * strength
    small = (max(8, round(image.width * factor)), max(8, round(image.height * factor)))
    filters = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.BOX)
    return image.resize(small, rng.choice(filters)).resize(image.size, rng.choice(filters[:2]))


def _blur(image: Image.Image, rng: random.Random, strength: float) -> Image.Image:
    """A lens that is a little out of focus; the radius grows with the page."""
    radius = rng.uniform(0.2, 0.8) * strength * max(1.0, max(image.size) / 1024)
    return image.filter(ImageFilter.BoxBlur(radius))


def _expose(image: Image.Image, rng: random.Random, strength: float) -> Image.Image:
    """Uneven light, contrast, a cast of colour, and the sensor's noise."""
    width, height = image.size
    pixels: NDArray[Any] = np.asarray(image, dtype=np.float32)
    contrast = 1 - rng.uniform(0, 0.35) * strength
    level = rng.uniform(-25, 25) * strength
    cast = np.array([1 + rng.uniform(-0.06, 0.06) * strength for _ in range(3)], dtype=np.float32)
    pixels = pixels * (contrast * cast) + (127 * (1 - contrast) + level)
    if rng.random() < 0.6:
        slope = [rng.uniform(-0.3, 0.3) * strength for _ in range(2)]
        across = 1 + slope[0] * np.linspace(-0.5, 0.5, width, dtype=np.float32)
        down = 1 + slope[1] * np.linspace(-0.5, 0.5, height, dtype=np.float32)
        pixels *= (down[:, None] * across[None, :])[:, :, None]
    if rng.random() < 0.6:
        grain = np.random.default_rng(rng.getrandbits(64)).standard_normal(
            (height, width, 1), dtype=np.float32
        )
        pixels += grain * (rng.uniform(2, 14) * strength)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _compress(image: Image.Image, rng: random.Random, strength: float) -> Image.Image:
    """Through a JPEG file."""
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=round(92 - rng.uniform(0, 55) * strength))
    return Image.open(file).convert("RGB")
