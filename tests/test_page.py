"""Pages, prompts and batches: the recorded vendor preprocessing, every kind of page, and bad
input.
"""

import base64
import contextlib
import hashlib
import io
import os
import subprocess
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from elements import Elements
from example_run import encoded
from golden_cases import (
    BOS,
    GOLDEN,
    IMAGE_ID,
    PAD,
    RECORDINGS,
    Recording,
    pooled,
    stand_in,
)
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import images
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, FamilyFacts, Preset
from ocr_phases.families.facts import unknown_family
from ocr_phases.files import FORMATS
from ocr_phases.images import describe_page, load_page
from ocr_phases.inputs.packing import PageInputs, pack
from ocr_phases.inputs.rows import make_rows
from ocr_phases.inputs.views import (
    PageViews,
    image_token_count,
    make_views,
    valid_image_tokens,
)
from ocr_phases.settings import RunSettings

PRESETS = FAMILIES["deepseek-ocr"].presets
PROMPTS = FAMILIES["deepseek-ocr"].prompts
WHITE = (255, 255, 255)
#: The number of EXIF's entry for how a picture is turned.
ORIENTATION = 0x0112


def batch(views: list[PageViews], prompts: list[str]) -> PageInputs:
    """The rows of a prefill, by the tokenizer that the pages were recorded with."""
    tokenizer = SimpleNamespace(encode=stand_in, image_token_id=IMAGE_ID, bos_id=BOS, pad_id=PAD)
    return pack(views, prompts, tokenizer)


def blank(width: int, height: int, colour: str = "white") -> Image.Image:
    return Image.new("RGB", (width, height), colour)


# The recorded vendor preprocessing

load_once = cache(load_page)
EACH_PAGE = [
    (row.name, page)
    for row in RECORDINGS.values()
    for page, case in row.preprocess["cases"].items()
    if "preset" in case or "files" in case
]


#: The presets of a recording that names the size of its pages instead.
PRESET_BY_SIZE = {1024: "base", 640: "small"}


@dataclass(frozen=True)
class RecordedPage:
    """A page of a recording, or several in one prompt, cut as the package cuts it."""

    recording: Recording
    name: str
    #: What was recorded of it.
    case: dict[str, Any]
    views: list[PageViews]
    prompt: str
    preset: Preset


@pytest.fixture(scope="module", params=EACH_PAGE, ids="-".join)
def recorded_page(request: pytest.FixtureRequest) -> RecordedPage:
    family, page = request.param
    case = RECORDINGS[family].preprocess["cases"][page]
    facts = FAMILIES[family]
    preset = facts.presets[case.get("preset") or PRESET_BY_SIZE[case["image_size"]]]
    if "files" in case:
        files = case["files"]
        prompt = facts.text_of("multipage", pages=len(files))
    else:
        files = [case["file"]]
        prompt = facts.text_of("markdown", pages=1)
    views = []
    for file in files:
        image, _, _ = load_once(GOLDEN / "pages" / file)
        views.append(make_views(image, preset))
    return RecordedPage(RECORDINGS[family], page, case, views, prompt, preset)


def test_a_page_is_packed_as_recorded(recorded_page: RecordedPage) -> None:
    case = recorded_page.case
    views = recorded_page.views
    image_tokens = case["image_tokens"]

    inputs = batch(views, [recorded_page.prompt])
    assert inputs.prefill_len == case["input_len"]
    assert inputs.image_tokens == (image_tokens,)
    assert inputs.text_tokens == (case["input_len"] - image_tokens,)
    assert sum(image_token_count(recorded_page.preset, view.grid) for view in views) == image_tokens

    first = case["mask_first"]
    end = case["mask_last"] + 1
    assert inputs.images_seq_mask[0].nonzero().flatten().tolist() == list(range(first, end))
    ids = inputs.input_ids[0].tolist()
    assert ids[:first] == case["text_ids_head"]
    assert ids[first:end] == [IMAGE_ID] * image_tokens
    assert ids[end:] == case["text_ids_tail"]


def test_a_page_is_cut_as_recorded(recorded_page: RecordedPage) -> None:
    case = recorded_page.case
    views = recorded_page.views
    assert [list(view.grid) for view in views] == case["spatial_crop"]

    global_views = np.stack([view.global_view for view in views])
    assert_recorded_pixels(global_views, recorded_page, "ori")
    crops = np.concatenate([view.crops for view in views])
    assert bool(len(crops)) == case["crops_used"]
    if len(crops):
        assert_recorded_pixels(crops, recorded_page, "crop")


