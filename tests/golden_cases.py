"""What the vendors' code gave for each family: a row each, and its cases as inputs for the
model.
"""

import json
import lzma
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load
from torch import Tensor, nn

from ocr_phases import OCRSession
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.steps.capacity import CAPACITY
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.phases import DecodeState

#: A function that gives the session and the inputs of a family's case.
Driven = Callable[[str, str], tuple[OCRSession, DeviceInputs]]
GOLDEN = Path(__file__).parent / "golden"
CASES = ("base", "gundam", "small", "batch")
#: The special ids that the recorded pages were packed with.
IMAGE_ID = 300
BOS = 0
PAD = 1


@dataclass(frozen=True)
class Recording:
    """What was recorded of one family."""

    name: str
    #: The name of the fixture that loads its model.
    session: str
    folder: Path
    #: The cases of its forward pass.
    cases: tuple[str, ...]
    #: The cases that are compared with ``generate()``, and for how many tokens.
    generated: tuple[str, ...]
    steps: int = 12
    #: Pixels are kept at ``1 / scale`` of their size.
    scale: int = 1
    #: Every ``skip``-th row of the projector's output is kept.
    skip: int = 1
    #: How near logits are to the recorded ones, and what goes into the language model.
    tolerance: float = 5e-4
    embeds: float = 1e-4
    #: The cases that consist of the first pages of others.
    made_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def preprocess(self) -> dict[str, Any]:
        """What became of each page before the model saw it."""
        return json.loads((self.folder / "preprocess.json").read_text())

    @property
    def forward(self) -> dict[str, Tensor]:
        """The inputs and outputs of the model, by ``case.name``."""
        return _tensors(self.folder / "forward.safetensors.xz")

    @property
    def pixels(self) -> dict[str, Tensor]:
        """Small copies of what each page was cut into."""
        return _tensors(self.folder / "preprocess.safetensors.xz")

    def inputs(self, case: str) -> DeviceInputs:
        """A recorded case as inputs for the model."""
        golden = self.forward
        ids = golden[f"{case}.input_ids"]
        mask = golden.get(f"{case}.attention_mask", torch.ones_like(ids))

        global_views = []
        crops = []
        crop_counts = []
        for page in self._pages_of(case):
            views = golden[page]
            global_views.append(self._pixel_values(views))
            page_crops = golden.get(page.replace("images_ori", "images_crop"))
            crop_count = 0
            if page_crops is not None:
                crop_count = len(page_crops)
                crops.append(self._pixel_values(page_crops))
            crop_counts += [crop_count] * len(views)

        position_ids = None
        if not mask.all():
            position_ids = (mask.cumsum(dim=1) - 1).clamp(min=0)
        return DeviceInputs(
            input_ids=ids,
            attention_mask=mask,
            images_seq_mask=ids == IMAGE_ID,
            pixel_values=torch.cat(global_views),
            pixel_values_local=torch.cat(crops) if crops else None,
            num_local_patches=crop_counts,
            patches_grid=golden[f"{case}.images_spatial_crop"].tolist(),
            position_ids=position_ids,
        )

    def _pages_of(self, case: str) -> list[str]:
        """The names of the recorded pages of a case, in their order."""
        pixels = "images_ori"
        if self.scale > 1:
            pixels = "images_ori_small"
        if case in self.made_of:
            return [f"{source}.{pixels}.0" for source in self.made_of[case]]
        return sorted(name for name in self.forward if name.startswith(f"{case}.{pixels}."))

    def _pixel_values(self, recorded: Tensor) -> Tensor:
        """What the model sees of recorded pixels, [N, 3, S, S] of 0 to 255, at their full size."""
        full_height = recorded.repeat_interleave(self.scale, dim=2)
        full_size = full_height.repeat_interleave(self.scale, dim=3)
        values = (full_size.float() / 255 - 0.5) / 0.5
        return values.to(torch.bfloat16).float()


