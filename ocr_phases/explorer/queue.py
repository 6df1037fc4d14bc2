"""Several measurements in one go: what is done, running, waiting, failed and left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ipywidgets as widgets

from ocr_phases.explorer.form import Asked
from ocr_phases.explorer.messages import error_sentence
from ocr_phases.show.page import printable
from ocr_phases.show.web import Html, element

_SIGNS = {"waiting": "○", "running": "▶", "done": "✓", "failed": "✗", "stopped": "■", "not run": "–"}


@dataclass
class Job:
    """One measurement with its ``state``, a key of the list's signs, and a sentence about how it ended."""

    asked: Asked
    state: str = "waiting"
    said: str = ""

    @property
    def name(self) -> str:
        """Page and preset."""
        page = self.asked.page_name or Path(str(self.asked.page)).name
        return f"{printable(page, 60)}, {self.asked.settings.preset or 'default preset'}"


class Queue(widgets.HTML):
    """The list of jobs; a single one is not listed."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("opx-queue")
        self.jobs: list[Job] = []

    def begin(self, asked: Sequence[Asked]) -> None:
        """List new jobs, all waiting."""
        self.jobs = [Job(one) for one in asked]
        self._draw()

    @contextlib.contextmanager
    def running(self, job: Job) -> Iterator[None]:
        """Mark ``job`` while it runs; an exception is its reason to fail, and goes on."""
        job.state = "running"
        self._draw()
        try:
            yield
        except Exception as error:
            job.state, job.said = "failed", error_sentence(error)
            raise
        except BaseException:  # the task was cancelled
            job.state = "stopped"
            raise
        finally:
            self._draw()

    def leave(self) -> None:
        """Leave out what waits."""
        for job in self.jobs:
            job.state = "not run" if job.state == "waiting" else job.state
        self._draw()

    def _draw(self) -> None:
        items = [_item(job) for job in self.jobs]
        ended = sum(job.state not in ("waiting", "running") for job in self.jobs)
        head = element("p", f"{ended} of {len(items)} measurements ended", role="status")
        self.value = element("div", head, element("ol", *items)) if len(items) > 1 else ""


def _item(job: Job) -> Html:
    sign = element("span", _SIGNS[job.state], aria_hidden="true")
    reason = f": {job.said}" if job.said else ""
    return element("li", sign, f" {job.name}: ", element("strong", job.state), reason)
