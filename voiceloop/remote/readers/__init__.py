"""What stands beside a remote model to tell whether the caller has finished: the embedded models.

Others may use `end_of_words` (beside a language model) and `end_of_voice` (beside a recognizer).
"""
