// Live captions of both sides: one line an item, the caller's unstable words dimmed.
//
// Screen readers hear each line once, when it is complete, from a live region of its own: the
// visible list changes with every word and would never let them finish.

export class Captions {
  constructor(list, announcer) {
    this.list = list;
    this.announcer = announcer;
    this.lines = new Map(); // item id -> {element, text, role, isFinal}
  }

  /** The caller's hypothesis so far. */
  heard(itemId, stable, unstable) {
    const line = this.line(itemId, "caller");
    if (line.isFinal) return;
    const dimmed = document.createElement("span");
    dimmed.className = "unstable";
    dimmed.textContent = unstable;
    line.words.replaceChildren(stable + (stable && unstable ? " " : ""), dimmed);
    this.follow();
  }

  callerSaid(itemId, transcript) {
    const text = transcript.trim();
    if (!text) return this.remove(itemId);
    this.finish(this.line(itemId, "caller"), text, `You: ${text}`);
  }

  agentDelta(itemId, delta) {
    const line = this.line(itemId, "agent");
    line.text += delta;
    line.words.textContent = line.text;
    this.follow();
  }

  agentDone(itemId) {
    const line = this.lines.get(itemId);
    if (line && !line.isFinal) this.finish(line, line.text, `Agent: ${line.text}`);
  }

  /** The reply was cut short; `heard` is what the caller heard of it. */
  agentInterrupted(itemId, heard) {
    const line = this.lines.get(itemId);
    if (!line) return;
    const text = heard.trim();
    line.element.classList.add("interrupted");
    this.finish(line, text, `Agent, interrupted: ${text}`);
    const cut = document.createElement("span");
    cut.className = "cut";
    cut.textContent = text ? " — interrupted" : "interrupted before a word was heard";
    line.words.append(cut);
  }

  gap(itemId, gapMs) {
    const line = this.line(itemId, "agent");
    line.gap.textContent = `${Math.round(gapMs)} ms`;
    line.gap.hidden = false;
  }

  note(text) {
    const element = document.createElement("li");
    element.className = "note";
    element.textContent = text;
    this.list.append(element);
    this.follow();
  }

  /** The conversation as items: what a new session is given after a broken line. */
  asItems() {
    return [...this.lines.values()]
      .filter((line) => line.isFinal && line.text)
      .map(({ role, text }) => ({
        type: "message",
        role: role === "caller" ? "user" : "assistant",
        content: [{ type: role === "caller" ? "input_text" : "output_text", text }],
      }));
  }

  clear() {
    this.lines.clear();
    this.list.replaceChildren();
  }

  line(itemId, role) {
    let line = this.lines.get(itemId);
    if (line) return line;
    const element = document.createElement("li");
    element.className = `says ${role}`;
    const name = document.createElement("b");
    name.textContent = role === "caller" ? "You" : "Agent";
    const words = document.createElement("p");
    const gap = document.createElement("span");
    gap.className = "line-gap";
    gap.hidden = true;
    gap.title = "from your last sound to the agent's first";
    element.append(name, words, gap);
    this.list.append(element);
    line = { element, words, gap, text: "", role, isFinal: false };
    this.lines.set(itemId, line);
    this.follow();
    return line;
  }

  finish(line, text, spoken) {
    line.text = text;
    line.isFinal = true;
    line.words.textContent = text;
    this.announcer.textContent = spoken;
    this.follow();
  }

  remove(itemId) {
    this.lines.get(itemId)?.element.remove();
    this.lines.delete(itemId);
  }

  /** Keep the newest line in sight unless the reader has scrolled back. */
  follow() {
    const { list } = this;
    const isNearEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 120;
    if (isNearEnd) list.scrollTop = list.scrollHeight;
  }
}
