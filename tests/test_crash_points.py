"""A batch is killed before each write, rename and unlink: what was finished stays so, and it
completes.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import batch_stub
import pytest
from batch_example import Here
from example_run import make_run

from ocr_phases.batch import figures, local_workers
from ocr_phases.batch.archive import finished_status
from ocr_phases.cli import main
from ocr_phases.record.store import file_hash, write_status
from ocr_phases.show import batch_page

CHANGES = ("os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
PAGES = ("a", "b")


def in_this_process(*_: object) -> Here:
    """The stub as the only worker: its writes are points to be killed at, too."""
    return Here(lambda request: batch_stub.handler(request, lambda: None))


def killed_before(out: Path, point: int) -> None:
    """Kill this process before its change number ``point`` below ``out``."""
    numbers = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES and not (event == "open" and arguments[2] & WRITING):
            return
        path = str(arguments[1] if event in ("os.rename", "os.link") else arguments[0])
        # What is removed below a folder is named from there.
        if (path.startswith(str(out)) or "/" not in path) and point == next(numbers):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def finished_pages(out: Path) -> dict[str, Any]:
    """The record's hash and the status, but for report and reference text, of each page that is
    finished.
    """
    found: dict[str, Any] = {}
    for path in out.glob("pages/*/*/status.json"):
        status = json.loads(path.read_bytes())
        if finished_status(path.parent, status["id"]) is not None:
            kept = {
                name: value
                for name, value in status.items()
                if name not in ("report", "truth", "sha256")
            }
            found[status["name"]] = [file_hash(path.with_name("run.json")), kept]
    return found


def run(command: list[str], out: Path, point: int) -> int:
    """The exit code of a command in a process of its own, killed at ``point``."""
    process = os.fork()
    if not process:
        os.dup2(os.open(out.parent / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        killed_before(out, point)
        os._exit(main(command))
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def every_point(folder: Path, command: list[str]) -> list[Any]:
    """Kill the command at every third of its changes, from ``folder / start``; what was there.

    Two pages go through the same changes, so that most of what is left out of one meets the other.
    """
    points = []
    shutil.copytree(folder / "start", folder / "first")
    with contextlib.redirect_stdout(sys.stderr):
        main([*command, "--out", str(folder / "first" / "out")])  # each fork has what it imports
    for point in itertools.count(1, 3):
        out = folder / str(point) / "out"
        shutil.copytree(folder / "start", out.parent)
        code = run([*command, "--out", str(out)], out, point)
        killed = finished_pages(out)
        again = run([*command, "--out", str(out)], out, 0)
        hidden = [str(path) for path in out.rglob(".attempt-*")]
        points.append([code, again, hidden, killed, finished_pages(out)])
        if code != -signal.SIGKILL:
            break
    return points


def with_little_work(folder: Path) -> None:
    """In this process: the stub's short record, figures of it once, and an index that is not
    drawn.
    """
    local_workers.LocalWorkers = in_this_process  # type: ignore[assignment, misc]
    batch_stub.RECORD = folder / "short.json"
    batch_page.index_html = lambda *_, **__: ""
    os.fsync = lambda _: None  # a kill loses nothing that was written
    known, compute = dict[Any, Any](), figures.page_figures

    def computed_once(run: Any, *of: Any) -> Any:
        if of not in known:
            known[of] = compute(run, *of)
        return known[of]

    figures.page_figures = computed_once  # type: ignore[assignment]


def written_otherwise(record: Path) -> None:
    """The record as another version would have written it, and its hash in the status."""
    record.write_text(json.dumps(json.loads(record.read_bytes()), indent=3))
    path = record.with_name("status.json")
    write_status(path, {**json.loads(path.read_bytes()), "record": file_hash(record)})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks of one process")
def test_what_is_finished_stays_so_whatever_change_a_batch_is_killed_before(tmp_path: Path) -> None:
    """The first command, and another truth for an archive whose records another version wrote
    otherwise.
    """
    new, archive = (tmp_path / name / "start" / "out" for name in ("new", "archive"))
    for folder in (new, archive, *(tmp_path / name for name in ("in", "truth", "other"))):
        folder.mkdir(parents=True)
    short = make_run(max_tokens=4, repeats=1, embed=False).save(tmp_path / "short.json")
    for page in PAGES:
        (tmp_path / "in" / f"{page}.png").write_text(f"ok {page}")
        (tmp_path / "truth" / f"{page}.md").write_text(f"# {page}")
        (tmp_path / "other" / f"{page}.md").write_text(f"# Not {page}")
    command = ["batch", str(tmp_path / "in"), "--device", "cpu", "--truth", str(tmp_path / "truth")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_workers, "LocalWorkers", in_this_process)
        patch.setattr(batch_stub, "RECORD", short)
        assert main([*command, "--out", str(archive)]) == 0
    for record in archive.glob("pages/*/*/run.json"):
        written_otherwise(record)
    commands = {
        "new": command,
        "archive": ["batch", "--render", "only", "--truth", str(tmp_path / "other")],
    }
    program = [sys.executable, __file__, str(tmp_path), json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    names = [f"{page}.png" for page in PAGES]
    for command_name, points in json.loads(done.stdout).items():
        assert len(points) > 6 and points[-1][0] == 0
        earlier = set(names) if command_name == "archive" else set()
        for number, (code, again, hidden, killed, end) in enumerate(points, 1):
            assert code == (0 if number == len(points) else -signal.SIGKILL)
            assert (again, hidden, sorted(end)) == (0, [], names)
            assert {page: end[page] for page in killed} == killed
            assert earlier <= set(killed)
            earlier = set(killed)


if __name__ == "__main__":
    with_little_work(place := Path(sys.argv[1]))
    commands = json.loads(sys.argv[2])
    print(
        json.dumps({name: every_point(place / name, command) for name, command in commands.items()})
    )
