"""A name to a loaded model, what differs between model classes, and the device it runs on."""
