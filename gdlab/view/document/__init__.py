"""Make, check and read documents: the JSON that every view draws."""
