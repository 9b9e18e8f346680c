"""A run on several processes that torchrun has started.

A chapter: imported where torchrun has started several.
"""
