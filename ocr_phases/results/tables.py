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

    def __str__(self) -> str:
        from ocr_phases.show.notebook_table import frame_text

        return frame_text(self)

    def _repr_html_(self) -> str:
        from ocr_phases.show.notebook_table import frame_html

        return frame_html(self)


class RecordedPage(PagePart, frozen=True):
    """A page of a record, which a notebook shows as its picture and facts."""

    def __str__(self) -> str:
        from ocr_phases.show.page_and_text import recorded_page_text

        return recorded_page_text(self)

    def __repr__(self) -> str:  # the usual one would have the whole file of the picture
        return (
            f"<RecordedPage {self.file}: {self.width} x {self.height} pixels, preset {self.preset}>"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from ocr_phases.show.page_and_text import recorded_page_bundle

        return recorded_page_bundle(self)
