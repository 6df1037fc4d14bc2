"""The parts of a record about a page and about what was written of it.

Needs no torch: the record of a server has them, too.
"""

from __future__ import annotations

from PIL import Image

from ocr_phases.families import PROCESSOR, Preset
from ocr_phases.files import split_page
from ocr_phases.images import describe_page
from ocr_phases.inputs.views import valid_image_tokens
from ocr_phases.record.parts import InferPart, PagePart, RequestPart, ResultPart, make_part
from ocr_phases.settings import Request

#: A page as `ocr_phases.images.load_page` gives it: upright, the bytes of its file, and its name.
LoadedPage = tuple[Image.Image, bytes | None, str]


def page_id(file: str, sha256: str) -> str:
    """What a page is known by: the hash is its whole file's, so a later page's number too."""
    number = split_page(file)[1]
    return sha256 if number == "#1" else f"{sha256}{number}"


def page_part(
    page: LoadedPage,
    preset: Preset,
    *,
    row: int,
    image_tokens: int | None,
    text_tokens: int | None,
    embed: bool,
) -> PagePart:
    """The record's part about a page.

    Parameters
    ----------
    page : tuple
        The page.
    preset : Preset
        How it was cut.
    row : int
        The row of the batch that it is in.
    image_tokens : int or None
        Image tokens of the row's whole prompt; None where a checkpoint names no image token.
    text_tokens : int or None
        Its other tokens; None where a server did not tell how long the prompt is, and where the
        image tokens are not known apart.
    embed : bool
        Whether the record keeps the page itself.
    """
    image, data, name = page
    described = describe_page(image, data, name, embed=embed)
    if preset.name == PROCESSOR:  # how the page was cut is unknown
        return PagePart(
            **described,
            row=row,
            preset=PROCESSOR,
            grid=[1, 1],
            image_tokens=image_tokens,
            text_tokens=text_tokens,
        )
    grid = preset.grid(*image.size)
    return PagePart(
        **described,
        row=row,
        preset=preset.name,
        grid=list(grid),
        image_tokens=image_tokens,
        text_tokens=text_tokens,
        valid_image_tokens=valid_image_tokens(preset, image.size, grid),
    )


def request_part(
    request: Request,
    *,
    repeats: int,
    prefill_len: int | None,
    batch: int,
    warmed_before: bool = False,
) -> RequestPart:
    """The record's part about what was asked.

    Parameters
    ----------
    request : Request
        What ran.
    repeats : int
        How many repeats were finished.
    prefill_len : int or None
        Tokens of the prompt, the padding of a batch included; None where a server did not tell.
    batch : int
        Rows.
    warmed_before : bool, default False
        Whether the warm-up was left out, because the model had run these shapes before.
    """
    return RequestPart(
        prompt=request.prompt,
        preset=request.preset,
        base_size=request.base_size,
        image_size=request.image_size,
        crop_mode=request.crop_mode,
        min_crops=request.min_crops,
        max_crops=request.max_crops,
        max_new_tokens=request.max_new_tokens,
        infer=make_part(InferPart, request.infer.described()),
        grounding=request.grounding,
        return_text=request.return_text,
        ignore_eos=request.ignore_eos,
        eos_check_every=request.eos_check_every,
        first_token=request.first_token,
        repeats=repeats,
        warmup=request.warmup,
        seed=request.seed,
        strategy=request.strategy,
        vision=request.vision,
        threads=request.threads,
        autocast=request.autocast,
        embed_page=request.embed_page,
        generate=request.generate,
        verify=request.verify,
        price_per_hour=request.price_per_hour,
        prompts=request.prompts,
        preset_choice=request.preset_choice,
        prefill_len=prefill_len,
        batch=batch,
        warm_once=request.warm_once,
        warmed_before=warmed_before,
    )


def row_part(
    request: Request,
    *,
    ids: list[int],
    texts: list[str],
    text: str,
    finish_reason: str,
    text_tokens: int | None = None,
) -> ResultPart:
    """The record's part about a row's result.

    Parameters
    ----------
    request : Request
        Says whether the text is kept.
    ids : list of int
        The generated tokens, the end token included.
    texts : list of str
        The text of each.
    text : str
        The whole text, without the end token.
    finish_reason : str
        Why it ended, in OpenAI's words: ``stop`` or ``length``, or another one of a server.
    text_tokens : int, optional
        How many tokens the whole text has when it is tokenised again.
    """
    return ResultPart(
        ids=ids,
        token_texts=texts if request.return_text else [""] * len(ids),
        text=text if request.return_text else None,
        finish_reason="eos" if finish_reason == "stop" else finish_reason,
        text_tokens=text_tokens,
    )
