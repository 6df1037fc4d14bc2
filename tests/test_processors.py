"""What a checkpoint's folder lacks is said in a sentence before a processor is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.processors import load_processor


@pytest.mark.parametrize(
    ("model_type", "sentence"),
    [
        ("qwen2_5_vl", "has no preprocessor_config.json"),
        ("no_such_type", "has no processor for a 'no_such_type' model"),
    ],
)
def test_a_folder_that_makes_no_processor_is_refused(
    tmp_path: Path, model_type: str, sentence: str
) -> None:
    with pytest.raises(OcrPhasesError, match=sentence):
        load_processor(tmp_path, {"model_type": model_type}, tokenizer=None)
