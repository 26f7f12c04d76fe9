"""Who may come in, and what a client holds for us: keys, client secrets, origins, signatures.

Owns the API keys and whose calls each opens (`keys`), the short-lived keys that a browser may hold
(`client_secrets`), how much each may use (`quotas`), which pages may connect (`origins`), and the
one way in which anything is signed that comes back to us from a client (`signing`). Pure: headers
and time are passed in.
Others may use all of it. Start reading at `keys.py`.
"""
