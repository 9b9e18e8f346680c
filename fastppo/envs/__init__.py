"""Makes, wraps and lists environments.

May import: spaces and what that may import.
"""
