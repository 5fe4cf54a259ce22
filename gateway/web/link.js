/**
 * One connection to the gateway, and what goes over it: frames, payloads, ids and errors. It is a part
 * of jetbus.js, which outlives connections.
 *
 * @module jetbus/link
 */

const PROTOCOL = "jetbus.v1.json";
const HELLO_MS = 10_000; // until the gateway's first frame
const AHEAD_MS = 500; // of the gateway's rate that may be used at once
const AGE_BYTES = 32; // how much longer a frame becomes that says how old it is, at most
export const CLOSE_MS = 2_000; // until the other side has closed, too

/**
 * What went wrong. `code` is one of the gateway's (its README lists them), or of this module:
 * closed, connection_lost, timeout, gap, no_websocket, bad_argument.
 */
export class JetBusError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {{retryable?: boolean, retryAfterMs?: number, details?: unknown, cause?: unknown}} [more]
   */
  constructor(code, message, { retryable = false, retryAfterMs = 0, details, cause } = {}) {
    super(`${code}: ${message}`, cause === undefined ? undefined : { cause });
    this.name = "JetBusError";
    this.code = code;
    this.retryable = retryable;
    this.retryAfterMs = retryAfterMs;
    this.details = details;
  }
}

/** The error of an ERR or SUB_CLOSED frame, or of a problem document. */
export const errorOf = (m) => new JetBusError(m.code ?? "internal", m.msg ?? m.detail ?? "no reason was given",
  { retryable: m.retryable, retryAfterMs: m.retry_after_ms, details: m.details });

/** Close codes after which a client does not connect again (but see CROWDED), and their meaning. */
const TERMINAL = {
  1002: "protocol_error", 1003: "protocol_error", 1007: "protocol_error", 1008: "forbidden", 1009: "too_large",
  4500: "protocol_error", 4501: "unauthorized", 4503: "forbidden", 4504: "conn_limit", 4505: "auth_timeout", 4506: "unsupported_version",
};

/** Close codes of a gateway that has no room, or of a client that was too slow to authenticate. */
const CROWDED = [4504, 4505];

/** Whether a gateway that accepted this client before may accept it again later, despite this close code. */
export const isCrowded = (err) => CROWDED.includes(err?.closeCode);

/** The error of a closed connection. `known` means that the gateway accepted this client before. */
export function closeError(code, reason, cause, known = false) {
  const terminal = TERMINAL[code] ?? (code >= 4500 ? "protocol_error" : undefined);
  const text = `the connection was closed (${code}${reason ? " " + reason : ""})`;
  const retryable = !terminal || known && CROWDED.includes(code);
  return Object.assign(new JetBusError(terminal ?? "connection_lost", text, { retryable, cause }), { closeCode: code });
}

/** What a refusal leaves open where its details do not say it: whether the event is stored. */
const OPEN = ["publish_failed", "internal", "broker_unavailable"];

/** Whether an event may be stored although its frame came to this end. */
function mayBeStored(err) {
  if (err.closeCode !== undefined) return true; // nobody answered
  return err.details?.stored ? err.details.stored !== "no" : OPEN.includes(err.code);
}

const readClocks = () => [performance.now(), Date.now()];

/**
 * The frames by which something is published, under the same id. A topic knows what it has by that for its
 * duplicate window. How long that is the gateway knows: it is told how old the first frame is that may have stored
 * it, and refuses what would be stored a second time.
 */
export class Tries {
  #clocks;
  #sent; // when the frame was sent that has no answer; undefined: there is none
  #since; // when the first one was that may have stored it; undefined: none may