def assert_recorded_pixels(pixels: np.ndarray, recorded_page: RecordedPage, kind: str) -> None:
    """Views or crops, [N, S, S, 3], are those that the vendor's code made.

    Small copies were recorded, and the hashes of the pixels, which one version of Pillow gives.
    """
    case = recorded_page.case
    recording = recorded_page.recording
    channels_first = pixels.transpose(0, 3, 1, 2)
    assert list(channels_first.shape) == case[f"{kind}_shape"]

    page_with_copy = case.get(f"{kind}32_same_as", recorded_page.name)
    small_copies = recording.pixels.get(f"{page_with_copy}.{kind}32")
    if small_copies is None:
        assert recording.name == "unlimited-ocr"  # whose recording keeps some
    else:
        ours = np.stack([pooled(view) for view in pixels])
        assert np.abs(ours - small_copies.float().numpy()).max() <= 1

    recorded_pillow = recording.preprocess["pillow"].split(".")[0]
    if f"{kind}_sha256" in case and PIL.__version__.split(".")[0] == recorded_pillow:
        hashes = [hashlib.sha256(view.tobytes()).hexdigest() for view in channels_first]
        assert hashes == np.ravel(case[f"{kind}_sha256"]).tolist()


@pytest.mark.parametrize("name", ["deepseek-ocr-2", "unlimited-ocr"])
def test_the_grid_of_crops_is_the_recorded_one(name: str) -> None:
    preset = FAMILIES[name].preset()
    recorded = RECORDINGS[name].preprocess["grids"]
    assert len(recorded) == 161
    for size, grid in recorded.items():
        width, height = map(int, size.split("x"))
        assert list(preset.grid(width, height)) == grid, size


