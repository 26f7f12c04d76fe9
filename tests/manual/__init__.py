"""The manual: its pictures and sound, and the site that is built of it."""
