"""Kernels, shared memory, random numbers, cores and memory of the machine; without torch.

May import: settings, errors, reference.
"""
