// Package cli tests the command as its users run it: a program of its own, by a real
// clock, that is killed. What a test can ask of it inside one process is tested in
// cmd/jetbus.
package cli
