"""A command line as settings: flags, types of values, pages of help; without torch.

May import: config, machine, and what that may import.
"""
