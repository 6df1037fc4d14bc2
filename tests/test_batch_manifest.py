"""Which pages a batch has, hostile files among them, and what each is known by."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
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
from ocr_phases.batch.pages import BatchPage, find_pages
from ocr_phases.batch.worker_process import WorkerProcess
from ocr_phases.files import LARGEST_FILE
from ocr_phases.images import load_page
from ocr_phases.versions import code_hash

#: The settings that a list may give.
KNOWN_SETTINGS = ("model", "preset", "max_new_tokens", "seed", "embed_page", "infer")
DOCUMENT_PAGES = ["doc.pdf#1", "doc.pdf#2", "doc.pdf#3"]
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


def find(*arguments: object, **options: Any) -> list[BatchPage]:
    """The pages that these arguments of the command name."""
    return list(find_pages([str(argument) for argument in arguments], KNOWN_SETTINGS, **options))


def found_names(*arguments: object, **options: Any) -> list[str]:
    """The names of the pages that these arguments name."""
    return [page.name for page in find(*arguments, **options)]


def test_a_folder_gives_its_pages_in_order_and_counts_what_it_leaves_out(folder: Path) -> None:
    left_out: Counter[str] = Counter()

    pages = find(folder, left_out=left_out)

    assert [page.name for page in pages] == [
        "a.png",
        "sub/b.JPG",
        *[f"sub/{page}" for page in DOCUMENT_PAGES],
    ]
    assert pages[0].source == f"{folder}/a.png"
    assert pages[-1].source == f"{folder}/sub/doc.pdf#3"
    assert left_out == {".txt": 1, ".json": 1}


def test_files_globs_and_pages_of_a_pdf_are_taken_as_they_are_named(folder: Path) -> None:
    below = ["sub/b.JPG", *[f"sub/{page}" for page in DOCUMENT_PAGES]]
    assert found_names(folder / "s*") == below
    assert found_names(folder / "a.png", folder / "sub/doc.pdf#2") == ["a.png", "doc.pdf#2"]
    assert found_names(folder / "**" / "*.JPG") == ["sub/b.JPG"]
    assert found_names(folder / "sub" / "*.JPG") == ["b.JPG"]


def test_a_file_of_any_kind_that_is_named_is_left_to_its_measurement_to_refuse(
    folder: Path,
) -> None:
    assert found_names(folder / "notes.txt") == ["notes.txt"]


def test_every_frame_of_a_tiff_is_a_page_and_every_format_is_found(plain: Path) -> None:
    second_frame = Image.new("RGB", (8, 8), "red")
    for name in ("two.tif", "two.gif"):
        BLANK.save(plain / name, save_all=True, append_images=[second_frame])
    (plain / "a.avif").touch()

    names = found_names(plain)

    assert names == ["a.avif", "a.png", "two.gif", "two.tif#1", "two.tif#2", "sub/b.JPG"]


def test_a_page_that_is_named_twice_is_one_job(plain: Path) -> None:
    second_frame = Image.new("RGB", (8, 8), "red")
    BLANK.save(plain / "two.tif", save_all=True, append_images=[second_frame])

    pages = find(plain / "two.tif", plain / "two.tif#2")
    jobs = list(make_jobs(pages, {"model": "tiny"}))

    assert [page.name for page in pages] == ["two.tif#1", "two.tif#2", "two.tif#2"]
    assert len({job.id for job in jobs}) == 2
    assert all(job.sha256 for job in jobs)


def test_a_batch_takes_no_page_from_its_own_results(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = found_names(plain)
    picture = plain / "out" / "pages" / "3f" / "a-3f" / "result_with_boxes.png"
    picture.parent.mkdir(parents=True)
    BLANK.save(picture)
    monkeypatch.chdir(plain)
    results = Path("out/pages")

    assert found_names(".", results=results) == before
    assert found_names("**/*.png", results=results) == ["a.png"]
    assert found_names(plain, results=results) == before
    for argument in ("out", "out/pages/3f", "out/**/*.png"):
        with refused():
            found_names(argument, results=results)
    assert len(found_names(picture, results=results)) == 1  # named, so taken


ReadFolder = Callable[[object], object]


def refusing_sub(read: ReadFolder) -> ReadFolder:
    """A function of `os` that reads folders, but for those named ``sub``."""

    def read_others(path: object) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    return read_others


def test_a_folder_that_cannot_be_read_is_a_page_that_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", refusing_sub(os.scandir))
    monkeypatch.setattr(os, "listdir", refusing_sub(os.listdir))

    for argument in (folder, folder / "*"):
        sources = {page.name: page.source for page in find(argument)}
        assert sources == {"a.png": str(folder / "a.png"), "sub/": f"{folder}/sub/"}
    with refused():
        load_page(f"{folder}/sub/")
    with refused():  # it was named
        found_names(folder / "sub")


#: The pages of ``linked_folder``, in their order.
LINKED_PAGES = ["a.png", "linked/x.png", "linked/deep/y.png", "sub/b.JPG", "sub/twin/y.png"]


@pytest.fixture
def linked_folder(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain folder with two links to folders that lie elsewhere."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "deep").mkdir()
    BLANK.save(elsewhere / "x.png")
    BLANK.save(elsewhere / "deep" / "y.png")
    (plain / "linked").symlink_to(elsewhere)
    (plain / "sub" / "twin").symlink_to(elsewhere / "deep")
    return plain


def test_links_to_folders_are_followed_under_their_own_names(linked_folder: Path) -> None:
    assert found_names(linked_folder) == LINKED_PAGES


def test_links_never_lead_in_a_circle(linked_folder: Path) -> None:
    (linked_folder / "again").symlink_to(linked_folder)
    pngs = sorted(name for name in LINKED_PAGES if name.endswith("png"))
    assert sorted(found_names(linked_folder / "**" / "*.png")) == pngs

    sub = linked_folder / "sub"
    (sub / "up").symlink_to(linked_folder)
    (sub / "self").symlink_to(sub)
    (sub / "broken").symlink_to(linked_folder / "none")
    (linked_folder / "linked" / "deep" / "back").symlink_to(linked_folder)
    assert found_names(linked_folder) == LINKED_PAGES


def test_a_link_to_itself_is_a_page_that_fails(linked_folder: Path) -> None:
    (linked_folder / "ring").symlink_to("ring")

    assert "ring/" in found_names(linked_folder)
    with refused():
        load_page(linked_folder / "ring/")


def test_what_names_no_page_is_refused_before_others_are_read(plain: Path) -> None:
    (plain / "empty").mkdir()
    for argument in ("none.png", "*.bmp", "sub/../nothing", "empty"):
        with refused():
            found_names(plain / argument)
    with refused():
        next(find_pages([str(plain), str(plain / "none.png")], KNOWN_SETTINGS))


#: The same list in both forms.
LIST_ROWS = [
    {"page": "a.png", "preset": "tiny", "max_new_tokens": 7},
    {"page": "sub/doc.pdf#2", "embed_page": "False"},
    {"page": "missing.png"},
]
LISTS = {
    ".csv": (
        "page,preset,max_new_tokens,embed_page\n"
        "a.png,tiny,7,\n"
        "sub/doc.pdf#2,,,False\n"
        "missing.png,,,\n"
    ),
    ".jsonl": "\n".join(json.dumps(row) for row in LIST_ROWS),
}


@pytest.mark.parametrize("suffix", LISTS)
def test_a_list_gives_each_page_settings_of_its_own(suffix: str, folder: Path) -> None:
    path = folder / f"list{suffix}"
    path.write_text(LISTS[suffix])

    pages = find(path)
    jobs = list(make_jobs(pages, {"model": "tiny", "preset": None, "max_new_tokens": 5}))

    assert pages == [
        BatchPage("a.png", str(folder / "a.png"), {"preset": "tiny", "max_new_tokens": 7}),
        BatchPage("sub/doc.pdf#2", str(folder / "sub/doc.pdf#2"), {"embed_page": False}),
        BatchPage("missing.png", str(folder / "missing.png"), {}),
    ]
    assert [job.settings["max_new_tokens"] for job in jobs] == [7, 5, 5]
    assert [job.sha256 is None for job in jobs] == [False, False, True]


DEEP = "[" * 100_000
LONG = "x" * 300
DEEP_OBJECT = "[" * 900 + "]" * 900
LONG_NUMBER = "9" * 5000
#: Lists that are refused as a whole, each in one sentence that names the line.
UNUSABLE_LISTS = {
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
    "deep setting": f'\n{{"page": "b.png", "infer": {{"a": {DEEP_OBJECT}}}}}',
    "infinity": '\n{"page": "b.png", "infer": {"temperature": Infinity}}',
    "overflow": '\n{"page": "b.png", "infer": {"temperature": 1e999}}',
    "long number": f'\n{{"page": "b.png", "seed": {LONG_NUMBER}}}',
}


@pytest.mark.parametrize("name", UNUSABLE_LISTS)
def test_a_list_that_cannot_be_used_is_one_sentence(name: str, tmp_path: Path) -> None:
    text = UNUSABLE_LISTS[name]
    is_json = text.strip().startswith(("{", "["))
    path = tmp_path / ("a.jsonl" if is_json else "a.csv")
    path.write_text(text)

    with refused() as caught:
        list(make_jobs(find(path), {"model": "tiny"}))

    assert len(str(caught.value)) < 400


def test_a_list_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with refused() as caught:
        find(tmp_path / "a.jsonl")
    assert len(str(caught.value)) < 400


#: Lines of which each spoils its own page only.
BAD_LINES = [
    {"page": "a\0b"},
    {"page": "~\0/b.png"},
    {"page": "~nosuch/x.png"},
    {"page": LONG},
    {"page": "b.png", "model": "~nosuch"},
    {"page": "b.png", "model": LONG},
    {"page": "b.png", "model": DEEP},
]


def write_list(path: Path, rows: list[dict[str, str]]) -> None:
    """A list of pages and their models, in the form of its name."""
    if path.suffix == ".csv":
        lines = ["page,model"]
        lines += [f"{row['page']},{row.get('model', '')}" for row in rows]
    else:
        lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8-sig")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_bad_line_of_a_list_fails_alone(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(b"1")
    path = tmp_path / f"list{suffix}"
    write_list(path, [*BAD_LINES, {"page": "good.png"}])

    *bad, good = make_jobs(find(path), {"model": "tiny"})

    assert good.sha256
    assert not good.problem
    assert len(bad) == len(BAD_LINES)
    for job in bad:
        assert job.sha256 is None
        with refused():
            load_page(job.source)


needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@needs_pipes
def test_pipes_devices_sockets_and_huge_files_are_failed_pages_that_nothing_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = make_pages(tmp_path / "in", "ok")
    for suffix in ("png", "pdf"):
        os.mkfifo(pages / f"pipe.{suffix}")
        (pages / f"zero.{suffix}").symlink_to("/dev/zero")
    monkeypatch.chdir(pages)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.png")  # its path is short
    with (pages / "huge.png").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)  # sparse

    counts = measure(pages, tmp_path / "out")

    assert counts.done == 1
    assert counts.failed == 6
    found = statuses(tmp_path / "out")
    assert found.pop("page-0.png")["state"] == "done"
    assert {status["failure"] for status in found.values()} == {"the page cannot be read"}
    assert says(found.pop("huge.png")["reason"], "1,024.0 MiB")
    for status in found.values():
        assert "a regular file" in status["reason"]


@needs_pipes
def test_a_list_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list.csv")
    with refused():
        find(tmp_path / "list.csv")


def test_a_file_that_claims_no_size_is_not_read_to_know_its_page() -> None:
    """``/proc/kmsg`` would wait; measuring such a file says what is wrong."""
    (job,) = make_jobs([BatchPage("kmsg.png", "/proc/self/status")], {"model": "tiny"})
    assert job.sha256 is None
    assert not job.problem


def test_a_file_that_claims_too_many_pages_is_one_failed_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_pages, "MOST_FILE_PAGES", 2)
    document = folder / "sub" / "doc.pdf"

    whole, first_page = find(document, f"{document}#1")

    assert whole.name == "doc.pdf"
    assert says(whole.problem, "doc.pdf", "2 pages", "doc.pdf#3")
    assert first_page.name == "doc.pdf#1"
    assert first_page.problem == ""


def test_a_file_that_crashes_what_counts_its_pages_is_a_failed_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = "import os; os.read(0, 9); os.abort()"

    def crashing_worker() -> WorkerProcess:
        return WorkerProcess(command=[sys.executable, "-c", crash])

    monkeypatch.setattr(batch_pages, "WorkerProcess", crashing_worker)
    (tmp_path / "evil.pdf").write_bytes(b"%PDF")
    (tmp_path / "good.png").touch()

    evil, good = find(tmp_path)

    assert good.name == "good.png"
    assert not good.problem
    assert says(evil.problem, "evil.pdf", "SIGABRT")


@pytest.fixture
def deep_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with folders in one another that go deeper than Python's own functions can."""
    sys.setrecursionlimit(1000)  # Python's own: torch's compiler leaves another
    subprocess.run(["mkdir", "-p", "d/" * 1300], cwd=tmp_path, check=True)
    yield tmp_path
    subprocess.run(["rm", "-r", "d"], cwd=tmp_path, check=True)  # pytest's own removal recurses


