// @openai/agents-realtime, its own session over a WebSocket, against a server.

import { callTheTool, close, hours, sessionOn } from "./agents_session.mjs";
import { ASKED, check, chunks, run, speak, url } from "./scenario.mjs";

function opened(scenario, asked = {}) {
  return async () => {
    const { session, inbox } = sessionOn("websocket", asked);
    session.on("audio", () => inbox.put({ type: "session.audio" }));
    await session.connect({ apiKey: "none", url: `${url}/v1/realtime?model=gpt-realtime` });
    await inbox.until("session.updated");
    await scenario({ session, until: (kind) => inbox.until(kind) });
    close(session);
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
  await callTheTool(session, until, "session.audio");
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
