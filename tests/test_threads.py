"""The number of CPU threads: set for a measurement, recorded, and named where a busy machine
spoiled it.
"""

import pytest
import torch
from conftest import PAGES
from example_run import altered, make_run, paced

from ocr_phases.analyse.noise import busy_host, busy_warning, repeat_spread
from ocr_phases.collectors.conditions import CoreWaits
from ocr_phases.measure.busy import busy_warnings_to

QUICK = {"preset": "tiny", "max_new_tokens": 3, "repeats": 1, "warmup": 0, "ceilings": False}


@pytest.mark.parametrize("asked", [1, 2, None])
def test_a_measurement_computes_with_the_threads_that_were_asked_for(asked, golden_session):
    before = torch.get_num_threads()
    seen = []

    def note_threads(repeat, ids):
        seen.append(torch.get_num_threads())

    run = golden_session.run_inference(
        PAGES / "slide.png", threads=asked, on_tokens=note_threads, **QUICK
    )
    expected = asked or before
    assert set(seen) == {expected}
    assert run.device.threads == expected
    assert run.request.threads == asked
    assert torch.get_num_threads() == before


def test_threads_are_given_back_where_a_callback_fails(golden_session):
    before = torch.get_num_threads()

    def fail(done, total):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        golden_session.run_inference(
            PAGES / "slide.png", threads=before + 1, progress=fail, **QUICK
        )
    assert torch.get_num_threads() == before


#: Threads, the cores that the program may use, whether it ran on a GPU, and whether its remedy
#: names one thread and taskset.
NOISY = [
    (2, 4, False, True, True),
    (64, None, False, True, True),
    (1, 2, False, False, True),
    (None, None, False, False, True),
    (2, 16, True, False, True),
    (1, 1, False, False, False),  # as after taskset -c 0
    (2, 1, False, True, False),
    (2, 1, True, False, False),
]


@pytest.mark.parametrize(("threads", "cores", "cuda", "one_thread", "taskset"), NOISY)
def test_the_remedy_of_a_noisy_run_looks_at_its_threads_and_its_cores(
    threads, cores, cuda, one_thread, taskset
):
    noisy = paced(make_run(cuda=cuda), 1.0, 2.0, 4.0)
    run = altered(noisy, device={"threads": threads, "host_cores": cores})

    verdict = repeat_spread(run)

    assert verdict.verdict == "noisy"
    assert ("threads=1" in verdict.remedy) == one_thread
    assert ("taskset" in verdict.remedy) == taskset
    assert ("one core only" in verdict.remedy) == (cores == 1)


def test_a_busy_machine_is_told_too():
    row = {"wall_s": 4.0, "cpu_s": 4.0, "waited_s": 2.0, "others": 0.4, "steal": 0.0}
    run = make_run()
    rows = [{"repeat": number, **row} for number in run.repeats]
    run = altered(
        run, device={"threads": 2, "host_cores": 2, "conditions": {"repeats": rows, "gpu": None}}
    )
    assert "threads=1" in busy_host(run).remedy


#: How long the program waited, the kind of its device, its cores and threads, and words of the
#: warning; none where the machine is quiet or does not say.
WAITED = [
    (None, "cpu", 2, 2, ""),
    (0.1, "cpu", 2, 2, ""),
    (0.4, "cpu", 2, 2, "40 % of the CPU time it needed. Close other programs, compute with one"),
    (0.85, "cpu", 1, 1, "85 % of the CPU time it needed. This program may use one core only"),
    (0.4, "cuda", 2, 2, "40 % of the CPU time it needed. Close other programs, or pin"),
]


@pytest.mark.parametrize(("waited", "kind", "cores", "threads", "words"), WAITED)
def test_a_busy_machine_is_told_before_the_repeats(waited, kind, cores, threads, words):
    warning = busy_warning(waited, kind, cores, threads)
    assert words in warning
    assert bool(warning) == bool(words)


@pytest.fixture
def busy_machine(monkeypatch):
    """A machine on which this program waits for its cores nearly all the time."""
    monkeypatch.setattr(CoreWaits, "share", 0.9)


WARNING = "in the warm-up this program waited"


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize(("warmup", "times"), [(0, 0), (1, 1), (2, 1)])
def test_a_measurement_warns_once_after_its_warm_up(warmup, times, golden_session, capsys):
    at_repeats = []

    def progress(done, total):
        if done > warmup:
            at_repeats.append(capsys.readouterr().err.count(WARNING))

    settings = {**QUICK, "warmup": warmup, "repeats": 2}
    golden_session.run_inference(PAGES / "slide.png", progress=progress, **settings)

    assert at_repeats == [times, 0]


@pytest.mark.usefixtures("busy_machine")
def test_a_warm_up_that_is_left_out_warns_of_nothing(golden_session, capsys):
    settings = {**QUICK, "warmup": 1, "warm_once": True}
    golden_session.run_inference(PAGES / "slide.png", **settings)
    capsys.readouterr()
    golden_session.run_inference(PAGES / "slide.png", **settings)
    assert WARNING not in capsys.readouterr().err


@pytest.mark.usefixtures("busy_machine")
def test_a_sweep_warns_once(golden_session, capsys):
    golden_session.sweep(PAGES / "slide.png", presets=["tiny"], lengths=[2, 3], repeats=1)
    assert capsys.readouterr().err.count(WARNING) == 1


@pytest.mark.usefixtures("busy_machine")
def test_whoever_listens_gets_the_warning_instead(golden_session, capsys):
    heard = []
    with busy_warnings_to(heard.append):
        golden_session.run_inference(PAGES / "slide.png", **{**QUICK, "warmup": 1})
    assert [WARNING in warning for warning in heard] == [True]
    assert WARNING not in capsys.readouterr().err
