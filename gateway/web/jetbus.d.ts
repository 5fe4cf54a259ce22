/** The client of JetBus's gateway, for browsers and for Node 20 and later. */

/**
 * The payloads of topics, by name, for programs that know them:
 * `connect<{ "orders.placed": { total: number } }>(url)`.
 */
export type Topics = Record<string, any>;

/** Milliseconds since 1970, or a Date. */
export type Time = number | Date;

/**
 * An event. `payload` is the JSON value, a Uint8Array where it is no JSON, or missing where it is empty. In a topic
 * that keeps state null deletes the event's key, and an empty one does not.
 */
export interface Event<P = any> {
  id: string;
  topic: string;
  payload?: P | null;
  /** Epoch milliseconds. */
  ts: number;
  seq: number;
  key?: string;
  sid?: string;
  partition?: number;
  headers?: Record<string, string>;
  caused_by?: string[];
  tags?: string[];
  /** The position behind this event: `read(topic, { offset })` goes on there. Snapshots have none for each event. */
  offset: string;
}

export interface ConnectOptions {
  /**
   * Who we are: a token, or a function that gets one. The function is asked before each connection,
   * and again before a token ends. Default: none, for a gateway that takes none.
   */
  token?: string | (() => string | Promise<string>);
  /** For a Node without one: that of the package ws. Default: the global one. */
  WebSocket?: any;
  /** How long connect, subscribe, read and publish try. Default: 30,000. */
  timeoutMs?: number;
  /** Bounds of the wait before another attempt, which is random up to a bound that doubles. Default: 250 and 20,000. */
  minDelayMs?: number;
  maxDelayMs?: number;
  /** Is told what the connection does: "connecting" and "closed" with the reason, if there is one. */
  onState?: (state: "connecting" | "connected" | "closed", reason?: Error) => void;
}

export interface PublishOptions {
  /** Two events with one id within the topic's duplicate window are one. Default: a new UUIDv7. */
  id?: string;
  key?: string;
  /** Default: the gateway's time. */
  ts?: Time;
  headers?: Record<string, string>;
  tags?: string[];
  causedBy?: string[];
  sid?: string;
  /** Publish only if this is the sequence of the key's last event; else the code is seq_conflict. */
  expectLastSeq?: number;
  ttlMs?: number;
  deliverAt?: Time;
  /** How long it is tried; it is not sent later, and may be stored when that time is over. Default: that of connect. */
  timeoutMs?: number;
}

export interface Receipt {
  id: string;
  seq: number;
  ts: number;
  sid?: string;
  partition?: number;
  /** It was stored before. */
  duplicate: boolean;
  /** It is delivered later. */
  scheduled: boolean;
}

/** Which events; the others are passed over. */
export interface Filter {
  key?: string;
  keyPrefix?: string;
  headers?: Record<string, string>;
}

/** Where a reader begins, and a group that does not exist yet. */
export interface Start {
  /** Default: "latest". */
  from?: "latest" | "earliest" | "ts" | "afterId" | "afterSeq";
  ts?: Time;
  afterId?: string;
  afterSeq?: number;
}

export interface SubscribeOptions extends Start {
  /** How many handlers run at once. Default: 1. */
  concurrency?: number;
  /** Leave settling to ack, nack and extend of the delivery; leases are not extended then. Default: false. */
  manual?: boolean;
  /** Of a lease, at least 1,000; in a page that may be hidden, whose timers browsers slow down, 180,000. Default: 30,000. */
  ackTimeoutMs?: number;
  /** How many events this client holds at most. Default: twice concurrency, with manual 100. */
  maxInFlight?: number;
  /** How many bytes of events the gateway takes from the bus for this client at most; a larger event comes alone. Default: 64 MiB. */
  maxInFlightBytes?: number;
  /** Before an event becomes a dead letter. Default: 5; -1: without end. */
  maxAttempts?: number;
  /** Which events wait for which. Default: none do. */
  order?: "per_key" | "total";
  backoff?: { minMs?: number; maxMs?: number; noJitter?: boolean };
  filter?: Filter;
  /**
   * What is held is kept so long for a client whose connection broke, also one that was closed while it was
   * away; at most 30,000. Default: 0, it is given back at once.
   */
  resumeGraceMs?: number;
  /** Events without payloads. Default: false. */
  headersOnly?: boolean;
}

/** An event in this client's hands, until it is settled or the lease is lost. */
export interface Delivery<P = any> {
  readonly event: Event<P>;
  readonly attempt: number;
  /** 0: without end. */
  readonly maxAttempts: number;
  readonly redelivered: boolean;
  /** When the lease ends unless it is extended, in epoch milliseconds of this machine. */
  readonly deadline: number;
  /** Is aborted when the lease is lost: whatever is said then has no effect. */
  readonly signal: AbortSignal;
  /** Each resolves with whether this call did it: false where the lease was lost, or the event is settled. */
  ack(): Promise<boolean>;
  /**
   * Refuses the event: it comes again. `dead`: it becomes a dead letter. `snooze`: that is no attempt. 4 KiB of `reason` are kept.
   * `stack`: the stack of the failure, for the dead letter; 8 KiB are kept.
   */
  nack(options?: { delayMs?: number; reason?: string; dead?: boolean; snooze?: boolean; stack?: string }): Promise<boolean>;
  /** Moves the deadline to `ms` from now. Default: the ack timeout. */
  extend(ms?: number): Promise<boolean>;
}

