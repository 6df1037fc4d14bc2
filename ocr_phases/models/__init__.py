"""A name to a loaded model, and what differs between model classes."""
