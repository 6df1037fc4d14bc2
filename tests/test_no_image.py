"""A prompt without an image: it runs as the model's own generate() does, has no vision, and all
that shows a run says that there is no page.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from conftest import PAGES, RUNS
from elements import Elements
from example_run import altered, make_run
from fake_server import served
from golden_cases import RECORDINGS
from refusals import refused
from surface import plots_of, sections_of_a_record

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, compare, connect
from ocr_phases.analyse.cost import run_cost
from ocr_phases.analyse.expectations import expectation_verdicts
from ocr_phases.cli import main
from ocr_phases.families import facts_of
from ocr_phases.measure.request import resolve_request
from ocr_phases.results.run import RunPlots
from ocr_phases.session.repeating import repeat_run
from ocr_phases.settings import RunSettings
from ocr_phases.show.section import Section
from ocr_phases.stages import VISION_STAGES
from ocr_phases.view.embed import view_block
from ocr_phases.view.widgets import LatencyCurve, PageView, RecordView, TimelineView, TokenStrip

HAIKU = "Write a haiku about receipts."
ONCE: dict[str, Any] = {"repeats": 1, "warmup": 0, "max_new_tokens": 8, "ceilings": False}
SESSIONS = ("tiny_session", *(row.session for row in RECORDINGS.values()))
RECEIPT = str(PAGES / "receipt.png")
#: The figures that are of vision, of image tokens or of pages.
OF_AN_IMAGE = (
    "vision_ms",
    "vision_share",
    *(f"{stage}_ms" for stage in VISION_STAGES),
    "vision_fusion_ms",
    "valid_image_tokens",
    "compression_ratio",
    "generated_compression_ratio",
    "pages_per_hour",
    "price_per_1000_pages",
    "wh_per_1000_pages",
)
CHECKS_OF_AN_IMAGE = (
    "no_image_arguments_in_decode",
    "vision_in_prefill_only",
    "image_mask",
    "image_features",
    "visible_page",
)
#: An id that no token has.
NO_TOKEN = 1_000_000
NO_PAGE = "This run has no page: its prompt has no image."


@pytest.fixture(scope="module", params=SESSIONS)
def session(request: pytest.FixtureRequest) -> OCRSession:
    """The built-in model, and the recorded checkpoint of each family."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def haiku(session: OCRSession) -> PhaseRun:
    """A run of each model."""
    return session.run_inference(
        None, HAIKU, **ONCE, verify=True, ignore_eos=True, price_per_hour=2.0
    )


@pytest.fixture(scope="module")
def run() -> PhaseRun:
    """A record of a prompt without an image."""
    return make_run(image=False)


# -- measuring ---------------------------------------------------------------------------------


def test_the_tokens_are_those_of_generate_of_the_ids_alone(
    session: OCRSession, haiku: PhaseRun
) -> None:
    ids = torch.tensor([[session.checkpoint.bos_id, *session.encode(HAIKU)]])

    generated = session.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=NO_TOKEN,
        pad_token_id=session.pad_id,
    )

    assert haiku.result.ids == generated[0, ids.shape[1] :].tolist()
    assert haiku.request.prefill_len == ids.shape[1]


def test_generate_of_the_session_gives_the_same_tokens(
    session: OCRSession, haiku: PhaseRun
) -> None:
    one_shot = session.run_inference(None, HAIKU, **ONCE, ignore_eos=True, generate=True)
    assert one_shot.result.ids == haiku.result.ids


def test_the_prefill_has_no_vision(haiku: PhaseRun) -> None:
    stages = haiku.spans.loc[haiku.spans["phase"] == "prefill", "stage"]
    assert set(stages) == {"prefill", "language_model", "lm_head", "sampling"}
    assert "load_image" not in set(haiku.spans["stage"])


def test_figures_of_an_image_are_missing_and_not_0(haiku: PhaseRun) -> None:
    figures = haiku.summary()
    assert {name: figures[name] for name in OF_AN_IMAGE} == dict.fromkeys(OF_AN_IMAGE)
    assert figures["prefill_ms"] > 0


def test_the_cost_of_the_prompt_has_no_vision(haiku: PhaseRun) -> None:
    cost = run_cost(haiku)
    assert set(cost["stage"]) == {"language_model", "lm_head"}


def test_checks_of_an_image_say_why_they_do_not_apply(haiku: PhaseRun) -> None:
    checks = haiku.checks.set_index("name")
    of_an_image = checks.loc[list(CHECKS_OF_AN_IMAGE)]
    assert set(of_an_image["verdict"]) == {"n/a"}
    assert set(of_an_image["measured"]) == {"the prompt has no image"}
    assert checks.loc["parity", "verdict"] == "pass"
    assert "fail" not in set(checks["verdict"])


def test_rules_of_thumb_of_a_page_do_not_judge_a_prompt_without_one() -> None:
    large = make_run(image=False, cuda=True)
    verdicts = {verdict.name: verdict for verdict in expectation_verdicts(large)}
    assert verdicts["expected_vision_share"].measured == "the prompt has no image"
    assert verdicts["expected_prefill"].verdict == "n/a"
    assert verdicts["expected_decode_step"].verdict == "note"


