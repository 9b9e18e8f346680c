"""Shows a run in a terminal: progress, hints and notes.

May import: build and what that may import.
"""
