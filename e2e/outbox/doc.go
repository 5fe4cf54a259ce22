// Package outbox holds the outboxes to their promises on real databases and a real
// broker: SQLite and MongoDB (or the stand-in for it, see package mongotest) always,
// PostgreSQL with the flag -postgres (make e2e-sql). Its tests run themselves again as
// drainers that are ended by SIGKILL, see TestMain.
package outbox
