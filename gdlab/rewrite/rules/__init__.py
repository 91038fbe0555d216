"""State rewrite rules: the table, patterns, conditions, and every rule that gdlab brings."""
