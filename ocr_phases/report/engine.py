"""Papermill's engine ``ocr_phases``: runs a notebook in this process, where the model and the
record are.

A kernel cannot be given live objects. Papermill loads this module with every ``import papermill``:
it imports nothing heavy, and papermill itself only when a notebook runs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ocr_phases.errors import OcrPhasesError
from ocr_phases.report.live import LiveObjects, handed_over

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import CapturedIO

    from ocr_phases.show.shown_figure import ShownFigure

#: The name by which papermill knows this engine.
ENGINE = "ocr_phases"
#: Cells with this tag show a person what the report shows in another form: a command skips them.
INTERACTIVE = "interactive"


@dataclass
class NotebookOutcome:
    """How a notebook ended.

    Attributes
    ----------
    notebook : nbformat.NotebookNode
        The notebook with its outputs, also where a cell failed.
    error : BaseException, optional
        What its last cell raised; None where all cells ran.
    """

    notebook: Any = None
    error: BaseException | None = None


class InProcess:
    """``papermill --engine ocr_phases``: a `papermill.engines.Engine`, but for the base class."""

    @staticmethod
    def nb_kernel_name(nb: Any, name: str | None = None) -> str:
        """The kernel whose parameters papermill writes."""
        return name or "python3"

    @staticmethod
    def nb_language(nb: Any, language: str | None = None) -> str:
        """The language that papermill writes parameters in."""
        return language or "python"

    @classmethod
    def execute_notebook(cls, nb: Any, kernel_name: str, **options: Any) -> Any:
        """Run the notebook ``nb`` and return it, with papermill's notes of each cell."""
        # A base class would need papermill while papermill waits for this module.
        from papermill.engines import Engine

        return Engine.execute_notebook.__func__(cls, nb, kernel_name, **options)

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: Any,
        kernel_name: str,
        objects: LiveObjects | None = None,
        outcome: NotebookOutcome | None = None,
        stills: bool = True,
        interactive: bool = True,
        **_: Any,
    ) -> None:
        """Run the code cells in a namespace of their own, up to the first that fails.

        Parameters
        ----------
        nb_man : papermill.engines.NotebookExecutionManager
            The notebook, and papermill's notes of its cells.
        kernel_name : str
            Papermill passes it; there is no kernel here.
        objects : LiveObjects, optional
            What the cells find by `ocr_phases.report.live.live_objects`.
        outcome : NotebookOutcome, optional
            Takes the notebook, and the error of a cell that failed.
        stills : bool
            False leaves out the bitmap of each figure, for which a report has no use.
        interactive : bool
            False skips the cells with the tag `INTERACTIVE`.
        """
        from IPython.utils.capture import capture_output

        count = 0
        if outcome is not None:
            outcome.notebook = nb_man.nb
        # Papermill itself only warns of a parameter that the notebook does not have.
        parameters = nb_man.nb.metadata.get("papermill", {}).get("parameters", {})
        objects = replace(objects or LiveObjects(), parameters=tuple(parameters))
        with _own_namespace(stills) as shell, handed_over(objects):
            for number, cell in enumerate(nb_man.nb.cells):
                nb_man.cell_start(cell, number)
                error = None
                is_skipped = not interactive and INTERACTIVE in cell.metadata.get("tags", ())
                if cell.cell_type == "code" and not is_skipped:
                    # Within the shell's own trap, or it would take the display hook back.
                    with shell.display_trap, capture_output(stderr=False) as captured:
                        result = shell.run_cell(cell.source)
                    error = result.error_before_exec or result.error_in_exec
                    count += 1
                    cell.execution_count = count
                    cell.outputs = list(_outputs(captured))
                    if error is not None:
                        cell.outputs.append(_error(error))
                if error is not None:
                    nb_man.cell_exception(cell, number, exception=error)
                nb_man.cell_complete(cell, number)
                if isinstance(error, KeyboardInterrupt):
                    raise error
                if error is not None:
                    if outcome is not None:
                        outcome.error = error
                    return


@contextlib.contextmanager
def _own_namespace(stills: bool) -> Iterator[InteractiveShell]:
    """This process's IPython shell, made where there is none, with a new namespace for a while."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        def init_virtualenv(self) -> None:
            """Nothing of another environment, whatever VIRTUAL_ENV says, gets into this process."""

    if not InteractiveShell.initialized():
        # Neither a history nor a profile of its own in the user's home.
        quiet = Config({"HistoryManager": {"enabled": False}})
        with tempfile.TemporaryDirectory() as home:
            Shell.instance(config=quiet, ipython_dir=home, user_module=ModuleType("notebook"))
    shell = InteractiveShell.instance()
    before = {
        name: getattr(shell, name)
        for name in ("user_module", "user_ns", "custom_exceptions", "CustomTB")
    }
    shell.user_module, shell.user_ns = shell.prepare_user_module(ModuleType("__main__"))
    shell.init_user_ns()
    # The cells of the caller's notebook, such as papermill's parameters, are not those of this one.
    shell.user_ns["In"] = []
    # An error goes into the notebook alone.
    shell.set_custom_exc((BaseException,), lambda *_, **__: None)
    bundles = shell.display_formatter.mimebundle_formatter
    # By its name, because the class may not be imported yet.
    figure_class = ("ocr_phases.show.shown_figure", "ShownFigure")
    # That of another report, where this one runs within a cell of it.
    formatter_before = bundles.for_type_by_name(*figure_class)
    if not stills:
        bundles.for_type_by_name(*figure_class, _bundle_without_still)
    try:
        yield shell
    finally:
        for name, value in before.items():
            setattr(shell, name, value)
        bundles.pop(".".join(figure_class), None)
        bundles.for_type_by_name(*figure_class, formatter_before)


def _bundle_without_still(figure: ShownFigure, **_: Any) -> dict[str, str]:
    """What a cell shows of a figure in a report, which has no use for its bitmap."""
    return figure.bundle(still=False)


def _outputs(captured: CapturedIO) -> Iterator[Any]:
    """What a cell printed and displayed, as outputs of a notebook."""
    # Their constructors validate each output: the whole notebook is, when it is written.
    from nbformat import from_dict

    if captured.stdout:
        yield from_dict({"output_type": "stream", "name": "stdout", "text": captured.stdout})
    for output in captured.outputs:
        if output.data:  # what shows itself by display() gives an empty one besides
            yield from_dict(
                {
                    "output_type": "display_data",
                    "data": output.data,
                    "metadata": output.metadata,
                }
            )


def _error(error: BaseException) -> Any:
    """An error as an output of a notebook."""
    from nbformat.v4 import new_output

    name = type(error).__name__
    return new_output("error", ename=name, evalue=str(error), traceback=_error_lines(error))


def _error_lines(error: BaseException) -> list[str]:
    """The lines that a notebook shows of an error: one sentence for an error of this package.

    It is not asked to render itself, because the same object is raised again for the caller, whose
    cell shows the sentence, too.
    """
    if isinstance(error, OcrPhasesError) and not os.environ.get("OCR_PHASES_TRACEBACK"):
        return [f"{type(error).__name__}: {error}"]
    return "".join(traceback.format_exception(error)).splitlines()
