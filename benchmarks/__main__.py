"""``python -m benchmarks``: what measuring costs and how fast each strategy is, as one JSON file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.measure import PARTS, BenchSettings, run_bench
from benchmarks.tables import bench_text
from ocr_phases import OCRSession
from ocr_phases.cli.options import name_list, number_list
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import each_page, output_file
from ocr_phases.inputs.images import load_page
from ocr_phases.settings import STRATEGIES
from ocr_phases.versions import asset


def main(argv: Sequence[str] | None = None) -> int:
    """0 when it did its work, 2 (with one sentence on stderr) when it could not."""
    parser = _parser()
    try:
        bench(parser.parse_args(argv))
    except OcrPhasesError as error:
        parser.exit(2, f"benchmarks: {error}\n")
    return 0


def bench(arguments: argparse.Namespace) -> None:
    """Measure what measuring costs and how fast each strategy is; print figures and save the raw times."""
    page = arguments.page or asset("data", "pages", "receipt.png")
    load_page(each_page(str(page))[0])
    asked = {
        "parts": tuple(arguments.parts or PARTS),
        "batches": tuple(arguments.batch),
        "pairs": arguments.pairs,
        "max_new_tokens": arguments.max_new_tokens,
        "prompt": arguments.prompt,
    }
    # What does not depend on the model is told before it is loaded.
    BenchSettings(
        **asked, presets=tuple(arguments.presets or ()), strategies=tuple(arguments.strategies or ())
    )
    output_file(arguments.save)
    session = OCRSession.load(arguments.model, device=arguments.device, dtype=arguments.dtype)
    usual = ("eager",) if session.device == "cpu" else STRATEGIES
    settings = BenchSettings(
        **asked,
        presets=tuple(arguments.presets or [session.checkpoint.default_preset]),
        strategies=tuple(arguments.strategies or usual),
    )
    with tqdm(
        total=len(settings.parts) * len(settings.presets), unit="part", disable=None, leave=False
    ) as bar:

        def done(result: dict[str, Any]) -> None:
            bar.update()
            reason = f": {result['failed']}" if "failed" in result else ""
            bar.write(f"{result['part']:11} {result['preset']:7} {result['took_s']:6.1f} s{reason}")

        measured = run_bench(session, page, settings, arguments.save, progress=done)
    print(f"\n{bench_text(measured)}\n\nWrote {arguments.save}")


def _parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(prog="python -m benchmarks", description=bench.__doc__)
    command.add_argument("page", nargs="?", metavar="PAGE", help="default: a sample page")
    command.add_argument(
        "--save", type=Path, default=Path("bench.json"), help="where it goes (default: %(default)s)"
    )
    command.add_argument("--model", default="tiny", help="tiny, dummy, a checkpoint folder or a hub id")
    command.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    command.add_argument("--dtype", help="float32, bfloat16 or float16 (default: the device's own)")
    command.add_argument("--presets", type=name_list, metavar="LIST", help="default: the model's own")
    command.add_argument(
        "--strategies", type=name_list, metavar="LIST", help="default: eager on a CPU, all on a GPU"
    )
    command.add_argument(
        "--parts",
        type=name_list,
        metavar="LIST",
        help="of marks, overhead, collectors, stage_coverage, prefill, strategies, batches (default: all)",
    )
    command.add_argument(
        "--batch", type=number_list, default="1,4,16", metavar="LIST", help="default: %(default)s"
    )
    command.add_argument(
        "--pairs", type=int, default=15, metavar="N", help="alternating pairs (default: %(default)s)"
    )
    command.add_argument("--prompt", default="markdown", help="default: %(default)s")
    command.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: %(default)s")
    return command


if __name__ == "__main__":
    raise SystemExit(main())
