"""Which pages a batch has: every form in which they can be named."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from ocr_phases.batch.jobs import Page, find_pages, make_jobs
from ocr_phases.errors import OcrPhasesError
from ocr_phases.inputs.images import load_page

KNOWN = ("model", "preset", "max_new_tokens", "seed", "embed_page", "infer")
DOCUMENT = [f"doc.pdf#{number}" for number in (1, 2, 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pages a.png, sub/b.JPG, and a PDF of three; beside them what is no page."""
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    image = Image.new("RGB", (8, 8))
    for name in ("a.png", "sub/b.JPG", ".hidden/c.png", ".d.png"):
        image.save(tmp_path / name)
    image.save(tmp_path / "sub" / "doc.pdf", save_all=True, append_images=[image, image])
    (tmp_path / "notes.txt").write_text("no page")
    (tmp_path / "a.json").write_text("{}")
    return tmp_path


@pytest.fixture
def plain(folder: Path) -> Path:
    """The same without the PDF, whose pages a process counts."""
    (folder / "sub" / "doc.pdf").unlink()
    return folder


def names(*arguments: object) -> list[str]:
    return [page.name for page in find_pages([str(argument) for argument in arguments], KNOWN)]


def test_a_folder_gives_all_pages_below_it_in_order_and_counts_what_is_left_out(folder):
    left_out: Counter[str] = Counter()
    pages = list(find_pages([str(folder)], KNOWN, left_out=left_out))
    assert [page.name for page in pages] == ["a.png", "sub/b.JPG", *(f"sub/{page}" for page in DOCUMENT)]
    assert (pages[0].source, pages[-1].source) == (f"{folder}/a.png", f"{folder}/sub/doc.pdf#3")
    assert left_out == {".txt": 1, ".json": 1}
    assert names(folder / "s*") == ["sub/b.JPG", *(f"sub/{page}" for page in DOCUMENT)]


def test_files_globs_and_pages_of_a_pdf(folder):
    assert names(folder / "a.png", folder / "sub/doc.pdf#2") == ["a.png", "doc.pdf#2"]
    assert names(folder / "**" / "*.JPG") == ["sub/b.JPG"]
    assert names(folder / "sub" / "*.JPG") == ["b.JPG"]
    assert names(folder / "notes.txt") == ["notes.txt"]  # named, so taken: its measurement refuses it


def test_every_frame_of_a_tiff_is_a_page_and_every_format_is_found(plain):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for name in ("two.tif", "two.gif"):
        frames[0].save(plain / name, save_all=True, append_images=frames[1:])
    frames[0].save(plain / "one.tiff")
    (plain / "a.avif").write_bytes(b"")
    found = ["a.avif", "a.png", "one.tiff", "two.gif", "two.tif#1", "two.tif#2", "sub/b.JPG"]
    assert names(plain) == found
    pages = list(find_pages([f"{plain}/two.tif", f"{plain}/two.tif#2"], KNOWN))
    assert [page.name for page in pages] == ["two.tif#1", "two.tif#2", "two.tif#2"]
    jobs = list(make_jobs(pages, {"model": "tiny"}))
    assert len({job.id for job in jobs}) == 2
    assert all(job.sha256 for job in jobs)
    (plain / "bad.tif").write_bytes(b"II*\0")
    assert "not an image that can be read" in next(find_pages([f"{plain}/bad.tif"], KNOWN)).problem


def test_a_batch_takes_no_page_from_its_own_results(plain, monkeypatch):
    before = names(plain)
    picture = plain / "out" / "pages" / "3f" / "a-3f" / "result_with_boxes.png"
    picture.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(picture)
    monkeypatch.chdir(plain)
    for argument, expected in ((".", before), ("**/*.png", ["a.png"]), (str(plain), before)):
        assert [page.name for page in find_pages([argument], KNOWN, Path("out/pages"))] == expected
    for argument in ("out", "out/pages/3f", "out/**/*.png"):
        with refused():
            list(find_pages([argument], KNOWN, Path("out/pages")))
    assert len(list(find_pages([str(picture)], KNOWN, Path("out/pages")))) == 1  # named, so taken


def test_a_folder_that_cannot_be_read_is_a_page_that_fails(folder, monkeypatch):
    def closed(read: Callable[[object], object]) -> Callable[[object], object]:
        def reading(path: object) -> object:
            if str(path).endswith("sub"):
                raise PermissionError(13, "Permission denied", str(path))
            return read(path)

        return reading

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, closed(getattr(os, name)))
    for argument in (folder, folder / "*"):
        found = {page.name: page.source for page in find_pages([str(argument)], KNOWN)}
        assert found == {"a.png": str(folder / "a.png"), "sub/": f"{folder}/sub/"}
    with refused():
        load_page(found["sub/"])
    with refused():  # it was named
        names(folder / "sub")


