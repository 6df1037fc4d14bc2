"""A page and a prompt to what the model reads."""
