"""Makes environments from ids and callables, and lists them; spaces, observations and actions as arrays.

May import: machine and what that may import, config.
"""
