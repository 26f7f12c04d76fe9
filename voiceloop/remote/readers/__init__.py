"""The embedded models that tell, beside a remote model, whether the caller has finished.

Others may use `end_of_words` (beside a language model) and `end_of_voice` (beside a recognizer).
"""
