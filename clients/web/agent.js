// Who answers: the agent's name, its models, what to say to it, which tools it leaves to the client.

import { keyHeaders } from "./connection.js";

const UNKNOWN = { name: "", try_saying: [], preset: "", models: {}, voices: [], client_tools: [], webrtc: false };

/** The server's card of its agent. Another server than VoiceLoop has none: all is unknown then.
 *  Rejects with a TypeError where nobody answers; `needsKey` is true where the key is missing or
 *  wrong. */
export async function fetchAgent(key) {
  const answer = await fetch("/v1/agent", { headers: keyHeaders(key) });
  if (answer.ok) return { ...UNKNOWN, ...(await answer.json()) };
  return { ...UNKNOWN, needsKey: answer.status === 401 };
}

// What a person should know of a language model before the first word, by its name in MODELS.md.
const LIMITS = {
  embedded:
    "A small demonstration model (13M) thinks here: orders, bookings and short facts of its instructions. "
    + "Much else it gets wrong.",
};

export function limitsLine({ models }) {
  return LIMITS[models.language_model] ?? "";
}

/** The models in one line. */
export function modelsLine({ preset, models }) {
  const parts = [
    ["hears with", models.recognizer],
    ["thinks with", models.language_model],
    ["speaks with", models.voice],
  ];
  const told = parts.filter(([, name]) => name).map((part) => part.join(" "));
  return told.length ? `preset ${preset}: ${told.join(", ")}` : "";
}
