"""A run in a terminal: the banner, progress lines, the live view.

A chapter: imported with progress.
"""
