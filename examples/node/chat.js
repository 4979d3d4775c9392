// A chat over NATS without any library of ours, which goes on where it was cut off:
//
//   npm install && node chat.js [NATS_URL] [PROMPT]
//
// A connection that is lost, a frontend that dies and a message that got lost all look the same:
// the next piece does not follow, or does not come. Then any frontend is asked to go on.

import { connect, createInbox } from "@nats-io/transport-node";

const SILENCE_MS = 6000; // a frontend gives a sign of life every 2 s
const PAUSE_MS = 300;

const [url = "nats://127.0.0.1:4222", prompt = "Tell me a story about a dragon."] = process.argv.slice(2);

/** Messages of one inbox until they end the stream, fall silent, or the connection changes. */
async function* messages(nc, subject, body) {
  const inbox = createInbox();
  const replies = nc.subscribe(inbox);
  const iterator = replies[Symbol.asyncIterator]();
  const closed = nextReconnect(nc);
  try {
    nc.publish(subject, JSON.stringify(body), { reply: inbox });
    while (true) {
      const silence = after(SILENCE_MS);
      const next = await Promise.race([iterator.next(), closed.promise, silence.promise]);
      silence.cancel();
      if (next === undefined || next.done) return;
      yield next.value;
    }
  } finally {
    closed.cancel();
    replies.unsubscribe();
  }
}

/** The answer in pieces. Throws what the service refuses. */
async function* chat(nc, body) {
  let [subject, question] = ["jetflock.chat.completions", { ...body, stream: true }];
  let requestId = null;
  let eventId = null;
  let have = 0; // characters, as the service counts them
  while (true) {
    let hasGap = false;
    for await (const message of messages(nc, subject, question)) {
      const status = message.headers?.get("Jetflock-Status");
      requestId = message.headers?.get("Jetflock-Request-Id") || requestId;
      if (status === "end") return;
      if (status === "interrupted" || message.headers?.code === 503) break;
      if (message.headers?.has("Nats-Service-Error")) {
        if (message.headers.get("Nats-Service-Error-Code") === "503") break;
        throw new Error(message.json().error.message);
      }
      if (status) continue; // accepted, or waiting
      const text = message.json().choices[0]?.delta.content ?? "";
      const id = message.headers.get("Jetflock-Event-Id");
      const length = Number(id.split(".")[2]); // of all the text behind this event
      hasGap = length > have + [...text].length;
      if (hasGap) break;
      if (length > have) yield text;
      [have, eventId] = [Math.max(have, length), id];
    }
    if (requestId === null) throw new Error("no frontend has taken the request");
    await after(PAUSE_MS).promise;
    console.error(`going on with ${requestId} after ${have} characters`);
    subject = "jetflock.resume";
    question = eventId === null ? { rid: requestId } : { event_id: eventId };
  }
}

function after(ms) {
  let timer;
  const promise = new Promise((resolve) => (timer = setTimeout(resolve, ms)));
  return { promise, cancel: () => clearTimeout(timer) };
}

/** Resolves when the connection was lost and is back: what came meanwhile is lost. */
function nextReconnect(nc) {
  const events = nc.status()[Symbol.asyncIterator]();
  const promise = (async () => {
    for (let event = await events.next(); !event.done; event = await events.next()) {
      if (event.value.type === "reconnect") return;
    }
  })();
  return { promise, cancel: () => events.return?.() };
}

const nc = await connect({
  servers: url,
  maxReconnectAttempts: -1,
  reconnectTimeWait: 200,
  pingInterval: 5000,
});
try {
  const models = (await nc.request("jetflock.models", "", { timeout: 10000 })).json();
  const body = { model: models.data[0].id, messages: [{ role: "user", content: prompt }] };
  for await (const text of chat(nc, body)) process.stdout.write(text);
  process.stdout.write("\n");
} finally {
  await nc.close();
}
