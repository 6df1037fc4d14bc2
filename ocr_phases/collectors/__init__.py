"""What listens while a page runs: times, hooks, memory, energy, conditions, waits of the host."""
