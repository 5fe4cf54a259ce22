// The suite of jetbus.js, the same in Node and in browsers. Each scene has a topic of its own. The
// rig beside it (see ../../../e2e/web) restarts the broker and cuts connections where a scene asks.

import { edges } from "./edges.js";
import { Log, assert, equal, numbers, refused, spy, wait } from "./tools.js";

/** What a scene has: t.open(), t.guarded(token) and t.limited() connect, t.rig.x() asks the rig, t.WebSocket is what connections are. */
export const scenes = {
  ...edges,

  async publish(t) {
    const bus = await t.open();
    const first = await bus.publish(t.topic, { total: 1 }, { id: "a", key: "k", headers: { "x-a": "b" }, tags: ["t"], causedBy: ["c"], ts: new Date(1700000000000) });
    equal([first.id, first.seq, first.ts, first.duplicate], ["a", 1, 1700000000000, false], "the first receipt");
    const again = await bus.publish(t.topic, { total: 1 }, { id: "a", key: "k" });
    equal([again.seq, again.duplicate], [1, true], "the same id once more");
    const ids = await Promise.all(numbers(3).map((n) => bus.publish(t.topic, n)));
    equal(ids.map((r) => r.seq), [2, 3, 4], "publishes keep their order");
    equal(new Set(ids.map((r) => r.id)).size, 3, "the module makes ids");
    const mine = { "x-n": "as it was" };
    const published = bus.publish(t.topic, mine, { headers: mine });
    mine["x-n"] = "changed";
    await published;
    await bus.publish(t.topic, new Uint8Array([0, 255, 128, 7]));
    await bus.publish(t.topic, "grün 🚌\n\u2028");
    await bus.publish(t.topic, null);
    await bus.publish(t.topic, undefined, { key: "k" });
    const events = [];
    for await (const e of await bus.read(t.topic, { from: "earliest", follow: false })) events.push(e);
    const [e] = events;
    equal([e.id, e.key, e.headers, e.tags, e.caused_by, e.ts, e.seq, e.payload], ["a", "k", { "x-a": "b" }, ["t"], ["c"], 1700000000000, 1, { total: 1 }], "the first event");
    equal([events[4].payload, events[4].headers], [{ "x-n": "as it was" }, { "x-n": "as it was" }], "what the caller had when it published");
    assert(events[5].payload instanceof Uint8Array, "bytes stay bytes");
    equal([...events[5].payload], [0, 255, 128, 7], "the bytes");
    equal(events.slice(6).map((e) => e.payload ?? String(e.payload)), ["grün 🚌\n\u2028", "null", "undefined"], "text, null and nothing");
  },

  async refusals(t) {
    const bus = await t.open();
    await refused(bus.publish("no.such.topic", 1), "unknown_topic");
    await refused(bus.read("no.such.topic"), "unknown_topic");
    await refused(bus.publish(t.topic, "x".repeat(2 << 20)), "too_large");
    await refused(bus.publish(t.topic, 2, { expectLastSeq: 9, key: "k" }), "unsupported"); // of this topic
    await refused(bus.publish(7), "bad_argument");
    await refused(bus.publish(t.topic, 1, { dryRun: true }), "bad_argument");
    await refused(bus.publish(t.topic, 1, { dry_run: true }), "bad_argument");
    await refused(bus.subscribe(t.topic, "", () => {}), "bad_argument");
    await refused(bus.subscribe(t.topic, "g"), "bad_argument");
    await refused(bus.subscribe(t.topic, "g", () => {}, { concurrency: 0 }), "bad_argument");
    await refused(bus.read(t.topic, { maxBuffered: 0 }), "bad_argument");
    await refused(bus.subscribe(t.topic, "g", () => {}, { ackTimeoutMs: 5 }), "bad_request");
    await refused(t.connect("ftp://127.0.0.1/ws"), "bad_argument");
    equal((await bus.publish(t.topic, 1)).seq, 1, "the connection is as good as before");
  },

  async subscribe(t) {
    const bus = await t.open();
    const seen = new Log();
    const sub = await bus.subscribe(t.topic, "g", (event, d) => {
      seen.push([event.payload, d.attempt]);
      if (event.payload === 2 && d.attempt === 1) throw new Error("not yet");
    }, { from: "earliest", backoff: { minMs: 10, maxMs: 20 } });
    for (const n of numbers(3)) await bus.publish(t.topic, n);
    await seen.size(4, "three events, one of them twice");
    equal([...seen].sort(), [[1, 1], [2, 1], [2, 2], [3, 1]], "what was handled");
    await sub.close({ drain: true });
    await sub.close();
    equal(await sub.closed, undefined, "closed by the program");
    const rest = new Log();
    await bus.subscribe(t.topic, "g", (event) => rest.push(event.payload));
    await bus.publish(t.topic, 4);
    await rest.size(1, "the group goes on");
    equal([...rest], [4], "what was acknowledged does not come again");
  },

  async "lease extension"(t) {
    const { WebSocket, sent } = t.spy();
    const bus = await t.open({ WebSocket });
    const seen = new Log();
    const done = new Log();
    const began = Date.now();
    await bus.subscribe(t.topic, "g", async (event, d) => {
      seen.push([event.payload, d.attempt]);
      if (event.payload === "slow") await wait(13_000); // more than two ack timeouts
      done.push(d.signal.aborted);
    }, { from: "earliest", ackTimeoutMs: 5_000 });
    await bus.publish(t.topic, "slow");
    await bus.publish(t.topic, "behind it"); // waits in this client, and must be kept, too
    await done.size(2, "both handled");
    equal([...done], [false, false], "no lease was lost");
    equal([...seen], [["slow", 1], ["behind it", 1]], "no redelivery");
    const extended = sent.filter((f) => f.op === "ACKS").length;
    const most = Math.floor((Date.now() - began) / 1_666) + 1; // 13 seconds, or more on a slow machine
    assert(extended >= 3 && extended <= most, `extended ${extended} times, at a third of the ack timeout`);
  },

  async "lease lost"(t) {
    const bus = await t.open();
    const seen = new Log();
    await bus.subscribe(t.topic, "g", (_, d) => void seen.push(d), { from: "earliest", manual: true, ackTimeoutMs: 1_000, backoff: { minMs: 10, maxMs: 20 } });
    await bus.publish(t.topic, 1);
    await seen.size(2, "the lease lapses, and the event comes again");
    const [first, second] = seen;
    equal([first.attempt, second.attempt, first.signal.aborted], [1, 2, true], "attempts");
    equal(await first.ack(), false, "an acknowledgement that is too late");
    await seen.until((l) => l.at(-1).attempt === l.length, "the last delivery");
    for (;;) { // on a machine that is slower than a lease, of the one that follows
      const n = seen.length;
      if ((await seen[n - 1].extend(60_000)) && (await seen[n - 1].ack())) break;
      await seen.size(n + 1, "another delivery");
    }
    equal(await seen.at(-1).ack(), false, "it is settled already");
  },

  async "manual settling"(t) {
    const bus = await t.open();
    const seen = new Log();
    await bus.subscribe(t.topic, "g", (_, d) => void seen.push(d), { from: "earliest", manual: true, ackTimeoutMs: 30_000, maxAttempts: 2, backoff: { minMs: 10, maxMs: 20 } });
    await bus.publish(t.topic, 1);
    await seen.size(1, "the first delivery");
    equal(await seen[0].extend(), true, "extended");
    assert(seen[0].deadline > Date.now() + 10_000, "the deadline has moved");
    equal(await seen[0].nack({ reason: "no", delayMs: 5 }), true, "refused");
    await seen.size(2, "the second delivery");
    equal([await seen[1].nack({ snooze: true, delayMs: 5 }), await seen[1].ack()], [true, false], "put off, which settles it");
    await seen.size(3, "the third delivery");
    equal(seen.map((d) => d.attempt).slice(0, 2), [1, 2], "attempts");
    await refused(seen[2].nack({ delayMs: -7 }), "bad_request");
    equal(await seen[2].nack({ dead: true, reason: "for good" }), true, "a dead letter");
  },

  async "stack of a handler"(t) {
    const bus = await t.open();
    const refuse = () => { throw new Error("no such order"); };
    await bus.subscribe(t.topic, "g", refuse, { from: "earliest", maxAttempts: 2, backoff: { minMs: 10, maxMs: 20 } });
    await bus.publish(t.topic, 1);
    const letters = await bus.read(`dlq.${t.topic}`, { from: "earliest" });
    for await (const { headers } of letters) {
      const stack = decodeURIComponent(headers["x-dlq-stack"]);
      assert(stack.split("\n")[0].includes("refuse") && !stack.includes("no such order"), `the stack is ${stack}`);
      break;
    }
  },

  async "broker restart"(t) {
    const bus = await t.open();
    const group = new Log();
    const read = new Log();
    const reader = await bus.read(t.topic);
    const reading = (async () => {
      for await (const e of reader) read.push(e.payload);
    })();
    await bus.subscribe(t.topic, "g", (event) => void group.push(event.payload), { from: "earliest", ackTimeoutMs: 20_000, concurrency: 8 });
    const restarts = t.rig.restart();
    const receipts = [];
    for (let n = 1; n <= 200; n += 10) {
      receipts.push(...(await Promise.all(numbers(10).map((i) => bus.publish(t.topic, n + i - 1, { timeoutMs: 110_000 })))));
      await wait(20); // so that the broker is away in the midst of it
    }
    await restarts;
    receipts.push(await bus.publish(t.topic, 201));
    equal(new Set(receipts.map((r) => r.seq)).size, 201, "each is stored once");
    await group.until((l) => new Set(l).size === 201, "the group gets all");
    await read.size(201, "the reader gets all");
    equal([...read].sort((a, b) => a - b), numbers(201), "the reader gets each once");
    await reader.close();
    await reading;
  },

  async "broker away"(t) {
    const bus = await t.open({ timeoutMs: 110_000 });
    const group = new Log();
    const read = new Log();
    const reader = await bus.read(t.topic);
    const reading = (async () => {
      for await (const e of reader) read.push(e.payload);
    })();
    await bus.subscribe(t.topic, "g", (event) => void group.push(event.payload), { from: "earliest", ackTimeoutMs: 20_000 });
    const back = t.rig.away(13_000); // longer than the gateway waits for an answer
    await wait(500);
    const receipts = await Promise.all(numbers(20).map((n) => bus.publish(t.topic, n)));
    const late = await bus.subscribe(t.topic, "late", () => {});
    await back;
    equal(new Set(receipts.map((r) => r.seq)).size, 20, "each is stored once");
    await group.until((l) => new Set(l).size === 20, "the group gets all");
    await read.size(20, "the reader gets all");
    equal([...read].sort((a, b) => a - b), numbers(20), "the reader gets each once");
    await late.close();
    await reader.close();
    await reading;
  },

  async "resume without loss"(t) {
    const states = new Log();
    const bus = await t.open({ onState: (s) => states.push(s), minDelayMs: 20, maxDelayMs: 200 });
    const writer = await t.direct(); // its connection is not cut
    const read = new Log();
    const reader = await bus.read(t.topic);
    const reading = (async () => {
      for await (const e of reader) read.push(e);
    })();
    let cuts = 0;
    for (const n of numbers(300)) {
      await writer.publish(t.topic, n);
      if (n % 75 === 0) {
        await t.rig.cut();
        cuts++;
      }
    }
    await read.size(300, "all events");
    equal(read.map((e) => e.payload), numbers(300), "each once, in order");
    await states.until((l) => l.filter((s) => s === "connected").length > cuts / 2, "it was connected again");
    await reader.close();
    await reading;
    const rest = [];
    for await (const e of await bus.read(t.topic, { offset: read[99].offset, follow: false })) rest.push(e.payload);
    equal(rest, numbers(300).slice(100), "another reader goes on behind an offset");
  },

  async "publish again"(t) {
    const { WebSocket, sent } = t.spy();
    const bus = await t.open({ WebSocket, minDelayMs: 20, maxDelayMs: 200 });
    const writer = await t.direct();
    const stored = await writer.read(t.topic);
    await bus.publish(t.topic, 0);
    await t.rig.mute(); // what the gateway says is lost from now on
    const publishes = numbers(20).map((n) => bus.publish(t.topic, n, { timeoutMs: 110_000 }));
    const began = Date.now();
    const seqs = [];
    for await (const e of stored) if (seqs.push(e.seq) === 21) break;
    await wait(50);
    await t.rig.cut();
    const receipts = await Promise.all(publishes);
    equal(receipts.map((r) => r.seq), seqs.slice(1), "they are the events that were stored");
    assert(receipts.every((r) => r.duplicate), "each was published once more, under its id");
    const frames = sent.filter((f) => f.op === "PUBLISH");
    equal(frames.map((f) => f.payload), [0, ...numbers(20), ...numbers(20)], "in its order");
    const ages = frames.map((f) => f.age_ms);
    equal(ages.slice(0, 21).filter((age) => age !== undefined), [], "what is new says no age");
    const most = Date.now() - began + 1_000; // of two clocks
    assert(ages.slice(21).every((age) => Number.isInteger(age) && age >= 40 && age <= most), `ages of what is said again: ${ages.slice(21)}`);
  },

  async "slow reader"(t) {
    const { WebSocket, sent } = t.spy();
    const bus = await t.open({ WebSocket });
    await Promise.all(numbers(500).map((n) => bus.publish(t.topic, n)));
    const all = [];
    for await (const e of await bus.read(t.topic, { from: "earliest", follow: false, maxBuffered: 20 })) {
      all.push(e.payload);
      if (all.length % 50 === 0) await wait(5);
    }
    equal(all.length, 500, "all events");
    equal(new Set(all).size, 500, "each once");
    assert(sent.filter((f) => f.op === "SUBSCRIBE").length > 2, "the gateway was told to wait");
  },

  async "kept over a cut"(t) {
    const bus = await t.open({ minDelayMs: 20, maxDelayMs: 200 });
    const seen = new Log();
    const acked = new Log();
    await bus.subscribe(t.topic, "g", async (_, d) => {
      seen.push(d.attempt);
      await t.rig.cut();
      await bus.publish(t.topic, "over the next connection", { key: "skip" });
      acked.push([await d.ack(), d.signal.aborted]);
    }, { from: "earliest", ackTimeoutMs: 20_000, resumeGraceMs: 30_000, filter: { key: "k" } });
    await bus.publish(t.topic, 1, { key: "k" });
    await acked.size(1, "acknowledged over another connection");
    equal([...acked], [[true, false]], "the lease went on");
    equal([...seen], [1], "no redelivery");
  },

  async "given back at a cut"(t) {
    const bus = await t.open({ minDelayMs: 20, maxDelayMs: 200 });
    const seen = new Log();
    await bus.subscribe(t.topic, "g", async (_, d) => {
      seen.push([d.attempt, d.signal]);
      if (seen.length > 1) return;
      await t.rig.cut();
      if (!d.signal.aborted) await new Promise((resolve) => d.signal.addEventListener("abort", resolve));
    }, { from: "earliest", ackTimeoutMs: 60_000 });
    await bus.publish(t.topic, 1);
    await seen.size(2, "it comes again, long before its lease ends");
    equal([seen[0][0], seen[1][0], seen[0][1].aborted], [1, 1, true], "that was no attempt");
  },

  async "gateway replaced"(t) {
    const states = new Log();
    const bus = await t.open({ onState: (s) => states.push(s), minDelayMs: 20, maxDelayMs: 200 });
    const acked = new Log();
    let replaced;
    const sub = await bus.subscribe(t.topic, "g", async (event, d) => {
      if (event.payload === 1) {
        replaced = t.rig.replace();
        await states.until((l) => l.filter((s) => s === "connected").length === 2, "the next gateway, while this one waits");
        await bus.publish(t.topic, 2);
      }
      acked.push([event.payload, d.attempt, await d.ack(), d.signal.aborted]);
    }, { from: "earliest", ackTimeoutMs: 30_000 });
    await bus.publish(t.topic, 1);
    await acked.size(2, "the handler ends, and the next one goes on");
    equal([...acked], [[1, 1, true, false], [2, 1, true, false]], "each once");
    await replaced;
    await sub.close({ drain: true });
  },

  async "refused token"(t) {
    const err = await refused(t.guarded("nobody"), "bad_token");
    equal(err.retryable, false, "it stays away");
    await refused(t.guarded(undefined), "unauthorized");
    const bus = await t.guarded(`ann topic:read:${t.topic}`);
    await refused(bus.publish(t.topic, 1), "forbidden");
    await refused(bus.subscribe(t.topic, "g", () => {}), "forbidden");
    await bus.read(t.topic);
    await refused(t.guarded(t.until(-60) + `ann topic:read:${t.topic}`), "token_expired");
  },

  async "token asked again"(t) {
    const asked = new Log();
    const states = [];
    const bus = await t.guarded(() => {
      asked.push(Date.now());
      return t.until(15) + `ann topic:read:${t.topic} topic:write:${t.topic}`;
    }, { onState: (s) => states.push(s) });
    const reader = await bus.read(t.topic);
    await asked.size(4, "again and again, before the end of each");
    await bus.publish(t.topic, 1);
    equal((await reader.next()).value.payload, 1, "the reader of the first token");
    equal(states.filter((s) => s === "connected").length, 1, "one connection");
    await refused(bus.snapshot(t.topic), "unsupported"); // which only a token that counts is told
  },

  async snapshots(t) {
    const topic = await t.rig.topic(`${t.topic}.state`, { compact: true });
    const bus = await t.open();
    for (const [key, n] of [["a", 1], ["b/é", 1], ["a", 2], ["c", 1]]) await bus.publish(topic, n, { key });
    await bus.publish(topic, null, { key: "c" });
    const { events, offset, asOf } = await bus.snapshot(topic);
    equal([...events].map(([k, e]) => [k, e.payload]), [["b/é", 1], ["a", 2]], "the last event of each key");
    equal(asOf, 5, "as of");
    await bus.publish(topic, 3, { key: "a" });
    const reader = await bus.read(topic, { offset });
    equal((await reader.next()).value.payload, 3, "reading goes on behind the snapshot");
    await refused(bus.publish(topic, 4, { key: "a", expectLastSeq: 1 }), "seq_conflict");
    await refused(bus.snapshot("no.such.topic"), "unknown_topic");
  },

  async "keys deleted between pages"(t) {
    const topic = await t.rig.topic(`${t.topic}.state`, { compact: true });
    const bus = await t.open();
    await Promise.all(numbers(150).map((n) => bus.publish(topic, n, { key: `k${n}` }))); // more than a page has
    await bus.publish(topic, undefined, { key: "empty" });
    const { fetch } = globalThis;
    let pages = 0;
    globalThis.fetch = async (...what) => {
      const response = await fetch(...what);
      if (++pages === 1) await bus.publish(topic, null, { key: "k1" });
      return response;
    };
    try {
      const { events, asOf } = await bus.snapshot(topic);
      assert(pages > 1, `${pages} pages`);
      equal([events.has("k1"), events.size, asOf], [false, 150, 152], "what was deleted behind its page is gone");
      equal([events.has("empty"), String(events.get("empty").payload)], [true, "undefined"], "an empty payload deletes nothing");
    } finally {
      globalThis.fetch = fetch;
    }
    const read = [];
    for await (const e of await bus.read(topic, { from: "afterSeq", afterSeq: 150, follow: false })) read.push([e.key, String(e.payload)]);
    equal(read, [["empty", "undefined"], ["k1", "null"]], "what readers see of both");
  },

  async gap(t) {
    const topic = await t.rig.topic(`${t.topic}.short`, {});
    const bus = await t.open();
    for (const n of numbers(5)) await bus.publish(topic, n);
    const first = await (await bus.read(topic, { from: "earliest" })).next();
    await t.rig.remake(topic);
    await bus.publish(topic, 6);
    const blind = await bus.read(topic, { offset: first.value.offset });
    equal((await refused(blind.next(), "gap")).details.reason, "reset", "why");
    equal((await blind.next()).done, true, "thrown once");
    const gaps = [];
    const reader = await bus.read(topic, { offset: first.value.offset, onGap: (g) => gaps.push(g.reason) });
    equal([(await reader.next()).value.payload, gaps], [6, ["reset"]], "who asks for gaps goes on");
  },

  async close(t) {
    const bus = await t.open();
    const aborted = new Log();
    const sub = await bus.subscribe(t.topic, "g", (_, d) => new Promise((resolve) => {
      d.signal.addEventListener("abort", () => (aborted.push(1), resolve()));
      bus.close();
    }), { from: "earliest" });
    const reader = await bus.read(t.topic, { filter: { key: "no such key" } });
    const ended = reader.next();
    bus.publish(t.topic, 1).catch(() => {}); // which may be answered after the close
    await aborted.size(1, "the handler is told");
    await Promise.all([bus.close(), bus.close()]);
    equal(await sub.closed, undefined, "the subscription is over");
    equal((await ended).done, true, "the reader ends");
    await reader.close();
    await refused(bus.publish(t.topic, 1), "closed");
    await refused(bus.read(t.topic), "closed");
    const next = new Log();
    const other = await t.open();
    await other.subscribe(t.topic, "g", (_, d) => void next.push(d.attempt));
    await next.size(1, "what was held is given back");
    equal([...next], [1], "without an attempt");
    await refused(t.connect("ws://127.0.0.1:1/ws", { timeoutMs: 300 }), "timeout");
  },
};

