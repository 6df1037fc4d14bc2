"""From whatever the user points at (path, bytes, PIL image, page of a file) to one upright RGB
page.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import importlib
import io
import os
import shlex
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import FORMATS, MOST_FILE_PAGES, PAGED_SUFFIXES, read_regular, split_page
from ocr_phases.versions import asset

#: Largest page in pixels: where Pillow itself, with its default settings, refuses a decompression
#: bomb.
MAX_PIXELS = 2 * 89_478_485
#: Memory that decoding a page and converting it to RGB may take, in bytes (2.5 GB), its file not
#: counted.
MAX_BYTES = 14 * MAX_PIXELS

# In every mode a page takes at most about 14 bytes a pixel, and more where the decoder holds a
# copy.
_USUAL_BYTES_A_PIXEL = 14
_BYTES_A_PIXEL = {"JPEG2000": 25, "WEBP": 17}

#: Resolution at which a page of a PDF is drawn, in dots per inch.
PDF_DPI = 144

_PLUGINS = ("Png", "Jpeg", "Jpeg2K", "Tiff", "WebP", "Bmp", "Gif", "Ppm", "Avif")  # of `FORMATS`
_STRIP_PIXELS = 2**20
#: Bytes and longest side in pixels of a page that a record embeds.
_EMBED_BYTES = 2_000_000
_EMBED_SIDE = 2_000
_DECODER_ERRORS = (
    OSError,  # includes Pillow's UnidentifiedImageError and its "image file is truncated"
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def sample_page() -> Path:
    """A page that comes with the package: a receipt, which the built-in tiny model can read.

    Returns
    -------
    Path
        The image file.

    Examples
    --------
    >>> sample_page().name
    'receipt.png'
    """
    return asset("data", "pages", "receipt.png")


def load_page(
    source: str | Path | bytes | Image.Image, name: str = "image"
) -> tuple[Image.Image, bytes | None, str]:
    """Load one page as ``(page, data, name)``.

    ``page`` is an upright RGB uint8 image: EXIF orientation applied, first frame of an animation,
    converted as `as_rgb` says, colour profiles ignored. ``data`` is the whole file as it was (None
    for a PIL image). ``name`` is the file's name without its folder; bytes and a PIL image have the
    one that is given; for a PDF and a TIFF of several frames it ends in ``#`` and the page's
    number.

    ``"file.pdf#3"`` is the third page of a PDF, drawn at 144 dpi, and ``"file.tif#3"`` the third
    frame of a TIFF; without a number it is the first.

    Raises OcrPhasesError for a file that is missing, not a regular one, empty, larger than
    `ocr_phases.files.LARGEST_FILE`, in none of `FORMATS` or damaged; for a page of no pixels, of
    more than `MAX_PIXELS` or in need of more than `MAX_BYTES`; for one that the file does not have,
    and for a PDF without the ``pdf`` extra.
    """
    if isinstance(source, Image.Image):
        with _damage_explained("the image"):
            image = source.copy()
        return _upright(image), None, name
    if isinstance(source, bytes):
        file = _PageFile(source, name)
    elif isinstance(source, (str, Path)):
        file = _read(source)
    else:
        raise OcrPhasesError(
            f"A page is a path, bytes or a PIL image, not {type(source).__name__}."
        )
    if not file.data:
        raise OcrPhasesError(f"{file.name} is empty (0 bytes): save or download the page again.")
    number = 1 if file.number is None else file.number
    numbered_name = f"{file.name}#{number}"
    if file.is_pdf:
        return _draw_pdf_page(file.data, file.name, number), file.data, numbered_name
    page, has_several = _decode(file.data, file.name, number)
    if has_several or file.number is not None:
        return page, file.data, numbered_name
    return page, file.data, file.name


def page_image(data: bytes | None) -> Image.Image | None:
    """`PhaseRun.page_image`: the page that a record holds as a file's bytes, or None."""
    return None if data is None else _last_page(data).copy()


@functools.lru_cache(maxsize=1)
def _last_page(data: bytes) -> Image.Image:
    """The page is kept until another is asked for: a report shows it three times."""
    return load_page(data)[0]


