"""A policy in environments of its own: evaluations, videos, the view of its network.

May import: files and what that may import.
"""
