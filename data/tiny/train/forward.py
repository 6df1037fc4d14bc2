"""The network's forward pass for training: the library's arithmetic, laid out for speed.

`tests/test_train.py` holds it equal to the library's class. What differs is the layout: SAM's relative
positions ride along as extra channels of queries and keys, so that flash attention can be used; all experts
are computed and weighted, most with zero; and sequences are padded on the right, where causal attention
needs no mask. Weights stay float32, activations are ``dtype``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from heads import Heads, layer_norm, linear, map_losses, pair, place_loss
from torch import Tensor, nn

KINDS = ("text", "coordinates", "tags")
TEXT, COORDINATE = KINDS.index("text"), KINDS.index("coordinates")
_PATCH, _TOKEN = 16, 64  # pixels across
_PLACES_LAYER = 1  # the decoder's layer after which a token should know its crop


@dataclass(frozen=True)
class Batch:
    """B pages of one bucket on the device.

    pixels: uint8 [B, S, S, 3]. crops: uint8 [B x n, C, C, 3], page by page and row by row, or None.
    grid: (columns, rows). text: int64 [B, L], prompt and target, padded. wanted: bool [B, L], True at the
    target. characters: int64 [B, S/16, S/8], class of the character in each cell, 0 for none; or None.
    """

    pixels: Tensor
    crops: Tensor | None
    grid: tuple[int, int]
    text: Tensor
    wanted: Tensor
    characters: Tensor | None = None


@dataclass(frozen=True)
class Losses:
    """What one batch gives.

    counts: [3, 3], a column a token kind; rows: summed loss, right answers, tokens. balance: the experts'
    load term. maps: [2], mean loss of the two character maps, or None. places: loss of the crops' places,
    or None.
    """

    counts: Tensor
    balance: Tensor
    maps: Tensor | None
    places: Tensor | None


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    h = x.float()
    return (weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6))).to(x.dtype)


def normalise(pixels: Tensor, jitter: tuple[Tensor, Tensor, Tensor] | None, dtype: torch.dtype) -> Tensor:
    """uint8 pixels to -1..1, rounded to bfloat16 as the package does, then ``dtype``.

    jitter: gain and offset of every page and colour [B, 1, 1, 3] and the noise's deviation [B, 1, 1, 1].
    """
    x = pixels.float()
    if jitter is not None:
        gain, offset, noise = jitter
        x = (x * gain + offset + torch.randn_like(x) * noise).clamp(0, 255)
    return ((x / 255 - 0.5) / 0.5).to(torch.bfloat16).to(dtype)


def embed_patches(
    pixels: Tensor,
    jitter: tuple[Tensor, Tensor, Tensor] | None,
    projection: tuple[Tensor, Tensor],
    positions: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """[B, S, S, 3] to [B, S/16, S/16, width]."""
    x = normalise(pixels, jitter, dtype)
    batch, side = x.shape[0], x.shape[1] // _PATCH
    x = x.reshape(batch, side, _PATCH, side, _PATCH, 3).permute(0, 1, 3, 5, 2, 4)
    weight, bias = projection
    return linear(x.reshape(batch, side, side, -1), weight.flatten(1), bias) + positions.to(dtype)


def sam_layer(x: Tensor, window: int, heads: int, across: tuple[Tensor, Tensor], weights: Any) -> Tensor:
    """One SAM layer on [B, n, n, width]; attention in windows, or over everything where ``window`` is 0.

    across: relative positions of rows and of columns, each [s, s, head width] for attention over s x s. The
    bias q.R is written as more channels: q is extended by its products with R, k by one-hot rows and columns.
    """
    norm1, qkv, out, norm2, up, down = weights
    batch, side, _, width = x.shape
    head, span = width // heads, window or side
    h = layer_norm(x, norm1, 1e-6)
    padding = -side % span
    tiles = (side + padding) // span
    if window:
        h = F.pad(h, (0, 0, 0, padding, 0, padding))
        h = h.reshape(batch, tiles, span, tiles, span, width).transpose(2, 3)
    h = h.reshape(-1, span * span, width)
    q, k, v = linear(h, *qkv).reshape(-1, span * span, 3, heads, head).permute(2, 0, 3, 1, 4).unbind(0)
    square = q.reshape(-1, heads, span, span, head)
    rows = torch.einsum("ghyxd,ykd->ghyxk", square, across[0].to(x.dtype)).reshape(*q.shape[:3], span)
    columns = torch.einsum("ghyxd,xkd->ghyxk", square, across[1].to(x.dtype)).reshape(*q.shape[:3], span)
    one = torch.eye(span, device=x.device, dtype=x.dtype)
    places = torch.cat([one.repeat_interleave(span, 0), one.repeat(span, 1)], dim=1)
    spare = -(head + 2 * span) % 8  # flash attention takes multiples of 8
    q = F.pad(torch.cat([q * head**-0.5, rows, columns], dim=-1), (0, spare))
    k = F.pad(torch.cat([k, places.expand(*k.shape[:2], -1, -1)], dim=-1), (0, spare))
    h = F.scaled_dot_product_attention(q, k, F.pad(v, (0, 2 * span + spare)), scale=1.0)[..., :head]
    h = linear(h.transpose(1, 2).reshape(-1, span, span, width), *out)
    if window:
        h = h.reshape(batch, tiles, tiles, span, span, width).transpose(2, 3)
        h = h.reshape(batch, tiles * span, tiles * span, width)[:, :side, :side]
    x = x + h.reshape(batch, side, side, width)
    return x + linear(F.gelu(linear(layer_norm(x, norm2, 1e-6), *up)), *down)


def compress(x: Tensor, weights: Any) -> Tensor:
    """SAM's neck and its two strided convolutions: [B, n, n, width] to [B, n/4 x n/4, width']."""
    narrow, norm1, mix, norm2, first, second = weights
    h = layer_norm(linear(x, narrow[:, :, 0, 0]), norm1, 1e-6).permute(0, 3, 1, 2)
    h = F.conv2d(h, mix.to(h.dtype), padding=1).permute(0, 2, 3, 1)
    h = layer_norm(h, norm2, 1e-6).permute(0, 3, 1, 2)
    h = F.conv2d(h, first.to(h.dtype), stride=2, padding=1)
    return F.conv2d(h, second.to(h.dtype), stride=2, padding=1).flatten(2).transpose(1, 2)


def encoder_layer(x: Tensor, heads: int, weights: Any) -> Tensor:
    """One layer of the second vision encoder on [B, T, width]."""
    norm1, query, key, value, out, norm2, up, down = weights
    h = layer_norm(x, norm1, 1e-5)
    q, k, v = (linear(h, *w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in (query, key, value))
    x = x + linear(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), *out)
    h = linear(layer_norm(x, norm2, 1e-5), *up)
    return x + linear(h * torch.sigmoid(1.702 * h), *down)


def _turn(x: Tensor, waves: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * waves[0] + torch.cat([-second, first], dim=-1) * waves[1]


def _attend(x: Tensor, waves: tuple[Tensor, Tensor], heads: int, weights: Any) -> Tensor:
    norm, query, key, value, out = weights
    h = _rms_norm(x, norm)
    q, k, v = (linear(h, w).unflatten(-1, (heads, -1)).transpose(1, 2) for w in (query, key, value))
    h = F.scaled_dot_product_attention(_turn(q, waves), _turn(k, waves), v, is_causal=True)
    return x + linear(h.transpose(1, 2).flatten(2), out)


def _gated(h: Tensor, weights: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    gate, up, down = weights
    return linear(F.silu(linear(h, gate)) * linear(h, up), down)


def dense_layer(x: Tensor, waves: tuple[Tensor, Tensor], heads: int, weights: Any) -> Tensor:
    """The text decoder's dense layer on [B, T, width]."""
    attention, norm, mlp = weights
    x = _attend(x, waves, heads, attention)
    return x + _gated(_rms_norm(x, norm), mlp)


