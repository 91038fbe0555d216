"""Draw documents as SVG, DOT and standalone HTML."""
