"""Recognizers, one a file or folder; each implements `audio.stream.RecognizerModel`."""