@pytest.mark.parametrize("first_token", ["prefill", "redecode"])
def test_a_prompt_is_prepared_and_run_step_by_step(
    tiny_session: OCRSession, first_token: str
) -> None:
    run = tiny_session.run_inference(None, HAIKU, **ONCE, first_token=first_token)

    inputs = tiny_session.prepare(None, HAIKU)
    state = tiny_session.run_prefill(inputs)
    for _ in range(3):
        tiny_session.run_decode_step(state)

    assert inputs.image_tokens == (0,)
    assert state.ids[0] == run.result.ids[:4]


def test_a_record_is_measured_again(tiny_session: OCRSession) -> None:
    run = tiny_session.run_inference(None, HAIKU, **ONCE)
    assert repeat_run(run).result.ids == run.result.ids
    with refused():
        repeat_run(run, page="page.png")


#: Settings of a run without a page that need one.
NEED_A_PAGE: dict[str, dict[str, Any]] = {
    "no prompt": {},
    "a preset of prompts": {"prompt": "free"},
    "locate": {"prompt": "locate:Total"},
    "an image": {"prompt": "<image>\nFree OCR."},
    "boxes": {"prompt": "<|grounding|>OCR."},
    "nothing": {"prompt": " "},
    "two prompts": {"prompt": [HAIKU, HAIKU]},
    "a preset": {"prompt": HAIKU, "preset": "base"},
    "a size": {"prompt": HAIKU, "base_size": 640},
    "compiled vision": {"prompt": HAIKU, "vision": "compiled"},
    "grounding": {"prompt": HAIKU, "grounding": True},
}


@pytest.mark.parametrize("settings", NEED_A_PAGE.values(), ids=NEED_A_PAGE)
def test_what_needs_a_page_is_refused(settings: dict[str, Any], tiny_session: OCRSession) -> None:
    with refused():
        tiny_session.check_request(None, **settings)


def test_the_published_class_is_refused(vendor_session: OCRSession) -> None:
    with refused():
        vendor_session.run_inference(None, HAIKU, **ONCE)


def test_a_model_of_no_known_family_is_refused() -> None:
    settings = RunSettings(prompt=HAIKU)
    with refused():
        resolve_request(settings, facts_of(None), None)


def test_a_server_is_refused() -> None:
    with served() as server:
        session = connect(server.url, patience=1.0)
        with refused():
            session.run_inference(None, HAIKU)


# -- the record --------------------------------------------------------------------------------


def test_a_record_reads_as_it_was_saved(run: PhaseRun, tmp_path: Path) -> None:
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert not again.has_page
    assert again.schema == 3
    assert again.to_json() == run.to_json()


def test_a_record_that_lost_its_pages_is_damaged() -> None:
    damaged = altered(make_run(), pages=[])
    with refused():
        PhaseRun.from_dict(damaged.to_dict())


def test_a_record_with_a_page_has_one() -> None:
    record = PhaseRun.load(RUNS / "tiny-receipt.json.gz")
    assert record.has_page
    assert record.page_file == record.page_name() == "receipt.png"


def test_a_record_without_a_page_has_no_page(run: PhaseRun) -> None:
    with pytest.raises(OcrPhasesError, match=NO_PAGE):
        _ = run.page


def compare_with_a_text(run: PhaseRun) -> PhaseRun:
    return run.with_truth("text.md")


def draw_the_page(run: PhaseRun) -> object:
    return run.plot.page()


@pytest.mark.parametrize(
    "ask", [PhaseRun.page_data, PhaseRun.page_image, draw_the_page, compare_with_a_text]
)
def test_who_asks_for_the_page_is_told_that_there_is_none(
    ask: Callable[[PhaseRun], object], run: PhaseRun
) -> None:
    with pytest.raises(OcrPhasesError, match=NO_PAGE):
        ask(run)


# -- what shows it -----------------------------------------------------------------------------


def test_a_cell_says_that_there_is_no_image(run: PhaseRun) -> None:
    shown = run._repr_mimebundle_()
    for words in (shown["text/plain"], Elements(shown["text/html"]).said):
        assert "prompt without an image" in words
        assert "there is no vision" in words
        assert "no image, float32, eager" in words


@pytest.mark.parametrize("plot", [name for name in plots_of(RunPlots) if name != "page"])
def test_each_plot_is_drawn(plot: str, run: PhaseRun) -> None:
    assert getattr(run.plot, plot)().axes


def test_the_plot_of_vision_says_that_there_is_none(run: PhaseRun) -> None:
    title = run.plot.vision().axes[0].get_title(loc="left")
    assert title.startswith("No vision, because the prompt has no image")


def test_regions_that_the_text_marks_have_times_and_no_page(run: PhaseRun) -> None:
    assert len(run.regions) > 1
    assert "there is no page to draw on" in RecordView(run).source.data["note"]


