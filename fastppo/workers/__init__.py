"""vecenv.py in worker processes, and make_vec; without torch.

May import: update and what that may import.
"""
