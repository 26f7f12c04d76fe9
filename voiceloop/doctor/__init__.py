"""``voiceloop doctor``: checks the machine, and names the command that brings what is missing.

Owns the checks and their report. Others may use `report.run_doctor`. Start reading at `report.py`.
"""
