"""Everything that is answered over plain HTTP.

Owns the door of the HTTP routes (`gate`), the OpenAI-compatible routes, health and metrics routes,
and the web page. Others may use `gate`, `health` and `routes`.
Start reading at `routes.py`, then `chat.py`.
"""
