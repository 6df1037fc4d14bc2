"""Tables and parts of a record that a notebook shows as a report does."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ocr_phases.record.parts import PagePart


class Table(pd.DataFrame):
    """A DataFrame that a notebook shows as a report does: units in the headings, no text cut."""

    @property
    def _constructor(self) -> type[Table]:
        return Table

    def _repr_html_(self) -> str:
        from ocr_phases.show.results_many import frame_html

        return frame_html(self)


class RecordedPage(PagePart, frozen=True):
    """A page of a record, which a notebook shows as its picture and facts."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.results_many import recorded_page_bundle

        return recorded_page_bundle(self)
