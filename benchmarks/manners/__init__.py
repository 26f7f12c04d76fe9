"""Who speaks to whom, and who gives way: ``python -m benchmarks.manners``.

Start reading at `__main__`; `sounds` says what is heard over the agent and whose voices it is,
`call` how one trial is played and judged from the audio alone.
"""
