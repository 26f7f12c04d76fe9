// @openai/agents-realtime, its own session over WebRTC (libwebrtc by @roamhq/wrtc), against a server.

import { callTheTool, close, hours, sessionOn } from "./agents_session.mjs";
import { ASKED, check, chunks, packages, run, url } from "./scenario.mjs";

const { OpenAIRealtimeWebRTC } = packages("@openai/agents-realtime");
const { MediaStream, RTCPeerConnection, nonstandard } = packages("@roamhq/wrtc");

Object.assign(globalThis, { RTCPeerConnection, MediaStream });
const LOUD = 1000;
const FRAME = 240; // 10 ms at 24 kHz, the most that its source takes

/** A microphone that is silent but for what is put in; its source takes 10 ms at a time. */
class Microphone {
  constructor() {
    this.source = new nonstandard.RTCAudioSource();
    this.stream = new MediaStream([this.source.createTrack()]);
    this.waiting = Buffer.alloc(0);
    const begun = performance.now();
    let sent = 0;
    this.timer = setInterval(() => {
      for (; sent < (performance.now() - begun) / 10; sent += 1) this.send();
    }, 10);
  }

  speak() {
    this.waiting = Buffer.concat(chunks());
  }

  hush() {
    this.waiting = Buffer.alloc(0);
  }

  send() {
    const piece = Buffer.alloc(2 * FRAME);
    this.waiting.copy(piece, 0, 0, 2 * FRAME);
    this.waiting = this.waiting.subarray(2 * FRAME);
    const samples = new Int16Array(piece.buffer, piece.byteOffset, FRAME);
    this.source.onData({ samples, sampleRate: 24_000, bitsPerSample: 16, channelCount: 1, numberOfFrames: FRAME });
  }
}

function opened(scenario, asked = {}) {
  return async () => {
    const microphone = new Microphone();
    let sink;
    const audioElement = {
      set srcObject(stream) {
        sink = new nonstandard.RTCAudioSink(stream.getAudioTracks()[0]);
        sink.ondata = ({ samples }) => {
          if (samples.some((sample) => Math.abs(sample) > LOUD)) inbox.put({ type: "heard" });
        };
      },
    };
    const transport = new OpenAIRealtimeWebRTC({ mediaStream: microphone.stream, audioElement, useInsecureApiKey: true });
    const { session, inbox } = sessionOn(transport, asked);
    await session.connect({ apiKey: "none", url: `${url.replace(/^ws/, "http")}/v1/realtime/calls` });
    check(transport.callId.startsWith("rtc_"), transport.callId);
    await scenario({ session, transport, microphone, until: (kind) => inbox.until(kind) });
    clearInterval(microphone.timer);
    sink?.stop();
    close(session);
  };
}

async function text_turn({ session, until }) {
  session.sendMessage("hello");
  await until("heard");
  await until("output_audio_buffer.stopped");
}

async function spoken_turn({ session, microphone, until }) {
  microphone.speak();
  await until("heard");
  const { response } = await until("response.done");
  check(response.status === "completed", response);
  await until("output_audio_buffer.stopped");
  const roles = session.history.map((item) => item.role);
  check(roles.join() === "user,assistant", roles);
}

async function tool_call({ session, until }) {
  await callTheTool(session, until, "heard");
}

async function barge_in({ session, microphone, until }) {
  session.sendMessage(ASKED);
  await until("heard");
  microphone.speak();
  await until("output_audio_buffer.cleared");
  await until("input_audio_buffer.committed");
  await until("output_audio_buffer.started");
  await until("response.done");
}

async function manual_commit({ transport, microphone, until }) {
  transport.sendEvent({ type: "input_audio_buffer.clear" });
  microphone.speak();
  await new Promise((resolve) => setTimeout(resolve, 10 * (microphone.waiting.length / (2 * FRAME)) + 100));
  transport.sendEvent({ type: "input_audio_buffer.commit" });
  await until("input_audio_buffer.committed");
  transport.sendEvent({ type: "response.create" });
  await until("heard");
  await until("response.done");
}

async function cancel({ session, until }) {
  session.sendMessage(ASKED);
  await until("heard");
  session.interrupt();
  const { response } = await until("response.done");
  check(response.status === "cancelled", response);
  await until("output_audio_buffer.cleared");
}

await run({
  text_turn: opened(text_turn),
  spoken_turn: opened(spoken_turn),
  tool_call: opened(tool_call, { tools: [hours], toolChoice: "required" }),
  barge_in: opened(barge_in),
  manual_commit: opened(manual_commit, { turnDetection: null }),
  cancel: opened(cancel),
});
