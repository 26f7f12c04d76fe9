"""Structured answers: what a question asks for, and what the caller gave and confirmed.

Owns how a question is read (`question.py`), how far an answer to it has come (`progress.py`: the
end of a number or a name spelled can be counted, not guessed), the values that words give
(`values.py`), how the caller corrects one, and the fold over the conversation that knows the state
of each slot (`form.py`). English. Pure. Start reading at `question.py`, then `form.py`.
"""
