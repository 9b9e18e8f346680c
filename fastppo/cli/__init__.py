"""The command, one module per verb.

May import: everything else.
"""
