// What both Node clients' scripts share: the command line and the words that are said.
//
//   node CLIENT.mjs URL SPEECH SCENARIO...     (SPEECH: raw PCM16 mono at 24 kHz)

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

export const [url, speechPath, ...chosen] = process.argv.slice(2);
const speech = readFileSync(speechPath);
const CHUNK = 4800;
const CHUNK_MS = 100;

// Near what the embedded agent is made for; a small model has little to say under others.
export const INSTRUCTIONS =
  "You are Ava, the friendly voice assistant of Juniper Cafe, a small cafe. " +
  "You help callers with orders and questions about the cafe. " +
  "We are open Monday to Friday from 7 am to 7 pm, Saturday from 8 am to 6 pm and closed on " +
  "Sunday. Pastries: blueberry muffin $3.25, butter croissant $3.50, carrot cake $4.25. " +
  "Answer in short sentences.";
export const ASKED = "What do you have to eat?";
export const USE_THE_TOOL = "Please use the tool: when are you open on monday?";
export const RESULT = "nine to five";

/** The packages of this client's own environment, wherever this script lies. */
export const packages = createRequire(`${process.env.CLIENT_ENVIRONMENT}/package.json`);

/** 100 ms pieces of the recording, then silence. */
export function chunks(quietS = 0) {
  const data = Buffer.concat([speech, Buffer.alloc(2 * 24_000 * quietS)]);
  const found = [];
  for (let at = 0; at < data.length; at += CHUNK) found.push(data.subarray(at, at + CHUNK));
  return found;
}

/** Send the recording in time; the function that is returned ends it. */
export function speak(send) {
  let isHushed = false;
  (async () => {
    for (const piece of chunks(3)) {
      if (isHushed) return;
      send(piece);
      await sleep(CHUNK_MS);
    }
  })();
  return () => (isHushed = true);
}

export function check(condition, found) {
  if (!condition) throw new Error(`unexpected: ${JSON.stringify(found)}`);
}

/** Events in order; `until(kind)` waits for the next of that kind and drops those before. */
export class Inbox {
  constructor() {
    this.events = [];
    this.wake = () => {};
  }

  put(event) {
    this.events.push(event);
    this.wake();
  }

  async until(kind) {
    const deadline = Date.now() + 30_000;
    for (;;) {
      while (this.events.length) {
        const event = this.events.shift();
        check(event.type !== "error", event);
        if (event.type === kind) return event;
      }
      check(Date.now() < deadline, { missing: kind });
      await Promise.race([new Promise((resolve) => (this.wake = resolve)), sleep(500)]);
    }
  }
}

export async function run(scenarios) {
  for (const name of chosen) {
    await scenarios[name]();
    console.log("passed", name);
  }
  process.exit(0);
}
