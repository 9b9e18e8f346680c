"""Kernels, shared memory, random numbers, files, cores and memory, packages; without torch."""
