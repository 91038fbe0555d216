"""The answers of the debugging magics: records, what makes them, and the HTML that draws them."""
