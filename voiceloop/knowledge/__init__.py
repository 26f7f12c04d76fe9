"""What an agent can answer from besides its model: answers that an author approved.

Owns the words of a text as they are compared (`words.py`), and which questions get an approved
answer (`answers.py`). Pure. Start reading at `answers.py`.
"""
