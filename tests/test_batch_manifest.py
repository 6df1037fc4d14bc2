"""Which pages a batch has, hostile files among them, and what each is known by."""

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
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import versions
from ocr_phases.batch import jobs as batch_jobs
from ocr_phases.batch import pages as batch_pages
from ocr_phases.batch.jobs import Job, make_jobs
from ocr_phases.batch.pages import Page, find_pages
from ocr_phases.batch.worker_process import WorkerProcess
from ocr_phases.files import LARGEST_FILE
from ocr_phases.images import load_page
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
    assert names(folder / "notes.txt") == [
        "notes.txt"
    ]  # named, so taken: its measurement refuses it


def test_every_frame_of_a_tiff_is_a_page_and_every_format_is_found(plain):
    for name in ("two.tif", "two.gif"):
        BLANK.save(plain / name, save_all=True, append_images=[Image.new("RGB", (8, 8), "red")])
    (plain / "a.avif").touch()
    assert names(plain) == ["a.avif", "a.png", "two.gif", "two.tif#1", "two.tif#2", "sub/b.JPG"]
    pages = pages_of(plain / "two.tif", plain / "two.tif#2")
    assert [page.name for page in pages] == ["two.tif#1", "two.tif#2", "two.tif#2"]
    jobs = list(make_jobs(pages, {"model": "tiny"}))
    assert len({job.id for job in jobs}) == 2 and all(job.sha256 for job in jobs)


def test_a_batch_takes_no_page_from_its_own_results(plain, monkeypatch):
    before = names(plain)
    picture, own = (
        plain / "out" / "pages" / "3f" / "a-3f" / "result_with_boxes.png",
        Path("out/pages"),
    )
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


def test_links_to_folders_are_followed_under_their_own_names_and_never_in_a_circle(
    plain, tmp_path_factory
):
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


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_list_gives_each_page_settings_of_its_own(suffix, folder):
    rows = [
        {"page": "a.png", "preset": "tiny", "max_new_tokens": 7},
        {"page": "sub/doc.pdf#2", "embed_page": "False"},
        {"page": "missing.png"},
    ]
    csv = (
        "page,preset,max_new_tokens,embed_page\n"
        "a.png,tiny,7,\n"
        "sub/doc.pdf#2,,,False\n"
        "missing.png,,,\n"
    )
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
    assert len(str(caught.value)) < 400


