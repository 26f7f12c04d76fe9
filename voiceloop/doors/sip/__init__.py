"""Calls by SIP: a telephone exchange or a border controller in front of it dials the gateway.

Owns the messages (`endpoint`, `digest`), a call and its dialog (`leg`, `dialog`), its sound
(`media`, `description`), the provider (`trunk`), and who gets in (`door`). Needs the extra `sip`:
aiosipua reads and writes the messages. The server may use `door`. Start reading there.
"""
