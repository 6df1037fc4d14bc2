"""A sweep over several models: one page, the same cells for each, a folder a model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.errors import OcrPhasesError, checked
from ocr_phases.files import TemporaryFolder
from ocr_phases.record import elsewhere
from ocr_phases.session import OCRSession
from ocr_phases.settings import ModelSettings
from ocr_phases.sweep_cells import RUNS, free_memory

if TYPE_CHECKING:
    from ocr_phases.analyse.scaling import SweepResult


@checked(OCRSession.sweep)
def sweep(
    page: str | Path,
    models: Sequence[str] = ("tiny",),
    *,
    folder: str | Path | None = None,
    load: Mapping[str, Any] | None = None,
    loading: Callable[[str], None] | None = None,
    **options: Any,
) -> SweepResult:
    """Measure ``page`` with each of ``models`` at every combination, one model loaded at a time.

    ``load`` are settings of `OCRSession.load` for all of them, ``options`` and errors those of
    `OCRSession.sweep`; ``loading(name)`` is called before a model is loaded. A preset of another family is
    taken as the one that stands for it, or is a failed cell. Records of several models go into
    `model_folders` of ``folder``; without it nothing is written.
    """
    with contextlib.ExitStack() as stack:
        kept = Path(folder or stack.enter_context(TemporaryFolder()))
        places = model_folders(models, kept)
        # A wrong setting of any model is refused before the first is loaded.
        asked = [ModelSettings(model=name, **(load or {})) for name in models]
        for settings, place in zip(asked, places, strict=True):
            if loading is not None:
                loading(settings.model)
            session = OCRSession.load(**vars(settings))
            found = session.sweep(page, folder=place, **options)
            device = session.device
            del session
            free_memory(device)
        return found if len(places) == 1 else elsewhere("SweepResult").load(kept)


def model_folders(models: Sequence[str], folder: Path) -> list[Path]:
    """A folder a model, by its name in characters that every file system takes; ``folder`` for one model.

    Raises `OcrPhasesError` for no model, for one name in place of a list, for two of one folder, and where
    ``folder`` has the records of one model.
    """
    if isinstance(models, str) or not models:
        raise OcrPhasesError("Give a list of models, like ['dummy', 'dummy:unlimited-ocr'].")
    if len(models) == 1:
        return [folder]
    if (folder / RUNS).exists():
        raise OcrPhasesError(f"{folder} holds the sweep of one model: choose another folder (--out).")
    paths = [Path(model).expanduser() for model in models]
    called = [str(path.absolute().name if path.is_dir() else path) for path in paths]
    names = [re.sub(r"[^\w.=-]+", "-", name).strip("-.") for name in called]
    for name in names:
        if names.count(name) > 1:
            raise OcrPhasesError(f"Two of the models are called {name}: give them different names.")
    return [folder / name for name in names]
