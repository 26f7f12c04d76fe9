"""The sources of an agent's answers besides its model: documents of the operator, and approved
answers.

Owns reading a folder (`documents.py`), cutting it into passages (`passages.py`), the sound of a
word as a key (`sounds.py`), the index (`index.py`) and who asks it off the event loop
(`retriever.py`), when a search is due while the caller speaks (`prefetch.py`), the searches of one
session (`retrieval.py`), what the model is given of what was found (`placement.py`), answers that
an author approved (`answers.py`), the sentence of instructions or documents that answers a plain
question (`told.py`, `hours.py`, `excerpts.py`) or the tool that does (`lookups.py`), and words as
they are compared (`words.py`). Only `retriever.py`,
`services.py`, `fused.py` and `retrieval.py` know the event loop; start reading at the last.
"""
