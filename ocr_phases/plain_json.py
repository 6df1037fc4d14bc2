"""JSON that somebody else wrote: decoded strictly, and held against a declared shape."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError

#: Whole numbers that a double holds exactly, which is more than any count here needs.
Count = Annotated[int, Meta(ge=0, le=2**53)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**53)]

#: Bytes that a JSON text may take with what is decoded from it, and at most takes for each byte of its kind.
_MOST_MEMORY = 2_000_000_000
_MEMORY = {b"{": 600, b"[": 150, b":": 200, b",": 40}
_CHARACTER = 5

_DEPTH = 8
_Scalar = (
    None
    | bool
    | str
    | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    | Annotated[float, Meta(ge=-1e300, le=1e300)]
)
_Plain: Any = _Scalar
for _ in range(_DEPTH):
    _Plain = _Scalar | list[_Plain] | dict[str, _Plain]


class Plain(TypedDict):
    """A value that can be shown and saved again: finite numbers, lists and objects a few levels deep."""

    value: _Plain


def parse_json(data: bytes) -> Any:
    """The value of a JSON text; `OcrPhasesError`, in words that follow a file's name, for anything else."""
    if _CHARACTER * len(data) + sum(data.count(sign) * each for sign, each in _MEMORY.items()) > _MOST_MEMORY:
        raise OcrPhasesError("it would take more than 2 GB of memory")
    try:
        return msgspec.json.decode(data)
    except MemoryError as error:
        raise OcrPhasesError("it takes more memory than there is") from error
    except RecursionError as error:
        raise OcrPhasesError("its JSON is nested too deeply") from error
    except ValueError as error:  # msgspec's own, and text that is no UTF-8
        raise OcrPhasesError(f"it is not valid JSON ({_sentence(error)})") from error


def conform(value: Any, shape: Any, name: str = "") -> None:
    """Check ``value`` against the msgspec type ``shape``; entries that a `TypedDict` lacks pass.

    Raises `OcrPhasesError` with the entry, below ``name``, and what is wrong with it, as in
    ``pages[0].row: expected int, got str``.
    """
    try:
        msgspec.convert(value, shape)
    except ValueError as error:  # msgspec's own, and a name that is no Unicode
        raise OcrPhasesError(_sentence(error, name)) from error
    except RecursionError as error:
        raise OcrPhasesError(f"{name}: it is nested too deeply".lstrip(": ")) from error


_MISSING = "Object missing required field "


def _sentence(error: Exception, name: str = "") -> str:
    """msgspec's message with the entry in front: ``Expected `int`, got `str` - at `$.pages[0].row```."""
    problem, _, path = str(error).replace("`", "").partition(" - at ")
    problem = problem.removeprefix("JSON is malformed: ").replace(" (byte ", " at byte ").removesuffix(")")
    place = name + path.removeprefix("key in ").lstrip("$")
    if problem.startswith(_MISSING):
        place, problem = f"{place}.{problem.removeprefix(_MISSING)}", "it is missing"
    return f"{place.strip('.')}: {problem[:1].lower()}{problem[1:]}".lstrip(": ")