def describe_page(
    image: Image.Image, data: bytes | None, name: str, *, embed: bool = True
) -> dict[str, Any]:
    """The record's part about a page file: name, SHA-256, pixel size and the page itself.

    ``image`` is the upright RGB page, ``data`` the file's bytes where it came from an image file.
    Embedded are an image file's bytes up to 2 MB, else a JPEG of at most 2,000 px; ``embed=False``
    leaves both out. One page of several is embedded as that JPEG. The hash is of the whole file, or
    of the raw pixels where there is none.
    """
    digest = hashlib.sha256(image.tobytes() if data is None else data).hexdigest()
    embedded = None
    if embed:
        embedded = base64.b64encode(_embedded_file(image, data, name)).decode()
    return {
        "file": name,
        "sha256": digest,
        "width": image.width,
        "height": image.height,
        "data": embedded,
    }


def _embedded_file(image: Image.Image, data: bytes | None, name: str) -> bytes:
    """A page as the file that a record embeds; the arguments are those of `describe_page`."""
    is_page_of_file = split_page(name)[1] != ""
    if data and len(data) <= _EMBED_BYTES and data[:4] != b"%PDF" and not is_page_of_file:
        return data
    small = image.copy()
    small.thumbnail((_EMBED_SIDE, _EMBED_SIDE))
    return image_file(small, "JPEG", quality=90)


def image_file(image: Image.Image, form: str, **options: Any) -> bytes:
    """The bytes of an image as a file of this form; ``options`` are Pillow's for it."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in mode RGB, uint8; an RGB image comes back as it is.

    Opaque images are converted by Pillow alone, as the vendor's preprocessing does. Two kinds
    deviate on purpose, because the vendor's plain conversion makes them unreadable: pixels with
    transparency are laid on white (the conversion drops alpha, which often leaves black on black),
    and 16-bit, 32-bit and float grey is scaled to 0..255 (the conversion clips it to white). The
    recorded vendor cases have neither, so they are unaffected.

    Raises OcrPhasesError for an image of no pixels or of a mode that Pillow cannot convert.
    """
    if 0 in image.size:
        raise OcrPhasesError(
            f"The page has no pixels ({image.width} x {image.height}): give one of at least 1 x 1."
        )
    try:
        if image.mode.startswith("I") or image.mode == "F":
            return _scaled_grey(image)
        if image.has_transparency_data:
            rgba = image if image.mode == "RGBA" else image.convert("RGBA")
            alpha = rgba.getchannel("A")
            if alpha.getextrema() != (255, 255):
                page = Image.new("RGB", image.size, "white")
                page.paste(rgba, mask=alpha)
                return page
        return image if image.mode == "RGB" else image.convert("RGB")
    except ValueError as error:
        raise OcrPhasesError(
            f"Pages of mode {image.mode} cannot be converted: save it as an RGB PNG."
        ) from error


