"""Presets, schedules and the spelling of settings, as data.

May import: nothing of fastppo.
"""
