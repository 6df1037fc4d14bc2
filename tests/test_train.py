"""The built-in model's training code at toy size: what it computes, what it learns, where it goes on."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from training import CODE

# isort: split
import average
import evaluate
import forward
import loader
import metrics
import model as networks
import pages
import state
import tokenizer as tokens
import train
from heads import Heads
from schedule import Schedule

import synth
from ocr_phases import OCRSession
from ocr_phases.families import PRESETS, resolve_prompt
from ocr_phases.inputs.packing import make_views, pack
from ocr_phases.models.load import ROUND_TRIP, load_tokenizer
from ocr_phases.settings import ModelSettings

SHAPE = {
    "sam_width": 32,
    "sam_layers": 2,
    "sam_heads": 2,
    "sam_global": [1],
    "neck": 16,
    "downsample": [24, 32],
    "encoder_layers": 1,
    "encoder_heads": 2,
    "text_width": 32,
    "text_layers": 2,
    "text_heads": 2,
    "text_mlp": 64,
    "experts": 4,
    "experts_per_token": 2,
    "shared_experts": 1,
    "expert_mlp": 32,
}
VOCABULARY = 1400
#: What each of two ranks runs: one step by hand to see the gradients, then a whole run.
RANKS = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, {code!r})
import pages, torch, torch.distributed as dist, train

folder, tokenizer = map(Path, sys.argv[1:])
config = json.loads((folder / "config.json").read_text())
run = train.Training(
    config, folder / "out", sources=pages.load_sources(None), tokenizer=tokenizer, device="cpu", workers=0,
    compiled=False
)
parameters = list(run.modules["model"].parameters())[:6]
ones = torch.ones(()) * (run.ranks.rank + 1)
for p in parameters:
    p.grad = torch.full_like(p, float(ones))
run.ranks.average(parameters)
seen = dict(mean=[p.grad.clone() for p in parameters], expected=[torch.full_like(p, 1.5) for p in parameters])
for p in parameters:
    p.grad = None
seen["own"] = float(next(run.batches)[1].pixels.float().mean())
run.run(time.perf_counter() + 100)
seen["weights"] = run.modules["model"].state_dict()
torch.save(seen, folder / f"rank{{run.ranks.rank}}.pt")
run.ranks.leave()
"""
STAGE = {
    "until": 1.0,
    "type_px": [26, 36],
    "characters": 40,
    "plain": [0.35, 0.85],
    "reshape": 0.5,
    "colour": 0.5,
    "degrade": 0.5,
    "maps": 1.0,
}


def drawn_page() -> synth.SynthPage:
    """A random page of several blocks in matplotlib's own type."""
    fonts = synth.matplotlib_families()
    settings = synth.PageSettings(width=512, height=512, type_px=(14, 20), max_characters=400, fonts=fonts)
    return synth.random_page(random.Random(4), settings)


def toy_config(**changes: Any) -> dict[str, Any]:
    config = json.loads((CODE / "config.json").read_text())
    config |= {
        "model": SHAPE,
        "vocabulary": VOCABULARY,
        "budget": {"steps": 6},
        "log_every": 2,
        "longest": 512,
    }
    config["buckets"] = {
        "tiny": {"pages": 1, "fresh": 2, "pool": 0, "type_scale": 1.0, "text_scale": 1.0},
    }
    config["stages"] = [{**STAGE, "mix": {"tiny": 1}}]
    return config | changes


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    texts = tokens.page_texts(None, 40, 0)
    tokens.save_tokenizer(tokens.build_tokenizer(texts, VOCABULARY), folder)
    return folder


@pytest.fixture(scope="module")
def codec(vocabulary: Path) -> tokens.Codec:
    return tokens.Codec.load(vocabulary)


