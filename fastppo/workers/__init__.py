"""vecenv.py in worker processes, and make_vec; without torch.

May import: stepping and what that may import, vecenv.
"""
