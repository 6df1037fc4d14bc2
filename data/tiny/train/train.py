"""Train the built-in model on pages drawn on the fly. Run it again and it goes on where it stopped.

    python data/tiny/train/train.py --config data/tiny/train/config.json --fonts DIR --out DIR --minutes 8

    torchrun --standalone --nproc-per-node 4 data/tiny/train/train.py ...    # on four GPUs of one machine

The output folder gets state.pt and carry.part* (see state.py), log.jsonl and, when the run's whole budget is
spent or with --export, checkpoint/.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import state
import torch
from forward import KINDS, TEXT, Forward, Losses
from heads import Heads
from loader import Direct, Loader, Recipe, Shipper
from model import build_model
from optim import make_optimisers
from pages import CHARACTERS, Bucket, Sources, load_sources, make_buckets
from ranks import Ranks
from schedule import Schedule
from tokenizer import IMAGE, Codec, build_tokenizer, page_texts, save_tokenizer
from torch import Tensor, nn

_LONGEST_STEP_S = 2.0  # what a step takes longer is compiling, which no learning rate should decay for
_SAVE_EVERY_S = 120
_MINUTES, _COMPILE_MINUTES = 8.0, 4.0
_SEEDS_APART = 1_000_000  # of one rank and the next


def step_loss(losses: Losses, settings: dict[str, float], maps_weight: float) -> Tensor:
    """The number to make small: mean over tokens, coordinates counting less, and the helpers' terms."""
    weights = losses.counts.new_tensor([1.0, settings["coordinates"], 1.0])
    loss = (losses.counts[0] * weights).sum() / (losses.counts[2] * weights).sum().clamp(min=1)
    loss = loss + settings["balance"] * losses.balance
    if losses.maps is not None:
        loss = loss + maps_weight * losses.maps.sum()
    return loss if losses.places is None else loss + settings["places"] * losses.places


def misread(text: Tensor, wanted: Tensor, kinds: Tensor, most: float) -> Tensor:
    """``text`` [B, L] as a reader gives it who errs: tokens of the target's text are others of the same page.

    A page's share of them is anything up to ``most``. Who learns from right texts alone loses its place after
    the first error of its own.
    """
    other = torch.randint(text.shape[1], text.shape, device=text.device)
    readable = wanted & (kinds[text] == TEXT)
    wrong = torch.rand(text.shape, device=text.device) < most * torch.rand(len(text), 1, device=text.device)
    return torch.where(wrong & readable & readable.gather(1, other), text.gather(1, other), text)