def _scaled_grey(image: Image.Image) -> Image.Image:
    """Grey of more than 8 bits as RGB: by its nominal range, or stretched where values lie outside.

    Strip by strip: in float64 all at once, a page would take eight times its own memory and more.
    """
    rows = max(1, _STRIP_PIXELS // image.width)
    strips = [
        (0, top, image.width, min(top + rows, image.height)) for top in range(0, image.height, rows)
    ]

    def values(strip: tuple[int, int, int, int]) -> np.ndarray:
        return np.nan_to_num(np.asarray(image.crop(strip)).astype(np.float64))

    ends = np.asarray([(part.min(), part.max()) for part in map(values, strips)])
    black, width = _grey_range(image.mode, float(ends.min()), float(ends.max()))
    page = Image.new("RGB", image.size)
    for strip in strips:
        grey = np.rint((values(strip) - black) / width * 255).astype(np.uint8)
        page.paste(Image.fromarray(grey), strip)
    return page


def _grey_range(mode: str, low: float, high: float) -> tuple[float, float]:
    """The value that is black, and how far above it white is, for values from ``low`` to ``high``.

    It is the nominal range of the mode where all values lie in it, else the range of the values.
    """
    nominal_whites = (1.0, 255.0, 65535.0) if mode == "F" else (65535.0,)
    for white in nominal_whites:
        if low >= 0 and high <= white:
            return 0.0, white
    return low, (high - low) or 1.0  # a page of one grey has no width


@contextlib.contextmanager
def _damage_explained(name: str) -> Iterator[None]:
    """What goes wrong while pixels are decoded, as one sentence."""
    try:
        yield
    except _DECODER_ERRORS as error:
        raise OcrPhasesError(
            f"{name} is damaged or cut short ({error}): save or download it again."
        ) from error


def _upright(image: Image.Image) -> Image.Image:
    """A page of its own, without metadata, turned as EXIF says and in RGB; ``image`` may be
    changed.
    """
    with contextlib.suppress(*_DECODER_ERRORS):  # unreadable EXIF says nothing about the pixels
        ImageOps.exif_transpose(image, in_place=True)
    page = as_rgb(image)
    page = page.copy() if page is image else page
    page.info.clear()
    return page


def _decode(data: bytes, name: str, number: int) -> tuple[Image.Image, bool]:
    """Page ``number`` of an image file, and whether the file has several pages.

    Only a TIFF can have several. A later one is decoded from a copy of the file that begins with
    it, so that it goes through the same checks as a first one.
    """
    with _open_image(data, name) as image:
        frames = _frames(image, data)
        if not 1 <= number <= len(frames):
            raise _no_page(name, number, len(frames))
        if number != 1:
            page, _ = _decode(_from_frame(data, frames[number - 1]), name, 1)
            return page, True
        bytes_a_pixel = _BYTES_A_PIXEL.get(str(image.format), _USUAL_BYTES_A_PIXEL)
        most = min(MAX_PIXELS, MAX_BYTES // bytes_a_pixel)
        if image.width * image.height > most:
            raise _too_large(name, most)
        with _damage_explained(name):
            image.load()
        return _upright(image), len(frames) > 1


def _frames(image: Any, data: bytes) -> list[int]:
    """Where a TIFF's frames begin in its file, the first 10,001 of them; one place for any other
    image.

    Pillow parses every frame before the one that it seeks, which takes hours for a file of
    thousands.
    """
    if image.format != "TIFF":
        return [0]
    form = _tiff_form(data)
    starts: dict[int, None] = {}
    try:
        (start,) = struct.unpack_from(form.offset, data, form.first_offset)
        while start and start not in starts and len(starts) <= MOST_FILE_PAGES:
            starts[start] = None
            (entries,) = struct.unpack_from(form.entry_count, data, start)
            # A frame is a count, its entries, and the offset of the next frame.
            next_offset = start + struct.calcsize(form.entry_count) + entries * form.entry_bytes
            (start,) = struct.unpack_from(form.offset, data, next_offset)
    except struct.error:  # the file ends there
        pass
    return list(starts)


def _from_frame(data: bytes, start: int) -> bytes:
    """A TIFF file as one that begins with the frame at ``start``."""
    form = _tiff_form(data)
    behind = form.first_offset + struct.calcsize(form.offset)
    return data[: form.first_offset] + struct.pack(form.offset, start) + data[behind:]


class _TiffForm(NamedTuple):
    """How a TIFF file writes its frames; ``offset`` and ``entry_count`` are forms of `struct`."""

    offset: str
    first_offset: int  # where the offset of the first frame stands
    entry_count: str
    entry_bytes: int


def _tiff_form(data: bytes) -> _TiffForm:
    """The form of a TIFF file or, by its version 43, of a BigTIFF file."""
    order = "<" if data.startswith(b"II") else ">"
    if 43 in data[2:4]:
        return _TiffForm(f"{order}Q", 8, f"{order}Q", 20)
    return _TiffForm(f"{order}I", 4, f"{order}H", 12)


@contextlib.contextmanager
def _open_image(data: bytes, name: str) -> Iterator[Any]:
    """A Pillow image of one of `FORMATS`, its pixels not decoded yet."""
    # Pillow warns from half of MAX_PIXELS on; a large scan is no bomb, and a real one is refused
    # below.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(data), formats=_formats())
        except Image.DecompressionBombError as error:
            raise _too_large(name) from error
        except _DECODER_ERRORS as error:
            raise OcrPhasesError(
                f"{name} is not an image that can be read: give a {', '.join(FORMATS)} or PDF file."
            ) from error
        with image:
            yield image


@functools.cache
def _formats() -> list[str]:
    """Those of `FORMATS` that this Pillow has. `Image.init` would import the plugins of forty
    others.
    """
    for name in _PLUGINS:
        with contextlib.suppress(ImportError):  # Pillow has AVIF since 11.3
            importlib.import_module(f"PIL.{name}ImagePlugin")
    return [name for name in FORMATS if name in Image.OPEN]


def _too_large(name: str, most: int = MAX_PIXELS) -> OcrPhasesError:
    return OcrPhasesError(
        f"{name} has more than {most // 10**6} megapixels: scale the page down first."
    )


class _PageFile(NamedTuple):
    """A file with pages: its bytes, its name, and the number of the page that is meant."""

    data: bytes
    name: str
    suffix: str = ""  # in small letters
    number: int | None = None

    @property
    def is_pdf(self) -> bool:
        return self.suffix == ".pdf" or b"%PDF-" in self.data[:1024]


def _read(source: str | Path) -> _PageFile:
    """The file that a path names, or the page of a file."""
    try:
        path = Path(source).expanduser()
        number = None
        file, page = split_page(str(path))
        if page and not path.exists():
            digits = page[1:]
            if not digits.isdecimal():
                raise OcrPhasesError(
                    f"A page of a file is a number from 1, as file.pdf#3, not {digits!r}."
                )
            path = Path(file)
            number = int(digits)
        if path.is_dir():
            os.scandir(path).close()  # says why where it cannot be read
            raise OcrPhasesError(
                f"{source!s} is a folder: name a file in it, or measure all of its pages with "
                f"ocr-phases batch {shlex.quote(str(source))}."
            )
        return _PageFile(read_regular(path), path.name, path.suffix.lower(), number)
    except FileNotFoundError as error:
        raise OcrPhasesError(f"There is no file {source!s}: check the path.") from error
    except PermissionError as error:
        raise OcrPhasesError(
            f"{source!s} may not be read ({error.strerror}): ask for the permission to read it."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise OcrPhasesError(f"{source!s} cannot be opened ({error}): check the path.") from error


def page_count(path: str | Path) -> int:
    """How many pages a file has, none of them drawn; `OcrPhasesError` as `load_page` raises it.

    Only a PDF's pages and a TIFF's frames are pages: an animation is its first frame. Of a TIFF's
    frames at most one more than `MOST_FILE_PAGES` are counted.
    """
    file = _read(path)
    if file.is_pdf:
        with _open_pdf(file.data, file.name) as document:
            return len(document)
    with _open_image(file.data, file.name) as image:
        return len(_frames(image, file.data))


def unnamed_pages(page: str | Path) -> str:
    """A sentence where ``page`` is a file of several pages that names none of them; else empty."""
    if not str(page).lower().endswith(PAGED_SUFFIXES):
        return ""
    count = page_count(page)
    if count == 1:
        return ""
    name = Path(page).name
    others = f"name another one as {name}#2, or several as {name}#1-2"
    many = f"{count:,}" if count <= MOST_FILE_PAGES else f"more than {MOST_FILE_PAGES:,}"
    return f"{name} has {many} pages and page 1 is taken: {others}."


def _no_page(name: str, number: int, last: int) -> OcrPhasesError:
    if last > MOST_FILE_PAGES:
        return OcrPhasesError(
            f"{name} has too many pages: choose one from 1 to {MOST_FILE_PAGES:,}."
        )
    return OcrPhasesError(f"{name} has no page {number}: choose one from 1 to {last}.")


def _draw_pdf_page(data: bytes, name: str, number: int) -> Image.Image:
    with _open_pdf(data, name) as document:
        if not 1 <= number <= len(document):
            raise _no_page(name, number, len(document))
        document.init_forms()  # without this, what was filled into a form is not drawn
        page = document[number - 1]
        scale = PDF_DPI / 72
        width, height = page.get_size()
        if width * height * scale**2 > MAX_PIXELS:
            raise _too_large(f"{name}#{number}")
        return as_rgb(page.render(scale=scale).to_pil())


@contextlib.contextmanager
def _open_pdf(data: bytes, name: str) -> Iterator[Any]:
    """A ``pypdfium2.PdfDocument``, with what goes wrong in it as one sentence."""
    try:
        import pypdfium2
    except ImportError as error:
        raise OcrPhasesError("Reading a PDF needs pypdfium2: pip install pypdfium2.") from error
    try:
        with pypdfium2.PdfDocument(data) as document:
            yield document
    except pypdfium2.PdfiumError as error:
        raise OcrPhasesError(
            f"{name} is not a PDF that can be read ({error}): remove its password or export it "
            f"again."
        ) from error
