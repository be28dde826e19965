"""Skills: instructions for particular work, which a model reads when it needs them."""
