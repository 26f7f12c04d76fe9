"""Recognizers, one a file; each implements `audio.stream.RecognizerModel`."""
