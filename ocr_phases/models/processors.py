"""A checkpoint's own processor, without transformers' Auto classes and without torchvision.

The classes are looked up by name in transformers' own tables, by the checkpoint's ``model_type``
and by what its ``preprocessor_config.json`` names. Code of a checkpoint never runs, and a chat
template is rendered in jinja2's sandbox.
"""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers
from PIL import Image

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import PROCESSOR, Preset
from ocr_phases.files import read_regular
from ocr_phases.inputs.processed import ProcessedInputs, ProcessedPages
from ocr_phases.models import chat_template
from ocr_phases.models.class_errors import class_errors_told
from ocr_phases.models.folders import read_json

_LONGEST_TEMPLATE = 200_000  # characters
#: Seconds of the processor's time that a chat template may take; on a busy machine twice as long.
CHAT_SECONDS = 5
#: Processors that write the whole prompt themselves, where they are given none.
_WRITE_OWN_PROMPT = frozenset({"GotOcr2Processor"})

#: Classes that transformers' table has no image processor for, and whose they use.
_BORROWED = {
    "glm4v_moe": "glm4v",
    "glm_ocr": "glm46v",
    "glmga": "glm46v",
    "qwen2_5_omni_thinker": "qwen2_vl",
    "qwen3_omni_moe_thinker": "qwen2_vl",
    "qwen3_vl_moe": "qwen3_vl",
}
#: In how many tiles a page's longer side is cut by default, where a class cuts pages into tiles.
_TILES = 4


def load_processor(folder: Path, config: Mapping[str, Any], tokenizer: Any) -> Any:
    """The processor of a checkpoint's folder, around its tokenizer.

    Raises
    ------
    OcrPhasesError
        Where transformers knows no processor of this ``model_type``, where the folder has no
        ``preprocessor_config.json``, and where its entries do not make one.
    """
    model_type = str(config.get("model_type"))
    settings = _read(folder, "processor_config.json")
    image_entries = _read(folder, "preprocessor_config.json")
    tokenizer_entries = _read(folder, "tokenizer_config.json")
    processor_class = _processor_class([settings, image_entries, tokenizer_entries], model_type)
    template = _chat_template(folder, [settings, tokenizer_entries])
    image_settings = settings.pop("image_processor", None)
    if image_settings is None:
        image_settings = image_entries
    if not image_settings:
        raise OcrPhasesError(
            f"{folder} has no preprocessor_config.json, which says how a page becomes pixels: put "
            "the one of the published checkpoint there."
        )
    image_processor_class = _image_processor_class(image_settings, model_type)
    with class_errors_told(
        f"The processor of {folder} cannot be made",
        "take the processor files of the published checkpoint",
    ):
        try:
            image_processor = image_processor_class(**image_settings)
            return _assembled(processor_class, image_processor, tokenizer, settings, template)
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise OcrPhasesError(
                f"The processor of {folder} needs a package that is not installed here: {reason}"
            ) from error


def _read(folder: Path, name: str) -> dict[str, Any]:
    """The entries of a JSON file; none where it is not there."""
    return dict(read_json(folder / name, dict[str, Any], missing={}))


def _processor_class(files: Sequence[Mapping[str, Any]], model_type: str) -> type:
    """transformers' class, by the first name in the folder's files or by the model's type."""
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    named = PROCESSOR_MAPPING_NAMES.get(model_type)
    for entries in files:
        if entries.get("processor_class"):
            named = entries["processor_class"]
            break
    found = getattr(transformers, str(named), None)
    if found is not None and getattr(found, "is_dummy", False):
        raise OcrPhasesError(
            f"{named} of a {model_type!r} model needs {', '.join(found._backends)}, and not all of "
            "them are installed here: pip install what is missing."
        )
    if not (isinstance(found, type) and issubclass(found, transformers.ProcessorMixin)):
        raise OcrPhasesError(
            f"transformers {transformers.__version__} has no processor for a {model_type!r} model "
            f"({named or 'none is named'}): upgrade transformers, or give model and processor to "
            "OCRSession.from_model."
        )
    return found


