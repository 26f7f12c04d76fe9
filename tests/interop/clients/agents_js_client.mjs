// @openai/agents-realtime, its own session over a WebSocket, against a server.

import { ASKED, INSTRUCTIONS, Inbox, RESULT, USE_THE_TOOL, check, chunks, packages, run, speak, url } from "./scenario.mjs";

const { RealtimeAgent, RealtimeSession, tool } = packages("@openai/agents-realtime");
const { z } = packages("zod");

const SEMANTIC = { type: "semantic_vad", interruptResponse: true, createResponse: true };
const called = [];
let forced = null; // the session whose settings ask for a call
const hours = tool({
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

function opened(scenario, { turnDetection = SEMANTIC, tools = [], ...config } = {}) {
  return async () => {
    const agent = new RealtimeAgent({ name: "Ava", instructions: INSTRUCTIONS, tools });
    const session = new RealtimeSession(agent, {
      transport: "websocket",
      model: "gpt-realtime",
      config: { audio: { input: { turnDetection } }, ...config },
    });
    const inbox = new Inbox();
    session.on("transport_event", (event) => inbox.put(event));
    session.on("audio", () => inbox.put({ type: "session.audio" }));
    session.on("audio_interrupted", () => inbox.put({ type: "session.interrupted" }));
    session.on("agent_tool_end", () => inbox.put({ type: "session.tool_end" }));
    session.on("error", ({ error }) => inbox.put({ type: "error", error: String(error), detail: error }));
    await session.connect({ apiKey: "none", url: `${url}/v1/realtime?model=gpt-realtime` });
    await inbox.until("session.updated");
    await scenario({ session, until: (kind) => inbox.until(kind) });
    session.close();
    check(warnings.length === 0, warnings);
  };
}

const send = (session) => (piece) => session.sendAudio(new Uint8Array(piece).buffer);

async function text_turn({ session, until }) {
  session.sendMessage("hello");
  await until("session.audio");
  await until("response.done");
}

async function spoken_turn({ session, until }) {
  const hush = speak(send(session));
  await until("session.audio");
  const { response } = await until("response.done");
  check(response.status === "completed", response);
  hush();
  const roles = session.history.map((item) => item.role);
  check(roles.join() === "user,assistant", roles);
}

async function tool_call({ session, until }) {
  forced = session;
  session.sendMessage(USE_THE_TOOL);
  await until("session.tool_end");
  check(called.length === 1 && typeof called[0] === "string", called);
  await until("session.audio");
  const { response } = await until("response.done");
  check(response.status === "completed" && called.length === 1, response);
}

async function barge_in({ session, until }) {
  session.sendMessage(ASKED);
  await until("session.audio");
  const hush = speak(send(session));
  await until("session.interrupted");
  await until("input_audio_buffer.committed");
  await until("session.audio");
  await until("response.done");
  hush();
}

async function manual_commit({ session, until }) {
  chunks().forEach(send(session));
  session.transport.sendEvent({ type: "input_audio_buffer.commit" });
  await until("input_audio_buffer.committed");
  session.transport.sendEvent({ type: "response.create" });
  await until("session.audio");
  await until("response.done");
}

async function cancel({ session, until }) {
  session.sendMessage(ASKED);
  await until("session.audio");
  session.interrupt();
  const { response } = await until("response.done");
  check(response.status === "cancelled", response);
}

await run({
  text_turn: opened(text_turn),
  spoken_turn: opened(spoken_turn),
  tool_call: opened(tool_call, { tools: [hours], toolChoice: "required" }),
  barge_in: opened(barge_in),
  manual_commit: opened(manual_commit, { turnDetection: null }),
  cancel: opened(cancel),
});
