"""What each step trains on, and how fast: stages, buckets and learning rates over the whole budget."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from loader import CHUNKS
from pages import Bucket, squareness


@dataclass
class Progress:
    """How far a run has come, over all its calls; kept with the weights."""

    step: int = 0
    chunk: int = 0
    seconds: float = 0.0
    fraction: float = 0.0
    stage: int = 0
    warm_from: int = 0
    peak: float = 1.0
    pace: float = 0.0
    """Of an extension: what part of the whole a second is; 0 leaves it to the config's budget."""


class Schedule:
    """The config's stages over the run's progress.

    ``minutes`` or ``steps`` of config's ``budget`` are the whole run's length. After `finish_by` the rest of
    the run, however long it should be, is fitted into the time that is left.
    """

    def __init__(self, config: dict[str, Any], buckets: dict[str, Bucket]) -> None:
        self.config, self.buckets, self.progress = config, buckets, Progress()
        budget = config["budget"]
        self._per_second = 1 / (60 * budget["minutes"]) if "minutes" in budget else 0.0
        self._steps: int | None = budget.get("steps")
        self._deadline: float | None = None

    def finish_by(self, deadline: float) -> None:
        """Reach the end of the budget at this moment of `time.perf_counter`."""
        self._deadline = deadline

    def extend(self, minutes: float, peak: float) -> None:
        """Go on for so much longer than was planned: the rate rises again, to ``peak`` of the full one.

        A run that has no past of its own (started from a checkpoint) goes on in the last stage.
        """
        progress = self.progress
        progress.stage = len(self.config["stages"]) - 1
        progress.warm_from = progress.step
        progress.peak = peak
        past = progress.seconds or 60 * minutes
        progress.fraction = past / (past + 60 * minutes)
        progress.pace = (1 - progress.fraction) / (60 * minutes)

    @property
    def stage(self) -> dict[str, Any]:
        """The stage that pages are drawn for now."""
        return self.config["stages"][self.progress.stage]

    @property
    def ended(self) -> bool:
        """Whether the budget is spent."""
        return self.progress.fraction >= 1

    def advance(self, seconds: float) -> None:
        """Count one step of so many seconds."""
        progress = self.progress
        progress.step += 1
        progress.seconds += seconds
        if self._deadline is not None:
            left_s = max(0.0, self._deadline - time.perf_counter())
            progress.fraction += (1 - progress.fraction) * seconds / (left_s + seconds)
        elif progress.pace or self._steps is None:
            progress.fraction += (progress.pace or self._per_second) * seconds
        else:
            progress.fraction = progress.step / self._steps
        while not self._last_stage and progress.fraction >= self.stage["until"]:
            progress.stage += 1

    def report(self, accuracy: float) -> None:
        """End the stage early where its texts are read well enough."""
        if not self._last_stage and accuracy >= self.stage.get("accuracy", 2.0):
            self.progress.stage += 1

    @property
    def _last_stage(self) -> bool:
        return self.progress.stage + 1 >= len(self.config["stages"])

    def rate(self) -> float:
        """The learning rate now, as a part of the full one."""
        settings, progress = self.config["optimiser"], self.progress
        warm = min(1.0, (progress.step - progress.warm_from + 1) / settings["warm_steps"])
        start = settings["decay_from"]
        left = 1.0 if progress.fraction < start else (1 - progress.fraction) / (1 - start)
        return progress.peak * warm * max(settings["last_rate"], left)

    def plan(self, number: int) -> tuple[Bucket, dict[str, Any], int]:
        """Batch ``number``: its bucket, its stage and how many of its chunks are fresh."""
        stage, rng = self.stage, random.Random(f"plan {self.config['seed']} {number}")
        earlier = [
            s for s in self.config["stages"][: self.progress.stage] if s["mix"].keys() == stage["mix"].keys()
        ]
        preset = rng.choices(list(stage["mix"]), list(stage["mix"].values()))[0]
        choices = [b for b in self.buckets.values() if b.preset.name == preset]
        bucket = rng.choices(choices, [self._share(b) for b in choices])[0]
        if earlier and rng.random() < self.config["easier"]:
            stage = rng.choice(earlier)
        fresh = self.config["buckets"][preset]["fresh"]
        return bucket, stage, max(1, int(fresh) + (rng.random() < fresh % 1))

    def _share(self, bucket: Bucket) -> float:
        """Of its preset's batches, not yet divided by the sum of all shares."""
        long = self.config["long"]
        favoured = self.config["favoured"].get(bucket.grid_name, 1)
        return favoured * squareness(bucket) * (long if bucket.long else 1 - long)

    def pool(self, bucket: Bucket) -> int:
        """How many used chunks of the bucket are kept for later batches; none where all are fresh."""
        settings = self.config["buckets"][bucket.preset.name]
        return settings["pool"] if settings["fresh"] < CHUNKS else 0
