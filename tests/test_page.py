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
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import PIL
import pytest
import torch
from example_run import encoded
from golden_cases import BOS, GOLDEN, IMAGE_ID, PAD, RECORDINGS, pooled, stand_in
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import images
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, Preset, ViewSizes, facts_of
from ocr_phases.files import FORMATS
from ocr_phases.images import describe_page, load_page
from ocr_phases.inputs.packing import pack
from ocr_phases.inputs.views import image_token_count, make_views, valid_image_tokens

PRESETS, PROMPTS = FAMILIES["deepseek-ocr"].presets, FAMILIES["deepseek-ocr"].prompts


def batch(views, prompts):
    tokens = SimpleNamespace(encode=stand_in, image_token_id=IMAGE_ID, bos_id=BOS, pad_id=PAD)
    return pack(views, prompts, tokens)


def blank(width, height, colour="white"):
    return Image.new("RGB", (width, height), colour)


# The recorded vendor preprocessing

load_once = cache(load_page)
EACH_PAGE = [
    (row.name, page)
    for row in RECORDINGS.values()
    for page, case in row.preprocess["cases"].items()
    if "preset" in case or "files" in case
]


@pytest.mark.parametrize(("name", "page"), EACH_PAGE)
def test_pages_are_cut_and_packed_as_recorded(name, page):
    recorded, facts = RECORDINGS[name], FAMILIES[name]
    case = recorded.preprocess["cases"][page]
    several = "files" in case
    preset = facts.presets[case.get("preset") or {1024: "base", 640: "small"}[case["image_size"]]]
    files = case["files"] if several else [case["file"]]
    prompt = facts.text_of("multipage" if several else "markdown", pages=len(files))
    views = [make_views(load_once(GOLDEN / "pages" / file)[0], preset) for file in files]
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

    for kind, pixels in (("ori", np.stack([view.global_view for view in views])), ("crop", crops)):
        if not len(pixels):
            continue
        assert list(pixels.transpose(0, 3, 1, 2).shape) == case[f"{kind}_shape"]
        kept = recorded.pixels.get(f"{case.get(f'{kind}32_same_as', page)}.{kind}32")
        if kept is not None:
            assert (
                np.abs(np.stack([pooled(view) for view in pixels]) - kept.float().numpy()).max()
                <= 1
            )
        assert kept is not None or name == "unlimited-ocr"  # whose recording keeps some
        same_pillow = PIL.__version__.split(".")[0] == recorded.preprocess["pillow"].split(".")[0]
        if same_pillow and f"{kind}_sha256" in case:
            hashes = [
                hashlib.sha256(view.transpose(2, 0, 1).tobytes()).hexdigest() for view in pixels
            ]
            assert hashes == np.ravel(case[f"{kind}_sha256"]).tolist()


@pytest.mark.parametrize("name", ["deepseek-ocr-2", "unlimited-ocr"])
def test_the_recorded_grids_are_ours(name):
    facts, recorded = FAMILIES[name], RECORDINGS[name].preprocess
    assert len(recorded["grids"]) == 161
    for size, grid in recorded["grids"].items():
        width, height = map(int, size.split("x"))
        assert list(facts.preset().grid(width, height)) == grid, size
    for size, grid in {(1357, 1357): (2, 2), (1358, 1358): (3, 3), (1, 100_000): (1, 9)}.items():
        assert (
            PRESETS["gundam"].grid(*size) == grid
        )  # the larger from more than half of its area on


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
def test_resolve_prompt(prompt, grounding, text):
    assert FAMILIES["deepseek-ocr"].text_of(prompt, grounding=grounding) == text


def test_prompts_that_are_refused():
    """The recorded pages hold that Unlimited-OCR's own prompts are the published ones."""
    usual, unlimited = FAMILIES["deepseek-ocr"], FAMILIES["unlimited-ocr"]
    assert unlimited.text_of("Read it.") == "<image>Read it."
    for facts, prompt, grounding in (
        *(
            (unlimited, "free", None),
            (unlimited, "locate:a word", None),
            (unlimited, "Read it.", False),
        ),
        *(
            (usual, prompt, None)
            for prompt in ("locate", "locate:", " locate : ", " \n", "multipage")
        ),
        *((usual, prompt, False) for prompt in ("markdown", " ocr ")),
    ):
        with refused():
            facts.text_of(prompt, grounding=grounding)


