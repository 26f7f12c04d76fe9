"""Keys that a configuration or an agent file had once, and what to do instead.

Owns the table. A file, a variable or a flag that still names such a key ends the start with its
sentence. Who removes a key adds its row here: the path as it stood in the file, and a sentence
that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# "engine.x" names one key; a table's own name, as "canary", names all keys of the table. Keys of
# an agent file stand here in the same way; those of a list of tables as "tools.x".
REMOVED: Mapping[str, str] = {
    "canary.shadow": "Give the canary a share of the calls: canary.share.",
    **dict.fromkeys(
        (
            "canary.gap_ms",
            "canary.cut_ins",
            "canary.failures",
            "canary.tool_calls",
            "canary.tokens",
        ),
        "Leave it out: the judge has margins of its own (CLUSTER.md).",
    ),
    **dict.fromkeys(
        ("anticipation.budget_tokens", "anticipation.budget_speech_ms"),
        "Leave it out: a call throws away 1,000 tokens or 60 s of speech a minute at most. Write "
        "anticipation.off = ['speculative_reply'] to draft nothing.",
    ),
    **{
        f"anticipation.{part}": f"To switch it off write anticipation.off = ['{part}']."
        for part in (
            *("prefill", "retrieval", "p_end", "p_voice", "speculative_reply", "held_clause"),
            *("early_start", "prefix_cache", "tool_calls", "slide"),
        )
    },
    "anticipation.speculative_decoding": "To switch it off write engine.drafter = 'none'.",
    "anticipation.remote_prefill": "To switch it off write anticipation.off = ['prefill'].",
    "anticipation.remote_drafts": "To switch it off write anticipation.off = "
    "['speculative_reply'].",
    "anticipation.remote_priority": "Name the service: llm_service = 'vllm' or 'sglang'.",
    "knowledge.deadline_ms": "Leave it out: a service that searches has 120 ms.",
    "http_cache_mb": "Leave it out: each answer is generated. Keep answers in the client.",
    "tool_timeout_ms": "Set tool_timeout_ms in the agent's file.",
    "voice_cache_mb": "Leave it out: the voice keeps 32 MiB of what it has spoken.",
    "anticipation.warm_requests": "Leave it out: a service is connected to when the caller begins.",
    "end_reader": "To switch it off write anticipation.off = ['p_end'].",
    "voice_reader": "To switch it off write anticipation.off = ['p_voice'].",
    "stt_device": "Set speech_device, for recognizer and voice alike.",
    "tts_device": "Set speech_device, for recognizer and voice alike.",
    "slo.answer_ms": "Set slo.gap_ms: five eighths of it are for the answer.",
    "slo.barge_in_ms": "Leave it out: the agent is to be silent 300 ms after the caller's onset.",
    "limits.frame_bytes": "Leave it out: a client's message holds 2 MiB at most.",
    "quota.speculative_tokens": "Leave it out: a call throws away 1,000 tokens or 60 s of speech a "
    "minute at most. Bound quota.calls and quota.call_minutes.",
    "engine.context_tokens": "Set context_tokens.",
    "engine.kv_memory_share": "Set engine.kv_tokens: the start's lines say how many there are.",
    "engine.draft_model": "Name the folder in engine.drafter.",
    "engine.native": "Leave it out: the C library serves where it can be had, else torch does.",
    "engine.step_budget_ms": "Leave it out: one step of a prompt takes 10 ms at most.",
    "engine.prefix_file_mb": "Leave it out: up to 512 MiB of instructions are kept under "
    "$XDG_CACHE_HOME, which may point to another disk.",
    "limits.slow_client_s": "Leave it out: a client that takes nothing for 5 s is closed.",
    "limits.uncommitted_audio_minutes": "Leave it out: 10 minutes of audio may wait for a commit.",
    "limits.seed": "Leave it out: draws above limits.temperature 0 have one seed.",
    "greeting_wait_ms": "Leave it out: a client that sends nothing is greeted after a second.",
    "max_turn_s": "Leave it out: a caller who sounds for 60 s without a pause is answered.",
    "knowledge.embeddings": "Leave it out, or put a service that searches by vectors behind "
    "knowledge.url (KNOWLEDGE.md).",
    "knowledge.embeddings_headers": "Leave it out: folders are searched by words and their sound.",
    "knowledge.embedding_model": "Leave it out: folders are searched by words and their sound.",
    "knowledge.least_score": "Leave it out: folders are searched by words and their sound.",
    "knowledge.kind": "Name a service that answers as KNOWLEDGE.md says in knowledge.url; "
    "a few lines in front of Qdrant are one.",
    "remote_key": "Name the key of each service: stt_key, llm_key, tts_key.",
    "engine.calibration_text": "Leave it out: it made int4 no better. Finer weights are "
    "engine.weights = 'int8', or a checkpoint that was quantized with AWQ.",
    "engine.fused_launches": "Leave it out: a GPU's steps have one set of kernels.",
    "engine.prompt_activations": "Leave it out: a prompt's inputs are multiplied in bf16.",
    "workers.engine": "Write llm_url = 'worker://HOST:PORT'.",
    "workers.recognizer": "Write stt_url = 'worker://HOST:PORT'.",
    "workers.voice": "Write tts_url = 'worker://HOST:PORT'.",
    **dict.fromkeys(
        ("prices.prompt_million", "prices.cached_million", "prices.reply_million"),
        "Write prices.tokens = [PROMPT, CACHED, REPLY].",
    ),
    **dict.fromkeys(
        ("models.prompt_million", "models.cached_million", "models.reply_million"),
        "Write prices = [PROMPT, CACHED, REPLY] in the model's table.",
    ),
    "tools.cache_s": "Leave it out: each call asks. Keep answers in the service, or put what never "
    "changes into tools.table.",
    "tools.late": "Leave it out: what comes late is told as soon as all are silent.",
    "tools.table_key": "Leave it out: the first of the tool's parameters names the entry of "
    "tools.table.",
    "tools.retries": "Leave it out: a call that cannot have done anything is tried once more.",
    "mcp.read_only": "Name each such tool under [[tools]], with mcp and side_effect_free = true.",
    "barge_in.speakers": "Leave it out. Where two people share a call and the softer one is to "
    "stop the agent, write barge_in.by_sound = false.",
    "barge_in.words_ms": "Leave it out: where barge_in.least_words is 2 or more, words count once "
    "the sound has lasted 450 ms.",
    "quota.requests": "Leave it out: a key has 12 of the 16 requests that a server answers at a "
    "time. Bound quota.calls and quota.call_minutes.",
    "cascade.least_margin": "Leave it out: a model's margins told its right replies from its "
    "wrong ones no better than a coin. Name what the large one answers in [[route]].",
    "phone.answer": "Leave it out: where phone.webhook_url is set, it is asked about each call.",
    "phone.ring_ms": "Leave it out: a call is answered at once, or rings until the webhook "
    "decides.",
    "phone.max_minutes": "Set limits.session_minutes.",
    **{
        f"phone.{carrier}.{name}": f"Write phone.{carrier} = '...', the secret itself."
        for carrier, name in (
            *(("twilio", "token"), ("signalwire", "signing_key"), ("telnyx", "public_key")),
            *(("plivo", "token"), ("vonage", "secret"), ("asterisk", "password")),
            ("audiosocket", "password"),
        )
    },
    "phone.twilio.account": "Leave it out: the token in phone.twilio is that of one account.",
    "phone.signalwire.project": "Leave it out: the key in phone.signalwire is of one project.",
    "phone.telnyx.stream_token": "Leave it out: streams begin by the answer of a TeXML "
    "application.",
    **dict.fromkeys(
        ("phone.audiosocket.host", "phone.audiosocket.port"),
        "Write phone.audiosocket_at = 'HOST:PORT'.",
    ),
    "sip.host": "Leave it out: the server's host is listened at, or all addresses where "
    "that is loopback and sip.address is set.",
    "sip.rtp_ports": "Leave it out: sound comes at UDP ports 20000 to 20400.",
    "sip.codecs": "Leave it out: a call has the best codec that its far end offers; let your "
    "exchange offer those you want.",
    "sip.ring_s": "Leave it out: a call that goes out rings for 60 s at most.",
    "recording.transcript": "Write recording.words = 'none' to keep no words.",
    "recording.redaction": "Write recording.words = 'without_figures' to keep no numbers.",
    "memory.summary": "Set memory.facts: it quotes what the caller and the tools said.",
}

_INDEX = re.compile(r"\[\d+\]")


def instead_of(path: str) -> str | None:
    """Return what to do instead of a key that is gone; None where none of this name was ever
    removed.

    path: as an error names it: ``engine.kv``, ``tools[0].late``.
    """
    return _instead(_INDEX.sub("", path), ".", {name: name for name in REMOVED})


def instead_of_variable(name: str, prefix: str) -> str | None:
    """The same for a variable of the environment, as ``VOICELOOP_ENGINE_KV``."""
    return _instead(name, "_", {prefix + _plain(key).upper(): key for key in REMOVED})


def instead_of_flag(option: str) -> str | None:
    """The same for a flag, as ``--engine-kv`` or ``--no-engine-kv=1``."""
    flag = option.partition("=")[0].replace("--no-", "--", 1)
    return _instead(flag, "-", {"--" + _plain(key).replace("_", "-"): key for key in REMOVED})


def _plain(key: str) -> str:
    return key.replace(".", "_")


def _instead(found: str, mark: str, keys: Mapping[str, str]) -> str | None:
    """keys: of each name in this form the key; the longest that ``found`` lies in is meant."""
    meant: Iterable[str] = (n for n in keys if found == n or found.startswith(n + mark))
    longest = max(meant, key=len, default=None)
    return None if longest is None else REMOVED[keys[longest]]