def _image_processor_class(settings: Mapping[str, Any], model_type: str) -> Any:
    """The image processor that works with Pillow: torchvision is no dependency."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    named = str(settings.get("image_processor_type", ""))
    base = named.removesuffix("Fast").removesuffix("Pil")
    wanted = []
    if base:
        wanted = [f"{base}Pil", base]
    known = IMAGE_PROCESSOR_MAPPING_NAMES.get(_BORROWED.get(model_type, model_type))
    if isinstance(known, Mapping):
        wanted += [str(known[kind]) for kind in ("pil", "torchvision") if known.get(kind)]
    for name in wanted:
        found = _named_in_transformers(name)
        if found is not None:
            return found
    needs_torchvision = isinstance(known, Mapping) and known.get("torchvision")
    if needs_torchvision or named.endswith("Fast"):
        raise OcrPhasesError(
            f"The image processor {named or needs_torchvision} of a {model_type!r} model works "
            f"with torchvision alone, which is not installed here: pip install torchvision."
        )
    raise OcrPhasesError(
        f"transformers {transformers.__version__} has no image processor "
        f"{named or f'for a {model_type!r} model'}: upgrade transformers, or give model and "
        "processor to OCRSession.from_model."
    )


def default_image_processor(model_type: str, config: Any) -> Any:
    """The image processor of a ``model_type`` with its default settings.

    The size of a page is the config's, where its encoder takes one size.

    Raises
    ------
    OcrPhasesError
        Where transformers has none that works here.
    """
    processor_class = _image_processor_class({}, model_type)
    vision = getattr(config, "vision_config", None)
    settings: dict[str, Any] = {}
    size = _side(getattr(vision, "image_size", None))
    default = getattr(processor_class, "size", None) or {}
    if size is not None and set(default) == {"height", "width"}:
        settings["size"] = {"height": size, "width": size}
    tile = getattr(processor_class, "max_image_size", None)
    if size is not None and isinstance(tile, Mapping):
        settings["max_image_size"] = {"longest_edge": size}
        settings["size"] = {"longest_edge": _TILES * size}
    if size is not None and getattr(processor_class, "crop_size", None):
        settings["size"] = {"shortest_edge": size}
        settings["crop_size"] = {"height": size, "width": size}
    cuts = getattr(config, "image_grid_pinpoints", None)
    if cuts and hasattr(processor_class, "image_grid_pinpoints"):  # the sizes that tiles make up
        settings["image_grid_pinpoints"] = cuts
    patch = _side(getattr(vision, "patch_size", None))
    # Where a class has both, the other one is the side of a tile.
    for name in ("vision_patch_size", "patch_size"):
        if patch is not None and isinstance(getattr(processor_class, name, None), int):
            settings[name] = patch
            break
    with class_errors_told(
        f"{processor_class.__name__} does not take the sizes of the config",
        "give dummy:FOLDER/config.json, with the processor's files and tokenizer.json in that "
        "folder",
    ):
        return processor_class(**settings)


def _side(size: Any) -> int | None:
    """The side of a square that a config gives as a number, or as height and width."""
    if isinstance(size, Sequence) and size:
        size = size[0]
    return size if isinstance(size, int) else None


def _named_in_transformers(name: str | None) -> Any:
    """A class of transformers by its name; None where it is not there, or needs what is not."""
    found = getattr(transformers, str(name), None)
    if isinstance(found, type) and not getattr(found, "is_dummy", False):
        return found
    return _in_a_model_module(str(name))


def _in_a_model_module(name: str) -> Any:
    """A Pillow image processor, which not every version exports at the top."""
    if not name.endswith("ImageProcessorPil"):
        return None
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    for model_type, known in IMAGE_PROCESSOR_MAPPING_NAMES.items():
        if not (isinstance(known, Mapping) and known.get("pil") == name):
            continue
        folder = model_type.replace("-", "_").replace(".", "_")
        place = f"transformers.models.{folder}.image_processing_pil_{folder}"
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        if hasattr(module, name):
            return getattr(module, name)
    return None


class _WithoutOtherMedia:
    """A processor that need not have parts for video and sound: pages need none."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """The class that an argument must be of; any for a part that is left out."""
        if argument is None or isinstance(argument, _NoPart):
            return None
        return super().check_argument_for_proper_class(argument_name, argument)  # type: ignore[misc]


class _NoPart:
    """Stands where a processor reads the settings of a part that pages do not need."""

    model_input_names = ()

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _assembled(
    processor_class: type,
    image_processor: Any,
    tokenizer: Any,
    settings: Mapping[str, Any],
    template: str | None,
) -> Any:
    """The processor of its parts, its chat template and what ``processor_config.json`` sets."""
    known = inspect.signature(processor_class).parameters
    arguments = {name: value for name, value in settings.items() if name in known}
    if template is not None and "chat_template" in known:
        arguments["chat_template"] = template
    arguments["image_processor"] = image_processor
    arguments["tokenizer"] = tokenizer
    lenient = type(processor_class.__name__, (_WithoutOtherMedia, processor_class), {})
    try:
        processor = lenient(**dict.fromkeys(_other_parts(known), None), **arguments)
    except AttributeError:  # it reads settings of a part that is left out
        processor = lenient(**dict.fromkeys(_other_parts(known), _NoPart()), **arguments)
    if template is not None:
        processor.chat_template = template
    return processor


def _other_parts(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """The parts of a processor beside those for pages and text, by the names of its arguments."""
    endings = ("_processor", "_extractor", "_tokenizer")
    return [name for name in parameters if name.endswith(endings) and name != "image_processor"]


def _chat_template(folder: Path, files: Sequence[Mapping[str, Any]]) -> str | None:
    """The chat template of a checkpoint: from a file of its own, else from the first of
    ``files``.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_regular(file, _LONGEST_TEMPLATE).decode("utf-8")
    for entries in (_read(folder, "chat_template.json"), *files):
        template = entries.get("chat_template")
        if isinstance(template, str):
            return template
        if isinstance(template, list):  # several, by their names
            for each in template:
                if isinstance(each, dict) and each.get("name") == "default":
                    return str(each.get("template"))
    return None


