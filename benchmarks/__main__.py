"""``python -m benchmarks``: what measuring costs and how fast each strategy is, as one JSON
file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from benchmarks.measure import PARTS, BenchSettings, run_bench
from benchmarks.tables import bench_text
from ocr_phases import OCRSession
from ocr_phases.cli.options import name_list
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import each_page, output_file
from ocr_phases.images import load_page
from ocr_phases.versions import asset


def bench(arguments: argparse.Namespace) -> None:
    """Measure what measuring costs and how fast each strategy is; print figures and save the raw
    times.
    """
    page = arguments.page or asset("data", "pages", "receipt.png")
    load_page(each_page(str(page))[0])
    settings = BenchSettings(
        **{item.name: getattr(arguments, item.name) for item in fields(BenchSettings)}
    )
    output_file(arguments.save)
    session = OCRSession.load(arguments.model, device=arguments.device, dtype=arguments.dtype)
    measured = run_bench(session, page, settings, arguments.save)
    print(f"\n{bench_text(measured)}\n\nWrote {arguments.save}")


def main(argv: Sequence[str] | None = None) -> int:
    """0 when it did its work, 2 (with one sentence on stderr) when it could not."""
    command = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=bench.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = command.add_argument
    add("page", nargs="?", metavar="PAGE", help="a sample page unless it is named")
    add("--save", type=Path, default=Path("bench.json"), help="where it goes")
    add("--model", default="tiny", help="tiny, dummy, a checkpoint folder or a hub id")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--dtype", help="float32, bfloat16 or float16; None is the device's own")
    add("--presets", type=name_list, metavar="LIST", default=(), help="() is the model's own")
    add(
        "--strategies",
        type=name_list,
        metavar="LIST",
        default=(),
        help="() is eager on a CPU, all on a GPU",
    )
    add("--parts", type=name_list, metavar="LIST", default=PARTS, help=f"of {', '.join(PARTS)}")
    add("--pairs", type=int, default=15, metavar="N", help="alternating pairs")
    add("--prompt", default="markdown", help="its name or text")
    add("--max-new-tokens", type=int, default=128, metavar="N", help="tokens of every run")
    try:
        bench(command.parse_args(argv))
    except OcrPhasesError as error:
        command.exit(2, f"benchmarks: {error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
