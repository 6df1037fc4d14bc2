"""A running model server, such as vLLM, measured into the same record; docs/engines.md."""
