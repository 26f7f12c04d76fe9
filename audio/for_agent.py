"""Whether a sound over the agent is words for it: small heads on a speech encoder's rows.

Reads what a recognizer's encoder makes of a sound's first second anyway, and returns the log-odds
that somebody near the microphone takes the floor, against a listener's "mm-hm", a noise, the
agent's own echo, and a bystander across the room. Same form as the end-of-turn heads; trained by
`audio.recipes.train_for_agent`.
"""

from pathlib import Path

from .end_of_voice import EndOfVoice

FOR_AGENT_WEIGHTS = Path(__file__).parent / "embedded" / "for_agent" / "for_agent.safetensors"


class ForAgent(EndOfVoice):
    """The heads of one file. Raises: MissingExtra without safetensors; AudioError as its base."""

    purpose = "the head that judges sounds over the agent"

    def __init__(self, path: Path = FOR_AGENT_WEIGHTS) -> None:
        super().__init__(path)
