"""What a measurement will run: the settings that were asked for, with every default filled in.

Needs no torch: a request to a server is resolved here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocr_phases.errors import Keyword, OcrPhasesError, SettingError, check_known
from ocr_phases.families import (
    FAMILIES,
    GROUNDING_TAG,
    IMAGE_TAG,
    NO_VIEWS,
    FamilyFacts,
    Preset,
    ViewSizes,
)
from ocr_phases.inputs.rows import Page, Pages, make_rows
from ocr_phases.record import Record
from ocr_phases.record.parts import to_plain
from ocr_phases.settings import (
    NEW_TOKENS,
    REQUEST_SETTINGS,
    Request,
    RunSettings,
    is_published,
    resolve_infer,
)

#: How many steps apart the end token is looked for, where nobody says: each look waits for the
#: device.
EOS_INTERVALS = {"eager": 1, "cuda_graph": 16, "compiled": 16}


def resolve_request(
    settings: RunSettings,
    family: FamilyFacts,
    pages: Pages | None,
    *,
    preset: str | None = None,
    ignore_eos: bool = False,
    sampling: Mapping[str, Any] | None = None,
) -> Request:
    """What will run for these settings and pages.

    Parameters
    ----------
    settings : RunSettings
        What was asked for; None is what was left open.
    family : FamilyFacts
        The model's family, whose presets, prompts and limits fill what is open.
    pages : str, Path, bytes, PIL.Image.Image, a sequence of them, or None
        The pages; None for a prompt without an image.
    preset : str, optional
        The preset that suits the checkpoint's weights; the default is the family's.
    ignore_eos : bool, default False
        Whether the checkpoint's text is noise, so that its end token says nothing.
    sampling : mapping, optional
        The checkpoint's own entries of ``infer``, for what that leaves open.

    Returns
    -------
    Request
        The request, in which nothing is open. With a published ``infer`` the number of new tokens
        is the published limit, which `published_tokens` then cuts to what fits.

    Raises
    ------
    OcrPhasesError
        For pages, prompts and presets that the family does not have, and for settings of a page
        where there is none.
    """
    all_pages: list[Page] = []
    if pages is None:
        prompts = [_prompt_without_image(settings, family)]
    else:
        all_pages, prompts = make_rows(pages, settings, family)
    several_pages = any(prompt.count(IMAGE_TAG) > 1 for prompt in prompts)
    infer, autocast = resolve_infer(
        settings.infer,
        settings.autocast,
        family.name,
        several_pages=several_pages,
        defaults=sampling,
    )

    max_new_tokens = settings.max_new_tokens
    if max_new_tokens is None and is_published(settings.infer):
        max_new_tokens = family.published_limit
    if max_new_tokens is None:
        max_new_tokens = NEW_TOKENS

    grounding = settings.grounding
    if grounding is None and family.boxes_tag:
        grounding = any(GROUNDING_TAG in prompt for prompt in prompts)

    if pages is None:
        preset_name = NO_VIEWS
        cutting = Preset(NO_VIEWS, base_size=0, image_size=0, crops=False)
    else:
        asked_preset = settings.preset or preset
        if several_pages and family.multipage_preset:
            asked_preset = settings.preset or family.multipage_preset
            _check_uncut(settings, family, asked_preset)
        preset_name = family.preset(asked_preset).name
        cutting = family.preset(asked_preset, ViewSizes.from_settings(settings))

    return Request(
        pages=all_pages,
        prompts=prompts,
        prompt=settings.prompt if isinstance(settings.prompt, str) else prompts[0],
        preset=preset_name,
        preset_choice="asked" if settings.preset else "default",
        base_size=settings.base_size,
        image_size=settings.image_size,
        crop_mode=settings.crop_mode,
        min_crops=settings.min_crops,
        max_crops=settings.max_crops,
        cutting=cutting,
        max_new_tokens=max_new_tokens,
        infer=infer,
        grounding=grounding,
        return_text=settings.return_text,
        ignore_eos=ignore_eos if settings.ignore_eos is None else settings.ignore_eos,
        eos_check_every=settings.eos_check_every or EOS_INTERVALS[settings.strategy],
        first_token=settings.first_token,
        repeats=settings.repeats,
        warmup=settings.warmup,
        warm_once=settings.warm_once,
        seed=settings.seed,
        strategy=settings.strategy,
        vision=settings.vision,
        threads=settings.threads,
        autocast=autocast,
        embed_page=settings.embed_page,
        generate=settings.generate,
        verify=settings.verify,
        token_probabilities=settings.token_probabilities,
        ceilings=settings.ceilings,
        phase_energy=settings.phase_energy,
        kernels=settings.kernels,
        kernel_steps=settings.kernel_steps,
        kernel_trace=settings.kernel_trace,
        price_per_hour=settings.price_per_hour,
    )


def _prompt_without_image(settings: RunSettings, family: FamilyFacts) -> str:
    """The text of a prompt without an image; `SettingError` for settings that are of a page."""
    if family.is_unknown:
        families = ", ".join(facts.title for facts in FAMILIES.values())
        raise OcrPhasesError(
            f"A prompt without an image is measured with {families}, not with {family.title}: "
            "give a page."
        )
    of_cutting = {"preset": settings.preset, **vars(ViewSizes.from_settings(settings))}
    for name, value in of_cutting.items():
        if value is not None:
            raise SettingError(
                name,
                "There is no page to cut: leave {setting} out, or give a page.",
                setting=Keyword(name, value),
            )
    if settings.vision != "eager":
        raise SettingError(
            "vision",
            "A prompt without an image runs no vision encoder: leave {vision} out.",
            vision=Keyword("vision", settings.vision),
        )
    if settings.grounding:
        raise SettingError(
            "grounding",
            "There is no page to mark boxes on: leave {grounding} out.",
            grounding=Keyword("grounding", True),
        )
    if isinstance(settings.prompt, str):
        return family.text_without_image(settings.prompt)
    if len(settings.prompt) != 1:
        raise SettingError("prompt", "Without an image there is one prompt: give a single one.")
    return family.text_without_image(settings.prompt[0])


def _check_uncut(settings: RunSettings, family: FamilyFacts, preset: str) -> None:
    """Raise `SettingError` for crops of a family that reads several pages of a prompt uncut."""
    uncut = [each.name for each in family.presets.values() if not each.crops]
    of_several_pages = f"{family.title} for several pages in one prompt"
    if settings.crop_mode is None:
        check_known(Keyword("preset"), family.preset(preset).name, uncut, of_several_pages)
    elif settings.crop_mode:
        raise SettingError(
            "crop_mode",
            "{family} reads each of them uncut: drop {crop_mode}.",
            family=of_several_pages,
            crop_mode=Keyword("crop_mode", True),
        )


def published_tokens(family: FamilyFacts, prompt_tokens: int, positions: int | None) -> int:
    """How many new tokens the published code makes after a prompt, at least one.

    ``positions`` are those that the model has for prompt and new tokens; None for no limit.
    """
    limits = []
    if family.published_limit is not None:
        prompt_share = prompt_tokens if family.limit_has_prompt else 0
        limits.append(family.published_limit - prompt_share)
    if positions is not None:
        limits.append(positions - prompt_tokens)
    return max(1, min(limits, default=NEW_TOKENS))


def recorded_settings(record: Record) -> dict[str, Any]:
    """The settings of a record's request, as keywords of ``run_inference``."""
    request = to_plain(record.request)
    settings = {name: request[name] for name in REQUEST_SETTINGS if request.get(name) is not None}
    if not record.has_page:
        del settings["preset"]  # which says that nothing was cut
    if "infer" in settings:
        infer = settings["infer"]
        settings["infer"] = {name: value for name, value in infer.items() if value is not None}
    return settings
