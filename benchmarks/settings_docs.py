"""Writes what follows from `Settings`: docs/settings.md's lists and the notebooks' parameters.

``python -m benchmarks.settings_docs``; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import nbformat

from benchmarks.documents import rewrite
from ocr_phases.cli.options import EVERY, OF_SERVERS, SETTINGS
from ocr_phases.settings import ModelSettings, RunSettings, Settings, help_text

ROOT = Path(__file__).parents[1]
#: Longest line of a parameters cell: the formatter wraps what is longer, and papermill reads the
#: help of a parameter only from the line that assigns it.
LONGEST_LINE = 100


@dataclass(frozen=True)
class OwnParameter:
    """A parameter of a notebook that is no setting: its name, its default as Python, its help."""

    name: str
    default: str
    help: str = ""


_PAGE = OwnParameter("page", "None", 'an image, or a page of a PDF ("file.pdf#3"); None: a sample')
_PAGES = OwnParameter(
    "page", "None", 'an image or PDF pages ("file.pdf#3", "file.pdf#1-8"); None: a sample page'
)
_TRUTH = OwnParameter(
    "truth", "None", "what the page says: a file, or a folder that has it by the page's name"
)
_OVERWRITE = OwnParameter(
    "overwrite", "False", "True also replaces files in output_dir that ocr_phases did not write"
)
#: Each notebook's parameters in their order: its own, and settings by their name.
NOTEBOOKS: dict[str, list[OwnParameter | str]] = {
    "page_report": [
        _PAGES,
        "model",
        "preset",
        "prompt",
        "max_new_tokens",
        "repeats",
        "device",
        "strategy",
        OwnParameter("options", "{}", "any other keyword of load and run_inference, by its name"),
        OwnParameter("record", "None", "an existing run.json to show instead of measuring"),
        _TRUTH,
        OwnParameter(
            "trace", "False", "profile the kernels, with their Chrome trace in output_dir"
        ),
        OwnParameter(
            "output_dir", "None", "a folder; default ocr_phases_report, numbered where that exists"
        ),
        _OVERWRITE,
    ],
    "sweep_report": [
        _PAGE,
        OwnParameter("presets", '["tiny", "small"]', "presets of the model that are compared"),
        OwnParameter(
            "strategies", '["eager"]', "of the language model: eager, cuda_graph, compiled"
        ),
        OwnParameter("batches", "[1, 2]", "numbers of copies of the page side by side"),
        OwnParameter(
            "lengths", "[32]", "new tokens per row, beyond the end token; a maximum with truth"
        ),
        OwnParameter("visions", '["eager"]', "how the vision encoders run: eager, compiled"),
        OwnParameter(
            "attentions", "[None]", "sdpa, eager, flash_attention_2; None: the model's own"
        ),
        OwnParameter("dtypes", "[None]", "float32, bfloat16, float16; None: the model's own"),
        OwnParameter(
            "models", "None", 'several instead of model: ["dummy", "dummy:unlimited-ocr"]'
        ),
        *(name for name in SETTINGS["sweep"] if name not in OF_SERVERS),
        OwnParameter("retry_failed", "False", "True measures again what failed before"),
        _TRUTH,
        OwnParameter("records", "None", "a folder of records to show instead of measuring"),
        OwnParameter("output_dir", '"ocr_phases_sweep"', "the folder of the records"),
    ],
    "verify": [
        _PAGE,
        *(name for name in EVERY if name not in ("generate", "verify")),
        OwnParameter("record", "None", "an existing run.json to check instead of measuring"),
        OwnParameter(
            "output_dir", "None", "a folder; default ocr_phases_verify, numbered where that exists"
        ),
        _OVERWRITE,
    ],
}


def settings_lists() -> str:
    """The lists of docs/settings.md: a list for each call, a line a setting."""
    parts = []
    for call, settings in (("OCRSession.load", ModelSettings), ("run_inference", RunSettings)):
        lines = [
            f"- `{item.name}` ({item.default}): {help_text(item)}" for item in fields(settings)
        ]
        parts += [f"Keywords of `{call}`, defaults in brackets:", "\n".join(lines)]
    return "\n\n".join(parts).replace("<|grounding|>", "`<|grounding|>`")


def parameters_cell(parameters: Sequence[OwnParameter | str]) -> str:
    """The whole parameters cell of a notebook, one line per parameter.

    Raises
    ------
    SystemExit
        For an unknown setting, a line that the formatter would wrap, and for a cell that is not
        Python.
    """
    lines = [_parameter_line(parameter) for parameter in parameters]
    for line in lines:
        if len(line) > LONGEST_LINE:
            raise SystemExit(
                f"This parameter's line has {len(line)} characters, and the formatter wraps lines "
                f"of more than {LONGEST_LINE}. Shorten its help:\n{line}"
            )
    source = "\n".join(lines)
    try:
        compile(source, "the parameters cell", "exec")
    except SyntaxError as error:
        raise SystemExit(f"The parameters cell is not Python ({error}):\n{source}") from error
    return source


def _parameter_line(parameter: OwnParameter | str) -> str:
    if isinstance(parameter, OwnParameter):
        comment = f"  # {parameter.help}" if parameter.help else ""
        return f"{parameter.name} = {parameter.default}{comment}"
    settings = {setting.name: setting for setting in fields(Settings)}
    if parameter not in settings:
        raise SystemExit(f"There is no setting {parameter!r}.")
    setting = settings[parameter]
    default = setting.default
    literal = json.dumps(default) if isinstance(default, str) else repr(default)
    return f"{parameter} = {literal}  # {help_text(setting)}"


def main() -> None:
    """Rewrite the page and the notebooks in place."""
    rewrite(ROOT / "docs" / "settings.md", {"settings": settings_lists()})
    cells = {name: parameters_cell(parameters) for name, parameters in NOTEBOOKS.items()}
    for name, source in cells.items():
        path = ROOT / "notebooks" / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        cell = next(
            cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
        )
        cell.source = source
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