LEFT_BLACK = np.repeat(
    np.array([[0, 255]], np.uint8), 4, axis=0
)  # 2 x 4 pixels: black left, white right


@pytest.mark.parametrize(
    "mode", ["RGB", "RGBA", "L", "LA", "P", "PA", "CMYK", "YCbCr", "HSV", "1", "I", "F", "I;16"]
)
def test_every_mode_keeps_black_and_white(mode):
    if mode in ("I", "I;16"):
        image = Image.fromarray(LEFT_BLACK.astype(np.int32 if mode == "I" else np.uint16) * 257)
    else:
        image = (
            Image.fromarray(LEFT_BLACK)
            .convert("RGB" if mode in {"HSV", "CMYK"} else "L")
            .convert(mode)
        )
    assert image.mode == mode
    page, _, _ = load_page(image)
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
def test_grey_of_more_than_8_bits_is_scaled(values, expected):
    image = Image.fromarray(
        np.array([values], np.float32 if isinstance(values[0], float) else np.uint16)
    )
    for source in (image, encoded(image, "TIFF")):
        assert np.asarray(load_page(source)[0])[0, :, 0].tolist() == expected


def test_transparency_becomes_white():
    rgba = Image.new("RGBA", (4, 2))
    rgba.putpixel((0, 0), (255, 0, 0, 255))
    rgba.putpixel((1, 0), (0, 0, 0, 128))
    palette = Image.new("P", (4, 2))
    palette.putpalette([0, 0, 0, 255, 0, 0])
    hidden = [
        encoded(palette, transparency=0),
        encoded(Image.new("RGB", (4, 2)), transparency=(0, 0, 0)),
    ]
    for data in (encoded(rgba), encoded(Image.new("LA", (4, 2))), *hidden):
        assert load_page(data)[0].getpixel((3, 1)) == (255, 255, 255)
    page, _, _ = load_page(rgba)
    assert page.getpixel((0, 0)) == (255, 0, 0)
    assert page.getpixel((1, 0)) == (127, 127, 127)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_pages_are_turned_as_exif_says(kind):
    upright = Image.fromarray(np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3))
    exif = Image.Exif()
    for exif[0x0112], stored in (
        (1, upright),
        (5, upright.transpose(Image.Transpose.TRANSPOSE)),
        (6, upright.transpose(Image.Transpose.ROTATE_90)),  # turned to the left, shown turned back
    ):
        page, _, _ = load_page(encoded(stored, kind, exif=exif))
        assert (page.size, page.tobytes()) == ((4, 6), upright.tobytes())
        assert load_page(page)[0].tobytes() == upright.tobytes()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "wrong", [{"exif": b"Exif\0\0MM\0*\xff\xff\xff\xff"}, {"exif": b"x"}, {"icc_profile": b"x"}]
)
def test_metadata_that_cannot_be_read_is_ignored(wrong):
    page, _, _ = load_page(encoded(blank(5, 3, "#123456"), **wrong))
    assert (page.size, page.getpixel((0, 0))) == ((5, 3), (0x12, 0x34, 0x56))
    assert not page.info


@pytest.fixture
def pdf(tmp_path):
    """Three pages of 72 x 36 pt: red, green, blue."""
    pages = [blank(72, 36, colour) for colour in ("red", "#00ff00", "blue")]
    path = tmp_path / "doc.pdf"
    pages[0].save(path, save_all=True, append_images=pages[1:], resolution=72)
    return path


