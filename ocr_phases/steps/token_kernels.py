"""The kernels of one token's decode step, for a GPU: what `TokenStep` starts one after the other.

A step for one row multiplies matrices with a vector. Each weight is read once, so a step can take
no less than reading the weights of one token takes, and what is lost is lost between kernels: each
waits for the one before it, then about a microsecond for its first bytes. So there are few kernels,
six for each layer. Each but the first and the last lets the next one start (`let_next_start`), then
reads what it can before it waits (`wait_for_others`).

Before the wait a kernel writes nothing, and reads what the step does not write: the weights and the
entries of the KV cache but the newest. More is not safe: the kernel before may have started early
as well, and then so may the one before that. The slot may be read too, because only `close_step`
writes it, when all others have ended, and no kernel starts before `close_step` has ended.

No kernel writes an address that it has read, because warps are not in step: a late one would read
what an early one has written. Only `close_step` does, which is a single program with a barrier
between the reads and the writes.

Matrices are read in chunks of ``CHUNK`` columns, of as many rows as a program has warps: each warp
has a row, so the sum over a row stays within its warp. Sums over warps are dear, and so is handing
values from one warp to another: both have barriers, and what is read behind a barrier in the source
is read once all warps are there. So a kernel reads everything first, and each warp reads a whole
vector for itself: a vector is chunks of equal rows.

Sums are float32. They are rounded where the class rounds them, but for two that it rounds in
between as well: the turned queries and keys, and the sum over the experts.

Names in capitals are known when a kernel is compiled. Triton has ranges and tiles of powers of two
only: ``X_BLOCK`` is the next one from ``X`` on, and what is behind ``X`` is masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Less than any score, and finite: the difference of two of them is 0.
LOWEST = tl.constexpr(-1e30)
#: The least int32: below each logit that is compared as a whole number.
LEAST = tl.constexpr(-(2**31))
#: The largest int32: a column that is never the least one.
NOWHERE = tl.constexpr(2**31 - 1)


# -- what the kernels are made of ------------------------------------------------------------------


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """Let the kernel behind this one start, once all programs of this one are here.

    It stands first in a kernel: the compiler would put the use of what was read before it in front
    of it, and the next kernel would wait for that, too.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_others(EARLY: tl.constexpr):
    """Wait until the kernel before has ended and all it wrote can be read.

    Without ``EARLY`` a kernel starts once the one before has ended, so there is nothing to do.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def load_columns(pointer, start: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """The chunk of rows of this ``WIDTH`` that begins with the column ``start``.

    Behind the last column it is filled with 0. ``pointer`` is to the first column of each row.
    """
    columns = start + tl.arange(0, CHUNK)[None, :]
    if start + CHUNK <= WIDTH:
        return tl.load(pointer + columns)
    return tl.load(pointer + columns, mask=columns < WIDTH, other=0.0)


@triton.jit
def load_rows(weight, rows, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """Rows of a matrix [..., WIDTH] as a tuple of chunks [R, CHUNK]; ``rows`` are int [R, 1]."""
    chunks = ()
    for start in tl.static_range(0, WIDTH, CHUNK):
        chunks = chunks + (load_columns(weight + rows * WIDTH, start, WIDTH, CHUNK),)
    return chunks


@triton.jit
def load_vector(vector, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """A vector [WIDTH] as a tuple of chunks [R, CHUNK], with the same in each row."""
    return load_rows(vector, tl.zeros([ROWS, 1], tl.int32), WIDTH, CHUNK)


@triton.jit
def products(rows, vector):
    """The products of each weight with its number of a vector, added up over the chunks, float32
    [R, CHUNK].

    What is missing to the product of matrix and vector is the sum over the columns.
    """
    total = rows[0].to(tl.float32) * vector[0].to(tl.float32)
    for number in tl.static_range(1, len(rows)):
        total += rows[number].to(tl.float32) * vector[number].to(tl.float32)
    return total


@triton.jit
def row_sums(values):
    """The sum of each row of [R, CHUNK], [R, 1]."""
    return tl.sum(values, axis=1, keep_dims=True)


@triton.jit
def store_one(pointer, number):
    """Store a [1, 1], which Triton stores at a [1, 1] of pointers only."""
    tl.store(pointer + tl.zeros([1, 1], tl.int32), number)


@triton.jit
def norm(chunks, weight, eps, WIDTH: tl.constexpr):
    """The RMS norm of a vector [WIDTH] with this weight, all three as tuples of chunks [R, CHUNK].

    It is rounded as the class does, before the product with the weight and after it.
    """
    scale = tl.rsqrt(row_sums(products(chunks, chunks)) / WIDTH + eps)
    normed = ()
    for number in tl.static_range(len(chunks)):
        chunk = (chunks[number].to(tl.float32) * scale).to(weight[number].dtype)
        normed = normed + (chunk * weight[number],)
    return normed


@triton.jit
def gated(gates, ups, vector, dtype: tl.constexpr):
    """The product of SiLU of the gate's rows with the other rows, [R, 1]."""
    gate = row_sums(products(gates, vector)).to(dtype).to(tl.float32)
    up = row_sums(products(ups, vector)).to(dtype)
    return (gate * tl.sigmoid(gate)).to(dtype) * up


