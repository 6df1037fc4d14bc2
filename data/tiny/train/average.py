"""Average checkpoints of one network, parameter by parameter.

    python data/tiny/train/average.py data/tiny RUN/checkpoint --out MEAN

A run that went on from a checkpoint ends near it, and their mean often reads better than either (Wortsman et
al., 2022, "Model soups").
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import state
import torch
from transformers import UnlimitedOcrForConditionalGeneration


@torch.no_grad()
def average(checkpoints: Sequence[Path], out: Path) -> None:
    """Write the mean of the checkpoints to ``out``, with the tokenizer of the first."""
    models = [UnlimitedOcrForConditionalGeneration.from_pretrained(folder) for folder in checkpoints]
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        parameters[0].copy_(torch.stack(parameters).float().mean(dim=0))
    state.export(models[0], checkpoints[0], out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Average some checkpoints."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    average(args.checkpoints, args.out)


if __name__ == "__main__":
    main()