/** Acknowledges by returning, and refuses by throwing. Events may come more than once. */
export type Handler<P = any> = (event: Event<P>, delivery: Delivery<P>) => unknown;

export interface Subscription {
  /** Resolves when it is over: with the error that ended it, or undefined after close. Never rejects. */
  readonly closed: Promise<JetBusError | undefined>;
  /**
   * Gives back what is held; with `drain`, lets it be handled first, for as long as that takes: a handler that
   * waits for it waits for itself. Without, it waits 2 seconds for the gateway at most. Total and idempotent.
   */
  close(options?: { drain?: boolean }): Promise<void>;
}

/** What a reader missed. */
export interface Gap {
  topic: string;
  from: number;
  to: number;
  reason: "retention" | "reset" | "conflated" | (string & {});
}

export interface ReadOptions extends Start {
  /** Begin behind this position, whatever `from` says. */
  offset?: string;
  filter?: Filter;
  headersOnly?: boolean;
  /** False: end where the topic ended when it was reached. Default: true. */
  follow?: boolean;
  /** How many events wait here, at least 1, before the gateway is told to stop for a while. Default: 1,000. */
  maxBuffered?: number;
  /** What becomes of a reader that is too slow for the gateway. Default: it connects again behind what it has. */
  slow?: "close" | "conflate";
  /**
   * Is told what is gone, and the reader goes on. Default: the iteration throws, with the code gap. With a
   * filter it may be that nothing which matches is gone: only events that do are positions.
   */
  onGap?: (gap: Gap) => void;
}

/** Events in order, each once, over any number of connections. One loop takes them; leaving it closes the reader. */
export interface Reader<P = any> extends Subscription, AsyncIterableIterator<Event<P>> {
  /** The position behind the last event that was taken; undefined: not known yet. */
  readonly offset: string | undefined;
}

/** The state of a topic: the last event of each key. */
export interface Snapshot<P = any> {
  events: Map<string, Omit<Event<P>, "offset">>;
  /** `read(topic, { offset })` goes on behind it. */
  offset: string;
  asOf: number;
}

/** A connection to a gateway, which comes back by itself. What is asked while it is away waits. */
export interface Client<T extends Topics = Topics> {
  /**
   * Publishes an event as it is at the call. Bytes stay bytes, undefined is an empty payload, all else is JSON; null,
   * with a key and in a topic that keeps state, deletes the key. Resolves when it is stored. Until then it is tried
   * again under the same id. Where the topic may have forgotten that (its duplicate window), the gateway
   * refuses what may be stored already, instead of storing it twice: publish_failed, not retryable, with "unknown"
   * as details.stored. Look whether it is there.
   *
   * Events keep their order, within the rate that the gateway allows for; those that were under way already
   * (256 at most) when one before them was refused for the moment may be stored first.
   *
   * Dry runs are refused (bad_argument): use POST /v1/topics/{topic}?dry_run=1.
   */
  publish<K extends keyof T & string>(topic: K, payload?: T[K] | null | ArrayBuffer | ArrayBufferView, options?: PublishOptions): Promise<Receipt>;
  /** Joins a group, of which each event goes to one member. Resolves when the gateway knows. */
  subscribe<K extends keyof T & string>(topics: K | K[], group: string, handler: Handler<T[K]>, options?: SubscribeOptions): Promise<Subscription>;
  /** Reads a topic, without a group. Resolves when nothing new can be missed any more. */
  read<K extends keyof T & string>(topic: K, options?: ReadOptions): Promise<Reader<T[K]>>;
  /** The last event of each key of a topic that keeps state, over HTTP. */
  snapshot<K extends keyof T & string>(topic: K, options?: { prefix?: string }): Promise<Snapshot<T[K]>>;
  /** Ends all: what is held is given back, readers end, and what waits is rejected. Total and idempotent. */
  close(): Promise<void>;
}

/** What went wrong. */
export class JetBusError extends Error {
  constructor(code: string, message: string, more?: { retryable?: boolean; retryAfterMs?: number; details?: unknown; cause?: unknown });
  /**
   * One of the gateway's codes, or closed, connection_lost, timeout, gap, no_websocket, bad_argument, conn_limit,
   * auth_timeout, protocol_error, unsupported_version, lease_lost (of a delivery's signal).
   */
  readonly code: string;
  /** The same may succeed later. */
  readonly retryable: boolean;
  /** 0: not known. */
  readonly retryAfterMs: number;
  /** For programs; of gap, the Gap. Of a publish that failed `stored`, where that can be said: "no" or "unknown". */
  readonly details: unknown;
}

/** An id as the bus makes them, UUIDv7. */
export function newId(): string;

/**
 * Connects to a gateway: "wss://host/ws", or "/ws" for that of the page's own host. Resolves when the gateway has
 * accepted the token, and rejects with a {@link JetBusError} when it refuses the client or does not answer in time.
 * A client that connected once keeps connecting again, also to a gateway that has no room at the moment (4504, 4505).
 */
export function connect<T extends Topics = Topics>(url: string | URL, options?: ConnectOptions): Promise<Client<T>>;
