"""From an environment's id or callable to environments; spaces, observations and actions as arrays.

May import: machine and what that may import, config.
"""
