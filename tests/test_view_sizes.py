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
from ocr_phases.inputs.packing import pack
from ocr_phases.inputs.views import image_token_count, make_views

#: What stands in for a checkpoint's tokenizer.
TOKENS = SimpleNamespace(encode=stand_in, image_token_id=IMAGE_ID, bos_id=BOS, pad_id=PAD)


def blank(width, height):
    return Image.new("RGB", (width, height), "white")


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
    preset = replace(FAMILIES["deepseek-ocr"].preset("gundam", sizes), row_ends=row_ends)
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
    packed = pack([views], ["<image>\nFree OCR."], TOKENS)
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
