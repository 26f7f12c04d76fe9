"""How the embedded recognizer models are made, as commands."""
