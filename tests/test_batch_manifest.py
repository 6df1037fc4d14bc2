"""Which pages a batch has, hostile files among them, and what each is known by."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batch_example import make_pages, measure, statuses
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import versions
from ocr_phases.batch import jobs as batch_jobs
from ocr_phases.batch import worker
from ocr_phases.batch.child import Child
from ocr_phases.batch.jobs import Job, Page, find_pages, make_jobs
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import LARGEST_FILE
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
    for name in ("notes.txt", "a.json"):
        (tmp_path / name).write_text("no page")
    return tmp_path


@pytest.fixture
def folder(plain: Path) -> Path:
    """The same and a PDF of three pages, which a process counts."""
    BLANK.save(plain / "sub" / "doc.pdf", save_all=True, append_images=[BLANK, BLANK])
    return plain


def pages_of(*arguments: object, **options: Any) -> list[Page]:
    return list(find_pages([str(argument) for argument in arguments], KNOWN, **options))


def names(*arguments: object, **options: Any) -> list[str]:
    return [page.name for page in pages_of(*arguments, **options)]


def test_folders_files_globs_and_pages_of_a_pdf_in_order_and_what_is_left_out_is_counted(folder):
    left_out: Counter[str] = Counter()
    pages = pages_of(folder, left_out=left_out)
    below = ["sub/b.JPG", *(f"sub/{page}" for page in DOCUMENT)]
    assert [page.name for page in pages] == ["a.png", *below]
    assert (pages[0].source, pages[-1].source) == (f"{folder}/a.png", f"{folder}/sub/doc.pdf#3")
    assert left_out == {".txt": 1, ".json": 1}
    assert names(folder / "s*") == below
    assert names(folder / "a.png", folder / "sub/doc.pdf#2") == ["a.png", "doc.pdf#2"]
    assert names(folder / "**" / "*.JPG") == ["sub/b.JPG"]
    assert names(folder / "sub" / "*.JPG") == ["b.JPG"]
    assert names(folder / "notes.txt") == ["notes.txt"]  # named, so taken: its measurement refuses it


def test_every_frame_of_a_tiff_is_a_page_and_every_format_is_found(plain):
    for name in ("two.tif", "two.gif"):
        BLANK.save(plain / name, save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])
    BLANK.save(plain / "one.tiff")
    (plain / "a.avif").touch()
    found = ["a.avif", "a.png", "one.tiff", "two.gif", "two.tif#1", "two.tif#2", "sub/b.JPG"]
    assert names(plain) == found
    pages = pages_of(plain / "two.tif", plain / "two.tif#2")
    assert [page.name for page in pages] == ["two.tif#1", "two.tif#2", "two.tif#2"]
    jobs = list(make_jobs(pages, {"model": "tiny"}))
    assert len({job.id for job in jobs}) == 2 and all(job.sha256 for job in jobs)
    (plain / "bad.tif").write_bytes(b"II*\0")
    assert "not an image that can be read" in pages_of(plain / "bad.tif")[0].problem


def test_a_batch_takes_no_page_from_its_own_results(plain, monkeypatch):
    before = names(plain)
    picture, own = plain / "out" / "pages" / "3f" / "a-3f" / "result_with_boxes.png", Path("out/pages")
    picture.parent.mkdir(parents=True)
    BLANK.save(picture)
    monkeypatch.chdir(plain)
    for argument, expected in ((".", before), ("**/*.png", ["a.png"]), (plain, before)):
        assert names(argument, results=own) == expected
    for argument in ("out", "out/pages/3f", "out/**/*.png"):
        with refused():
            names(argument, results=own)
    assert len(names(picture, results=own)) == 1  # named, so taken


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
        found = {page.name: page.source for page in pages_of(argument)}
        assert found == {"a.png": str(folder / "a.png"), "sub/": f"{folder}/sub/"}
    with refused():
        load_page(found["sub/"])
    with refused():  # it was named
        names(folder / "sub")


def test_links_to_folders_are_followed_under_their_own_names_and_never_in_a_circle(plain, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "deep").mkdir()
    for page in ("x.png", "deep/y.png"):
        BLANK.save(elsewhere / page)
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


def test_what_names_no_page_is_refused_before_others_are_read(plain):
    (plain / "empty").mkdir()
    for argument in ("none.png", "*.bmp", "sub/../nothing", "empty"):
        with refused():
            names(plain / argument)
    with refused():
        next(find_pages([str(plain), str(plain / "none.png")], KNOWN))


# -- lists of pages --------------------------------------------------------------------------------------


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
    pages = pages_of(path)
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
    "no page": "preset\ntiny\n",
    "unknown column": "page,colour\nx.png,red\n",
    "number": "page,seed\nx.png,many\n",
    "yes or no": "page,embed_page\nx.png,perhaps\n",
    "too many cells": "page\nx.png,1\n",
    "empty": "",
    "cut": "{",
    "no object": "[1]",
    "page is no text": '{"page": 3}',
    "surrogate": '\n{"page": "\\ud800.png"}',
    "deep": f"\n{DEEP}",
    "deep setting": f'\n{{"page": "b.png", "infer": {{"a": {"[" * 900}{"]" * 900}}}}}',
    "infinity": '\n{"page": "b.png", "infer": {"temperature": Infinity}}',
    "overflow": '\n{"page": "b.png", "infer": {"temperature": 1e999}}',
    "long number": f'\n{{"page": "b.png", "seed": {"9" * 5000}}}',
}


@pytest.mark.parametrize("name", [*REFUSED, "none"])
def test_a_list_that_cannot_be_used_is_one_sentence(name, tmp_path):
    text = REFUSED.get(name, "{")
    path = tmp_path / ("a.jsonl" if text.strip().startswith(("{", "[")) else "a.csv")
    if name in REFUSED:
        path.write_text(text)
    with refused() as caught:
        list(make_jobs(pages_of(path), {"model": "tiny"}))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


#: Lines of which each spoils its own page only: as JSON, or as the columns page and model.
BAD_LINES = (
    {"page": "a\0b"},
    {"page": "~\0/b.png"},
    {"page": "~nosuch/x.png"},
    {"page": LONG},
    {"page": "b.png", "model": "~nosuch"},
    {"page": "b.png", "model": LONG},
    "a\0b,",
    "b.png,~nosuch",
    f"b.png,{DEEP}",
)


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: str(line)[:40])
def test_a_bad_line_of_a_list_fails_alone(line, tmp_path):
    (tmp_path / "good.png").write_bytes(b"1")
    lines = ["page,model", "good.png,", line]
    if isinstance(line, dict):
        lines = ['{"page": "good.png"}', json.dumps(line)]
    path = tmp_path / ("a.jsonl" if isinstance(line, dict) else "a.csv")
    path.write_text("\n".join(lines), encoding="utf-8-sig")
    first, second = make_jobs(pages_of(path), {"model": "tiny"})
    assert first.sha256 and not first.problem
    assert second.sha256 is None or second.settings["model"] != "tiny"
    with refused():
        load_page(second.source)


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_any_bytes_as_a_list_are_read_or_refused(tmp_path_factory, data):
    for suffix in (".csv", ".jsonl"):
        path = tmp_path_factory.mktemp("list") / f"list{suffix}"
        path.write_bytes(data)
        with contextlib.suppress(OcrPhasesError):
            found = pages_of(path)
            assert found and all(set(page.settings) <= set(KNOWN) for page in found)


# -- files that are none, or too much ---------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_devices_sockets_and_huge_files_are_failed_pages_and_nothing_waits_for_them(
    tmp_path, monkeypatch
):
    pages, out = make_pages(tmp_path / "in", "ok"), tmp_path / "out"
    for suffix in ("png", "pdf"):
        os.mkfifo(pages / f"pipe.{suffix}")
        (pages / f"zero.{suffix}").symlink_to("/dev/zero")
    monkeypatch.chdir(pages)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.png")  # its path is short
    with (pages / "huge.png").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)  # sparse
    counts = measure(pages, out)
    assert (counts.done, counts.failed) == (1, 6)
    found = statuses(out)
    assert found.pop("page-0.png")["state"] == "done"
    assert says(found.pop("huge.png")["reason"], "1,024.0 MiB")
    assert all("a regular file" in status["reason"] for status in found.values())
    assert {status["failure"] for status in found.values()} == {"the page cannot be read"}
    os.mkfifo(pages / "list.csv")
    with refused():
        names(pages / "list.csv")
    # One that claims no size is not read on and on; /proc/kmsg would wait. Measuring it says why.
    (job,) = make_jobs([Page("kmsg.png", "/proc/self/status")], {"model": "tiny"})
    assert job.sha256 is None and not job.problem


def bomb(claimed: int) -> bytes:
    """A PDF of one page that claims more."""
    objects = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count %d>>" % claimed,
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>",
    )
    data, table = b"%PDF-1.4\n", b"0000000000 65535 f \n"
    for number, content in enumerate(objects, 1):
        table += b"%010d 00000 n \n" % len(data)
        data += b"%d 0 obj%sendobj\n" % (number, content)
    end = b"xref\n0 4\n%strailer<</Size 4/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return data + end % (table, len(data))


def test_a_pdf_that_claims_a_million_pages_is_one_failed_page(tmp_path):
    pytest.importorskip("pypdfium2")
    (tmp_path / "bomb.pdf").write_bytes(bomb(1_000_000))
    (tmp_path / "two.pdf").write_bytes(bomb(2))
    pages = pages_of(tmp_path, tmp_path / "bomb.pdf#1")
    assert [page.name for page in pages] == ["bomb.pdf", "two.pdf#1", "two.pdf#2", "bomb.pdf#1"]
    assert says(pages[0].problem, "bomb.pdf", "10,000 pages", "bomb.pdf#3")
    assert not any(page.problem for page in pages[1:])


@pytest.mark.parametrize(("program", "reason"), [("os.abort()", "SIGABRT"), ("pipe.recv_bytes()", "0.2 s")])
def test_a_pdf_that_crashes_or_hangs_its_reader_is_a_failed_page(program, reason, tmp_path, monkeypatch):
    start = (
        "import os; from multiprocessing.connection import Connection; pipe = Connection(os.dup(0)); "
        "pipe.recv_bytes(); pipe.send_bytes(b'ready'); "
    )
    monkeypatch.setattr(batch_jobs, "Child", lambda: Child(command=[sys.executable, "-c", start + program]))
    monkeypatch.setattr(batch_jobs, "COUNT_SECONDS", 0.2)
    (tmp_path / "evil.pdf").write_bytes(b"%PDF")
    (tmp_path / "good.png").touch()
    evil, good = pages_of(tmp_path)
    assert good.name == "good.png" and not good.problem
    assert says(evil.problem, "evil.pdf", reason)


def test_folders_within_folders_without_end_are_one_failed_page(tmp_path):
    (tmp_path / "a.png").touch()
    deep = [tmp_path]
    try:
        for _ in range(1300):
            deep.append(deep[-1] / "d")
            deep[-1].mkdir()
        for depth in (50, 100):
            (deep[depth] / "b.png").touch()
        found = pages_of(tmp_path)
        assert [Path(page.name).name for page in found] == ["a.png", "b.png", "b.png", "d"]
        assert [bool(page.problem) for page in found] == [False, False, False, True]
        assert says(found[-1].problem, str(deep[101]), "100 folders")
        with refused():
            names(tmp_path / "**" / "*.png")
    finally:
        for folder in reversed(deep[1:]):  # pytest's own removal recurses
            (folder / "b.png").unlink(missing_ok=True)
            folder.rmdir()


# -- what a page is known by -----------------------------------------------------------------------------


HUB = "some-org/some-model"
PACKAGE = Path(versions.__file__).parent


def one_job(**settings: Any) -> Job:
    (job,) = make_jobs([Page("a.png", "/none/a.png")], {"model": "tiny", **settings})
    return job


def test_a_changed_file_of_an_installed_package_changes_its_hash(tmp_path):
    package = shutil.copytree(PACKAGE, tmp_path / "ocr_phases")
    seen = [code_hash.__wrapped__(package)]
    assert seen[0] == code_hash() == batch_jobs.code_versions()["code"]
    (package / "inputs/packing.pyc").write_text("compiled")
    assert code_hash.__wrapped__(package) == seen[0]
    for change in (
        lambda: (package / "steps/phases.py").write_text("changed"),
        lambda: (package / "families.toml").write_text("changed"),
        (package / "new.py").touch,
        (package / "store.py").unlink,
        lambda: (package / "text.py").rename(package / "text2.py"),
    ):
        change()
        seen.append(code_hash.__wrapped__(package))
    assert len(set(seen)) == 6


def test_a_page_is_done_again_after_a_change_of_the_code_or_of_the_built_in_model(tmp_path, monkeypatch):
    before = one_job()
    with monkeypatch.context() as patch:
        patch.setattr(batch_jobs, "code_hash", lambda: "another")
        batch_jobs.code_versions.cache_clear()
        changed = one_job()
    batch_jobs.code_versions.cache_clear()
    tiny = versions.asset("data", "tiny")
    checkout = shutil.copytree(tiny, tmp_path / "tiny", copy_function=shutil.copyfile)
    monkeypatch.setattr(batch_jobs, "asset", lambda *parts: checkout)
    assert one_job().id == before.id  # its files have other times
    (checkout / "tokenizer.json").write_text("{}")
    assert len({before.id, changed.id, one_job().id}) == 3


def test_a_hub_model_is_known_by_the_commit_in_the_cache_and_that_is_loaded(tmp_path, monkeypatch):
    place, asked = tmp_path / f"models--{HUB.replace('/', '--')}", list[tuple[str, ...]]()

    def put_in_cache(commit: str) -> str:
        for name, text in (("refs/main", commit), (f"snapshots/{commit}/config.json", "{}")):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        return str(place / name)

    def unreachable(*args: Any, **options: Any) -> str:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    known = [one_job(model=HUB)]
    for commit in "ab":
        put_in_cache(commit * 40)
        known.append(one_job(model=HUB))
    assert [job.settings.get("revision") for job in known] == [None, "a" * 40, "b" * 40]
    assert len({job.id for job in known}) == 3
    assert "revision" not in one_job(model="tiny").settings
    # What is not in the cache is settled there, once.
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: None)
    download = lambda *names: asked.append(names) or put_in_cache("c" * 40)  # noqa: E731
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert one_job(model=HUB).settings["revision"] == "b" * 40 and not asked
    (place / "refs/main").unlink()
    assert [one_job(model=HUB).settings["revision"] for _ in range(2)] == ["c" * 40] * 2
    assert asked == [(HUB, "config.json")]

    def load(model: str, **options: Any) -> object:
        raise OcrPhasesError(f"Not here: {model} {options['device']} {options['revision']}.")

    monkeypatch.setattr("ocr_phases.session.OCRSession.load", load)
    job = one_job(model=HUB, device="cpu", dtype=None)
    with refused(worker.Refused):
        worker.measure_page({"job": dict(vars(job)), "folder": str(tmp_path)}, lambda: None)
