"""A model of any class with random weights, and its prompts: of a config alone, or of a class's
own.

A config has neither a tokenizer nor the files of a processor. A page then goes through the image
processor that transformers has for the class, with its default settings, and the model itself says
how many features it makes of it: that many image tokens stand in front of the prompt's own tokens.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES, PROCESSOR, Preset
from ocr_phases.families.config import AnyConfig
from ocr_phases.inputs.processed import ProcessedInputs, ProcessedPages
from ocr_phases.models.anyclass import any_class, any_interface, class_of_name, class_type
from ocr_phases.models.class_errors import class_errors_told
from ocr_phases.models.devices import device_of
from ocr_phases.models.folders import read_json
from ocr_phases.models.interface import parameter_count
from ocr_phases.models.processors import default_image_processor
from ocr_phases.text import bytes_text, millions_text

#: Entries of a config.json that say how many parts of a kind a model has.
_COUNTS_PARTS = re.compile(r"layers|depth|blocks|experts", re.I)
_MOST_PARTS = 2_000
#: What config.json calls the tokens that stand for a page; transformers has two names for them.
_IMAGE_TOKEN_NAMES = ("image_token_id", "image_token_index")


def is_any_dummy(name: str) -> bool:
    """Whether ``dummy:...`` names a config file or a class, and no family or size of a family."""
    kind, _, rest = name.partition(":")
    first = rest.partition(",")[0]
    if kind != "dummy" or not first or first in FAMILIES:
        return False
    return rest.endswith(".json") or class_of_name(first) is not None


def dummy_source(name: str) -> tuple[dict[str, Any], Path | None]:
    """The entries of the config that ``dummy:CLASS`` or ``dummy:path/to/config.json`` means.

    Beside a file's entries comes the folder that holds it; None for a class.

    Raises
    ------
    OcrPhasesError
        For a file that cannot be read, for a ``model_type`` that transformers has no class for, and
        for a class whose default config makes no model.
    """
    rest = name.partition(":")[2]
    if rest.endswith(".json"):
        file = Path(rest).expanduser()
        config = read_json(file, AnyConfig)
        _refuse_too_many_parts(file, config)
        if class_type(config) is None:
            raise OcrPhasesError(
                f"{file} has the model_type {config.get('model_type')!r}, for which this "
                "transformers has no image-text-to-text class."
            )
        return dict(config), file.parent
    model_type = class_of_name(rest)
    model_class = any_class({"model_type": model_type})
    with _config_errors_told(model_class):
        config = json.loads(model_class.config_class().to_json_string(use_diff=False))
    return {**config, "model_type": model_type}, None


def _refuse_too_many_parts(file: Path, config: Mapping[str, Any]) -> None:
    """Raise `OcrPhasesError` for a number of layers or experts that no model has.

    Each would be an object in memory before it is known how much the model takes.
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            _refuse_too_many_parts(file, value)
        elif _COUNTS_PARTS.search(name) and isinstance(value, int) and value > _MOST_PARTS:
            raise OcrPhasesError(
                f"{file} has {name} {value:,}, and at most {_MOST_PARTS:,} are made: give the "
                "config.json of a published model."
            )


def _config_errors_told(model_class: Any) -> AbstractContextManager[None]:
    """Around what a class makes of a config, such as its default one."""
    return class_errors_told(
        f"The config makes no {model_class.__name__}",
        "a class's default config need not be that of a published model, so give the published one "
        "as dummy:path/to/config.json",
    )


def with_possible_ids(config: Any) -> Any:
    """The config, whose image token becomes the last of the vocabulary where it lies beyond it."""
    words = getattr(config.get_text_config(), "vocab_size", None)
    if not isinstance(words, int):
        return config
    for name in _IMAGE_TOKEN_NAMES:
        if isinstance(getattr(config, name, None), int) and getattr(config, name) >= words:
            setattr(config, name, words - 1)
    return config


def tell_what_it_takes(
    name: str, model_class: Any, config: Any, dtype: torch.dtype, device: str
) -> None:
    """Say on stderr what a model of a class takes, before it is made.

    Raises
    ------
    OcrPhasesError
        For a config that makes no model, for a class that `any_interface` refuses, and for weights
        that do not fit.
    """
    with (
        _config_errors_told(model_class),
        torch.device("meta"),
        torch.random.fork_rng(devices=[]),
    ):
        model = model_class._from_config(config, dtype=dtype)
    any_interface(model)
    count = parameter_count(model)
    weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    free = device_of(device).free_bytes() + device_of(device).reserved_bytes()
    precision = str(dtype).removeprefix("torch.")
    sentence = (
        f"{name}: {millions_text(count)} parameters of {model_class.__name__} take "
        f"{bytes_text(weights)} in {precision}, {device} has {bytes_text(free)} free"
    )
    if weights > free:
        raise OcrPhasesError(f"{sentence}: it does not fit. Choose a smaller config or dtype.")
    print(f"{sentence}: it fits. Its text will be noise.", file=sys.stderr)


