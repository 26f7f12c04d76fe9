"""The decoder's layers on a CPU in one C file, compiled where they run.

Start reading at ``runner.py`` (a step), then ``decoder.c`` (what is computed). ``build.py`` finds
or makes the library; where there is none, ``engine/linear.py`` and ``model.py`` serve.
"""