@pytest.mark.parametrize(
    ("size", "grid"), [((1357, 1357), (2, 2)), ((1358, 1358), (3, 3)), ((1, 100_000), (1, 9))]
)
def test_of_two_grids_of_one_shape_a_page_gets_the_larger_from_half_of_its_area_on(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    assert PRESETS["gundam"].grid(*size) == grid


@pytest.mark.parametrize(
    ("prompt", "grounding", "text"),
    [
        ("markdown", True, "<image>\n<|grounding|>Convert the document to markdown."),
        ("ocr", True, "<image>\n<|grounding|>OCR this image."),
        ("free", False, "<image>\nFree OCR."),
        (" free ", True, "<image>\nFree OCR."),
        ("figure", True, "<image>\nParse the figure."),
        ("describe", True, "<image>\nDescribe this image in detail."),
        ("locate: the {a:b} ", False, "<image>\nLocate <|ref|>the {a:b}<|/ref|> in the image."),
        ("locate the total", False, "<image>\nlocate the total"),
        ("Read it. ", None, "<image>\n<|grounding|>Read it."),
        ("Read it. ", False, "<image>\nRead it."),
        ("<image>\n<|grounding|>mine", False, "<image>\n<|grounding|>mine"),
        ("first <image> then <image>", True, "first <image> then <image>"),
    ],
)
def test_a_prompt_s_text_is_that_of_its_preset_or_the_user_s_own(
    prompt: str, grounding: bool | None, text: str
) -> None:
    assert FAMILIES["deepseek-ocr"].text_of(prompt, grounding=grounding) == text


def test_unlimited_ocr_asks_for_boxes_without_a_mark() -> None:
    """Its own prompts are the published ones, as the recorded pages show."""
    assert FAMILIES["unlimited-ocr"].text_of("Read it.") == "<image>Read it."


@pytest.mark.parametrize(
    ("family", "prompt", "grounding"),
    [
        ("unlimited-ocr", "free", None),
        ("unlimited-ocr", "locate:a word", None),
        ("unlimited-ocr", "Read it.", False),
        ("deepseek-ocr", "locate", None),
        ("deepseek-ocr", "locate:", None),
        ("deepseek-ocr", " locate : ", None),
        ("deepseek-ocr", " \n", None),
        ("deepseek-ocr", "multipage", None),
        ("deepseek-ocr", "markdown", False),
        ("deepseek-ocr", " ocr ", False),
    ],
)
def test_a_prompt_that_a_family_lacks_or_that_says_nothing_is_refused(
    family: str, prompt: str, grounding: bool | None
) -> None:
    with refused():
        FAMILIES[family].text_of(prompt, grounding=grounding)


@pytest.mark.parametrize(
    ("family", "prompt", "rows"),
    [
        (FAMILIES["deepseek-ocr"], "free", 3),
        (FAMILIES["deepseek-ocr"], "<image><image><image>\nRead them.", 1),
        (FAMILIES["deepseek-ocr"], ["free", "ocr", "markdown"], 3),
        (FAMILIES["unlimited-ocr"], "multipage", 1),
        (unknown_family(None), "Read it.", 3),
    ],
)
def test_three_pages_are_rows_unless_one_prompt_names_them_all(
    family: FamilyFacts, prompt: str | list[str], rows: int
) -> None:
    pages, texts = make_rows([blank(8, 8)] * 3, RunSettings(prompt=prompt), family)
    assert len(pages) == 3
    assert len(texts) == rows


#: A picture of 2 x 4 pixels: the left column is black, the right one white.
LEFT_BLACK = np.array([[0, 255]] * 4, np.uint8)


def picture_of_mode(mode: str) -> Image.Image:
    """`LEFT_BLACK` in one of Pillow's modes."""
    if mode == "I":
        return Image.fromarray(LEFT_BLACK.astype(np.int32) * 257)
    if mode == "I;16":
        return Image.fromarray(LEFT_BLACK.astype(np.uint16) * 257)
    # Pillow converts grey to some modes by way of colours only.
    between = "RGB" if mode in ("HSV", "CMYK") else "L"
    return Image.fromarray(LEFT_BLACK).convert(between).convert(mode)


@pytest.mark.parametrize(
    "mode", ["RGB", "RGBA", "L", "LA", "P", "PA", "CMYK", "YCbCr", "HSV", "1", "I", "F", "I;16"]
)
def test_every_mode_keeps_black_and_white(mode: str) -> None:
    picture = picture_of_mode(mode)
    assert picture.mode == mode
    page, _, _ = load_page(picture)
    assert page.mode == "RGB"
    assert np.abs(np.asarray(page, int) - LEFT_BLACK[..., None]).max() <= 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([0.0, 65535.0, 257.0], [0, 255, 1]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([0.0, 1e6, 5e5], [0, 255, 128]),
        ([7e4, 7e4, 7e4], [0, 0, 0]),
        ([float("nan"), 0.0, 1.0], [0, 0, 255]),
        ([0, 255, 386], [0, 1, 2]),  # 16 bits, by their whole range
        ([0, 128, 255], [0, 0, 1]),
    ],
)
def test_grey_of_more_than_8_bits_is_scaled(values: list[float], expected: list[int]) -> None:
    dtype = np.float32 if isinstance(values[0], float) else np.uint16
    image = Image.fromarray(np.array([values], dtype))
    for source in (image, encoded(image, "TIFF")):
        page, _, _ = load_page(source)
        assert np.asarray(page)[0, :, 0].tolist() == expected


def test_transparency_becomes_white() -> None:
    palette = Image.new("P", (4, 2))
    palette.putpalette([0, 0, 0, 255, 0, 0])
    transparent = (
        encoded(Image.new("RGBA", (4, 2))),
        encoded(Image.new("LA", (4, 2))),
        encoded(palette, transparency=0),
        encoded(Image.new("RGB", (4, 2)), transparency=(0, 0, 0)),
    )
    for data in transparent:
        page, _, _ = load_page(data)
        assert page.getpixel((3, 1)) == WHITE


