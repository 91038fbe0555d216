"""Measure gdlab: `python -m benchmarks` prints one Markdown table, `--docs` puts it into docs/figures.md."""
