"""Calls by SIP: a telephone exchange or a border controller in front of it dials the gateway.

Owns the messages (`endpoint`, with `transactions` and `digest`), a call's dialog (`leg`), its sound
(`media`, described in `description`), and who gets in (`door`). Needs the extra `sip`: aiosipua
reads and writes the messages. The server may use `door`. Start reading there.
"""
