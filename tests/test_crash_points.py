"""A batch is killed before each write, rename and unlink: what was finished stays so, and it
completes.

The test starts this file as a program, which imports everything once, kills a fork of itself at
each point in turn, and prints what was there.
"""

import contextlib
import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import batch_stub
import pytest
from batch_example import Here
from example_run import make_run

from ocr_phases import PhaseRun
from ocr_phases.batch import figures, local_workers
from ocr_phases.batch.archive import finished_status
from ocr_phases.batch.outcome import Outcome
from ocr_phases.cli import main
from ocr_phases.record.store import file_hash, write_status
from ocr_phases.show import batch_page

#: The events of Python's audit hooks that change a folder, beside those that open a file to write.
CHANGES = ("os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
#: Those of them whose second argument is what appears; of the others the first is what changes.
CHANGES_WITH_TARGET = ("os.rename", "os.link")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
#: Only every third change is a point to be killed at. Two pages go through the same changes, so
#: that most of what is left out of one meets the other.
CHANGES_PER_POINT = 3
PAGES = ("a", "b")
#: A number that no change has.
NEVER = 0


@dataclass(frozen=True)
class Kill:
    """What was there after a command was killed at one point, and after it was run again.

    Attributes
    ----------
    exit_code
        That of the command that was to be killed: minus the signal, or 0 where it had ended before.
    second_exit_code
        That of the same command, run again.
    hidden
        What attempts left behind after the second run.
    finished
        The pages that were finished when the first one was killed, as `finished_pages` has them.
    finished_in_the_end
        Those that were finished after the second run.
    """

    exit_code: int
    second_exit_code: int
    hidden: list[str]
    finished: dict[str, Any]
    finished_in_the_end: dict[str, Any]


# -- the program that kills ------------------------------------------------------------------------


def is_change(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an audit event is a change of a folder or a file."""
    if event == "open":
        flags = arguments[2]
        return bool(flags & WRITING)
    return event in CHANGES


def is_below(event: str, arguments: tuple[Any, ...], out: Path) -> bool:
    """Whether a change concerns what lies in a folder."""
    path = str(arguments[1] if event in CHANGES_WITH_TARGET else arguments[0])
    # What is removed below a folder is named from there.
    return path.startswith(str(out)) or "/" not in path


def kill_before_change(number: int, out: Path) -> None:
    """Kill this process before its change below ``out`` that has this number, from 1 on."""
    numbers = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not is_change(event, arguments) or not is_below(event, arguments, out):
            return
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def run_in_fork(command: list[str], out: Path, killed_at: int) -> int:
    """The exit code of a command in a fork of this process, killed before this change of it."""
    process = os.fork()
    if not process:
        output = os.open(out.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, sys.stdout.fileno())
        os.dup2(output, sys.stderr.fileno())
        kill_before_change(killed_at, out)
        os._exit(main([*command, "--out", str(out)]))
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def finished_pages(out: Path) -> dict[str, Any]:
    """The record's hash and the status, but for report and reference text, of each page that is
    finished.
    """
    pages: dict[str, Any] = {}
    for path in out.glob("pages/*/*/status.json"):
        status = json.loads(path.read_bytes())
        if finished_status(path.parent, status["id"]) is None:
            continue
        for name in ("report", "truth", "sha256"):
            status.pop(name, None)
        pages[status["name"]] = [file_hash(path.with_name("run.json")), status]
    return pages


def kill_and_repeat(folder: Path, command: list[str], killed_at: int) -> Kill:
    """Kill a command that begins with what is in ``folder / start``, and run it again."""
    out = folder / str(killed_at) / "out"
    shutil.copytree(folder / "start", out.parent)
    exit_code = run_in_fork(command, out, killed_at)
    finished = finished_pages(out)
    second_exit_code = run_in_fork(command, out, NEVER)
    hidden = [str(path) for path in out.rglob(".attempt-*")]
    return Kill(exit_code, second_exit_code, hidden, finished, finished_pages(out))


def kill_at_every_point(folder: Path, command: list[str]) -> list[Kill]:
    """Kill a command at each of its points; the last time it ends before it would be killed."""
    shutil.copytree(folder / "start", folder / "first")
    with contextlib.redirect_stdout(sys.stderr):
        main([*command, "--out", str(folder / "first" / "out")])  # each fork has what it imports
    gc.freeze()  # no fork looks through what it shares with this process
    kills = []
    for killed_at in itertools.count(1, CHANGES_PER_POINT):
        kill = kill_and_repeat(folder, command, killed_at)
        kills.append(kill)
        if kill.exit_code != -signal.SIGKILL:
            break
    return kills


def stub_worker(*_: object) -> Here:
    """The stub as the only worker, in this process: its writes are points to be killed at, too."""

    def answer(request: Any) -> Outcome:
        return batch_stub.handler(request, lambda: None)

    return Here(answer)


def save_work(folder: Path) -> None:
    """In this process: the stub's short record, figures of it once, and an index that is not
    drawn.
    """
    compute_figures = figures.page_figures
    figures_by_arguments: dict[Any, Any] = {}

    def figures_once(run: PhaseRun, *arguments: Any) -> Any:
        if arguments not in figures_by_arguments:
            figures_by_arguments[arguments] = compute_figures(run, *arguments)
        return figures_by_arguments[arguments]

    figures.page_figures = figures_once
    local_workers.LocalWorkers = stub_worker
    batch_stub.RECORD = folder / "short.json"
    batch_page.index_html = lambda *_, **__: ""
    os.fsync = lambda _: None  # a kill loses nothing that was written


# -- the test --------------------------------------------------------------------------------------


def make_page_files(folder: Path) -> None:
    """Pages, what they truly say (``truth``), and other texts for them (``other``)."""
    for name in ("in", "truth", "other"):
        (folder / name).mkdir()
    for page in PAGES:
        (folder / "in" / f"{page}.png").write_text(f"ok {page}")
        (folder / "truth" / f"{page}.md").write_text(f"# {page}")
        (folder / "other" / f"{page}.md").write_text(f"# Not {page}")


def write_as_another_version(record: Path) -> None:
    """Write a record as another version would have written it, and its hash into the status."""
    record.write_text(json.dumps(json.loads(record.read_bytes()), indent=3))
    path = record.with_name("status.json")
    status = json.loads(path.read_bytes())
    write_status(path, {**status, "record": file_hash(record)})


def make_archive(command: list[str], out: Path, record: Path) -> None:
    """A finished batch whose records another version wrote otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_workers, "LocalWorkers", stub_worker)
        patch.setattr(batch_stub, "RECORD", record)
        assert main([*command, "--out", str(out)]) == 0
    for path in out.glob("pages/*/*/run.json"):
        write_as_another_version(path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks of one process")
def test_what_is_finished_stays_so_whatever_change_a_batch_is_killed_before(tmp_path: Path) -> None:
    """The first command, and another truth for an archive whose records another version wrote
    otherwise.
    """
    make_page_files(tmp_path)
    record = make_run(max_tokens=4, repeats=1, embed=False).save(tmp_path / "short.json")
    first = ["batch", str(tmp_path / "in"), "--device", "cpu", "--truth", str(tmp_path / "truth")]
    with_other_truth = ["batch", "--render", "only", "--truth", str(tmp_path / "other")]
    for name in ("new", "archive"):
        (tmp_path / name / "start" / "out").mkdir(parents=True)
    make_archive(first, tmp_path / "archive" / "start" / "out", record)

    kills_of_first = kills_of(tmp_path / "new", first)
    kills_of_archive = kills_of(tmp_path / "archive", with_other_truth)

    assert_finished_stays_finished(kills_of_first, finished_before=set())
    assert_finished_stays_finished(kills_of_archive, finished_before={"a.png", "b.png"})


def kills_of(folder: Path, command: list[str]) -> list[Kill]:
    """What the program that kills has to say of a command."""
    program = [sys.executable, __file__, str(folder), json.dumps(command)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [Kill(**kill) for kill in json.loads(done.stdout)]


def assert_finished_stays_finished(kills: list[Kill], finished_before: set[str]) -> None:
    """Each point finds what the one before left finished, and nothing that is finished changes."""
    assert len(kills) > 6
    *killed, ended = kills
    assert [kill.exit_code for kill in killed] == [-signal.SIGKILL] * len(killed)
    assert ended.exit_code == 0
    for kill in kills:
        assert kill.second_exit_code == 0
        assert kill.hidden == []
        assert sorted(kill.finished_in_the_end) == ["a.png", "b.png"]
        for page, record_and_status in kill.finished.items():
            assert kill.finished_in_the_end[page] == record_and_status
        assert finished_before <= set(kill.finished)
        finished_before = set(kill.finished)


if __name__ == "__main__":
    folder_of_command = Path(sys.argv[1])
    save_work(folder_of_command.parent)
    kills = kill_at_every_point(folder_of_command, json.loads(sys.argv[2]))
    print(json.dumps([asdict(kill) for kill in kills]))
