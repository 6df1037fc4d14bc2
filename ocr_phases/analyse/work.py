"""The cost of products, convolutions and attention, and of each vision stage.

Formulas and their sources are those of `ocr_phases.analyse.cost`, which makes tables of this.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from ocr_phases.analyse.architecture import Architecture, ClipSizes, QuerySizes


@dataclass(frozen=True)
class Work:
    """Parameters held, FLOPs done and activations moved (elements, not bytes); adds up and multiplies."""

    parameters: float = 0
    flops: float = 0
    moved: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> Work:
        return Work(*(times * value for value in astuple(self)))


def linear(tokens: float, width: int, out: int, *, bias: bool = True) -> Work:
    """[tokens, width] times [width, out]: 2 tokens width out FLOPs."""
    return Work(width * out + (out if bias else 0), 2 * tokens * width * out, tokens * (width + out))


def convolution(
    places: int, kernel: int, width: int, out: int, *, stride: int = 1, bias: bool = False
) -> Work:
    """A square kernel that makes ``places`` positions: 2 places kernel^2 width out FLOPs."""
    weights = kernel * kernel * width * out
    moved = places * (stride * stride * width + out)
    return Work(weights + (out if bias else 0), 2 * places * weights, moved)


def attention(queries: float, keys: float, width: int, *, sequences: float = 1) -> Work:
    """Scores and their sums over the values, all heads ``width`` wide: 4 queries keys width FLOPs."""
    return Work(0, 4 * sequences * queries * keys * width, sequences * 2 * (queries + keys) * width)


def expected_experts(experts: int, top_k: int, tokens: float) -> float:
    """How many distinct experts ``tokens`` tokens reach in one layer, expected under uniform routing.

    Each token picks ``top_k`` different ones of ``experts``, so an expert is missed by all of them with
    probability (1 - top_k / experts)^tokens. Real routing is skewed, so it reaches fewer.
    """
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


def swiglu(tokens: float, hidden: int, width: int) -> Work:
    """Gate, up and down: three products, 6 tokens hidden width FLOPs (Shazeer 2020, arXiv:2002.05202)."""
    return linear(tokens, hidden, 2 * width, bias=False) + linear(tokens, width, hidden, bias=False)


def norm(width: int, *, bias: bool = True) -> Work:
    """A learnt scale a channel, and a shift: elementwise, so without FLOPs."""
    return Work(width * (2 if bias else 1))


# -- the vision stages ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class VisionCall:
    """One call of the vision stack: ``images`` square images of ``side`` pixels."""

    view: str  # "global" or "local"
    side: int
    images: int = 1


def sam_work(sizes: Architecture, call: VisionCall) -> dict[str, Work]:
    """SAM ViT-B over square images: windows are padded to whole ones, as the model pads them."""
    sam, grid = sizes.sam, sizes.sam.grid(call.side)
    places = call.images * grid * grid
    windows = call.images * math.ceil(grid / sam.window) ** 2
    trained = sam.image_size // sam.patch
    windowed = _sam_attention(sizes, windows, sam.window, sam.window) * (sam.layers - sam.global_layers)
    everywhere = _sam_attention(sizes, call.images, grid, trained) * sam.global_layers
    mlp = linear(places, sam.width, sam.mlp_width) + linear(places, sam.mlp_width, sam.width)
    half, quarter = math.ceil(grid / 2), math.ceil(math.ceil(grid / 2) / 2)
    first, second = sam.downsample_widths
    patches = convolution(places, sam.patch, 3, sam.width, stride=sam.patch, bias=True)
    return {
        "patches": patches + Work(trained * trained * sam.width),
        "attention": windowed + everywhere,
        "mlp": mlp * sam.layers,
        "norms": norm(sam.width) * (2 * sam.layers) + norm(sam.neck_width) * 2,
        "neck": convolution(places, 1, sam.width, sam.neck_width)
        + convolution(places, 3, sam.neck_width, sam.neck_width),
        "downsample": convolution(call.images * half * half, 3, sam.neck_width, first, stride=2)
        + convolution(call.images * quarter * quarter, 3, first, second, stride=2),
    }


def _sam_attention(sizes: Architecture, squares: int, side: int, trained_side: int) -> Work:
    """One layer over ``squares`` of side x side tokens, with relative positions along both axes.

    A position's bias is the query times the learnt vector of the distance, once an axis: 2 x 2 side FLOPs a
    channel and token.
    """
    sam = sizes.sam
    tokens = side * side
    positions = Work(
        2 * (2 * trained_side - 1) * (sam.width // sam.heads), 2 * 2 * squares * tokens * sam.width * side
    )
    return (
        linear(squares * tokens, sam.width, 3 * sam.width)
        + linear(squares * tokens, sam.width, sam.width)
        + attention(tokens, tokens, sam.width, sequences=squares)
        + positions
    )


def encoder_work(sizes: Architecture, call: VisionCall) -> dict[str, Work]:
    """The second vision encoder, of the kind that the model has."""
    side = sizes.vision_tokens(call.side)
    if isinstance(sizes.encoder, ClipSizes):
        return _clip_work(sizes.encoder, call.images, side**2 + 1)
    return _query_work(sizes.encoder, call.images, 2 * side**2)


def _clip_work(clip: ClipSizes, images: int, length: int) -> dict[str, Work]:
    """CLIP ViT-L over SAM's features and a class token, global attention."""
    tokens = images * length
    attend = linear(tokens, clip.width, clip.width) * 4
    attend += attention(length, length, clip.width, sequences=images)
    mlp = linear(tokens, clip.width, clip.mlp_width) + linear(tokens, clip.mlp_width, clip.width)
    return {
        # The class token, and a position for it and every patch.
        "embeddings": Work((clip.positions**2 + 2) * clip.width),
        "attention": attend * clip.layers,
        "mlp": mlp * clip.layers,
        "norms": norm(clip.width) * (2 * clip.layers + 1),
    }


def _query_work(encoder: QuerySizes, images: int, length: int) -> dict[str, Work]:
    """A Qwen2 body over SAM's features and as many queries; its mask leaves out no product of a kernel."""
    tokens, width, kv_width = images * length, encoder.width, encoder.kv_width
    attend = linear(tokens, width, width + 2 * kv_width) + linear(tokens, width, width, bias=False)
    attend += Work(0, 4 * tokens * length * width, tokens * 2 * (width + kv_width))
    return {
        "queries": Work(encoder.queries * width),
        "attention": attend * encoder.layers,
        "mlp": swiglu(tokens, width, encoder.mlp_width) * encoder.layers,
        "norms": norm(width, bias=False) * (2 * encoder.layers + 1),
    }


def projector_work(sizes: Architecture, call: VisionCall) -> dict[str, Work]:
    """One linear layer over the vision features."""
    tokens = call.images * sizes.vision_tokens(call.side) ** 2
    return {"linear": linear(tokens, sizes.features, sizes.text.hidden)}