  constructor(clocks = readClocks) { this.#clocks = clocks; }

  /** The age of the first frame that may have stored it, as a member of the next one; empty: there is none. */
  age() {
    if (!this.#since) return "";
    const ages = this.#clocks().map((now, i) => now - this.#since[i]);
    return `,"age_ms":${Math.max(1, Math.ceil(Math.max(...ages)))}`; // by the clock that did not stand still while the machine slept
  }

  /** A frame is sent. */
  wrote() { this.#sent = this.#clocks(); }

  /** Why there is no receipt. The frame may not have been sent at all. */
  failed(err) {
    if (this.#sent && mayBeStored(err)) this.#since ??= this.#sent;
    this.#sent = undefined;
  }

  /** How the publish ends, as the caller is told: whatever was said of the last frame, an earlier one may have stored the event. */
  ended(err) {
    if (!this.#since) return err;
    const told = new JetBusError(err.code, "", { ...err, details: { ...err.details, stored: "unknown" }, cause: err.cause });
    return Object.assign(told, { message: err.message, closeCode: err.closeCode });
  }
}

/** An id as the bus makes them, UUIDv7. It needs no secure context, as crypto.randomUUID does. */
export function newId() {
  const b = crypto.getRandomValues(new Uint8Array(16));
  let now = Date.now();
  for (let i = 5; i >= 0; i--, now = Math.floor(now / 256)) b[i] = now % 256;
  b[6] = (b[6] & 0x0f) | 0x70;
  b[8] = (b[8] & 0x3f) | 0x80;
  const hex = Array.from(b, (x) => x.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/** A payload as a frame has it: bytes as base64 text, nothing as nothing, all else as JSON. */
export function encodePayload(payload) {
  if (payload === undefined) return {};
  if (payload instanceof ArrayBuffer) payload = new Uint8Array(payload);
  if (!ArrayBuffer.isView(payload)) return { payload };
  const bytes = new Uint8Array(payload.buffer, payload.byteOffset, payload.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return { payload_base64: btoa(text) };
}

/** An event as callers get it: payload_base64 becomes a payload of bytes. White space around a JSON text is no part of its value. */
export function decodeEvent({ payload_base64, payload_space, ...event }, offset) {
  if (payload_base64 !== undefined) event.payload = Uint8Array.from(atob(payload_base64), (c) => c.charCodeAt(0));
  return offset === undefined ? event : { ...event, offset };
}

/** A promise with its handles. Nobody has to look at it. */
export function deferred() {
  const d = {};
  d.promise = new Promise((resolve, reject) => Object.assign(d, { resolve, reject }));
  d.promise.catch(() => {});
  return d;
}

/** Times are epoch milliseconds in frames; callers may use Dates. */
export const millis = (ts) => (ts instanceof Date ? ts.getTime() : ts);

/** One WebSocket. It is over once, for one reason, and tells everyone who waits. */
export class Link {
  #ws;
  #receive;
  #ended;
  #pending = new Map(); // requests by corr
  #corr = 0;
  #over = deferred();
  #left = deferred();
  #hello = deferred();
  #watch;
  #cause;
  #paid = 0; // when the gateway's rate allows for all that was sent
  seen = Date.now(); // when something came last
  isOver = false;
  leaving = false; // GOAWAY: what is held may be settled here, and nothing else
  hello; // the HELLO frame, once it is there
  ending = new Set(); // names of subscriptions that end here at the moment

  constructor(WebSocket, url, known, receive, ended) {
    this.#receive = receive;
    this.#ended = ended;
    this.#ws = new WebSocket(url, [PROTOCOL]);
    this.#ws.onmessage = ({ data }) => this.#message(data);
    this.#ws.onerror = (e) => (this.#cause = e.error ?? e.message);
    this.#ws.onclose = ({ code, reason }) => this.end(closeError(code, reason, this.#cause, known));
    this.#watch = setTimeout(() => this.end(closeError(1006, "no HELLO in time")), HELLO_MS);
  }

  /** Resolves with the HELLO frame, and rejects where the connection is over first. */
  get greeted() { return this.#hello.promise; }

  /** Resolves with why the connection is over. */
  get over() { return this.#over.promise; }

  /** The same, or resolves when another connection is to take its place. */
  get left() { return this.#left.promise; }

  leave(err) { this.#left.resolve(err); }

  #message(text) {
    this.seen = Date.now();
    let m;
    try {
      m = JSON.parse(text);
    } catch (cause) {
      this.end(closeError(1006, "what came is no frame", cause));
      return;
    }
    const waiting = m.corr === undefined ? undefined : this.#pending.get(m.corr);
    if (m.op === "PING") this.tell({ op: "PONG", n: m.n });
    else if (m.op === "HELLO") this.#greet(m);
    else if (!waiting) this.#receive(m);
    else if (this.#pending.delete(m.corr)) m.op === "ERR" ? waiting.reject(errorOf(m)) : waiting.resolve(m);
  }

  /** From now on the gateway is heard of at every ping; twice nothing means that it is gone. */
  #greet(m) {
    this.hello = m;
    clearTimeout(this.#watch);
    const silence = 2 * (m.pingMs || 25_000);
    this.#watch = setInterval(() => {
      if (Date.now() - this.seen > silence) this.end(closeError(1006, "the gateway is silent"));
    }, silence / 2);
    this.#hello.resolve(m);
  }

  /** Milliseconds until another frame is within the gateway's rate. */
  get wait() { return Math.max(0, this.#paid - performance.now() - AHEAD_MS); }

  /** Sends a frame, or the JSON text of one, or throws. `spare` is what it may grow by when it is sent again. */
  send(frame, spare = 0) {
    if (this.isOver || this.#ws.readyState !== 1) throw closeError(1006, "");
    const text = typeof frame === "string" ? frame : JSON.stringify(frame);
    const { maxMessage: most = Infinity, rate = 0 } = this.hello?.limits ?? {};
    if (text.length * 3 + spare > most && new TextEncoder().encode(text).length + spare > most) throw new JetBusError("too_large", `the frame has more than ${most} bytes`);
    this.#ws.send(text);
    if (rate > 0) this.#paid = Math.max(this.#paid, performance.now()) + 1000 / rate;
  }

  /** Sends a frame that nobody waits for. */
  tell(frame) {
    try {
      this.send(frame);
    } catch {
      // The connection is over, and with it what the frame was about.
    }
  }

  /** Sends a frame, and resolves with its answer. What is published is the JSON text of one, with its tries. */
  async request(frame, tries) {
    const corr = String(++this.#corr);
    if (this.#ws.readyState > 1) await this.over; // it is closing: who asks again must not find it
    if (tries) {
      const age = tries.age();
      this.send(`${frame.slice(0, -1)}${age},"corr":"${corr}"}`, age ? 0 : AGE_BYTES);
      tries.wrote();
    } else {
      this.send({ ...frame, corr });
    }
    const answer = deferred();
    this.#pending.set(corr, answer);
    return answer.promise;
  }

  /**
   * Ends the connection. The other side may be gone: nothing waits for it but `shut`. The gateway
   * keeps what is held for the next connection, unless the code is 1000: nobody comes back.
   */
  end(err, code = 4000) {
    if (this.isOver) return;
    this.isOver = true;
    clearTimeout(this.#watch);
    clearInterval(this.#watch);
    this.#ws.onmessage = null;
    this.#ws.onerror = () => {};
    this.shut = new Promise((resolve) => {
      const late = setTimeout(() => (this.#ws.terminate?.(), resolve()), CLOSE_MS); // Node would wait for longer
      this.#ws.onclose = () => (clearTimeout(late), resolve());
      if (this.#ws.readyState === 3) this.#ws.onclose();
      else this.#ws.close(code);
    });
    this.#ended(this); // before anyone asks again
    for (const answer of this.#pending.values()) answer.reject(err);
    this.#pending.clear();
    this.#hello.reject(err);
    this.#over.resolve(err);
    this.#left.resolve(err);
  }
}