def test_pages_of_a_pdf(pdf, monkeypatch):
    for suffix, number, channel in (("", 1, 0), ("#1", 1, 0), ("#2", 2, 1), ("#3", 3, 2)):
        page, data, name = load_page(f"{pdf}{suffix}")
        assert (page.size, name, data) == ((144, 72), f"doc.pdf#{number}", pdf.read_bytes())
        assert int(np.asarray(page)[35, 70].argmax()) == channel
    for number in ("0", "4", "two"):
        with refused():
            load_page(f"{pdf}#{number}")
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    with refused():
        load_page(f"{pdf}#2")
    monkeypatch.undo()
    pdf.write_bytes(b"%PDF-1.7 and nothing more")
    with refused():
        load_page(pdf)
    (pdf.parent / "scan.pdf#2").write_bytes(
        encoded(blank(4, 4))
    )  # a file that is named like a page
    assert load_page(pdf.parent / "scan.pdf#2")[2] == "scan.pdf#2"
    monkeypatch.setitem(sys.modules, "pypdfium2", None)  # without the package
    with refused():
        load_page(pdf)


def test_frames_of_a_tiff_are_pages(tmp_path):
    path = tmp_path / "two.tif"
    frames = [blank(8, 4, "red"), blank(4, 8, "blue")]
    path.write_bytes(encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:]))
    for given_name, name, size in ((path, "two.tif#1", (8, 4)), (f"{path}#2", "two.tif#2", (4, 8))):
        page, data, found = load_page(given_name)
        assert (page.size, found) == (size, name)
        kept = describe_page(page, data, found)
        assert (
            load_page(base64.b64decode(kept["data"]))[0].size == size
        )  # the record holds this frame
    assert images.page_count(path) == 2
    assert says(images.unnamed_pages(path), "2 pages", "page 1", "two.tif#2")
    with refused():
        load_page(f"{path}#3")
    path.write_bytes(encoded(frames[0], "TIFF"))
    assert load_page(path)[2] == "two.tif"