@cache
def _tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a packed file, by name."""
    return load(lzma.decompress(path.read_bytes()))


_DEEPSEEK_OCR = Recording(
    "deepseek-ocr",
    session="golden_session",
    folder=GOLDEN,
    cases=CASES,
    generated=CASES,
    tolerance=1e-4,
)
_DEEPSEEK_OCR_2 = Recording(
    "deepseek-ocr-2",
    session="ocr2_session",
    folder=GOLDEN / "deepseek-ocr-2",
    cases=("base", "gundam", "page768", "batch", "mixed"),
    generated=("page768",),
    steps=8,
    scale=8,
    skip=8,
    embeds=5e-4,
    made_of={"mixed": ("gundam", "base")},
)
_UNLIMITED_OCR = Recording(
    "unlimited-ocr",
    session="unlimited_session",
    folder=GOLDEN / "unlimited-ocr",
    cases=("base", "gundam", "small", "batch", "multi", "long"),
    generated=("long", "multi", "gundam"),
    steps=34,  # twice around its window
    scale=4,
)
#: What was recorded, by the name of the family.
RECORDINGS = {
    recording.name: recording for recording in (_DEEPSEEK_OCR, _DEEPSEEK_OCR_2, _UNLIMITED_OCR)
}


@cache
def recorded_inputs(name: str, case: str) -> DeviceInputs:
    """The inputs of a family's recorded case, made once for all tests."""
    return RECORDINGS[name].inputs(case)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """A page of soft spots of random colours."""
    shape = (height // 20, width // 20, 3)
    levels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(levels).resize((width, height))


#: Of the published class there is a stand-in and no recording: its cases are a page and a preset.
VENDOR = "vendor"
VENDOR_CASES = {
    "crops": (noise(1300, 1900), "gundam"),
    "small": (noise(300, 500), "tiny"),
    "base": (noise(900, 700), "base"),
}


@cache
def vendor_inputs(session: OCRSession, case: str) -> DeviceInputs:
    """A case of the vendor's class as inputs for the model."""
    image, preset = VENDOR_CASES[case]
    return session.prepare(image, preset=preset).to("cpu", torch.float32)


def static_step(model: Any, inputs: DeviceInputs, tokens: int) -> StaticStep:
    """The static step for these rows, as it is: the very step that is captured on a GPU, or
    compiled.
    """
    rows, length = inputs.input_ids.shape
    return StaticStep(model, rows, CAPACITY, "eager").ready_for(length, tokens)


def assert_same(mine: DecodeState, eager: DecodeState) -> None:
    """Two runs made the same tokens and ended in the same state."""
    assert mine.ids == eager.ids
    assert mine.length == eager.length
    assert mine.lengths == eager.lengths
    assert torch.equal(mine.attention_mask, eager.attention_mask)
    torch.testing.assert_close(mine.logits, eager.logits, atol=5e-4, rtol=0)


@contextmanager
def captured(module: nn.Module, take: str) -> Iterator[list[Any]]:
    """A list of what a module gives (``take="output"``) or is given as ``inputs_embeds``, in each
    of its calls.
    """
    taken: list[Any] = []

    def hook(_module: nn.Module, _args: Any, arguments: dict[str, Any], output: Any) -> None:
        if take == "output":
            taken.append(output)
        else:
            taken.append(arguments[take])

    with module.register_forward_hook(hook, with_kwargs=True):
        yield taken


#: For each SAM, the pixels that it was called with and what it gave.
_SAM_CALLS: dict[nn.Module, list[tuple[Tensor, Any]]] = {}


def seen_once(session: OCRSession) -> AbstractContextManager[Any]:
    """SAM, most of a prefill's work on a CPU, gives again what it once gave for the very same
    pixels.
    """
    sam = session.interface.modules(session.model)["sam"]
    encode = type(sam).forward
    calls = _SAM_CALLS.setdefault(sam, [])

    def forward(pixels: Tensor, **options: Any) -> Any:
        if torch.is_grad_enabled():
            return encode(sam, pixels, **options)
        for known_pixels, output in calls:
            if torch.equal(known_pixels, pixels):
                return output
        output = encode(sam, pixels, **options)
        calls.append((pixels, output))
        return output

    return mock.patch.object(sam, "forward", forward)


def in_vendors_order(calls: list[Tensor], crop_counts: list[int]) -> list[Tensor]:
    """What a stage gave for all pages and then for all crops, in the order of the vendor's class:
    page by page, the crops and then the page.
    """
    pages = calls[0].split(1)
    crops = [calls[0][:0]] * len(pages)
    if len(calls) > 1:
        crops = list(calls[1].split(crop_counts))

    parts = []
    for page, page_crops in zip(pages, crops, strict=True):
        if len(page_crops):
            parts.append(page_crops)
        parts.append(page)
    return parts


def stand_in(text: str) -> list[int]:
    """The tokenizer that the pages were recorded with."""
    return [2 + byte % 250 for byte in text.encode()]


def pooled(pixels: np.ndarray) -> np.ndarray:
    """[S, S, 3] averaged to [3, 32, 32]."""
    cell = len(pixels) // 32
    return pixels.reshape(32, cell, 32, cell, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
