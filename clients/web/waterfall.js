// One turn's waterfall as SVG: a staircase, a row a stage, on a scale that all turns share.

import { STAGE_COLORS } from "./gap.js";

export const STAGE_MEANINGS = {
  "speech tail": "your voice fades: still speech to the server, no longer loud",
  "vad lag": "the voice detector needs its first quiet window",
  "silence wait": "the silence that shows you have finished",
  "final transcript": "the recognizer settles the last words",
  "before reply": "the agent's own code hears what you said",
  retrieval: "documents are searched for it",
  prompt: "the language model reads what it had not read yet",
  tools: "tools answer",
  thinks: "it thinks before its first word",
  "first token": "it writes its first word",
  "first clause": "and as much as can be spoken in one breath",
  synthesis: "the voice makes the first sound of it",
  playout: "the sound waits for its turn to be sent",
  writer: "it goes out to the line",
  "line, both ways": "what neither side can see: the network and this browser",
  "jitter buffer": "sound kept in hand here, so that a late packet makes no hole",
};

const ROW = 18;
const LABEL = 104;
const VALUE = 44;
const WIDTH = 440;
const SHOWN_FROM_MS = 0.5;
const SVG = "http://www.w3.org/2000/svg";

export function waterfallSvg(stages, scaleMs) {
  const shown = stages.filter((stage) => stage.ms >= SHOWN_FROM_MS);
  const height = ROW * shown.length + 20;
  const plot = WIDTH - LABEL - VALUE;
  const spoken = shown.map((stage) => `${stage.name} ${Math.round(stage.ms)} ms`).join(", ");
  const svg = element("svg", {
    class: "waterfall",
    viewBox: `0 0 ${WIDTH} ${height}`,
    role: "img",
    "aria-label": `Where the gap went: ${spoken}`,
  });
  for (const tick of ticks(scaleMs)) {
    const x = LABEL + (plot * tick) / scaleMs;
    svg.append(element("line", { class: "grid", x1: x, y1: 0, x2: x, y2: height - 18 }));
    svg.append(element("text", { class: "tick", x, y: height - 5 }, tick));
  }
  let startMs = 0;
  let row = 0;
  for (const stage of stages) {
    if (stage.ms >= SHOWN_FROM_MS) {
      const x = LABEL + (plot * startMs) / scaleMs;
      const width = Math.max(1.5, (plot * stage.ms) / scaleMs);
      const y = ROW * row++;
      const fill = STAGE_COLORS[stage.name] ?? "#888888";
      svg.append(element("text", { class: "stage", x: LABEL - 8, y: y + 13 }, stage.name));
      const bar = element("rect", { x, y: y + 3, width, height: ROW - 6, rx: 2, fill });
      bar.append(element("title", {}, STAGE_MEANINGS[stage.name] ?? stage.name));
      svg.append(bar);
      const ms = Math.round(stage.ms);
      svg.append(element("text", { class: "ms", x: x + width + 5, y: y + 13 }, ms));
    }
    startMs += stage.ms;
  }
  return svg;
}

/** A round scale that holds all of these gaps. */
export function sharedScaleMs(gaps) {
  return Math.max(100, 50 * Math.ceil(Math.max(0, ...gaps) / 50));
}

function ticks(scaleMs) {
  const step = [25, 50, 100, 200, 250, 500, 1000].find((one) => scaleMs / one <= 6) ?? 2000;
  return Array.from({ length: Math.floor(scaleMs / step) + 1 }, (_, i) => i * step);
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
