"""The measurements of the model card: cases, measures, and the figures taken with them."""
