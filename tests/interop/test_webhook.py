"""The stock openai package's ``webhooks.unwrap`` on the event that asks about a call."""

from __future__ import annotations

import base64
import json
import subprocess
import time

import pytest

from tests.interop.make_envs import interpreter
from tests.interop.test_clients import CLIENTS, ENVIRONMENTS, require
from voiceloop.doors.webhook import incoming, signed
from voiceloop.telephony import PhoneCall

pytestmark = pytest.mark.call
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


def test_the_openai_package_unwraps_a_call_and_refuses_a_forged_one() -> None:
    require("openai")
    now_s = int(time.time())
    event = incoming("rtc_1", PhoneCall("sip", "+49301", "+49309"), now_s)
    body = json.dumps(event)
    headers = dict(signed(SECRET, str(event["id"]), now_s, body.encode()))
    result = subprocess.run(
        [interpreter(ENVIRONMENTS, "openai"), CLIENTS / "openai_webhook_client.py", SECRET],
        input=json.dumps({"body": body, "headers": headers}),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.strip() == "rtc_1"