def test_half_of_the_white_is_seen_through_half_transparent_black() -> None:
    rgba = Image.new("RGBA", (2, 1))
    rgba.putpixel((0, 0), (255, 0, 0, 255))
    rgba.putpixel((1, 0), (0, 0, 0, 128))
    page, _, _ = load_page(rgba)
    assert page.getpixel((0, 0)) == (255, 0, 0)
    assert page.getpixel((1, 0)) == (127, 127, 127)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_pages_are_turned_as_exif_says(kind: str) -> None:
    upright = Image.fromarray(np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3))
    stored_pictures = {
        1: upright,
        5: upright.transpose(Image.Transpose.TRANSPOSE),
        6: upright.transpose(Image.Transpose.ROTATE_90),  # turned to the left, shown turned back
    }
    for orientation, stored in stored_pictures.items():
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        page, _, _ = load_page(encoded(stored, kind, exif=exif))
        assert page.size == (4, 6)
        assert page.tobytes() == upright.tobytes()
        assert load_page(page)[0].tobytes() == upright.tobytes()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "wrong", [{"exif": b"Exif\0\0MM\0*\xff\xff\xff\xff"}, {"exif": b"x"}, {"icc_profile": b"x"}]
)
def test_metadata_that_cannot_be_read_is_ignored(wrong: dict[str, bytes]) -> None:
    page, _, _ = load_page(encoded(blank(5, 3, "#123456"), **wrong))
    assert page.size == (5, 3)
    assert page.getpixel((0, 0)) == (0x12, 0x34, 0x56)
    assert not page.info


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    """Three pages of 72 x 36 pt: red, green, blue."""
    pages = [blank(72, 36, colour) for colour in ("red", "#00ff00", "blue")]
    path = tmp_path / "doc.pdf"
    pages[0].save(path, save_all=True, append_images=pages[1:], resolution=72)
    return path


@pytest.mark.parametrize(
    ("suffix", "number", "channel"), [("", 1, 0), ("#1", 1, 0), ("#2", 2, 1), ("#3", 3, 2)]
)
def test_a_page_of_a_pdf_is_drawn_at_144_dots_per_inch(
    pdf: Path, suffix: str, number: int, channel: int
) -> None:
    page, data, name = load_page(f"{pdf}{suffix}")
    assert page.size == (144, 72)
    assert name == f"doc.pdf#{number}"
    assert data == pdf.read_bytes()
    assert int(np.asarray(page)[35, 70].argmax()) == channel


