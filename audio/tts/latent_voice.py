"""A voice over continuous latents: frames of 80 ms, batched over replies, streamed as they come.

Each step gives every reply that has text one frame: the flow head samples a latent, the codec
decodes it with its state, the backbone reads it back. A fragment is one prompt behind the voice's
prefix; the next one starts anew, as the models were trained.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..checkpoint import load_checkpoint, torch_device
from ..errors import AudioError
from ..frames import duration_ms
from ..stream import Event, VoiceOptions, failed
from .latent_codec import CodecState, LatentCodec
from .latent_model import LatentModel, LatentReply
from .reply import Reply, Waveform
from .reply_voice import ReplyVoice
from .voice_prompts import VoicePrompts
from .word_pace import PacedWords, WordPace

MAX_BATCH = 64
# Of the original runtime: frames after the end of speech for short texts (up to so many words)
# and for longer ones.
SHORT_WORDS, FRAMES_AFTER_SHORT, FRAMES_AFTER = 4, 4, 2
FADE_IN_MS = 5.0  # a fresh codec state starts with a small step, heard as a click


@dataclass(slots=True)
class _Speaking:
    """A fragment under way."""

    reply: LatentReply
    codec: CodecState
    words: PacedWords
    n_samples: int = 0


class LatentVoice(ReplyVoice[_Speaking]):
    """A Hugging Face folder of the model, its audio tokenizer and its voices.

    folder: on disk. codec_folder: the audio tokenizer's; None for folder/audio_tokenizer.
    voices_folder: None for folder/voices. device: "cpu", "cuda" or "auto". seed: the same text
    in the same voice gives the same samples.

    Raises: AudioError if a package, a folder or the device is absent; it names the remedy.
    """

    class_name: ClassVar[str]  # of the model in transformers

    def __init__(
        self,
        folder: str | Path,
        *,
        codec_folder: str | Path | None = None,
        voices_folder: str | Path | None = None,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        folder = Path(folder)
        torch, self._device = torch_device(device, "a latent voice")
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        model = load_checkpoint(self.class_name, folder, dtype=dtype).to(self._device).eval()
        codec_model = load_checkpoint(
            "PocketTTSAudioTokenizerModel", Path(codec_folder or folder / "audio_tokenizer")
        )
        codec_model = codec_model.to(self._device).eval()
        self._tokenizer = load_checkpoint("AutoTokenizer", folder)
        self._audio_bos: int = model.config.audio_bos_token_id
        self._voice_ids = {
            model.config.audio_prompt_token_id,
            getattr(model.config, "audio_prompt_bos_token_id", None),
        }
        self._model = LatentModel(torch, model, _frames_after_eos(folder))
        self._codec = LatentCodec(torch, codec_model)
        self._prompts = VoicePrompts(
            torch, Path(voices_folder or folder / "voices"), self._model, codec_model
        )
        super().__init__(self._prompts.names, self._codec.rate_hz)
        self._prompts.prefix(self.voices[0])  # the default voice must be ready, and readable
        self._seed = seed
        self._paces: dict[str, WordPace] = {}

    def open(self, stream_id: str, options: VoiceOptions) -> None:
        """Raises: AudioError on a voice or speed that is not there, or an id in use."""
        if options.speed != 1.0:
            raise AudioError(f"expected a speed of 1.0 (this model has one), found {options.speed}")
        self._prompts.prefix(self._voice_named(options.voice))  # read before the first text
        super().open(stream_id, options)

    def step(self) -> list[Event]:
        """One frame of every stream that has text."""
        events: list[Event] = []
        for stream_id, reply in list(self._replies.items()):
            if stream_id not in self._under_way:
                events += self._start(stream_id, reply)
        members = list(self._under_way)
        for i in range(0, len(members), MAX_BATCH):
            batch = members[i : i + MAX_BATCH]
            try:
                events += self._frames(batch)
            except Exception as error:  # no reply of the batch can go on
                for stream_id in batch:
                    self.close(stream_id)
                    events.append(failed(stream_id, error))
        return events

    def _start(self, stream_id: str, reply: Reply) -> list[Event]:
        """Reads the stream's next fragment, or ends it."""
        fragment = reply.next_fragment()
        if fragment is not None:
            try:
                begun = self._model.begin(
                    self._prompts.prefix(reply.voice),
                    self._text_ids(fragment.text),
                    len(fragment.words),
                    self._seed ^ zlib.crc32(fragment.text.encode()),
                )
            except Exception as error:
                self.close(stream_id)
                return [failed(stream_id, error)]
            words = PacedWords(fragment.words, self._paces.setdefault(reply.voice, WordPace()))
            self._under_way[stream_id] = _Speaking(begun, self._codec.initial, words)
            return []
        return self._ended(reply)

    def _frames(self, members: list[str]) -> list[Event]:
        speaking = [self._under_way[stream_id] for stream_id in members]
        latents, ended = self._model.frame([s.reply for s in speaking])
        states, waves = self._codec.decode([s.codec for s in speaking], latents)
        waves = waves.cpu().numpy()
        events: list[Event] = []
        for stream_id, now, state, wave, is_last in zip(
            members, speaking, states, waves, ended, strict=True
        ):
            now.codec = state
            samples = _faded_in(wave, self._codec.rate_hz) if now.n_samples == 0 else wave
            now.n_samples += len(samples)
            audio_ms = duration_ms(now.n_samples, self._codec.rate_hz)
            spans = now.words.rest(audio_ms) if is_last else now.words.until(audio_ms)
            events += self._replies[stream_id].say(samples, spans)
            if is_last:
                del self._under_way[stream_id]
        return events

    def _text_ids(self, text: str) -> list[int]:
        """The prompt of a fragment behind the voice: text tokens and the audio's first position.

        The checkpoint's chat template prepares the text as in training.
        """
        prompt = text
        if getattr(self._tokenizer, "chat_template", None):
            content = [{"type": "text", "text": text}]
            prompt = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False
            )
        ids = self._tokenizer.encode(prompt, add_special_tokens=False)
        ids = [i for i in ids if i not in self._voice_ids]  # the voice stands before, as keys
        if not ids or ids[-1] != self._audio_bos:
            ids.append(self._audio_bos)
        return ids


