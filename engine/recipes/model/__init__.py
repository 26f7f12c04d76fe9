"""The model as it is trained: layers, adapters, chat format, checkpoints, a plain decoder."""
