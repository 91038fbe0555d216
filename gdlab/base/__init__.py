"""Know no graph: errors, types, numbers as words, statistics, storage formats, random numbers, threads."""
