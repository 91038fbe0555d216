"""The answers of the debugging magics: their records, the functions that make them, and their HTML."""
