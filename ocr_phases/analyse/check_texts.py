"""Why each check matters and what to do about it, by name: kept here so that records stay small."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckText:
    """What a check expects (where the record does not say), why it matters and what to do where it fails."""

    expected: str
    why: str
    fix: str


_SEEDS = "A rule of thumb for the full model on a GPU, whichever GPU it is."
_RERUN = "Measure again with this version of ocr_phases."

#: In the order of the table: what decides whether the numbers may be believed comes first.
RULES: dict[str, CheckText] = {
    "parity": CheckText(
        "the tokens of generate()",
        "Times of a loop that computes something else than the model's own generate() are of no use.",
        "Look at the checks below first: a wrong mask or cache shows there. Compare greedy, in float32.",
    ),
    "repeats_agree": CheckText(
        "every repeat generates the same tokens",
        "Medians over repeats are of one thing only if every repeat did the same work.",
        "Use greedy decoding or a fixed seed; in 16 bits, ask for deterministic kernels.",
    ),
    "repeat_spread": CheckText(
        "the slowest repeat takes at most 1.2 times the fastest; above 1.5 times is noisy",
        "What differs between equal repeats is not the model. The median of a few may be as far off.",
        "Close other programs, warm up, measure 5 repeats or more; pin the process to cores of its own.",
    ),
    "busy_host": CheckText(
        "this program has the cores and the GPU to itself",
        "Waiting for a core that another program has, or a clock that is turned down, is in every time here.",
        "Close other programs, use another machine, pin the process (taskset), let a hot GPU cool.",
    ),
    "impossible_values": CheckText(
        "no MFU or MBU above 100 %, ceilings like the datasheet's",
        "Nothing is faster than its hardware: a ceiling was measured while something else had the machine.",
        "Measure again on a quiet machine; compare the ceilings under How it was measured.",
    ),
    "eval_mode": CheckText(
        "the model is in eval mode in every forward",
        "Training mode turns on dropout and may take other code paths.",
        "Call model.eval() after loading, and again after anything that trained.",
    ),
    "gradients_off": CheckText(
        "no forward tracks gradients",
        "Tracking keeps every activation, so memory grows with each step, and costs time.",
        "Run under torch.no_grad() or torch.inference_mode().",
    ),
    "single_token_steps": CheckText(
        "one token a row in each decode step",
        "A wider step recomputes what the cache holds, and opens the vendor's gate to vision.",
        "Pass input ids of shape [B, 1], not the whole sequence.",
    ),
    "no_image_arguments_in_decode": CheckText(
        "no image argument carries a value in decode",
        "The page is in the cache already: given again, it runs vision at every step.",
        "Pass images to the prefill only, and None (or nothing) afterwards.",
    ),
    "vision_in_prefill_only": CheckText(
        "no span of a vision stage in decode",
        "Vision in decode is the costliest mistake there is: it pays a prefill's vision for every token.",
        "See which image argument reaches decode, and that each step has one token.",
    ),
    "cache_reused": CheckText(
        "one KV cache through all steps",
        "A new cache each step means that the past is computed again, and memory is held twice.",
        "Hand the cache that the last call returned to the next call, with use_cache=True.",
    ),
    "cache_growth": CheckText(
        "one more entry a step",
        "Any other growth means that entries are lost, doubled or misplaced.",
        "Do not crop or copy the cache between steps, and share it with no other run.",
    ),
    "cache_linear": CheckText(
        "cache bytes are entries times a constant",
        "The cache's memory must follow from the number of tokens alone.",
        "Look at the cache class: something other than keys and values of one token is kept a step.",
    ),
    "attention_mask": CheckText(
        "2-D, on the model's device, one more column a step",
        "A mask of another shape hides tokens, or makes the model build a wrong causal mask.",
        "Keep it [B, length] and append one column of ones before each step.",
    ),
    "mask_handed_over": CheckText(
        "what the model gets covers the cache and the new token",
        "One column too few hides the newest token or fails; padded rows without a mask read their padding.",
        "Grow the mask before the step, not after it; use exact_mask=True to see the 2-D mask at work.",
    ),
    "image_mask": CheckText(
        "the image mask marks exactly the image tokens, as many as the views need",
        "Features go where the mask says: one place off and every feature is off.",
        "Pack the prompt with this model's image token, one <image> a page.",
    ),
    "image_features": CheckText(
        "the projector gives as many vectors as the image tokens have places",
        "Too few or too many features shift the page under the text, without an error in some versions.",
        "Use the same preset for cutting the page and for packing the prompt.",
    ),
    "prompt_tokens": CheckText(
        "the prompt's tokens decode back to the prompt",
        "A tokenizer that loses spaces or adds tokens asks the model for something else.",
        "Load tokenizer.json itself: some versions of transformers rebuild this tokenizer wrongly.",
    ),
    "norm_layers": CheckText(
        "every norm layer has the model's dtype, and there is no autocast",
        "Autocast switches dtypes between layers: other numbers, and a cast before many kernels.",
        "Load the weights in the dtype you want and leave autocast off.",
    ),
    "decode_memory": CheckText(
        "decode peaks no higher than the prefill",
        "The prefill holds all activations of the prompt and the page; decode adds one token's.",
        "Look for a cache that is not reused, gradients, or a mask that grows in two dimensions.",
    ),
    "stage_coverage": CheckText(
        "the stages add up to 97 % of the prefill or more",
        "What no stage accounts for is time this report cannot explain.",
        "Look for work between the stages: masks, copies, waits. On a busy machine, measure again.",
    ),
    "host_syncs": CheckText(
        "one read an EOS check",
        "Each further wait for the device holds up the host, and with it the next step.",
        "Read tokens only where the end is looked for; raise eos_check_every to wait less.",
    ),
    "decode_trend": CheckText(
        "a step slows down as its cache's bytes make it, no more",
        "Each cached token is read at every step. Growth beyond that is recomputation or a growing mask.",
        "Check cache_reused and mask_handed_over; then profile one early and one late step.",
    ),
    "outlier_steps": CheckText(
        "no step stands out",
        "Single slow steps move means and p99, and each has a cause worth knowing.",
        "Warm up, quieten the machine, read the end token less often; quote medians.",
    ),
    "repetition_loop": CheckText(
        "the output does not end in a loop",
        "This model is known to repeat itself without end on some pages: its time is then not the page's.",
        "Set no_repeat_ngram_size (the published code uses 20 to 35), another preset, or a lower limit.",
    ),
    "type_size": CheckText(
        "type in the preset's view as large as the model reads",
        "Below that the model writes words, dates and sums that are not on the page. Times stay right.",
        'Take a preset with a larger view (preset="auto" does), a larger scan, or a part of the page.',
    ),
}

EXPECTATIONS: dict[str, CheckText] = {
    "expected_prefill": CheckText(
        "50 to 200 ms", _SEEDS, "Look at the stages: vision and the prompt's length."
    ),
    "expected_decode_step": CheckText(
        "5 to 20 ms a token", _SEEDS, "Compare device and host: the host alone often sets it."
    ),
    "expected_ratio": CheckText(
        "a prefill takes 5 to 15 steps' time", _SEEDS, "Near 1, vision did not run or ran in decode too."
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
        "decode time does not depend on length", _SEEDS, "See decode_trend for what it should cost."
    ),
    "expected_memory": CheckText(
        "decode peaks no higher than the prefill", _SEEDS, "See decode_memory for what it means here."
    ),
}

NOT_IN_RECORD = CheckText("", "", _RERUN)
