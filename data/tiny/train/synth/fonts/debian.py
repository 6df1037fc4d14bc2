"""Free typefaces of Debian's packages, for training and evaluation: collected, never shipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ocr_phases.errors import OcrPhasesError
from synth.fonts.faces import CHARACTERS, FontFamily, family

_FOLDERS = ("/usr/share/fonts", "/usr/share/texmf/fonts", "/usr/local/share/fonts")


@dataclass(frozen=True)
class DebianFamily:
    """A family of a Debian package: package, name, file names."""

    package: str
    name: str
    regular: str
    bold: str = ""
    italic: str = ""
    mono: bool = False
    held_out: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The file names of the faces it has."""
        return tuple(name for name in (self.regular, self.bold, self.italic) if name)


def _styled(
    package: str, name: str, stem: str, ending: str = "ttf", *, mono: bool = False, held_out: bool = False
) -> DebianFamily:
    """A family whose files are STEM-Regular, STEM-Bold and STEM-Italic."""
    regular, bold, italic = (f"{stem}-{style}.{ending}" for style in ("Regular", "Bold", "Italic"))
    return DebianFamily(package, name, regular, bold, italic, mono, held_out)


#: Every Debian family: those to train on, then the four that are held out.
TABLE = (
    _styled("fonts-liberation2", "Liberation Sans", "LiberationSans"),
    _styled("fonts-liberation2", "Liberation Serif", "LiberationSerif"),
    _styled("fonts-liberation2", "Liberation Mono", "LiberationMono", mono=True),
    _styled("fonts-roboto-unhinted", "Roboto", "Roboto"),
    _styled("fonts-open-sans", "Open Sans", "OpenSans"),
    _styled("fonts-cabin", "Cabin", "Cabin", "otf"),
    _styled("fonts-inter", "Inter", "Inter", "otf"),
    _styled("fonts-karla", "Karla", "Karla", "otf"),
    _styled("fonts-clear-sans", "Clear Sans", "ClearSans"),
    _styled("fonts-crosextra-carlito", "Carlito", "Carlito"),
    _styled("fonts-crosextra-caladea", "Caladea", "Caladea"),
    _styled("fonts-b612", "B612", "B612", "otf"),
    _styled("fonts-sil-charis", "Charis SIL", "CharisSIL"),
    _styled("fonts-hack", "Hack", "Hack", mono=True),
    _styled("fonts-averia-serif-gwf", "Averia Serif", "AveriaSerifGWF"),
    _styled("fonts-oldstandard", "Old Standard", "OldStandard"),
    _styled("fonts-urw-base35", "Nimbus Sans", "NimbusSans", "otf"),
    _styled("fonts-urw-base35", "Nimbus Mono", "NimbusMonoPS", "otf", mono=True),
    DebianFamily("fonts-urw-base35", "C059", "C059-Roman.otf", "C059-Bold.otf", "C059-Italic.otf"),
    DebianFamily("fonts-urw-base35", "P052", "P052-Roman.otf", "P052-Bold.otf", "P052-Italic.otf"),
    DebianFamily(
        "fonts-urw-base35",
        "URW Bookman",
        "URWBookman-Light.otf",
        "URWBookman-Demi.otf",
        "URWBookman-LightItalic.otf",
    ),
    DebianFamily(
        "fonts-urw-base35",
        "URW Gothic",
        "URWGothic-Book.otf",
        "URWGothic-Demi.otf",
        "URWGothic-BookOblique.otf",
    ),
    DebianFamily(
        "fonts-linuxlibertine",
        "Linux Libertine",
        "LinLibertine_R.otf",
        "LinLibertine_RB.otf",
        "LinLibertine_RI.otf",
    ),
    DebianFamily(
        "fonts-linuxlibertine",
        "Linux Biolinum",
        "LinBiolinum_R.otf",
        "LinBiolinum_RB.otf",
        "LinBiolinum_RI.otf",
    ),
    DebianFamily(
        "fonts-ebgaramond",
        "EB Garamond",
        "EBGaramond12-Regular.otf",
        italic="EBGaramond12-Italic.otf",
    ),
    DebianFamily(
        "fonts-freefont-ttf", "FreeSerif", "FreeSerif.ttf", "FreeSerifBold.ttf", "FreeSerifItalic.ttf"
    ),
    DebianFamily("fonts-cmu", "CMU Serif", "cmunrm.ttf", "cmunbx.ttf", "cmunti.ttf"),
    DebianFamily("fonts-cmu", "CMU Sans Serif", "cmunss.ttf", "cmunsx.ttf", "cmunsi.ttf"),
    DebianFamily("fonts-paratype", "PT Sans", "PTS55F.ttf", "PTS75F.ttf", "PTS56F.ttf"),
    DebianFamily("fonts-paratype", "PT Serif", "PTF55F.ttf", "PTF75F.ttf", "PTF56F.ttf"),
    DebianFamily("fonts-sil-gentium-basic", "Gentium Basic", "GenBasR.ttf", "GenBasB.ttf", "GenBasI.ttf"),
    DebianFamily("fonts-go", "Go", "Go-Regular.ttf", "Go-Bold.ttf", "Go-Italic.ttf"),
    DebianFamily("fonts-go", "Go Mono", "Go-Mono.ttf", "Go-Mono-Bold.ttf", "Go-Mono-Italic.ttf", mono=True),
    DebianFamily(
        "fonts-anonymous-pro",
        "Anonymous Pro",
        "Anonymous Pro.ttf",
        "Anonymous Pro B.ttf",
        "Anonymous Pro I.ttf",
        mono=True,
    ),
    DebianFamily(
        "fonts-courier-prime",
        "Courier Prime",
        "Courier Prime.otf",
        "Courier Prime Bold.otf",
        "Courier Prime Italic.otf",
        mono=True,
    ),
    DebianFamily("fonts-firacode", "Fira Code", "FiraCode-Regular.ttf", "FiraCode-Bold.ttf", mono=True),
    DebianFamily("fonts-comfortaa", "Comfortaa", "Comfortaa-Regular.ttf", "Comfortaa-Bold.ttf"),
    DebianFamily("fonts-play", "Play", "Play-Regular.ttf", "Play-Bold.ttf"),
    _styled("fonts-lato", "Lato", "Lato", held_out=True),
    _styled("fonts-vollkorn", "Vollkorn", "Vollkorn", held_out=True),
    _styled("fonts-jetbrains-mono", "JetBrains Mono", "JetBrainsMono", mono=True, held_out=True),
    DebianFamily(
        "fonts-quicksand", "Quicksand", "Quicksand-Regular.ttf", "Quicksand-Bold.ttf", held_out=True
    ),
)
#: What ``apt-get install`` must have installed before the files can be collected.
DEBIAN_PACKAGES = tuple(sorted({row.package for row in TABLE}))


