/**
 * The client of JetBus's gateway, for browsers and for Node 20 and later. No dependencies but link.js,
 * which lies beside it; in a Node that has no WebSocket of its own, pass that of the package ws.
 *
 *     const bus = await connect("ws://127.0.0.1:8080/ws", { token: () => fetchToken() });
 *     await bus.publish("orders.placed", { total: 120 }, { key: "7" });
 *     await bus.subscribe("orders.placed", "billing", async (event) => charge(event.payload));
 *     for await (const event of await bus.read("orders.placed", { from: "earliest" })) show(event);
 *
 * It connects again by itself, subscribes again, repeats what was not answered, and extends the
 * leases of events while their handlers run. The types are in jetbus.d.ts.
 *
 * @module jetbus
 */

import { CLOSE_MS, JetBusError, Link, Tries, closeError, decodeEvent, deferred, encodePayload, errorOf, isCrowded, millis, newId } from "./link.js";

export { JetBusError, newId };

const STEADY_MS = 10_000; // a connection that lasted so long once we were let in begins a new row of attempts
const WARNED_MS = 60_000; // how long before its end the gateway speaks of a token
const SPREAD_MS = 5_000; // over which the clients of a gateway that stops go to another one
const MOST_MS = 2 ** 31 - 1; // that a timer takes
const MANY_ATTEMPTS = 64; // after which the wait before the next one has its maximum
const PUBLISHES = 256; // without an answer; more wait here, in their order
const PACE_MS = 10; // of what the gateway's rate allows for is sent together
const REASON = 4096; // characters of why an event was refused; the gateway keeps no more
const STACK = 8192; // characters of a stack; the gateway keeps no more

/** What a subscription of either kind is to its client. */
class Subscription {
  #closed = deferred();
  #opened = deferred();
  id; // its name on the current connection; undefined: it has none there
  isClosed = false;
  paused = false; // it wants nothing at the moment
  leaving = false; // close was called

  constructor(client, topics, opts) {
    this.client = client;
    this.topics = [topics].flat();
    this.opts = { ...opts, ts: millis(opts.ts) };
  }

