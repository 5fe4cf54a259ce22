// Runs the suite in Node: JETBUS_RIG is the address of the rig; see ../../../e2e/web.
import test from "node:test";
import { WebSocket } from "ws";
import { connect } from "../jetbus.js";
import { play, scenes } from "./suite.js";

const config = await (await fetch(`${process.env.JETBUS_RIG}/rig/config`)).json();
for (const name of Object.keys(scenes)) {
  test(name, { timeout: 300_000 }, () => play(name, { connect, config, runner: "node", options: { WebSocket } }));
}
