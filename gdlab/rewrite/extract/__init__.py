"""Choose one e-node per class so that the whole graph costs least."""
