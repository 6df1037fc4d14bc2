"""``verify --published``: the kit for whoever has the published weights, on the weights at hand."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import GOLDEN, GOLDEN_2, GOLDEN_UNLIMITED

from ocr_phases.analyse.published import SAMPLE_PAGES, without_private_words
from ocr_phases.cli import main
from ocr_phases.errors import Interrupted, OcrPhasesError
from ocr_phases.record import Record
from ocr_phases.session.session import OCRSession

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = ["--device=cpu", "--max-new-tokens=4", "--repeats=1", "--warmup=0", "--no-ceilings"]
SHORT += ["--no-token-probabilities"]


@pytest.fixture
def somebody(monkeypatch):
    """A user and a host with names of their own."""
    monkeypatch.setenv("HOME", "/home/erika.mustermann")
    monkeypatch.setenv("LOGNAME", "emustermann")
    monkeypatch.setattr("platform.node", lambda: "lab-gpu-17")
    return ["mustermann", "lab-gpu-17"]


def verify(*arguments):
    """The exit code and the object of ``verify --published``."""
    return main(["verify", "--published", *map(str, arguments), *SHORT, "--json"])


def content(folder):
    return json.loads((folder / "published_weights.json").read_bytes())


@pytest.mark.parametrize(
    ("recording", "family", "preset"),
    [
        (GOLDEN, "deepseek-ocr", "tiny"),
        (GOLDEN_2, "deepseek-ocr-2", "small768"),
        (GOLDEN_UNLIMITED, "unlimited-ocr", "tiny"),
    ],
)
def test_a_checkpoint_of_each_family_is_measured_on_three_pages(
    recording, family, preset, golden_checkpoint, somebody, tmp_path, capsys
):
    checkpoint = golden_checkpoint(recording)
    assert verify(checkpoint, "--out", tmp_path, "--preset", preset) == 0
    told = json.loads(capsys.readouterr().out)
    said = content(tmp_path)
    assert told["published"] == str(tmp_path / "published_weights.json")
    assert told["pages"] == said["pages"]
    assert (said["model"]["family"], said["weights"]) == (
        family,
        f"weights of {family} from a folder or another repository",
    )
    assert [page["page"] for page in said["pages"]] == list(SAMPLE_PAGES)
    for page in said["pages"]:
        verdicts = {check["name"]: check["verdict"] for check in page["checks"]}
        assert verdicts["parity"] == "pass"
        assert page["figures"]["prefill_ms"] > 0
        assert page["figures"]["tokens"] == 4
        assert 0 <= page["quality"]["edit_distance"] <= 1
        assert page["text"]
    for name in ("published_weights.json", "published_weights.md"):
        text = (tmp_path / name).read_text()
        private = [*somebody, str(tmp_path), str(checkpoint), checkpoint.parent.name + "/"]
        assert [word for word in private if word in text] == []


def test_the_built_in_model_is_named_and_its_records_stay_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert verify("tiny", "--preset=tiny") == 0
    folder = tmp_path / "ocr_phases_published"
    assert content(folder)["weights"] == "the built-in model"
    assert "Checks: " in (folder / "published_weights.md").read_text()
    records = sorted((folder / "records").iterdir())
    assert [path.name for path in records] == ["invoice.json", "paper.json", "receipt.json"]
    assert all(Record.load(path).truths for path in records)


def test_the_record_of_a_page_is_written_once(tmp_path, monkeypatch):
    measured = OCRSession.run_inference
    marked = []

    def run_inference(session, page, **settings):
        for path in (tmp_path / "records").glob("*.json"):
            os.utime(path, ns=(0, 0))  # one that is written again gets the time of that
            marked.append(path)
        return measured(session, page, **settings)

    monkeypatch.setattr(OCRSession, "run_inference", run_inference)
    assert verify("tiny", "--preset=tiny", "--out", tmp_path) == 0
    assert {path.name for path in marked} == {"receipt.json", "invoice.json"}
    assert {path.stat().st_mtime_ns for path in marked} == {0}


def break_page(monkeypatch, name, sentence):
    """Let the page with this in its name fail with this sentence."""
    measured = OCRSession.run_inference

    def run_inference(session, page, **settings):
        if name in page:
            raise OcrPhasesError(sentence)
        return measured(session, page, **settings)

    monkeypatch.setattr(OCRSession, "run_inference", run_inference)


def test_a_page_without_a_record_leaves_none_of_an_earlier_output(tmp_path, monkeypatch):
    assert verify("tiny", "--preset=tiny", "--out", tmp_path) == 0
    break_page(monkeypatch, "paper", "It broke.")
    assert verify("tiny", "--preset=tiny", "--out", tmp_path) == 1
    records = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert records == ["invoice.json", "receipt.json"]


def test_a_page_that_fails_loses_nothing_of_the_others(
    golden_checkpoint, somebody, tmp_path, monkeypatch, capsys
):
    broken = "The file /data/secret/invoice.png on lab-gpu-17 broke."
    break_page(monkeypatch, "invoice", broken)
    assert verify(golden_checkpoint(GOLDEN), "--out", tmp_path, "--preset=tiny") == 1
    assert json.loads(capsys.readouterr().out)["exit_reason"] == "a page could not be measured"
    receipt, invoice, paper = content(tmp_path)["pages"]
    assert invoice == {"page": "invoice.png", "error": "The file (hidden) on (hidden) broke."}
    assert receipt["figures"]["tokens"] == paper["figures"]["tokens"] == 4
    assert "could not be measured" in (tmp_path / "published_weights.md").read_text()


def test_where_every_page_fails_the_file_says_of_what_and_where(
    golden_checkpoint, tmp_path, monkeypatch
):
    def run_inference(*_, **__):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(OCRSession, "run_inference", run_inference)
    assert verify(golden_checkpoint(GOLDEN), "--out", tmp_path) == 1
    said = content(tmp_path)
    assert {page["error"] for page in said["pages"]} == {
        "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    }
    assert said["model"]["family"] == "deepseek-ocr"
    assert said["device"]["kind"] == "cpu"
    assert said["versions"]["torch"]


def test_a_stop_keeps_the_finished_pages_and_repeats(
    golden_checkpoint, tmp_path, monkeypatch, capsys
):
    measured = OCRSession.run_inference

    def run_inference(session, page, **settings):
        run = measured(session, page, **settings)
        if "invoice" in page:
            raise Interrupted(run, signal.SIGINT)
        return run

    monkeypatch.setattr(OCRSession, "run_inference", run_inference)
    code = verify(golden_checkpoint(GOLDEN), "--out", tmp_path, "--preset=tiny")
    assert code == 128 + signal.SIGINT
    assert "stopped" in json.loads(capsys.readouterr().out)["exit_reason"]
    receipt, invoice = content(tmp_path)["pages"]
    assert "stopped" not in receipt
    assert invoice["stopped"] is True


def test_a_model_of_another_class_is_told_its_own_command(tmp_path, capsys, monkeypatch):
    other = SimpleNamespace(family=SimpleNamespace(name="got_ocr2"))
    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda *_: other)
    assert verify("some/model", "--out", tmp_path) == 2
    assert "--model some/model" in json.loads(capsys.readouterr().out)["exit_reason"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("It needs /home/a/x.json.", "It needs (hidden)"),
        ("'~/models/x' is no folder", "'(hidden)' is no folder"),
        (r"C:\Users\a is no folder", "(hidden) is no folder"),
        ("12 tokens/s, 3/4 of all, 14/03/2026", "12 tokens/s, 3/4 of all, 14/03/2026"),
        ("of emustermann on lab-gpu-17", "of (hidden) on (hidden)"),
    ],
)
def test_a_sentence_in_the_file_has_no_paths_and_no_names(sentence, shown, somebody):
    assert without_private_words(sentence) == shown


def test_signs_in_a_host_s_name_are_no_pattern(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "lab+gpu.17")
    sentence = "Here is lab+gpu.17, and labbgpu_17 is another."
    assert without_private_words(sentence) == "Here is (hidden), and labbgpu_17 is another."


def test_the_issue_form_asks_for_the_file_that_the_command_writes():
    form = Path(__file__).parents[1] / ".github" / "ISSUE_TEMPLATE" / "published_weights.yml"
    text = form.read_text()
    assert "ocr-phases verify --published" in text
    assert "published_weights.json" in text
