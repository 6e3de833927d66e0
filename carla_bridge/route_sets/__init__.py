"""Makes the shipped route files: which places of a town suit a scenario, and routes through them."""
