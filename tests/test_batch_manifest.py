"""Which pages a batch has, and what each is known by: its file, settings, source, revision and device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused

from ocr_phases import versions
from ocr_phases.batch import jobs as batch_jobs
from ocr_phases.batch import worker
from ocr_phases.batch.jobs import Job, Page, find_pages, make_jobs
from ocr_phases.errors import OcrPhasesError
from ocr_phases.inputs.images import load_page
from ocr_phases.versions import code_hash

KNOWN = ("model", "preset", "max_new_tokens", "seed", "embed_page", "infer")
DOCUMENT = [f"doc.pdf#{number}" for number in (1, 2, 3)]
BLANK = Image.new("RGB", (8, 8))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Pages a.png and sub/b.JPG; beside them what is no page."""
    for name in ("a.png", "sub/b.JPG", ".hidden/c.png", ".d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        BLANK.save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no page")
    (tmp_path / "a.json").write_text("{}")
    return tmp_path


@pytest.fixture
def folder(plain: Path) -> Path:
    """The same and a PDF of three pages, which a process counts."""
    BLANK.save(plain / "sub" / "doc.pdf", save_all=True, append_images=[BLANK, BLANK])
    return plain


def names(*arguments: object) -> list[str]:
    return [page.name for page in find_pages([str(argument) for argument in arguments], KNOWN)]


def test_folders_files_globs_and_pages_of_a_pdf_in_order_and_what_is_left_out_is_counted(folder):
    left_out: Counter[str] = Counter()
    pages = list(find_pages([str(folder)], KNOWN, left_out=left_out))
    assert [page.name for page in pages] == ["a.png", "sub/b.JPG", *(f"sub/{page}" for page in DOCUMENT)]
    assert (pages[0].source, pages[-1].source) == (f"{folder}/a.png", f"{folder}/sub/doc.pdf#3")
    assert left_out == {".txt": 1, ".json": 1}
    assert names(folder / "s*") == ["sub/b.JPG", *(f"sub/{page}" for page in DOCUMENT)]
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
    BLANK.save(picture)
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


# -- what a page is known by -----------------------------------------------------------------------------


HUB = "some-org/some-model"
PACKAGE = Path(versions.__file__).parent

#: A change of an installed package's file, and whether its hash changes.
CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "compiled": (lambda package: (package / "inputs/packing.pyc").write_text("changed"), False),
    "changed": (lambda package: (package / "steps/phases.py").write_text("changed"), True),
    "a family": (lambda package: (package / "families.toml").write_text("changed"), True),
    "new": (lambda package: (package / "new.py").touch(), True),
    "removed": (lambda package: (package / "text.py").unlink(), True),
    "renamed": (lambda package: (package / "text.py").rename(package / "text2.py"), True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_of_an_installed_package_changes_its_hash(tmp_path, change):
    package = shutil.copytree(PACKAGE, tmp_path / "ocr_phases")
    before = code_hash.__wrapped__(package)
    assert before == code_hash() == batch_jobs.code_versions()["code"]
    make, counts = CHANGES[change]
    make(package)
    assert (code_hash.__wrapped__(package) != before) == counts


def test_a_page_is_done_again_after_a_change_of_the_code_or_of_the_built_in_model(tmp_path, monkeypatch):
    before = one_job()
    monkeypatch.setattr(batch_jobs, "code_hash", lambda: "another")
    batch_jobs.code_versions.cache_clear()
    changed = one_job()
    monkeypatch.undo()
    batch_jobs.code_versions.cache_clear()
    assert changed.id != before.id
    checkout = shutil.copytree(
        versions.asset("data", "tiny"), tmp_path / "tiny", copy_function=shutil.copyfile
    )
    monkeypatch.setattr(batch_jobs, "asset", lambda *parts: checkout)
    assert one_job().id == before.id  # its files have other times
    (checkout / "tokenizer.json").write_text("{}")
    retrained = one_job()
    assert retrained.id not in (before.id, changed.id)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache of its own, empty, and no hub."""
    import huggingface_hub

    def unreachable(*args: Any, **options: Any) -> str:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put_in_cache(cache: Path, commit: str) -> Path:
    """``main`` of `HUB` is ``commit``."""
    folder = cache / f"models--{HUB.replace('/', '--')}"
    for path, text in ((folder / "refs/main", commit), (folder / f"snapshots/{commit}/config.json", "{}")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def one_job(**settings: Any) -> Job:
    (job,) = make_jobs([Page("a.png", "/none/a.png")], {"model": "tiny", **settings})
    return job


def test_a_hub_model_is_known_by_the_commit_in_the_cache(cache, monkeypatch):
    unknown = one_job(model=HUB)
    assert "revision" not in unknown.settings
    put_in_cache(cache, "a" * 40)
    first = one_job(model=HUB)
    put_in_cache(cache, "b" * 40)
    second = one_job(model=HUB)
    assert (first.settings["revision"], second.settings["revision"]) == ("a" * 40, "b" * 40)
    assert len({unknown.id, first.id, second.id}) == 3
    assert "revision" not in one_job(model="tiny").settings

    # What is not in the cache is settled there, once.
    fetched: list[tuple[str, ...]] = []
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: None)
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download",
        lambda *names: fetched.append(names) or str(put_in_cache(cache, "c" * 40)),
    )
    assert one_job(model=HUB).settings["revision"] == "b" * 40
    assert not fetched
    (cache / f"models--{HUB.replace('/', '--')}" / "refs/main").unlink()
    assert [one_job(model=HUB).settings["revision"] for _ in range(2)] == ["c" * 40] * 2
    assert fetched == [(HUB, "config.json")]


def test_a_worker_loads_the_revision_that_its_page_is_known_by(cache, monkeypatch, tmp_path):
    def load(model: str, **options: Any) -> object:
        raise OcrPhasesError(f"Not here: {model} {options['device']} {options['revision']}.")

    put_in_cache(cache, "a" * 40)
    monkeypatch.setattr("ocr_phases.session.OCRSession.load", load)
    job = one_job(model=HUB, device="cpu", dtype=None)
    with refused(worker.Refused):
        worker.measure_page({"job": dict(vars(job)), "folder": str(tmp_path)}, lambda: None)
