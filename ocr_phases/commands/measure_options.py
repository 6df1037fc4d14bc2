"""The options of every verb that measures."""

from __future__ import annotations

import argparse
import functools
from typing import Any

MEASURE_DEFAULTS: dict[str, Any] = {
    "model": "tiny",
    "preset": None,
    "prompt": "markdown",
    "max_new_tokens": 512,
    "repeats": 3,
    "warmup": 1,
    "device": "auto",
    "dtype": None,
    "seed": 0,
    "strategy": "eager",
    "vision": "eager",
    "eos_check_every": None,
    "ceilings": True,
}


class _Asked(argparse.Action):
    """Stores an option's value, and in ``asked`` that it was given: a default may be asked for, too."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.asked = [*namespace.asked, self.dest]


def measure_parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the options of `add_measure_options` say, as `run_inference` and loading name it."""
    return {name: getattr(arguments, name) for name in MEASURE_DEFAULTS}


def add_measure_options(command: argparse.ArgumentParser) -> None:
    """How to measure."""
    group = command.add_argument_group("measurement")
    option = functools.partial(group.add_argument, action=_Asked)
    option(
        "--model", help="tiny (built in), dummy (full size, random weights), a checkpoint folder or a hub id"
    )
    option("--preset", help="tiny, small, base, large, gundam or auto (default: the model's own)")
    option("--prompt", help="markdown, ocr, free, ... or your own text")
    option("--max-new-tokens", type=int, metavar="N", help="default: %(default)s")
    option("--repeats", type=int, metavar="N", help="default: %(default)s")
    option("--warmup", type=int, metavar="N", help="default: %(default)s")
    option("--device", help="auto, cpu, cuda or cuda:N")
    option("--dtype", help="float32, bfloat16 or float16 (default: the device's own)")
    option("--seed", type=int, help="default: %(default)s")
    option("--strategy", help="how a decode step runs: eager, cuda_graph or compiled")
    option("--vision", help="how SAM and CLIP run: eager or compiled")
    option(
        "--eos-check-every",
        type=int,
        metavar="K",
        help="look for the end token every K steps (default: 1 in eager, else 16)",
    )
    group.add_argument(
        "--no-ceilings",
        dest="ceilings",
        action="store_false",
        help="do not measure what the device can do at its best",
    )
    command.set_defaults(**MEASURE_DEFAULTS, asked=[])


def add_kernel_options(command: argparse.ArgumentParser) -> None:
    """``--kernels`` and ``--trace``."""
    group = command.add_argument_group("kernel view (CUDA)")
    group.add_argument(
        "--kernels",
        action="store_true",
        help="one more run under torch.profiler: each stage's kernels, idle gaps, host waits",
    )
    group.add_argument(
        "--trace",
        action="store_true",
        help="the same, with its Chrome trace beside the record (trace.json.gz)",
    )
