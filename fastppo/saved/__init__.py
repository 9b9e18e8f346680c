"""The files of a run that are read again: policies, checkpoints, exports.

May import: build and what that may import.
"""
