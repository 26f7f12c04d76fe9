"""What the model card says: cases, measures, and the figures taken with them."""
