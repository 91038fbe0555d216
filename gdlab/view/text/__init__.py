"""Write every view as text."""
