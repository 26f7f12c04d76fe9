"""Everything that is answered over plain HTTP, and who is let in.

Owns keys and origins (`auth`), admission, the OpenAI-compatible routes, health and metrics routes,
and the web page. Others may use `auth`, `admission` and `routes`.
Start reading at `routes.py`, then `chat.py`.
"""
