"""Ask a document: search, paths, differences, selection, replay."""
