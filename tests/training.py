"""The built-in model's training code; a test module that imports this is skipped where it cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

CODE = Path(__file__).resolve().parents[1] / "data" / "tiny" / "train"
if not CODE.is_dir():
    pytest.skip("the training code is not part of an installed package", allow_module_level=True)
pytest.importorskip("transformers.models.unlimited_ocr")
