"""What makers say their GPUs can do: memory, bandwidth and rates, from ``datasheets.csv``.

It is a second source beside measuring, and the only one for a GPU that nobody has at hand.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from ocr_phases.errors import OcrPhasesError
from ocr_phases.text import nearest

#: How much of a GPU's memory a program can use. ECC takes a sixteenth of GDDR memory, and the
#: driver and a CUDA context take some hundred megabytes: nvidia-smi shows 15.0 of a T4's 16 GiB,
#: 22.5 of an A10's 24 and 79.6 of an H100's 80 before a program starts.
USABLE_SHARE = 0.9


@dataclass(frozen=True)
class Datasheet:
    """One GPU by its maker's figures; None is what it cannot do, or what the maker does not say.

    Attributes
    ----------
    name
        What people call it.
    pattern
        A regular expression for the name that its driver gives. The first row that matches counts.
    memory
        Memory in GiB, which makers write as GB.
    bandwidth
        Best bandwidth of that memory in GB/s.
    float32, tf32, bfloat16, float16
        Dense TFLOP/s of matrix products of such operands, added up in float32. Where a maker
        prints the rate with sparsity, the dense one is half of it. ``tf32`` is what float32
        products take only where TF32 was allowed, which torch by default does not.
    source
        The document that says so.
    """

    name: str
    pattern: str
    memory: int
    bandwidth: int
    float32: float
    tf32: float | None
    bfloat16: float | None
    float16: float
    source: str

    @property
    def usable_bytes(self) -> int:
        """How many bytes of its memory a program can use (`USABLE_SHARE`)."""
        return int(self.memory * 2**30 * USABLE_SHARE)

    @property
    def dtype(self) -> str:
        """The dtype that a model is loaded in here where nobody asks for one."""
        return "float16" if self.bfloat16 is None else "bfloat16"

    def tera_flops_per_s(self, dtype: str) -> float | None:
        """The best rate of products of this dtype in TFLOP/s; None where it has none."""
        rates = {"float32": self.float32, "bfloat16": self.bfloat16, "float16": self.float16}
        return rates.get(dtype)


def _read_datasheets() -> tuple[Datasheet, ...]:
    path = Path(__file__).with_name("datasheets.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(_read_datasheet(row) for row in csv.DictReader(file))


def _read_datasheet(row: dict[str, str]) -> Datasheet:
    """A row of the table; an empty rate is None."""
    return Datasheet(
        name=row["name"],
        pattern=row["pattern"],
        memory=int(row["memory"]),
        bandwidth=int(row["bandwidth"]),
        float32=float(row["float32"]),
        tf32=float(row["tf32"]) if row["tf32"] else None,
        bfloat16=float(row["bfloat16"]) if row["bfloat16"] else None,
        float16=float(row["float16"]),
        source=row["source"],
    )


#: All that are known, in the order in which their patterns are tried.
DATASHEETS = _read_datasheets()


def find_datasheet(device_name: str | None) -> Datasheet | None:
    """The datasheet of a device by the name its driver gives; None for an unknown one.

    A slice of a GPU (MIG) and a laptop's version have less than the table says, so they have none.
    """
    name = str(device_name or "")
    if re.search(r"\bMIG\b|\bLaptop\b|\bMax-Q\b", name):
        return None
    for sheet in DATASHEETS:
        if re.search(sheet.pattern, name):
            return sheet
    return None


#: A card with figures of one's own: ``GTX 1650 (4 GB, 128 GB/s, 5.9 TFLOP/s)``.
_OWN_CARD = re.compile(
    r"(?P<name>[^()]*[^()\s])\s*\(\s*(?P<memory>\d{1,5})\s*GB\s*,\s*(?P<bandwidth>\d{1,6})\s*GB/s"
    r"\s*,\s*(?P<rate>\d{1,6}(\.\d{1,3})?)\s*TFLOP/s\s*\)",
    re.IGNORECASE,
)


def _own_datasheet(text: str) -> Datasheet | None:
    """A card with the figures that a person gives; None where the text has no such figures.

    The one rate is that of matrix products in any dtype.
    """
    given = _OWN_CARD.fullmatch(text.strip())
    if given is None:
        return None
    rate = float(given["rate"])
    memory = int(given["memory"])
    bandwidth = int(given["bandwidth"])
    if 0 in (memory, bandwidth, rate):
        raise OcrPhasesError(f"A figure of the card {text!r} is 0: give what its maker says.")
    return Datasheet(
        name=given["name"],
        pattern=re.escape(given["name"]),
        memory=memory,
        bandwidth=bandwidth,
        float32=rate,
        tf32=None,
        bfloat16=rate,
        float16=rate,
        source="as given",
    )


def datasheet_named(name: str) -> Datasheet:
    """The datasheet of a GPU that a person names.

    Parameters
    ----------
    name : str
        A name of the table in any case, such as ``"rtx 4090"``, or the name that a driver gives. Or
        a card of your own with its memory, bandwidth and rate of matrix products:
        ``"GTX 1650 (4 GB, 128 GB/s, 5.9 TFLOP/s)"``.

    Raises
    ------
    OcrPhasesError
        Where the table has no such GPU, or several.

    Examples
    --------
    >>> datasheet_named("l4").memory
    24
    """
    own = _own_datasheet(name)
    if own is not None:
        return own
    wanted = " ".join(name.split()).lower()
    for sheet in DATASHEETS:
        if sheet.name.lower() == wanted:
            return sheet
    sheet_of_driver = find_datasheet(name)
    if sheet_of_driver is not None:
        return sheet_of_driver
    names = [sheet.name for sheet in DATASHEETS]
    longer = [each for each in names if each.lower().startswith(f"{wanted} ")]
    if wanted and longer:
        raise OcrPhasesError(f"There are several cards {name!r}: choose {', '.join(longer)}.")
    # Names of cards share their first words, so a merely similar one is another card.
    hint = nearest(name, names, least=0.9)
    raise OcrPhasesError(
        f"There is no datasheet of a card {name!r}.{hint} Choose one of {', '.join(names)}, or all."
        f" Or give its figures: --card '{name.partition('(')[0].strip()} (4 GB, 128 GB/s, 5.9 "
        "TFLOP/s)'. On a machine with the card, leave --card out: that needs none."
    )
