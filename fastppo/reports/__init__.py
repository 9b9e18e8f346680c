"""Tables, curves and comparisons of runs that have ended.

A chapter: imported by the command.
"""
