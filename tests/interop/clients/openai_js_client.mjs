// npm openai against a server, over TLS: it speaks wss only. The server's certificate is trusted
// through NODE_EXTRA_CA_CERTS. Scenarios take turns between its two transports.

import { ASKED, Inbox, RESULT, USE_THE_TOOL, check, chunks, packages, run, speak, url } from "./scenario.mjs";

const { default: OpenAI } = packages("openai");
const { OpenAIRealtimeWS } = packages("openai/realtime/ws");
const { OpenAIRealtimeWebSocket } = packages("openai/realtime/websocket");

const client = new OpenAI({ apiKey: "none", baseURL: `${url.replace("wss://", "https://")}/v1` });
const TOOL = {
  type: "function",
  name: "hours",
  description: "Opening hours of a day.",
  parameters: { type: "object", properties: { day: { type: "string" } }, required: ["day"], additionalProperties: false },
};
let nOpened = 0;

async function opened(scenario) {
  const Transport = nOpened++ % 2 ? OpenAIRealtimeWebSocket : OpenAIRealtimeWS;
  const line = new Transport({ model: "gpt-realtime" }, client);
  const inbox = new Inbox();
  line.on("event", (event) => inbox.put(event));
  line.on("error", (error) => inbox.put({ type: "error", message: String(error) }));
  const until = (kind) => inbox.until(kind);
  await until("session.created");
  await scenario({ line, until });
  line.close();
}

const append = (line) => (piece) =>
  line.send({ type: "input_audio_buffer.append", audio: piece.toString("base64") });

function say(line, text) {
  const content = [{ type: "input_text", text }];
  line.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
}

async function update({ line, until }, turn_detection, more = {}) {
  const session = { type: "realtime", audio: { input: { turn_detection } }, ...more };
  line.send({ type: "session.update", session });
  await until("session.updated");
}

async function text_turn({ line, until }) {
  say(line, "hello");
  await update({ line, until }, null, { output_modalities: ["text"] });
  line.send({ type: "response.create" });
  check((await until("response.output_text.done")).text, "text");
}

async function spoken_turn({ line, until }) {
  await update({ line, until }, { type: "semantic_vad" });
  const hush = speak(append(line));
  await until("input_audio_buffer.speech_stopped");
  await until("response.output_audio.delta");
  const { response } = await until("response.done");
  check(response.status === "completed", response);
  hush();
}

async function tool_call({ line, until }) {
  await update({ line, until }, null, { output_modalities: ["text"], tools: [TOOL] });
  say(line, USE_THE_TOOL);
  const tool_choice = { type: "function", name: "hours" };
  line.send({ type: "response.create", response: { tool_choice } });
  const call = await until("response.function_call_arguments.done");
  check(call.name === "hours" && typeof JSON.parse(call.arguments).day === "string", call);
  await until("response.done");
  const item = { type: "function_call_output", call_id: call.call_id, output: RESULT };
  line.send({ type: "conversation.item.create", item });
  line.send({ type: "response.create", response: { tool_choice: "none" } });
  check((await until("response.output_text.done")).text, "text");
}

async function barge_in({ line, until }) {
  await update({ line, until }, { type: "semantic_vad" });
  say(line, ASKED);
  line.send({ type: "response.create" });
  const { item_id } = await until("response.output_audio.delta");
  const hush = speak(append(line));
  await until("input_audio_buffer.speech_started");
  line.send({ type: "conversation.item.truncate", item_id, content_index: 0, audio_end_ms: 600 });
  await until("conversation.item.truncated");
  const { response } = await until("response.done");
  check(response.status === "completed", response);
  hush();
}

async function manual_commit({ line, until }) {
  await update({ line, until }, null);
  chunks().forEach(append(line));
  line.send({ type: "input_audio_buffer.commit" });
  await until("input_audio_buffer.committed");
  line.send({ type: "response.create" });
  const { response } = await until("response.done");
  check(response.status === "completed", response);
}

async function cancel({ line, until }) {
  say(line, ASKED);
  line.send({ type: "response.create" });
  await until("response.output_audio.delta");
  line.send({ type: "response.cancel" });
  const { response } = await until("response.done");
  check(response.status === "cancelled", response);
}

const scenarios = { text_turn, spoken_turn, tool_call, barge_in, manual_commit, cancel };
await run(Object.fromEntries(Object.entries(scenarios).map(([name, one]) => [name, () => opened(one)])));
