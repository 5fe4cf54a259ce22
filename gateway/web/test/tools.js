// What the scenes of the suite look at the client with.

/** Waits for a condition of what comes over the network. */
const PATIENCE_MS = 120_000;

export function assert(ok, what) {
  if (!ok) throw new Error(what);
}

export function equal(got, want, what) {
  const [a, b] = [got, want].map((v) => JSON.stringify(v));
  assert(a === b, `${what}: got ${a}, want ${b}`);
}

/** A list that can be waited on. */
export class Log extends Array {
  #waiting = [];

  push(...items) {
    const n = super.push(...items);
    this.#waiting = this.#waiting.filter((look) => !look());
    return n;
  }

  /** Resolves when `ok` holds. */
  until(ok, what) {
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => reject(new Error(`${what}: waited too long, there is ${JSON.stringify([...this]).slice(-500)}`)), PATIENCE_MS);
      const look = () => ok(this) && (clearTimeout(late), resolve(), true);
      if (!look()) this.#waiting.push(look);
    });
  }

  size(n, what) { return this.until((l) => l.length >= n, what); }
}

/** The error that a promise must reject with. */
export async function refused(promise, code) {
  let err;
  try {
    await promise;
  } catch (e) {
    err = e;
  }
  assert(err, `there is no error, want ${code}`);
  equal([err.name, err.code], ["JetBusError", code], String(err));
  return err;
}

export const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const numbers = (n) => Array.from({ length: n }, (_, i) => i + 1);

/** A WebSocket that notes the frames it sends. */
export function spy(Base) {
  const sent = [];
  class WebSocket extends Base {
    send(text) {
      sent.push(JSON.parse(text));
      super.send(text);
    }
  }
  return { WebSocket, sent };
}