def test_links_to_folders_are_followed_under_their_own_names_and_never_in_a_circle(plain, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "deep").mkdir()
    for page in ("x.png", "deep/y.png"):
        (elsewhere / page).write_bytes((plain / "a.png").read_bytes())
    (plain / "linked").symlink_to(elsewhere)
    (plain / "sub" / "twin").symlink_to(elsewhere / "deep")
    followed = ["a.png", "linked/x.png", "linked/deep/y.png", "sub/b.JPG", "sub/twin/y.png"]
    assert names(plain) == followed
    pngs = sorted(name for name in followed if name.endswith("png"))
    (plain / "again").symlink_to(plain)
    assert sorted(names(plain / "**" / "*.png")) == pngs
    for circle, target in (("up", plain), ("self", plain / "sub"), ("broken", plain / "none")):
        (plain / "sub" / circle).symlink_to(target)
    (elsewhere / "deep" / "back").symlink_to(plain)
    assert names(plain) == followed
    find = ["find", "-L", ".", "-not", "-path", "*/.*", "-name", "*.png"]
    found = subprocess.run(find, cwd=plain, capture_output=True, text=True, check=False, timeout=20).stdout
    # Where there is a find that follows links.
    assert not found or sorted({name.removeprefix("./") for name in found.split()}) == pngs
    (plain / "ring").symlink_to("ring")
    assert "ring/" in names(plain)
    with refused():
        load_page(plain / "ring/")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_list_gives_each_page_settings_of_its_own(suffix, folder):
    rows = [
        {"page": "a.png", "preset": "tiny", "max_new_tokens": 7},
        {"page": "sub/doc.pdf#2", "embed_page": "False"},
        {"page": "missing.png"},
    ]
    csv = "page,preset,max_new_tokens,embed_page\na.png,tiny,7,\nsub/doc.pdf#2,,,False\nmissing.png,,,\n"
    path = folder / f"list{suffix}"
    path.write_text(csv if suffix == ".csv" else "\n".join(map(json.dumps, rows)))
    pages = list(find_pages([str(path)], KNOWN))
    assert pages == [
        Page("a.png", str(folder / "a.png"), {"preset": "tiny", "max_new_tokens": 7}),
        Page("sub/doc.pdf#2", str(folder / "sub/doc.pdf#2"), {"embed_page": False}),
        Page("missing.png", str(folder / "missing.png"), {}),
    ]
    jobs = list(make_jobs(pages, {"model": "tiny", "preset": None, "max_new_tokens": 5}))
    assert [job.settings["max_new_tokens"] for job in jobs] == [7, 5, 5]
    assert [job.sha256 is None for job in jobs] == [False, False, True]


DEEP, LONG = "[" * 100_000, "x" * 300
#: Lists that are refused as a whole, each in one sentence that names the line.
REFUSED = {
    "no page": ("a.csv", "preset\ntiny\n"),
    "unknown column": ("a.csv", "page,colour\nx.png,red\n"),
    "number": ("a.csv", "page,seed\nx.png,many\n"),
    "yes or no": ("a.csv", "page,embed_page\nx.png,perhaps\n"),
    "too many cells": ("a.csv", "page\nx.png,1\n"),
    "empty": ("a.csv", ""),
    "cut": ("a.jsonl", "{"),
    "no object": ("a.jsonl", "[1]"),
    "page is no text": ("a.jsonl", '{"page": 3}'),
    "surrogate": ("a.jsonl", '\n{"page": "\\ud800.png"}'),
    "deep": ("a.jsonl", f"\n{DEEP}"),
    "deep setting": ("a.jsonl", f'\n{{"page": "b.png", "infer": {{"a": {"[" * 900}{"]" * 900}}}}}'),
    "infinity": ("a.jsonl", '\n{"page": "b.png", "infer": {"temperature": Infinity}}'),
    "overflow": ("a.jsonl", '\n{"page": "b.png", "infer": {"temperature": 1e999}}'),
    "long number": ("a.jsonl", f'\n{{"page": "b.png", "seed": {"9" * 5000}}}'),
    "none": ("none.jsonl", None),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_list_that_cannot_be_used_is_one_sentence(name, tmp_path):
    file, text = REFUSED[name]
    if text is not None:
        (tmp_path / file).write_text(text)
    with refused() as caught:
        list(make_jobs(find_pages([str(tmp_path / file)], KNOWN), {"model": "tiny"}))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "line",
    [
        {"page": "a\0b"},
        {"page": "~\0/b.png"},
        {"page": "~nosuch/x.png"},
        {"page": LONG},
        {"page": "b.png", "model": "~nosuch"},
        {"page": "b.png", "model": LONG},
        "a\0b,",
        "b.png,~nosuch",
        f"b.png,{DEEP}",
    ],
    ids=lambda line: str(line)[:40],
)
def test_a_bad_line_of_a_list_fails_alone(line, tmp_path):
    (tmp_path / "good.png").write_bytes(b"1")
    lines = ["page,model", "good.png,", line]
    if isinstance(line, dict):
        lines = ['{"page": "good.png"}', json.dumps(line)]
    path = tmp_path / ("a.jsonl" if isinstance(line, dict) else "a.csv")
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    first, second = make_jobs(find_pages([str(path)], KNOWN), {"model": "tiny"})
    assert first.sha256 and not first.problem
    assert second.sha256 is None or second.settings["model"] != "tiny"
    with refused():
        load_page(second.source)


def test_what_names_no_page_is_refused_before_others_are_read(plain):
    (plain / "empty").mkdir()
    for argument in ("none.png", "*.bmp", "sub/../nothing", "empty"):
        with refused():
            names(plain / argument)
    with refused():
        next(find_pages([str(plain), str(plain / "none.png")], KNOWN))


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_list_are_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("list")
    for suffix in (".csv", ".jsonl"):
        (folder / f"list{suffix}").write_bytes(data)
        try:
            found = list(find_pages([str(folder / f"list{suffix}")], KNOWN))
        except OcrPhasesError:
            continue
        assert found
        assert all(set(page.settings) <= set(KNOWN) for page in found)
