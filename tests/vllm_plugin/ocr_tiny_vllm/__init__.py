"""Lets vLLM serve the built-in model: vLLM takes as fixed what are vision widths of its config."""


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm import ModelRegistry  # type: ignore[import-not-found]

    ModelRegistry.register_model("DeepseekOCRForCausalLM", "ocr_tiny_vllm.model:TinyDeepseekOCR")