# -- a page and a prompt ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PagePacker:
    """A checkpoint's processor, and what it has to know to pack a page.

    Attributes
    ----------
    processor
        The processor, such as a ``Qwen2_5_VLProcessor``.
    model_type
        The checkpoint's ``model_type``.
    image_token_id
        The id that stands for one image token; None where the checkpoint names none.
    """

    processor: Any
    model_type: str
    image_token_id: int | None

    def pack(self, images: Sequence[Image.Image], prompts: Sequence[str]) -> ProcessedPages:
        """Pages and prompts as one batch: a row for each prompt, or all pages in a single row.

        Raises
        ------
        OcrPhasesError
            For other numbers of pages and prompts, and as `process` does.
        """
        rows = [list(images)] if len(prompts) == 1 else [[image] for image in images]
        if len(rows) != len(prompts):
            raise OcrPhasesError(
                f"There are {len(images):,} pages and {len(prompts):,} prompts: give one prompt, "
                f"or one for each page."
            )
        given = process(self.processor, rows, prompts)
        preset = Preset(PROCESSOR, base_size=0, image_size=0, crops=False)
        return ProcessedPages(
            inputs=ProcessedInputs(given, self.image_token_id),
            presets=(preset,) * len(images),
            views_per_row=tuple(len(row) for row in rows),
            prompts=tuple(prompts),
        )


