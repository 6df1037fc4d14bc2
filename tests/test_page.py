"""Pages, prompts and batches: the recorded vendor preprocessing, every kind of page, and bad input."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from example_run import make_run
from golden_cases import BOS, GOLDEN, IMAGE_ID, PAD, RECORDINGS, pooled, stand_in
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, PRESETS, PROMPTS, Preset, facts_of
from ocr_phases.files import FORMATS
from ocr_phases.inputs import images
from ocr_phases.inputs.images import describe_page, load_page
from ocr_phases.inputs.packing import PageInputs, pack
from ocr_phases.inputs.views import PageViews, image_token_count, make_views, valid_image_tokens


def batch(views: list[PageViews], prompts: list[str]) -> PageInputs:
    tokens = SimpleNamespace(encode=stand_in, image_token_id=IMAGE_ID, bos_id=BOS, pad_id=PAD)
    return pack(views, prompts, tokens)


def blank(width: int, height: int, colour: str = "white") -> Image.Image:
    return Image.new("RGB", (width, height), colour)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


# The recorded vendor preprocessing


EACH_PAGE = [
    (row.name, page)
    for row in RECORDINGS.values()
    for page, case in row.preprocess["cases"].items()
    if "preset" in case or "files" in case
]


@pytest.mark.parametrize(("name", "page"), EACH_PAGE)
def test_pages_are_cut_and_packed_as_recorded(name: str, page: str) -> None:
    recorded, facts = RECORDINGS[name], FAMILIES[name]
    case = recorded.preprocess["cases"][page]
    several = "files" in case
    preset = facts.presets[case.get("preset") or {1024: "base", 640: "small"}[case["image_size"]]]
    files = case["files"] if several else [case["file"]]
    prompt = facts.text_of("multipage" if several else "markdown", pages=len(files))
    views = [make_views(load_page(GOLDEN / "pages" / file)[0], preset) for file in files]
    assert [list(view.grid) for view in views] == case["spatial_crop"]
    crops = np.concatenate([view.crops for view in views])
    assert bool(len(crops)) == case["crops_used"]

    inputs = batch(views, [prompt])
    assert inputs.prefill_len == case["input_len"]
    assert inputs.image_tokens == (case["image_tokens"],)
    assert inputs.text_tokens == (case["input_len"] - case["image_tokens"],)
    assert sum(image_token_count(preset, view.grid) for view in views) == case["image_tokens"]
    first, last = case["mask_first"], case["mask_last"]
    assert inputs.images_seq_mask[0].nonzero().flatten().tolist() == list(range(first, last + 1))
    ids = inputs.input_ids[0].tolist()
    assert [ids[:first], ids[last + 1 :]] == [case["text_ids_head"], case["text_ids_tail"]]
    assert ids[first : last + 1] == [IMAGE_ID] * case["image_tokens"]
    local = inputs.to("cpu", torch.float32).pixel_values_local
    assert (local is None) == (not case["crops_used"])

    for kind, pixels in (("ori", np.stack([view.global_view for view in views])), ("crop", crops)):
        if not len(pixels):
            continue
        assert list(pixels.transpose(0, 3, 1, 2).shape) == case[f"{kind}_shape"]
        kept = recorded.pixels.get(f"{case.get(f'{kind}32_same_as', page)}.{kind}32")
        if kept is not None:
            assert np.abs(np.stack([pooled(view) for view in pixels]) - kept.float().numpy()).max() <= 1
        assert kept is not None or name == "unlimited-ocr"  # whose recording keeps some
        same_pillow = PIL.__version__.split(".")[0] == recorded.preprocess["pillow"].split(".")[0]
        if same_pillow and f"{kind}_sha256" in case:
            hashes = [hashlib.sha256(view.transpose(2, 0, 1).tobytes()).hexdigest() for view in pixels]
            assert hashes == np.ravel(case[f"{kind}_sha256"]).tolist()


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_recording_is_whole_and_its_sizes_are_ours(name: str) -> None:
    facts, recorded = FAMILIES[name], RECORDINGS[name].preprocess
    cases = [case for case in recorded["cases"].values() if "preset" in case]
    assert len(cases) == (45 if name == "deepseek-ocr" else 27)
    assert {case["preset"] for case in cases} == set(facts.presets)
    for case in cases:
        preset = facts.presets[case["preset"]]
        assert (preset.base_size, preset.image_size) == (case["base_size"], case["image_size"])
    assert len(recorded.get("grids", {})) == (0 if name == "deepseek-ocr" else 161)
    for size, grid in recorded.get("grids", {}).items():
        width, height = map(int, size.split("x"))
        assert list(facts.presets[facts.default_preset].grid(width, height)) == grid, size


# Presets and prompts


@pytest.mark.parametrize(
    ("prompt", "grounding", "text"),
    [
        ("markdown", True, "<image>\n<|grounding|>Convert the document to markdown."),
        ("markdown", None, "<image>\n<|grounding|>Convert the document to markdown."),
        ("free", False, "<image>\nFree OCR."),
        ("ocr", True, "<image>\n<|grounding|>OCR this image."),
        (" free ", True, "<image>\nFree OCR."),
        ("figure", True, "<image>\nParse the figure."),
        ("describe", True, "<image>\nDescribe this image in detail."),
        ("locate: the {total} ", False, "<image>\nLocate <|ref|>the {total}<|/ref|> in the image."),
        ("locate:a:b", True, "<image>\nLocate <|ref|>a:b<|/ref|> in the image."),
        ("Read it. ", True, "<image>\n<|grounding|>Read it."),
        ("Read it. ", None, "<image>\n<|grounding|>Read it."),
        ("<image>\n<|grounding|>mine", False, "<image>\n<|grounding|>mine"),
        ("Read it. ", False, "<image>\nRead it."),
        ("locate the total", False, "<image>\nlocate the total"),
        ("<image>\nmine ", True, "<image>\nmine"),
        ("first <image> then <image>", True, "first <image> then <image>"),
    ],
)
def test_resolve_prompt(prompt: str, grounding: bool | None, text: str) -> None:
    assert facts_of(None).text_of(prompt, grounding=grounding) == text


@pytest.mark.parametrize(
    ("prompt", "grounding"),
    [
        *((prompt, False) for prompt in ("markdown", " ocr ")),
        *((prompt, None) for prompt in ("locate", "locate:", " locate : ")),
        (" \n", None),
    ],
)
def test_prompts_that_are_refused(prompt: str, grounding: bool | None) -> None:
    with refused():
        facts_of(None).text_of(prompt, grounding=grounding)


# Kinds of pages

LEFT_BLACK = np.repeat(np.array([[0, 255]], np.uint8), 4, axis=0)  # 2 x 4 pixels: black left, white right


def test_path_bytes_and_image_agree(tmp_path: Path) -> None:
    image = blank(20, 10, "red")
    data = encoded(image)
    (tmp_path / "page.png").write_bytes(data)
    for source in (tmp_path / "page.png", str(tmp_path / "page.png")):
        page, original, name = load_page(source)
        assert (original, name) == (data, "page.png")
        assert page.tobytes() == image.tobytes()
    page, original, name = load_page(data)
    assert (page.tobytes(), original, name) == (image.tobytes(), data, "image")
    page, original, name = load_page(image)
    assert (page.tobytes(), original, name) == (image.tobytes(), None, "image")
    assert page is not image


@pytest.mark.parametrize(
    "mode", ["RGB", "RGBA", "L", "LA", "P", "PA", "CMYK", "YCbCr", "HSV", "1", "I", "F", "I;16"]
)
def test_every_mode_keeps_black_and_white(mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(LEFT_BLACK.astype(np.uint16) * 257)
    elif mode == "I":
        image = Image.fromarray(LEFT_BLACK.astype(np.int32) * 257)
    else:
        image = Image.fromarray(LEFT_BLACK).convert("RGB" if mode in {"HSV", "CMYK"} else "L").convert(mode)
    assert image.mode == mode
    page, _, _ = load_page(image)
    assert page.mode == "RGB"
    assert np.abs(np.asarray(page, int) - LEFT_BLACK[..., None]).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_file_is_scaled(kind: str) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    page, _, _ = load_page(encoded(Image.fromarray(ramp), kind))
    assert np.array_equal(np.asarray(page)[..., 0], np.rint(ramp / 65535 * 255).astype(np.uint8))


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
    ],
)
def test_float_grey_is_scaled(values: list[float], expected: list[int]) -> None:
    page, _, _ = load_page(Image.fromarray(np.array([values], np.float32)))
    assert np.asarray(page)[0, :, 0].tolist() == expected


def test_transparency_becomes_white() -> None:
    hidden = (0, 0, 0, 0)
    rgba = Image.new("RGBA", (4, 2), hidden)
    rgba.putpixel((0, 0), (255, 0, 0, 255))
    rgba.putpixel((1, 0), (0, 0, 0, 128))
    transparent_palette = Image.new("P", (4, 2), 0)
    transparent_palette.putpalette([0, 0, 0, 255, 0, 0])
    transparent_palette.putpixel((0, 0), 1)
    grey = Image.new("LA", (4, 2), (0, 0))
    grey.putpixel((0, 0), (76, 255))
    sources = [encoded(rgba), encoded(transparent_palette, transparency=0), encoded(grey)]
    sources.append(encoded(Image.new("RGB", (4, 2)), transparency=(0, 0, 0)))
    for data in sources:
        page, _, _ = load_page(data)
        assert page.getpixel((3, 1)) == (255, 255, 255)
    page, _, _ = load_page(sources[0])
    assert page.getpixel((0, 0)) == (255, 0, 0)
    assert page.getpixel((1, 0)) == (127, 127, 127)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animation_gives_its_first_frame(kind: str) -> None:
    frames = [blank(8, 8, colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    page, _, _ = load_page(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert page.getpixel((4, 4)) == (255, 0, 0)


UNDO = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,  # stored turned to the left, shown turned back to the right
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("orientation", UNDO)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_exif_orientations(orientation: int, kind: str) -> None:
    upright = Image.fromarray(np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3))
    method = UNDO[orientation]
    stored = upright if method is None else upright.transpose(method)
    exif = Image.Exif()
    exif[0x0112] = orientation
    page, _, _ = load_page(encoded(stored, kind, exif=exif))
    assert page.size == (4, 6)
    assert page.tobytes() == upright.tobytes()
    assert load_page(page)[0].tobytes() == upright.tobytes()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unreadable_exif_is_ignored() -> None:
    page, _, _ = load_page(encoded(blank(5, 3), exif=b"Exif\0\0MM\0*\xff\xff\xff\xff"))
    assert page.size == (5, 3)
    page, _, _ = load_page(encoded(blank(5, 3), exif=b"nonsense"))
    assert page.size == (5, 3)


def test_colour_profile_is_ignored() -> None:
    page, _, _ = load_page(encoded(blank(5, 3, "#123456"), icc_profile=b"not a profile"))
    assert page.getpixel((0, 0)) == (0x12, 0x34, 0x56)
    assert not page.info


# PDF


@pytest.fixture
def pdf(tmp_path: Path) -> Path:
    """Three pages of 72 x 36 pt: red, green, blue."""
    pytest.importorskip("pypdfium2", reason="needs the pdf extra")
    pages = [blank(72, 36, colour) for colour in ("red", "#00ff00", "blue")]
    path = tmp_path / "doc.pdf"
    pages[0].save(path, save_all=True, append_images=pages[1:], resolution=72)
    return path


@pytest.mark.parametrize(
    ("suffix", "number", "channel"), [("", 1, 0), ("#1", 1, 0), ("#2", 2, 1), ("#3", 3, 2)]
)
def test_pdf_page(pdf: Path, suffix: str, number: int, channel: int) -> None:
    page, data, name = load_page(f"{pdf}{suffix}")
    assert page.size == (144, 72)
    assert name == f"doc.pdf#{number}"
    assert data == pdf.read_bytes()
    assert int(np.asarray(page)[35, 70].argmax()) == channel


@pytest.mark.parametrize("number", ["0", "4"])
def test_pdf_page_out_of_range(pdf: Path, number: str) -> None:
    with refused():
        load_page(f"{pdf}#{number}")


def test_pdf_page_too_large(pdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    with refused():
        load_page(f"{pdf}#2")


def test_frames_of_a_tiff_are_pages(tmp_path: Path) -> None:
    path = tmp_path / "two.tif"
    frames = [blank(8, 4, "red"), blank(4, 8, "blue")]
    path.write_bytes(encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:]))
    for given_name, name, size in ((path, "two.tif#1", (8, 4)), (f"{path}#2", "two.tif#2", (4, 8))):
        page, data, found = load_page(given_name)
        assert (page.size, found) == (size, name)
        kept = describe_page(page, data, found)
        assert load_page(base64.b64decode(kept["data"]))[0].size == size  # the record holds this frame
    assert images.page_count(path) == 2
    assert says(images.unnamed_pages(path), "2 pages", "page 1", "two.tif#2")
    assert images.unnamed_pages(f"{path}#1") == ""
    with refused():
        load_page(f"{path}#3")
    (tmp_path / "one.tif").write_bytes(encoded(frames[0], "TIFF"))
    assert load_page(tmp_path / "one.tif")[2] == "one.tif"
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[:1])
    (tmp_path / "moving.gif").write_bytes(moving)
    assert load_page(tmp_path / "moving.gif")[2] == "moving.gif"


def test_damaged_pdf(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2", reason="needs the pdf extra")
    (tmp_path / "doc.pdf").write_bytes(b"%PDF-1.7 and nothing more")
    with refused():
        load_page(tmp_path / "doc.pdf")


def test_a_page_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path, *_: Any) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "page.png").touch()
    monkeypatch.setattr(images, "read_regular", unreadable)
    with refused():
        load_page(tmp_path / "page.png")


def test_pdf_page_must_be_a_number() -> None:
    with refused():
        load_page("doc.pdf#two")


def test_pdf_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    (tmp_path / "doc.pdf").write_bytes(b"%PDF-1.7")
    with refused():
        load_page(tmp_path / "doc.pdf")


def test_a_file_named_like_a_pdf_page_is_that_file(tmp_path: Path) -> None:
    path = tmp_path / "scan.pdf#2"
    path.write_bytes(encoded(blank(4, 4)))
    assert load_page(path)[2] == "scan.pdf#2"


# Bad input


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("a page")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "TIFF", "WEBP", "GIF"):
        data = encoded(Image.fromarray(noise), kind)
        (tmp_path / f"cut.{kind}").write_bytes(data[: len(data) // 2])
    names = ("none.png", "none.pdf#2", "", "empty.png", "text.png", "a\0b.png", "x" * 5000)
    for name in (*names, "cut.PNG", "cut.JPEG", "cut.TIFF", "cut.WEBP", "cut.GIF"):
        with refused() as caught:
            load_page(f"{tmp_path}/{name}")
        assert "\n" not in str(caught.value)
    with refused():
        load_page(b"")
    with refused():
        load_page(noise)  # type: ignore[arg-type]


def test_zero_pixels() -> None:
    for size in ((0, 5), (5, 0)):
        with refused():
            load_page(blank(*size))
        with refused():
            make_views(blank(*size), PRESETS["tiny"])


def test_mode_that_cannot_be_converted() -> None:
    with refused():
        load_page(Image.new("La", (3, 3)))


def header_only_png(width: int, height: int) -> bytes:
    """A PNG that says it is that large and holds no pixels."""
    small = encoded(Image.new("1", (1, 1)))
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + small[24:29]
    return small[:12] + header + zlib.crc32(header).to_bytes(4, "big") + small[33:]


@pytest.mark.parametrize("limit", [Image.MAX_IMAGE_PIXELS, None])
def test_decompression_bomb(limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    for size in ((20_000, 9_000), (100_000, 100_000)):
        with refused():
            load_page(header_only_png(*size))


def test_the_largest_page_follows_from_the_memory_its_format_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 14 * 1600)
    for kind in ("PNG", "JPEG", "TIFF", "WEBP", "JPEG2000"):
        assert load_page(encoded(blank(29, 29), kind))[0].size == (29, 29)
        if kind in ("WEBP", "JPEG2000"):
            with refused():
                load_page(encoded(blank(40, 40), kind))
        else:
            assert load_page(encoded(blank(40, 40), kind))[0].size == (40, 40)


POSTSCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n0 0 9 9 rectfill\nshowpage\n%%EOF\n"
)


def test_no_page_starts_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    Image.init()  # every format that Pillow knows is at hand
    page = tmp_path / "scan.png"
    page.write_bytes(POSTSCRIPT)
    run = make_run()
    run.pages[0]["data"] = base64.b64encode(POSTSCRIPT).decode()
    for read in (lambda: load_page(page), lambda: load_page(POSTSCRIPT, "scan.png"), run.page_image):
        with refused():
            read()


def test_only_the_documented_formats_are_read() -> None:
    for kind in ("PCX", "TGA", "ICO", "DDS", "SGI", "IM", "PDF"):
        with refused():
            load_page(encoded(blank(16, 16), kind).replace(b"%PDF-1", b"%QDF-1"))
    for kind in FORMATS:
        if kind in Image.SAVE:
            assert load_page(encoded(blank(16, 16), kind))[0].size == (16, 16)
    phone = encoded(blank(16, 16), "MPO", save_all=True, append_images=[blank(16, 16, "red")])
    with Image.open(io.BytesIO(phone)) as image:
        assert image.format == "MPO"
    assert load_page(phone)[0].getpixel((8, 8)) == (255, 255, 255)


def test_a_page_is_a_regular_file_of_bounded_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.pdf").symlink_to("/dev/zero")
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(300 * 10**9)
    for name in ("pipe.png", "zero.pdf", "sparse.png"):
        for read in (load_page, images.page_count):
            with refused():
                read(tmp_path / name)


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_never_escape(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP"]))
    exif = Image.Exif()
    exif[0x0112] = 6
    original = bytearray(
        encoded(blank(16, 16, "red"), kind, **({} if kind in {"GIF", "BMP"} else {"exif": exif}))
    )
    for _ in range(data.draw(st.integers(1, 6))):
        original[data.draw(st.integers(0, len(original) - 1))] = data.draw(st.integers(0, 255))
    try:
        page, _, _ = load_page(bytes(original))
    except OcrPhasesError:
        return
    assert page.mode == "RGB"


# Tiling

GUNDAM = PRESETS["gundam"]


def test_ties_in_aspect_ratio_go_by_area() -> None:
    assert GUNDAM.grid(700, 700) == (2, 2)
    assert GUNDAM.grid(800, 800) == (2, 2)
    assert GUNDAM.grid(1300, 1300) == (2, 2)
    assert GUNDAM.grid(1358, 1358) == (3, 3)  # from more than half of 9 tiles on
    assert GUNDAM.grid(1357, 1357) == (2, 2)
    assert GUNDAM.grid(700, 1400) == (1, 2)
    assert GUNDAM.grid(1200, 2400) == (2, 4)
    assert GUNDAM.grid(100_000, 1) == (9, 1)
    assert GUNDAM.grid(1, 100_000) == (1, 9)
    assert GUNDAM.grid(640, 640) == (1, 1)
    assert PRESETS["tiny"].grid(1300, 1300) == (1, 1)


SIDES = st.one_of(st.integers(1, 3000), st.sampled_from([1, 2, 639, 640, 641, 1024, 1280, 20_000, 1_000_000]))


@settings(max_examples=300, deadline=None)
@given(SIDES, SIDES)
def test_grid_has_2_to_9_tiles_when_cut(width: int, height: int) -> None:
    columns, rows = GUNDAM.grid(width, height)
    assert (columns * rows == 1) == (max(width, height) <= 640)
    assert columns * rows <= 9
    if columns * rows > 1:
        error = abs(width / height - columns / rows)
        nearest = min(
            abs(width / height - c / r) for c in range(1, 10) for r in range(1, 10) if 2 <= c * r <= 9
        )
        assert error == nearest


@pytest.mark.parametrize("size", [(20_000, 50), (50, 20_000), (20_000, 1), (1, 20_000), (1, 1), (641, 640)])
@pytest.mark.parametrize("preset", PRESETS.values(), ids=str)
def test_extreme_pages(size: tuple[int, int], preset: Preset) -> None:
    views = make_views(blank(*size, "black"), preset)
    assert views.global_view.shape == (preset.base_size, preset.base_size, 3)
    assert (views.global_view == 0).any(), "the page has vanished"
    assert len(views.crops) == (math.prod(views.grid) if views.grid != (1, 1) else 0)
    assert not views.crops.any()


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
        ("gundam", (1, 20_000), (1, 9), 900),
    ],
)
def test_valid_image_tokens(preset: str, size: tuple[int, int], grid: tuple[int, int], tokens: int) -> None:
    assert valid_image_tokens(PRESETS[preset], size, grid) == tokens


# Batches

SMALL = Preset("test", 128, 64, True)  # other sizes than the published ones keep the tests fast
WHOLE, CUT = make_views(blank(60, 60), SMALL), make_views(blank(200, 100), SMALL)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([SMALL, *PRESETS.values()]))
@example(3000, 1, SMALL)
@example(1, 1, SMALL)
def test_image_tokens_are_those_of_the_views(width: int, height: int, preset: Preset) -> None:
    views = make_views(blank(width, height), preset)
    inputs = batch([views], [PROMPTS["free"]])
    count = image_token_count(preset, views.grid)
    assert int((inputs.input_ids == IMAGE_ID).sum()) == count == inputs.image_tokens[0]

    def side(pixels: np.ndarray) -> int:
        return pixels.shape[-2] // 64

    q, local_q = side(views.global_view), side(views.crops)
    expected = q * q + q + 1  # tokens, one line break a row, separator
    expected += len(views.crops) * local_q**2
    expected += views.grid[1] * local_q if len(views.crops) else 0
    assert count == expected >= valid_image_tokens(preset, (width, height), views.grid) >= 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.text(max_size=20), min_size=2, max_size=3), min_size=1, max_size=4))
def test_batches_are_padded_on_the_left(rows: list[list[str]]) -> None:
    rows = [[piece.replace("<image>", "") for piece in row] for row in rows]
    pages = [[WHOLE, CUT][: len(row) - 1] for row in rows]
    inputs = batch(sum(pages, []), ["<image>".join(row) for row in rows])
    assert inputs.batch_size == len(rows)
    assert inputs.views_per_row == tuple(len(row) - 1 for row in rows)
    assert len(inputs.views) == sum(inputs.views_per_row)
    lengths = []
    for index, (row, views) in enumerate(zip(rows, pages, strict=True)):
        expected = [BOS] + stand_in(row[0])
        for piece, view in zip(row[1:], views, strict=True):
            expected += [IMAGE_ID] * image_token_count(SMALL, view.grid) + stand_in(piece)
        padding = inputs.prefill_len - len(expected)
        lengths.append(len(expected))
        assert inputs.input_ids[index].tolist() == [PAD] * padding + expected
        assert inputs.attention_mask[index].tolist() == [0] * padding + [1] * len(expected)
        assert inputs.images_seq_mask[index].tolist() == [False] * padding + [i == IMAGE_ID for i in expected]
        assert inputs.image_tokens[index] + inputs.text_tokens[index] == len(expected)
    assert inputs.prefill_len == max(lengths)
    assert inputs.padded == (len(set(lengths)) > 1)
    positions = inputs.to("cpu", torch.float32).position_ids
    if not inputs.padded:
        assert positions is None
    else:
        assert positions is not None
        for row_positions, length in zip(positions.tolist(), lengths, strict=True):
            assert row_positions[-length:] == list(range(length))
            assert not any(row_positions[:-length])


def test_to_device() -> None:
    rng = np.random.default_rng(0)
    pages = [
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)) for size in ((60, 40, 3), (90, 200, 3))
    ]
    views = [make_views(page, SMALL) for page in pages]
    inputs = batch(views, [PROMPTS["free"], PROMPTS["markdown"]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        moved = inputs.to("cpu", dtype)
        assert moved.pixel_values.dtype == dtype
        assert moved.pixel_values.is_contiguous()
        assert moved.pixel_values_local is not None
        assert moved.pixel_values_local.dtype == dtype
        assert moved.pixel_values_local.shape == (8, 3, 64, 64)
    assert torch.equal(moved.input_ids, inputs.input_ids)
    assert moved.num_local_patches == [0, 8]
    assert moved.patches_grid == [[1, 1], [4, 2]]
    pixels = torch.from_numpy(np.stack([view.global_view for view in views])).permute(0, 3, 1, 2)
    expected = ((pixels.float() / 255 - 0.5) / 0.5).bfloat16().float()
    assert torch.equal(inputs.to("cpu", torch.float32).pixel_values, expected)


def test_pack_errors() -> None:
    views = make_views(blank(60, 60), SMALL)
    other = make_views(blank(60, 60), replace(SMALL, name="other", crops=False))
    cases: list[tuple[list[PageViews], list[str]]] = [
        ([views], []),
        ([views], ["<image>", "<image>"]),
        ([views], ["<image><image>"]),
        ([views, views], ["<image>"]),
        ([views], ["text"]),
        ([views], ["<image>", "text"]),
        ([views, other], ["<image>", "<image>"]),
    ]
    for pages, prompts in cases:
        with refused():
            batch(pages, prompts)
