"""What one reply says: its text, the voice's streams, and what is heard where the voice is silent.

Knows no model but the voice, and no event of the wire. Others may use `speech` and `silence`. Start
reading at `speech.py`.
"""
