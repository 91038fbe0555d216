"""Run plans with NumPy."""