def draw_jitter(pages: int, settings: dict[str, float], device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gain, offset [pages, 1, 1, 3] and noise [pages, 1, 1, 1] for `forward.normalise`."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, device=device)

    touched = (uniform(pages, 1, 1, 1) < settings["share"]).float()
    gain = 1 - touched * settings["gain"] * uniform(pages, 1, 1, 1)
    tint = touched * settings["tint"] * (uniform(pages, 1, 1, 3) - 0.5)
    offset = 255 * (1 - gain) * uniform(pages, 1, 1, 1) + 255 * tint.clamp(max=0)
    noisy = (uniform(pages, 1, 1, 1) < settings["share"]).float()
    return gain * (1 + tint), offset, noisy * settings["noise"] * uniform(pages, 1, 1, 1)


class Meter:
    """Sums over the steps between two lines of the log; stays on the device until it is read."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.clear()

    def clear(self) -> None:
        """Start the next line."""
        self._counts: dict[str, Tensor] = {}
        self._helpers: dict[str, list[Tensor]] = {"maps": [], "places": []}
        self._sums = torch.zeros(3, device=self._device)
        self._steps, self._pages, self._start = 0, 0, time.perf_counter()

    def add(self, bucket: Bucket, pages: int, losses: Losses, loss: Tensor, norm: Tensor) -> None:
        """Count one step."""
        name = bucket.preset.name
        counts = losses.counts.detach()
        self._counts[name] = self._counts[name] + counts if name in self._counts else counts
        for helper, values in self._helpers.items():
            if (value := getattr(losses, helper)) is not None:
                values.append(value.detach().sum())
        self._sums += torch.stack([loss.detach(), norm, losses.balance.detach()])
        self._steps += 1
        self._pages += pages

    def line(self, schedule: Schedule, waited_s: float) -> dict[str, Any]:
        """One line of the log: means over the steps, and loss and accuracy of each token kind."""
        seconds = time.perf_counter() - self._start
        loss, norm, balance = (round(v, 4) for v in (self._sums / self._steps).tolist())
        helpers = {
            name: round(torch.stack(values).mean().item(), 4)
            for name, values in self._helpers.items()
            if values
        }
        progress = schedule.progress
        return {
            "step": progress.step,
            "seconds": round(progress.seconds, 1),
            "fraction": round(progress.fraction, 4),
            "stage": progress.stage,
            "rate": round(schedule.rate(), 4),
            "loss": loss,
            "gradient": norm,
            "balance": balance,
            **helpers,
            "pages_per_s": round(self._pages / seconds, 1),
            "steps_per_s": round(self._steps / seconds, 2),
            "waiting": round(waited_s / seconds, 3),
            **_by_kind(sum(self._counts.values())),
            "presets": {name: _by_kind(counts) for name, counts in sorted(self._counts.items())},
        }


def _by_kind(counts: Tensor) -> dict[str, Any]:
    losses, right, tokens = counts.tolist()
    return {
        kind: {"loss": round(losses[i] / tokens[i], 4), "accuracy": round(right[i] / tokens[i], 4)}
        for i, kind in enumerate(KINDS)
        if tokens[i]
    }


class Training:
    """One call's share of a run: everything loaded, ready to `run`."""

    def __init__(
        self,
        config: dict[str, Any],
        out: Path,
        *,
        sources: Sources,
        tokenizer: Path,
        device: str,
        workers: int,
        compiled: bool,
        decoder_only: bool = False,
    ) -> None:
        self.config, self.out, self.tokenizer, self.device = config, out, tokenizer, device
        self.ranks = Ranks()
        codec = Codec.load(tokenizer)
        buckets = make_buckets(config["buckets"])
        seed = config["seed"] + _SEEDS_APART * self.ranks.rank
        recipe = Recipe(seed, buckets, config["prompts"], sources, codec, config["longest"])
        self.schedule = Schedule(config, buckets)
        # Forked before CUDA starts, which would not survive it.
        self.loader = Loader(
            recipe, self.schedule.plan, pool=self.schedule.pool, workers=workers, ahead=config["ahead"]
        )
        self.ranks.join(device)
        torch.manual_seed(config["seed"])
        torch.set_float32_matmul_precision("high")
        model = build_model(config["model"], config["vocabulary"], IMAGE, config["seed"])
        model.model.vision_tower.requires_grad_(not decoder_only)
        model.model.multi_modal_projector.requires_grad_(not decoder_only)
        widths = config["model"]["sam_width"], config["model"]["text_width"]
        heads = Heads(*widths, len(CHARACTERS) + 1)
        self.modules: dict[str, nn.Module] = {"model": model.to(device), "heads": heads.to(device)}
        muon, adam = make_optimisers(self.modules, config["optimiser"], device, compiled)
        self.optimisers: dict[str, torch.optim.Optimizer] = {"muon": muon, "adam": adam}
        self.schedule.progress = state.resume(out, self.modules, self.optimisers, device)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        kinds = torch.tensor(codec.kinds(), device=device)
        self.forward = Forward(model, kinds, dtype, heads, compiled, config["loss"]["spread"])
        self.meter = Meter(device)
        batches = self.loader.host_batches(
            self.schedule.progress.step,
            self.schedule.progress.chunk,
            pin=device == "cuda",
            maps=lambda: self.schedule.stage["maps"] > 0,
        )
        self.batches = Shipper(batches, device) if device == "cuda" else Direct(batches, device)

    def step(self) -> Tensor:
        """One batch, one update; the loss."""
        config, progress = self.config, self.schedule.progress
        start = time.perf_counter()
        bucket, batch = next(self.batches)
        torch.manual_seed((config["seed"] + _SEEDS_APART * self.ranks.rank) * 1_000_003 + progress.step)
        pages = len(batch.text)
        given = misread(batch.text, batch.wanted, self.forward.kinds, config["misread"])
        losses = self.forward(batch, draw_jitter(pages, config["jitter"], self.device), given)
        loss = step_loss(losses, config["loss"], self.schedule.stage["maps"])
        loss.backward()
        parameters = [p for module in self.modules.values() for p in module.parameters() if p.requires_grad]
        self.ranks.average(parameters)
        norm = nn.utils.clip_grad_norm_(parameters, config["optimiser"]["clip"])
        rate = self.schedule.rate()
        for name, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = config["optimiser"][f"{name}_lr"] * rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        progress.chunk = self.loader.chunks
        self.schedule.advance(min(_LONGEST_STEP_S, time.perf_counter() - start))
        stage, progress.fraction = self.ranks.agree([progress.stage, progress.fraction])
        progress.stage = int(stage)
        self.meter.add(bucket, pages, losses, loss, norm)
        return loss.detach()

    def run(self, deadline: float, max_steps: int | None = None) -> None:
        """Train until the budget is spent, or this call's time or steps are; then save."""
        saved = time.perf_counter()
        steps, waited_s, every = 0, 0.0, self.config["log_every"]
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as log:
            while steps != max_steps and self._goes_on(deadline):
                self.step()
                steps += 1
                if steps % every:
                    continue
                line = self.meter.line(self.schedule, self.batches.waited_s - waited_s)
                waited_s = self.batches.waited_s
                self.ranks.align(self.modules.values())
                if self.ranks.first:
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    print(json.dumps(line), flush=True)
                if line["loss"] != line["loss"]:
                    raise RuntimeError(f"The loss is no number any more at step {line['step']}.")
                self.schedule.report(line.get("text", {}).get("accuracy", 0.0))
                self.meter.clear()
                if time.perf_counter() - saved > _SAVE_EVERY_S:
                    self.save()
                    saved = time.perf_counter()
        self.save()

    def _goes_on(self, deadline: float) -> bool:
        return bool(self.ranks.agree([not self.schedule.ended and time.perf_counter() < deadline])[0])

    def save(self) -> None:
        """Write the state and its small copy."""
        if not self.ranks.first:
            return
        state.save_state(self.out, self.modules, self.optimisers, self.schedule.progress)
        state.save_carry(self.out, self.modules, self.schedule.progress)

    def export(self) -> Path:
        """Write the checkpoint folder."""
        state.export(self.modules["model"], self.tokenizer, self.out / "checkpoint")
        return self.out / "checkpoint"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train for some minutes, from the start or from where the last call stopped."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.json"))
    parser.add_argument(
        "--fonts", type=Path, help="Debian's font files; without, matplotlib's families alone"
    )
    parser.add_argument(
        "--texts", type=Path, help="words and passages of texts.py; without, the generator's list"
    )
    parser.add_argument("--printed", type=Path, help="pages of browser.py; without, all are the generator's")
    parser.add_argument("--tokenizer", type=Path, help="a folder; without, OUT/tokenizer, built if missing")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--minutes",
        type=float,
        help="of this call, compiling counted in (default: 8, or as --extend and 4 more)",
    )
    parser.add_argument("--steps", type=int, help="of this call at most")
    parser.add_argument("--finish", action="store_true", help="fit the rest of the run into this call")
    parser.add_argument(
        "--extend", type=float, metavar="MINUTES", help="go on beyond the budget; once, not in later calls"
    )
    parser.add_argument(
        "--rate", type=float, default=0.5, help="of an extension, at its highest; 1 is the config's"
    )
    parser.add_argument(
        "--weights", type=Path, metavar="CHECKPOINT", help="weights of a new run; with --extend"
    )
    parser.add_argument("--decoder-only", action="store_true", help="keep the vision encoders as they are")
    parser.add_argument("--export", action="store_true", help="write the checkpoint though the run goes on")
    parser.add_argument("--device", default="cuda" if torch.cuda.device_count() else "cpu")
    parser.add_argument("--workers", type=int, default=14, help="drawing processes; 0 draws in this one")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args(arguments)
    if args.weights and not args.extend:
        parser.error("--weights needs --extend MINUTES: how long to go on from them")
    tokenizer = args.tokenizer or args.out / "tokenizer"
    vocabulary = tokenizer / "tokenizer.json"
    if args.weights:
        own = args.weights / vocabulary.name
        if not own.is_file():
            parser.error(f"{args.weights} holds no exported checkpoint: {own.name} is missing")
        if not vocabulary.is_file() or not filecmp.cmp(own, vocabulary, shallow=False):
            parser.error(
                f"the weights read another tokenizer: use --tokenizer {args.weights}, in later calls too"
            )
    if Ranks().count > 1 and not args.tokenizer:
        parser.error("several processes need --tokenizer FOLDER: tokenizer.py makes one")
    if args.weights and state.has_run(args.out):
        parser.error(f"{args.out} has a run already: leave --weights and --extend out to go on with it")
    start = time.perf_counter()
    config = json.loads(args.config.read_text(encoding="utf-8"))
    args.out.mkdir(parents=True, exist_ok=True)
    if not vocabulary.is_file():
        texts = page_texts(args.fonts, config["tokenizer_pages"], config["seed"])
        save_tokenizer(build_tokenizer(texts, config["vocabulary"]), tokenizer)
    compiled = args.device == "cuda" and not args.no_compile
    training = Training(
        config,
        args.out,
        sources=load_sources(args.fonts, args.texts, args.printed),
        tokenizer=tokenizer,
        device=args.device,
        workers=args.workers,
        compiled=compiled,
        decoder_only=args.decoder_only,
    )
    if args.weights:
        state.start_from(training.modules["model"], args.weights)
    if args.extend:
        training.schedule.extend(args.extend, args.rate)
    minutes = args.minutes or (args.extend + _COMPILE_MINUTES if args.extend else _MINUTES)
    deadline = start + 60 * minutes
    if args.finish:
        training.schedule.finish_by(deadline)
    if compiled:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every length of text
        torch._dynamo.config.suppress_errors = True  # what cannot be compiled runs as it is
    try:
        training.run(deadline, args.steps)
        if training.ranks.first and (args.export or training.schedule.ended):
            print(f"checkpoint: {training.export()}")
    finally:
        training.loader.close()
        training.ranks.leave()


if __name__ == "__main__":
    main()