def test_folders_within_folders_without_end_are_one_failed_page(deep_folder: Path) -> None:
    (deep_folder / "a.png").touch()
    (deep_folder / ("d/" * 50) / "b.png").touch()
    (deep_folder / ("d/" * 100) / "b.png").touch()

    *pages, too_deep = find(deep_folder)

    assert [Path(page.name).name for page in pages] == ["a.png", "b.png", "b.png"]
    assert not any(page.problem for page in pages)
    assert Path(too_deep.name).name == "d"
    assert f"{deep_folder}/{'d/' * 100}d lies more than 100 folders" in too_deep.problem
    with refused():
        found_names(deep_folder / "**" / "*.png")


# -- what a page is known by -----------------------------------------------------------------------


def one_job(**settings: Any) -> Job:
    """The job of a page that is not there, with these settings."""
    (job,) = make_jobs([BatchPage("a.png", "/none/a.png")], {"model": "tiny", **settings})
    return job


def hash_of(package: Path) -> str:
    """The hash of the code in this folder, which is computed anew."""
    return code_hash.__wrapped__(package)


def test_a_page_is_done_again_after_a_change_of_the_code(tmp_path: Path) -> None:
    package = Path(shutil.copytree(Path(versions.__file__).parent, tmp_path / "ocr_phases"))
    unchanged = one_job().versions["code"]
    assert hash_of(package) == unchanged

    (package / "inputs/packing.pyc").write_text("compiled")
    assert hash_of(package) == unchanged

    hashes = {unchanged}
    (package / "families/deepseek_ocr.py").write_text("changed")
    hashes.add(hash_of(package))
    (package / "families/unlimited_ocr.json").write_text("{}")
    hashes.add(hash_of(package))
    (package / "steps/phases.py").unlink()
    hashes.add(hash_of(package))
    (package / "text.py").rename(package / "text2.py")
    hashes.add(hash_of(package))
    assert len(hashes) == 5


