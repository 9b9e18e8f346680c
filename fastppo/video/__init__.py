"""Videos of a policy, and the network's view in them.

A chapter: imported with video_interval, and by the verb play.
"""
