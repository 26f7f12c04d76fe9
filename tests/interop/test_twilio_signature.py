"""What Twilio's own package for Node signs is proved here, and what it refuses is refused.

It comes with the environment `twilio_js` of ``tests/interop/make_envs.py``; where that is missing
the test is skipped, or fails where ``INTEROP_REQUIRED`` is set.
"""

from __future__ import annotations

import json
import os
import random
import string
import subprocess

import pytest

from tests.interop.make_envs import interpreter
from tests.interop.test_clients import ENVIRONMENTS
from voiceloop.doors.carriers.signatures import check_twilio
from voiceloop.errors import Unproved

TOKEN = "a token of twenty characters"
N_REQUESTS = 60
# Signs each request, and says of each whether a signature of another one is good for it.
SCRIPT = """
const twilio = require("twilio/lib/webhooks/webhooks");
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
const signed = asked.map(({url, fields}) =>
  twilio.getExpectedTwilioSignature(process.argv[1], url, fields));
const valid = asked.map(({url, fields}, i) => signed.map((signature) =>
  twilio.validateRequest(process.argv[1], signature, url, fields)));
console.log(JSON.stringify({signed, valid}));
"""


def requests(seed: int) -> list[dict[str, object]]:
    """Rings and upgrades as carriers send them: with ports, queries, lists, and any letters."""
    drawn = random.Random(seed)
    letters = string.ascii_letters + string.digits + " +&=%/:äß€中"
    made: list[dict[str, object]] = []
    for number in range(N_REQUESTS):
        port = drawn.choice(["", "", ":443", ":8443"])
        query = drawn.choice(["", "?a=1", "?call=CA1&b=2"])
        scheme = drawn.choice(["https", "wss"])
        fields: dict[str, object] = {}
        if scheme == "https":
            for name in drawn.sample(["CallSid", "From", "To", "Body", "a", "Z"], number % 6):
                fields[name] = "".join(drawn.choices(letters, k=12))
            if number % 7 == 0:
                fields["Media"] = ["b", "a", "b"]
        made.append({"url": f"{scheme}://v{number}.example{port}/phone{query}", "fields": fields})
    return made


def pairs(fields: dict[str, object]) -> list[tuple[str, str]]:
    return [
        (name, str(one))
        for name, value in fields.items()
        for one in (value if isinstance(value, list) else [value])
    ]


@pytest.mark.call
def test_the_carriers_own_validator_agrees() -> None:
    node = interpreter(ENVIRONMENTS, "twilio_js")
    place = ENVIRONMENTS / "twilio_js"
    if not (node.is_file() and (place / "node_modules" / "twilio").is_dir()):
        if os.environ.get("INTEROP_REQUIRED"):
            pytest.fail("expected the environment twilio_js (tests/interop/make_envs.py)")
        pytest.skip("the npm package twilio is not here (tests/interop/make_envs.py)")
    asked = requests(7)
    done = subprocess.run(
        [node, "-e", SCRIPT, TOKEN], cwd=place, input=json.dumps(asked).encode(),
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    for one, theirs in zip(asked, told["valid"], strict=True):
        fields = one["fields"]
        assert isinstance(fields, dict)
        ours = [is_proved(signature, str(one["url"]), fields) for signature in told["signed"]]
        assert ours == theirs, one
    assert sum(map(sum, told["valid"])) == N_REQUESTS


def is_proved(signature: str, url: str, fields: dict[str, object]) -> bool:
    try:
        check_twilio(TOKEN, signature, url, pairs(fields))
    except Unproved:
        return False
    return True
