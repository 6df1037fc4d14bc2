"""What outlives a call: the exact state, a small copy that fits through a narrow door, and the checkpoint.

``state.pt`` goes on where a run stopped; the pool of used pages fills up anew. ``carry.part*`` hold the
weights in bfloat16 and how far the run had come, in files below 16 MiB; a run that starts from them only has
to warm its optimisers up again.
"""

from __future__ import annotations

import copy
import io
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from schedule import Progress
from torch import nn

_PART = 15 << 20


def save_state(
    folder: Path,
    modules: dict[str, nn.Module],
    optimisers: dict[str, torch.optim.Optimizer],
    progress: Progress,
) -> None:
    """Write state.pt; a crash while writing leaves the one before."""
    parts = {**modules, **optimisers}
    content = {name: part.state_dict() for name, part in parts.items()} | {"progress": asdict(progress)}
    torch.save(content, folder / "state.new")
    (folder / "state.new").replace(folder / "state.pt")


def save_carry(folder: Path, modules: dict[str, nn.Module], progress: Progress) -> None:
    """Write carry.part0 and so on."""
    weights = {
        name: {key: value.to("cpu", torch.bfloat16) for key, value in module.state_dict().items()}
        for name, module in modules.items()
    }
    buffer = io.BytesIO()
    torch.save({**weights, "progress": asdict(progress)}, buffer)
    data = buffer.getvalue()
    for old in folder.glob("carry.part*"):
        old.unlink()
    for part, start in enumerate(range(0, len(data), _PART)):
        (folder / f"carry.part{part}").write_bytes(data[start : start + _PART])


def resume(
    folder: Path,
    modules: dict[str, nn.Module],
    optimisers: dict[str, torch.optim.Optimizer],
    device: str,
) -> Progress:
    """Go on from state.pt, else from carry.part*, else from the start."""
    state = folder / "state.pt"
    if state.is_file():
        content = torch.load(state, map_location=device, weights_only=True)
        for name, part in {**modules, **optimisers}.items():
            part.load_state_dict(content[name])
        return Progress(**content["progress"])
    carried = read_carry(folder)
    if carried is None:
        return Progress()
    for name, module in modules.items():
        module.load_state_dict({key: value.float() for key, value in carried[name].items()})
    progress = Progress(**carried["progress"])
    progress.warm_from = progress.step
    return progress


def has_run(folder: Path) -> bool:
    """Whether `resume` finds anything there."""
    return (folder / "state.pt").is_file() or any(folder.glob("carry.part*"))


def read_carry(folder: Path) -> dict[str, Any] | None:
    """The contents of carry.part*, None where there are none."""
    parts = sorted(folder.glob("carry.part*"))
    if not parts:
        return None
    data = b"".join(part.read_bytes() for part in parts)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def export(model: nn.Module, tokenizer: Path, folder: Path) -> None:
    """Write the checkpoint as transformers lays it out, in bfloat16, with the tokenizer beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to("cpu", torch.bfloat16).eval().save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)


def start_from(model: nn.Module, checkpoint: Path) -> None:
    """Take the weights of an exported checkpoint; optimisers and progress start anew."""
    loaded = type(model).from_pretrained(checkpoint, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
