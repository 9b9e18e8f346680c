"""Presets, schedules, metric names and the spelling of settings, as data.

May import: nothing of fastppo.
"""
