"""The files of a run: its folder, policies, checkpoints, and what is written after a fault.

May import: build and what that may import.
"""
