"""Place nodes: lanes, layers, rows of boxes; integer coordinates, the same in TypeScript."""
