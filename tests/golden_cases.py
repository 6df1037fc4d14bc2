"""The recorded cases of the vendor's forward pass, as inputs for the model."""

from __future__ import annotations

import torch
from torch import Tensor

from ocr_phases.inputs.packing import DeviceInputs

CASES = ("base", "gundam", "small", "batch")


def golden_inputs(golden: dict[str, Tensor], case: str) -> DeviceInputs:
    ids = golden[f"{case}.input_ids"]

    def pixels(kind: str, row: int) -> Tensor:
        levels = golden[f"{case}.{kind}.{row}"].float() / 255
        return ((levels - 0.5) / 0.5).to(torch.bfloat16).float()

    grids = golden[f"{case}.images_spatial_crop"].tolist()
    crops = [pixels("images_crop", row) for row, grid in enumerate(grids) if grid != [1, 1]]
    return DeviceInputs(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        images_seq_mask=ids == 300,
        pixel_values=torch.cat([pixels("images_ori", row) for row in range(len(ids))]),
        pixel_values_local=torch.cat(crops) if crops else None,
        num_local_patches=[columns * rows if columns * rows > 1 else 0 for columns, rows in grids],
        patches_grid=grids,
        position_ids=None,
    )