def test_a_page_is_done_again_after_a_change_of_the_built_in_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = one_job()
    tiny = versions.asset("data", "tiny")
    checkout = Path(shutil.copytree(tiny, tmp_path / "tiny", copy_function=shutil.copyfile))
    monkeypatch.setattr(batch_jobs, "asset", lambda *parts: checkout)
    assert one_job().id == before.id  # its files have other times

    (checkout / "tokenizer.json").write_text("{}")
    assert one_job().id != before.id


class HubCache:
    """The hub's cache with one model, and the files that were asked for from the hub, which has a
    later commit.
    """

    MODEL = "some-org/some-model"
    LATEST = "c" * 40

    def __init__(self, folder: Path) -> None:
        self.folder = folder / f"models--{self.MODEL.replace('/', '--')}"
        self.main = self.folder / "refs" / "main"
        self.downloads: list[tuple[str, ...]] = []

    def put(self, commit: str) -> str:
        """The cache's latest commit is this one; gives the path of its config."""
        config = self.folder / "snapshots" / commit / "config.json"
        for path, text in ((self.main, commit), (config, "{}")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(config)

    def download(self, *names: str) -> str:
        """What `hf_hub_download` does."""
        self.downloads.append(names)
        return self.put(self.LATEST)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubCache:
    cache = HubCache(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", cache.download)
    return cache


def test_a_hub_model_is_known_by_the_commit_in_the_cache(hub_cache: HubCache) -> None:
    hub_cache.put("a" * 40)
    first = one_job(model=hub_cache.MODEL)
    hub_cache.put("b" * 40)
    second = one_job(model=hub_cache.MODEL)

    assert hub_cache.downloads == []
    assert first.settings["revision"] == "a" * 40
    assert second.settings["revision"] == "b" * 40
    assert first.id != second.id
    assert "revision" not in one_job().settings


def test_a_hub_model_that_is_not_in_the_cache_is_settled_there_once(hub_cache: HubCache) -> None:
    hub_cache.put("a" * 40)
    cached = one_job(model=hub_cache.MODEL)
    hub_cache.main.unlink()

    first = one_job(model=hub_cache.MODEL)
    second = one_job(model=hub_cache.MODEL)

    assert hub_cache.downloads == [(hub_cache.MODEL, "config.json")]
    assert first.settings["revision"] == hub_cache.LATEST
    assert second.settings["revision"] == hub_cache.LATEST
    assert first.id == second.id
    assert first.id != cached.id
