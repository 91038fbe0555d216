"""Live in Jupyter: magics, completion, the widget and its messages. `%load_ext gdlab` loads this room."""