def test_text_without_regions_says_that_there_is_no_page() -> None:
    plain = make_run(image=False, text="An old receipt / is all that is left of us / thank you.")
    assert RecordView(plain).source.data["note"] == NO_PAGE


@pytest.mark.parametrize("view", [RecordView, PageView, LatencyCurve, TokenStrip, TimelineView])
def test_each_widget_shows_it(view: type, run: PhaseRun) -> None:
    widget = view(run, token=2)
    assert widget.source.data["pages"] == []
    assert "prompt without an image" in widget.picture()["text/plain"]


def test_the_block_of_a_report_has_tokens_and_no_picture(run: PhaseRun) -> None:
    block = str(view_block(run))

    _, _, after_the_tag = block.partition('<script type="application/json">')
    data, _, _ = after_the_tag.partition("</script>")
    (row,) = json.loads(data)["rows"]
    assert row["pages"] == []
    assert len(row["texts"]) == run.token_count


@pytest.mark.parametrize("section", sections_of_a_record())
def test_each_section_of_a_report_is_made(
    section: Callable[[PhaseRun], Section], run: PhaseRun
) -> None:
    section(run).html()


def test_a_comparison_says_which_record_has_no_page(run: PhaseRun) -> None:
    page = make_run()

    of_page = compare(page, run)
    of_prompt = compare(run, page)

    assert "has no page, because its prompt has no image (baseline: example.png)" in of_page.verdict
    assert "read a page, example.png, and the baseline's prompt has no image" in of_prompt.verdict
    files = of_page.differs.set_index("name").loc["file"].tolist()
    assert files == ["page", "example.png", "prompt without an image"]


def test_two_prompts_without_an_image_compare_as_one_subject(run: PhaseRun) -> None:
    verdict = compare(run, make_run(image=False, seed=1)).verdict
    assert "page" not in verdict


# -- the command line --------------------------------------------------------------------------

PROMPTED = ("--no-image", "--prompt", HAIKU, "--repeats", "1", "--warmup", "0")
PROMPTED += ("--max-new-tokens", "6", "--no-ceilings", "--device", "cpu")


def test_profile_measures_a_prompt_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["profile", *PROMPTED, "--json"]) == 0

    result = json.loads(capsys.readouterr().out)
    assert result["page"] is None
    assert result["metrics"]["vision_ms"] is None
    assert "prompt without an image" in result["headline"]
    assert not PhaseRun.load(result["record"]).has_page


def test_report_of_a_prompt_alone_has_its_record_and_text(tmp_path: Path) -> None:
    folder = tmp_path / "report"

    assert main(["report", *PROMPTED, "--out", str(folder)]) == 0

    run = PhaseRun.load(folder / "run.json")
    assert (folder / "result.mmd").read_text() == run.text
    assert not (folder / "result_with_boxes.jpg").exists()
    assert "prompt without an image" in (folder / "report.html").read_text()


def test_artifacts_of_a_prompt_alone_are_its_text(run: PhaseRun, tmp_path: Path) -> None:
    record = run.save(tmp_path / "run.json")

    assert main(["artifacts", str(record), "--out", str(tmp_path / "files")]) == 0

    names = {path.name for path in (tmp_path / "files").iterdir() if path.suffix}
    assert {"result.mmd", "result_ori.mmd"} <= names
    assert not any(name.endswith(".jpg") for name in names)


#: Commands with ``--no-image`` and something that is not for it.
WRONG_COMMANDS = {
    "a page": ["profile", RECEIPT, *PROMPTED],
    "pages": ["report", RECEIPT, *PROMPTED],
    "a record": ["report", *PROMPTED, "--record", "run.json"],
    "a repetition": ["profile", *PROMPTED, "--from", "run.json"],
    "a dry run": ["profile", *PROMPTED, "--dry-run"],
    "a truth": ["profile", *PROMPTED, "--truth", "text.md"],
    "a server": ["report", "--no-image", "--server", "http://127.0.0.1:9/v1", "--prompt", HAIKU],
    "a preset of prompts": ["profile", "--no-image"],
    "a preset": ["profile", *PROMPTED, "--preset", "base"],
}
for _verb in ("verify", "batch", "sweep", "compare", "artifacts"):
    WRONG_COMMANDS[_verb] = [_verb, RECEIPT, "--no-image", "--prompt", HAIKU]


@pytest.mark.parametrize("command", WRONG_COMMANDS.values(), ids=WRONG_COMMANDS)
def test_an_option_that_is_not_for_a_prompt_alone_is_refused(
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(command) == 2

    error = capsys.readouterr().err.strip()
    assert error.startswith("ocr-phases: ")
    assert "\n" not in error
    assert list(tmp_path.iterdir()) == []


def test_an_older_record_without_a_preset_of_its_own_still_needs_its_page() -> None:
    old = make_run()
    request = msgspec.structs.replace(old.request, preset="")
    content = altered(old, request=request).to_dict()
    assert PhaseRun.from_dict(content).has_page
