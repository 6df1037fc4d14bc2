"""The built-in model's training code at toy size: what it computes, what it learns, where it goes on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from training import CODE

# isort: split
import evaluate
import forward
import metrics
import model as networks
import pages
import tokenizer as tokens
import train

import synth
from ocr_phases import OCRSession
from ocr_phases.families import PRESETS, facts_of
from ocr_phases.inputs.packing import pack
from ocr_phases.inputs.views import make_views
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
            reader = SimpleNamespace(
                encode=codec.encode, image_token_id=tokens.IMAGE, bos_id=tokens.BOS, pad_id=tokens.PAD
            )
            packed = pack([views[row]], [facts_of(None).text_of(prompt)], reader)
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
