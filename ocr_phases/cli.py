"""The command line: ``ocr-phases report``, ``profile`` and ``artifacts``.

Heavy imports wait until a verb needs them, so that ``--help`` is immediate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ocr_phases
from ocr_phases.errors import OcrPhasesError

if TYPE_CHECKING:
    from ocr_phases.record import PhaseRun


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; 0 when it did its work, 2 (with one sentence on stderr) when it could not."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.verb(arguments)
    except OcrPhasesError as error:
        print(f"ocr-phases: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"ocr-phases: this needs {error.name}: pip install {error.name}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ocr-phases: stopped.", file=sys.stderr)
        return 130
    return 0


def report(arguments: argparse.Namespace) -> None:
    """One HTML report a page (or of an existing record), with its record, notebook and artifacts."""
    if bool(arguments.record) == bool(arguments.pages):
        raise OcrPhasesError("Name the pages to measure, or one --record to show: one of the two.")
    from ocr_phases.measure.images import load_page
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.render import report_page

    # A wrong page or record is told before anything slow starts.
    for page in arguments.pages:
        load_page(page)
    if arguments.record:
        PhaseRun.load(arguments.record)
    jobs = _folders(arguments.pages, arguments.out) if arguments.pages else {None: arguments.out}
    for page, folder in jobs.items():
        if page is None:
            parameters = {"record": str(Path(arguments.record).resolve())}
        else:
            name, number = _split_pdf(page)
            parameters = {"page": str(Path(name).resolve()) + number, **_measure_parameters(arguments)}
        written = report_page(folder, parameters, show_code=arguments.show_code)
        print(f"Wrote {written['report.html']}")


def profile(arguments: argparse.Namespace) -> None:
    """Measure a page, print a summary and save the record."""
    from ocr_phases.analyse.summary import stage_table, verdict
    from ocr_phases.files import output_folder

    target = Path(arguments.save)
    output_folder(target.parent)
    run = _measure(arguments)
    run.save(target)
    print(verdict(run))
    print()
    print(stage_table(run).to_string(index=False, float_format="{:.3f}".format, na_rep=""))
    print(f"\nWrote {target}")


def artifacts(arguments: argparse.Namespace) -> None:
    """Write what the model read (result.mmd, crops, the page with boxes) from a record."""
    from ocr_phases.files import output_folder
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.artifacts import write_artifacts

    run = PhaseRun.load(arguments.record)
    if run.text is None:
        raise OcrPhasesError(f"{arguments.record} keeps no text: measure again with return_text=True.")
    folder = output_folder(arguments.out)
    for row, result in enumerate(run.results):
        # A batch gets a folder a row, with the row's first page.
        target = folder if len(run.results) == 1 else folder / f"row-{row}"
        number = next(number for number, page in enumerate(run.pages) if page["row"] == row)
        for path in write_artifacts(target, run.page_image(number), result["text"]):
            print(path.relative_to(folder))
    print(f"Wrote {folder}")


def _measure(arguments: argparse.Namespace) -> PhaseRun:
    from tqdm import tqdm

    from ocr_phases.measure.images import load_page

    # A wrong page or model is told before anything slow starts.
    load_page(arguments.page)
    from ocr_phases.measure.session import DeepSeekOCRSession

    parameters = _measure_parameters(arguments)
    session = DeepSeekOCRSession.load(
        parameters.pop("model"), device=parameters.pop("device"), dtype=parameters.pop("dtype")
    )
    runs = arguments.warmup + arguments.repeats
    with tqdm(total=runs * arguments.max_new_tokens, unit="token", disable=None, leave=False) as bar:

        def runs_done(done: int, total: int) -> None:
            bar.n = done * arguments.max_new_tokens
            bar.set_postfix_str(f"run {done} of {total}")

        def tokens(repeat: int, new: list[list[int]]) -> None:
            bar.update(len(new[0]))

        return session.run_inference(arguments.page, progress=runs_done, on_tokens=tokens, **parameters)


_MEASURE = ("model", "preset", "prompt", "max_new_tokens", "repeats", "warmup", "device", "dtype", "seed")


def _measure_parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in _MEASURE}


def _folders(pages: Sequence[str], out: Path) -> dict[str | None, Path]:
    """A folder for each page, named like it; a number is added where two pages share a name."""
    folders: dict[str | None, Path] = {}
    for page in pages:
        name, number = _split_pdf(page)
        stem = Path(name).stem + number.replace("#", "-")
        folder, count = out / stem, 2
        while folder in folders.values():
            folder, count = out / f"{stem}-{count}", count + 1
        folders[page] = folder
    return folders


def _split_pdf(page: str) -> tuple[str, str]:
    """``file.pdf#3`` to ``file.pdf`` and ``#3``; any other name stays whole."""
    name, mark, number = page.rpartition("#")
    if mark and name.lower().endswith(".pdf") and number.isdigit():
        return name, mark + number
    return page, ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ocr-phases",
        description="Measure where DeepSeek-OCR spends its time on a page: prefill, vision stages, decode.",
    )
    parser.add_argument("--version", action="version", version=ocr_phases.__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    command = _verb(verbs, "report", report, "one self-contained HTML report a page")
    command.add_argument("pages", nargs="*", metavar="PAGE", help="image, or file.pdf#3 for its third page")
    command.add_argument("--record", help="show this run.json instead of measuring")
    command.add_argument(
        "--out", type=Path, default=Path("ocr_phases_out"), help="output folder (default: %(default)s)"
    )
    command.add_argument("--show-code", action="store_true", help="keep the notebook's code in the report")
    _add_measure_options(command)

    command = _verb(verbs, "profile", profile, "measure a page, print a summary, save its record")
    command.add_argument("page", metavar="PAGE", help="image, or file.pdf#3 for its third page")
    command.add_argument("--save", default="run.json", help="where the record goes (default: %(default)s)")
    _add_measure_options(command)

    command = _verb(verbs, "artifacts", artifacts, "write text, crops and boxes from a record")
    command.add_argument("record", metavar="RUN.json")
    command.add_argument(
        "--out", type=Path, default=Path("ocr_phases_out"), help="output folder (default: %(default)s)"
    )
    return parser


def _verb(
    verbs: Any, name: str, action: Callable[[argparse.Namespace], None], summary: str
) -> argparse.ArgumentParser:
    command = verbs.add_parser(name, help=summary, description=(action.__doc__ or "").strip())
    command.set_defaults(verb=action)
    return command


def _add_measure_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("measurement")
    group.add_argument(
        "--model",
        default="tiny",
        help="tiny (built in), dummy (full size, random weights), a checkpoint folder or a hub id",
    )
    group.add_argument("--preset", help="tiny, small, base, large or gundam (default: the model's own)")
    group.add_argument("--prompt", default="markdown", help="markdown, ocr, free, ... or your own text")
    group.add_argument("--max-new-tokens", type=int, default=512, metavar="N", help="default: %(default)s")
    group.add_argument("--repeats", type=int, default=3, metavar="N", help="default: %(default)s")
    group.add_argument("--warmup", type=int, default=1, metavar="N", help="default: %(default)s")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    group.add_argument("--dtype", help="float32, bfloat16 or float16 (default: the device's own)")
    group.add_argument("--seed", type=int, default=0, help="default: %(default)s")


if __name__ == "__main__":
    sys.exit(main())
