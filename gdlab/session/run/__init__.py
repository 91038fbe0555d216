"""Drive a session: run, pause, resume, break, watch, and search for the first value that is not finite."""
