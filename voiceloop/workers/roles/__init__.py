"""The three roles of a worker process: recognizer, engine and voice behind messages.

Owns what a worker's loop drives (`role`), one role for speech in each direction (`speech`) and the
language role (`language`), with its branches (`chat_branch`) and prompts (`chat_template`). Only
these and the loop import models. Start reading at `role.py`.
"""
