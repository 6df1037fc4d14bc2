"""Which pages a batch has: every form in which they can be named."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from ocr_phases.batch.jobs import Page, find_pages, make_jobs
from ocr_phases.errors import OcrPhasesError
from ocr_phases.inputs.images import load_page

KNOWN = ("model", "preset", "max_new_tokens", "seed", "embed_page")


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


def names(*arguments: object) -> list[str]:
    return [page.name for page in find_pages([str(argument) for argument in arguments], KNOWN)]


def test_a_folder_gives_all_pages_below_it_in_order(folder):
    assert names(folder) == ["a.png", "sub/b.JPG", *(f"sub/doc.pdf#{number}" for number in (1, 2, 3))]
    sources = [page.source for page in find_pages([str(folder)], KNOWN)]
    assert sources[0] == str(folder / "a.png")
    assert sources[-1] == str(folder / "sub" / "doc.pdf#3")


def test_what_is_left_out_is_counted(folder):
    left_out = Counter()
    assert len(list(find_pages([str(folder)], KNOWN, left_out=left_out))) == 5
    assert left_out == {".txt": 1, ".json": 1}


def test_files_globs_and_pages_of_a_pdf(folder):
    assert names(folder / "a.png", folder / "sub/doc.pdf#2") == ["a.png", "doc.pdf#2"]
    assert names(folder / "s*") == ["sub/b.JPG", *(f"sub/doc.pdf#{number}" for number in (1, 2, 3))]
    assert names(folder / "**" / "*.JPG") == ["sub/b.JPG"]
    assert names(folder / "sub" / "*.JPG") == ["b.JPG"]
    assert names(folder / "notes.txt") == ["notes.txt"]  # named, so taken: its measurement refuses it


def test_every_frame_of_a_tiff_is_a_page_and_every_format_is_found(folder):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for name in ("two.tif", "two.gif"):
        frames[0].save(folder / name, save_all=True, append_images=frames[1:])
    frames[0].save(folder / "one.tiff")
    (folder / "a.avif").write_bytes(b"")
    found = ["a.avif", "a.png", "one.tiff", "two.gif", "two.tif#1", "two.tif#2", "sub/b.JPG"]
    assert names(folder)[:7] == found
    assert names(folder / "two.tif") == ["two.tif#1", "two.tif#2"]
    pages = list(find_pages([str(folder / "two.tif"), str(folder / "two.tif#2")], KNOWN))
    jobs = list(make_jobs(pages, {"model": "tiny"}))
    assert len({job.id for job in jobs}) == 2  # the last one is the second again
    assert all(job.sha256 for job in jobs)
    (folder / "bad.tif").write_bytes(b"II*\0")
    assert "not an image that can be read" in next(find_pages([str(folder / "bad.tif")], KNOWN)).problem


def test_a_batch_takes_no_page_from_its_own_results(folder, monkeypatch):
    before = names(folder)
    results = folder / "out" / "pages"
    picture = results / "3f" / "a-3f" / "result_with_boxes.png"
    picture.parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(picture)
    monkeypatch.chdir(folder)
    for argument, expected in ((".", before), ("**/*.png", ["a.png"]), (str(folder), before)):
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


def test_links_to_folders_are_followed_under_their_own_names_and_never_in_a_circle(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "deep").mkdir()
    for page in ("x.png", "deep/y.png"):
        (elsewhere / page).write_bytes((folder / "a.png").read_bytes())
    plain = names(folder)
    (folder / "linked").symlink_to(elsewhere)
    (folder / "sub" / "twin").symlink_to(elsewhere / "deep")
    followed = [*plain[:1], "linked/x.png", "linked/deep/y.png", *plain[1:], "sub/twin/y.png"]
    assert names(folder) == followed
    (folder / "again").symlink_to(folder)
    assert sorted(names(folder / "**" / "*.png")) == sorted(name for name in followed if name.endswith("png"))
    for circle, target in (
        ("sub/up", folder),
        ("sub/self", folder / "sub"),
        ("sub/broken", folder / "none"),
    ):
        (folder / circle).symlink_to(target)
    (elsewhere / "deep" / "back").symlink_to(folder)
    assert names(folder) == followed
    found = subprocess.run(
        ["find", "-L", ".", "-not", "-path", "*/.*", "-name", "*.png"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    if found.stdout:  # there is a find that follows links
        assert {name.removeprefix("./") for name in found.stdout.split()} == {
            name for name in followed if name.endswith("png")
        }


def test_a_link_to_itself_is_a_page_that_fails(folder):
    (folder / "ring").symlink_to("ring")
    assert "ring/" in names(folder)
    with refused():
        load_page(folder / "ring/")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_list_gives_each_page_settings_of_its_own(suffix, folder):
    rows = [
        {"page": "a.png", "preset": "tiny", "max_new_tokens": 7},
        {"page": "sub/doc.pdf#2", "embed_page": "False"},
        {"page": "missing.png"},
    ]
    text = (
        "\n".join(map(json.dumps, rows))
        if suffix == ".jsonl"
        else "page,preset,max_new_tokens,embed_page\na.png,tiny,7,\nsub/doc.pdf#2,,,False\nmissing.png,,,\n"
    )
    (folder / f"list{suffix}").write_text(text)
    pages = list(find_pages([str(folder / f"list{suffix}")], KNOWN))
    assert pages == [
        Page("a.png", str(folder / "a.png"), {"preset": "tiny", "max_new_tokens": 7}),
        Page("sub/doc.pdf#2", str(folder / "sub/doc.pdf#2"), {"embed_page": False}),
        Page("missing.png", str(folder / "missing.png"), {}),
    ]
    jobs = list(make_jobs(pages, {"model": "tiny", "preset": None, "max_new_tokens": 5}))
    assert [job.settings["max_new_tokens"] for job in jobs] == [7, 5, 5]
    assert [job.sha256 is None for job in jobs] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "preset\ntiny\n"),
        ("a.csv", "page,colour\nx.png,red\n"),
        ("a.csv", "page,seed\nx.png,many\n"),
        ("a.csv", "page,embed_page\nx.png,perhaps\n"),
        ("a.csv", "page\nx.png,1\n"),
        ("a.csv", ""),
        ("a.jsonl", "{"),
        ("a.jsonl", "[1]"),
        ("a.jsonl", '{"page": 3}'),
        ("none.jsonl", None),
    ],
)
def test_a_list_that_cannot_be_used_is_one_sentence(name, text, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with refused() as caught:
        names(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_what_names_no_page_is_refused(folder):
    (folder / "empty").mkdir()
    for argument in ("none.png", "*.bmp", "sub/../nothing", "empty"):
        with refused():
            names(folder / argument)


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


def test_an_argument_that_is_not_there_is_refused_before_others_are_read(folder):
    with refused():
        next(find_pages([str(folder), str(folder / "none.png")], KNOWN))
