"""A batch worker whose pages are small text files that say what shall happen, each in milliseconds.

``ok``: a record is written. ``bad``: the page is refused. ``raise``: an unexpected error.
``memory``: the host is out of it. ``sleep``: it never ends. ``kill``: the worker is killed; ``kill
2``: the first two times. ``full``: the disk is full. ``slow``: a fifth of a second. ``wait``: the
first attempt is not over before a file ``.go`` is beside the page. ``busy``: so is the machine.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from ocr_phases.batch.archive import attempt_folder
from ocr_phases.batch.measuring import Refused
from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.worker_process import WorkerRequest
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import read_regular

RECORD = Path(__file__).with_name("golden") / "run.json"
BUSY = "These times will be too noisy."


def handler(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    ready()
    if request.get("mode") == "device":
        return Outcome(device="cpu")
    folder = Path(request["folder"])
    if request.get("mode") == "render":
        place = attempt_folder(folder)
        (place / "images").mkdir()
        for name in ("images/0.jpg", "report.html"):
            (place / name).touch()
        return Outcome(place=place.name)
    source = Path(request["job"]["source"])
    try:
        word, _, times = read_regular(source).decode().strip().partition(" ")
    except OcrPhasesError as error:
        raise Refused("page", str(error)) from error
    if word == "kill":
        tries = source.with_suffix(".tries")
        count = len(tries.read_text()) if tries.exists() else 0
        tries.write_text("x" * (count + 1))
        if not times or count < int(times):
            os.kill(os.getpid(), signal.SIGKILL)
    errors = {
        "bad": Refused("page", f"{source.name} is no image."),
        "raise": ValueError("something nobody thought of"),
        "memory": MemoryError("asked for too much"),
        "full": Refused(
            "output", f"{folder.parents[2]} cannot be written (No space left on device)."
        ),
    }
    if word in errors:
        raise errors[word]
    time.sleep({"sleep": 600, "slow": 0.2}.get(word, 0))
    place = attempt_folder(folder)
    if word == "wait" and not source.with_suffix(".began").exists():
        source.with_suffix(".began").touch()
        while not source.with_suffix(".go").exists():
            time.sleep(0.01)
    shutil.copy(RECORD, place / "run.json")
    return Outcome(place=place.name, busy=BUSY if word == "busy" else "")
