"""Writes what follows from `Settings`: docs/settings.md's tables and the notebooks' parameters.

``python -m benchmarks.settings_docs``; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import nbformat

from benchmarks.documents import markdown, rewrite
from ocr_phases.cli.options import EVERY, OF_SERVERS, SETTINGS
from ocr_phases.report.page_parameters import PAGE_REPORT_PARAMETERS
from ocr_phases.settings import ModelSettings, RunSettings, Settings, full_help_text, help_text

ROOT = Path(__file__).parents[1]
#: Longest line of a parameters cell: the formatter wraps what is longer, and papermill reads the
#: help of a parameter only from the line that assigns it.
LONGEST_LINE = 100


@dataclass(frozen=True)
class OwnParameter:
    """A parameter of a notebook that is no setting.

    Attributes
    ----------
    name : str
        Its name.
    type : str
        Its type, as papermill's help shows it: a word, with others in brackets.
    default : str
        Its default as Python.
    help : str
        What it means.
    """

    name: str
    type: str
    default: str
    help: str


_PAGE = OwnParameter(
    "page", "str", "None", 'an image, or a page of a PDF ("file.pdf#3"); None: a sample'
)
_PAGES = OwnParameter(
    "page",
    "str",
    "None",
    'an image or PDF pages ("file.pdf#3", "file.pdf#1-8"); None: a sample page',
)
_TRUTH = OwnParameter(
    "truth", "str", "None", "what the page says: a file, or a folder that has it by the page's name"
)
_OVERWRITE = OwnParameter(
    "overwrite",
    "bool",
    "False",
    "True also replaces files in output_dir that ocr_phases did not write",
)
#: The parameters of ``page_report`` that are no settings.
_OF_PAGE_REPORT = {
    parameter.name: parameter
    for parameter in (
        _PAGES,
        OwnParameter(
            "options", "dict", "{}", "any other keyword of load and run_inference, by its name"
        ),
        OwnParameter("record", "str", "None", "an existing run.json to show instead of measuring"),
        _TRUTH,
        OwnParameter(
            "trace", "bool", "False", "profile the kernels, with their Chrome trace in output_dir"
        ),
        OwnParameter(
            "output_dir",
            "str",
            "None",
            "a folder; default ocr_phases_report, numbered where that exists",
        ),
        _OVERWRITE,
    )
}
#: Each notebook's parameters in their order: its own, and settings by their name.
NOTEBOOKS: dict[str, list[OwnParameter | str]] = {
    "page_report": [_OF_PAGE_REPORT.get(name, name) for name in PAGE_REPORT_PARAMETERS],
    "sweep_report": [
        _PAGE,
        OwnParameter(
            "presets", "list[str]", '["tiny", "small"]', "presets of the model that are compared"
        ),
        OwnParameter(
            "strategies",
            "list[str]",
            '["eager"]',
            "of the language model: eager, cuda_graph, compiled",
        ),
        OwnParameter(
            "batches", "list[int]", "[1, 2]", "numbers of copies of the page side by side"
        ),
        OwnParameter(
            "lengths",
            "list[int]",
            "[32]",
            "new tokens per row, beyond the end token; a maximum with truth",
        ),
        OwnParameter(
            "visions",
            "list[str]",
            '["eager"]',
            "how the vision encoders run: eager, cuda_graph, compiled",
        ),
        OwnParameter(
            "attentions",
            "list[str]",
            "[None]",
            "sdpa, eager, flash_attention_2; None: the model's own",
        ),
        OwnParameter(
            "dtypes", "list[str]", "[None]", "float32, bfloat16, float16; None: the model's own"
        ),
        OwnParameter(
            "models",
            "list[str]",
            "None",
            'several instead of model: ["dummy", "dummy:unlimited-ocr"]',
        ),
        *(name for name in SETTINGS["sweep"] if name not in OF_SERVERS),
        OwnParameter("retry_failed", "bool", "False", "True measures again what failed before"),
        _TRUTH,
        OwnParameter("records", "str", "None", "a folder of records to show instead of measuring"),
        OwnParameter("output_dir", "str", '"ocr_phases_sweep"', "the folder of the records"),
    ],
    "verify": [
        _PAGE,
        *(name for name in EVERY if name not in ("generate", "verify")),
        OwnParameter("record", "str", "None", "an existing run.json to check instead of measuring"),
        OwnParameter(
            "output_dir",
            "str",
            "None",
            "a folder; default ocr_phases_verify, numbered where that exists",
        ),
        _OVERWRITE,
    ],
}


def settings_tables() -> str:
    """The tables of docs/settings.md: a table for each call, a row for each setting."""
    parts = []
    for call, settings in (("OCRSession.load", ModelSettings), ("run_inference", RunSettings)):
        # A bar would end the cell of a table, also within backticks.
        rows = [
            (
                f"`{item.name}`",
                f"`{item.default}`",
                full_help_text(item).replace("<|grounding|>", r"`<\|grounding\|>`"),
            )
            for item in fields(settings)
        ]
        parts += [f"Keywords of `{call}`:", markdown(("keyword", "default", "meaning"), rows)]
    return "\n\n".join(parts)


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
                f"of more than {LONGEST_LINE}. Shorten its help in settings.py, or of a parameter "
                f"that "
                f"is no setting here. That of preset names the presets of all families:\n{line}"
            )
    source = "\n".join(lines)
    try:
        compile(source, "the parameters cell", "exec")
    except SyntaxError as error:
        raise SystemExit(f"The parameters cell is not Python ({error}):\n{source}") from error
    return source


def _parameter_line(parameter: OwnParameter | str) -> str:
    if isinstance(parameter, OwnParameter):
        return f"{parameter.name}: {parameter.type} = {parameter.default}  # {parameter.help}"
    settings = {setting.name: setting for setting in fields(Settings)}
    if parameter not in settings:
        raise SystemExit(f"There is no setting {parameter!r}.")
    setting = settings[parameter]
    default = setting.default
    literal = json.dumps(default) if isinstance(default, str) else repr(default)
    return f"{parameter}: {type_name(Settings, parameter)} = {literal}  # {help_text(setting)}"


def type_name(settings: type, name: str) -> str:
    """The type of a setting in one word: its first one, without None and without its limits."""
    kind = get_type_hints(settings)[name]
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Literal:
        kind = type(get_args(kind)[0])
    # The one that is no built-in type is settings by their names.
    return kind.__name__ if kind.__module__ == "builtins" else "dict"


def main() -> None:
    """Rewrite the page and the notebooks in place."""
    rewrite(ROOT / "docs" / "settings.md", {"settings": settings_tables()})
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
