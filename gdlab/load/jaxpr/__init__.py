"""Open functions of JAX, read from the jaxpr that tracing them gives."""
