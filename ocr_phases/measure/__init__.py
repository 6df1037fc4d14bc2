"""Makes records: pages, model inputs, models, the two phases and their clocks (needs torch)."""
