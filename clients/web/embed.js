// <script src=".../embed.js" data-token="/token" async></script>: an agent to talk to, on anybody's
// page.
//
// It makes the element <voice-loop>, or fills those that the page has placed, in a shadow of their
// own. `data-token`: an endpoint of the page's own that answers with a client secret; `data-site`: a
// site id where the server mints the secret itself. No key that lasts is ever in a page. WebRTC
// first; a WebSocket where that comes to nothing.
(() => {
  if (customElements.get("voice-loop")) return;
  const script = document.currentScript;
  const SERVER = new URL(script?.src || location.href).origin;
  const STATES = {
    idle: "",
    connecting: "Connecting",
    listening: "Listening",
    thinking: "Thinking",
    speaking: "Speaking: interrupt at any time",
    ended: "The call has ended",
    failed: "No call",
  };
  const IN_CALL = ["connecting", "listening", "thinking", "speaking"];
  const MAX_LINES = 50;
  const STYLE = `
    :host { --ink: #1f2328; --soft: #5b636c; --card: #fff; --line: #d6d2c8; --mine: #9a5c1b;
      --agent: #2c6fbb; --bad: #b3362b; --on: #fff; color-scheme: light dark;
      display: block; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); }
    @media (prefers-color-scheme: dark) { :host { --ink: #e9e7e2; --soft: #a4acb5; --card: #1c1f23;
      --line: #3a3f45; --mine: #e0a35c; --agent: #74aeee; --bad: #f0857b; --on: #15171a; } }
    :host([floating]) { position: fixed; inset: auto 16px 16px auto; z-index: 2147483000;
      width: min(340px, calc(100vw - 32px)); }
    :host([floating]) section { box-shadow: 0 6px 28px #0003; }
    * { box-sizing: border-box; }
    [hidden] { display: none !important; }
    section { background: var(--card); border: 1px solid var(--line); border-radius: 16px; padding: 12px; }
    .row { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; }
    p { margin: 0; }
    button { font: inherit; min-height: 40px; color: var(--ink); background: none; cursor: pointer;
      border: 1px solid var(--line); border-radius: 99px; padding: 6px 16px; }
    button:hover { border-color: var(--soft); }
    .primary { background: var(--ink); border-color: var(--ink); color: var(--on); font-weight: 600; flex: 1; }
    button[aria-pressed="true"] { background: var(--mine); border-color: var(--mine); color: var(--on); }
    :focus-visible { outline: 2px solid var(--agent); outline-offset: 2px; }
    .state { flex: 1 1 100%; display: flex; align-items: center; gap: 8px; }
    .state::before { content: ""; flex: none; width: 10px; height: 10px; border-radius: 50%; background: var(--soft); }
    [data-state="listening"] .state::before { background: var(--mine); }
    [data-state="speaking"] .state::before { background: var(--agent); animation: beat 1s infinite alternate; }
    [data-state="thinking"] .state::before { background: var(--agent); opacity: .5; }
    [data-state="failed"] .state { color: var(--bad); }
    [data-state="failed"] .state::before { background: var(--bad); }
    @keyframes beat { to { transform: scale(1.5); } }
    @media (prefers-reduced-motion: reduce) { .state::before { animation: none !important; } }
    .log { max-height: 220px; overflow-y: auto; margin-top: 10px; overflow-wrap: anywhere; }
    .log p { margin: 4px 0; } .log b { color: var(--agent); } .you b { color: var(--mine); }`;

  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const button = (text, onclick, more) => element("button", { type: "button", textContent: text, onclick, ...more });

  class VoiceLoop extends HTMLElement {
    connectedCallback() {
      if (this.shadowRoot) return;
      const root = this.attachShadow({ mode: "open" });
      const sheet = new CSSStyleSheet(); // a page's policy may forbid <style>
      sheet.replaceSync(STYLE);
      root.adoptedStyleSheets = [sheet];
      this.start = button(this.setting("label") || "Talk to us", () => this.call(), { className: "primary" });
      this.muteButton = button("Mute", () => this.mute(this.muteButton.ariaPressed !== "true"), { ariaPressed: "false" });
      this.stop = button("Hang up", () => this.end("ended", "", true));
      this.captionsButton = button("Captions", () => this.showCaptions(this.list.hidden));
      this.status = element("p", { className: "state", role: "status" });
      this.list = element("div", { className: "log", role: "log", ariaLabel: "Captions", tabIndex: 0 });
      this.player = element("audio", { autoplay: true });
      const row = element("div", { className: "row" },
        this.status, this.start, this.muteButton, this.stop, this.captionsButton);
      this.box = element("section", { ariaLabel: this.setting("label") || "Voice call" },
        row, this.list, this.player);
      this.box.addEventListener("keydown", ({ key }) => {
        if (key === "Escape" && this.isInCall) this.end("ended", "", true);
      });
      root.append(this.box);
      this.lines = new Map(); // item id -> its line
      this.showCaptions(this.setting("captions") !== "off");
      this.show("idle");
    }

    disconnectedCallback() {
      if (this.isInCall) this.end("ended");
    }

    setting(name) {
      return this.getAttribute(`data-${name}`) ?? "";
    }

    get server() {
      return this.setting("server") || SERVER;
    }

    get isInCall() {
      return IN_CALL.includes(this.state);
    }

    show(state, why = "") {
      const isNews = this.state !== state;
      this.state = state;
      this.box.dataset.state = state;
      const text = why || STATES[state];
      if (this.status.textContent !== text) this.status.textContent = text;
      this.status.hidden = state === "idle";
      this.start.hidden = this.isInCall;
      this.stop.hidden = this.muteButton.hidden = !this.isInCall;
      this.captionsButton.hidden = state === "idle";
      if (isNews) this.dispatchEvent(new CustomEvent("voiceloop-state", { detail: state, bubbles: true, composed: true }));
    }

    showCaptions(isShown) {
      this.list.hidden = !isShown;
      this.captionsButton.ariaPressed = String(isShown);
    }

    mute(isMuted) {
      this.muteButton.ariaPressed = String(isMuted);
      this.muteButton.textContent = isMuted ? "Muted" : "Mute";
      if (this.line && "muted" in this.line) this.line.muted = isMuted;
      this.microphone?.getAudioTracks().forEach((track) => (track.enabled = !isMuted));
    }

    // --- the call ---

    async call() {
      const hadFocus = this.shadowRoot.activeElement !== null;
      const attempt = (this.attempt = new AbortController());
      this.list.replaceChildren();
      this.lines.clear();
      this.carrier = "";
      this.show("connecting");
      this.mute(false);
      if (hadFocus) this.stop.focus();
      try {
        const [key, microphone] = await Promise.all([this.secret(), openMicrophone()]);
        this.microphone = microphone;
        const line = await this.open(key, attempt.signal);
        if (attempt.signal.aborted) return line.close();
        this.line = line;
        this.mute(this.muteButton.ariaPressed === "true");
      } catch (error) {
        if (!attempt.signal.aborted) this.end("failed", trouble(error));
      } finally {
        if (attempt.signal.aborted) this.closeMicrophone();
      }
    }

    /** The short-lived key of this visitor's call, "" where the server asks for none. */
    async secret() {
      const [token, site] = [this.setting("token"), this.setting("site")];
      if (!token && !site) return "";
      const answer = await (token
        ? fetch(token, { method: "POST" })
        : fetch(`${this.server}/v1/realtime/sites/secret`, { method: "POST", body: JSON.stringify({ site }) }));
      const body = await answer.json().catch(() => ({}));
      const value = body.value ?? body.client_secret?.value;
      if (!answer.ok || !value) throw new Error(body.error?.message ?? "this page has no key for a call");
      return value;
    }

    async open(key, signal) {
      const common = {
        key,
        signal,
        onEvent: (event) => this.receive(event),
        onClosed: (reason) => this.end("ended", reason),
      };
      const address = `${this.server}/v1/realtime`;
      if (this.setting("transport") !== "websocket") {
        const { fetchIceServers, openRtc } = await import(`${SERVER}/web/rtc.js`);
        try {
          const onStream = (stream) => (this.player.srcObject = stream);
          const line = await openRtc({
            ...common,
            url: `${address}/calls?greeting=1`,
            stream: this.microphone,
            iceServers: fetchIceServers(this.server, key),
            onStream,
          });
          this.carrier = "webrtc";
          return line;
        } catch (error) {
          if (signal.aborted || error.isRefused) throw error;
        }
      }
      this.closeMicrophone(); // the other line opens its own, at the rate it sends
      const { openSocket } = await import(`${SERVER}/web/socket_line.js`);
      const onSpeaking = (isHeard) => this.isInCall && this.show(isHeard ? "speaking" : "listening");
      const line = await openSocket({ ...common, url: `${address}?greeting=1`, onSpeaking });
      this.carrier = "websocket";
      return line;
    }

    end(state, why = "", isByHand = false) {
      this.attempt?.abort();
      const { line } = this;
      this.line = null;
      line?.close();
      this.closeMicrophone();
      this.player.srcObject = null;
      this.show(state, why);
      if (isByHand) this.start.focus();
    }

    closeMicrophone() {
      this.microphone?.getTracks().forEach((track) => track.stop());
      this.microphone = null;
    }

    receive(event) {
      switch (event.type) {
        case "session.created":
          // The page's visitors read what was understood of them.
          this.line.send({
            type: "session.update",
            session: { type: "realtime", audio: { input: { transcription: { model: "whisper-1" } } } },
          });
          return this.show("listening");
        case "input_audio_buffer.speech_started":
        case "output_audio_buffer.stopped":
        case "output_audio_buffer.cleared":
          return this.show("listening");
        case "input_audio_buffer.speech_stopped":
          return this.show("thinking");
        case "output_audio_buffer.started":
          return this.show("speaking");
        case "conversation.item.added":
          if (event.item.type === "message") this.lineOf(event.item.id); // its words come later
          return;
        case "conversation.item.input_audio_transcription.completed":
          return this.caption(event.item_id, "you", event.transcript.trim());
        case "response.output_audio_transcript.done":
        case "response.output_text.done":
          return this.caption(event.item_id, "agent", event.transcript ?? event.text);
        case "conversation.item.truncated": // of a reply that was interrupted: what of it was heard
          return this.line.send({ type: "conversation.item.retrieve", item_id: event.item_id });
        case "conversation.item.retrieved": {
          const heard = event.item.content.map((part) => part.transcript ?? part.text ?? "").join("");
          return this.caption(event.item.id, "agent", `${heard} …`);
        }
        case "response.done":
          if (event.response.status === "failed") this.caption(event.response.id, "agent", "(no answer)");
      }
    }

    /** A line stands where its item stands in the conversation. */
    lineOf(id) {
      if (!this.lines.has(id)) {
        this.lines.set(id, element("p", { hidden: true }));
        this.list.append(this.lines.get(id));
        if (this.list.childElementCount > MAX_LINES) this.list.firstChild.remove();
      }
      return this.lines.get(id);
    }

    /** Complete when it comes: a screen reader reads each line once. */
    caption(id, who, text) {
      const line = this.lineOf(id);
      const name = element("b", { textContent: who === "you" ? "You " : `${this.setting("name") || "Agent"} ` });
      line.replaceChildren(name, text);
      line.className = who;
      line.hidden = !text;
      this.list.scrollTop = this.list.scrollHeight;
    }
  }

  function openMicrophone() {
    if (!navigator.mediaDevices) throw new Error("a call needs https: browsers give no microphone elsewhere");
    const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };
    return navigator.mediaDevices.getUserMedia({ audio });
  }

  function trouble(error) {
    if (error.name === "NotAllowedError") return "The microphone is not allowed on this page";
    if (error.name === "NotFoundError") return "No microphone was found";
    return `No call: ${error.message}`;
  }

  customElements.define("voice-loop", VoiceLoop);
  if (!script || document.querySelector("voice-loop")) return; // placed by the page itself
  const made = document.createElement("voice-loop");
  for (const [name, value] of Object.entries(script.dataset)) made.setAttribute(`data-${name}`, value);
  made.toggleAttribute("floating", true);
  const place = () => document.body.append(made);
  if (document.body) place();
  else addEventListener("DOMContentLoaded", place);
})();
