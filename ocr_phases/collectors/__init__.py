"""What is recorded while a model runs: times, memory, live checks, kernels, the device's ceilings."""