#: Lines of which each spoils its own page only.
BAD_LINES = (
    {"page": "a\0b"},
    {"page": "~\0/b.png"},
    {"page": "~nosuch/x.png"},
    {"page": LONG},
    {"page": "b.png", "model": "~nosuch"},
    {"page": "b.png", "model": LONG},
    {"page": "b.png", "model": DEEP},
)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_bad_line_of_a_list_fails_alone(suffix, tmp_path):
    (tmp_path / "good.png").write_bytes(b"1")
    rows = [*BAD_LINES, {"page": "good.png"}]
    table = "\n".join(["page,model", *(f"{row['page']},{row.get('model', '')}" for row in rows)])
    path = tmp_path / f"list{suffix}"
    path.write_text(
        table if suffix == ".csv" else "\n".join(map(json.dumps, rows)), encoding="utf-8-sig"
    )
    *bad, good = make_jobs(pages_of(path), {"model": "tiny"})
    assert good.sha256 and not good.problem and len(bad) == len(BAD_LINES)
    for job in bad:
        assert job.sha256 is None
        with refused():
            load_page(job.source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_devices_sockets_and_huge_files_are_failed_pages_that_nothing_waits_for(
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


def test_a_file_that_claims_too_many_pages_is_one_failed_page(folder, monkeypatch):
    monkeypatch.setattr(batch_pages, "MOST_FILE_PAGES", 2)
    document = folder / "sub" / "doc.pdf"
    whole, named = pages_of(document, f"{document}#1")
    assert [whole.name, named.name, named.problem] == ["doc.pdf", "doc.pdf#1", ""]
    assert says(whole.problem, "doc.pdf", "2 pages", "doc.pdf#3")


def test_a_file_that_crashes_what_counts_its_pages_is_a_failed_page(tmp_path, monkeypatch):
    crash = "import os; os.read(0, 9); os.abort()"
    monkeypatch.setattr(
        batch_pages, "WorkerProcess", lambda: WorkerProcess(command=[sys.executable, "-c", crash])
    )
    (tmp_path / "evil.pdf").write_bytes(b"%PDF")
    (tmp_path / "good.png").touch()
    evil, good = pages_of(tmp_path)
    assert good.name == "good.png" and not good.problem
    assert says(evil.problem, "evil.pdf", "SIGABRT")


def test_folders_within_folders_without_end_are_one_failed_page(tmp_path):
    (tmp_path / "a.png").touch()
    sys.setrecursionlimit(1000)  # Python's own: torch's compiler leaves another
    subprocess.run(["mkdir", "-p", "d/" * 1300], cwd=tmp_path, check=True)
    try:
        for depth in (50, 100):
            (tmp_path / ("d/" * depth) / "b.png").touch()
        found = pages_of(tmp_path)
        assert [Path(page.name).name for page in found] == ["a.png", "b.png", "b.png", "d"]
        assert [bool(page.problem) for page in found] == [False, False, False, True]
        assert f"{tmp_path}/{'d/' * 100}d lies more than 100 folders" in found[-1].problem
        with refused():
            names(tmp_path / "**" / "*.png")
    finally:
        subprocess.run(["rm", "-r", "d"], cwd=tmp_path, check=True)  # pytest's own removal recurses


HUB = "some-org/some-model"
PACKAGE = Path(versions.__file__).parent


def one_job(**settings: Any) -> Job:
    (job,) = make_jobs([Page("a.png", "/none/a.png")], {"model": "tiny", **settings})
    return job


def test_a_page_is_done_again_after_a_change_of_the_code_or_of_the_built_in_model(
    tmp_path, monkeypatch
):
    before, package = one_job(), shutil.copytree(PACKAGE, tmp_path / "ocr_phases")
    codes = [before.versions["code"], code_hash.__wrapped__(package)]
    (package / "inputs/packing.pyc").write_text("compiled")
    codes.append(code_hash.__wrapped__(package))
    for change in (
        lambda: (package / "families/deepseek_ocr.py").write_text("changed"),
        lambda: (package / "families/unlimited_ocr.json").write_text("{}"),
        (package / "steps/phases.py").unlink,
        lambda: (package / "text.py").rename(package / "text2.py"),
    ):
        change()
        codes.append(code_hash.__wrapped__(package))
    assert len(set(codes[:3])) == 1 and len(set(codes)) == 5
    tiny = versions.asset("data", "tiny")
    checkout = shutil.copytree(tiny, tmp_path / "tiny", copy_function=shutil.copyfile)
    monkeypatch.setattr(batch_jobs, "asset", lambda *parts: checkout)
    assert one_job().id == before.id  # its files have other times
    (checkout / "tokenizer.json").write_text("{}")
    assert one_job().id != before.id


def test_a_hub_model_is_known_by_the_commit_in_the_cache(tmp_path, monkeypatch):
    place, asked = tmp_path / f"models--{HUB.replace('/', '--')}", list[tuple[str, ...]]()

    def put_in_cache(commit: str) -> str:
        for name, text in (("refs/main", commit), (f"snapshots/{commit}/config.json", "{}")):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        return str(place / name)

    def download(*names: str) -> str:
        asked.append(names)
        return put_in_cache("c" * 40)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *a, **k: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    known = []
    for commit in "ab":
        put_in_cache(commit * 40)
        known.append(one_job(model=HUB))
    assert not asked
    (place / "refs/main").unlink()  # what is not in the cache is settled there, once
    known += [one_job(model=HUB) for _ in range(2)]
    assert asked == [(HUB, "config.json")]
    assert [job.settings["revision"] for job in known] == ["a" * 40, "b" * 40, "c" * 40, "c" * 40]
    assert len({job.id for job in known}) == 3 and "revision" not in one_job().settings
