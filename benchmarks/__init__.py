"""Measure gdlab: `python -m benchmarks` prints one Markdown table, `--readme` puts it into README.md."""
