"""Whether what makes a call feel good holds for any model, any topology, any language.

Start with ``__main__.py``, the command. Each other file is one of its parts: it measures, and
returns a `Found`. The services are scripted (``tests/remote_service.py``): none is asked outside.
"""
