"""Environments that Numba compiles: a record of memory and three functions.

A chapter: imported by the package's own door, `compiled_env`, and where a run has such an
environment.
"""