class NeutralPacker:
    """Packs pages for a model that has no processor of its own.

    Parameters
    ----------
    model : PreTrainedModel
        The model on its device, which says how many features it makes of a page.
    tokenizer : PreTrainedTokenizerFast
        The tokenizer of the prompts: that of ``tiny``.
    model_type : str
        The model's ``model_type``.

    Raises
    ------
    OcrPhasesError
        For a class without an image processor, without an image token, or without
        ``get_image_features()``.
    """

    def __init__(self, model: Any, tokenizer: Any, model_type: str) -> None:
        self.model_type = model_type
        self.image_token_id = self._image_token(model)
        self.processor = default_image_processor(model_type, model.config)
        self._model = model
        self._tokenizer = tokenizer
        self._features = getattr(model, "get_image_features", None)
        if self._features is None:
            self._features = getattr(getattr(model, "model", None), "get_image_features", None)
        if self._features is None:
            raise OcrPhasesError(
                f"{type(model).__name__} has no get_image_features(), which says how many image "
                "tokens a page becomes: give dummy:FOLDER/config.json, with the processor's files "
                "and tokenizer.json in that folder."
            )
        self._takes = set(inspect.signature(model.forward).parameters)
        self._counts: dict[tuple[int, int], int] = {}

    @staticmethod
    def _image_token(model: Any) -> int:
        for name in _IMAGE_TOKEN_NAMES:
            found = getattr(model.config, name, None)
            if isinstance(found, int):
                return found
        raise OcrPhasesError(
            f"The config of {type(model).__name__} names no image token: give "
            "dummy:FOLDER/config.json, with the processor's files and tokenizer.json in that "
            "folder."
        )

    def pack(self, images: Sequence[Image.Image], prompts: Sequence[str]) -> ProcessedPages:
        """Pages and prompts as one batch: a row for each prompt, with one page each.

        Raises
        ------
        OcrPhasesError
            For other numbers of pages and prompts, and for pages that become different numbers of
            tokens, since the prompts would have to be padded.
        """
        if len(images) != len(prompts):
            raise OcrPhasesError(
                f"There are {len(images):,} pages and {len(prompts):,} prompts, and a model "
                f"without a processor of its own takes one page in a prompt."
            )
        rows = [self._row(image, prompt) for image, prompt in zip(images, prompts, strict=True)]
        if len({len(row) for row in rows}) > 1:
            raise OcrPhasesError(
                "The pages become different numbers of tokens, and it is unknown how this model's "
                "prompts are padded: measure the pages one at a time."
            )
        given = self._pixels(images)
        given["input_ids"] = torch.tensor(rows)
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        if "mm_token_type_ids" in self._takes:
            given["mm_token_type_ids"] = (given["input_ids"] == self.image_token_id).long()
        return ProcessedPages(
            inputs=ProcessedInputs(given, self.image_token_id),
            presets=(Preset(PROCESSOR, base_size=0, image_size=0, crops=False),) * len(images),
            views_per_row=(1,) * len(images),
            prompts=tuple(prompts),
        )

    def _row(self, image: Image.Image, prompt: str) -> list[int]:
        """The ids of a prompt: the page's image tokens, then those of the text."""
        words = self._tokenizer.encode(prompt, add_special_tokens=False)
        # An id of tiny's tokenizer may be what this model calls its image token.
        words = [word + 1 if word == self.image_token_id else word for word in words]
        return [self.image_token_id] * self._image_tokens(image) + words

    def _pixels(self, images: Sequence[Image.Image]) -> dict[str, Any]:
        """What the image processor makes of pages, without what the class does not take."""
        with self._pixel_errors_told():
            made = self.processor(images=[[image] for image in images], return_tensors="pt")
        return {name: value for name, value in made.items() if name in self._takes}

    def _pixel_errors_told(self) -> AbstractContextManager[None]:
        """Around what is made of a page without a processor of the model's own."""
        return class_errors_told(
            f"{type(self._model).__name__} of this config cannot take what its image processor "
            "makes of a page",
            "give dummy:FOLDER/config.json, with the processor's files and tokenizer.json in that "
            "folder",
        )

    @torch.no_grad()
    def _image_tokens(self, image: Image.Image) -> int:
        """How many features the model makes of a page of this size."""
        if image.size not in self._counts:
            given = {}
            for name, value in self._pixels([image]).items():
                if isinstance(value, Tensor):
                    dtype = self._model.dtype if value.is_floating_point() else None
                    value = value.to(self._model.device, dtype)
                given[name] = value
            with self._pixel_errors_told():
                features = self._features(**given)  # type: ignore[misc]
            found = getattr(features, "pooler_output", features)
            self._counts[image.size] = _rows_of(found)
        return self._counts[image.size]


def _rows_of(features: Any) -> int:
    """The number of vectors in a tensor, or in a list of them."""
    if isinstance(features, Tensor):
        return features.shape[:-1].numel()
    return sum(_rows_of(each) for each in features)


def has_own_processor(folder: Path | None) -> bool:
    """Whether there are the files of a processor and a tokenizer beside a config."""
    if folder is None or not (folder / "tokenizer.json").is_file():
        return False
    names = ("preprocessor_config.json", "processor_config.json")
    return any((folder / name).is_file() for name in names)


def neutral_prompt_source(origin: str) -> str:
    """What a record has as the source of a model that has no processor of its own."""
    return f"{origin}; prompts of tiny's tokenizer without a chat template"
