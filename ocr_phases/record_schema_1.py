"""Reads records of schema 1: renames entries to schema 2 and fills in missing values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ocr_phases.presets import GROUNDING_TAG, PROMPTS

SCHEMA_1 = 1

_CACHE = {"capacity": "max_cache_len", "capacity_bytes": "allocated_bytes"}
_SETUP = {"slots": "max_cache_len", "capacity_bytes": "allocated_bytes"}
_CHECKS = {"host_waits": "host_syncs", "closure": "stage_coverage"}
_STAGES = {"decoder": "language_model"}


def upgrade(record: dict[str, Any]) -> dict[str, Any]:
    """A new record of schema 2 from one of schema 1.

    A part that is not of the type it should be stays as it is: `check_record` names it.
    """
    record = {**record, "schema": 2}
    _change(record, "request", lambda request: _request(request, record.get("model")))
    _change(record, "model", _model)
    _change(record, "cache", lambda cache: _renamed(cache, _CACHE))
    _change(record, "spans", _named_stages)
    _change(record, "kernels", _kernels)
    _change_each(record, "results", lambda result: _renamed(result, {"finish": "finish_reason"}))
    _change_each(record, "checks", _check)
    return _renamed(record, {"checks": "live_checks"})


def _request(request: dict[str, Any], model: Any) -> dict[str, Any]:
    """Early records name no strategy, vision or seed, and say no grounding of presets that ask for boxes."""
    strategy = model.get("strategy") if isinstance(model, dict) else None
    request = request | {
        name: value
        for name, value in (("seed", 0), ("strategy", strategy or "eager"), ("vision", "eager"))
        if name not in request
    }
    prompt = request.get("prompt")
    if "grounding" in request and isinstance(prompt, str) and prompt in PROMPTS:
        request["grounding"] = GROUNDING_TAG in PROMPTS[prompt]
    return request


def _model(model: dict[str, Any]) -> dict[str, Any]:
    model = dict(model)
    if model.get("strategy") is None:
        model["strategy"] = "eager"
    _change(model, "parameters", lambda parameters: _renamed(parameters, _STAGES))
    _change(model, "strategy_setup", lambda setup: _renamed(setup, _SETUP))
    return model


def _kernels(view: dict[str, Any]) -> dict[str, Any]:
    view = _renamed(view, {"syncs": "host_syncs"})
    _change(view, "decode_steps", lambda table: _renamed(table, {"syncs": "host_syncs"}))
    for name in view:
        _change(view, name, _named_stages)
    return view


def _named_stages(table: dict[str, Any]) -> dict[str, Any]:
    """A table, one list a column, with the stages' names of today."""
    if not isinstance(table.get("stage"), list):
        return table
    return {**table, "stage": [_stage(name) for name in table["stage"]]}


def _stage(name: Any) -> Any:
    return _STAGES.get(name, name) if isinstance(name, str) else name


def _check(check: dict[str, Any]) -> dict[str, Any]:
    name = check.get("name")
    return {**check, "name": _CHECKS.get(name, name)} if isinstance(name, str) else check


def _renamed(entries: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in entries.items()}


def _change(parent: dict[str, Any], name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    if isinstance(parent.get(name), dict):
        parent[name] = change(parent[name])


def _change_each(parent: dict[str, Any], name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    if isinstance(parent.get(name), list):
        parent[name] = [change(entry) if isinstance(entry, dict) else entry for entry in parent[name]]
