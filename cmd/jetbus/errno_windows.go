package main

import "syscall"

// errAddressTaken is of a listener whose address another one has: WSAEADDRINUSE. The EADDRINUSE
// of package syscall is a number that Windows does not know.
const errAddressTaken = syscall.Errno(10048)

// errsUnread are of a write that nobody reads any more: ERROR_BROKEN_PIPE and ERROR_NO_DATA.
var errsUnread = []error{syscall.Errno(109), syscall.Errno(232)}
