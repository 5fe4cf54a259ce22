// Package embedded runs a NATS broker with JetStream inside this process.
//
// [Start] returns a [Broker] that is ready to use; [Broker.Connect] reaches it
// through an in-process pipe, so that no port is opened unless [Config.Listen]
// or [Config.WebSocket] asks for one. Package cluster runs several brokers as one
// JetStream cluster on loopback.
//
// The package promises:
//
//   - A Broker is fully started when Start returns, and entirely gone when Stop
//     returns: no goroutine, no open file, no temporary folder is left.
//   - What the broker acknowledged is in its store after [Broker.Restart] and
//     after [Broker.Kill], which stands in for a SIGKILL of the process.
//     Only [Config.SyncAlways] protects it from a loss of power as well.
//   - A folder is used by one Broker at a time, in whatever process.
//   - Nothing beyond loopback is served without credentials; what [Routes] do is theirs.
//   - A Broker without listeners works inside a testing/synctest bubble; package
//     bustest has the entry point.
package embedded