def image_token_id(config: Any, processor: Any) -> int | None:
    """The id of the image token, as the class's config or the processor names it; None for
    neither.
    """
    for name in ("image_token_id", "image_token_index"):
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name)
    found = getattr(processor, "image_token_id", None)
    return found if isinstance(found, int) else None


def process(
    processor: Any, pages: Sequence[Sequence[Image.Image]], prompts: Sequence[str]
) -> dict[str, Any]:
    """What a class takes for a batch: one row for each prompt, with the pages of the row.

    Raises
    ------
    OcrPhasesError
        For a chat template that cannot be rendered, and for pages that the processor refuses.
    """
    texts = [
        chat_text(processor, prompt, len(row)) for prompt, row in zip(prompts, pages, strict=True)
    ]
    images = [list(row) for row in pages]
    options: dict[str, Any] = {"return_tensors": "pt"}
    if len(texts) > 1:
        options["padding"] = True
        options["padding_side"] = "left"
    remedy = "try another prompt, or another page"
    if len(texts) > 1:
        remedy = "measure these pages one at a time"
    with class_errors_told(
        f"{type(processor).__name__} cannot pack the page and the prompt", remedy
    ):
        if all(text is None for text in texts):
            return dict(processor(images=[image for row in images for image in row], **options))
        return dict(processor(images=images, text=texts, **options))


def chat_text(processor: Any, prompt: str, pages: int) -> str | None:
    """The text that the model reads: the prompt in the checkpoint's chat template.

    Without a template the image's own mark stands in front of the prompt. None where the processor
    writes the whole prompt itself.
    """
    template = getattr(processor, "chat_template", None) or getattr(
        processor.tokenizer, "chat_template", None
    )
    if isinstance(template, dict):
        template = template.get("default")
    if isinstance(template, str):
        tokenizer = processor.tokenizer
        bos_token = tokenizer.bos_token or ""
        eos_token = tokenizer.eos_token or ""
        return render_chat(template, prompt, pages, bos_token, eos_token)
    if type(processor).__name__ in _WRITE_OWN_PROMPT:
        return None
    mark = getattr(processor, "image_token", None)
    mark = getattr(mark, "content", mark)
    if not isinstance(mark, str):
        raise OcrPhasesError(
            f"{type(processor).__name__} has neither a chat template nor an image token, so that "
            f"it is unknown how a page is asked about: set processor.chat_template and use "
            "OCRSession.from_model."
        )
    if mark in prompt:
        return prompt
    return f"{mark * pages}{prompt}"


@lru_cache(maxsize=64)
def render_chat(template: str, prompt: str, pages: int, bos_token: str, eos_token: str) -> str:
    """A checkpoint's chat template around one message: the pages, then the prompt.

    It is rendered in jinja2's sandbox, in a process of its own whose time and memory are bounded
    (`ocr_phases.models.chat_template`).

    Raises
    ------
    OcrPhasesError
        For a template that is too long, that takes too much time or memory, or that fails.
    """
    if len(template) > _LONGEST_TEMPLATE:
        raise OcrPhasesError(
            f"The chat template has {len(template):,} characters; at most {_LONGEST_TEMPLATE:,} "
            f"are read."
        )
    content: list[dict[str, str]] = [{"type": "image"} for _ in range(pages)]
    content.append({"type": "text", "text": prompt})
    values = {
        "messages": [{"role": "user", "content": content}],
        "add_generation_prompt": True,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    request = json.dumps({"template": template, "values": values})
    try:
        finished = subprocess.run(
            [sys.executable, "-I", chat_template.__file__, str(CHAT_SECONDS)],
            input=request,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=2 * CHAT_SECONDS,
            check=False,
        )
        answer = json.loads(finished.stdout or "{}")
    except subprocess.TimeoutExpired:
        answer = {}
    if "text" in answer:
        return answer["text"]
    reason = answer.get("reason", "it takes too much time or memory")
    raise OcrPhasesError(
        f"The checkpoint's chat template cannot be rendered ({reason}): take the template of the "
        "published checkpoint."
    )