def header_only_png(width, height):
    """A PNG that says it is that large and holds no pixels."""
    small = encoded(Image.new("1", (1, 1)))
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + small[24:29]
    return small[:12] + header + zlib.crc32(header).to_bytes(4, "big") + small[33:]


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
def test_what_is_no_page_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    Image.init()  # every format that Pillow knows is at hand
    source = SOURCES[name]
    for limit in (Image.MAX_IMAGE_PIXELS, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with refused():
            load_page(f"{tmp_path}/{source}" if isinstance(source, str) else source)
    if isinstance(source, bytes):
        with refused():
            images.page_image(source)  # as a record holds it


def test_a_page_is_a_regular_file_of_bounded_size(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.pdf").symlink_to("/dev/zero")
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(300 * 10**9)
    for name in ("pipe.png", "zero.pdf", "sparse.png"):
        for read in (load_page, images.page_count):
            with refused():
                read(tmp_path / name)


def test_the_largest_page_follows_from_the_memory_its_format_needs(monkeypatch):
    monkeypatch.setattr(images, "MAX_BYTES", 14 * 1600)
    for kind in ("PNG", "JPEG", "TIFF", "WEBP", "JPEG2000"):
        assert load_page(encoded(blank(29, 29), kind))[0].size == (29, 29)
        expected = refused() if kind in ("WEBP", "JPEG2000") else contextlib.nullcontext()
        with expected:
            assert load_page(encoded(blank(40, 40), kind))[0].size == (40, 40)


@pytest.mark.parametrize("kind", [*(kind for kind in FORMATS if kind in Image.SAVE), "MPO"])
def test_the_documented_formats_are_read_at_their_first_frame(kind):
    """A phone's MPO and what moves."""
    moves = kind in ("GIF", "PNG", "WEBP", "MPO")
    more = {"save_all": True, "append_images": [blank(16, 16, "red")]} if moves else {}
    data = encoded(blank(16, 16), kind, **more)
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == kind and getattr(image, "n_frames", 1) == 1 + moves
    page, _, _ = load_page(data)
    assert (page.size, page.getpixel((8, 8))) == ((16, 16), (255, 255, 255))


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.data(), st.sampled_from(["PNG", "JPEG", "TIFF", "GIF", "WEBP", "BMP"]))
def test_damaged_files_never_escape(data, kind):
    exif = Image.Exif()
    exif[0x0112] = 6
    damaged = bytearray(encoded(blank(16, 16, "red"), kind, exif=exif))
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(OcrPhasesError):
        assert load_page(bytes(damaged))[0].mode == "RGB"


def test_valid_image_tokens():
    for preset, size, grid, tokens in (
        ("tiny", (100, 900), (1, 1), 64),
        ("small", (100, 900), (1, 1), 100),
        ("base", (1000, 1000), (1, 1), 256),
        ("base", (1240, 1754), (1, 1), 180),
        ("large", (1240, 1754), (1, 1), 282),
        ("gundam", (1240, 1754), (2, 3), 780),
        ("gundam", (400, 300), (1, 1), 192),
    ):
        assert valid_image_tokens(PRESETS[preset], size, grid) == tokens


# Other sizes than a preset's

GUNDAM_M = ViewSizes(base_size=1280, image_size=1024)
SIZES_ASKED = (
    ("deepseek-ocr", "gundam", GUNDAM_M, "gundam 1280+1024"),
    ("deepseek-ocr", "gundam", ViewSizes(max_crops=6), "gundam, 2 to 6 crops"),
    ("deepseek-ocr", "gundam", ViewSizes(min_crops=4, max_crops=4), "gundam, 4 crops"),
    ("deepseek-ocr", "gundam", ViewSizes(crop_mode=False), "gundam 640, no crops"),
    ("deepseek-ocr", "base", ViewSizes(image_size=1536), "base 1536"),
    ("deepseek-ocr", "large", ViewSizes(crop_mode=True, image_size=640), "large 1280+640"),
    ("deepseek-ocr", "gundam", ViewSizes(base_size=1024), "gundam"),
    ("deepseek-ocr-2", "crop", ViewSizes(image_size=1024), "crop 1024+1024"),
    ("unlimited-ocr", "base", ViewSizes(crop_mode=True), "base 1024+1024"),
)


@pytest.mark.parametrize(("family", "preset", "sizes", "name"), SIZES_ASKED)
def test_a_preset_with_other_sizes_says_them_in_its_name(family, preset, sizes, name):
    assert FAMILIES[family].preset(preset, sizes).name == name


def test_crops_of_a_resized_preset_are_limited_as_its_familys():
    limits = {"deepseek-ocr": 9, "deepseek-ocr-2": 6, "unlimited-ocr": 32}
    for name, limit in limits.items():
        for preset in FAMILIES[name].presets:
            cut = FAMILIES[name].preset(preset, ViewSizes(crop_mode=True))
            assert (cut.fewest_tiles, cut.most_tiles) == (2, limit)


REFUSED_SIZES = (
    ("deepseek-ocr", "base", ViewSizes(base_size=512), "image_size=512"),
    ("deepseek-ocr", "base", ViewSizes(max_crops=4), "crop_mode=True"),
    ("deepseek-ocr", "gundam", ViewSizes(max_crops=1), "min_crops=1"),
    ("deepseek-ocr", "gundam", ViewSizes(min_crops=10), "max_crops"),
    ("deepseek-ocr-2", "crop", ViewSizes(image_size=640), "768 or 1024"),
    ("deepseek-ocr-2", "crop", ViewSizes(base_size=1280), "768 or 1024"),
    ("another", "processor", ViewSizes(max_crops=4), "max_crops=4"),
)


@pytest.mark.parametrize(("family", "preset", "sizes", "remedy"), REFUSED_SIZES)
def test_sizes_that_contradict_preset_or_model_are_refused(family, preset, sizes, remedy):
    with refused() as caught:
        facts_of(family).preset(preset, sizes)
    assert remedy in str(caught.value)


SIDES = st.integers(1, 24).map(lambda tokens: 64 * tokens)
CROPS = st.tuples(st.integers(1, 12), st.integers(0, 12))


@given(st.integers(1, 3000), st.integers(1, 3000), SIDES, SIDES, CROPS, st.booleans())
@settings(max_examples=40)
def test_a_page_takes_as_many_tokens_as_its_views_are_encoded_to(
    width, height, base, image, crops, row_ends
):
    """The count by the published formula, and by the maps that the tensors have after the 16-fold
    patches and two strided convolutions.
    """
    fewest, more = crops
    sizes = ViewSizes(base, image, True, fewest, fewest + more)
    preset = replace(PRESETS["gundam"].resized(sizes), row_ends=row_ends)
    views = make_views(blank(width, height), preset)
    columns, rows = views.grid
    assert views.global_view.shape == (base, base, 3)
    tiles = columns * rows if views.grid != (1, 1) else 0
    assert views.crops.shape == (tiles, image, image, 3)
    if tiles:
        assert fewest <= tiles <= fewest + more
        assert max(width, height) > 640
    ends = int(row_ends)
    vectors = sum((view.shape[0] // 64) * (view.shape[1] // 64) for view in views.crops)
    vectors += (base // 64) ** 2
    breaks = ends * (base // 64) + 1 + (ends * rows * (image // 64) if tiles else 0)
    assert image_token_count(preset, views.grid) == vectors + breaks
    packed = batch([views], [PROMPTS["free"]])
    assert packed.image_tokens == (vectors + breaks,)
    assert int(packed.images_seq_mask.sum()) == vectors + breaks


#: Recorded forward passes of small views: family, case, preset, and sizes that make such views.
SMALL_VIEWS = [
    (family, case, preset, sizes)
    for family in ("deepseek-ocr", "unlimited-ocr")
    for case, preset, sizes in (
        ("base", "base", ViewSizes(image_size=512)),
        ("gundam", "gundam", ViewSizes(base_size=512, image_size=320)),
        ("small", "small", ViewSizes(image_size=320)),
        ("batch", "small", ViewSizes(image_size=256)),
    )
]


@pytest.mark.parametrize(("family", "case", "preset", "sizes"), SMALL_VIEWS)
def test_other_sizes_take_as_many_tokens_as_the_publishers_code_recorded(
    family, case, preset, sizes
):
    cutting = FAMILIES[family].preset(preset, sizes)
    inputs = RECORDINGS[family].inputs(case)
    (grid, *_) = inputs.patches_grid
    recorded = int(inputs.images_seq_mask[0].sum())
    assert image_token_count(cutting, tuple(grid)) == recorded
    assert inputs.pixel_values.shape[-1] == cutting.base_size
    if inputs.pixel_values_local is not None:
        assert inputs.pixel_values_local.shape[-1] == cutting.image_size
        columns, rows = grid
        page = blank(columns * 400, rows * 400)
        assert make_views(page, cutting).grid == (columns, rows)


# Batches; that a padded row reads as its page alone is held by whole runs

SMALL = Preset(
    "test", 128, 64, True, small_side=64
)  # other sizes than the published ones keep the tests fast


@pytest.mark.parametrize("size", [(1, 1), (641, 640), (20_000, 1), (1, 20_000), (50, 20_000)])
@pytest.mark.parametrize("preset", [SMALL, *PRESETS.values()], ids=lambda preset: preset.name)
def test_no_page_is_so_thin_that_it_vanishes(preset, size):
    views = make_views(blank(*size, "black"), preset)
    assert (views.global_view == 0).any() and not views.crops.any()
    count = batch([views], [PROMPTS["free"]]).image_tokens[0]
    assert count >= valid_image_tokens(preset, size, views.grid) >= 0


def test_to_device():
    pages = [Image.fromarray(np.resize(NOISE, size)) for size in ((60, 40, 3), (90, 200, 3))]
    views = [make_views(page, SMALL) for page in pages]
    inputs = batch(views, [PROMPTS["free"], PROMPTS["markdown"]])
    pixels = torch.from_numpy(np.stack([view.global_view for view in views])).permute(0, 3, 1, 2)
    expected = ((pixels.float() / 255 - 0.5) / 0.5).bfloat16()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        moved = inputs.to("cpu", dtype)
        assert torch.equal(moved.pixel_values, expected.to(dtype))
        assert moved.pixel_values.is_contiguous()
        local = moved.pixel_values_local
        assert local is not None and (local.dtype, local.shape) == (dtype, (8, 3, 64, 64))
    assert batch(views[:1], [PROMPTS["free"]]).to("cpu", torch.float32).pixel_values_local is None
    assert torch.equal(moved.input_ids, inputs.input_ids)
    assert moved.num_local_patches == [0, 8]
    assert moved.patches_grid == [[1, 1], [4, 2]]
