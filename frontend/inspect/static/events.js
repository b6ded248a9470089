// The events of the server, over fetch: EventSource cannot send a key.

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 5000;
const SILENCE_MS = 10000;

/** Read until `signal` aborts; reconnect for as long as that can help.
 *
 * `on.message(object)` for every event, `on.trouble(text)` when there is no
 * stream. `on.keyWanted()` when the server refused the key and `on.deviceGone()`
 * when it has no such device service: then it is over.
 */
export async function follow(device, key, signal, on) {
  const query = device === null ? "" : `?device=${encodeURIComponent(device)}`;
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  let retry = FIRST_RETRY_MS;
  while (!signal.aborted) {
    const silence = new Silence(signal);
    try {
      const response = await fetch(`inspect/events${query}`, {
        headers, signal: silence.signal, cache: "no-store",
      });
      if (response.status === 401) return on.keyWanted();
      if (response.status === 404) return on.deviceGone();
      if (!response.ok) throw new Error(await reasonOf(response));
      let end = "the server ended the stream";
      for await (const message of messages(response.body, silence)) {
        retry = FIRST_RETRY_MS;
        end = message.end ?? end;
        on.message(message);
      }
      on.trouble(end);
    } catch (error) {
      if (signal.aborted) return;
      on.trouble(silence.fell ? "no news from the server" : wording(error));
    } finally {
      silence.end();
    }
    await pause(retry, signal);
    retry = Math.min(2 * retry, LAST_RETRY_MS);
  }
}

/** Aborts a request from which nothing comes. */
class Silence {
  constructor(outer) {
    this.fell = false;
    this.controller = new AbortController();
    this.signal = AbortSignal.any([outer, this.controller.signal]);
    this.heard();
  }
  heard() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { this.fell = true; this.controller.abort(); }, SILENCE_MS);
  }
  end() { clearTimeout(this.timer); }
}

async function* messages(body, silence) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    silence.heard();
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
    }
  }
}

async function reasonOf(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `HTTP ${response.status}`;
}

function wording(error) {
  return error instanceof TypeError ? "cannot reach the server" : error.message;
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    setTimeout(resolve, ms);
    signal.addEventListener("abort", resolve, { once: true });
  });
}