/** Runs one scene, and ends what it began. */
export async function play(name, { connect, config, runner, options = {} }) {
  const clients = [];
  const open = async (url, more) => {
    const client = await connect(url, { ...options, ...more });
    clients.push(client);
    return client;
  };
  const rig = async (what, body) => {
    const response = await fetch(`${config.control}/rig/${what}`, { method: "POST", body: JSON.stringify(body ?? {}) });
    assert(response.ok, `the rig: ${what}: ${await response.clone().text()}`);
    return response.text();
  };
  const topic = `web.${runner}.${name.replaceAll(" ", "-")}`;
  const make = async (name, c) => (await rig("topic", { name, ...c }), name);
  await make(topic, {});
  try {
    await scenes[name]({
      topic, connect: open,
      open: (more) => open(config.open, more),
      direct: (more) => open(config.direct, more),
      guarded: (token, more) => open(config.guarded, { token, ...more }),
      until: (seconds) => `~${Math.floor(Date.now() / 1000) + seconds} `,
      limited: (more) => open(config.limited, more),
      WebSocket: options.WebSocket ?? globalThis.WebSocket,
      spy: () => spy(options.WebSocket ?? globalThis.WebSocket),
      rig: { mute: () => rig("mute"), away: (ms) => rig("away", { ms }), restart: () => rig("restart"), cut: () => rig("cut"), replace: () => rig("replace"), topic: make, remake: (name) => rig("remake", { name }) },
    });
  } finally {
    await Promise.all(clients.map((c) => c.close()));
  }
}