def expert_layer(
    x: Tensor, waves: tuple[Tensor, Tensor], heads: int, top: int, weights: Any
) -> tuple[Tensor, Tensor]:
    """A decoder layer with experts, and its load term: 1 where all experts get equal shares."""
    attention, norm, gate, gate_up, down, shared = weights
    x = _attend(x, waves, heads, attention)
    h = _rms_norm(x, norm)
    experts, doubled, width = gate_up.shape
    scores = F.linear(h.float(), gate.float()).softmax(dim=-1)
    chosen = torch.zeros_like(scores).scatter(-1, scores.topk(top, dim=-1).indices, 1.0)
    z = linear(h, gate_up.reshape(experts * doubled, width)).unflatten(-1, (experts, doubled))
    z = F.silu(z[..., : doubled // 2]) * z[..., doubled // 2 :] * (scores * chosen).to(h.dtype)[..., None]
    routed = linear(z.flatten(-2), down.permute(1, 0, 2).reshape(width, -1))
    share, trust = chosen.flatten(0, -2).mean(0), scores.flatten(0, -2).mean(0)
    return x + routed + _gated(h, shared), experts * (share * trust).sum() / top


def token_losses(
    h: Tensor, head: Tensor, text: Tensor, wanted: Tensor, kinds: Tensor, near: tuple[Tensor, Tensor]
) -> Tensor:
    """[3, 3] as in `Losses`, of the tokens ``text`` that ``h`` [B, L, width] should foretell.

    near: offsets and weights [n], as of `nearness`, of the coordinates that count as right in part.
    """
    logits = linear(h, head).float().flatten(0, 1)
    truth = text.flatten()
    kind = kinds[truth]
    offsets, weights = near
    around = (truth[:, None] + offsets * (kind == COORDINATE)[:, None]).clamp(0, len(kinds) - 1)
    around = torch.where(kinds[around] == kind[:, None], around, truth[:, None])
    loss = logits.logsumexp(-1) - (logits.gather(1, around) * weights).sum(-1)
    right = (logits.argmax(-1) == truth).float()
    of_kind = F.one_hot(kind, len(KINDS)).float() * wanted.flatten()[:, None]
    return torch.stack([loss, right, torch.ones_like(loss)]) @ of_kind


def nearness(spread: float) -> tuple[Tensor, Tensor]:
    """Offsets and weights of a bell of that standard deviation, in coordinates; 0 is the truth alone.

    A box one coordinate aside is as good as any, and not to be told so makes the largest part of the
    gradient noise.
    """
    reach = round(3 * spread)
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (offsets / max(spread, 1e-6)) ** 2)
    return offsets, weights / weights.sum()


def _resized(table: Tensor, side: int) -> Tensor:
    """A square table of positions [1, n, n, width] at another side, as the library resizes it."""
    if table.shape[1] == side:
        return table
    table = table.permute(0, 3, 1, 2)
    table = F.interpolate(table, (side, side), mode="bicubic", align_corners=False, antialias=True)
    return table.permute(0, 2, 3, 1)


@cache
def _offsets(span: int, device: torch.device) -> Tensor:
    steps = torch.arange(span, device=device)
    return steps[:, None] - steps[None] + span - 1


def _relative(table: Tensor, span: int) -> Tensor:
    """[s, s, head width] from a table of relative positions, resized as the library does."""
    if len(table) != 2 * span - 1:
        table = F.interpolate(table.T[None], 2 * span - 1, mode="linear")[0].T
    return table[_offsets(span, table.device)]


class Forward:
    """The losses of a batch, from the library's own parameters.

    ``kinds`` maps each token id to its column in `Losses.counts`. With ``compiled`` the layers go through
    torch.compile: once for each size of view, whatever the batch and the text's length. ``spread`` as in
    `nearness`.
    """

    def __init__(
        self,
        model: nn.Module,
        kinds: Tensor,
        dtype: torch.dtype,
        heads: Heads | None = None,
        compiled: bool | str = False,
        spread: float = 0.0,
    ) -> None:
        first, second = nearness(spread)
        self._near = first.to(kinds.device), second.to(kinds.device)
        self.model, self.kinds, self.dtype, self.heads = model, kinds, dtype, heads
        self._run = {f: _compile(f, compiled) for f in _FUNCTIONS}
        self._dynamic = bool(compiled)

    def __call__(
        self,
        batch: Batch,
        jitter: tuple[Tensor, Tensor, Tensor] | None = None,
        given: Tensor | None = None,
    ) -> Losses:
        """A batch's losses; ``given`` [B, L] is what the decoder is told it has read, if not the text."""
        patches, views = self._vision(batch.pixels, jitter)
        parts = [self._with_breaks(views, (1, 1)), self.model.model.view_separator.expand(len(views), 1, -1)]
        if batch.crops is not None:
            local = None
            if jitter is not None:
                local = tuple(x.repeat_interleave(batch.grid[0] * batch.grid[1], 0) for x in jitter)
            parts.insert(0, self._with_breaks(self._vision(batch.crops, local)[1], batch.grid))
        image = torch.cat([part.to(self.dtype) for part in parts], dim=1)
        h, middle, balance = self._decode(image, batch.text if given is None else given)
        head = self.model.lm_head.weight
        varying = self._lengthy(h, batch.text, batch.wanted)
        arguments = h, head, batch.text, batch.wanted, self.kinds, self._near
        counts = self._call(token_losses, *arguments, varying=varying)
        maps = None
        if self.heads is not None and batch.characters is not None:
            arguments = patches, views, batch.characters
            maps = self._call(map_losses, *arguments, self.heads, varying=arguments)
        places = None
        if self.heads is not None and batch.crops is not None:
            columns, rows = batch.grid
            side = batch.crops.shape[1] // _TOKEN
            lines = middle[:, : parts[0].shape[1]].unflatten(1, (rows, side, columns * side + 1))
            tokens = lines[:, :, :, :-1].unflatten(3, (columns, side))
            places = place_loss(tokens, self.heads)  # not compiled: it would be anew for every grid
        return Losses(counts, balance, maps, places)

    def _call(self, function: Callable[..., Any], *arguments: Any, varying: Sequence[Tensor | None]) -> Any:
        """Run a function; of the ``varying`` tensors, pages and text may differ from call to call."""
        if self._dynamic:
            for tensor in varying:
                if tensor is not None:
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return self._run[function](*arguments)

    def _lengthy(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The same tensors, their second dimension marked as varying too."""
        if self._dynamic:
            for tensor in tensors:
                torch._dynamo.maybe_mark_dynamic(tensor, 1)
        return tensors

    def _vision(self, pixels: Tensor, jitter: Any) -> tuple[Tensor, Tensor]:
        """SAM's patches [V, n, n, width] and the projected tokens [V, q x q, text width] of V views."""
        tower, config = self.model.model.vision_tower, self.model.config.vision_config
        sam, side = tower.sam_encoder, pixels.shape[1] // _PATCH
        positions = _resized(sam.pos_embed, side)
        projection, varying = pair(sam.patch_embed.projection), (pixels, *(jitter or ()))
        x = self._call(embed_patches, pixels, jitter, projection, positions, self.dtype, varying=varying)
        for layer in sam.layers:
            a, span = layer.attn, layer.window_size or side
            across = _relative(a.rel_pos_h, span), _relative(a.rel_pos_w, span)
            modules = layer.layer_norm1, a.qkv, a.proj, layer.layer_norm2, layer.mlp.lin1, layer.mlp.lin2
            weights = tuple(map(pair, modules))
            heads = config.sam_config.num_attention_heads
            x = self._call(sam_layer, x, layer.window_size, heads, across, weights, varying=(x,))
        neck, proj = sam.neck, sam.proj
        weights = (
            *(neck.conv1.weight, pair(neck.layer_norm1), neck.conv2.weight, pair(neck.layer_norm2)),
            *(proj.conv1.weight, proj.conv2.weight),
        )
        small = self._call(compress, x, weights, varying=(x,))
        h = self._encode(tower.vision_encoder, small, config.encoder_config.num_attention_heads)
        return x, linear(torch.cat([h, small], dim=-1), *pair(self.model.model.multi_modal_projector))

    def _encode(self, encoder: nn.Module, small: Tensor, heads: int) -> Tensor:
        table = encoder.embeddings.position_embedding.weight
        base, side = round((len(table) - 1) ** 0.5), round(small.shape[1] ** 0.5)
        grid = _resized(table[1:].reshape(1, base, base, -1), side).reshape(side * side, -1)
        first = (encoder.embeddings.class_embedding + table[0]).to(self.dtype)
        h = torch.cat([first.expand(len(small), 1, -1), small + grid.to(self.dtype)], dim=1)
        h = layer_norm(h, pair(encoder.pre_layrnorm), 1e-5)
        for layer in encoder.encoder.layers:
            a = layer.self_attn
            modules = (
                layer.layer_norm1,
                *(a.q_proj, a.k_proj, a.v_proj, a.out_proj),
                layer.layer_norm2,
                *(layer.mlp.fc1, layer.mlp.fc2),
            )
            h = self._call(encoder_layer, h, heads, tuple(map(pair, modules)), varying=(h,))
        return h[:, 1:]

    def _with_breaks(self, views: Tensor, grid: tuple[int, int]) -> Tensor:
        """Tiles [B x n, q x q, width] as rows across the whole grid, a line break after each."""
        columns, rows = grid
        q, width = round(views.shape[1] ** 0.5), views.shape[2]
        x = views.reshape(-1, rows, columns, q, q, width).transpose(2, 3)
        x = x.reshape(-1, rows * q, columns * q, width)
        line = self.model.model.image_newline.to(x.dtype).expand(*x.shape[:2], 1, -1)
        return torch.cat([x, line], dim=2).flatten(1, 2)

    def _decode(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Last hidden states [B, L, width] that foretell ``text``, the image's in between, the load term."""
        decoder, config = self.model.model.language_model, self.model.config.text_config
        table = decoder.embed_tokens.weight.to(self.dtype)
        begin = table[config.bos_token_id].expand(len(text), 1, -1)
        x = torch.cat([begin, image, F.embedding(text[:, :-1], table)], dim=1)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        waves = tuple(wave[0] for wave in decoder.rotary_emb(x, positions))
        balance = x.new_zeros((), dtype=torch.float32)
        heads, top = config.num_attention_heads, config.num_experts_per_tok
        for index, layer in enumerate(decoder.layers):
            a, mlp = layer.self_attn, layer.mlp
            attention = layer.input_layernorm.weight, *_weights(a.q_proj, a.k_proj, a.v_proj, a.o_proj)
            norm, varying = layer.post_attention_layernorm.weight, (*self._lengthy(x), *waves)
            if hasattr(mlp, "experts"):
                s, e = mlp.shared_experts, mlp.experts
                shared = _weights(s.gate_proj, s.up_proj, s.down_proj)
                weights = attention, norm, mlp.gate.weight, e.gate_up_proj, e.down_proj, shared
                x, load = self._call(expert_layer, x, waves, heads, top, weights, varying=varying)
                balance = balance + load
            else:
                weights = attention, norm, _weights(mlp.gate_proj, mlp.up_proj, mlp.down_proj)
                x = self._call(dense_layer, x, waves, heads, weights, varying=varying)
            if index == _PLACES_LAYER:
                middle = x[:, 1 : 1 + image.shape[1]]
        return _rms_norm(x[:, image.shape[1] :], decoder.norm.weight), middle, balance


def _weights(*modules: Any) -> tuple[Tensor, ...]:
    return tuple(module.weight for module in modules)


_FUNCTIONS: Sequence[Callable[..., Any]] = (
    embed_patches,
    sam_layer,
    compress,
    encoder_layer,
    dense_layer,
    expert_layer,
    token_losses,
    map_losses,
)


def _compile(function: Callable[..., Any], how: bool | str) -> Callable[..., Any]:
    """``how``: False for the plain function, True for torch.compile, or the name of one of its backends."""
    if not how:
        return function
    torch._dynamo.config.automatic_dynamic_shapes = False  # what may vary is marked; all else is a fact
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(function, backend="inductor" if how is True else how)
