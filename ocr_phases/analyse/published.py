"""What the published weights did on the sample pages, as one small file without private data.

The file is built from a list of entries that say nothing about the person or the machine's owner,
and not by removing entries from a record: a record names folders, and a file of these does not.
"""

from __future__ import annotations

import contextlib
import getpass
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ocr_phases.analyse.cards import key_metrics
from ocr_phases.analyse.checks import run_checks, with_verdict
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.quality import quality_of
from ocr_phases.record import Record
from ocr_phases.record.parts import DevicePart, ModelPart, to_plain
from ocr_phases.text import bytes_text, ms_text

#: The sample pages that are measured: a receipt, an invoice and a page of running text.
SAMPLE_PAGES = ("receipt.png", "invoice.png", "paper.png")

#: The repositories that the makers published, which alone are named in the file.
PUBLISHED_MODELS = (
    "deepseek-ai/DeepSeek-OCR",
    "deepseek-ai/DeepSeek-OCR-2",
    "baidu/Unlimited-OCR",
)

#: The version of the file's layout.
FORMAT = 1

_VERSIONS = (
    "ocr_phases",
    "code",
    "git",
    "python",
    "torch",
    "transformers",
    "tokenizers",
    "cuda",
    "hip",
    "driver",
)
_DEVICE = ("name", "kind", "memory_bytes", "cores", "host", "host_cores", "threads", "ceilings")
_MODEL = (
    "family",
    "implementation",
    "class_name",
    "dtype",
    "attention",
    "attention_kernels",
    "experts",
    "decode_attention_kernels",
    "decode_experts",
    "strategy",
    "vision",
    "revision",
    "parameters",
    "generation",
)
_REQUEST = (
    "prompt",
    "preset",
    "max_new_tokens",
    "infer",
    "ignore_eos",
    "autocast",
    "repeats",
    "warmup",
    "seed",
)
_SIGNIFICANT_DIGITS = 6
_SHORTEST_NAME = 3  # characters; a shorter name of a user or host is part of too many words
#: A path, absolute or from a home folder, as it stands in a sentence.
_PATH = re.compile(r"(?:(?<=[\s'\"(=:,])|^)(?:[A-Za-z]:\\|~?/)[^\s'\"():,;]+")
_HIDDEN = "(hidden)"


@dataclass(frozen=True)
class Setup:
    """What the pages are measured with: the entries of a record that all of them share."""

    created: str  # ISO 8601
    model: ModelPart
    versions: Mapping[str, Any]
    device: DevicePart


class CheckOutcome(Struct, frozen=True):
    """What came of one check: its name, its verdict, and what was measured."""

    name: str
    verdict: str
    measured: str


class PageOutcome(Struct, frozen=True, omit_defaults=True):
    """What came of one sample page: its figures, or in ``error`` why there are none.

    ``figures`` are those of `ocr_phases.analyse.figures.summary`, ``quality`` compares the text
    with the page's reference text, and ``stopped`` says that a signal ended the measurement after
    some of its repeats.
    """

    page: str
    error: str = ""
    stopped: bool = False
    sha256: str = ""
    request: dict[str, Any] = {}
    grid: list[int] = []
    image_tokens: int | None = None
    figures: dict[str, Any] = {}
    quality: dict[str, float] = {}
    checks: list[CheckOutcome] = []
    text: str = ""


class WeightsReport(Struct, frozen=True):
    """The whole file: which weights, on what, and what came of each page."""

    produced_by: str
    format: int
    date: str
    weights: str
    model: dict[str, Any]
    versions: dict[str, str]
    device: dict[str, Any]
    pages: list[PageOutcome]


def measured_page(run: Record, page: str, *, stopped: bool = False) -> PageOutcome:
    """The outcome of a sample page that was measured; ``run`` has its reference text."""
    checks = [
        CheckOutcome(check.name, check.verdict, without_private_words(check.measured))
        for check in run_checks(run)
    ]
    figures = {name: value for name, value in summary(run).items() if name != "text"}
    return PageOutcome(
        page=page,
        stopped=stopped,
        sha256=run.page.sha256,
        request=_entries(run.request, _REQUEST),
        grid=list(run.page.grid),
        image_tokens=run.page.image_tokens,
        figures=_shortened(figures),
        quality=_shortened(quality_of(run)),
        checks=checks,
        text=run.text or "",
    )


def failed_page(page: str, reason: str) -> PageOutcome:
    """The outcome of a sample page that could not be measured, and why."""
    return PageOutcome(page=page, error=without_private_words(reason))


def weights_report(setup: Setup, pages: Sequence[PageOutcome]) -> WeightsReport:
    """The file's content: what was measured on, and the outcomes of the pages."""
    versions: dict[str, str] = {}
    for name in _VERSIONS:
        if setup.versions.get(name) is not None:
            versions[name] = str(setup.versions[name])
    return WeightsReport(
        produced_by="ocr-phases verify --published",
        format=FORMAT,
        date=setup.created[:10],
        weights=_weights_name(setup.model),
        model=_entries(setup.model, _MODEL),
        versions=versions,
        device=_entries(setup.device, _DEVICE),
        pages=list(pages),
    )


