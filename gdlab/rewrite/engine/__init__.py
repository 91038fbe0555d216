"""Saturate a graph under rules: rows of facts for egglog, or the worklist in Python where egglog is missing."""