class PhononVoice(LatentVoice):
    """Phonon (Gradium): 31M parameters, English, the smallest voice that streams by frames.

    Apache-2.0. Its voices are latents of Gradium's own speaker codec, so they come stored, not
    from a recording.
    """

    class_name = "GradiumPhononTTSForConditionalGeneration"


class PocketVoice(LatentVoice):
    """Pocket TTS (Kyutai): 100M parameters, six languages, faster than real time on a CPU.

    Weights CC-BY; any voice from a few seconds of recording.
    """

    class_name = "PocketTTSForConditionalGeneration"


def _faded_in(wave: Waveform, rate_hz: int) -> Waveform:
    n_fade = min(len(wave), round(FADE_IN_MS * rate_hz / 1000.0))
    faded = wave.copy()
    faded[:n_fade] *= np.linspace(0.0, 1.0, n_fade, dtype=np.float32)
    return faded


def _frames_after_eos(folder: Path) -> tuple[int, int, int]:
    """Words of a short text, frames after it, frames after a longer one: the processor's own."""
    settings: dict[str, Any] = {}
    path = folder / "processor_config.json"
    if path.is_file():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AudioError(f"expected JSON in {path}, found: {error}") from error
        settings = found if isinstance(found, dict) else {}
    names = (
        ("short_text_max_words", SHORT_WORDS),
        ("frames_after_eos_short_text", FRAMES_AFTER_SHORT),
        ("frames_after_eos", FRAMES_AFTER),
    )
    values = [settings.get(name, default) for name, default in names]
    if not all(isinstance(value, int) and 0 <= value <= 100 for value in values):
        raise AudioError(f"expected whole numbers of 0 to 100 in {path}, found {values}")
    return values[0], values[1], values[2]