# -- the kernels, in the order in which a step runs them -------------------------------------------


@triton.jit
def open_step(
    token,
    position,
    slot,
    embeddings,
    frequencies,
    mask,
    hidden,
    cosines,
    sines,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    HALF: tl.constexpr,
):
    """Begin with the token's embedding, let the step see its own entry, and compute the angles of
    its position.

    ``position`` is the newest entry's, and this step's is the next one. ``HALF`` is half a head's
    width: as many angles has a position, and the class rounds their cosines and sines.
    """
    row = tl.load(token) * WIDTH
    newest = tl.load(slot)
    new_position = tl.load(position) + 1
    pairs = tl.arange(0, HALF)
    angles = new_position.to(tl.float32) * tl.load(frequencies + pairs)
    columns = tl.arange(0, WIDTH_BLOCK)
    inside = columns < WIDTH
    embedding = tl.load(embeddings + row + columns, mask=inside)

    tl.store(hidden + columns, embedding, mask=inside)
    tl.store(mask + newest, 0.0)
    tl.store(cosines + pairs, tl.cos(angles).to(cosines.dtype.element_ty))
    tl.store(sines + pairs, tl.sin(angles).to(sines.dtype.element_ty))


@triton.jit
def project(
    hidden,
    norm_weight,
    query_weight,
    key_weight,
    value_weight,
    cosines,
    sines,
    slot,
    query,
    keys,
    values,
    eps,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Norm, then a token's query, key and value, turned by the angles of its position.

    The query is stored, key and value become the newest entry of the cache, [heads, SLOTS, size]. A
    program makes ``ROWS`` rows of a head's first half and those of the second half that turn with
    them. The grid is (heads, parts of a half, 3).
    """
    let_next_start(EARLY)
    head = tl.program_id(0)
    pair_numbers = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    pairs = pair_numbers[:, None]
    kind = tl.program_id(2)
    weight = query_weight
    if kind == 1:
        weight = key_weight
    if kind == 2:
        weight = value_weight
    rows = head * (2 * HALF) + pairs
    first_rows = load_rows(weight, rows, WIDTH, CHUNK)
    second_rows = load_rows(weight, rows + HALF, WIDTH, CHUNK)
    norm_chunks = load_vector(norm_weight, ROWS, WIDTH, CHUNK)
    newest = tl.load(slot)
    wait_for_others(EARLY)

    dtype: tl.constexpr = query.dtype.element_ty
    hidden_chunks = load_vector(hidden, ROWS, WIDTH, CHUNK)
    cosine = tl.load(cosines + pair_numbers)[:, None].to(tl.float32)
    sine = tl.load(sines + pair_numbers)[:, None].to(tl.float32)
    normed = norm(hidden_chunks, norm_chunks, eps, WIDTH)
    first = row_sums(products(first_rows, normed)).to(dtype)
    second = row_sums(products(second_rows, normed)).to(dtype)
    entry = (head * SLOTS + newest) * (2 * HALF)
    if kind == 2:
        tl.store(values + entry + pairs, first)
        tl.store(values + entry + HALF + pairs, second)
    else:
        turned_first = (first * cosine - second * sine).to(dtype)
        turned_second = (second * cosine + first * sine).to(dtype)
        place = query + rows
        if kind == 1:
            place = keys + entry + pairs
        tl.store(place, turned_first)
        tl.store(place + HALF, turned_second)


@triton.jit
def load_entries(cache, entries, read, SIZE: tl.constexpr):
    """Entries of one head of the cache, [B, SIZE]; ``entries`` are int [B]."""
    columns = tl.arange(0, SIZE)[None, :]
    return tl.load(cache + entries[:, None] * SIZE + columns, mask=(entries < read)[:, None])


@triton.jit
def load_block(keys, values, mask, entries, read, SIZE: tl.constexpr):
    """Keys and values of a block of entries, [B, SIZE], and what the mask adds to scores, [B]."""
    block_keys = load_entries(keys, entries, read, SIZE)
    block_values = load_entries(values, entries, read, SIZE)
    added = tl.load(mask + entries, mask=entries < read, other=float("-inf"))
    return block_keys, block_values, added


@triton.jit
def scores_of_block(block_keys, query, added, is_newest):
    """The scores of a block's entries, and whether each is visible, both [B, 1].

    The newest entry is not visible here, since it is added at the end.
    """
    added = added.to(tl.float32)
    is_visible = ((added > LOWEST) & (is_newest == 0))[:, None]
    scores = row_sums(block_keys.to(tl.float32) * query) + added[:, None]
    return tl.where(is_visible, scores, LOWEST), is_visible


@triton.jit
def attend(
    query,
    keys,
    values,
    mask,
    slot,
    means,
    log_totals,
    read,
    scaling,
    SLOTS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One head's attention to a part of the first ``read`` entries: ``BLOCKS`` of ``BLOCK``.

    Kept are the mean of the values with their weights, since the sum of many can be more than
    float16 holds, and the logarithm of the sum of the weights. `add_attention` puts the parts
    together. The grid is (heads, parts).

    The first block is read before the wait. The newest entry is not yet there then, so what is read
    in its place is not used, and it is read behind the wait, apart from its block.
    """
    let_next_start(EARLY)
    head = tl.program_id(0)
    part = tl.program_id(1)
    head_start = head.to(tl.int64) * (SLOTS * SIZE)
    keys += head_start
    values += head_start
    columns = tl.arange(0, SIZE)[None, :]
    newest = tl.load(slot)
    entries = part * (BLOCK * BLOCKS) + tl.arange(0, BLOCK)
    block_keys, block_values, added = load_block(keys, values, mask, entries, read, SIZE)
    wait_for_others(EARLY)

    scaled_query = tl.load(query + head * SIZE + columns).to(tl.float32) * scaling
    # Not from the multiprocessor's own cache: an older copy may be there, read before the wait.
    newest_key = tl.load(keys + newest * SIZE + columns, cache_modifier=".cg").to(tl.float32)
    newest_value = tl.load(values + newest * SIZE + columns, cache_modifier=".cg").to(tl.float32)
    # A softmax for each row of the blocks, so that warps add up only once, at the end: its highest
    # score, the sum of its weights, and the sum of its values with their weights.
    is_newest = entries == newest
    highest, is_visible = scores_of_block(block_keys, scaled_query, added, is_newest)
    total = tl.where(is_visible, 1.0, 0.0)
    result = tl.where(is_visible, block_values.to(tl.float32), 0.0)
    for _ in range(1, BLOCKS):
        entries += BLOCK
        block_keys, block_values, added = load_block(keys, values, mask, entries, read, SIZE)
        is_newest = entries == newest
        scores, is_visible = scores_of_block(block_keys, scaled_query, added, is_newest)
        higher = tl.maximum(highest, scores)
        before = tl.exp(highest - higher)
        weights = tl.where(is_visible, tl.exp(scores - higher), 0.0)
        total = total * before + weights
        visible_values = tl.where(is_visible, block_values.to(tl.float32), 0.0)
        result = result * before + weights * visible_values
        highest = higher

    # The first part has the newest entry as well.
    newest_score = tl.where(part == 0, row_sums(newest_key * scaled_query), LOWEST)
    top = tl.maximum(tl.max(highest, axis=0, keep_dims=True), newest_score)
    share = tl.exp(highest - top)
    newest_share = tl.where(part == 0, tl.exp(newest_score - top), 0.0)
    part_total = tl.sum(total * share, axis=0, keep_dims=True) + newest_share
    # The entry with the largest score weighs 1, so only a part that sees nothing has less.
    divisor = tl.maximum(part_total, 1.0)
    part_sum = tl.sum(result * share, axis=0, keep_dims=True) + newest_value * newest_share
    mean = part_sum / divisor
    place = head * tl.num_programs(1) + part
    tl.store(means + place * SIZE + columns, mean.to(means.dtype.element_ty))
    store_one(log_totals + place, top + tl.log(divisor))


@triton.jit
def attention_of_parts(means, log_totals, heads, is_head, SIZE: tl.constexpr, PARTS: tl.constexpr):
    """The attention of some heads, float32 [heads, SIZE], of the parts that `attend` kept.

    ``heads`` are int [heads]. A thread has some columns of a head, and of all of its parts: so
    none of the sums needs another thread.
    """
    columns = tl.arange(0, SIZE)[None, :]
    part_means = ()
    logs = ()
    for part in tl.static_range(PARTS):
        places = heads * PARTS + part
        mean_places = places[:, None] * SIZE + columns
        mean = tl.load(means + mean_places, mask=is_head[:, None], other=0.0)
        part_means = part_means + (mean,)
        log = tl.load(log_totals + places, mask=is_head, other=0.0)
        logs = logs + (log[:, None],)
    top = logs[0]
    for part in tl.static_range(1, PARTS):
        top = tl.maximum(top, logs[part])
    total = tl.exp(logs[0] - top)
    attention = total * part_means[0].to(tl.float32)
    for part in tl.static_range(1, PARTS):
        weight = tl.exp(logs[part] - top)
        total += weight
        attention += weight * part_means[part].to(tl.float32)
    return attention / total


@triton.jit
def add_attention(
    hidden,
    means,
    log_totals,
    weight,
    attended,
    HEADS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """``attended`` = ``hidden`` + the attention's product with its last matrix, for ``ROWS`` rows.

    Every program puts the parts of all heads together for itself. Here each warp has some of the
    heads, in all of the rows.
    """
    let_next_start(EARLY)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    heads = tl.arange(0, HEADS_BLOCK)
    is_head = heads < HEADS
    columns = heads[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    places = rows[:, None, None] * (HEADS * SIZE) + columns[None, :, :]
    weights = tl.load(weight + places, mask=is_head[None, :, None], other=0.0)
    wait_for_others(EARLY)

    dtype: tl.constexpr = attended.dtype.element_ty
    before = tl.load(hidden + rows)
    attention = attention_of_parts(means, log_totals, heads, is_head, SIZE, PARTS)
    rounded = attention.to(dtype).to(tl.float32)
    of_columns = weights.to(tl.float32) * rounded[None, :, :]
    added = tl.sum(tl.sum(of_columns, axis=2), axis=1)
    tl.store(attended + rows, before + added.to(dtype))


@triton.jit
def gate(
    attended,
    norm_weight,
    gate_weight,
    up_weight,
    router_weight,
    gated_values,
    router_logits,
    eps,
    GATED: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Norm, then the first half of what is added to each token: the dense MLP's, or the shared
    experts'.

    The programs behind the first ``GATED`` rows compute the router's logits; a dense layer has none
    of them.
    """
    let_next_start(EARLY)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    norm_chunks = load_vector(norm_weight, ROWS, WIDTH, CHUNK)
    if tl.program_id(0) * ROWS < GATED:
        gates = load_rows(gate_weight, rows, WIDTH, CHUNK)
        ups = load_rows(up_weight, rows, WIDTH, CHUNK)
        wait_for_others(EARLY)
        normed = norm(load_vector(attended, ROWS, WIDTH, CHUNK), norm_chunks, eps, WIDTH)
        tl.store(gated_values + rows, gated(gates, ups, normed, gated_values.dtype.element_ty))
    else:
        experts = rows - GATED
        chunks = load_rows(router_weight, experts, WIDTH, CHUNK)
        wait_for_others(EARLY)
        normed = norm(load_vector(attended, ROWS, WIDTH, CHUNK), norm_chunks, eps, WIDTH)
        tl.store(router_logits + experts, row_sums(products(chunks, normed)))


@triton.jit
def first_largest(numbers, columns):
    """The first of the ``columns`` with the largest number of each row, [R, 1]."""
    is_largest = numbers == tl.max(numbers, axis=1, keep_dims=True)
    return tl.min(tl.where(is_largest, columns, NOWHERE), axis=1, keep_dims=True)


@triton.jit
def sortable(numbers):
    """Float32 numbers as int32 in the same order; a NaN has a place in that order, too."""
    bits = numbers.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def expert_of_rank(
    router_logits,
    rank,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
):
    """The expert of this rank, from 0, and its probability, the same in each row of [ROWS, 1].

    Of experts with equal logits the one with the lower number is first. Logits are compared as
    whole numbers, so that the result is one of the experts even where a logit is NaN; and a warp
    finds the largest whole number by one instruction.
    """
    columns = tl.arange(0, EXPERTS_BLOCK)[None, :] + tl.zeros([ROWS, 1], tl.int32)
    inside = columns < EXPERTS
    logits = tl.load(router_logits + columns, mask=inside, other=float("-inf"))
    remaining = tl.where(inside, sortable(logits), LEAST)
    while rank > 0:  # Triton's interpreter has no range up to a number of the device
        largest = first_largest(remaining, columns)
        remaining = tl.where(columns == largest, LEAST, remaining)
        rank -= 1
    expert = first_largest(remaining, columns)
    exponentials = tl.exp(logits - tl.max(logits, axis=1, keep_dims=True))
    of_expert = tl.where(columns == expert, exponentials, 0.0)
    return expert, row_sums(of_expert) / row_sums(exponentials)


@triton.jit
def gate_experts(
    attended,
    norm_weight,
    router_logits,
    weight,
    expert_values,
    chosen,
    chosen_weights,
    eps,
    scaling,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The first half of each chosen expert, whose number and weight are kept for the second.

    ``weight`` [EXPERTS, 2 GATED, WIDTH] has an expert's gate, then its other rows. Which expert it
    is nobody knows before the wait. The grid is (parts of an expert, chosen experts).
    """
    let_next_start(EARLY)
    rank = tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    norm_chunks = load_vector(norm_weight, ROWS, WIDTH, CHUNK)
    wait_for_others(EARLY)

    # All of them at once: the next loads have to wait for the ranking.
    attended_chunks = load_vector(attended, ROWS, WIDTH, CHUNK)
    expert, probability = expert_of_rank(router_logits, rank, ROWS, EXPERTS, EXPERTS_BLOCK)
    first_row = weight + expert.to(tl.int64) * (2 * GATED * WIDTH)
    gates = load_rows(first_row, rows, WIDTH, CHUNK)
    ups = load_rows(first_row + GATED * WIDTH, rows, WIDTH, CHUNK)
    normed = norm(attended_chunks, norm_chunks, eps, WIDTH)
    result = gated(gates, ups, normed, expert_values.dtype.element_ty)
    tl.store(expert_values + rank * GATED + rows, result)
    # They are the same in each row of each program, so the expert's first row stores them.
    is_first = rows == 0
    places = rank + tl.zeros([ROWS, 1], tl.int32)
    tl.store(chosen + places, expert, mask=is_first)
    tl.store(chosen_weights + places, probability * scaling, mask=is_first)


@triton.jit
def add_experts(
    attended,
    gated_values,
    weight,
    expert_values,
    expert_weight,
    chosen,
    chosen_weights,
    hidden,
    GATED: tl.constexpr,
    EXPERT_GATED: tl.constexpr,
    CHOSEN: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """``hidden`` = ``attended`` + the second half of the chosen and the shared experts.

    A dense layer has no ``CHOSEN`` ones, and its MLP in the place of the shared experts.
    """
    let_next_start(EARLY)
    row_numbers = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = row_numbers[:, None]
    chunks = load_rows(weight, rows, GATED, CHUNK)
    wait_for_others(EARLY)

    dtype: tl.constexpr = hidden.dtype.element_ty
    before = tl.load(attended + row_numbers)[:, None]
    shared_values = load_vector(gated_values, ROWS, GATED, CHUNK)
    of_experts = tl.zeros([ROWS, CHUNK], tl.float32)
    for number in tl.static_range(CHOSEN):
        first = tl.load(chosen + number).to(tl.int64) * (WIDTH * EXPERT_GATED)
        expert_chunks = load_rows(expert_weight + first, rows, EXPERT_GATED, CHUNK)
        values = load_vector(expert_values + number * EXPERT_GATED, ROWS, EXPERT_GATED, CHUNK)
        of_experts += products(expert_chunks, values) * tl.load(chosen_weights + number)
    of_shared = row_sums(products(chunks, shared_values))
    added = row_sums(of_experts).to(dtype) + of_shared.to(dtype)
    tl.store(hidden + rows, before + added)


@triton.jit
def joined_parts(logit, word, total, other_logit, other_word, other_total):
    """Two parts of the vocabulary as one: its largest logit, the word that has it, and the sum of
    all logits.

    Of words with equal logits the one with the lower number is taken. A largest logit is never NaN,
    but a sum may be.
    """
    is_other = (other_logit > logit) | ((other_logit == logit) & (other_word < word))
    best_logit = tl.where(is_other, other_logit, logit)
    best_word = tl.where(is_other, other_word, word)
    return best_logit, best_word, total + other_total


@triton.jit
def score_words(
    hidden,
    norm_weight,
    weight,
    logits,
    best_logits,
    best_words,
    part_sums,
    eps,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    ROUNDS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Norm, then the logits of a part of the vocabulary: of ``ROUNDS`` times ``ROWS`` words.

    Kept of each part are its largest logit, the word that has it, and the sum of its logits.
    """
    let_next_start(EARLY)
    part = tl.program_id(0)
    words = part * (ROUNDS * ROWS) + tl.arange(0, ROWS)[:, None]
    rounds = ()
    for number in tl.static_range(ROUNDS):
        rounds = rounds + (load_rows(weight, words + number * ROWS, WIDTH, CHUNK),)
    norm_chunks = load_vector(norm_weight, ROWS, WIDTH, CHUNK)
    wait_for_others(EARLY)

    normed = norm(load_vector(hidden, ROWS, WIDTH, CHUNK), norm_chunks, eps, WIDTH)
    best = tl.full([ROWS, 1], float("-inf"), tl.float32)
    best_word = words
    total = tl.zeros([ROWS, 1], tl.float32)
    for number in tl.static_range(ROUNDS):
        scores = row_sums(products(rounds[number], normed)).to(logits.dtype.element_ty)
        tl.store(logits + words + number * ROWS, scores)
        scores = scores.to(tl.float32)
        # A NaN is not better, so the best word is always one of those that there are.
        is_better = scores > best
        best_word = tl.where(is_better, words + number * ROWS, best_word)
        best = tl.where(is_better, scores, best)
        total += scores
    best, best_word, total = tl.reduce((best, best_word, total), 0, joined_parts, keep_dims=True)
    store_one(best_logits + part, best)
    store_one(best_words + part, best_word)
    store_one(part_sums + part, total)


@triton.jit
def close_step(
    best_logits,
    best_words,
    part_sums,
    window_slots,
    token,
    position,
    slot,
    count,
    sums,
    PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    WINDOWED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Take the word with the largest logit as the next token, and move on to the next entry.

    One program, which puts together the ``PARTS`` that `score_words` kept. Where a window is full
    it goes back to its first slot.
    """
    wait_for_others(EARLY)
    parts = tl.arange(0, PARTS_BLOCK)
    inside = parts < PARTS
    scores = tl.load(best_logits + parts, mask=inside, other=float("-inf"))
    words = tl.load(best_words + parts, mask=inside, other=NOWHERE)
    added = tl.load(part_sums + parts, mask=inside, other=0.0)
    before = tl.load(sums)
    next_position = tl.load(position) + 1
    next_count = tl.load(count) + 1
    next_slot = tl.load(slot) + 1
    if WINDOWED:
        is_full = next_slot == tl.load(window_slots + 1)
        next_slot = tl.where(is_full, tl.load(window_slots), next_slot)
    _, word, total = tl.reduce((scores, words, added), 0, joined_parts)
    # All of its warps have read what is written now.
    tl.debug_barrier()
    tl.store(token, word.to(tl.int64))
    tl.store(sums, before + total)
    tl.store(position, next_position)
    tl.store(count, next_count)
    tl.store(slot, next_slot)
