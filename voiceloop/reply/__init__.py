"""One reply of the agent, from the prompt to the last sample that the caller hears.

Owns generation, speech, paced playout, and what is prepared before the caller's turn has ended
(predictive prefill and preemptive replies). Others may use `reply.Reply`, `preemptive`, `plan`,
`anticipation` and `context`. Start reading at `phase.py` and `reply.py`; then
`generation.py` (what the model says), `speech.py` (text to audio), `playout.py` (audio to the
wire), `preemptive.py`.
"""
