"""A name (tiny, dummy, a folder, a hub id) to a loaded checkpoint, by the implementation asked for."""

from __future__ import annotations

import torch

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.checkpoint import Checkpoint
from ocr_phases.models.native import load_native
from ocr_phases.models.remote import load_vendor


def load_checkpoint(
    name: str,
    *,
    device: str,
    dtype: torch.dtype,
    revision: str | None = None,
    local_only: bool = False,
    implementation: str = "native",
    trust_remote_code: bool = False,
    attention: str | None = None,
    cuda_calls: str = "refuse",
) -> Checkpoint:
    """Load ``tiny``, ``dummy`` (or ``dummy:layers=2,...``), a folder or a hub id onto ``device``.

    ``implementation="vendor"`` loads with the class in the checkpoint (`ocr_phases.models.remote`).
    Raises `OcrPhasesError` for anything that is no DeepSeek-OCR checkpoint, naming what is wrong.
    """
    if implementation == "vendor":
        return load_vendor(
            name,
            device=device,
            dtype=dtype,
            revision=revision,
            local_only=local_only,
            trust_remote_code=trust_remote_code,
            attention=attention,
            cuda_calls=cuda_calls,
        )
    if attention not in (None, "sdpa") or cuda_calls != "refuse":
        raise OcrPhasesError(
            'attention and cuda_calls are for implementation="vendor": native always runs with SDPA, and '
            "calls no .cuda()."
        )
    return load_native(name, device=device, dtype=dtype, revision=revision, local_only=local_only)