def debian_families(folder: Path, held_out: bool = False) -> tuple[FontFamily, ...]:
    """The families whose files lie in ``folder``: those to train on, or the four kept for evaluation.

    Raises OcrPhasesError when files are missing, so that nobody trains on fewer families than they think.
    """
    folder = Path(folder)
    rows = [row for row in TABLE if row.held_out == held_out]
    missing = [name for row in rows for name in row.files if not (folder / name).is_file()]
    if missing:
        raise OcrPhasesError(
            f"{folder} lacks {len(missing)} font files, {missing[0]} first: fill it with "
            "python -m synth.fonts OUT_DIR on a Debian machine."
        )
    return tuple(family(folder, r.name, r.regular, r.bold, r.italic, mono=r.mono) for r in rows)


def collect(folder: Path, sources: Iterable[str] = _FOLDERS) -> tuple[str, ...]:
    """Copy the families' files from ``sources`` into ``folder``; returns the packages that are missing.

    Only the glyphs of `CHARACTERS` are kept, which leaves a tenth of the bytes.
    """
    found = {path.name: path for source in sources for path in sorted(Path(source).rglob("*.[ot]tf"))}
    missing = set()
    for row in TABLE:
        for name in row.files:
            if name in found:
                _copy_characters(found[name], folder / name)
            else:
                missing.add(row.package)
    return tuple(sorted(missing))


def _copy_characters(source: Path, target: Path) -> None:
    from fontTools import subset  # type: ignore[import-untyped]

    options = subset.Options(glyph_names=True, layout_features=[], legacy_kern=True, notdef_outline=True)
    options.drop_tables += ["FFTM", "BASE", "JSTF", "MATH"]
    font = subset.load_font(str(source), options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(text=CHARACTERS)
    subsetter.subset(font)
    subset.save_font(font, str(target), options)
    font.close()
