"""Checks who may use the server: keys, client secrets, origins, quotas, signatures.

Owns the API keys and the tenant of each (`keys`), the short-lived keys that a browser may hold
(`client_secrets`), how much each may use (`quotas`), which pages may connect (`origins`), and how
the server signs what a client keeps and sends back (`signing`). Pure: headers and time are passed
in. Others may use all of it. Start reading at `keys.py`.
"""
