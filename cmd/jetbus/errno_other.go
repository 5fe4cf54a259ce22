//go:build !windows

package main

import "syscall"

// errAddressTaken is of a listener whose address another one has.
const errAddressTaken = syscall.EADDRINUSE

// errsUnread are of a write that nobody reads any more.
var errsUnread = []error{syscall.EPIPE}
