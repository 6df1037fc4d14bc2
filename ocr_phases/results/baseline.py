"""The newest earlier records of a measurement in a folder, as the baseline of a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import pandas as pd

from ocr_phases.analyse.history import (
    LEAST_RECORDS,
    MOST_RECORDS,
    against_history,
    differing_settings,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.results.run import PhaseRun
from ocr_phases.text import count_text


@dataclass(frozen=True)
class Baseline:
    """Earlier records of the same page, model, settings and card, the newest first.

    Attributes
    ----------
    runs
        The records.
    paths
        Their files.
    folder
        Where they were looked for.
    nearest
        Where there is none: what the record that is most like the new one has otherwise.
    """

    runs: Sequence[PhaseRun]
    paths: Sequence[Path]
    folder: Path
    nearest: str = ""

    @classmethod
    def newest(
        cls,
        folder: str | Path,
        run: PhaseRun,
        *,
        last: int = MOST_RECORDS,
        path: Path | None = None,
    ) -> Baseline:
        """Find the newest records in a folder, and below it, that are the same measurement.

        Parameters
        ----------
        folder : str or Path
            Where to look. Files that are no records are passed over.
        run : PhaseRun
            The new record.
        last : int, default 8
            The maximum number of records that are taken.
        path : Path, optional
            The new record's own file, which is left out where it lies in the folder.

        Raises
        ------
        OcrPhasesError
            Where there is no such folder.

        Examples
        --------
        >>> Baseline.newest("records", run).against_limit(run, 5.0)  # doctest: +SKIP
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise OcrPhasesError(f"There is no folder {folder}: check the path.")
        own = None if path is None else path.resolve()
        matching: list[tuple[str, Path, PhaseRun]] = []  # created, file, record
        others: list[tuple[int, str]] = []  # number of settings that differ, sentence
        for file in sorted(folder.rglob("*.json*")):
            if file.resolve() == own or not file.is_file():
                continue
            try:
                record = PhaseRun.load(file)
            except OcrPhasesError:  # another JSON file
                continue
            differing = differing_settings(record, run)
            if differing:
                others.append((len(differing), f"{file.name} differs in {', '.join(differing)}"))
            else:
                matching.append((record.created, file, record))
        matching.sort(key=itemgetter(0), reverse=True)
        newest = matching[:last]
        nearest = ""
        if others and not newest:
            _, nearest = min(others)
        return cls(
            runs=[record for _, _, record in newest],
            paths=[file for _, file, _ in newest],
            folder=folder,
            nearest=nearest,
        )

    def against_limit(
        self, run: PhaseRun, percent: float, metrics: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Judge a new record by a limit: `ocr_phases.analyse.history.against_history`.

        Parameters
        ----------
        run : PhaseRun
            The new record.
        percent : float
            The limit of a change for the worse, in per cent.
        metrics : sequence of str
            What is judged; by default the prefill and the decode step.

        Returns
        -------
        DataFrame
            A row for each metric.
        """
        return against_history(self.runs, run, percent, metrics)

    def __str__(self) -> str:
        if not self.runs:
            sentence = f"No record in {self.folder} is of the same page, model, settings and card."
            if self.nearest:
                sentence += f" The nearest, {self.nearest}."
            return sentence
        records = f"{count_text(len(self.runs), 'record')} of {self.folder}"
        newest = self.runs[0].created[:10]  # the day
        if len(self.runs) < LEAST_RECORDS:
            return (
                f"Baseline: {records}, the newest of {newest}. With {LEAST_RECORDS} or more the "
                "interval also covers how the machine changes from day to day."
            )
        oldest = self.runs[-1].created[:10]
        return f"Baseline: {records}, from {oldest} to {newest}."
