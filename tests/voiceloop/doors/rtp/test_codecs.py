"""Each codec of a telephone line gives back what it was given, and makes good what was lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.errors import AudioError
from audio.frames import VOICE_HZ, Samples, rms_dbfs
from voiceloop.doors.rtp.codecs import CODECS, codecs_here
from voiceloop.doors.rtp.packet import RtpPacket
from voiceloop.doors.rtp.receive import FRAME, RtpReceiver

HERE = [one.name.lower() for one in codecs_here()]


def vowel(n_samples: int) -> Samples:
    """A voice of 125 Hz with harmonics up to 3 kHz."""
    at = np.arange(n_samples) * (2 * np.pi / VOICE_HZ)
    return sum(3000 / k * np.sin(125 * k * at) for k in range(1, 24)).astype(np.int16)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", HERE)
def test_a_voice_comes_back_at_its_level_and_length(name: str) -> None:
    encoder, decoder = CODECS[name].pair()
    sound = vowel(50 * FRAME)
    packets = [encoder.encode(sound[at : at + FRAME]) for at in range(0, len(sound), FRAME)]
    back = [decoder.decode(packet) for packet in packets]
    assert {len(one) for one in back} == {FRAME}
    heard = np.concatenate(back)[10 * FRAME :]
    assert abs(rms_dbfs(heard) - rms_dbfs(sound)) < 2.0
    if name != "opus":
        assert {len(packet) for packet in packets} == {160}


@pytest.mark.parametrize("name", HERE)
def test_a_lost_frame_sounds_like_its_voice_and_a_long_loss_is_silence(name: str) -> None:
    encoder, decoder = CODECS[name].pair()
    sound = vowel(20 * FRAME)
    for at in range(0, len(sound), FRAME):
        last = decoder.decode(encoder.encode(sound[at : at + FRAME]))
    made = decoder.conceal(FRAME)
    assert len(made) == FRAME
    assert rms_dbfs(last) - rms_dbfs(made) < 9.0
    if name != "opus":
        late = [decoder.conceal(FRAME) for _ in range(4)][-1]
        assert not late.any()


@pytest.mark.parametrize("name", ["pcma", "pcmu"])
@given(payload=st.binary(max_size=2000))
def test_any_payload_is_decoded_or_refused(name: str, payload: bytes) -> None:
    decoder = CODECS[name].pair()[1]
    if 0 < len(payload) <= 1600:
        assert len(decoder.decode(payload)) == 3 * len(payload)
    else:
        with pytest.raises(AudioError):
            decoder.decode(payload)


def test_digits_and_comfort_noise_in_the_stream_are_time_and_no_loss() -> None:
    encoder, decoder = CODECS["pcmu"].pair()
    receiver = RtpReceiver(decoder, 0, clock_hz=8_000, silent_types=(13, 101))
    sound = encoder.encode(vowel(FRAME))

    def packet(kind: int, sequence: int, stamp: int) -> RtpPacket:
        return RtpPacket(kind, sequence, stamp, 7, payload=sound)

    written = receiver.packet(packet(0, 1, 0), 0.0)
    written += receiver.packet(packet(101, 2, 160), 0.02)
    written += receiver.packet(packet(101, 3, 160), 0.04)
    written += receiver.packet(packet(13, 4, 480), 0.06)
    written += receiver.packet(packet(0, 5, 800), 0.10)
    assert sum(map(len, written)) == 6 * FRAME
    assert receiver.n_concealed == 0
