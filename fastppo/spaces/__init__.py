"""Spaces, observations and actions as arrays.

May import: machine and what that may import, config.
"""
