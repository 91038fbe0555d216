"""Explain how an optimized graph came about: replayable steps, derivations, the report and its answers."""
