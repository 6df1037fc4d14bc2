"""A running model server, such as vLLM or SGLang, measured into the same record; docs/engines.md."""
