"""Pages that are cut to other sizes than a preset's: their names, their tokens, and refusals."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from golden_cases import BOS, IMAGE_ID, PAD, RECORDINGS, stand_in
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from ocr_phases.families import FAMILIES, ViewSizes, facts_of
from ocr_phases.families.facts import Preset
from ocr_phases.inputs.packing import pack
from ocr_phases.inputs.views import PageViews, image_token_count, make_views

#: What stands in for a checkpoint's tokenizer.
TOKENS = SimpleNamespace(encode=stand_in, image_token_id=IMAGE_ID, bos_id=BOS, pad_id=PAD)

#: A token of an image stands for a square of so many pixels a side: patches of 16 pixels, and two
#: convolutions that halve the sides.
TOKEN_SIDE = 64


def blank_page(width: int, height: int) -> Image.Image:
    """A white page of so many pixels."""
    return Image.new("RGB", (width, height), "white")


GUNDAM_M = ViewSizes(base_size=1280, image_size=1024)


@pytest.mark.parametrize(
    ("family", "preset", "sizes", "name"),
    [
        ("deepseek-ocr", "gundam", GUNDAM_M, "gundam 1280+1024"),
        ("deepseek-ocr", "gundam", ViewSizes(max_crops=6), "gundam, 2 to 6 crops"),
        ("deepseek-ocr", "gundam", ViewSizes(min_crops=4, max_crops=4), "gundam, 4 crops"),
        ("deepseek-ocr", "gundam", ViewSizes(crop_mode=False), "gundam 640, no crops"),
        ("deepseek-ocr", "base", ViewSizes(image_size=1536), "base 1536"),
        ("deepseek-ocr", "large", ViewSizes(crop_mode=True, image_size=640), "large 1280+640"),
        ("deepseek-ocr", "gundam", ViewSizes(base_size=1024), "gundam"),
        ("deepseek-ocr-2", "crop", ViewSizes(image_size=1024), "crop 1024+1024"),
        ("unlimited-ocr", "base", ViewSizes(crop_mode=True), "base 1024+1024"),
    ],
)
def test_a_preset_with_other_sizes_says_them_in_its_name(
    family: str, preset: str, sizes: ViewSizes, name: str
) -> None:
    assert FAMILIES[family].preset(preset, sizes).name == name


@pytest.mark.parametrize(
    ("family", "most_crops"), [("deepseek-ocr", 9), ("deepseek-ocr-2", 6), ("unlimited-ocr", 32)]
)
def test_crops_of_a_resized_preset_are_limited_as_its_familys(family: str, most_crops: int) -> None:
    for preset in FAMILIES[family].presets:
        cutting = FAMILIES[family].preset(preset, ViewSizes(crop_mode=True))
        assert cutting.fewest_tiles == 2
        assert cutting.most_tiles == most_crops


@pytest.mark.parametrize(
    ("family", "preset", "sizes", "remedy"),
    [
        ("deepseek-ocr", "base", ViewSizes(base_size=512), "image_size=512"),
        ("deepseek-ocr", "base", ViewSizes(max_crops=4), "crop_mode=True"),
        ("deepseek-ocr", "gundam", ViewSizes(max_crops=1), "min_crops=1"),
        ("deepseek-ocr", "gundam", ViewSizes(min_crops=10), "max_crops"),
        ("deepseek-ocr-2", "crop", ViewSizes(image_size=640), "768 or 1024"),
        ("deepseek-ocr-2", "crop", ViewSizes(base_size=1280), "768 or 1024"),
        ("another", "processor", ViewSizes(max_crops=4), "max_crops=4"),
    ],
)
def test_sizes_that_contradict_preset_or_model_are_refused(
    family: str, preset: str, sizes: ViewSizes, remedy: str
) -> None:
    with refused() as caught:
        facts_of(family).preset(preset, sizes)

    assert remedy in str(caught.value)


PIXELS = st.integers(1, 3000)
VIEW_SIDES = st.integers(1, 24).map(lambda tokens: TOKEN_SIDE * tokens)
FEWEST_CROPS = st.integers(1, 12)
MORE_CROPS = st.integers(0, 12)


def vectors_of_the_views(views: PageViews) -> int:
    """How many vectors the encoders make of the views of a page, one a token."""
    vectors = 0
    for view in (views.global_view, *views.crops):
        rows = view.shape[0] // TOKEN_SIDE
        columns = view.shape[1] // TOKEN_SIDE
        vectors += rows * columns
    return vectors


def breaks_between_vectors(preset: Preset, views: PageViews) -> int:
    """How many tokens end a row of vectors, or stand between the crops and the global view."""
    breaks = 1
    if preset.row_ends:
        breaks += preset.base_size // TOKEN_SIDE
        if len(views.crops):
            _, rows_of_crops = views.grid
            breaks += rows_of_crops * (preset.image_size // TOKEN_SIDE)
    return breaks


@given(PIXELS, PIXELS, VIEW_SIDES, VIEW_SIDES, FEWEST_CROPS, MORE_CROPS, st.booleans())
@settings(max_examples=40)
def test_a_page_takes_as_many_tokens_as_its_views_are_encoded_to(
    width: int, height: int, base: int, image: int, fewest: int, more: int, row_ends: bool
) -> None:
    """The count by the published formula, and by the maps that the tensors have after the 16-fold
    patches and two strided convolutions.
    """
    sizes = ViewSizes(base, image, True, fewest, fewest + more)
    preset = replace(FAMILIES["deepseek-ocr"].preset("gundam", sizes), row_ends=row_ends)

    views = make_views(blank_page(width, height), preset)
    packed = pack([views], ["<image>\nFree OCR."], TOKENS)

    assert views.global_view.shape == (base, base, 3)
    assert views.crops.shape[1:] == (image, image, 3)
    tokens = vectors_of_the_views(views) + breaks_between_vectors(preset, views)
    assert image_token_count(preset, views.grid) == tokens
    assert packed.image_tokens == (tokens,)
    assert int(packed.images_seq_mask.sum()) == tokens


@given(PIXELS, PIXELS, FEWEST_CROPS, MORE_CROPS)
@settings(max_examples=40)
def test_only_a_large_page_is_cut_and_into_as_many_crops_as_were_asked(
    width: int, height: int, fewest: int, more: int
) -> None:
    sizes = ViewSizes(64, 64, True, fewest, fewest + more)

    views = make_views(blank_page(width, height), FAMILIES["deepseek-ocr"].preset("gundam", sizes))

    if views.grid == (1, 1):
        assert len(views.crops) == 0
    else:
        columns, rows = views.grid
        assert len(views.crops) == columns * rows
        assert fewest <= len(views.crops) <= fewest + more
        assert max(width, height) > 640


@pytest.mark.parametrize(
    ("case", "preset", "sizes"),
    [
        ("base", "base", ViewSizes(image_size=512)),
        ("gundam", "gundam", ViewSizes(base_size=512, image_size=320)),
        ("small", "small", ViewSizes(image_size=320)),
        ("batch", "small", ViewSizes(image_size=256)),
    ],
)
@pytest.mark.parametrize("family", ["deepseek-ocr", "unlimited-ocr"])
def test_other_sizes_take_as_many_tokens_as_the_publishers_code_recorded(
    family: str, case: str, preset: str, sizes: ViewSizes
) -> None:
    """The forward passes that were recorded are of small views, which these sizes make."""
    inputs = RECORDINGS[family].inputs(case)
    columns, rows = inputs.patches_grid[0]

    cutting = FAMILIES[family].preset(preset, sizes)

    recorded_tokens = int(inputs.images_seq_mask[0].sum())
    assert image_token_count(cutting, (columns, rows)) == recorded_tokens
    assert inputs.pixel_values.shape[-1] == cutting.base_size
    if inputs.pixel_values_local is not None:
        assert inputs.pixel_values_local.shape[-1] == cutting.image_size
        page = blank_page(columns * 400, rows * 400)
        assert make_views(page, cutting).grid == (columns, rows)
