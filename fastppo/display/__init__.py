"""Shows a run in a terminal: progress, hints and notes.

May import: build, arguments and what these may import.
"""
