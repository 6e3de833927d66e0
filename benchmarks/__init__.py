"""Commands that print the figures and make the pictures of the documentation; not part of the product."""
