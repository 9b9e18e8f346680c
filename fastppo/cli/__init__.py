"""The command, one file a verb.

May import: everything else.
"""