def test_a_page_that_a_pdf_lacks_or_that_is_too_large_is_refused(
    pdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in ("0", "4", "two"):
        with refused():
            load_page(f"{pdf}#{number}")
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    with refused():
        load_page(f"{pdf}#2")


def test_a_damaged_pdf_is_refused(pdf: Path) -> None:
    pdf.write_bytes(b"%PDF-1.7 and nothing more")
    with refused():
        load_page(pdf)


def test_a_pdf_is_refused_without_the_package_that_reads_it(
    pdf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    with refused():
        load_page(pdf)


def test_a_file_may_be_named_like_a_page_of_a_pdf(tmp_path: Path) -> None:
    path = tmp_path / "scan.pdf#2"
    path.write_bytes(encoded(blank(4, 4)))
    _, _, name = load_page(path)
    assert name == "scan.pdf#2"


@pytest.fixture
def tiff(tmp_path: Path) -> Path:
    """Two frames of different shapes."""
    path = tmp_path / "two.tif"
    first = blank(8, 4, "red")
    second = blank(4, 8, "blue")
    path.write_bytes(encoded(first, "TIFF", save_all=True, append_images=[second]))
    return path


def test_frames_of_a_tiff_are_pages(tiff: Path) -> None:
    assert images.page_count(tiff) == 2
    assert says(images.unnamed_pages(tiff), "2 pages", "page 1", "two.tif#2")
    for source, name, size in ((tiff, "two.tif#1", (8, 4)), (f"{tiff}#2", "two.tif#2", (4, 8))):
        page, data, found_name = load_page(source)
        assert page.size == size
        assert found_name == name
        # A record holds this frame.
        recorded = base64.b64decode(describe_page(page, data, found_name)["data"])
        page_of_record, _, _ = load_page(recorded)
        assert page_of_record.size == size
    with refused():
        load_page(f"{tiff}#3")


def test_frames_of_a_bigtiff_are_pages(tmp_path: Path) -> None:
    path = tmp_path / "big.tif"
    frames = [blank(8, 4), blank(4, 8), blank(2, 6)]
    first, *others = frames
    data = encoded(first, "TIFF", save_all=True, append_images=others, big_tiff=True)
    path.write_bytes(data)

    assert images.page_count(path) == 3
    for number, frame in enumerate(frames, 1):
        page, data, name = load_page(f"{path}#{number}")
        assert page.size == frame.size
        # A record holds this frame.
        recorded = base64.b64decode(describe_page(page, data, name)["data"])
        page_of_record, _, _ = load_page(recorded)
        assert page_of_record.size == frame.size


def test_the_only_frame_of_a_tiff_has_no_number(tmp_path: Path) -> None:
    path = tmp_path / "one.tif"
    path.write_bytes(encoded(blank(8, 4), "TIFF"))
    _, _, name = load_page(path)
    assert name == "one.tif"


def header_only_png(width: int, height: int) -> bytes:
    """A PNG that says it is that large and holds no pixels."""
    small = encoded(Image.new("1", (1, 1)))
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    header = b"IHDR" + size + small[24:29]
    checksum = zlib.crc32(header).to_bytes(4, "big")
    return small[:12] + header + checksum + small[33:]


NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
ENCODED = {
    kind: encoded(Image.fromarray(NOISE), kind) for kind in ("PNG", "JPEG", "TIFF", "WEBP", "GIF")
}
POSTSCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
    b"0 0 9 9 rectfill\nshowpage\n%%EOF\n"
)
#: Formats that Pillow reads, and this package does not.
OTHERS = {
    kind: encoded(blank(16, 16), kind).replace(b"%PDF-1", b"%QDF-1")
    for kind in ("PCX", "TGA", "ICO", "DDS", "SGI", "IM", "PDF")
}
SOURCES = {
    **OTHERS,
    **{f"half a {kind}": data[: len(data) // 2] for kind, data in ENCODED.items()},
    "no bytes": b"",
    "text": b"a page",
    "postscript": POSTSCRIPT,
    "an array": NOISE,
    "no width": blank(0, 5),
    "no height": blank(5, 0),
    "another mode": Image.new("La", (3, 3)),
    "a bomb": header_only_png(20_000, 9_000),
    "a large bomb": header_only_png(100_000, 100_000),
    "no file": "none.png",
    "no file of pages": "none.pdf#2",
    "a folder": "",
    "no name": "a\0b.png",
    "a long name": "x" * 5000,
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_no_page_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        pytest.fail("a program was started")

    monkeypatch.setattr(subprocess, "Popen", fail)
    Image.init()  # every format that Pillow knows is at hand
    source = SOURCES[name]
    if isinstance(source, str):
        source = f"{tmp_path}/{source}"
    for limit in (Image.MAX_IMAGE_PIXELS, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with refused():
            load_page(source)
    if isinstance(source, bytes):
        with refused():
            images.page_image(source)  # as a record holds it


def test_a_page_is_a_regular_file_of_bounded_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.pdf").symlink_to("/dev/zero")
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(300 * 10**9)
    for name in ("pipe.png", "zero.pdf", "sparse.png"):
        for read in (load_page, images.page_count):
            with refused():
                read(tmp_path / name)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP", "JPEG2000"])
def test_the_largest_page_follows_from_the_memory_its_format_needs(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 14 * 1600)
    small = encoded(blank(29, 29), kind)
    large = encoded(blank(40, 40), kind)
    page, _, _ = load_page(small)
    assert page.size == (29, 29)
    if kind in ("WEBP", "JPEG2000"):  # their decoders keep the page several times
        with refused():
            load_page(large)
    else:
        page, _, _ = load_page(large)
        assert page.size == (40, 40)


WRITABLE_FORMATS = [kind for kind in FORMATS if kind in Image.SAVE]


@pytest.mark.parametrize("kind", [*WRITABLE_FORMATS, "MPO"])
def test_the_documented_formats_are_read_at_their_first_frame(kind: str) -> None:
    """Also what moves, and the MPO of a phone."""
    if kind in ("GIF", "PNG", "WEBP", "MPO"):
        second = blank(16, 16, "red")
        data = encoded(blank(16, 16), kind, save_all=True, append_images=[second])
        frames = 2
    else:
        data = encoded(blank(16, 16), kind)
        frames = 1
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == kind
        assert getattr(image, "n_frames", 1) == frames
    page, _, _ = load_page(data)
    assert page.size == (16, 16)
    assert page.getpixel((8, 8)) == WHITE


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.data(), st.sampled_from(["PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP"]))
def test_a_damaged_file_is_a_page_or_refused(data: st.DataObject, kind: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    damaged = bytearray(encoded(blank(16, 16, "red"), kind, exif=exif))
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(OcrPhasesError):
        assert load_page(bytes(damaged))[0].mode == "RGB"


@pytest.mark.parametrize(
    ("preset", "size", "grid", "tokens"),
    [
        ("tiny", (100, 900), (1, 1), 64),
        ("small", (100, 900), (1, 1), 100),
        ("base", (1000, 1000), (1, 1), 256),
        ("base", (1240, 1754), (1, 1), 180),
        ("large", (1240, 1754), (1, 1), 282),
        ("gundam", (1240, 1754), (2, 3), 780),
        ("gundam", (400, 300), (1, 1), 192),
    ],
)
def test_image_tokens_of_nothing_but_padding_are_not_valid(
    preset: Preset, size: tuple[int, int], grid: tuple[int, int], tokens: int
) -> None:
    assert valid_image_tokens(PRESETS[preset], size, grid) == tokens


# Batches; that a padded row reads as its page alone is held by whole runs

#: Other sizes than the published ones keep the tests fast.
SMALL = Preset("test", 128, 64, True, small_side=64)


@pytest.mark.parametrize("size", [(1, 1), (641, 640), (20_000, 1), (1, 20_000), (50, 20_000)])
@pytest.mark.parametrize("preset", [SMALL, *PRESETS.values()], ids=lambda preset: preset.name)
def test_no_page_is_so_thin_that_it_vanishes(preset: Preset, size: tuple[int, int]) -> None:
    views = make_views(blank(*size, "black"), preset)
    assert (views.global_view == 0).any()
    assert not views.crops.any()
    (count,) = batch([views], [PROMPTS["free"]]).image_tokens
    assert count >= valid_image_tokens(preset, size, views.grid) >= 0


@pytest.fixture
def noisy_views() -> list[PageViews]:
    """Two pages: one without crops and one with eight."""
    without_crops = Image.fromarray(np.resize(NOISE, (60, 40, 3)))
    with_crops = Image.fromarray(np.resize(NOISE, (90, 200, 3)))
    return [make_views(without_crops, SMALL), make_views(with_crops, SMALL)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pixels_are_scaled_to_plus_and_minus_one_and_have_the_model_s_type(
    dtype: torch.dtype, noisy_views: list[PageViews]
) -> None:
    levels = torch.from_numpy(np.stack([view.global_view for view in noisy_views]))
    expected = ((levels.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5).bfloat16()

    inputs = batch(noisy_views, [PROMPTS["free"], PROMPTS["markdown"]])
    moved = inputs.to("cpu", dtype)

    assert torch.equal(moved.pixel_values, expected.to(dtype))
    assert moved.pixel_values.is_contiguous()
    assert moved.pixel_values_local is not None
    assert moved.pixel_values_local.dtype == dtype
    assert moved.pixel_values_local.shape == (8, 3, 64, 64)
    assert torch.equal(moved.input_ids, inputs.input_ids)
    assert moved.num_local_patches == [0, 8]
    assert moved.patches_grid == [[1, 1], [4, 2]]


def test_a_page_without_crops_has_no_local_pixels(noisy_views: list[PageViews]) -> None:
    inputs = batch(noisy_views[:1], [PROMPTS["free"]])
    assert inputs.to("cpu", torch.float32).pixel_values_local is None


def test_a_cell_shows_the_first_four_of_many_pages(noisy_views: list[PageViews]) -> None:
    page, _ = noisy_views
    inputs = batch([page] * 6, [PROMPTS["free"]] * 6)
    shown = Elements(inputs._repr_mimebundle_()["text/html"])
    assert len(shown.attributes_of("img")) == 4


def test_the_positions_of_a_padded_row_begin_at_its_first_token(
    noisy_views: list[PageViews],
) -> None:
    inputs = batch(noisy_views, [PROMPTS["free"], PROMPTS["markdown"]])
    positions = inputs.to("cpu", torch.float32).position_ids
    assert inputs.padded
    for row, mask in zip(positions, inputs.attention_mask.bool(), strict=True):
        assert row[mask].tolist() == list(range(int(mask.sum())))


def test_rows_of_one_length_leave_the_positions_to_the_model(
    noisy_views: list[PageViews],
) -> None:
    inputs = batch(noisy_views[:1], [PROMPTS["free"]])
    assert not inputs.padded
    assert inputs.to("cpu", torch.float32).position_ids is None
