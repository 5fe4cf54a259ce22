// Scenes of what happens at the edges: in outages, at limits, and to programs that do not behave.
import { Tries, closeError, errorOf } from "../link.js";
import { Log, assert, equal, numbers, refused, wait } from "./tools.js";

/**
 * A WebSocket whose connections with these numbers, from 1, the gateway closes with a code when AUTH is sent, as
 * if it had no room. With `answers` it refuses AUTH first.
 */
function crowded(Base, code, numbers, answers) {
  const opened = []; // connections, and when they were made
  class WebSocket extends Base {
    #number = opened.push({ ws: this, at: performance.now() });
    send(text) {
      const { op, corr } = JSON.parse(text);
      if (op !== "AUTH" || !numbers.includes(this.#number)) return super.send(text);
      const data = JSON.stringify({ op: "ERR", corr, code: "rate_limited", msg: "too many connections", retryable: true });
      setTimeout(() => {
        if (answers) this.onmessage({ data });
        this.onclose({ code, reason: "of the suite" });
        super.close();
      });
    }
  }
  return { WebSocket, opened };
}

export const edges = {
  async "publish too late"(t) {
    let isAway = false;
    class WebSocket extends t.WebSocket {
      constructor(url, protocols) {
        super(isAway ? "ws://127.0.0.1:1/ws" : url, protocols);
      }
    }
    const states = new Log();
    const bus = await t.open({ WebSocket, onState: (s) => states.push(s), minDelayMs: 20, maxDelayMs: 200 });
    isAway = true;
    await t.rig.cut();
    await states.until((l) => l.at(-1) === "connecting", "the connection is lost");
    const late = numbers(300).map((n) => refused(bus.publish(t.topic, n, { timeoutMs: 300 }), "timeout"));
    const waiting = bus.publish(t.topic, "in time");
    await Promise.all(late);
    isAway = false;
    equal((await waiting).seq, 1, "what was given up is not sent any more");
  },

  async "publish behind the window"(t) {
    const topic = await t.rig.topic(`${t.topic}.short`, { windowMs: 1_000 });
    const { WebSocket, sent } = t.spy();
    const bus = await t.open({ WebSocket, minDelayMs: 20, maxDelayMs: 200 });
    const writer = await t.direct();
    const stored = await writer.read(topic, { from: "earliest" });
    await t.rig.mute(); // the answer is lost
    const published = refused(bus.publish(topic, 1, { id: "a", timeoutMs: 110_000 }), "publish_failed");
    await stored.next();
    await wait(1_500); // the topic knows the id no more
    await t.rig.cut();
    const err = await published;
    equal([err.retryable, err.details], [false, { id: "a", stored: "unknown" }], "what the caller is told");
    const ages = sent.filter((f) => f.op === "PUBLISH").map((f) => f.age_ms ?? 0);
    assert(ages.length > 1 && ages[0] === 0 && ages.slice(1).every((age) => age >= 1_450), `it was said with the ages ${ages}`);
    equal((await writer.publish(topic, 2)).seq, 2, "it is stored once");
  },

  async ages(t) {
    let clocks = [0.25, 1_000];
    const behind = (...ends) => { // frames that ended so
      const tries = new Tries(() => clocks);
      for (const end of ends) {
        tries.wrote();
        tries.failed(end);
      }
      return tries;
    };
    const lost = closeError(1006, "");
    const [no, unknown] = ["no", "unknown"].map((stored) => errorOf({ code: "publish_failed", details: { stored } }));
    equal(new Tries().age(), "", "the first frame");
    equal(behind(errorOf({ code: "rate_limited" }), no).age(), "", "what was refused is as new");
    const unsent = new Tries();
    unsent.failed(lost);
    equal(unsent.age(), "", "what was not sent is as new");
    for (const open of [lost, unknown, errorOf({ code: "publish_failed" }), errorOf({ code: "internal" }), errorOf({ code: "broker_unavailable" })]) {
      equal(behind(open).age(), ',"age_ms":1', `never 0, which says that there is none: ${open}`);
    }
    const tries = behind(no, lost);
    clocks = [1_000.5, 1_990];
    tries.wrote();
    tries.failed(lost);
    equal(tries.age(), ',"age_ms":1001', "of the first frame that may have stored it, in whole milliseconds");
    clocks = [1_000.5, 181_000];
    equal(tries.age(), ',"age_ms":180000', "the machine slept, and one clock with it");
    clocks = [180_000.25, -5_000];
    equal(tries.age(), ',"age_ms":180000', "somebody set the other clock back");
    const [first, again] = [behind(no).ended(no), tries.ended(no)];
    equal([first.details.stored, again.details.stored], ["no", "unknown"], "what the caller is told where an earlier frame may have stored it");
    equal([again.code, again.message, again.retryable, no.details.stored], [no.code, no.message, no.retryable, "no"], "and all else as the gateway said");
    equal(JSON.parse(`{"op":"PUBLISH"${tries.age()}}`).age_ms, 180_000, `a member of the frame of ${t.topic}`);
  },

  async "silence makes waits longer"(t) {
    const opened = [];
    class WebSocket extends t.WebSocket { // of the first two nothing is heard
      #number = opened.push(performance.now());
      set onmessage(f) { super.onmessage = this.#number > 2 ? f : null; }
    }
    const { random } = Math;
    Math.random = () => 0.999; // each wait is as long as it may be
    try {
      await t.open({ WebSocket, minDelayMs: 1_000, timeoutMs: 110_000 });
    } finally {
      Math.random = random;
    }
    const [first, second] = [opened[1] - opened[0], opened[2] - opened[1]];
    assert(first >= 10_900 && second >= 11_900, `10 s of silence and a wait, which doubles: ${first} and ${second} ms`);
  },

  async "reconnect to a crowded gateway"(t) {
    const { random } = Math;
    Math.random = () => 0.999; // each wait is as long as it may be
    try {
      for (const code of [4504, 4505]) {
        for (const answers of [false, true]) {
          const { WebSocket, opened } = crowded(t.WebSocket, code, [2, 3], answers);
          const states = new Log();
          const onState = (state) => states.push(state);
          const bus = await t.guarded(`ann topic:write:${t.topic} topic:read:${t.topic}`, { WebSocket, minDelayMs: 20, maxDelayMs: 500, onState });
          const reader = await bus.read(t.topic);
          opened[0].ws.close();
          await states.until((l) => l.at(-1) === "connecting", `connecting again, ${code}`);
          const { seq } = await bus.publish(t.topic, code);
          equal((await reader.next()).value.seq, seq, `the reader resumes, ${code}`);
          equal([opened.length, states.includes("closed")], [4, false], `connections, ${code}`);
          const waits = [2, 3].map((i) => opened[i].at - opened[i - 1].at);
          assert(waits.every((ms) => ms >= 490), `it waits for maxDelayMs after ${code}: ${waits} ms`);
          await bus.close();
        }
      }
    } finally {
      Math.random = random;
    }
  },

  async "first connection to a crowded gateway"(t) {
    for (const [code, name] of [[4504, "conn_limit"], [4505, "auth_timeout"]]) {
      const { WebSocket } = crowded(t.WebSocket, code, [1], false);
      const err = await refused(t.guarded(`ann topic:read:${t.topic}`, { WebSocket }), name);
      equal([err.closeCode, err.retryable], [code, false], "what the program is told");
    }
  },

  async "publish within the rate"(t) {
    const { WebSocket, sent } = t.spy();
    const bus = await t.limited({ WebSocket });
    const receipts = await Promise.all(numbers(1_500).map((n) => bus.publish(t.topic, n))); // three times what the gateway takes at once
    equal(receipts.filter((r, i) => r.seq !== i + 1).length, 0, "publishes that are out of order");
    equal(sent.filter((f) => f.op === "PUBLISH").length, 1_500, "none was refused");
  },

  async "publish refused for the moment"(t) {
    const sent = new Log();
    class WebSocket extends t.WebSocket { // the first publish is refused on its way to the gateway
      send(text) {
        const f = JSON.parse(text);
        if (f.op !== "PUBLISH") return super.send(text);
        if (sent.push(f.payload) > 1) return super.send(text);
        const data = JSON.stringify({ op: "ERR", corr: f.corr, code: "rate_limited", msg: "of the suite", retryable: true, retry_after_ms: 300 });
        setTimeout(() => this.onmessage({ data }));
      }
    }
    const bus = await t.open({ WebSocket });
    const first = bus.publish(t.topic, 1);
    await sent.size(1, "the first attempt");
    await wait(50);
    const receipts = await Promise.all([first, ...numbers(20).map((n) => bus.publish(t.topic, n + 1))]);
    equal(receipts.map((r) => r.seq), numbers(21), "those behind it waited");
    equal([...sent], [1, ...numbers(21)], "what was sent");
  },

  async "one chunk"(t) {
    class WebSocket extends t.WebSocket { // gives what came together, as Node does with frames of one packet
      set onmessage(f) {
        let chunk = [];
        super.onmessage = f && ((e) => chunk.push(e) === 1 && setTimeout(() => {
          const all = chunk;
          chunk = [];
          for (const one of all) this.readyState === 1 && f(one);
        }, 200));
      }
    }
    const writer = await t.open();
    await Promise.all(numbers(50).map((n) => writer.publish(t.topic, n)));
    const bus = await t.open({ WebSocket, timeoutMs: 60_000 });
    const all = [];
    for await (const e of await bus.read(t.topic, { from: "earliest", follow: false, maxBuffered: 10 })) all.push(e.payload);
    equal(all, numbers(50), "all events");
  },

  async "one event at a time"(t) {
    const { WebSocket, sent } = t.spy();
    const bus = await t.open({ WebSocket });
    const read = new Log();
    const reader = await bus.read(t.topic, { maxBuffered: 1 });
    const reading = (async () => {
      for await (const e of reader) read.push(e.payload);
    })();
    for (const n of numbers(3)) await bus.publish(t.topic, n);
    await read.size(3, "all events");
    await wait(500);
    const asked = sent.filter((f) => f.op === "SUBSCRIBE").length;
    assert(asked <= 4, `a reader that waits for events subscribed ${asked} times`);
    await reader.close();
    await reading;
  },

  async "what handlers throw"(t) {
    const bus = await t.open();
    const seen = new Log();
    const thrown = [new Error("🚌".repeat(1 << 20)), Object.create(null), undefined];
    const sub = await bus.subscribe(t.topic, "g", (_, d) => {
      seen.push(d.attempt);
      if (d.attempt <= thrown.length) throw thrown[d.attempt - 1];
    }, { from: "earliest", backoff: { minMs: 10, maxMs: 20 } });
    await bus.publish(t.topic, 1);
    await seen.size(4, "it comes again each time");
    equal([...seen], numbers(4), "each is an attempt");
    await sub.close({ drain: true });
  },

  async "drain of many"(t) {
    const bus = await t.open();
    const held = new Log();
    let release;
    const released = new Promise((resolve) => (release = resolve));
    const subs = await Promise.all(numbers(24).map((n) => bus.subscribe(t.topic, `g${n}`, async (_, d) => {
      held.push(d);
      await released;
    }, { from: "earliest" })));
    await bus.publish(t.topic, 1);
    await held.size(24, "each holds the event");
    const closed = [...subs, ...subs].map((s) => s.close({ drain: true })); // of which the gateway takes 16 at once
    await wait(500);
    equal(held.filter((d) => d.signal.aborted).length, 0, "none is taken away");
    release();
    await Promise.all(closed);
    equal(held.filter((d) => d.signal.aborted).length, 0, "all are handled");
    await bus.publish(t.topic, 2);
    await Promise.all(numbers(24).map(async (n) => {
      const next = new Log();
      const sub = await bus.subscribe(t.topic, `g${n}`, (event, d) => void next.push([event.payload, d.attempt]));
      await next.size(1, "the group goes on");
      equal([...next], [[2, 1]], "what was handled is acknowledged, and the gateway sends nothing to those that are closed");
      await sub.close();
    }));
  },

  async "drain beside another gateway"(t) {
    const states = new Log();
    const bus = await t.open({ onState: (s) => states.push(s), minDelayMs: 20, maxDelayMs: 200 });
    const acked = new Log();
    let replaced, closed;
    const sub = await bus.subscribe(t.topic, "g", async (event, d) => {
      replaced = t.rig.replace();
      await states.until((l) => l.filter((s) => s === "connected").length === 2, "the next gateway, while this one waits");
      closed = sub.close({ drain: true });
      await Promise.race([closed, wait(500)]);
      acked.push([event.payload, d.attempt, await d.ack(), d.signal.aborted]);
    }, { from: "earliest", ackTimeoutMs: 30_000 });
    await bus.publish(t.topic, 1);
    await acked.size(1, "the handler ends");
    equal([...acked], [[1, 1, true, false]], "what is held is handled");
    await closed;
    await replaced;
  },

  async "closed although it is kept"(t) {
    const bus = await t.open();
    const held = new Log();
    await bus.subscribe(t.topic, "g", (_, d) => void held.push(d), { from: "earliest", manual: true, resumeGraceMs: 30_000, ackTimeoutMs: 60_000 });
    await bus.publish(t.topic, 1);
    await held.size(1, "the event");
    const other = await t.open();
    const next = new Log();
    await other.subscribe(t.topic, "g", (_, d) => void next.push(d.attempt));
    const began = Date.now();
    await bus.close();
    await next.size(1, "what was held is given back");
    assert(Date.now() - began < 25_000, `that took ${Date.now() - began} ms, as if somebody might come back`);
    equal([...next], [1], "without an attempt");
  },

  async "silent gateway"(t) {
    const bus = await t.open();
    const sub = await bus.subscribe(t.topic, "g", () => {});
    const reader = await bus.read(t.topic, { from: "earliest" });
    await bus.publish(t.topic, 1);
    await reader.next();
    await t.rig.mute();
    const began = Date.now();
    await Promise.all([sub.close(), reader.return()]);
    assert(Date.now() - began < 20_000, `closing took ${Date.now() - began} ms`);
  },
};
