// Types turns into a call and prints what is answered: `node client.ts URL WORDS...`.
//
// The key, or a client secret, is taken from VOICELOOP_KEY. Node 22.18 or later runs it as it
// stands, and so does a browser once its types are stripped: a page cannot send a header, so the
// key goes as a subprotocol.

interface Event {
  type: string;
  text?: string;
  error?: { message: string };
  response?: { output: { type: string }[] };
}

class Call {
  private readonly socket: WebSocket;
  private readonly waiting: ((event: Event) => void)[] = [];
  private readonly events: Event[] = [];

  constructor(url: string, key: string | undefined) {
    const protocols = key ? ["realtime", `openai-insecure-api-key.${key}`] : ["realtime"];
    this.socket = new WebSocket(url, protocols);
    this.socket.onmessage = (message: MessageEvent<string>) => {
      const event: Event = JSON.parse(message.data);
      const next = this.waiting.shift();
      if (next) next(event);
      else this.events.push(event);
    };
  }

  opened(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.socket.onopen = () => resolve();
      this.socket.onerror = () => reject(new Error("the server does not answer"));
    });
  }

  send(event: object): void {
    this.socket.send(JSON.stringify(event));
  }

  next(): Promise<Event> {
    const event = this.events.shift();
    return event ? Promise.resolve(event) : new Promise((resolve) => this.waiting.push(resolve));
  }

  /** One turn; the answer, after what the server's tools have told. */
  async say(words: string): Promise<string> {
    const content = [{ type: "input_text", text: words }];
    const item = { type: "message", role: "user", content };
    this.send({ type: "conversation.item.create", item });
    this.send({ type: "response.create" });
    const answer: string[] = [];
    for (;;) {
      const event = await this.next();
      if (event.type === "error") throw new Error(event.error?.message);
      if (event.type === "response.output_text.done") answer.push(event.text ?? "");
      if (event.type !== "response.done") continue;
      const calls = event.response?.output.some((one) => one.type === "function_call");
      if (!calls) return answer.join(" "); // else the server calls its tool and goes on
    }
  }

  close(): void {
    this.socket.close();
  }
}

const [url, ...turns] = process.argv.slice(2);
const call = new Call(url, process.env.VOICELOOP_KEY);
await call.opened();
call.send({ type: "session.update", session: { type: "realtime", output_modalities: ["text"] } });
for (const words of turns) console.log(await call.say(words));
call.close();
