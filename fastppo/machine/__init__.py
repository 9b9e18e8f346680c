"""Kernels, shared memory, random numbers, cores and memory, installed packages; without torch.

May import: settings, errors, reference.
"""
