"""The texts of each check, by name: what it expects, why it matters, what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckText:
    """Expected value (where the record has none), reason and remedy of a check."""

    expected: str
    why: str
    fix: str


_SEEDS = "A rule of thumb for the full model on any GPU."
_RERUN = "Measure again with this version of ocr_phases."

#: In the order of the table: checks of validity come first.
RULES: dict[str, CheckText] = {
    "parity": CheckText(
        "the tokens of generate()",
        "Times are meaningless if this loop computes something other than the model's generate().",
        "Look at the checks below first: they show a wrong mask or cache. Compare greedy runs in float32.",
    ),
    "repeats_agree": CheckText(
        "every repeat generates the same tokens",
        "Medians over repeats are valid only if every repeat did the same work.",
        "Use greedy decoding or a fixed seed; in 16 bits, ask for deterministic kernels.",
    ),
    "repeat_spread": CheckText(
        "prefill and decode step deviate by at most 5 % over the repeats; above 10 % is noisy",
        "Equal repeats differ because of the machine, not the model. Their median may be just as far off.",
        "Close other programs, warm up, measure 5 repeats or more; pin the process to its own cores.",
    ),
    "busy_host": CheckText(
        "no other program uses its cores or its GPU",
        "Waiting for a busy core and reduced clocks lengthen every time in this record.",
        "Close other programs, leave the panel and other cells alone, pin the process (taskset), let a hot "
        "GPU cool, or use another machine.",
    ),
    "impossible_values": CheckText(
        "no MFU or MBU above 100 %, ceilings like the datasheet's",
        "No stage exceeds its hardware: another program slowed the measurement of a ceiling.",
        "Measure again on a quiet machine; compare the ceilings under How it was measured.",
    ),
    "eval_mode": CheckText(
        "the model is in eval mode in every forward",
        "Training mode turns on dropout and may take other code paths.",
        "Call model.eval() after loading, and again after anything that trained.",
    ),
    "gradients_off": CheckText(
        "no forward tracks gradients",
        "Tracking costs time and keeps every activation, so memory grows with each step.",
        "Run under torch.no_grad() or torch.inference_mode().",
    ),
    "single_token_steps": CheckText(
        "one token a row in each decode step",
        "A wider step recomputes cached tokens, and makes the vendor's class run vision.",
        "Pass input ids of shape [B, 1], not the whole sequence.",
    ),
    "no_image_arguments_in_decode": CheckText(
        "every image argument is None in decode",
        "The cache holds the page already. Image arguments run vision again in every step.",
        "Pass images to the prefill only, and None (or nothing) afterwards.",
    ),
    "vision_in_prefill_only": CheckText(
        "no span of a vision stage in decode",
        "Vision in decode is the costliest mistake: every token pays for the prefill's vision stages.",
        "Find the image argument that reaches decode. Check that each step has one token.",
    ),
    "cache_reused": CheckText(
        "one KV cache through all steps",
        "A new cache in a step recomputes all earlier tokens and doubles the memory.",
        "Pass the cache that the last call returned to the next call, with use_cache=True.",
    ),
    "cache_growth": CheckText(
        "one more entry a step, until a window is full",
        "Any other growth means that entries are lost, doubled or misplaced.",
        "Do not crop or copy the cache between steps, or share it with another run.",
    ),
    "cache_linear": CheckText(
        "cache bytes are entries times a constant",
        "The cache's memory must follow from the number of tokens alone.",
        "Look at the cache class: each step stores more than the keys and values of one token.",
    ),
    "attention_mask": CheckText(
        "2-D, on the model's device, one more column a step",
        "A mask of another shape hides tokens, or makes the model build a wrong causal mask.",
        "Keep it [B, length] and append one column of ones before each step.",
    ),
    "mask_handed_over": CheckText(
        "the mask that the model receives covers the cache and the new token",
        "One column too few hides the newest token or fails. Padded rows without a mask attend to padding.",
        "Grow the mask before the step, not after it.",
    ),
    "image_mask": CheckText(
        "the image mask marks exactly the image tokens, as many as the views need",
        "The mask places the features: if it is shifted, every feature is misplaced.",
        "Pack the prompt with this model's image token, one <image> a page.",
    ),
    "image_features": CheckText(
        "one projector vector per image token",
        "Too few or too many features shift the page's features, without an error in some versions.",
        "Use the same preset for cutting the page and for packing the prompt.",
    ),
    "prompt_tokens": CheckText(
        "the prompt's tokens decode back to the prompt",
        "A tokenizer that loses spaces or adds tokens changes the prompt.",
        "Load tokenizer.json itself: some versions of transformers rebuild this tokenizer wrongly.",
    ),
    "norm_layers": CheckText(
        "every norm layer has the model's dtype, without autocast",
        "Autocast switches dtypes between layers: it changes logits and adds casts before many kernels.",
        "Load the weights in the dtype you want, without autocast.",
    ),
    "decode_memory": CheckText(
        "decode peaks no higher than the prefill",
        "The prefill holds all activations of the prompt and the page; decode adds one token's.",
        "Look for a cache that is not reused, gradients, or a mask that grows in two dimensions.",
    ),
    "stage_coverage": CheckText(
        "the stages add up to 97 % of the prefill or more",
        "This report cannot explain time outside the stages.",
        "Look for work between the stages: masks, copies, host syncs. On a busy machine, measure again.",
    ),
    "host_syncs": CheckText(
        "one wait of the host a read of the end token",
        "Each further host sync delays the launches of the next step.",
        "Read tokens only at EOS checks; raise eos_check_every for fewer syncs.",
    ),
    "decode_trend": CheckText(
        "a step slows down only by the bytes of its cache",
        "Every step reads the whole cache. Further growth means recomputation or a growing mask.",
        "Check cache_reused and mask_handed_over; then profile one early and one late step.",
    ),
    "outlier_steps": CheckText(
        "no step stands out",
        "Single slow steps distort means and p99.",
        "Warm up, close other programs, raise eos_check_every; quote medians.",
    ),
    "repetition_loop": CheckText(
        "the output does not end in a loop",
        "This model repeats itself endlessly on some pages. The decode time is then not that of the page.",
        "Set no_repeat_ngram_size (the published code uses 20 to 35), another preset, or a lower limit.",
    ),
}

#: Of records that only a stopped measurement left.
STOPPED: dict[str, CheckText] = {
    "interrupted": CheckText(
        "every repeat, and all that was asked for after them",
        "Fewer repeats say less about the spread.",
        "Measure again without stopping it.",
    ),
}

EXPECTATIONS: dict[str, CheckText] = {
    "expected_prefill": CheckText(
        "50 to 200 ms", _SEEDS, "Look at the stages: vision and the prompt's length."
    ),
    "expected_decode_step": CheckText(
        "5 to 20 ms a token", _SEEDS, "Compare device and host time: launches often limit a step."
    ),
    "expected_ratio": CheckText(
        "a prefill takes as long as 5 to 15 decode steps",
        _SEEDS,
        "Near 1, vision did not run, or ran in decode too.",
    ),
    "expected_vision_share": CheckText(
        "vision is 30 to 50 % of the prefill", _SEEDS, "A larger preset or more crops raise it."
    ),
    "expected_language_share": CheckText(
        "the language model is 40 to 60 % of the prefill", _SEEDS, "A longer prompt raises it."
    ),
    "expected_cache_write": CheckText(
        "writing the KV cache is 5 to 10 % of the prefill", _SEEDS, "See the kernel view (--kernels)."
    ),
    "expected_forward_share": CheckText(
        "the forward is 90 to 95 % of decode", _SEEDS, "The rest is sampling, reads and the loop itself."
    ),
    "expected_cache_update": CheckText(
        "reading and updating the cache is 5 to 10 % of decode", _SEEDS, "See the kernel view (--kernels)."
    ),
    "expected_constant_decode": CheckText(
        "decode time does not depend on length", _SEEDS, "See decode_trend for the cost of the cache's bytes."
    ),
    "expected_memory": CheckText("decode peaks no higher than the prefill", _SEEDS, "See decode_memory."),
}

NOT_IN_RECORD = CheckText("", "", _RERUN)