def training(
    config: dict[str, Any], out: Path, vocabulary: Path, *, decoder_only: bool = False
) -> train.Training:
    out.mkdir(exist_ok=True)
    return train.Training(
        config,
        out,
        sources=pages.load_sources(None),
        tokenizer=vocabulary,
        device="cpu",
        workers=0,
        compiled=False,
        decoder_only=decoder_only,
    )


@pytest.mark.parametrize(
    "text",
    [
        *(ROUND_TRIP, "漢字 🙂 \u2063 7", "  two  spaces\t\n\n\nlines ", "[[1, 22, 333, 4]] title"),
        *("<table><tr><td>a b</td><td>1.5</td></tr></table>", "# Title\n\n<|ref|>text<|/ref|>"),
    ],
)
def test_any_text_survives_the_tokenizer(codec: tokens.Codec, vocabulary: Path, text: str) -> None:
    assert codec.decode(codec.encode(text)) == text
    loaded = load_tokenizer(vocabulary)
    assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text


def test_the_tokenizer_is_built_the_same_again(vocabulary: Path, tmp_path: Path) -> None:
    tokens.save_tokenizer(tokens.build_tokenizer(tokens.page_texts(None, 40, 0), VOCABULARY), tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (vocabulary / "tokenizer.json").read_bytes()


def test_tokens_are_what_the_page_is_made_of(codec: tokens.Codec) -> None:
    assert [codec.encode(text) for text in tokens.SPECIAL] == [[i] for i in range(len(tokens.SPECIAL))]
    assert all(len(codec.encode(tag)) == 1 for tag in tokens.TABLE)
    typed = codec.encode("title 999 20")
    assert [codec.kinds()[i] for i in typed] == [0] * len(typed)
    assert [codec.decode([i]) for i in codec.encode("2047")] == ["2", "0", "4", "7"]
    assert max(len(codec.decode([i])) for i in typed) <= 4


@pytest.mark.parametrize("prompt", ["markdown", "free", "ocr"])
def test_a_target_says_what_stands_on_the_page(codec: tokens.Codec, prompt: str) -> None:
    page = drawn_page()
    ids = codec.target(page, prompt)
    assert ids[-1] == tokens.EOS
    lines = "\n".join(
        f"<|ref|>{line.text}<|/ref|><|det|>[[{', '.join(map(str, line.box))}]]<|/det|>" for line in page.lines
    )
    assert codec.decode(ids) == {"markdown": page.markdown, "free": page.free, "ocr": lines}[prompt]
    coordinates = [i for i in ids if codec.kinds()[i] == 1]
    boxes = {"markdown": page.regions, "ocr": page.lines, "free": ()}[prompt]
    assert [codec.decode([i]) for i in coordinates] == [str(v) for region in boxes for v in region.box]


@pytest.mark.parametrize("size", [(512, 512), (900, 640), (1300, 700)])
@pytest.mark.parametrize("preset", ["tiny", "gundam"])
def test_the_forward_pass_is_the_library_s(codec: tokens.Codec, preset: str, size: tuple[int, int]) -> None:
    """Same tokens, same views, same logits: packed by the package and run by the library's class."""
    network = networks.build_model(SHAPE, VOCABULARY, tokens.IMAGE, 0).eval()
    rng = random.Random(0)
    kwargs = {"type_px": (24, 30), "characters": 40, "families": pages.load_families(None)}
    views, texts, prompts = [], [], ["markdown", "free"]
    for prompt in prompts:
        page = pages.draw(rng, size=size, **kwargs)
        views.append(make_views(page.image, PRESETS[preset]))
        texts.append(pages.prompt_ids(codec, prompt) + codec.target(page, prompt))
    lengths = [len(pages.prompt_ids(codec, prompt)) for prompt in prompts]
    longest = max(map(len, texts))
    text = torch.tensor([ids + [tokens.PAD] * (longest - len(ids)) for ids in texts])
    at = torch.arange(longest)[None]
    wanted = (at >= torch.tensor(lengths)[:, None]) & (at < torch.tensor(list(map(len, texts)))[:, None])
    crops = torch.from_numpy(np.concatenate([view.crops for view in views]))
    batch = forward.Batch(
        torch.from_numpy(np.stack([view.global_view for view in views])),
        crops if len(crops) else None,
        views[0].grid,
        text,
        wanted,
    )
    kinds = torch.tensor(codec.kinds())
    with torch.no_grad():
        counts = forward.Forward(network, kinds, torch.float32)(batch).counts
        expected = torch.zeros(3, 3)
        for row, prompt in enumerate(prompts):
            packed = pack(
                [[views[row]]],
                [resolve_prompt(prompt)],
                codec.encode,
                image_token_id=tokens.IMAGE,
                bos_token_id=tokens.BOS,
                pad_token_id=tokens.PAD,
            )
            start = packed.prefill_len
            ids = torch.tensor(texts[row])
            target = ids[lengths[row] :]
            inputs = packed.to("cpu", torch.float32)
            assert packed.input_ids[0, -lengths[row] :].tolist() == texts[row][: lengths[row]]
            logits = network(
                input_ids=torch.cat([inputs.input_ids, target[None]], dim=1),
                attention_mask=torch.ones(1, start + len(target), dtype=torch.long),
                pixel_values=inputs.pixel_values,
                pixel_values_local=inputs.pixel_values_local,
                num_local_patches=inputs.num_local_patches,
                patches_grid=inputs.patches_grid,
            ).logits[0, start - 1 : -1]
            losses = torch.nn.functional.cross_entropy(logits, target, reduction="none")
            for kind in range(3):
                of_kind = kinds[target] == kind
                expected[0, kind] += losses[of_kind].sum()
                expected[1, kind] += (logits.argmax(-1) == target)[of_kind].sum()
                expected[2, kind] += of_kind.sum()
    torch.testing.assert_close(counts, expected, rtol=1e-5, atol=1e-4)


def test_a_coordinate_aside_counts_in_part(codec: tokens.Codec) -> None:
    """Cross entropy against a bell around the truth, cut off at the ends of the scale; text as ever."""
    kinds = torch.tensor(codec.kinds())
    coordinates = (kinds == forward.COORDINATE).nonzero().flatten()
    truth = torch.tensor([[int(coordinates[500]), int(coordinates[0]), int((kinds == 0).nonzero()[7])]])
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(1, 3, 8, generator=generator)
    head = torch.randn(len(kinds), 8, generator=generator)
    wanted = torch.ones_like(truth, dtype=torch.bool)
    counts = forward.token_losses(h, head, truth, wanted, kinds, forward.nearness(1.5))
    logs = (h[0] @ head.T).log_softmax(-1)
    bell = torch.exp(-0.5 * (torch.arange(-4, 5) / 1.5) ** 2)
    bell /= bell.sum()
    middle = -(bell * logs[0, coordinates[496:505]]).sum()
    # Below 0 there is nothing: what would lie there counts as the truth.
    edge = -(bell[4:] * logs[1, coordinates[:5]]).sum() - bell[:4].sum() * logs[1, coordinates[0]]
    assert counts[0, 1].item() == pytest.approx((middle + edge).item(), rel=1e-5)
    assert counts[0, 0].item() == pytest.approx(-logs[2, truth[0, 2]].item(), rel=1e-5)
    assert counts[2].tolist() == [1, 2, 0]


@pytest.mark.parametrize("grid", [(3, 2), (1, 4)])
def test_the_place_head_is_asked_for_each_token_s_own_crop(
    codec: tokens.Codec, monkeypatch: pytest.MonkeyPatch, grid: tuple[int, int]
) -> None:
    """Hidden states that say column and row of their crop, and a head that only reads them out."""
    columns, rows = grid
    network = networks.build_model(SHAPE, VOCABULARY, tokens.IMAGE, 0)
    heads = Heads(SHAPE["sam_width"], SHAPE["text_width"], 8)
    torch.nn.init.zeros_(heads.place.bias)
    with torch.no_grad():
        heads.place.weight.copy_(20 * torch.eye(18, SHAPE["text_width"]))
    run = forward.Forward(network, torch.tensor(codec.kinds()), torch.float32, heads)
    said = torch.zeros(rows, columns, 100, SHAPE["text_width"])
    for row in range(rows):
        for column in range(columns):
            said[row, column, :, column] = said[row, column, :, 9 + row] = 1
    seen = iter([torch.zeros(2, 256, SHAPE["text_width"]), said.flatten(0, 1).repeat(2, 1, 1)])
    monkeypatch.setattr(run, "_vision", lambda *_: (None, next(seen)))
    monkeypatch.setattr(run, "_decode", lambda image, text: (image[:, : text.shape[1]], image, 0))
    crops = torch.zeros(2 * rows * columns, 640, 640, 3)
    text = torch.full((2, 5), tokens.PAD)
    batch = forward.Batch(torch.zeros(2, 1024, 1024, 3), crops, grid, text, text == tokens.PAD)
    assert run(batch).places < 1e-3


def test_a_misread_page_is_given_other_tokens_of_its_own_text(codec: tokens.Codec) -> None:
    page = drawn_page()
    prompt, target = pages.prompt_ids(codec, "markdown"), codec.target(page, "markdown")
    text = torch.tensor([prompt + target] * 64)
    wanted = (torch.arange(text.shape[1]) >= len(prompt)).expand_as(text)
    kinds = torch.tensor(codec.kinds())
    given = train.misread(text, wanted, kinds, 0.3)
    readable = wanted & (kinds[text] == forward.TEXT)
    assert torch.equal(given[~readable], text[~readable])
    assert set(given[readable].tolist()) <= set(text[0][readable[0]].tolist())
    shares = (given != text).sum(1) / readable.sum(1)
    assert 0.05 < shares.mean() < 0.15
    assert shares.min() < 0.03 < 0.15 < shares.max()
    assert torch.equal(train.misread(text, wanted, kinds, 0.0), text)


@pytest.mark.parametrize("name", ["tiny", "large", "gundam 1x2", "gundam 3x2"])
def test_examples_are_cut_by_the_package_and_fit_their_bucket(codec: tokens.Codec, name: str) -> None:
    config = json.loads((CODE / "config.json").read_text())
    bucket = pages.make_buckets(config["buckets"])[name]
    arguments = bucket, STAGE, {"markdown": 1.0}, pages.load_sources(None), codec, 512
    example = pages.make_example("seed", *arguments)
    again = pages.make_example("seed", *arguments)
    assert example.text == again.text
    assert np.array_equal(example.views.global_view, again.views.global_view)
    assert example.views.grid == bucket.grid
    assert len(example.views.crops) == bucket.crops
    assert example.characters.any()


def test_the_character_map_names_letters_where_the_global_view_shows_them() -> None:
    def mapped(name: str, size: tuple[int, int], middles: list[tuple[float, float]]) -> dict[Any, str]:
        letters = (synth.Letters("A b", 12, np.array(middles)),)
        page = synth.SynthPage(Image.new("RGB", size), (), letters=letters)
        cells = pages.character_map(page, PRESETS[name])
        assert cells.shape == (PRESETS[name].base_size // 16, PRESETS[name].base_size // 8)
        return {(row, column): synth.CHARACTERS[cells[row, column] - 1] for row, column in np.argwhere(cells)}

    spots = [(20.0, 24.0), (100.0, 24.0), (500.0, 510.0)]
    assert mapped("tiny", (512, 512), spots) == {(1, 2): "A", (31, 62): "b"}
    assert mapped("tiny", (1024, 512), spots) == {(1, 1): "A", (31, 31): "b"}  # squeezed
    # Letterboxed: twice as large, 320 pixels down.
    assert mapped("large", (640, 320), [(10.0, 10.0), (0.0, 0.0), (639.0, 319.0)]) == {
        (21, 2): "A",
        (59, 159): "b",
    }


@pytest.mark.parametrize(
    ("name", "size", "shown"),
    [("tiny", (1024, 512), 14.1), ("large", (640, 320), 40), ("gundam 2x1", (640, 320), 40)],
)
def test_type_is_as_large_as_the_views_show_it(name: str, size: tuple[int, int], shown: float) -> None:
    bucket = pages.make_buckets(json.loads((CODE / "config.json").read_text())["buckets"])[name]
    letters = (synth.Letters("title", 60, np.zeros((5, 2))), synth.Letters("its text", 20, np.zeros((8, 2))))
    page = synth.SynthPage(Image.new("RGB", size), (), letters=letters)
    assert pages.type_shown(page, bucket) == pytest.approx(shown, abs=0.1)
    assert pages.type_shown(synth.SynthPage(page.image, ()), bucket) == 0


def test_every_preset_and_grid_has_a_bucket() -> None:
    config = json.loads((CODE / "config.json").read_text())
    buckets = pages.make_buckets(config["buckets"])
    assert {bucket.preset.name for bucket in buckets.values()} == set(PRESETS)
    assert len(buckets) == 4 + len(pages.GRIDS) + 3 + 8 == 4 + 22 + 11
    trained = {name for stage in config["stages"] for name in stage["mix"]}
    assert trained == set(PRESETS)


def test_the_full_network_fits_into_twenty_megabytes() -> None:
    config = json.loads((CODE / "config.json").read_text())
    with torch.device("meta"):
        from transformers import UnlimitedOcrForConditionalGeneration

        shape = networks.make_config(config["model"], config["vocabulary"], tokens.IMAGE)
        network = UnlimitedOcrForConditionalGeneration(shape)
    assert 2 * sum(parameter.numel() for parameter in network.parameters()) < 19.9e6


def test_the_loss_falls_on_one_batch(vocabulary: Path, tmp_path: Path) -> None:
    config = toy_config(jitter={"share": 0.0, "gain": 0.0, "tint": 0.0, "noise": 0.0})
    config["optimiser"] |= {"warm_steps": 1, "muon_lr": 0.01, "adam_lr": 0.01}
    one = training(config | {"budget": {"steps": 10**6}}, tmp_path, vocabulary)
    same = next(one.batches)
    one.batches = type("Same", (), {"__next__": lambda _: same, "waited_s": 0.0})()
    losses = [one.step().item() for _ in range(25)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_run_goes_on_exactly_where_it_stopped(vocabulary: Path, tmp_path: Path) -> None:
    whole = training(toy_config(), tmp_path / "whole", vocabulary)
    whole.run(float("inf"))
    first = training(toy_config(), tmp_path / "parts", vocabulary)
    first.run(float("inf"), max_steps=2)
    second = training(toy_config(), tmp_path / "parts", vocabulary)
    assert second.schedule.progress.step == 2
    second.run(float("inf"))
    assert second.schedule.ended
    for name, value in whole.modules["model"].state_dict().items():
        assert torch.equal(value, second.modules["model"].state_dict()[name]), name
    lines = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    ]
    assert lines[0] == lines[1]
    carried = state.read_carry(tmp_path / "parts")
    assert carried is not None
    assert carried["progress"]["step"] == 6


def test_the_decoder_can_learn_alone(vocabulary: Path, tmp_path: Path) -> None:
    run = training(toy_config(), tmp_path, vocabulary, decoder_only=True)
    before = {name: value.clone() for name, value in run.modules["model"].state_dict().items()}
    run.run(float("inf"), max_steps=2)
    after = run.modules["model"].state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert {name for name in after if "language_model.layers" in name and "q_proj" in name} <= changed
    assert not [name for name in changed if "vision" in name or "projector" in name]


def test_a_broken_copy_does_not_matter_beside_the_state(vocabulary: Path, tmp_path: Path) -> None:
    training(toy_config(), tmp_path, vocabulary).run(float("inf"), max_steps=1)
    part = tmp_path / "carry.part0"
    part.write_bytes(part.read_bytes()[:200])
    assert training(toy_config(), tmp_path, vocabulary).schedule.progress.step == 1


def test_a_lost_machine_costs_only_the_optimisers(vocabulary: Path, tmp_path: Path) -> None:
    config = toy_config()
    first = training(config, tmp_path, vocabulary)
    first.run(float("inf"), max_steps=1)
    (tmp_path / "state.pt").unlink()
    second = training(config, tmp_path, vocabulary)
    assert (second.schedule.progress.step, second.schedule.progress.warm_from) == (1, 1)
    weights = first.modules["model"].lm_head.weight
    assert torch.equal(second.modules["model"].lm_head.weight, weights.bfloat16().float())


def test_a_finished_run_can_be_extended_or_started_from(vocabulary: Path, tmp_path: Path) -> None:
    run = training(toy_config(budget={"steps": 1}), tmp_path / "run", vocabulary)
    run.run(float("inf"))
    assert run.schedule.ended
    run.schedule.extend(minutes=1.0, peak=0.5)
    assert 0 < run.schedule.progress.fraction < 1
    full = run.config["optimiser"]["warm_steps"] * run.schedule.rate()  # the first step of its warming up
    assert full <= 0.5
    run.run(float("inf"), max_steps=1)
    assert run.schedule.progress.step == 2
    resumed = training(toy_config(budget={"steps": 1}), tmp_path / "run", vocabulary)
    assert resumed.schedule.progress == run.schedule.progress
    resumed.schedule.advance(30.0)  # half of the minute
    assert 0.4 < resumed.schedule.progress.fraction - run.schedule.progress.fraction < 0.6

    checkpoint = run.export()
    fresh = training(toy_config(), tmp_path / "fresh", vocabulary)
    state.start_from(fresh.modules["model"], checkpoint)
    fresh.schedule.extend(minutes=2.0, peak=0.5)
    assert fresh.schedule.progress.fraction == 0.5
    weights = run.modules["model"].lm_head.weight
    assert torch.equal(fresh.modules["model"].lm_head.weight, weights.bfloat16().float())


def test_other_weights_need_their_own_tokenizer(
    vocabulary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = ["--weights", str(CODE.parent), "--extend", "1", "--out", str(tmp_path / "out")]
    for other in ([], ["--tokenizer", str(vocabulary)]):
        with pytest.raises(SystemExit):
            train.main([*weights, *other])
        assert f"use --tokenizer {CODE.parent}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train.main(["--weights", str(tmp_path), "--extend", "1", "--out", str(tmp_path / "out")])
    assert "holds no exported checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_workers_draw_what_one_process_draws(codec: tokens.Codec) -> None:
    bucket = pages.make_buckets(toy_config()["buckets"])["tiny"]
    sources = pages.load_sources(None)
    recipe = loader.Recipe(3, {"tiny": bucket}, {"markdown": 1.0}, sources, codec, 512)

    def drawn(workers: int) -> list[Any]:
        source = loader.Loader(
            recipe, lambda number: (bucket, STAGE, 1 + number % 2), pool=lambda _: 3, workers=workers, ahead=4
        )
        try:
            batches = source.host_batches(0, 0, pin=False, maps=lambda: True)
            return [next(batches)[1] for _ in range(6)]
        finally:
            source.close()

    for one, two in zip(drawn(0), drawn(2), strict=True):
        for name in ("pixels", "text", "wanted", "characters"):
            assert torch.equal(getattr(one, name), getattr(two, name)), name


def test_a_batch_has_a_fresh_chunk_at_least() -> None:
    config = toy_config()
    config["buckets"]["tiny"]["fresh"] = 0.25
    plan = Schedule(config, pages.make_buckets(config["buckets"])).plan
    assert {plan(number)[2] for number in range(40)} == {1}


def test_a_favoured_grid_comes_more_often() -> None:
    config = toy_config(favoured={"2x3": 4})
    config["buckets"] = {"gundam": {"views": 18, "fresh": 2, "pool": 0, "type_scale": 1, "text_scale": 1}}
    config["stages"] = [{**STAGE, "mix": {"gundam": 1}}]
    plan = Schedule(config, pages.make_buckets(config["buckets"])).plan
    grids = [plan(number)[0].grid for number in range(400)]
    assert grids.count((2, 3)) > 2 * grids.count((3, 2)) > 0


def test_the_checkpoint_loads_and_is_evaluated(vocabulary: Path, tmp_path: Path) -> None:
    run = training(toy_config(budget={"steps": 1}), tmp_path, vocabulary)
    run.run(float("inf"))
    folder = run.export()
    session = OCRSession.from_local(folder, device="cpu")
    measured = session.run_inference(drawn_page().image, preset="tiny", max_new_tokens=3)
    assert len(measured.token_table) <= 3
    codec = tokens.Codec.load(folder)
    tasks = evaluate.draw_tasks(toy_config(), "tiny", "effects", 2)
    cases = [evaluate.draw_case(codec, pages.load_sources(None), task) for task in tasks]
    checkpoint = evaluate.load_checkpoint(ModelSettings(model=str(folder), device="cpu"))
    evaluate.see_in_parts(checkpoint.model, 1)
    read = evaluate.read_cases(checkpoint, codec, cases, "cpu", 2, limit=5)
    figures = metrics.summary([result for result, _ in read])
    assert figures["pages"] == 2
    assert 0 < figures["tokens"] <= 5


def test_the_evaluation_writes_its_record(tmp_path: Path) -> None:
    arguments = {
        "--checkpoint": CODE.parent,
        "--samples": tmp_path / "none",
        "--pages": 2,
        "--presets": "tiny",
        "--conditions": "clean",
        "--workers": 1,
        "--device": "cpu",
        "--out": tmp_path / "eval.json",
    }
    evaluate.main([str(part) for pair in arguments.items() for part in pair])
    record = json.loads((tmp_path / "eval.json").read_text())
    assert (record["device"], record["dtype"]) == ("cpu", "float32")
    (row,) = record["rows"]
    assert (row["preset"], row["condition"], row["pages"]) == ("tiny", "clean", 2)
    assert row["cer"] < 0.2
    for groups in (row["by_letters"], row["by_type_px"]):
        assert sum(group["pages"] for group in groups.values()) == 2
    assert len(row["worst"]) == 2


def test_small_type_and_strips_have_rows_of_their_own() -> None:
    config = json.loads((CODE / "config.json").read_text())

    def drawn(preset: str, condition: str, count: int) -> list[evaluate.Task]:
        return evaluate.draw_tasks(config, preset, condition, count)

    usual, strips = (
        {task.bucket.grid for task in drawn("gundam", condition, 44)} for condition in ("clean", "strips")
    )
    assert usual == {(1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (3, 3)}
    assert usual | strips == set(pages.GRIDS)
    assert not usual & strips
    codec, sources = tokens.Codec.load(CODE.parent), pages.load_sources(None)
    for preset in ("tiny", "base"):
        for condition, low, high in (("clean", 19, 28 * 1.7 + 1), ("small type", 14, 21)):
            shown = [evaluate.draw_case(codec, sources, task).type_px for task in drawn(preset, condition, 6)]
            assert all(low <= size <= high for size in shown), (preset, condition, shown)


def test_the_mean_of_two_checkpoints(vocabulary: Path, tmp_path: Path) -> None:
    run = training(toy_config(), tmp_path / "run", vocabulary)
    head = run.modules["model"].lm_head.weight
    for name, value in (("one", 1.0), ("two", 2.0)):
        torch.nn.init.constant_(head, value)
        state.export(run.modules["model"], vocabulary, tmp_path / name)
    average.average([tmp_path / "one", tmp_path / "two"], tmp_path / "mean")
    mean = OCRSession.from_local(tmp_path / "mean", device="cpu").model
    assert torch.equal(mean.lm_head.weight.float(), torch.full_like(head, 1.5))
    inside = mean.model.view_separator
    assert torch.equal(inside.float(), run.modules["model"].model.view_separator.bfloat16().float())


def test_a_perfect_answer_scores_perfectly() -> None:
    truth = drawn_page().markdown
    perfect = metrics.summary([metrics.score(truth, truth, ended=True, tokens=9)])
    assert perfect["cer"] == perfect["out_of_order"] == 0
    assert all(
        perfect[name] == 1 for name in ("iou", "precision", "recall", "labels", "well_formed", "ended")
    )


def test_errors_are_counted() -> None:
    def block(label: str, box: str, text: str) -> str:
        return f"<|ref|>{label}<|/ref|><|det|>[[{box}]]<|/det|>\n{text}"

    one, two = block("text", "0, 0, 100, 100", "abcd"), block("text", "0, 200, 100, 300", "efgh")
    swapped = metrics.score(f"{two}\n\n{one}", f"{one}\n\n{two}", ended=True, tokens=1)
    assert (swapped.out_of_order, swapped.found, swapped.well_formed) == (1, 2, True)
    half = metrics.score(one.replace("abcd", "abxd"), f"{one}\n\n{two}", ended=False, tokens=1)
    assert (half.edits, half.letters, half.found, half.truths) == (6, 9, 1, 2)
    assert metrics.by_type([half, swapped, half], [17.4, 19.6, 23.0]) == {
        "0": {"pages": 1, "cer": round(half.edits / half.letters, 5)},
        "20": {"pages": 2, "cer": round((half.edits + swapped.edits) / (half.letters + swapped.letters), 5)},
    }
    assert metrics.by_length([half, swapped], step=8) == {
        "16": {"pages": 2, "cer": round((6 + swapped.edits) / 18, 5)},
    }
    broken = block("table", "0, 0, 9, 9", "<table><tr><td>a</tr></table>")
    assert not metrics.well_formed(broken)
    assert not metrics.well_formed(one[:-20])
    assert not metrics.well_formed("abc")


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("", "", 0), ("", "ab", 2), ("kitten", "sitting", 3), ("a" * 200, "a" * 190 + "b", 10), ("ab", "ba", 2)],
)
def test_edit_distance(one: str, other: str, distance: int) -> None:
    assert metrics.edits(one, other) == metrics.edits(other, one) == distance


def test_two_ranks_learn_one_network(vocabulary: Path, tmp_path: Path) -> None:
    """Two processes end with the weights that one gets from the mean of their gradients."""
    (tmp_path / "config.json").write_text(json.dumps(toy_config(budget={"steps": 2}, log_every=1)))
    (tmp_path / "out").mkdir()
    script = tmp_path / "both.py"
    script.write_text(RANKS.format(code=str(CODE)))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--standalone",
        str(script),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path), str(vocabulary)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    one, other = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert one["own"] != other["own"]
    for mean, theirs, mine in zip(one["mean"], other["mean"], one["expected"], strict=True):
        torch.testing.assert_close(mean, theirs, rtol=0, atol=0)
        torch.testing.assert_close(mean, mine)
    for name, weight in one["weights"].items():
        torch.testing.assert_close(weight, other["weights"][name], rtol=0, atol=0)
    assert len((tmp_path / "out" / "log.jsonl").read_text().splitlines()) == 2
