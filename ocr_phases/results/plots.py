"""What the plots of every result share."""

from __future__ import annotations

from ocr_phases.errors import Hinted


class Plots(Hinted):
    """The plots of a result. Each is a matplotlib figure that shows itself in a notebook."""

    def __repr__(self) -> str:
        names = [name for name in dir(self) if not name.startswith("_")]
        return ", ".join(f"plot.{name}()" for name in names)
