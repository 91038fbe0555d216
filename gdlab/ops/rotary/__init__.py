"""Rotary positions: `rope` and its forms, also with `freq_factors`."""
