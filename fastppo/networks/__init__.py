"""The parts of policy.py: normaliser, networks, action heads.

May import: stepping and what that may import.
"""
