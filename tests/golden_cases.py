"""What the vendors' code gave for each family: a row each, and its cases as inputs for the
model.
"""

import json
import lzma
from collections.abc import Iterator, Mapping
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

GOLDEN = Path(__file__).parent / "golden"
CASES = ("base", "gundam", "small", "batch")
#: The special ids that the recorded pages were packed with.
IMAGE_ID, BOS, PAD = 300, 0, 1


@dataclass(frozen=True)
class Recording:
    """What was recorded of one family.

    ``session`` is the fixture of its model, ``cases`` are those of its forward pass. Pixels are
    kept at ``1 / scale`` of their size, and every ``skip``-th row of the projector's output. A case
    of ``made_of`` has the first page of others. ``generated`` are the cases compared with
    ``generate()``, for ``steps`` tokens. Logits agree to ``tolerance``, what goes into the language
    model to ``embeds``.
    """

    name: str
    session: str
    folder: Path
    cases: tuple[str, ...]
    generated: tuple[str, ...]
    steps: int = 12
    scale: int = 1
    skip: int = 1
    tolerance: float = 5e-4
    embeds: float = 1e-4
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
        return DeviceInputs(
            input_ids=ids,
            attention_mask=mask,
            images_seq_mask=ids == IMAGE_ID,
            pixel_values=torch.cat(global_views),
            pixel_values_local=torch.cat(crops) if crops else None,
            num_local_patches=crop_counts,
            patches_grid=golden[f"{case}.images_spatial_crop"].tolist(),
            position_ids=None if mask.all() else (mask.cumsum(dim=1) - 1).clamp(min=0),
        )

    def _pages_of(self, case: str) -> list[str]:
        """The names of the recorded pages of a case, in their order."""
        pixels = "images_ori_small" if self.scale > 1 else "images_ori"
        if case in self.made_of:
            return [f"{source}.{pixels}.0" for source in self.made_of[case]]
        return sorted(name for name in self.forward if name.startswith(f"{case}.{pixels}."))

    def _pixel_values(self, recorded: Tensor) -> Tensor:
        """What the model sees of recorded pixels, [N, 3, S, S] of 0 to 255, at their full size."""
        full_size = recorded.repeat_interleave(self.scale, 2).repeat_interleave(self.scale, 3)
        values = (full_size.float() / 255 - 0.5) / 0.5
        return values.to(torch.bfloat16).float()


@cache
def _tensors(path: Path) -> dict[str, Tensor]:
    return load(lzma.decompress(path.read_bytes()))


RECORDINGS = {
    row.name: row
    for row in (
        Recording("deepseek-ocr", "golden_session", GOLDEN, CASES, CASES, tolerance=1e-4),
        Recording(
            "deepseek-ocr-2",
            "ocr2_session",
            GOLDEN / "deepseek-ocr-2",
            ("base", "gundam", "page768", "batch", "mixed"),
            ("page768",),
            steps=8,
            scale=8,
            skip=8,
            embeds=5e-4,
            made_of={"mixed": ("gundam", "base")},
        ),
        Recording(
            "unlimited-ocr",
            "unlimited_session",
            GOLDEN / "unlimited-ocr",
            ("base", "gundam", "small", "batch", "multi", "long"),
            ("long", "multi", "gundam"),
            steps=34,  # twice around its window
            scale=4,
        ),
    )
}


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
    """What a module gives (``take="output"``) or is given as ``inputs_embeds``."""
    seen: list[Any] = []

    def hook(module, args, kwargs, output):
        seen.append(kwargs["inputs_embeds"] if take == "inputs_embeds" else output)

    with module.register_forward_hook(hook, with_kwargs=True):
        yield seen


_SEEN: dict[nn.Module, list[tuple[Tensor, Any]]] = {}


def seen_once(session: OCRSession) -> AbstractContextManager[Any]:
    """SAM, most of a prefill's work on a CPU, gives again what it once gave for the very same
    pixels.
    """
    sam = session.interface.modules(session.model)["sam"]
    encode = type(sam).forward
    seen = _SEEN.setdefault(sam, [])

    def forward(pixels: Tensor, **named: Any) -> Any:
        if torch.is_grad_enabled():
            return encode(sam, pixels, **named)
        for known, output in seen:
            if torch.equal(known, pixels):
                return output
        output = encode(sam, pixels, **named)
        seen.append((pixels, output))
        return output

    return mock.patch.object(sam, "forward", forward)


def in_vendors_order(calls: list[Tensor], counts: list[int]) -> list[Tensor]:
    """The class sees all pages, then all crops; the vendor's, page by page, the crops and then the
    page.
    """
    pages = calls[0].split(1)
    crops = calls[1].split(counts) if len(calls) > 1 else [calls[0][:0]] * len(pages)
    return [
        part for page, own in zip(pages, crops, strict=True) for part in (own, page) if len(part)
    ]


def stand_in(text: str) -> list[int]:
    """The tokenizer that the pages were recorded with."""
    return [2 + byte % 250 for byte in text.encode()]


def pooled(pixels: np.ndarray) -> np.ndarray:
    """[S, S, 3] averaged to [3, 32, 32]."""
    cell = len(pixels) // 32
    return pixels.reshape(32, cell, 32, cell, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
