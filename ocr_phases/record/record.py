"""Record: one measurement as data, and its file.

The record stands between the half that measures (torch, a model) and the half that reads and draws
(numpy, pandas). It alone draws everything, so it carries the page, the tokens and every raw span.
What is computed from it is in `ocr_phases.analyse`; what a notebook holds is
`ocr_phases.results.run.PhaseRun`.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import pandas as pd

from ocr_phases.errors import Hinted, OcrPhasesError, UnknownName, explain_wrong_calls
from ocr_phases.families import NO_VIEWS
from ocr_phases.files import SavedPath, parse_json, read_regular, split_page, unpacked, write_given
from ocr_phases.images import page_image
from ocr_phases.record.parts import (
    CachePart,
    CheckPart,
    DevicePart,
    KernelsFailed,
    KernelsPart,
    MemoryPart,
    ModelPart,
    PagePart,
    PhaseEnergyPart,
    ProbabilitiesPart,
    RequestPart,
    ResultPart,
    columns_of,
    to_plain,
)
from ocr_phases.record.schema import (
    MOST_BYTES,
    SPAN_COLUMNS,
    WHOLE_STAGES,
    Truth,
    as_truth,
    check_spans,
    read_parts,
    upgraded,
)
from ocr_phases.text import count_text

if TYPE_CHECKING:
    from PIL.Image import Image

#: The schema that is written, and those that are read.
SCHEMA = 3
READABLE_SCHEMAS = (2, 3)

PHASES = ("prepare", "prefill", "decode", "generate")

#: The source of a model whose weights nobody trained.
RANDOM_WEIGHTS = "random weights"
#: What a record of a prompt without an image is called where others are called by their page.
TEXT_ONLY = "prompt without an image"
#: What is said where something asks for the page of such a record.
NO_PAGE = "This run has no page: its prompt has no image."

_SPAN_TYPES = {"repeat": "int64", "phase": "str", "stage": "str", "view": "str", "step": "Int64"}

_Item = TypeVar("_Item")

#: The type of a record: functions that return a changed record keep it.
RecordType = TypeVar("RecordType", bound="Record")


@dataclass(frozen=True, eq=False, repr=False)
class Record(Hinted):
    """One measurement: ``repeats`` runs of prepare, prefill and decode over the same inputs.

    Its parts are typed (`ocr_phases.record.parts`) and not to be changed: `dataclasses.replace`
    makes another record. A batch has one entry per row in ``results`` and one per page in ``pages``
    (each names its ``row``), of which a prompt without an image has none.
    """

    created: str  # ISO 8601, UTC
    versions: dict[str, Any]
    device: DevicePart
    model: ModelPart
    pages: list[PagePart]
    request: RequestPart
    results: list[ResultPart]
    spans: pd.DataFrame
    memory: MemoryPart = field(default_factory=MemoryPart)
    cache: CachePart = field(default_factory=CachePart)
    live_checks: list[CheckPart] = field(default_factory=list)
    kernels: KernelsPart | KernelsFailed | None = None  # the kernel view, where one was asked for
    truths: list[Truth | None] | None = None  # what each row's page says, where it was given
    # Of each row's tokens, where they were asked for.
    probabilities: list[ProbabilitiesPart] | None = None
    phase_energy: PhaseEnergyPart | None = None  # where it was asked for
    schema: int = SCHEMA

    # -- its parts --------------------------------------------------------------------------------

    @property
    def has_page(self) -> bool:
        """Whether the prompt had an image: there is no page, and no vision, where it had none."""
        return bool(self.pages)

    @property
    def page(self) -> PagePart:
        """The first page; `OcrPhasesError` for a prompt without an image."""
        if not self.has_page:
            raise OcrPhasesError(NO_PAGE)
        return self.pages[0]

    @property
    def preset(self) -> str:
        """How the first page was cut; `NO_VIEWS` for a prompt without an image."""
        return self.pages[0].preset if self.has_page else NO_VIEWS

    @property
    def page_file(self) -> str:
        """The file of the first page, and what stands for it of a prompt without an image."""
        return self.pages[0].file if self.has_page else TEXT_ONLY

    @property
    def result(self) -> ResultPart:
        """The first row's result: ``ids``, ``token_texts``, ``text``, ``finish_reason``."""
        return self.results[0]

    def result_of(self, row: int) -> ResultPart:
        """The result of a row of a batch, counted from 0.

        Raises `UnknownName` for a row that the record does not have.
        """
        return _numbered(self.results, row, "row")

    @property
    def text(self) -> str | None:
        """The first row's text without the end token; None if the record has no text."""
        return self.result.text

    @property
    def token_count(self) -> int:
        """Generated tokens of the first row, the end token included.

        Where a server tells neither ids nor a number, these are the pieces of text that it sent:
        there were at least as many tokens.
        """
        return self.result.least_tokens

    @property
    def decoded_tokens(self) -> int:
        """Decoded tokens of all rows, each up to its end; surplus tokens are not counted.

        They are `token_count` without the first.
        """
        from_prefill = 0 if self.request.first_token == "redecode" else 1
        return sum(result.least_tokens - from_prefill for result in self.results)

    @property
    def knows_tokens(self) -> bool:
        """Whether it is known how many tokens were generated: not of every server."""
        return all(result.known_tokens is not None for result in self.results)

    @property
    def is_server(self) -> bool:
        """Whether a server made it, so that its times are the client's."""
        return self.model.implementation == "server"

    @property
    def has_random_weights(self) -> bool:
        """Whether its model has random weights (``dummy``): then its text is noise."""
        return self.model.source == RANDOM_WEIGHTS

    @cached_property
    def repeats(self) -> list[int]:
        """The numbers of the measured repeats, from 0; reports and sentences count them from 1."""
        return sorted(int(number) for number in self.spans["repeat"].unique())

    def truth_of(self, row: int = 0) -> Truth | None:
        """What the page of a row says, where the record has it."""
        truths = self.truths or [None] * len(self.results)
        return _numbered(truths, row, "row")

    def page_name(self, row: int = 0) -> str:
        """The file of a row's page, or of its pages (``doc.pdf#1-8``).

        `TEXT_ONLY` stands for it where the prompt had no image.
        """
        if not self.has_page:
            return TEXT_ONLY
        files = [page.file for page in self.pages if page.row == row]
        if len(files) == 1:
            return files[0]
        _, last_page = split_page(files[-1])  # such as "#8"
        return f"{files[0]}-{last_page.removeprefix('#')}"

    def page_data(self, number: int = 0) -> bytes | None:
        """The embedded page as a file's bytes; None where it was left out.

        Raises `OcrPhasesError` where the bytes are damaged and where the prompt had no image, and
        `UnknownName` for a page that the record does not have.
        """
        if not self.has_page:
            raise OcrPhasesError(NO_PAGE)
        page = _numbered(self.pages, number, "page")
        if page.data is None:
            return None
        try:
            return base64.b64decode(page.data)
        except ValueError as error:  # no base64
            raise OcrPhasesError(
                f"The page {page.file} in this record is damaged ({error})."
            ) from error

    def page_image(self, number: int = 0) -> Image | None:
        """The embedded page as an upright RGB image; None where the record does not hold it.

        Parameters
        ----------
        number : int, default 0
            Which page of the record, counted from 0.
        """
        return page_image(self.page_data(number))

    # -- its times --------------------------------------------------------------------------------

    def stage_ms(
        self, stage: str, phase: str | None = None, clock: str = "device_ms"
    ) -> np.ndarray:
        """Times of one stage in ms, float64, one for each of its spans.

        They stand in the order of the record: repeat after repeat, step after step.
        """
        spans = self.spans[self.spans["stage"] == stage]
        if phase is not None:
            spans = spans[spans["phase"] == phase]
        return spans[clock].to_numpy(dtype=np.float64)

    def repeat_ms(self, stage: str, phase: str, clock: str = "device_ms") -> np.ndarray:
        """Sum of a stage's spans in each repeat, ms, float64 [repeats]; zero without spans."""
        column = (clock, phase, stage)
        if column not in self._sums_by_stage:
            return np.zeros(len(self.repeats))
        return self._sums_by_stage[column]

    def phase_ms(self, phase: str, clock: str = "device_ms") -> np.ndarray:
        """The whole of a phase in each repeat, ms, float64 [repeats]; zero where there is none.

        Of the prefill that is the client's wait for the first token where a server does not tell
        more.
        """
        return np.sum(
            [self.repeat_ms(stage, phase, clock) for stage in WHOLE_STAGES[phase]], axis=0
        )

    @property
    def waits_for_first_token(self) -> bool:
        """Whether the client's wait for the first token is known, and not the prefill in it."""
        in_prefill = self.spans["phase"] == "prefill"
        return bool((in_prefill & (self.spans["stage"] == "first_token")).any())

    @cached_property
    def sums(self) -> pd.DataFrame:
        """Sums of spans in ms: a row per repeat, a column per clock, phase and stage."""
        clocks = ["device_ms", "host_ms"]
        sums = self.spans.groupby(["repeat", "phase", "stage"])[clocks].sum()
        # This takes half the time of pivot_table.
        return pd.DataFrame(sums.unstack(["phase", "stage"], fill_value=0.0))

    @cached_property
    def _sums_by_stage(self) -> dict[Hashable, np.ndarray]:
        """The columns of `sums` by clock, phase and stage: a table takes long to find one."""
        return dict(zip(self.sums.columns, self.sums.to_numpy().T, strict=True))

    # -- the file ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON values; spans become one list per column."""
        values = self.spans.astype(object).where(self.spans.notna(), None)
        record: dict[str, Any] = {"schema": self.schema}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and item.name != "spans":
                record[item.name] = to_plain(value)
        record["spans"] = {name: column.tolist() for name, column in values.items()}
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; `OcrPhasesError` for other content."""
        if not isinstance(record, dict) or "schema" not in record:
            raise OcrPhasesError("This is not an ocr_phases record: it has no schema number.")
        schema = record["schema"]
        if isinstance(schema, bool) or schema not in READABLE_SCHEMAS:
            readable = " and ".join(map(str, READABLE_SCHEMAS))
            raise OcrPhasesError(
                f"This record has schema {schema!r}, this version reads schemas {readable}: "
                "install the ocr_phases version that wrote it."
            )
        try:
            parts = read_parts(record)
            if schema == 2:
                parts = upgraded(parts)
            spans = make_spans(columns_of(parts.spans))
            check_spans(spans)
        except OcrPhasesError as error:
            raise OcrPhasesError(f"This record is damaged ({error}).") from error
        truths = parts.truths
        if truths is not None:
            truths = [None if truth is None else as_truth(truth) for truth in truths]
        return cls(
            created=parts.created,
            versions=parts.versions,
            device=parts.device,
            model=parts.model,
            pages=parts.pages,
            request=parts.request,
            results=parts.results,
            spans=spans,
            memory=parts.memory,
            cache=parts.cache,
            live_checks=parts.live_checks,
            kernels=parts.kernels,
            truths=truths,
            probabilities=parts.probabilities,
            phase_energy=parts.phase_energy,
        )

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """`from_dict` of a record file's content; `OcrPhasesError` for invalid JSON too."""
        try:
            record = parse_json(data)
        except OcrPhasesError as error:
            raise OcrPhasesError(
                f"This is not an ocr_phases record: {error}. Give a run.json."
            ) from error
        return cls.from_dict(record)

    def to_json(self) -> bytes:
        """The record as a file's bytes, the inverse of `from_json`."""
        if not np.isfinite(self.spans.filter(like="_ms").to_numpy()).all():
            raise ValueError("a span without a time cannot be saved")
        text = json.dumps(
            self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        # A file name need not be UTF-8, and what was measured is not lost for it.
        return text.encode("utf-8", "replace") + b"\n"

    @explain_wrong_calls
    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the record as JSON. The file is written whole or not at all.

        Parameters
        ----------
        path : str or Path
            The file; a name that ends in ``.gz`` is compressed by gzip. An earlier record or trace
            of that name is replaced.
        overwrite : bool, default False
            Also replace a file that ocr_phases did not write.

        Returns
        -------
        Path
            The file that was written.

        Raises
        ------
        CannotWrite
            Where the file cannot be written, and where another one is in the way.

        Examples
        --------
        >>> run.save("run.json.gz")  # doctest: +SKIP
        """
        data = self.to_json()
        if str(path).endswith(".gz"):
            data = gzip.compress(data, 6, mtime=0)  # 9 takes twice as long and saves a hundredth
        return SavedPath(write_given(path, data, overwrite=overwrite))

    @classmethod
    @explain_wrong_calls
    def load(cls, path: str | Path) -> Self:
        """Read a record that `save` wrote.

        Parameters
        ----------
        path : str or Path
            The file: JSON, which may be compressed by gzip, whatever its name.

        Raises
        ------
        OcrPhasesError
            For a file that cannot be read, and for anything else than a record. The sentence names
            the file.

        Examples
        --------
        >>> run = PhaseRun.load("run.json")  # doctest: +SKIP
        """
        try:
            return cls._read_file(path)
        except MemoryError as error:
            raise OcrPhasesError(f"{path} takes more memory than there is.") from error

    @classmethod
    def _read_file(cls, path: str | Path) -> Self:
        """`load`, as far as there is memory."""
        try:
            data = read_regular(Path(path), MOST_BYTES)  # its own sentences name the file
        except OSError as error:
            raise OcrPhasesError(f"The record {path} cannot be read ({error.strerror}).") from error
        try:
            return cls.from_json(unpacked(data, MOST_BYTES))
        except OcrPhasesError as error:
            raise OcrPhasesError(f"{path}: {error}") from error


def make_spans(spans: dict[str, list[Any]] | list[tuple]) -> pd.DataFrame:
    """A table of spans from its rows, or from a list for each column.

    ``repeat`` becomes int64, ``step`` Int64, which may be missing, and a time in ms float64.
    """
    if isinstance(spans, dict):
        columns = spans
    elif spans:
        columns = dict(zip(SPAN_COLUMNS, map(list, zip(*spans, strict=True)), strict=True))
    else:
        columns = {name: [] for name in SPAN_COLUMNS}
    types = dict.fromkeys(SPAN_COLUMNS, "float64") | _SPAN_TYPES
    # One column after another takes a third of the time of a whole table.
    return pd.DataFrame(
        {name: pd.Series(columns[name], dtype=types[name]) for name in SPAN_COLUMNS}
    )


def _numbered(items: Sequence[_Item], number: int, what: str) -> _Item:
    """A row or page by its number; `UnknownName` for one that the record does not have."""
    if number not in range(-len(items), len(items)):
        counted = count_text(len(items), what)
        raise UnknownName(f"There is no {what} {number}: the record has {counted}, from 0.")
    return items[number]