def report_json(report: WeightsReport) -> bytes:
    """The file as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def report_markdown(report: WeightsReport) -> str:
    """The same for a reader: the model, then each page with its figures and the checks to look at.

    Of the checks those are listed that failed, were too noisy, or compare the tokens with
    ``generate()``.
    """
    lines = [
        f"# {report.weights} on {report.device['name']}",
        "",
        _sentence_of_model(report),
    ]
    for page in report.pages:
        lines += ["", f"## {page.page}", ""]
        if page.error:
            lines.append(f"This page could not be measured: {page.error}")
            continue
        lines += _page_lines(page)
    return "\n".join(lines) + "\n"


def _sentence_of_model(report: WeightsReport) -> str:
    """Class, dtype and versions in one sentence."""
    versions = ", ".join(
        f"{name} {report.versions[name]}"
        for name in ("ocr_phases", "torch", "transformers", "python", "cuda", "driver")
        if report.versions.get(name)
    )
    model = report.model
    return (
        f"{model['class']} ({model['implementation']}, {model['dtype']}), revision "
        f"{model['revision']}, with {versions}."
    )


def _page_lines(page: PageOutcome) -> list[str]:
    """The table of one page's figures, and its checks to look at."""
    lines = ["| figure | value |", "| --- | --- |"]
    for name in ("prefill_ms", "vision_ms", "inter_token_ms", "page_ms"):
        if name in page.figures:
            lines.append(f"| {name} | {ms_text(page.figures[name])} |")
    lines.append(f"| tokens | {page.figures['tokens']:,} |")
    if "peak_bytes" in page.figures:
        lines.append(f"| peak_bytes | {bytes_text(page.figures['peak_bytes'])} |")
    for name, value in page.quality.items():
        lines.append(f"| {name} | {value:.4g} |")
    counts: dict[str, int] = {}
    for check in page.checks:
        counts[check.verdict] = counts.get(check.verdict, 0) + 1
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    lines += ["", f"Checks: {told}."]
    for check in page.checks:
        if check.verdict in ("fail", "noisy") or check.name == "parity":
            lines.append(f"- {check.name}: {check.verdict}, {check.measured}")
    return lines


def page_line(run: Record, page: str) -> str:
    """One line about a measured page for the terminal: its times, its text, its checks."""
    figures = [f"{card.label} {card.value}" for card in key_metrics(run)[:3]]
    measures = quality_of(run)
    if "edit_distance" in measures:
        figures.append(f"edit distance to the reference text {measures['edit_distance']:.3f}")
    checks = run_checks(run)
    failed = ", ".join(check.label for check in with_verdict(checks, "fail"))
    noisy = ", ".join(check.label for check in with_verdict(checks, "noisy"))
    if failed:
        figures.append(f"failed checks: {failed}")
    if noisy:
        figures.append(f"noisy: {noisy}")
    if not failed and not noisy:
        figures.append("no check failed")
    return f"{page}: {'; '.join(figures)}"


def without_private_words(sentence: str) -> str:
    """A sentence without paths and without the names of this user and this host."""
    sentence = _PATH.sub(_HIDDEN, sentence)
    for name in _private_names():
        sentence = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _HIDDEN, sentence)
    return sentence


def _private_names() -> list[str]:
    """The names of this user and this host, as far as they are known and long enough."""
    names = [platform.node()]
    # A process may run as a user whom the system's list does not have.
    with contextlib.suppress(OSError, KeyError, RuntimeError):
        names.append(Path.home().name)
        names.append(getpass.getuser())
    return [name for name in dict.fromkeys(names) if len(name) >= _SHORTEST_NAME]


def _weights_name(model: ModelPart) -> str:
    """What is said of where the weights are from: the makers' repository, or only which kind."""
    if model.name in PUBLISHED_MODELS:
        return model.name
    match model.name.partition(":")[0]:
        case "tiny":
            return "the built-in model"
        case "dummy":
            return f"random weights of {model.family}"
    return f"weights of {model.family} from a folder or another repository"


def _entries(part: Any, names: Sequence[str]) -> dict[str, Any]:
    """The named entries of a record's part, as its file has them."""
    plain = to_plain(part)
    entries = {}
    for name in names:
        file_name = "class" if name == "class_name" else name
        entries[file_name] = plain[file_name]
    return entries


def _shortened(figures: dict[str, Any]) -> dict[str, Any]:
    """The known figures, numbers with `_SIGNIFICANT_DIGITS` digits."""
    short: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, float):
            value = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
        if value is not None:
            short[name] = value
    return short