  /** Resolves when it is over: with the error that ended it, or with undefined after close(). */
  get closed() { return this.#closed.promise; }

  get opened() { return this.#opened.promise; }

  open() { this.#opened.resolve(); }

  /** Ends it. Further calls do nothing. */
  end(err) {
    if (this.isClosed) return;
    this.isClosed = true;
    this.ended(err);
    this.#opened.reject(err ?? new JetBusError("closed", "the subscription was closed"));
    this.#closed.resolve(err);
  }

  /** Ends it at the gateway, too. Total: it may be called at any time, and again. */
  async close({ drain = false } = {}) {
    this.leaving = true;
    const left = this.client.leave(this, drain);
    await (drain ? left : Promise.race([left, this.client.wait(CLOSE_MS)])); // else nobody waits for a silent gateway
    if (drain) await this.settled(); // also what goes on over another connection
    this.client.forget(this);
    this.end();
  }
}

/** What was thrown, as text. */
function textOf(err) {
  try {
    return String(err?.message ?? err);
  } catch {
    return "what the handler threw is no text";
  }
}

/** The stack of a thrown value without its message; undefined if it has none. */
function stackOf(err) {
  try {
    const { stack } = err;
    return typeof stack === "string" ? stack.slice(Math.max(stack.search(/^ +at /m), 0)) : undefined;
  } catch {
    return undefined;
  }
}

/** An event in this client's hands, until it is settled or its lease is lost. */
class Delivery {
  #group;
  #abort = new AbortController();
  isHeld = true;
  settled = false; // somebody has said what becomes of it
  busy = false; // a frame about it is under way

  constructor(group, m, link) {
    this.#group = group;
    this.link = link; // that it came over, or goes on; undefined: there is none, but it is kept
    this.sub = m.sub; // its subscription's name there
    this.event = decodeEvent(m.event, m.offset);
    this.ackId = m.ack_id;
    this.attempt = m.ctx.attempt;
    this.maxAttempts = m.ctx.maxAttempts ?? 0;
    this.redelivered = m.ctx.redelivered ?? false;
    this.deadline = Date.now() + m.ctx.ack_deadline_ms;
  }

  /** Is aborted when the lease is lost: the event goes to somebody else. */
  get signal() { return this.#abort.signal; }

  /** Resolves with whether this call settled it: false where the lease was lost, or it is settled. */
  ack() { return this.#settle({ op: "ACK" }); }

  async nack({ delayMs, reason, dead, snooze, stack } = {}) {
    const room = Math.min(STACK, (this.link?.hello?.limits.maxMessage ?? Infinity) / 24); // a character is 6 bytes there at most
    return this.#settle({ op: "NACK", delay_ms: delayMs, reason: reason?.slice(0, REASON), dead, snooze, stack: stack?.slice(0, room) });
  }

  async #settle(frame) {
    if (this.settled || !this.isHeld) return false;
    this.settled = true;
    try {
      const m = await this.#group.say(this, frame);
      return m?.applied ?? false;
    } catch (err) {
      this.settled = false;
      throw err;
    }
  }

  /** Moves the deadline to `ms` from now, by default the ack timeout. Resolves with whether it did. */
  async extend(ms) {
    if (this.settled || !this.isHeld) return false;
    const m = await this.#group.say(this, { op: "MODACK", extend_ms: ms });
    if (m?.applied) this.deadline = Date.now() + m.deadline_ms;
    return m?.applied ?? false;
  }

  /** The lease is over. */
  lose(reason) {
    if (!this.isHeld) return;
    this.isHeld = false;
    this.#abort.abort(new JetBusError("lease_lost", reason));
  }
}

/** A member of a group. */
class Group extends Subscription {
  #handler;
  #manual;
  #concurrency;
  #held = new Map(); // by ack id
  #empty; // somebody waits until nothing is held
  #waiting = []; // for a handler
  #running = 0;
  #lease; // milliseconds
  #timer;

  constructor(client, topics, group, handler, { manual = false, concurrency = 1, ...opts }) {
    super(client, topics, opts);
    if (!(concurrency >= 1)) throw new JetBusError("bad_argument", "concurrency is 1 or more");
    this.group = group;
    this.#handler = handler;
    this.#manual = manual;
    this.#concurrency = concurrency;
  }

  frame(limits) {
    this.#lease = this.opts.ackTimeoutMs ?? Math.min(30_000, limits.maxLeaseMs);
    const room = this.opts.maxInFlight ?? Math.min(this.#manual ? 100 : 2 * this.#concurrency, limits.maxInFlight);
    clearInterval(this.#timer);
    if (!this.#manual) this.#timer = setInterval(() => this.#extend(), this.#lease / 3);
    return { topics: this.topics, group: this.group, opts: { ...this.opts, ackTimeoutMs: this.#lease, maxInFlight: room } };
  }

  get keeps() { return (this.opts.resumeGraceMs ?? 0) > 0; }

  subscribed() { this.open(); }

  accept(m, link) {
    if (m.op !== "EVENT" || this.#held.has(m.ack_id)) return; // after a resume it comes once more
    const d = new Delivery(this, m, link);
    this.#held.set(d.ackId, d);
    this.#waiting.push(d);
    this.#next();
  }

  #next() {
    while (this.#running < this.#concurrency && this.#waiting.length > 0) {
      const d = this.#waiting.shift();
      if (!d.isHeld) continue;
      this.#running++;
      this.#handle(d).finally(() => (this.#running--, this.#next()));
    }
  }

  /** What cannot be said to the gateway is not lost: the lease ends, and the event comes again. */
  async #handle(d) {
    let settle = async () => this.#manual || d.ack();
    try {
      await this.#handler(d.event, d);
    } catch (err) {
      const last = d.maxAttempts > 0 && d.attempt >= d.maxAttempts; // no other attempt makes a dead letter
      settle = () => d.nack({ reason: textOf(err), stack: last ? stackOf(err) : undefined });
    }
    await settle().catch((err) => this.lost(d.ackId, err.message)); // so that the lease is not extended
  }

  /** Extends what is held, at a third of the ack timeout. Only what failed is answered. */
  #extend() {
    const until = Date.now() + this.#lease;
    const short = [...this.#held.values()].filter((d) => !d.busy && d.deadline < until);
    for (const d of short) d.deadline = until;
    for (const link of new Set(short.map((d) => d.link))) {
      link?.tell({ op: "ACKS", mod: short.filter((d) => d.link === link).map((d) => ({ ack_id: d.ackId })) });
    }
  }

  /** Says something about a delivery, again where that is in order. Resolves with undefined when it is lost. */
  async say(d, frame) {
    for (let attempt = 0; d.isHeld; attempt++) {
      d.busy = true;
      try {
        if (!d.link) {
          await this.client.connected(); // it is kept until then, or lost
          continue;
        }
        const m = await d.link.request({ ...frame, ack_id: d.ackId });
        if (attempt > 0 && m.reason === "settled") m.applied = true; // by the one whose answer was lost
        if (!m.applied && m.reason !== "limit") d.lose(m.reason);
        if (frame.op !== "MODACK" || !d.isHeld) this.#drop(d.ackId);
        return m;
      } catch (err) {
        if (!d.isHeld) break;
        if (!err.retryable) throw err;
        d.busy = false;
        await this.client.pause(attempt, err);
      } finally {
        d.busy = false;
      }
    }
    return undefined;
  }

  /** A lease is over. */
  lost(ackId, reason) {
    this.#held.get(ackId)?.lose(reason);
    this.#drop(ackId);
  }

  #drop(ackId) {
    this.#held.delete(ackId);
    if (this.#held.size > 0) return;
    this.#empty?.resolve();
    this.#empty = undefined;
  }

  /** Resolves when nothing is held. */
  async settled() {
    while (this.#held.size > 0) await (this.#empty ??= deferred()).promise;
  }

  /** All leases of a connection are over, or of none (undefined). */
  #loseAll(link, reason) {
    for (const d of [...this.#held.values()]) if (d.link === link) this.lost(d.ackId, reason);
  }

  /** A connection is over. The gateway keeps what it was asked to keep, unless it stops. */
  parted(link) {
    if (!this.keeps || link.leaving) this.#loseAll(link, "the connection was lost");
    else for (const d of this.#held.values()) if (d.link === link) d.link = undefined;
  }

  /** What was kept goes on over a connection, or does not. */
  resumed(link) {
    for (const d of this.#held.values()) d.link ??= link;
    this.#loseAll(undefined, "the connection was lost");
  }

  ended() {
    clearInterval(this.#timer);
    this.#waiting = [];
    for (const d of [...this.#held.values()]) {
      this.lost(d.ackId, "the subscription is over");
      if (d.link?.leaving) d.link.tell({ op: "UNSUBSCRIBE", sub: d.sub }); // which gives back; leave tells the others
    }
  }
}

/** A reader: events in order, once each, over any number of connections. */
class Reader extends Subscription {
  #queue = []; // frames
  #events = 0; // of them
  #came; // somebody waits for one
  #at; // the position behind what is queued
  #error;
  #maxBuffered;
  #onGap;
  #follow;
  offset; // the position behind what was taken
  keeps = false;

  constructor(client, topic, { maxBuffered = 1000, onGap, follow = true, offset, ...opts }) {
    super(client, topic, opts);
    if (!(maxBuffered >= 1)) throw new JetBusError("bad_argument", "maxBuffered is 1 or more");
    this.#maxBuffered = maxBuffered;
    this.#onGap = onGap;
    this.#follow = follow;
    this.offset = this.#at = offset;
  }

  frame() { return { topic: this.topics[0], opts: { ...this.opts, offset: this.#at } }; }

  /** What is new to `from: latest` depends on when the gateway looked, which CAUGHT_UP says. */
  subscribed() {
    if (this.#at !== undefined || (this.opts.from ?? "latest") !== "latest") this.open();
  }

  accept(m) {
    if (m.op !== "GAP") this.#at = m.offset;
    if (m.op === "CAUGHT_UP") this.open();
    this.#queue.push(m);
    this.#came?.resolve();
    if (m.op === "EVENT" && ++this.#events >= this.#maxBuffered && !this.paused) {
      this.paused = true; // a browser cannot stop reading: it goes on behind what it has, later
      this.open(); // the answer to SUBSCRIBE may be handled later
      this.client.leave(this);
    }
  }

  async next() {
    for (;;) {
      const m = await this.#take();
      if (m === undefined) break;
      if (m.op === "GAP") this.#gap(m);
      else this.offset = m.offset;
      if (m.op === "EVENT") return { done: false, value: decodeEvent(m.event, m.offset) };
      if (m.op === "CAUGHT_UP" && !this.#follow) await this.close();
    }
    const err = this.#error;
    this.#error = undefined; // thrown once
    if (err) throw err;
    return { done: true, value: undefined };
  }

  /** The next frame; undefined when there is none any more. */
  async #take() {
    while (this.#queue.length === 0 && !this.isClosed) {
      this.#came ??= deferred();
      await this.#came.promise;
      this.#came = undefined;
    }
    const m = this.#queue.shift();
    if (m?.op === "EVENT") this.#events--;
    if (this.paused && this.#events <= this.#maxBuffered / 2) {
      this.paused = false;
      this.client.enlist(this);
    }
    return m;
  }

  #gap({ topic, from, to, reason }) {
    const gap = { topic, from, to, reason };
    if (this.#onGap) this.#onGap(gap);
    else if (reason !== "conflated") { // which was asked for
      this.#queue = [];
      this.close();
      this.#error = new JetBusError("gap", `events ${from} to ${to} of ${topic} are gone (${reason}); with onGap the reader goes on`, { details: gap });
      this.end(this.#error);
    }
  }

  async return() {
    await this.close();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator]() { return this; }

  lost() {}
  parted() {}
  resumed() {}
  settled() {}

  ended(err) {
    this.#error = err;
    if (!err) this.#queue = [];
    this.#came?.resolve();
  }
}

/** A connection to a gateway that outlives its sockets. */
class Client {
  #url;
  #options;
  #WebSocket;
  #link; // the current one, authenticated; undefined: there is none
  #gate = deferred(); // open when there is one that takes new requests
  #isOpen = false;
  #subs = new Set();
  #names = 0;
  #session; // whose events are kept for us
  #token;
  #finished; // why no connection comes any more
  #stop = new AbortController(); // of what is asked over HTTP
  #sleepers = new Set(); // end their waits
  #publishes = 0; // so far
  #outbox = []; // publishes that are to be sent, in their order
  #sent = 0; // publishes without an answer
  #probe; // the first publish that was refused for the moment: until it is through, no other is sent
  #holds = 0; // waits until something is published again
  #opened = deferred();
  #known = false; // a gateway has accepted this client before
  #authed = 0; // when a token was sent last
  #refresh; // the timer of the next one
  #lastError;
  #current; // the link that is there or being made
  #closing; // of all links
  #links = new Set(); // besides it those whose gateways stop

  constructor(url, options) {
    this.#url = socketUrl(url);
    this.#options = { timeoutMs: 30_000, minDelayMs: 250, maxDelayMs: 20_000, ...options };
    this.#WebSocket = options.WebSocket ?? globalThis.WebSocket;
    if (!this.#WebSocket) throw new JetBusError("no_websocket", "there is no WebSocket here: pass that of the package ws, connect(url, { WebSocket })");
    this.#run();
  }

  /** Resolves when the first connection is there. */
  async opened() {
    const late = setTimeout(() => this.#opened.reject(this.#late()), Math.min(this.#options.timeoutMs, MOST_MS));
    try {
      await this.#opened.promise;
    } catch (err) {
      await this.close();
      throw err;
    } finally {
      clearTimeout(late);
    }
    return this;
  }

  #late() { return new JetBusError("timeout", "the gateway does not answer", { retryable: true, cause: this.#lastError }); }

  /** Tells the program, whose errors are its own. */
  #state(state, err) { queueMicrotask(() => this.#options.onState?.(state, err)); }

  /** Keeps a connection until the client is closed or the gateway refuses it for good. */
  async #run() {
    for (let attempt = 0; !this.#finished; attempt++) {
      let link, err, began; // began stays undefined where a gateway takes connections and says nothing
      try {
        this.#state("connecting", this.#lastError);
        const token = await this.#askToken();
        if (this.#finished) break;
        link = this.#make();
        await this.#begin(link, token);
        began = Date.now();
        err = await link.left;
      } catch (cause) {
        err = cause;
      }
      if (!link?.leaving) link?.end(err);
      this.#lastError = err;
      this.#dropped(link);
      if (err instanceof JetBusError && !err.retryable) this.#finish(err);
      if (began !== undefined && Date.now() - began > STEADY_MS) attempt = 0;
      if (isCrowded(err)) attempt += MANY_ATTEMPTS; // others need the room first
      if (!this.#finished) await this.pause(attempt);
    }
  }

  #make() {
    const link = new Link(this.#WebSocket, this.#url, this.#known, (m) => this.#receive(link, m), () => this.#over(link));
    this.#current = link;
    this.#links.add(link);
    return link;
  }

  #over(link) {
    if (this.#link === link) this.#shut();
    this.#links.delete(link);
    for (const sub of this.#subs) sub.parted(link);
  }

  async #askToken() {
    const { token } = this.#options;
    this.#token = typeof token === "function" ? await token() : token;
    return this.#token;
  }

  /** Authenticates, and subscribes to what there is. */
  async #begin(link, token) {
    const hello = await link.greeted;
    const session = [...this.#subs].some((s) => s.keeps && s.id) ? this.#session : undefined;
    let answer = {};
    if (token !== undefined || session) {
      try {
        this.#authed = Date.now(); // before what follows from it can come
        answer = await link.request({ op: "AUTH", token, session });
      } catch (err) {
        throw await this.#refused(link, err);
      }
    } else if (hello.auth === "required") {
      throw new JetBusError("unauthorized", "the gateway asks for a token: pass connect(url, { token })");
    }
    if (link.isOver) throw await link.over;
    this.#resumed(link, answer.recovered ? answer.subs ?? [] : []);
    if (!answer.recovered) this.#session = hello.session;
    this.#link = link;
    this.#known = true;
    this.#isOpen = !link.leaving;
    if (this.#isOpen) this.#gate.resolve();
    this.#opened.resolve();
    this.#state("connected");
    for (const sub of this.#subs) sub.leaving ? this.leave(sub, true) : this.enlist(sub);
    this.#pump();
  }

  /** New requests wait from now on. */
  #shut() {
    if (this.#isOpen) this.#gate = deferred();
    this.#isOpen = false;
  }

  /** Returns why AUTH was refused. The close code that follows tells whether to connect again. */
  async #refused(link, err) {
    const fresh = typeof this.#options.token === "function";
    const end = await Promise.race([link.over, this.wait(CLOSE_MS)]);
    err.closeCode ??= end?.closeCode;
    if (end && !end.retryable || err.code === "token_expired" && !fresh) err.retryable = false;
    return err;
  }

  /** The session goes on with some subscriptions, or with none. */
  #resumed(link, names) {
    for (const name of names) if (!this.#find(name)) this.#unsubscribe(link, name); // closed meanwhile
    for (const sub of this.#subs) {
      const goesOn = names.includes(sub.id);
      if (!goesOn) sub.id = undefined;
      sub.resumed(goesOn ? link : undefined);
    }
  }

  /** There is no connection at the moment. Who asked the gateway to keep events may go on with them. */
  #dropped(link) {
    this.#shut();
    this.#link = undefined;
    clearTimeout(this.#refresh);
    for (const sub of this.#subs) if (!sub.keeps || link?.leaving) sub.id = undefined;
  }

  /** Frames that answer nothing. */
  #receive(link, m) {
    switch (m.op) {
      case "GOAWAY":
        link.leaving = true; // the gateway closes it when nothing is held there any more
        this.#shut();
        this.wait(Math.random() * Math.min(SPREAD_MS, m.deadline_ms / 2)).then(() => link.leave(closeError(4001, "going_away")));
        return;
      case "TOKEN_EXPIRING":
        if (link === this.#current) this.#expiring(link, m.exp);
        return;
      case "LEASE_EXPIRED":
        for (const sub of this.#subs) sub.lost(m.ack_id, "the lease ran out");
        return;
      case "OK": // of ACKS
        for (const r of m.results ?? []) if (r.reason !== "limit") for (const sub of this.#subs) sub.lost(r.ack_id, r.reason ?? r.code);
        return;
      case "SUB_CLOSED": {
        const sub = this.#find(m.sub);
        if (!sub) return;
        sub.id = undefined;
        sub.parted(link);
        sub.resumed(undefined); // nothing is kept
        if (m.retryable) this.pause(0).then(() => this.enlist(sub));
        else this.#remove(sub, errorOf(m));
        return;
      }
    }
    const sub = this.#find(m.sub);
    if (sub) sub.accept(m, link);
    else if (m.ack_id === undefined || link.ending.has(m.sub)) return;
    else if (link.leaving) link.tell({ op: "NACK", ack_id: m.ack_id, give_back: true }); // what else is held there stays
    else this.#unsubscribe(link, m.sub); // nobody is to hold it
  }

  #find(id) {
    for (const sub of this.#subs) if (id !== undefined && sub.id === id) return sub;
    return undefined;
  }

  /** Gets a fresh token. One whose whole life is shorter than the warning is used for half of it. */
  #expiring(link, exp) {
    if (typeof this.#options.token !== "function") return;
    const early = Date.now() - this.#authed < 1000;
    const wait = early ? Math.min(Math.max((exp * 1000 - Date.now()) / 2, 1000), WARNED_MS / 2) : 0;
    clearTimeout(this.#refresh);
    this.#refresh = setTimeout(async () => {
      try {
        const token = await this.#askToken();
        this.#authed = Date.now(); // the warning may be faster than the answer is handled
        const answer = await link.request({ op: "AUTH", token });
        if (!(answer.exp <= exp)) return;
      } catch { // there is none
      }
      this.#authed = Date.now();
      if (!link.isOver) this.#expiring(link, exp); // until the gateway closes the connection, which warns of an end once
    }, wait);
  }

  /** Waits for a connection that takes new requests. */
  async connected() {
    while (!this.#isOpen && !this.#finished) await this.#gate.promise;
    if (this.#finished) throw this.#finished;
    return this.#link;
  }

  /** Waits before another attempt: full jitter, but never less than the gateway asked for. */
  pause(attempt, err) {
    const { minDelayMs, maxDelayMs } = this.#options;
    return this.wait((err?.retryAfterMs ?? 0) + Math.random() * Math.min(maxDelayMs, minDelayMs * 2 ** attempt));
  }

  /** Waits, until the client is closed at most. */
  async wait(ms) {
    if (this.#finished) return;
    await new Promise((resolve) => {
      const wake = () => (clearTimeout(timer), this.#sleepers.delete(wake), resolve());
      const timer = setTimeout(wake, ms);
      this.#sleepers.add(wake);
    });
  }

  /**
   * Publishes an event. What was not answered is published again, under the same id, and says how old it is.
   * The option dryRun is refused (bad_argument): use POST /v1/topics/{topic}?dry_run=1.
   */
  async publish(topic, payload, options = {}) {
    const { timeoutMs = this.#options.timeoutMs, causedBy, id = newId(), ts, deliverAt, ...opts } = options;
    if (typeof topic !== "string") throw new JetBusError("bad_argument", "topic is a string");
    if (opts.dryRun || opts.dry_run) throw new JetBusError("bad_argument", "dryRun is not supported: use POST /v1/topics/{topic}?dry_run=1");
    const frame = { op: "PUBLISH", topic, ...encodePayload(payload), opts: { ...opts, id, ts: millis(ts), caused_by: causedBy, deliverAt: millis(deliverAt) } };
    const job = { text: JSON.stringify(frame), number: this.#publishes++, attempt: 0, tries: new Tries(), receipt: deferred() }; // whatever the caller does with the payload later
    if (this.#finished) throw this.#finished;
    const late = setTimeout(() => {
      const at = this.#outbox.indexOf(job);
      if (at >= 0) this.#outbox.splice(at, 1);
      job.isOver = true; // it is not sent any more
      job.receipt.reject(new JetBusError("timeout", `there is no answer; ${id} may be stored all the same`, { retryable: true, details: { id }, cause: job.cause }));
    }, Math.min(timeoutMs, MOST_MS));
    this.#outbox.push(job);
    this.#pump();
    try {
      return receiptOf(await job.receipt.promise);
    } finally {
      clearTimeout(late);
      if (this.#probe === job) this.#probe = undefined;
      this.#pump();
    }
  }

  /** Publishes what waits, in its order and within the gateway's rate. */
  #pump() {
    const link = this.#link;
    while (this.#isOpen && this.#holds === 0 && this.#outbox.length > 0 && this.#sent < (this.#probe ? 1 : PUBLISHES)) {
      if (link.wait > 0) {
        this.#hold(this.wait(link.wait + PACE_MS));
        return;
      }
      const job = this.#outbox.shift();
      this.#sent++;
      link.request(job.text, job.tries).then(job.receipt.resolve, (err) => this.#again(job, err)).finally(() => (this.#sent--, this.#pump()));
    }
  }

  /** Publishes nothing until a wait is over. */
  async #hold(wait) {
    this.#holds++;
    await wait;
    this.#holds--;
    this.#pump();
  }

  /** Puts a publish that failed back in its place, if it may be repeated. One that was refused comes first, and alone. */
  #again(job, err) {
    job.tries.failed(err);
    if (this.#finished || !err.retryable || job.isOver) {
      job.receipt.reject(job.tries.ended(this.#finished ?? err));
      return;
    }
    job.cause = err;
    const behind = this.#outbox.findIndex((other) => other.number > job.number);
    this.#outbox.splice(behind < 0 ? this.#outbox.length : behind, 0, job);
    if (err.closeCode !== undefined) return; // the next connection comes in its time
    if (this.#probe?.number < job.number) return;
    this.#probe = job;
    this.#hold(this.pause(job.attempt++, err));
  }

  /** Joins a group. */
  async subscribe(topics, group, handler, options = {}) {
    if (typeof handler !== "function") throw new JetBusError("bad_argument", "handler is a function");
    if (typeof group !== "string" || group === "") throw new JetBusError("bad_argument", "group is its name; without a group, use read");
    return this.#add(new Group(this, topics, group, handler, options));
  }

  /** Reads without a group. */
  async read(topic, options = {}) {
    if (typeof topic !== "string") throw new JetBusError("bad_argument", "a reader is of one topic");
    return this.#add(new Reader(this, topic, options));
  }

  async #add(sub) {
    if (this.#finished) throw this.#finished;
    this.#subs.add(sub);
    this.enlist(sub);
    const late = setTimeout(() => this.#remove(sub, this.#late()), Math.min(this.#options.timeoutMs, MOST_MS));
    try {
      await sub.opened;
    } finally {
      clearTimeout(late);
    }
    return sub;
  }

  /** Subscribes, until that works or cannot. A name is used once, so that nothing late is taken for it. */
  async enlist(sub) {
    for (let attempt = 0; !sub.isClosed && !sub.leaving && !sub.paused && !sub.id; attempt++) {
      const link = this.#link;
      if (!link || link.leaving) return; // #begin comes back
      sub.id = `j${++this.#names}`;
      const name = sub.id;
      try {
        await link.request({ op: "SUBSCRIBE", sub: name, ...sub.frame(link.hello.limits) });
        if (sub.id === name) sub.subscribed();
        return;
      } catch (err) {
        if (sub.id !== name) return;
        sub.id = undefined;
        if (link.isOver) return;
        if (!err.retryable) return this.#remove(sub, err);
        await this.pause(attempt, err);
      }
    }
  }

  /** Ends a subscription at the gateway, if it is there. */
  async leave(sub, drain = false) {
    const { id } = sub;
    if (!id || !this.#link) return;
    if (!drain) sub.id = undefined;
    await this.#unsubscribe(this.#link, id, drain);
  }

  /** Says that a subscription ends, again where that is refused for the moment. With the connection it is gone. */
  async #unsubscribe(link, name, drain = false) {
    if (!drain) link.ending.add(name);
    for (let attempt = 0; !link.isOver; attempt++) {
      try {
        await link.request({ op: "UNSUBSCRIBE", sub: name, drain });
        break;
      } catch (err) {
        if (!err.retryable) break; // it is not there
        await this.pause(attempt, err);
      }
    }
    link.ending.delete(name);
  }

  forget(sub) { this.#subs.delete(sub); }

  #remove(sub, err) {
    this.leave(sub);
    this.forget(sub);
    sub.end(err);
  }

  /** The last event of each key, over HTTP: a Map, and the offset to read on from. */
  async snapshot(topic, { prefix } = {}) {
    const events = new Map();
    for (let cursor; ; ) {
      const page = await this.#get(`v1/topics/${encodeURIComponent(topic)}/snapshot`, { prefix, cursor });
      for (const e of page.events) { // of several events of a key the last one counts
        events.delete(e.key);
        if (!isTombstone(e)) events.set(e.key, decodeEvent(e)); // else it was deleted since the page before
      }
      cursor = page.next;
      if (cursor === undefined) return { events, offset: page.offset, asOf: page.as_of };
    }
  }

  async #get(path, query) {
    const url = new URL(path, this.#url.replace(/^ws/, "http"));
    for (const [name, value] of Object.entries(query)) if (value !== undefined) url.searchParams.set(name, value);
    const late = deferred();
    const tooLate = new JetBusError("timeout", `there is no answer; ${url}`, { retryable: true });
    const timer = setTimeout(() => late.reject(tooLate), Math.min(this.#options.timeoutMs, MOST_MS));
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          return await Promise.race([this.#fetch(url), late.promise]);
        } catch (err) {
          if (this.#finished) throw this.#finished;
          if (!err.retryable || err === tooLate) throw err;
          tooLate.cause = err;
          await Promise.race([this.pause(attempt, err), late.promise]);
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  async #fetch(url, fresh = false) {
    if (fresh) await this.#askToken();
    const headers = this.#token === undefined ? {} : { Authorization: `Bearer ${this.#token}` };
    const response = await fetch(url, { headers, signal: this.#stop.signal }).catch((cause) => {
      throw new JetBusError("connection_lost", "the gateway does not answer", { retryable: true, cause });
    });
    const body = await response.json().catch(() => ({ code: "internal", detail: `HTTP status ${response.status}`, retryable: response.status >= 500 }));
    if (response.ok) return body;
    const err = errorOf(body);
    if (err.code !== "token_expired") throw err;
    err.retryable = false;
    if (fresh || typeof this.#options.token !== "function") throw err;
    return this.#fetch(url, true);
  }

  /** No connection comes any more. Everyone who waits is told. */
  #finish(err) {
    if (this.#finished) return;
    this.#finished = err;
    this.#stop.abort(err);
    for (const wake of this.#sleepers) wake();
    for (const job of this.#outbox.splice(0)) job.receipt.reject(err);
    clearTimeout(this.#refresh);
    for (const sub of this.#subs) {
      if (sub.keeps && sub.id) this.#link?.tell({ op: "UNSUBSCRIBE", sub: sub.id }); // else what is held is kept for us
      sub.end(err.code === "closed" ? undefined : err);
    }
    this.#subs.clear();
    this.#opened.reject(err);
    this.#gate.resolve();
    for (const link of this.#links) link.end(err, 1000);
    this.#state("closed", err.code === "closed" ? undefined : err);
  }

  /** Ends all: what is held is given back, and what waits is rejected with the code closed. */
  async close() {
    const links = [...this.#links];
    this.#finish(new JetBusError("closed", "the client was closed"));
    this.#closing ??= Promise.all(links.map((link) => link.shut));
    await this.#closing;
  }
}

/** Whether an event deletes its key, in a topic that keeps state: one that is empty does not. */
const isTombstone = ({ key, headers, payload }) => payload === null && Boolean(key || headers?.["x-tombstone"]);

/** The address of the WebSocket: http becomes ws, and the path ends in /ws. */
function socketUrl(text) {
  let url;
  try {
    url = new URL(text, globalThis.location?.href);
  } catch (cause) {
    throw new JetBusError("bad_argument", `${text} is no URL; use wss://host/ws`, { cause });
  }
  url.protocol = url.protocol.replace(/^http/, "ws");
  if (!/^wss?:$/.test(url.protocol)) throw new JetBusError("bad_argument", `${text} is no URL of a gateway; use wss://host/ws`);
  if (!url.pathname.endsWith("/ws")) url.pathname = url.pathname.replace(/\/?$/, "/ws");
  url.hash = "";
  return url.href;
}

const receiptOf = ({ id, seq, ts, sid, partition, duplicate = false, scheduled = false }) =>
  ({ id, seq, ts, sid, partition, duplicate, scheduled });

/**
 * Connects to a gateway. Resolves when it is there and the token counts; see jetbus.d.ts.
 *
 * @param {string | URL} url ws://host/ws, or the page's own host as "/ws"
 * @param {import("./jetbus.js").ConnectOptions} [options]
 */
export async function connect(url, options = {}) {
  const client = new Client(String(url), options);
  return client.opened();
}
