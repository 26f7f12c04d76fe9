// What the sessions of @openai/agents-realtime have in common, whatever their line: agent, tool, inbox.

import { INSTRUCTIONS, Inbox, RESULT, USE_THE_TOOL, check, packages } from "./scenario.mjs";

const { RealtimeAgent, RealtimeSession, tool } = packages("@openai/agents-realtime");
const { z } = packages("zod");

const SEMANTIC = { type: "semantic_vad", interruptResponse: true, createResponse: true };
const called = [];
let forced = null; // the session whose settings ask for a call
export const hours = tool({
  name: "hours",
  description: "Opening hours of a day.",
  parameters: z.object({ day: z.string() }),
  execute: async ({ day }) => {
    called.push(day);
    // The reply to the result is to be spoken.
    forced?.transport.sendEvent({ type: "session.update", session: { type: "realtime", tool_choice: "auto" } });
    forced = null;
    return RESULT;
  },
});

/** Its warnings are printed by a logger: nothing may be. */
const warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = (...words) => warnings.push(words.join(" "));

/** A session on this transport, and the inbox of all that it tells. */
export function sessionOn(transport, { turnDetection = SEMANTIC, tools = [], ...config }) {
  const session = new RealtimeSession(new RealtimeAgent({ name: "Ava", instructions: INSTRUCTIONS, tools }), {
    transport,
    model: "gpt-realtime",
    config: { audio: { input: { turnDetection } }, ...config },
  });
  const inbox = new Inbox();
  session.on("transport_event", (event) => inbox.put(event));
  session.on("audio_interrupted", () => inbox.put({ type: "session.interrupted" }));
  session.on("agent_tool_end", () => inbox.put({ type: "session.tool_end" }));
  session.on("error", ({ error }) => inbox.put({ type: "error", error: String(error), detail: error }));
  return { session, inbox };
}

export function close(session) {
  session.close();
  check(warnings.length === 0, warnings);
}

/** `heard`: the event that tells of the agent's sound. */
export async function callTheTool(session, until, heard) {
  forced = session;
  session.sendMessage(USE_THE_TOOL);
  await until("session.tool_end");
  check(called.length === 1 && typeof called[0] === "string", called);
  await until(heard);
  const { response } = await until("response.done");
  check(response.status === "completed" && called.length === 1, response);
}
