"""A warm-up that is left out where the loaded model has run the same shapes before."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import PAGES

from ocr_phases import OCRSession
from ocr_phases.analyse.sentences import findings

#: As the batch asks for pages.
QUICK: dict[str, Any] = {
    "preset": "tiny",
    "max_new_tokens": 3,
    "repeats": 1,
    "ceilings": False,
    "token_probabilities": False,
}


@pytest.fixture
def session(golden_session: OCRSession, pixels_seen_once: None) -> OCRSession:
    """A session whose model has run nothing in it yet."""
    return OCRSession.from_model(golden_session.model, golden_session.tokenizer)


def runs_of(session: OCRSession, page: str, **options: Any) -> tuple[int, Any]:
    """How many runs a measurement made, and its record."""
    seen = []
    run = session.run_inference(
        PAGES / page, **(QUICK | options), progress=lambda done, total: seen.append(total)
    )
    return max(seen), run


def test_a_second_page_of_the_same_shapes_needs_no_warm_up(session: OCRSession) -> None:
    first_runs, first = runs_of(session, "receipt.png", warm_once=True)
    second_runs, second = runs_of(session, "invoice.png", warm_once=True)

    assert (first_runs, second_runs) == (2, 1)
    assert (first.request.warmed_before, second.request.warmed_before) == (False, True)
    assert second.request.warmup == 1  # what was asked, which a repetition of the record does
    assert "had run these shapes before" in " ".join(findings(second))
    assert "no warm-up" not in " ".join(findings(first))


@pytest.mark.parametrize(
    "other",
    [{"max_new_tokens": 4}, {"preset": "small"}, {"prompt": "free"}, {"warm_once": False}],
    ids=["more tokens", "another preset", "another prompt", "not asked for"],
)
def test_other_shapes_are_warmed_up(session: OCRSession, other: dict[str, Any]) -> None:
    runs_of(session, "receipt.png", warm_once=True)
    runs, run = runs_of(session, "receipt.png", **({"warm_once": True} | other))
    assert runs == 2
    assert not run.request.warmed_before
