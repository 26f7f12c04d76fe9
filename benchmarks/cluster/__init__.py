"""What it costs to have models elsewhere."""
